//! Step 1 of the walk: the application posts work to a queue pair.

use core::any::Any;
use core::fmt::Debug;

use bitflags::bitflags;

use scalefabric_wire::{Gid, Qpn};

use crate::attribute::{QpAttr, QpAttrMask, QpInitInfo};
use crate::error::{Errno, PostError, VerbsError};
use crate::operation::OpKind;
use crate::state::QpType;
use crate::work_request::{BindMw, RecvWr, SendFlags, SendWr};

bitflags! {
    /// How the bytes of a message become visible, bit for bit `enum ibv_query_qp_data_in_order_caps`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct DataInOrder: u32 {
        /// The whole message in the order of its addresses: its last byte tells that all are there.
        const WHOLE_MSG = 1;
        /// Each aligned block of 128 bytes in the order of its addresses.
        const ALIGNED_128_BYTES = 1 << 1;
    }
}

/// `ibv_qp_rate_limit_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RateLimit {
    /// kb/s; 0: no limit.
    pub rate_limit: u32,
    /// Bytes that may leave at once; 0: as the device likes.
    pub max_burst_sz: u32,
    /// Size of the packets that are to be expected, bytes; 0: unknown.
    pub typical_pkt_sz: u16,
}

/// What a QP's congestion controller allows at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CongestionState {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Bit/s.
    pub rate_bps: u64,
    /// Bytes that may be in flight; `u64::MAX`: it has no window.
    pub window_bytes: u64,
}

/// A queue pair.
pub trait QueuePair: Send + Sync + Debug {
    /// Its number, 24 bits.
    fn qp_num(&self) -> Qpn;

    /// Its type.
    fn qp_type(&self) -> QpType;

    /// Changes attributes and state, all or nothing. The error names the missing or forbidden attribute.
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError>;

    /// All attributes as they are now.
    fn query(&self) -> Result<(QpAttr, QpInitInfo), VerbsError>;

    /// How often its requester found that something was lost (sequence NAKs, implied ones, timeouts; not RNR NAKs), since it was last in RESET; `None`: the
    /// device does not count that for each QP.
    fn losses(&self) -> Option<u64> {
        None
    }

    /// Names the QP's congestion control instead of what the device is configured for: in RESET or INIT, not for UD. `"none"` for none. A device
    /// whose QPs all have what its firmware has refuses (EOPNOTSUPP).
    fn set_congestion(&self, name: &str) -> Result<(), VerbsError> {
        Err(VerbsError::misuse(
            Errno::EOPNOTSUPP,
            alloc::format!("congestion control {name:?}: this device does not choose it for each QP"),
        ))
    }

    /// Its congestion controller; `None`: it has none, or the device does not tell.
    fn congestion(&self) -> Option<CongestionState> {
        None
    }

    /// Posts a chain of send WRs with one doorbell. On error, those before `index` are posted.
    /// INLINE takes its bytes from `inline_data`; INLINE with a non-empty SGL is refused (see `post_send_raw`).
    fn post_send(&self, chain: &[SendWr<'_>]) -> Result<(), PostError>;

    /// As [`QueuePair::post_send`], and INLINE WRs may name their bytes by SGEs, as in C.
    ///
    /// # Safety
    /// SGEs of INLINE WRs must name readable memory of this process.
    #[allow(unsafe_code)]
    unsafe fn post_send_raw(&self, chain: &[SendWr<'_>]) -> Result<(), PostError>;

    /// As [`QueuePair::post_send`], but whole or not at all, as `ibv_wr_complete` posts: on error nothing is posted.
    fn post_send_whole(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        match chain {
            [] | [_] => self.post_send(chain),
            _ => Err(PostError {
                index: 0,
                errno: Errno::EOPNOTSUPP,
                reason: "this backend cannot take back what it has posted: post one work request at a time",
            }),
        }
    }

    /// Posts a chain of receive WRs. Refused on a QP with an SRQ.
    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Binds a type 1 window; completes on the send queue with `BindMw`.
    fn bind_mw(&self, wr_id: u64, flags: SendFlags, bind: &BindMw<'_>) -> Result<(), VerbsError>;

    /// How the bytes that an operation moves become visible where it puts them (`ibv_query_qp_data_in_order`). Empty:
    /// in any order.
    fn data_in_order(&self, _kind: OpKind) -> DataInOrder {
        DataInOrder::empty()
    }

    /// Changes the rate at which it sends (`ibv_modify_qp_rate_limit`); in RTS, at once.
    fn modify_rate_limit(&self, _limit: &RateLimit) -> Result<(), VerbsError> {
        Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device does not limit the rate of its QPs"))
    }

    /// Joins a multicast group (UD).
    fn attach_mcast(&self, gid: Gid) -> Result<(), VerbsError>;

    /// Leaves a multicast group.
    fn detach_mcast(&self, gid: Gid) -> Result<(), VerbsError>;

    /// Destroys the QP: `EBUSY` while attached to a multicast group. Dropping the last handle destroys it, too.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
