//! The table itself: slots, keys, and how an entry comes and goes while the engine reads it without a lock.

use std::sync::Arc;

use scalefabric_verbs::VerbsError;

use super::access::Accessor;
use super::region::{Region, Registration};
use super::window::Window;
use scalefabric_verbs::{AccessFlags, MwType};

/// Names a protection domain inside this process. Unique while the PD lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Secret from which keys are made. From the OS in life, from the run's seed in a simulation.
#[derive(Clone, Copy)]
pub struct Seed(pub [u64; 4]);

impl Seed {
    /// 32 bytes from `getrandom`: the one place where the OS is asked.
    pub fn from_os() -> Result<Self, VerbsError> {
        todo!()
    }
}

/// All regions and windows of one device in this process.
#[derive(Debug)]
pub struct MemoryTable {}

impl MemoryTable {
    /// An empty table for at most `max_entries` regions and windows (1 to 2^20), and the engine's way in.
    pub fn new(_seed: Seed, _max_entries: u32) -> (Arc<Self>, Accessor) {
        todo!()
    }

    /// Registers memory of this process (clause 11.2.8.2).
    ///
    /// Errors: `EINVAL` for rights that do not go together or a range that wraps, `EFAULT` if the range is not mapped
    /// with the needed rights, `ENOMEM` if the table is full.
    ///
    /// # Safety
    /// Until the region is destroyed, peers read and write the range as `access` allows. No Rust reference may reach it.
    pub unsafe fn register(self: &Arc<Self>, _registration: Registration) -> Result<Region, VerbsError> {
        todo!()
    }

    /// Allocates zeroed memory and registers it; the memory lives until the region is dropped. Its iova is its address,
    /// or 0 with ZERO_BASED.
    pub fn allocate(self: &Arc<Self>, _pd: PdId, _length: usize, _access: AccessFlags) -> Result<Region, VerbsError> {
        todo!()
    }

    /// Makes a window, bound to nothing (clause 11.2.8.9).
    pub fn allocate_window(self: &Arc<Self>, _pd: PdId, _mw_type: MwType) -> Result<Window, VerbsError> {
        todo!()
    }

    /// Regions and windows that use a PD: `dealloc_pd` is `EBUSY` while there are any.
    pub fn entries_of_pd(&self, _pd: PdId) -> usize {
        todo!()
    }

    /// Regions and windows in the table.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
