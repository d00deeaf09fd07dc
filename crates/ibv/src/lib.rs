//! Real hardware through libibverbs, loaded at run time (no link dependency), and the layouts of its public ABI.
//!
//! [`abi`] says how the structures of `infiniband/verbs.h` lie in memory; the C door of `preload` uses it, too.

pub mod abi;
