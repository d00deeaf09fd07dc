//! What a memory region, a memory window or a QP allows.

use bitflags::bitflags;

bitflags! {
    /// Access rights, bit for bit `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AccessFlags: u32 {
        /// Local writes: needed for receive buffers, READ responses and atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses start at zero.
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned: they may be faulted in or go away (always true in software).
        const ON_DEMAND = 1 << 6;
        /// Huge pages are used throughout.
        const HUGETLB = 1 << 7;
        /// A peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may become visible out of order. Optional: accepted, allowed to have no effect.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl AccessFlags {
    /// The bits that a backend may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL_RANGE: u32 = 0x3ff0_0000;
    /// Every right a peer can have.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);
}
