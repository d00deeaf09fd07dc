//! The exchange over TCP with TLS, what is used between hosts: both sides show certificates, and a peer's identity is its certificate's name. It may not
//! fall back to anything weaker.

use super::frame::Frames;
use super::handshake::Trust;
use super::tcp::{accept_with, bind, connect, ends, prepare, within};
use super::{Channel, Exchange, Identity, Listener, Patience, Pending, place};
use crate::certificate::Credentials;
use crate::error::FabricError;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// TCP with mutual TLS 1.3. Addresses are `name@host:port`, where `name` is what the peer's certificate must say; without it, the certificate must
/// be for the host itself. A listener's address is given without `name@`.
#[derive(Clone, Debug)]
pub struct Tls {
    patience: Patience,
    trust: Trust,
}

impl Tls {
    /// With these credentials. [`crate::Fault::Misuse`] for PEM texts that cannot be used together, or a certificate without a name.
    pub fn new(credentials: &Credentials) -> Result<Self, FabricError> {
        Ok(Self { patience: Patience::default(), trust: Trust::new(credentials)? })
    }

    /// With the credentials of a folder (`ca.pem`, `node.pem`, `node.key`), which are followed: when the files change, handshakes to come use them, at the
    /// latest after a second. Files that cannot be used, or whose certificate is for another name, leave everything as it was ([`Tls::trouble`]).
    /// Write the key first and rename files into their place, so that nobody reads a half.
    pub fn of_folder(folder: &Path) -> Result<Self, FabricError> {
        Ok(Self { patience: Patience::default(), trust: Trust::of_folder(folder)? })
    }

    /// Looks at the folder's files now. True: they have changed, and handshakes to come use them.
    pub fn reload(&self) -> Result<bool, FabricError> {
        self.trust.reload()
    }

    /// Why the files that are in the folder now are not used.
    pub fn trouble(&self) -> Option<FabricError> {
        self.trust.trouble()
    }

    /// With another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Takes new credentials for all channels to come, those of existing listeners and of clones included. Channels that are there live on.
    pub fn replace_credentials(&self, credentials: &Credentials) -> Result<(), FabricError> {
        self.trust.replace(credentials)
    }

    /// Our own name: what peers see.
    pub fn name(&self) -> String {
        self.trust.name()
    }
}

/// The name a certificate must have, and where to connect.
fn split(address: &str) -> Result<(&str, &str), FabricError> {
    if let Some((name, place)) = address.split_once('@') {
        return Ok((name, place));
    }
    let host = address.rsplit_once(':').map(|(host, _)| host.trim_start_matches('[').trim_end_matches(']'));
    let host = host.ok_or_else(|| FabricError::misuse(format!("`{address}` is no address: write name@host:port")))?;
    Ok((host, address))
}

impl Exchange for Tls {
    fn scheme(&self) -> &'static str {
        "tls"
    }

    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let place = address.split_once('@').map_or(address, |(_, place)| place);
            let (listener, address) = bind(&place::resolve(place).await?).await?;
            let peers = TlsPeers {
                listener,
                address,
                trust: self.trust.clone(),
                patience: self.patience,
                proving: JoinSet::new(),
            };
            Ok(Box::new(peers) as Box<dyn Listener>)
        })
    }

    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        Box::pin(async move {
            within(self.patience.dial, address, async {
                let (expected, place) = split(address)?;
                let stream = connect(&place::resolve(place).await?, self.patience).await?;
                let (local, peer) = ends(&stream)?;
                let (frames, name) = self.trust.connect(stream, expected, &peer.to_string(), self.patience).await?;
                Ok(Box::new(TlsChannel::new(frames, name, local, peer)) as Box<dyn Channel>)
            })
            .await
        })
    }
}

struct TlsPeers {
    listener: TcpListener,
    address: SocketAddr,
    trust: Trust,
    patience: Patience,
    proving: JoinSet<Result<TlsChannel, FabricError>>,
}

impl fmt::Debug for TlsPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPeers").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener for TlsPeers {
    fn address(&self) -> String {
        format!("{}@{}", self.trust.name(), self.address)
    }

    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>> {
        Box::pin(async move {
            let (trust, patience) = (&self.trust, self.patience);
            let channel = accept_with(&self.listener, &mut self.proving, |stream| {
                let trust = trust.clone();
                async move {
                    prepare(&stream, patience)?;
                    let (local, peer) = ends(&stream)?;
                    let called = peer.to_string();
                    let (frames, name) =
                        within(patience.dial, &called, trust.accept(stream, &called, patience)).await?;
                    Ok(TlsChannel::new(frames, name, local, peer))
                }
            })
            .await?;
            Ok(Box::new(channel) as Box<dyn Channel>)
        })
    }
}

