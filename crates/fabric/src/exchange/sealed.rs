//! Mutual TLS over any other exchange: what memcached, etcd or rdma_cm carry is hidden from whoever stands between, and the peer's name is its certificate's.
//! The same handshake as over TCP, its bytes carried as messages. It may not let a message through before both sides are proved.

use super::frame::Frames;
use super::handshake::Trust;
use super::tcp::within;
use super::{Channel, Exchange, Identity, Listener, Patience, Pending};
use crate::certificate::Credentials;
use crate::error::FabricError;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsStream;

/// Bytes between TLS and the task that carries them.
const PIPE: usize = 64 * 1024;
/// Bytes in a message: a TLS record with room to spare.
const CHUNK: usize = 32 * 1024;

/// Another exchange, sealed. Addresses are `name@address`, where `name` is what the peer's certificate must say and `address` is the inner
/// exchange's; dialling without a name is misuse. The scheme is the inner one's with `+tls`, such as `etcd+tls`.
#[derive(Debug)]
pub struct Sealed<E> {
    inner: E,
    trust: Trust,
    patience: Patience,
    scheme: &'static str,
}

impl<E: Exchange> Sealed<E> {
    /// Seals an exchange. One that hides nothing itself and leaves the host must be `insecure()`: here that does no harm.
    pub fn over(inner: E, credentials: &Credentials) -> Result<Self, FabricError> {
        Self::with_trust(inner, Trust::new(credentials)?)
    }

    /// The same with the credentials of a folder, which are followed as [`super::Tls::of_folder`] does.
    pub fn over_with_folder(inner: E, folder: &Path) -> Result<Self, FabricError> {
        Self::with_trust(inner, Trust::of_folder(folder)?)
    }

    fn with_trust(inner: E, trust: Trust) -> Result<Self, FabricError> {
        let scheme = match inner.scheme() {
            "tcp" => "tcp+tls",
            "memcached" => "memcached+tls",
            "etcd" => "etcd+tls",
            "rdma-cm" => "rdma-cm+tls",
            other => {
                return Err(FabricError::misuse(format!(
                    "{other}:// cannot be sealed: tcp, memcached, etcd and rdma-cm can"
                )));
            }
        };
        Ok(Self { inner, trust, patience: Patience::default(), scheme })
    }

    /// With another patience, for the handshake; the inner exchange has its own.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Looks at the folder's files now. True: they have changed, and handshakes to come use them.
    pub fn reload(&self) -> Result<bool, FabricError> {
        self.trust.reload()
    }

    /// Why the files that are in the folder now are not used.
    pub fn trouble(&self) -> Option<FabricError> {
        self.trust.trouble()
    }

    /// Takes new credentials for all channels to come, those of existing listeners included.
    pub fn replace_credentials(&self, credentials: &Credentials) -> Result<(), FabricError> {
        self.trust.replace(credentials)
    }
}

impl<E: Exchange> Exchange for Sealed<E> {
    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>> {
        Box::pin(async move {
            let inner = self.inner.listen(address.split_once('@').map_or(address, |(_, place)| place)).await?;
            let peers =
                SealedPeers { inner, trust: self.trust.clone(), patience: self.patience, proving: JoinSet::new() };
            Ok(Box::new(peers) as Box<dyn Listener>)
        })
    }

    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>> {
        Box::pin(async move {
            let Some((expected, place)) = address.split_once('@') else {
                return Err(FabricError::misuse(format!(
                    "`{address}` does not say whose certificate to expect: write name@{address}"
                )));
            };
            let inner = self.inner.dial(place).await?;
            let local = inner.peer().local;
            let (stream, reason) = carry(inner);
            let proved =
                within(self.patience.dial, address, self.trust.connect(stream, expected, place, self.patience)).await;
            let (frames, name) = proved.map_err(|error| reason.or(error))?;
            Ok(Box::new(SealedChannel { frames, reason, peer: Identity { name, proven: true, local } })
                as Box<dyn Channel>)
        })
    }
}

