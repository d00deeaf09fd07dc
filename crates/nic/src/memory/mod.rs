//! The memory table: what the process has registered, who may touch it, and the only code that does touch it.
//!
//! Registered memory is shared with peers and with an application that may unmap it at any moment (D10). It is therefore
//! copied in and out by routines that survive faults ([`guard`]) and never becomes a Rust reference. Nothing outside this
//! folder holds a raw address of registered memory. Rules: clause 10.6 (memory management) and 11.2.8 (its verbs).
//!
//! Two sides: any thread registers and deregisters through [`MemoryTable`], [`Region`] and [`Window`]; the engine, one
//! turn at a time, looks up and copies through [`Access`], which it gets from the one [`Accessor`]. What a turn has
//! found in the table stays valid until the turn ends: revocation waits for that ([`MemoryTable`] says how).

mod access;
mod advise;
mod allocation;
mod copy;
mod file;
pub mod guard;
mod key;
#[cfg(all(test, loom))]
mod loom_tests;
mod neighbour;
mod other;
mod probe;
mod ranges;
mod region;
mod shared;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod window;

pub use access::{Access, Accessor, Peer};
pub use allocation::{Allocation, Allocator};
pub use copy::{Gone, gather_raw};
pub use file::OwnFile;
pub(crate) use guard::ensure_here;
pub use neighbour::{Grant, Neighbour, Piece, Source};
pub use other::Other;
pub use region::{Region, Registration};
pub use shared::SharedPages;
pub use table::{Accessors, MemoryTable, PdId, Seed};
pub use window::{Bind, Window};