struct TlsChannel {
    frames: Frames<TlsStream<TcpStream>>,
    peer: Identity,
}

impl TlsChannel {
    fn new(frames: Frames<TlsStream<TcpStream>>, name: String, local: SocketAddr, peer: SocketAddr) -> Self {
        Self { frames, peer: Identity { name, proven: true, local: place::is_within_host(local, peer) } }
    }
}

impl fmt::Debug for TlsChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsChannel").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Channel for TlsChannel {
    fn peer(&self) -> Identity {
        self.peer.clone()
    }

    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()> {
        Box::pin(self.frames.send(message))
    }

    fn receive(&mut self) -> Pending<'_, Vec<u8>> {
        Box::pin(self.frames.receive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Authority;
    use crate::error::Fault;
    use crate::exchange::Tcp;
    use std::time::{Duration, SystemTime};

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    /// A dial of `dialler`, to a listener of `listener`, by `name`: what each side got.
    async fn meet(
        listener: &Tls,
        dialler: &Tls,
        name: &str,
    ) -> (Result<Box<dyn Channel>, FabricError>, Result<Box<dyn Channel>, FabricError>) {
        let mut peers = listener.listen("127.0.0.1:0").await.unwrap();
        let address = peers.address();
        let place = address.split_once('@').unwrap().1;
        let address = if name.is_empty() { place.to_owned() } else { format!("{name}@{place}") };
        tokio::join!(dialler.dial(&address), peers.accept())
    }

    #[test]
    fn both_sides_know_each_other_by_the_names_of_their_certificates() {
        run(async {
            let authority = Authority::new("test").unwrap();
            let one = Tls::new(&authority.issue("node1", &["127.0.0.1".parse().unwrap()]).unwrap()).unwrap();
            let two = Tls::new(&authority.issue("node2.rack7", &[]).unwrap()).unwrap();
            for name in ["node1", ""] {
                let (here, there) = meet(&one, &two, name).await;
                let (mut here, mut there) = (here.unwrap(), there.unwrap());
                assert_eq!(here.peer(), Identity { name: "node1".into(), proven: true, local: true });
                assert_eq!(there.peer(), Identity { name: "node2.rack7".into(), proven: true, local: true });
                here.send(b"secret").await.unwrap();
                assert_eq!(there.receive().await.unwrap(), b"secret");
                drop(here);
                assert_eq!(there.receive().await.unwrap_err().fault, Fault::Closed);
            }
        });
    }

    #[test]
    fn each_wrong_certificate_is_refused_with_what_to_do_about_it() {
        run(async {
            let authority = Authority::new("test").unwrap();
            let other = Authority::new("other").unwrap();
            let good = Tls::new(&authority.issue("good", &[]).unwrap()).unwrap();
            let past = SystemTime::now() - Duration::from_secs(7200)..SystemTime::now() - Duration::from_secs(3600);
            let expired = Tls::new(&authority.issue_for("expired", &[], past).unwrap()).unwrap();
            let future = SystemTime::now() + Duration::from_secs(3600)..SystemTime::now() + Duration::from_secs(7200);
            let early = Tls::new(&authority.issue_for("early", &[], future).unwrap()).unwrap();
            let mut foreign = other.issue("foreign", &[]).unwrap();
            foreign.authorities_pem = authority.certificate_pem().to_owned();
            let foreign = Tls::new(&foreign).unwrap();

            // Who looks, whom it meets, by which name; what the dialling side says, what the listening side says.
            let cases = [
                (&expired, &good, "expired", "has expired", "our certificate has expired"),
                (&good, &expired, "good", "our certificate has expired", "has expired"),
                (&early, &good, "early", "not valid yet", "our certificate has expired or is not valid yet"),
                (&foreign, &good, "foreign", "one authority", "does not trust the authority"),
                (&good, &foreign, "good", "does not trust the authority", "one authority"),
                (&good, &good, "somebody", "another name", "refuses our certificate"),
            ];
            for (listener, dialler, name, at_dialler, at_listener) in cases {
                let (here, there) = meet(listener, dialler, name).await;
                let (here, there) = (here.err().unwrap(), there.err().unwrap());
                assert!(here.message.contains(at_dialler), "{name}: {here}");
                assert!(there.message.contains(at_listener), "{name}: {there}");
                assert_eq!((here.fault, there.fault), (Fault::Peer, Fault::Peer));
            }
        });
    }

    #[test]
    fn plain_and_tls_that_meet_say_so() {
        run(async {
            let authority = Authority::new("test").unwrap();
            let tls = Tls::new(&authority.issue("node1", &[]).unwrap()).unwrap();
            let mut peers = tls.listen("127.0.0.1:0").await.unwrap();
            let address = peers.address();
            let plain = Tcp::new();
            let (here, there) = tokio::join!(plain.dial(address.split_once('@').unwrap().1), peers.accept());
            assert!(here.err().unwrap().message.contains("tls://"));
            assert!(there.err().unwrap().message.contains("does not speak TLS"));

            let mut peers = plain.listen("127.0.0.1:0").await.unwrap();
            let address = format!("node1@{}", peers.address());
            let (here, there) = tokio::join!(tls.dial(&address), peers.accept());
            assert!(here.is_err());
            assert!(there.err().unwrap().message.contains("tls://"));
        });
    }

    #[test]
    fn credentials_follow_their_files_and_bad_files_change_nothing() {
        run(async {
            let folder = std::env::temp_dir().join(format!("sfab-tls-folder-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let (authority, next) = (Authority::new("test").unwrap(), Authority::new("next").unwrap());
            let write = |credentials: &Credentials| {
                let texts = [&credentials.authorities_pem, &credentials.certificate_pem, &credentials.key_pem];
                for (name, text) in crate::certificate::FILES.iter().zip(texts) {
                    std::fs::write(folder.join("new"), text).unwrap();
                    std::fs::rename(folder.join("new"), folder.join(name)).unwrap();
                }
            };
            write(&authority.issue("node1", &[]).unwrap());
            let tls = Tls::of_folder(&folder).unwrap();
            assert!(!tls.reload().unwrap());
            let mut peers = tls.listen("127.0.0.1:0").await.unwrap();
            let address = peers.address();
            let new = Tls::new(&next.issue("node2", &[]).unwrap()).unwrap();
            let (here, there) = tokio::join!(new.dial(&address), peers.accept());
            assert!(here.is_err() && there.is_err());

            // A key that is not the certificate's, and another name: as before, and told.
            std::fs::write(folder.join("node.key"), next.issue("node1", &[]).unwrap().key_pem).unwrap();
            assert!(tls.reload().unwrap_err().message.contains("those of before"));
            write(&next.issue("node3", &[]).unwrap());
            assert!(tls.reload().is_err());
            let trouble = tls.trouble().unwrap();
            assert!(trouble.message.contains("`node3`") && trouble.message.contains("`node1`"), "{trouble}");
            assert!(!trouble.message.contains("PRIVATE"));
            let old = Tls::new(&authority.issue("node2", &[]).unwrap()).unwrap();
            let (here, there) = tokio::join!(old.dial(&address), peers.accept());
            assert!(here.is_ok() && there.is_ok());

            // Nobody says that they have changed: a handshake finds out by itself.
            write(&next.issue("node1", &[]).unwrap());
            let mut dials = 0;
            loop {
                let (here, there) = tokio::join!(new.dial(&address), peers.accept());
                if here.is_ok() && there.is_ok() {
                    break;
                }
                dials += 1;
                assert!(dials < 600, "they were never read");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            assert_eq!(tls.trouble(), None);
            std::fs::remove_dir_all(&folder).unwrap();
        });
    }

    #[test]
    fn new_credentials_hold_for_a_listener_that_is_there() {
        run(async {
            let authority = Authority::new("test").unwrap();
            let next = Authority::new("next").unwrap();
            let old = Tls::new(&authority.issue("node1", &[]).unwrap()).unwrap();
            let new = Tls::new(&next.issue("node2", &[]).unwrap()).unwrap();
            let mut peers = old.listen("127.0.0.1:0").await.unwrap();
            let address = peers.address();
            let (here, there) = tokio::join!(new.dial(&address), peers.accept());
            assert!(here.is_err() && there.is_err());
            old.replace_credentials(&next.issue("node1", &[]).unwrap()).unwrap();
            let (here, there) = tokio::join!(new.dial(&address), peers.accept());
            assert!(here.is_ok() && there.is_ok());
        });
    }
}
