//! The door: who may call, and that a browser on this host cannot be made to call for somebody else. It looks at nothing but the request's head.

use super::Caller;
use super::answer::Failure;
use crate::service::access::Token;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// What is asked of callers.
pub struct Door {
    /// Token, if there is one.
    pub token: Option<Token>,
    /// Whether the connection is TLS.
    pub tls: bool,
}

/// Lets in or refuses.
pub async fn enter(
    State(door): State<Arc<Door>>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    match door.may_enter(&caller, &request) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

impl Door {
    fn may_enter(&self, caller: &Caller, request: &Request) -> Result<(), Failure> {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
        let by_token = self.token.as_ref().is_some_and(|token| token.is_in(header(AUTHORIZATION)));
        if by_token || caller.certificate {
            return Ok(());
        }
        let anybody = self.token.is_none() && !self.tls && caller.address.ip().is_loopback();
        if !anybody {
            return Err(Failure::unauthorized(
                "who are you? Send `Authorization: Bearer <token>`, or show a client certificate",
            ));
        }
        // A page from elsewhere, in a browser on this host, comes with its own name (rebinding) or its origin.
        let host = header(HOST).unwrap_or_default();
        let origin = header(ORIGIN).map(|origin| origin.trim_start_matches("http://"));
        if !is_loopback(host) || origin.is_some_and(|origin| !is_loopback(origin)) {
            return Err(Failure::forbidden("without a token only calls to localhost by its own name are answered"));
        }
        Ok(())
    }
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn enters(door: &Door, address: [u8; 4], certificate: bool, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().uri("/v1/status");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        let caller = Caller { address: (address, 1).into(), certificate };
        door.may_enter(&caller, &request).is_ok()
    }

    const HERE: [u8; 4] = [127, 0, 0, 1];
    const ELSEWHERE: [u8; 4] = [10, 0, 0, 1];

    #[test]
    fn without_a_token_only_this_host_is_let_in_and_only_by_its_own_name() {
        let door = Door { token: None, tls: false };
        assert!(enters(&door, HERE, false, &[("host", "127.0.0.1:7481")]));
        assert!(enters(&door, HERE, false, &[("host", "[::1]:7481"), ("origin", "http://localhost:7481")]));
        assert!(!enters(&door, HERE, false, &[("host", "evil.example:7481")]));
        assert!(!enters(&door, HERE, false, &[("host", "localhost"), ("origin", "http://evil.example")]));
        assert!(!enters(&door, HERE, false, &[]));
        assert!(!enters(&door, ELSEWHERE, false, &[("host", "127.0.0.1:7481")]));
    }

    #[test]
    fn with_a_token_it_or_a_certificate_is_needed_everywhere() {
        let door = Door { token: Token::new("0123456789abcdef").ok(), tls: true };
        let bearer = [("authorization", "Bearer 0123456789abcdef")];
        assert!(enters(&door, ELSEWHERE, false, &bearer));
        assert!(enters(&door, ELSEWHERE, true, &[]));
        assert!(!enters(&door, HERE, false, &[("host", "localhost")]));
        assert!(!enters(&door, ELSEWHERE, false, &[("authorization", "Bearer 0123456789abcdeX")]));
    }

    #[test]
    fn tls_alone_lets_nobody_in() {
        let door = Door { token: None, tls: true };
        assert!(!enters(&door, HERE, false, &[("host", "localhost")]));
        assert!(enters(&door, ELSEWHERE, true, &[]));
    }
}
