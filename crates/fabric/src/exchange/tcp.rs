//! The exchange over plain TCP, for peers on the same host: messages carry keys, and nothing hides them here. Addresses that leave the host are refused
//! unless the caller says that the network is to be trusted; [`super::Tls`] is for those. It may not weaken that by itself.

use super::frame::Frames;
use super::handshake::explain;
use super::{Channel, Exchange, Identity, Listener, Patience, Pending, place};
use crate::error::FabricError;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Peers that came and have not yet greeted; more wait in the socket's backlog.
const MAX_GREETING: usize = 256;

/// Plain TCP. Addresses are `host:port`; port 0 takes a free one when listening.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    patience: Patience,
    insecure: bool,
}

impl Tcp {
    /// Within this host only, with the default patience.
    pub fn new() -> Self {
        Self::default()
    }

    /// With another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Allows addresses that leave this host. Whoever can read or write packets on the way can then read keys and take the part of a peer; for
    /// laboratories and networks that nobody else reaches.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Listening: any address that others can reach is beyond the host. Dialling: any address that is not the host's own.
    fn check(&self, address: SocketAddr, stays: bool) -> Result<(), FabricError> {
        if stays || self.insecure {
            return Ok(());
        }
        Err(FabricError::misuse(format!(
            "tcp://{address} leaves this host without encryption, and messages carry keys: use tls://, a loopback address, \
             or Tcp::insecure() where nobody else can reach the network"
        )))
    }
}

impl Exchange for Tcp {
    fn scheme(&self) -> &'static str {
        "tcp"
    }

    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let addresses = place::resolve(address).await?;
            for address in &addresses {
                self.check(*address, place::is_loopback(address.ip()))?;
            }
            let (listener, address) = bind(&addresses).await?;
            Ok(Box::new(TcpPeers { listener, address, patience: self.patience, greeting: JoinSet::new() })
                as Box<dyn Listener>)
        })
    }

    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        Box::pin(async move {
            within(self.patience.dial, address, async {
                let addresses = place::resolve(address).await?;
                for address in &addresses {
                    self.check(*address, place::is_own(address.ip()))?;
                }
                let stream = connect(&addresses, self.patience).await?;
                let channel = TcpChannel::greet(stream, self.patience).await?;
                Ok(Box::new(channel) as Box<dyn Channel>)
            })
            .await
        })
    }
}

/// Takes the first of the addresses that can be had.
pub(super) async fn bind(addresses: &[SocketAddr]) -> Result<(TcpListener, SocketAddr), FabricError> {
    let listener = TcpListener::bind(addresses).await.map_err(|error| {
        FabricError::environment(format!(
            "cannot listen on {}: {error}; choose another port, or 0 for a free one",
            list(addresses)
        ))
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| FabricError::environment(format!("cannot ask a socket's address: {error}")))?;
    Ok((listener, address))
}

/// Connects to the first of the addresses that answers.
pub(super) async fn connect(addresses: &[SocketAddr], patience: Patience) -> Result<TcpStream, FabricError> {
    let stream = TcpStream::connect(addresses).await.map_err(|error| {
        FabricError::unreachable(format!(
            "nobody answers at {}: {error}; is the peer started, and is this its address?",
            list(addresses)
        ))
    })?;
    prepare(&stream, patience)?;
    Ok(stream)
}

/// Small messages leave at once, and a peer whose host is gone is noticed.
pub(super) fn prepare(stream: &TcpStream, patience: Patience) -> Result<(), FabricError> {
    let quarter = (patience.silence / 4).max(Duration::from_secs(1));
    let probes = socket2::TcpKeepalive::new().with_time(quarter).with_interval(quarter).with_retries(3);
    let socket = socket2::SockRef::from(stream);
    stream
        .set_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&probes))
        .and_then(|()| socket.set_tcp_user_timeout(Some(patience.silence.max(Duration::from_secs(3)))))
        .map_err(|error| {
            FabricError::unreachable(format!("the connection broke before it was used ({error}): dial again"))
        })
}

/// Limits a dial.
pub(super) async fn within<T>(
    time: Duration,
    address: &str,
    dial: impl Future<Output = Result<T, FabricError>>,
) -> Result<T, FabricError> {
    timeout(time, dial).await.unwrap_or_else(|_| {
        Err(FabricError::unreachable(format!(
            "`{address}` did not answer within {time:?}: is the peer running and accepting, and is nothing on the way dropping packets?"
        )))
    })
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Two addresses of a connection: ours, the peer's.
pub(super) fn ends(stream: &TcpStream) -> Result<(SocketAddr, SocketAddr), FabricError> {
    let ends = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
    ends.map_err(|error| explain("a peer", "connecting", &error))
}

struct TcpPeers {
    listener: TcpListener,
    address: SocketAddr,
    patience: Patience,
    greeting: JoinSet<Result<TcpChannel, FabricError>>,
}

impl fmt::Debug for TcpPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpPeers").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener for TcpPeers {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>> {
        Box::pin(async move {
            let patience = self.patience;
            let channel = accept_with(&self.listener, &mut self.greeting, move |stream| async move {
                prepare(&stream, patience)?;
                let peer = ends(&stream)?.1.to_string();
                within(patience.dial, &peer, TcpChannel::greet(stream, patience)).await
            })
            .await?;
            Ok(Box::new(channel) as Box<dyn Channel>)
        })
    }
}

