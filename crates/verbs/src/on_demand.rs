//! On-demand paging: regions whose pages are not pinned. They may be unmapped when registered, come later and go again; an
//! access to a page that is not there fails as one to a wrong address does, and works once it is.

use bitflags::bitflags;

use crate::error::VerbsError;

bitflags! {
    /// What is there at all, bit for bit `enum ibv_odp_general_caps`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct OdpFlags: u64 {
        /// On-demand regions.
        const SUPPORT = 1;
        /// A region over the whole address space (address 0, length `usize::MAX`).
        const SUPPORT_IMPLICIT = 1 << 1;
    }
}

bitflags! {
    /// What a transport can do with on-demand regions, bit for bit `enum ibv_odp_transport_cap_bits`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct OdpTransport: u32 {
        /// Send from them.
        const SEND = 1;
        /// Receive into them.
        const RECV = 1 << 1;
        /// WRITE.
        const WRITE = 1 << 2;
        /// READ.
        const READ = 1 << 3;
        /// Atomics.
        const ATOMIC = 1 << 4;
        /// Receive into them from an SRQ.
        const SRQ_RECV = 1 << 5;
        /// FLUSH.
        const FLUSH = 1 << 6;
        /// ATOMIC WRITE.
        const ATOMIC_WRITE = 1 << 7;
    }
}

/// `ibv_odp_caps`, with the XRC capabilities of `ibv_device_attr_ex`. The default has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub struct OdpCaps {
    pub general: OdpFlags,
    pub rc: OdpTransport,
    pub uc: OdpTransport,
    pub ud: OdpTransport,
    pub xrc: OdpTransport,
}

/// What [`crate::ProtectionDomain::advise_mr`] is told. Values are those of `enum ib_uverbs_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MrAdvice {
    /// The range will be read: bring its pages in.
    Prefetch = 0,
    /// The range will be written: bring its pages in, writable.
    PrefetchWrite = 1,
    /// As `Prefetch`, but only if the pages are there; `EFAULT` if not.
    PrefetchNoFault = 2,
}

impl MrAdvice {
    /// The advice of a number; `EOPNOTSUPP` for those that nobody knows.
    pub fn from_raw(raw: u32) -> Result<Self, VerbsError> {
        match raw {
            0 => Ok(Self::Prefetch),
            1 => Ok(Self::PrefetchWrite),
            2 => Ok(Self::PrefetchNoFault),
            other => Err(VerbsError::misuse(
                crate::Errno::EOPNOTSUPP,
                alloc::format!(
                    "advice {other} is not known: 0 prefetch, 1 prefetch for writing, 2 prefetch without fault"
                ),
            )),
        }
    }
}
