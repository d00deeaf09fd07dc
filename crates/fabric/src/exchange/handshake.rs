//! Mutual TLS over any stream: credentials become configurations of rustls, a handshake proves a certificate's name on both sides, and what went wrong with a
//! certificate becomes a sentence that says what to do. TLS 1.3 only, with the `ring` provider. It may not accept a peer without a certificate.

use super::Patience;
use super::credential_files::CredentialFiles;
use super::frame::{Frames, Stream};
use crate::certificate::Credentials;
use crate::error::{FabricError, Fault};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, CommonState, Error as TlsError, RootCertStore, ServerConfig,
    version::TLS13,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// How long a refused peer has to read why.
const REFUSED: Duration = Duration::from_secs(2);

/// Who we are and whom we believe, in a form that can be exchanged while it is in use.
#[derive(Clone)]
pub(super) struct Trust(Arc<Held>);

struct Held {
    configs: RwLock<Configs>,
    /// Where they are taken from anew when they change there.
    files: Option<CredentialFiles>,
}

#[derive(Clone)]
struct Configs {
    name: String,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Trust {
    pub(super) fn new(credentials: &Credentials) -> Result<Self, FabricError> {
        Ok(Self(Arc::new(Held { configs: RwLock::new(Configs::new(credentials)?), files: None })))
    }

    /// From a folder's files, which are followed.
    pub(super) fn of_folder(folder: &Path) -> Result<Self, FabricError> {
        let (files, credentials) = CredentialFiles::open(folder)?;
        Ok(Self(Arc::new(Held { configs: RwLock::new(Configs::new(&credentials)?), files: Some(files) })))
    }

    /// Looks at the files now. True: they have changed and are in use; false: they are as before, or there are none.
    pub(super) fn reload(&self) -> Result<bool, FabricError> {
        self.follow(true)
    }

    /// Why files that have changed are not in use.
    pub(super) fn trouble(&self) -> Option<FabricError> {
        self.0.files.as_ref().and_then(CredentialFiles::trouble)
    }

    fn follow(&self, now: bool) -> Result<bool, FabricError> {
        let Some(files) = &self.0.files else { return Ok(false) };
        files.follow(now, |credentials| {
            let configs = Configs::new(credentials)?;
            let name = self.name();
            if configs.name != name {
                return Err(FabricError::misuse(format!(
                    "the new certificate is for `{}`, and this process is `{name}` to its peers: start it anew to change its name",
                    configs.name
                )));
            }
            self.put(configs);
            Ok(())
        })
    }

    fn put(&self, configs: Configs) {
        *self.0.configs.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = configs;
    }

    /// From now on; channels that are there stay as they are.
    pub(super) fn replace(&self, credentials: &Credentials) -> Result<(), FabricError> {
        self.put(Configs::new(credentials)?);
        Ok(())
    }

    /// Our own name.
    pub(super) fn name(&self) -> String {
        self.present().name
    }

    fn present(&self) -> Configs {
        self.0.configs.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// For a handshake.
    fn configs(&self) -> Configs {
        // What cannot be used is told when somebody asks, and does not keep a peer out.
        let _ = self.follow(false);
        self.present()
    }

    /// Proves ourselves to who answered, who must be `expected`. Gives the channel and the peer's name.
    pub(super) async fn connect<S: Stream>(
        &self,
        stream: S,
        expected: &str,
        peer: &str,
        patience: Patience,
    ) -> Result<(Frames<TlsStream<S>>, String), FabricError> {
        let name = ServerName::try_from(expected.to_owned()).map_err(|_| {
            FabricError::misuse(format!(
                "`{expected}` is no name that a certificate could have: write tls://node3@host:port"
            ))
        })?;
        let connect = TlsConnector::from(self.configs().client).connect(name, stream).into_fallible();
        match connect.await {
            Ok(stream) => self.greet(TlsStream::Client(stream), peer, patience).await,
            Err((error, stream)) => {
                let failed = explain(peer, "the TLS handshake", &error);
                refuse(stream);
                Err(failed)
            }
        }
    }

    /// Hears who came, and proves ourselves.
    pub(super) async fn accept<S: Stream>(
        &self,
        stream: S,
        peer: &str,
        patience: Patience,
    ) -> Result<(Frames<TlsStream<S>>, String), FabricError> {
        match TlsAcceptor::from(self.configs().server).accept(stream).into_fallible().await {
            Ok(stream) => self.greet(TlsStream::Server(stream), peer, patience).await,
            Err((error, stream)) => {
                let failed = explain(peer, "the TLS handshake", &error);
                refuse(stream);
                Err(failed)
            }
        }
    }

    async fn greet<S: Stream>(
        &self,
        stream: TlsStream<S>,
        peer: &str,
        patience: Patience,
    ) -> Result<(Frames<TlsStream<S>>, String), FabricError> {
        let name = name_of_peer(stream.get_ref().1, peer)?;
        let called = format!("{name} ({peer})");
        Ok((Frames::greet(stream, called, patience).await?, name))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Configs {
    fn new(credentials: &Credentials) -> Result<Self, FabricError> {
        let mut authorities = RootCertStore::empty();
        for certificate in certificates(&credentials.authorities_pem, "authorities")? {
            authorities.add(certificate).map_err(|error| {
                FabricError::misuse(format!("a certificate among the authorities cannot be used: {error}"))
            })?;
        }
        let authorities = Arc::new(authorities);
        let chain = certificates(&credentials.certificate_pem, "certificate")?;
        let name = name_in(&chain[0]).ok_or_else(|| {
            FabricError::misuse("our certificate has no DNS name, which is what peers know us by: make one with a name (sfab certificate)")
        })?;
        let key = PrivateKeyDer::from_pem_slice(credentials.key_pem.as_bytes())
            .map_err(|_| FabricError::misuse("the private key is not PEM (PKCS #8, SEC 1 or PKCS #1)"))?;
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let unusable = |error| FabricError::misuse(format!("certificate and key cannot be used together: {error}"));
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(authorities.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider.clone())
            .build()
            .map_err(|error| FabricError::misuse(format!("the authorities cannot be used: {error}")))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        Ok(Self { name, client: Arc::new(client), server: Arc::new(server) })
    }
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, FabricError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(FabricError::misuse(format!("{what}: no certificate in the PEM text"))),
        Err(error) => Err(FabricError::misuse(format!("{what}: the PEM text cannot be read ({error})"))),
    }
}

/// The first DNS name of a certificate: the identity.
fn name_in(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate.valid_dns_names().next().map(str::to_owned)
}

fn name_of_peer(state: &CommonState, peer: &str) -> Result<String, FabricError> {
    state.peer_certificates().and_then(|chain| name_in(chain.first()?)).ok_or_else(|| {
        FabricError::peer(format!(
            "{peer} has a certificate without a DNS name, so nobody is proved: give it one with a name"
        ))
    })
}

/// Lets the peer read the alert that rustls has just sent: closing with unread bytes would reset the connection first.
fn refuse<S: Stream>(mut stream: S) {
    tokio::spawn(timeout(REFUSED, async move {
        let _ = stream.shutdown().await;
        while matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {}
    }));
}

/// What an I/O error means: rustls puts its own inside.
pub(super) fn explain(peer: &str, doing: &str, error: &io::Error) -> FabricError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        Some(tls) => explain_tls(peer, tls),
        None => FabricError::unreachable(format!("the channel to {peer} broke during {doing} ({error}): dial again")),
    }
}

/// What an error of a client of gRPC or HTTP means, if TLS is behind it: whose certificate is wrong, and who must act.
pub fn explain_refusal(peer: &str, error: &(dyn std::error::Error + 'static)) -> Option<FabricError> {
    let mut next = Some(error);
    while let Some(error) = next {
        let wrapped = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        let tls = error.downcast_ref::<TlsError>().or_else(|| wrapped?.downcast_ref());
        if let Some(tls) = tls {
            return Some(explain_tls(peer, tls));
        }
        next = error.source();
    }
    None
}

fn explain_tls(peer: &str, error: &TlsError) -> FabricError {
    use CertificateError as Bad;
    let text = match error {
        TlsError::InvalidCertificate(bad) => match bad {
            Bad::Expired | Bad::ExpiredContext { .. } => {
                format!(
                    "the certificate of {peer} has expired ({bad}): renew it there, and check the clocks of both hosts"
                )
            }
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                format!("the certificate of {peer} is not valid yet ({bad}): check the clocks of both hosts")
            }
            Bad::UnknownIssuer | Bad::BadSignature => format!(
                "the certificate of {peer} is not signed by an authority that we trust: give both sides certificates of one authority, \
                 or add its certificate to ours (ca.pem)"
            ),
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => format!(
                "{peer} has a certificate for another name ({bad}): dial it by its own (tls://name@host:port), or give it a certificate for this one"
            ),
            Bad::Revoked => format!("the certificate of {peer} was revoked: it may not take part any more"),
            bad => format!("the certificate of {peer} is refused: {bad}"),
        },
        TlsError::NoCertificatesPresented => {
            format!("{peer} has shown no certificate: give it one, both sides must have theirs")
        }
        TlsError::AlertReceived(alert) => match alert {
            AlertDescription::CertificateExpired => {
                format!(
                    "{peer} says that our certificate has expired or is not valid yet: renew it, and check the clocks of both hosts"
                )
            }
            AlertDescription::UnknownCA => format!(
                "{peer} does not trust the authority of our certificate: give both sides certificates of one authority, or add ours to its ca.pem"
            ),
            AlertDescription::CertificateRequired => {
                format!("{peer} wants a certificate of us, and we have shown none")
            }
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
                format!(
                    "{peer} refuses our certificate ({alert:?}): its name, its times or its purpose are not what it expects; its log says which"
                )
            }
            alert => format!("{peer} ended the TLS session: {alert:?}"),
        },
        TlsError::InvalidMessage(_) => {
            format!("{peer} does not speak TLS: use tls:// on both sides, or check the port")
        }
        other => format!("TLS with {peer} failed: {other}"),
    };
    FabricError::new(Fault::Peer, text)
}