/// The next peer that has come and proved what it must. Those that are slow hold up nobody.
pub(super) async fn accept_with<C, F>(
    listener: &TcpListener,
    proving: &mut JoinSet<Result<C, FabricError>>,
    prove: impl Fn(TcpStream) -> F,
) -> Result<C, FabricError>
where
    C: Send + 'static,
    F: Future<Output = Result<C, FabricError>> + Send + 'static,
{
    loop {
        tokio::select! {
            Some(done) = proving.join_next() => {
                return done.unwrap_or_else(|error| Err(FabricError::peer(format!("a peer's greeting ended early: {error}"))));
            }
            came = listener.accept(), if proving.len() < MAX_GREETING => match came {
                Ok((stream, _)) => {
                    proving.spawn(prove(stream));
                }
                // It hung up while it waited in the backlog.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(FabricError::environment(format!(
                    "cannot take connections: {error}; if descriptors are short, raise the limit (ulimit -n)"
                ))),
            }
        }
    }
}

struct TcpChannel {
    frames: Frames<TcpStream>,
    peer: Identity,
}

impl TcpChannel {
    async fn greet(stream: TcpStream, patience: Patience) -> Result<Self, FabricError> {
        let (local, peer) = ends(&stream)?;
        let frames = Frames::greet(stream, peer.to_string(), patience).await?;
        let peer = Identity {
            name: peer.ip().to_canonical().to_string(),
            proven: false,
            local: place::is_within_host(local, peer),
        };
        Ok(Self { frames, peer })
    }
}

impl fmt::Debug for TcpChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpChannel").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Channel for TcpChannel {
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
    use crate::error::Fault;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn messages_go_both_ways_and_the_end_is_told_from_a_break() {
        run(async {
            let tcp = Tcp::new();
            let mut listener = tcp.listen("127.0.0.1:0").await.unwrap();
            let address = listener.address();
            let (dialled, accepted) = tokio::join!(tcp.dial(&address), listener.accept());
            let (mut here, mut there) = (dialled.unwrap(), accepted.unwrap());
            assert_eq!(there.peer(), Identity { name: "127.0.0.1".into(), proven: false, local: true });
            here.send(b"one").await.unwrap();
            here.send(&[7; super::super::MAX_MESSAGE]).await.unwrap();
            there.send(b"unread").await.unwrap();
            drop(here);
            assert_eq!(there.receive().await.unwrap(), b"one");
            assert_eq!(there.receive().await.unwrap(), vec![7; super::super::MAX_MESSAGE]);
            assert_eq!(there.receive().await.unwrap_err().fault, Fault::Closed);

            // A process that dies says no goodbye.
            let (raw, accepted) = tokio::join!(
                async {
                    let mut raw = TcpStream::connect(&address).await.unwrap();
                    raw.write_all(b"SFABXCH\x01\0\0\0\x05half").await.unwrap();
                    raw
                },
                listener.accept()
            );
            drop(raw);
            assert_eq!(accepted.unwrap().receive().await.unwrap_err().fault, Fault::Unreachable);
        });
    }

    #[test]
    fn an_address_beyond_the_host_is_refused_unless_it_is_said_to_be_insecure() {
        run(async {
            for error in [
                Tcp::new().listen("0.0.0.0:0").await.err().unwrap(),
                Tcp::new().dial("192.0.2.7:1").await.err().unwrap(),
            ] {
                assert_eq!(error.fault, Fault::Misuse);
                assert!(error.message.contains("tls://"), "{error}");
            }
            assert!(Tcp::new().insecure().listen("0.0.0.0:0").await.is_ok());
        });
    }

    #[test]
    fn a_stranger_is_told_by_its_first_bytes_and_holds_up_nobody() {
        run(async {
            let tcp = Tcp::new();
            let mut listener = tcp.listen("127.0.0.1:0").await.unwrap();
            let address = listener.address();
            let _silent = TcpStream::connect(&address).await.unwrap();
            for (first, what) in [
                (&b"GET / HTTP/1.1\r\n\r\n"[..], "no scaleFabric"),
                (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "tls://"),
                (b"SFABXCH\x09", "version 9"),
            ] {
                let mut stranger = TcpStream::connect(&address).await.unwrap();
                stranger.write_all(first).await.unwrap();
                let error = listener.accept().await.err().unwrap();
                assert_eq!(error.fault, Fault::Peer);
                assert!(error.message.contains(what), "{error}");
                let _ = stranger.read(&mut [0; 64]).await;
            }
            let (dialled, accepted) = tokio::join!(tcp.dial(&address), listener.accept());
            assert!(dialled.is_ok() && accepted.is_ok());
        });
    }

    #[test]
    fn a_receive_that_was_given_up_loses_nothing_and_a_length_that_cannot_be_is_refused() {
        run(async {
            let tcp = Tcp::new();
            let mut listener = tcp.listen("127.0.0.1:0").await.unwrap();
            let address = listener.address();
            let (mut raw, accepted) = tokio::join!(
                async {
                    let mut raw = TcpStream::connect(&address).await.unwrap();
                    raw.write_all(b"SFABXCH\x01").await.unwrap();
                    raw
                },
                listener.accept()
            );
            let mut channel = accepted.unwrap();
            assert_eq!(channel.send(&[]).await.unwrap_err().fault, Fault::Misuse);
            assert_eq!(channel.send(&[0; super::super::MAX_MESSAGE + 1]).await.unwrap_err().fault, Fault::Misuse);
            for piece in [&b"\0\0"[..], b"\0\x04ab"] {
                raw.write_all(piece).await.unwrap();
                // The piece is taken in, and the future dropped.
                assert!(timeout(Duration::from_millis(20), channel.receive()).await.is_err());
            }
            raw.write_all(b"cd").await.unwrap();
            assert_eq!(channel.receive().await.unwrap(), b"abcd");
            raw.write_all(&[0, 1, 0, 1]).await.unwrap();
            assert_eq!(channel.receive().await.unwrap_err().fault, Fault::Peer);
        });
    }
}
