//! What a memory region, a memory window or a QP allows.

use alloc::format;
use alloc::string::String;

use bitflags::bitflags;

use crate::error::VerbsError;

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

    /// Flags from C. Bits of [`AccessFlags::OPTIONAL_RANGE`] that this contract does not know are dropped, as a backend may
    /// ignore them; any other unknown bit asks for something that would not be done, and is refused with `EINVAL`.
    pub fn from_raw(raw: u32) -> Result<Self, VerbsError> {
        let unknown = raw & !Self::all().bits() & !Self::OPTIONAL_RANGE;
        if unknown != 0 {
            return Err(VerbsError::invalid(format!(
                "access flags {raw:#x} have unknown bits {unknown:#x} outside the optional range {:#x}: clear them",
                Self::OPTIONAL_RANGE
            )));
        }
        Ok(Self::from_bits_truncate(raw))
    }

    /// Checks flags for `reg_mr` and `rereg` (clause 10.6.3.1): a peer can only be allowed to change what the region
    /// itself may be written to, so REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE.
    ///
    /// ```
    /// use scalefabric_verbs::AccessFlags;
    ///
    /// assert!(AccessFlags::REMOTE_WRITE.check_mr().is_err());
    /// assert!((AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE).check_mr().is_ok());
    /// assert!(AccessFlags::REMOTE_READ.check_mr().is_ok());
    /// ```
    pub fn check_mr(self) -> Result<(), VerbsError> {
        Self::from_raw(self.bits())?;
        let writing = self & (Self::REMOTE_WRITE | Self::REMOTE_ATOMIC);
        if !writing.is_empty() && !self.contains(Self::LOCAL_WRITE) {
            return Err(VerbsError::invalid(format!(
                "access {} needs LOCAL_WRITE: add it, or drop the remote right",
                names(writing)
            )));
        }
        Ok(())
    }

    /// Checks flags of a memory window's bind: remote rights and ZERO_BASED only (clause 10.6.7). The region behind it
    /// must have MW_BIND, and LOCAL_WRITE if the window grants REMOTE_WRITE or REMOTE_ATOMIC; that is for the one who
    /// knows the region.
    pub fn check_mw(self) -> Result<(), VerbsError> {
        let wrong = self.difference(Self::REMOTE | Self::ZERO_BASED | Self::RELAXED_ORDERING);
        if !wrong.is_empty() {
            return Err(VerbsError::invalid(format!(
                "{} mean nothing to a memory window: only remote rights and ZERO_BASED do",
                names(wrong)
            )));
        }
        Ok(())
    }

    /// Checks `qp_access_flags`: what the peer may do. Only the remote rights count; rights of regions (LOCAL_WRITE,
    /// ON_DEMAND and so on) are accepted and mean nothing, as with every driver, for programs pass one set of flags to
    /// both. Unknown bits outside the optional range are refused.
    pub fn check_qp(self) -> Result<(), VerbsError> {
        Self::from_raw(self.bits()).map(|_| ())
    }
}

/// Names of the flags, joined.
fn names(flags: AccessFlags) -> String {
    let mut text = String::new();
    for (name, _) in flags.iter_names() {
        if !text.is_empty() {
            text += " | ";
        }
        text += name;
    }
    let unknown = flags.difference(AccessFlags::all());
    if !unknown.is_empty() {
        if !text.is_empty() {
            text += " | ";
        }
        text += &format!("{:#x}", unknown.bits());
    }
    text
}
