//! Calls over SEND: a request with a number, an answer with the same number. Callers may be many at once, waiting or asynchronous on any executor; each call has a deadline,
//! and as many calls may be under way as the peer has receives, so that nothing is dropped for want of one. A call that failed may have been
//! carried out: the error says so.

mod call;
mod frame;
mod line;
mod server;

pub use call::{CallError, Caller, Reply};
pub use line::{Line, Messages};
pub use server::{Request, Server, Tally};

/// Receives that are posted for calls, for all connections of a pool together (SRQ) or for one.
pub const RECEIVES: u32 = 1024;

/// What a connection should be like that carries calls: [`RECEIVES`] receives, and room for as many requests.
pub fn config(base: &crate::endpoint::Config) -> crate::endpoint::Config {
    crate::endpoint::Config { receives: RECEIVES, depth: base.depth.max(RECEIVES), ..base.clone() }
}

/// Calls that each of so many callers may have under way, if the peer gives its receives from one pool for all connections
/// ([`crate::endpoint::Config::share_receives`]): its share of [`RECEIVES`], at least 1. With more callers than that, they meet an empty queue at times, and
/// RNR NAKs hold them back.
pub fn window(callers: usize) -> usize {
    (RECEIVES as usize / callers.max(1)).max(1)
}