/// Why the inner channel ended: a stream of bytes cannot say it.
#[derive(Clone, Debug, Default)]
struct Reason(Arc<Mutex<Option<FabricError>>>);

impl Reason {
    fn set(&self, error: FabricError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// The inner reason, if the stream only broke.
    fn or(&self, error: FabricError) -> FabricError {
        if error.fault != crate::Fault::Unreachable {
            return error;
        }
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .filter(|inner| inner.fault != crate::Fault::Closed)
            .unwrap_or(error)
    }
}

/// A stream of bytes whose other end is a channel. It is closed when the stream is. What came and TLS does not read yet must
/// not keep what TLS has to send: two sides that both send before they read would wait for each other for ever.
fn carry(mut channel: Box<dyn Channel>) -> (DuplexStream, Reason) {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    let reason = Reason::default();
    let told = reason.clone();
    tokio::spawn(async move {
        let (mut from_tls, mut to_tls) = tokio::io::split(theirs);
        let mut chunk = vec![0; CHUNK];
        // A message that came, and how much of it TLS has taken. The next one is received when this one is through.
        let (mut came, mut taken) = (Vec::new(), 0);
        let mut ended = false;
        loop {
            let waits = taken < came.len();
            // All may be given up: a read or write of a pipe loses nothing, nor does a channel's receive.
            tokio::select! {
                read = from_tls.read(&mut chunk) => match read {
                    Ok(length @ 1..) => if let Err(error) = channel.send(&chunk[..length]).await {
                        told.set(error);
                        return;
                    },
                    // Dropping the channel says goodbye, after what was sent.
                    _ => return,
                },
                written = to_tls.write(&came[taken..]), if waits => match written {
                    Ok(length @ 1..) => taken += length,
                    _ => return,
                },
                message = channel.receive(), if !waits && !ended => match message {
                    Ok(message) => (came, taken) = (message, 0),
                    Err(error) => {
                        told.set(error);
                        // What TLS has not read yet stays readable; then it sees the end.
                        let _ = to_tls.shutdown().await;
                        ended = true;
                    }
                },
            }
        }
    });
    (ours, reason)
}

struct SealedPeers {
    inner: Box<dyn Listener>,
    trust: Trust,
    patience: Patience,
    proving: JoinSet<Result<SealedChannel, FabricError>>,
}

impl fmt::Debug for SealedPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedPeers").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Listener for SealedPeers {
    fn address(&self) -> String {
        format!("{}@{}", self.trust.name(), self.inner.address())
    }

    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>> {
        Box::pin(async move {
            loop {
                tokio::select! {
                    Some(done) = self.proving.join_next() => {
                        let channel = done.unwrap_or_else(|error| Err(FabricError::peer(format!("a peer's handshake ended early: {error}"))))?;
                        return Ok(Box::new(channel) as Box<dyn Channel>);
                    }
                    came = self.inner.accept() => {
                        let (inner, trust, patience) = (came?, self.trust.clone(), self.patience);
                        self.proving.spawn(async move {
                            let peer = inner.peer();
                            let (stream, reason) = carry(inner);
                            let proved = within(patience.dial, &peer.name, trust.accept(stream, &peer.name, patience)).await;
                            let (frames, name) = proved.map_err(|error| reason.or(error))?;
                            Ok(SealedChannel { frames, reason, peer: Identity { name, proven: true, local: peer.local } })
                        });
                    }
                }
            }
        })
    }
}

struct SealedChannel {
    frames: Frames<TlsStream<DuplexStream>>,
    reason: Reason,
    peer: Identity,
}

impl fmt::Debug for SealedChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedChannel").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Channel for SealedChannel {
    fn peer(&self) -> Identity {
        self.peer.clone()
    }

    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()> {
        Box::pin(async move { self.frames.send(message).await.map_err(|error| self.reason.or(error)) })
    }

    fn receive(&mut self) -> Pending<'_, Vec<u8>> {
        Box::pin(async move { self.frames.receive().await.map_err(|error| self.reason.or(error)) })
    }
}
