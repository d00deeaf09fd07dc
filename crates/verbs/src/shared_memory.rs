//! Memory that a backend shares with other processes of this host, for regions to come ([`crate::ProtectionDomain::alloc_shared`]). What it buys: a
//! neighbour reaches a region over it by plain loads and stores, without the kernel and without this process.

use core::fmt::Debug;

/// A piece of shared memory. Dropping it takes it out of the address space and frees it, so the regions over it have to be gone by then. In a forked child dropping does
/// nothing.
pub trait SharedMemory: Send + Sync + Debug {
    /// Address of its first byte in this process, a multiple of 2 MiB; its provenance is exposed.
    fn addr(&self) -> usize;

    /// Bytes, a multiple of 4096.
    fn length(&self) -> usize;
}
