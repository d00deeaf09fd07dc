//! Certificates of the tests' own, and agents that show right and wrong ones.

use crate::world::{self, Counting, Folder, World, eventually};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use scalefabric_control::agent::{self, Agent};
use scalefabric_control::service::Settings;
use scalefabric_control::service::access::ServerTls;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Signs.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key for a name.
    pub fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    pub fn server(&self, name: &str) -> ServerTls {
        let (certificate, key) = self.issue(name);
        ServerTls { certificate, key, client_ca: self.pem() }
    }

    /// A connection, showing a certificate for a name, or none.
    pub async fn connect(&self, address: SocketAddr, client: Option<&str>) -> TlsStream<TcpStream> {
        self.try_connect(address, client, self).await.expect("a handshake")
    }

    /// The same, trusting another authority; `None` if the handshake fails, or the server hangs up after it.
    pub async fn try_connect(
        &self,
        address: SocketAddr,
        client: Option<&str>,
        trusted: &Self,
    ) -> Option<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).ok()?).ok()?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .ok()?
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some(name) => {
                let (certificate, key) = self.issue(name);
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
                config.with_client_auth_cert(vec![certificate], key).ok()?
            }
        };
        let stream = TcpStream::connect(address).await.ok()?;
        let name = "localhost".try_into().ok()?;
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()?;
        if std::ptr::eq(self, trusted) {
            return Some(stream);
        }
        // In TLS 1.3 the client learns with its first reading that its certificate was refused.
        use tokio::io::AsyncReadExt;
        stream.read_u8().await.ok()?;
        Some(stream)
    }
}

fn agent(authority: &Authority, node: &str, certificate_for: &str, control: String, folder: &Folder) -> Agent {
    let (certificate, key) = authority.issue(certificate_for);
    let settings = agent::Settings {
        node: node.into(),
        control: vec![control],
        tls: Some(agent::Tls { ca: authority.pem(), certificate, key }),
        socket: folder.file(&format!("{node}-{certificate_for}.sock")),
        any_user: false,
        memory: None,
        neighbours: Vec::new(),
        lldpctl: None,
    };
    Agent::start(settings, Box::<Counting>::default(), world::clock()).expect("an agent")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_speaks_only_for_the_node_that_its_certificate_names() {
    let mut world = World::new().await;
    world.stop().await;
    let authority = Authority::new();
    let mut settings = Settings::local("control1");
    settings.access.tls = Some(authority.server("localhost"));
    world.start(settings).await;
    let address = format!("https://localhost:{}", world.replica().grpc.port());
    let folder = Folder::new();
    let right = agent(&authority, "node1", "node1", address.clone(), &folder);
    eventually("the right one has joined", || right.state().replica.is_some()).await;
    let wrong = agent(&authority, "node2", "node3", address.clone(), &folder);
    let trouble = |agent: &Agent, part: &str| agent.state().trouble.is_some_and(|trouble| trouble.contains(part));
    eventually("the wrong one is refused", || trouble(&wrong, "not for `node2`")).await;
    let stranger = Authority::new();
    let (certificate, key) = stranger.issue("node4");
    let settings = agent::Settings {
        node: "node4".into(),
        control: vec![address],
        tls: Some(agent::Tls { ca: authority.pem(), certificate, key }),
        socket: folder.file("node4.sock"),
        any_user: false,
        memory: None,
        neighbours: Vec::new(),
        lldpctl: None,
    };
    let strange = Agent::start(settings, Box::<Counting>::default(), world::clock()).expect("an agent");
    eventually("the stranger gets nowhere", || strange.state().trouble.is_some()).await;
    assert_eq!(world.replica().shared.joined(), ["node1"]);
}
