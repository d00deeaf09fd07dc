//! The sans-IO protocol: requester, responder and completer for RC, UC, UD and XRC, as chapter 9 of the IBTA
//! specification gives them.
//!
//! There is no clock, no randomness, no socket, no thread and no pointer here. Time comes in as an argument; memory,
//! queues and the wire are reached through [`Host`], which the NIC implements for real and tests implement for themselves.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod admission;
pub mod cm;
mod completer;
pub mod congestion;
pub mod context;
pub mod counter;
pub mod host;
mod migration;
mod modify;
pub mod queue_pair;
mod requester;
pub mod responder;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod time;

pub use admission::{Admitted, Receiver};
pub use context::{Context, Fatal};
pub use counter::{Counter, DropReason};
pub use host::{
    AccessFault, AtomicOp, Direct, EmitError, Host, Incoming, LocalFault, Outgoing, Path, Payload, PlainWrite, RecvWqe,
    RemoteAccess, SendWqe, WqeOp,
};
pub use queue_pair::{Config, Next, QueuePair};
pub use requester::direct::Traffic;
pub use time::Time;
