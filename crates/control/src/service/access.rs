//! Who may call: certificates and bearer tokens. Off loopback nobody without one of them is heard; on loopback, without TLS, everybody of this host
//! is. A token is compared in time that does not depend on it, and never printed.

use crate::store::StoreError;
use std::fmt;
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto::ring};

/// Certificates and tokens of a replica.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Certificates, PEM. Without them only loopback is listened on.
    pub tls: Option<ServerTls>,
    /// Token for HTTP: `Authorization: Bearer …`. With one, calls on loopback need it, too.
    pub token: Option<Token>,
}

/// Certificates of a replica, PEM.
#[derive(Clone)]
pub struct ServerTls {
    /// Own certificate and those up to, without, the root.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Who signs the certificates of agents and clients. The certificate of an agent is for the name of its node.
    pub client_ca: String,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// A bearer token.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// From a file's text: at least 16 characters, none of them white space.
    pub fn new(text: &str) -> Result<Self, StoreError> {
        let text = text.trim();
        if text.len() < 16 || text.chars().any(|character| !character.is_ascii_graphic()) {
            return Err(StoreError::Invalid(
                "a token has at least 16 characters of ASCII without white space; make one with `openssl rand -hex 32`"
                    .into(),
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether the header `Authorization` carries it.
    pub fn is_in(&self, header: Option<&str>) -> bool {
        let Some(given) = header.and_then(|header| header.strip_prefix("Bearer ")) else { return false };
        let (given, own) = (given.trim().as_bytes(), self.0.as_bytes());
        let mut difference = given.len() ^ own.len();
        for (index, byte) in own.iter().enumerate() {
            difference |= usize::from(byte ^ given.get(index).copied().unwrap_or(0));
        }
        difference == 0
    }
}

impl Access {
    /// Refuses certificates that cannot be used, before anything is served.
    pub fn check(&self) -> Result<(), StoreError> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.config(&[]).map(drop))
    }
}

impl ServerTls {
    /// For a listener. Who shows no certificate is let in here and must show a token; who shows a wrong one is not.
    pub fn config(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, StoreError> {
        let wrong = |what: &str, why: &dyn fmt::Display| StoreError::Invalid(format!("tls.{what}: {why}"));
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| wrong("certificate", &error))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| wrong("key", &error))?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(self.client_ca.as_bytes()) {
            let root = root.map_err(|error| wrong("client_ca", &error))?;
            roots.add(root).map_err(|error| wrong("client_ca", &error))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| wrong("client_ca", &error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("certificate", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| wrong("certificate", &error))?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// Whether a certificate, which has been verified, is good for a name.
pub fn is_for(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let Ok(name) = tokio_rustls::rustls::pki_types::ServerName::try_from(name) else { return false };
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(&name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_fits_whole_or_not_at_all() {
        let token = Token::new("0123456789abcdef\n").expect("a token");
        assert!(token.is_in(Some("Bearer 0123456789abcdef")));
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer ",
            "0123456789abcdef",
            "Bearer 0123456789abcdeg",
        ] {
            assert!(!token.is_in(Some(wrong)), "{wrong}");
        }
        assert!(!token.is_in(None));
        assert!(Token::new("short").is_err());
        assert!(!format!("{token:?}").contains("0123"));
    }
}
