//! Rings of work queue entries: step 2 of the walk. A WQE is a few 64-byte units of atomic words (D3), so that a ring can be
//! shared by a posting thread and the engine, and later between processes, without a lock and without unsafe code.
//!
//! A ring has one producer at a time (posting threads take the ring's own lock) and one consumer (the engine, under its
//! lock). Indexes are counters that wrap at 2^32 and are reduced modulo the ring, whose size is a power of two, only
//! to find a slot. Publishing the producer's counter is the doorbell record; waking the engine is not done here.

pub(crate) mod atomic;
mod latch;
mod recv;
mod send;
mod shared_recv;
mod turnstile;
mod unit;

#[cfg(all(test, loom))]
mod loom_tests;

pub(crate) use latch::{Latch, pause};
pub use recv::{RecvPoster, RecvRing};
pub use send::{PlainEntry, PlainOp, SendData, SendEntry, SendPoster, SendRing, SendRingConfig};
pub use shared_recv::{SharedPoster, SharedRecvRing};
pub(crate) use turnstile::{Inside, Turnstile};
pub(crate) use unit::message_length;

use scalefabric_verbs::Errno;

/// Why a WR was not taken. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The ring is full: poll completions first.
    Full,
    /// More SGEs than the queue was made for.
    TooManySges,
    /// More inline bytes than the queue was made for.
    InlineTooLong,
    /// The message is longer than 2^31 bytes.
    MessageTooLong,
}

impl Refusal {
    /// What libibverbs returns: ENOMEM for a full queue, EINVAL otherwise.
    pub const fn errno(self) -> Errno {
        match self {
            Self::Full => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }

    /// A sentence for `PostError`.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Full => "the queue is full: poll completions, or make it with more WRs",
            Self::TooManySges => "more SGEs than the queue was made for",
            Self::InlineTooLong => "more inline bytes than max_inline_data",
            Self::MessageTooLong => "the message is longer than 2^31 bytes",
        }
    }
}
