//! Work requests: what an application asks a queue to do. Borrowed, so that posting allocates nothing.

use alloc::format;

use bitflags::bitflags;
use scalefabric_wire::{QKey, Qpn, RKey, Srqn};

use crate::access::AccessFlags;
use crate::error::VerbsError;
use crate::provider::{AddressHandle, MemoryRegion, MemoryWindow};

/// Local key of a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct LKey(pub u32);

/// Never the number: with most devices a region's lkey is its rkey as well.
impl core::fmt::Debug for LKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("LKey(..)")
    }
}

/// One piece of a scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Address (an offset if the region is zero-based).
    pub addr: u64,
    /// Bytes; 0 means 2^31 in the IBTA's verbs but 0 in libibverbs: here it is 0.
    pub length: u32,
    /// Key of the region that holds the bytes.
    pub lkey: LKey,
}

bitflags! {
    /// Flags of a send WR, bit for bit `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Wait until all READs and atomics before it are complete (clause 10.8.3.3).
        const FENCE = 1;
        /// Make a completion even when the QP does not signal all.
        const SIGNALED = 1 << 1;
        /// Raise the receiver's solicited event.
        const SOLICITED = 1 << 2;
        /// Copy the bytes now: the buffers may be reused when the call returns and lkeys are not looked at.
        const INLINE = 1 << 3;
    }
}

impl SendFlags {
    /// Flags from C. `IBV_SEND_IP_CSUM` (16) is for raw packets and UD offloads that do not exist here: it is refused with
    /// every other unknown bit, since ignoring it would send unchecked data.
    pub fn from_raw(raw: u32) -> Result<Self, VerbsError> {
        Self::from_bits(raw).ok_or_else(|| {
            VerbsError::invalid(format!(
                "send flags {raw:#x} have unknown bits {:#x}: only FENCE 1, SIGNALED 2, SOLICITED 4 and INLINE 8 exist",
                raw & !Self::all().bits()
            ))
        })
    }
}

/// What FLUSH must reach (IBTA 1.5, clause 9.4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushPlacement {
    /// Visible to every reader of the memory.
    Global,
    /// Persistent.
    Persistent,
    /// Both.
    GlobalAndPersistent,
}

/// How much FLUSH covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushLevel {
    /// The given range.
    Range,
    /// The whole region.
    MemoryRegion,
}

/// A memory-window binding, as a WR or (type 1) as a verb.
#[derive(Clone, Copy)]
pub struct BindMw<'a> {
    /// The window.
    pub mw: &'a dyn MemoryWindow,
    /// Type 2: the new rkey, whose low 8 bits the consumer chooses. Type 1: not looked at.
    pub rkey: RKey,
    /// The region to bind to; `None` with `length` 0 unbinds.
    pub mr: Option<&'a dyn MemoryRegion>,
    /// First byte.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Remote rights, and ZERO_BASED.
    pub access: AccessFlags,
}

/// The operation of a send WR.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub enum SendOp<'a> {
    /// SEND.
    Send,
    /// SEND with 4 bytes of immediate data (host order here; big-endian on the wire).
    SendWithImm { imm: u32 },
    /// SEND that invalidates an rkey of the receiver.
    SendWithInv { invalidate_rkey: RKey },
    /// RDMA WRITE.
    Write { remote_addr: u64, rkey: RKey },
    /// RDMA WRITE with immediate: consumes a receive WQE.
    WriteWithImm { remote_addr: u64, rkey: RKey, imm: u32 },
    /// RDMA READ into the SGL.
    Read { remote_addr: u64, rkey: RKey },
    /// 8-byte compare and swap; the old value lands in the SGL.
    CompareSwap { remote_addr: u64, rkey: RKey, compare: u64, swap: u64 },
    /// 8-byte fetch and add; the old value lands in the SGL.
    FetchAdd { remote_addr: u64, rkey: RKey, add: u64 },
    /// Invalidate a local rkey (type 2 window).
    LocalInv { rkey: RKey },
    /// Bind a type 2 window.
    BindMw(BindMw<'a>),
    /// FLUSH.
    Flush { remote_addr: u64, rkey: RKey, length: u32, placement: FlushPlacement, level: FlushLevel },
    /// ATOMIC WRITE: 8 aligned bytes, taken from the WR's SGL or inline data.
    AtomicWrite { remote_addr: u64, rkey: RKey },
}

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub struct UdAddress<'a> {
    /// Address handle of the QP's PD.
    pub ah: &'a dyn AddressHandle,
    /// Destination QP.
    pub remote_qpn: Qpn,
    /// Q_Key to send; a set top bit means the QP's own.
    pub remote_qkey: QKey,
}

/// A send WR. A chain is a slice of them, posted with one call and one doorbell.
#[derive(Clone, Copy)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp<'a>,
    /// Flags.
    pub flags: SendFlags,
    /// Local buffers (source; destination for READ and atomics).
    pub sg_list: &'a [Sge],
    /// Inline bytes as an alternative to SGEs with [`SendFlags::INLINE`]: safe Rust has bytes, not addresses.
    /// With INLINE and a non-empty `sg_list` the backend copies from the SGEs' addresses instead (that is unsafe to
    /// offer, so `post_send` refuses it; `post_send_raw` allows it).
    pub inline_data: &'a [u8],
    /// UD only.
    pub ud: Option<UdAddress<'a>>,
    /// XRC only: the peer's SRQ.
    pub xrc_srqn: Option<Srqn>,
}

impl<'a> SendWr<'a> {
    /// A WR with no flags, no buffers and no addressing.
    pub const fn new(wr_id: u64, op: SendOp<'a>) -> Self {
        Self { wr_id, op, flags: SendFlags::empty(), sg_list: &[], inline_data: &[], ud: None, xrc_srqn: None }
    }
}

/// A receive WR.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sg_list: &'a [Sge],
}
