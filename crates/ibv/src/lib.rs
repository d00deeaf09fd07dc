//! Real hardware through libibverbs, loaded at run time (no link dependency), and the layouts of its public ABI.
//!
//! [`IbvProvider`] is the second backend of the contract of `scalefabric-verbs`: every call is libibverbs', and what its
//! header has inline goes through its tables of operations here as there. No policy and no protocol is here: what a device
//! does not have is `EOPNOTSUPP`, and an `errno` comes with the attribute that caused it, as far as that can be told.
//! [`vendor`] knows how the drivers differ. [`abi`] says how the structures of `infiniband/verbs.h` lie in memory; the C door
//! of `preload` uses it, too.

pub mod abi;
mod communication;
mod explain;
mod handle;
mod library;
mod objects;
mod provider;
pub mod translate;
pub mod vendor;

pub use objects::IbvContext;
pub use provider::IbvProvider;
