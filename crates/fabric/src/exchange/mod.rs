//! How two sides that want to connect find each other and speak while they are connected: a reliable, ordered channel of small messages beside the
//! data path. TCP (with TLS), memcached, etcd and rdma_cm offer it. It knows nothing of what the messages mean; that is `session`'s.
//!
//! The channel is not the data path: when it breaks, data flows on, and it is dialled again in the background. Messages carry keys: nothing here
//! prints one, in no log and in no error.
//!
//! All futures want a tokio runtime with I/O and time.

mod cm_channel;
mod credential_files;
mod etcd;
pub mod etcd_api;
mod frame;
mod handshake;
mod mailbox;
mod memcached;
mod place;
mod rdma_cm;
mod sealed;
mod tcp;
mod tls;

pub use etcd::Etcd;
pub use handshake::explain_refusal;
pub use memcached::Memcached;
pub use rdma_cm::RdmaCm;
pub use sealed::Sealed;
pub use tcp::Tcp;
pub use tls::Tls;

use crate::error::FabricError;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Longest message, bytes: what the narrowest of the exchanges carries.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// A boxed future, so that the traits can be used as objects.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, FabricError>> + Send + 'a>>;

/// A way to reach peers.
pub trait Exchange: Send + Sync + Debug {
    /// Scheme of its addresses, such as `tcp`, `tls`, `memcached`, `etcd`, `rdma-cm`.
    fn scheme(&self) -> &'static str;

    /// Waits for peers at an address without its scheme. The listener is reachable when this returns.
    fn listen<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Listener>>;

    /// Reaches a peer. Gives up with [`crate::Fault::Unreachable`] at once when it is known that nobody listens, else when the exchange's own timeout
    /// has passed; who calls tries again. Cancelling the future leaves nothing behind.
    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>>;
}

/// Waits for peers.
pub trait Listener: Send + Debug {
    /// The address at which peers reach it, without the scheme: with the port that was really taken.
    fn address(&self) -> String;

    /// The next peer. Cancelling the future loses nobody. An error of [`crate::Fault::Peer`] or [`crate::Fault::Unreachable`] is about one peer
    /// that came and failed (wrong certificate, wrong protocol, too slow), and the next call waits for another; any other ends the listener.
    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>>;
}

/// A channel to one peer. Messages arrive whole, in order, once, or the channel is broken.
///
/// Dropping it closes it, in the background: what was sent before still arrives, then the peer reads [`crate::Fault::Closed`].
pub trait Channel: Send + Debug {
    /// Who is there, as far as the exchange has proved it: a certificate's name, an address.
    fn peer(&self) -> Identity;

    /// Sends a message of 1 to [`MAX_MESSAGE`] bytes; [`crate::Fault::Misuse`] for others, after which the channel is as before. When it returns, the
    /// message is on its way, not yet read. Cancelling the future may break the channel for sending.
    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()>;

    /// The next message. Cancelling the future loses nothing. [`crate::Fault::Closed`] when the peer has closed it,
    /// [`crate::Fault::Unreachable`] when it is gone without a goodbye (its process, its host, the way to it).
    fn receive(&mut self) -> Pending<'_, Vec<u8>>;
}

/// How long an exchange is patient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a dial as a whole, and for what a peer that came must prove before it is accepted. Default 5 s. Too short, and a busy peer is never
    /// reached; too long, and a wrong address is noticed late.
    pub dial: Duration,
    /// For one message to be taken by the network or the store. Default 10 s. Beyond it the channel is broken.
    pub send: Duration,
    /// For a peer that says nothing and does not answer probes: then it is gone. Default 20 s, at least 3 s.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { dial: Duration::from_secs(5), send: Duration::from_secs(10), silence: Duration::from_secs(20) }
    }
}

/// A message's length is what may be sent, or an error that says so.
fn check_length(message: &[u8]) -> Result<(), FabricError> {
    match message.len() {
        0 => Err(FabricError::misuse("a message of 0 bytes: the exchange carries 1 to 65536")),
        length if length > MAX_MESSAGE => Err(FabricError::misuse(format!(
            "a message of {length} bytes: the exchange carries at most {MAX_MESSAGE}, cut it or send it as data"
        ))),
        _ => Ok(()),
    }
}

/// Who a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name for people and policies.
    pub name: String,
    /// Whether cryptography stands behind the name. Keys are told only to those where it does, or on the same host.
    pub proven: bool,
    /// Whether the peer is on this host.
    pub local: bool,
}
