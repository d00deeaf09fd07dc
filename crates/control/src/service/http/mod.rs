//! HTTP and JSON for people and scripts, described by `/openapi.json`, and the dashboard that shows it. Every input is checked. Who may call: on loopback without TLS everybody of
//! this host, as long as no token is configured; else who shows the token or a certificate of a client. What an error says is for the caller.

mod answer;
mod asked;
mod chronicle;
mod connections;
mod dashboard;
mod described;
mod events;
mod fabric;
mod guard;
mod overview;
mod rebalance;
mod rotation;
mod tenants;
mod topology;

use super::Shared;
use super::access::Access;
use super::listen::{self, Secured};
use crate::store::StoreError;
use answer::Failure;
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::routing::{MethodRouter, get};
use axum::serve::{IncomingStream, Listener};
use chronicle::Chronicle;
use described::Common;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use utoipa::OpenApi;

/// Longest body, bytes.
const MAX_BODY: usize = 256 * 1024;

/// The document. What is common to all calls [`Common`] adds.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "scaleFabric control",
        description = "Directory, topology, loads, orders, events and state of a scaleFabric control plane. A page for people is at `/dashboard/`."
    ),
    modifiers(&Common),
    paths(
        connections::find,
        fabric::services,
        fabric::nodes,
        fabric::node,
        fabric::loads,
        fabric::status,
        fabric::order,
        fabric::changes,
        overview::overview,
        overview::tenants,
        overview::timeline,
        overview::moment,
        events::stream,
        events::recent,
        tenants::look,
        tenants::set,
        topology::look,
        topology::paths,
        rebalance::settings,
        rebalance::set,
        rebalance::decisions,
        rotation::rotate,
        rotation::rotations,
        rotation::one,
        rotation::set_schedule
    )
)]
struct Document;

/// The document as it is published.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// The calls, as a list for tests and as routes: the document must have the same.
macro_rules! calls {
    ($($path:literal $($method:ident $handler:path),+;)*) => {
        #[cfg(test)]
        const CALLS: &[(&str, &str)] = &[$($((stringify!($method), $path)),+),*];

        fn calls() -> Router<Arc<Shared>> {
            Router::new()$(.route($path, MethodRouter::new()$(.$method($handler))+))*
        }
    };
}

calls! {
    "/v1/connections" get connections::find;
    "/v1/services" get fabric::services;
    "/v1/nodes" get fabric::nodes;
    "/v1/nodes/{node}" get fabric::node;
    "/v1/loads" get fabric::loads;
    "/v1/status" get fabric::status;
    "/v1/orders" post fabric::order;
    "/v1/tenants" get tenants::look, put tenants::set;
    "/v1/tenants/use" get overview::tenants;
    "/v1/topology" get topology::look;
    "/v1/topology/paths" get topology::paths;
    "/v1/changes" get fabric::changes;
    "/v1/overview" get overview::overview;
    "/v1/timeline" get overview::timeline;
    "/v1/timeline/moment" get overview::moment;
    "/v1/events" get events::stream;
    "/v1/events/recent" get events::recent;
    "/v1/rebalance" get rebalance::settings, put rebalance::set;
    "/v1/rebalance/decisions" get rebalance::decisions;
    "/v1/rotate" get rotation::rotations, post rotation::rotate;
    "/v1/rotate/schedule" put rotation::set_schedule;
    "/v1/rotate/{serial}" get rotation::one;
}

/// All that is served, without the guard at the door.
fn router() -> Router<Arc<Shared>> {
    calls()
        .route("/openapi.json", get(|| async { axum::Json(document()) }))
        .fallback(|| async { Failure::not_found("there is nothing here; `/openapi.json` says what there is") })
        .method_not_allowed_fallback(|| async { Failure::no_such_method() })
}

/// Serves until told to end.
pub fn serve(
    shared: Arc<Shared>,
    access: Access,
    listener: TcpListener,
    ended: watch::Receiver<bool>,
) -> Result<impl Future<Output = ()> + Send + 'static, StoreError> {
    let door = guard::Door { token: access.token.clone(), tls: access.tls.is_some() };
    let run = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
    let chronicle = Arc::new(Chronicle::new(format!("{run:016x}")));
    let app = router()
        .layer(axum::Extension(Arc::clone(&chronicle)))
        .layer(axum::Extension(Ending(ended.clone())))
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .layer(axum::middleware::from_fn_with_state(Arc::new(door), guard::enter))
        .merge(dashboard::router())
        .with_state(Arc::clone(&shared));
    let service = app.into_make_service_with_connect_info::<Caller>();
    let mut end = Ending(ended);
    let ending = async move { end.comes().await };
    let tls = access.tls.as_ref().map(|tls| tls.config(&[b"http/1.1"])).transpose()?;
    let serving = async move {
        let _ = match tls {
            Some(config) => {
                let address = listener.local_addr();
                let accepted = listen::secured(listener, TlsAcceptor::from(config));
                let secure = Secure { accepted, address: address.ok() };
                axum::serve(secure, service).with_graceful_shutdown(ending).await
            }
            None => axum::serve(listener, service).with_graceful_shutdown(ending).await,
        };
    };
    Ok(async move {
        tokio::select! {
            () = serving => {}
            // It runs as long as there is a feed; without one there is nothing to write down.
            () = async { chronicle.run(&shared).await; std::future::pending().await } => {}
        }
    })
}

/// Whether the replica ends: streams, which have no end of their own, end with it.
#[derive(Clone)]
struct Ending(watch::Receiver<bool>);

impl Ending {
    /// Waits for it.
    async fn comes(&mut self) {
        let _ = self.0.wait_for(|ended| *ended).await;
    }
}

/// Who calls.
#[derive(Clone, Debug)]
struct Caller {
    address: SocketAddr,
    /// Whether a certificate was shown, which TLS has verified.
    certificate: bool,
}

impl Connected<IncomingStream<'_, TcpListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self { address: *stream.remote_addr(), certificate: false }
    }
}

impl Connected<IncomingStream<'_, Secure>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Secure>) -> Self {
        let certificate = stream.io().get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
        Self { address: *stream.remote_addr(), certificate }
    }
}

/// Connections with TLS.
struct Secure {
    accepted: mpsc::Receiver<Secured>,
    address: Option<SocketAddr>,
}

impl Listener for Secure {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(secured) => secured,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.address.ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
    }
}
