//! Helpers for memory on the other side: typed atomics, locks and leases, rings and mailboxes with credits, hash buckets read in one READ, and calls over SEND. They speak to a
//! peer through an endpoint only and never touch a QP.
//!
//! What they need of it is an [`Area`]: a piece of the peer's memory that is read, written and changed atomically. [`Far`] is one over a
//! connection. An operation that broke in the middle says whether it may have been done ([`Failure::in_doubt`]); helpers that can find out do, by
//! looking at what they would have left behind.

mod bucket;
mod cell;
mod far;
mod lease;
mod lock;
mod mailbox;
pub mod publish;
mod ring;
pub mod rpc;
mod slot;
mod ticket;

pub use bucket::{Table, TableOwner, TableShape};
pub use cell::{CELL_BYTES, Cell, Cells, Word};
pub use far::Far;
pub use lease::{Fence, Lease, LeaseTerm, Taken};
pub use lock::{Guard, StripedLocks};
pub use mailbox::{MailboxOwner, MailboxSender};
pub use ring::{RingReader, RingWriter};
pub use slot::{Received, SlotShape};

use crate::error::FabricError;
use crate::pool::Buffer;
use std::fmt;

/// Why an operation on far memory failed, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub error: FabricError,
    /// Whether it may have been done, once. If not, it surely was not.
    pub in_doubt: bool,
}

impl Failure {
    /// It surely was not done.
    pub fn not_done(error: FabricError) -> Self {
        Self { error, in_doubt: false }
    }

    /// It may have been done once.
    pub fn in_doubt(error: FabricError) -> Self {
        Self { error, in_doubt: true }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error.message)?;
        f.write_str(if self.in_doubt { " (it may have been done once)" } else { " (it was not done)" })
    }
}

impl std::error::Error for Failure {}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::not_done(error)
    }
}

impl From<Failure> for FabricError {
    fn from(failure: Failure) -> Self {
        Self { message: failure.to_string(), ..failure.error }
    }
}

/// A piece of memory that somebody else owns. Offsets count from its first byte; outside it, all calls are misuse. Calls block until they are done.
///
/// Atomics are atomic against one another and not against the owner's own stores (clause 9.4.5; `IBV_ATOMIC_HCA`), so words that atomics
/// change are changed by atomics only.
pub trait Area: Send + Sync {
    /// Bytes.
    fn length(&self) -> u64;
    /// Copies bytes out, in one READ.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure>;
    /// Copies bytes in, in one WRITE. Repeated by itself when nobody can say whether it was done: then it may be done late or twice, but not after
    /// this returned.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure>;
    /// Adds to the 8-byte word at a multiple of 8, wrapping; gives what was there before.
    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Failure>;
    /// Replaces the 8-byte word at a multiple of 8 if it is `compare`; gives what was there before.
    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Failure>;
}

impl<A: Area + ?Sized> Area for std::sync::Arc<A> {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        (**self).read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        (**self).write(offset, data)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Failure> {
        (**self).fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Failure> {
        (**self).compare_swap(offset, compare, swap)
    }
}

/// Memory of our own that peers read and write: what the owner's side of a ring, mailbox or table needs. Bytes are copied.
pub trait Home: Send + Sync {
    /// Bytes.
    fn length(&self) -> usize;
    /// Copies bytes out.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError>;
    /// Copies bytes in.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError>;
    /// Reads the 8-byte word at a multiple of 8 in one piece, before all that is read after it.
    fn load_u64(&self, offset: usize) -> Result<u64, FabricError>;
    /// Writes it in one piece, after all that was written before it.
    fn store_u64(&self, offset: usize, value: u64) -> Result<(), FabricError>;
}

impl Home for Buffer {
    fn length(&self) -> usize {
        crate::Local::len(self)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        self.read(offset, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        self.write(offset, data)
    }

    fn load_u64(&self, offset: usize) -> Result<u64, FabricError> {
        self.load_u64(offset)
    }

    fn store_u64(&self, offset: usize, value: u64) -> Result<(), FabricError> {
        self.store_u64(offset, value)
    }
}

impl<H: Home + ?Sized> Home for std::sync::Arc<H> {
    fn length(&self) -> usize {
        (**self).length()
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        (**self).read(offset, out)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        (**self).write(offset, data)
    }

    fn load_u64(&self, offset: usize) -> Result<u64, FabricError> {
        (**self).load_u64(offset)
    }

    fn store_u64(&self, offset: usize, value: u64) -> Result<(), FabricError> {
        (**self).store_u64(offset, value)
    }
}

#[cfg(test)]
mod stage;
