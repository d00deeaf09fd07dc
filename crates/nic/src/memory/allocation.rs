//! Memory that the NIC itself allocates for `alloc_mr`: zeroed pages of a memfd, so that a neighbour process can map them.

use std::sync::Arc;

use scalefabric_verbs::VerbsError;

/// Gives out page-aligned zeroed memory. Small pieces share a memfd.
#[derive(Debug, Default)]
pub struct Allocator {}

impl Allocator {
    /// An empty one.
    pub fn new() -> Arc<Self> {
        todo!()
    }

    /// `length` bytes, zeroed. `ENOMEM` with the reason.
    pub fn allocate(self: &Arc<Self>, _length: usize) -> Result<Allocation, VerbsError> {
        todo!()
    }
}

/// A piece of zeroed memory; freed when dropped.
#[derive(Debug)]
pub struct Allocation {}
