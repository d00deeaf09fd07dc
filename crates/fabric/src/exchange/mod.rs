//! How two sides that want to connect find each other and speak while they are connected: a reliable, ordered channel of small messages beside the
//! data path. TCP (with TLS), memcached, etcd and rdma_cm offer it. It knows nothing of what the messages mean; that is `session`'s.
//!
//! The channel is not the data path: when it breaks, data flows on, and it is dialled again in the background.

use crate::error::FabricError;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

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

    /// Reaches a peer. Gives up with [`crate::Fault::Unreachable`] when the exchange's own timeout has passed; who calls tries again.
    fn dial<'a>(&'a self, address: &'a str) -> Pending<'a, Box<dyn Channel>>;
}

/// Waits for peers.
pub trait Listener: Send + Debug {
    /// The address at which peers reach it, without the scheme: with the port that was really taken.
    fn address(&self) -> String;

    /// The next peer.
    fn accept(&mut self) -> Pending<'_, Box<dyn Channel>>;
}

/// A channel to one peer. Messages arrive whole, in order, once, or the channel is broken.
pub trait Channel: Send + Debug {
    /// Who is there, as far as the exchange has proved it: a certificate's name, an address.
    fn peer(&self) -> Identity;

    /// Sends a message of 1 to [`MAX_MESSAGE`] bytes. Cancelling the future may break the channel.
    fn send<'a>(&'a mut self, message: &'a [u8]) -> Pending<'a, ()>;

    /// The next message. Cancelling the future loses nothing. [`crate::Fault::Closed`] when the peer has closed it.
    fn receive(&mut self) -> Pending<'_, Vec<u8>>;
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
