//! Step 1 of the walk: the application posts work to a queue pair.

use core::any::Any;
use core::fmt::Debug;

use scalefabric_wire::{Gid, Qpn};

use crate::attribute::{QpAttr, QpAttrMask, QpInitInfo};
use crate::error::{PostError, VerbsError};
use crate::state::QpType;
use crate::work_request::{BindMw, RecvWr, SendFlags, SendWr};

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

    /// Posts a chain of send WRs with one doorbell. On error, those before `index` are posted.
    /// INLINE takes its bytes from `inline_data`; INLINE with a non-empty SGL is refused (see `post_send_raw`).
    fn post_send(&self, chain: &[SendWr<'_>]) -> Result<(), PostError>;

    /// As [`QueuePair::post_send`], and INLINE WRs may name their bytes by SGEs, as in C.
    ///
    /// # Safety
    /// SGEs of INLINE WRs must name readable memory of this process.
    #[allow(unsafe_code)]
    unsafe fn post_send_raw(&self, chain: &[SendWr<'_>]) -> Result<(), PostError>;

    /// Posts a chain of receive WRs. Refused on a QP with an SRQ.
    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError>;

    /// Binds a type 1 window; completes on the send queue with `BindMw`.
    fn bind_mw(&self, wr_id: u64, flags: SendFlags, bind: &BindMw<'_>) -> Result<(), VerbsError>;

    /// Joins a multicast group (UD).
    fn attach_mcast(&self, gid: Gid) -> Result<(), VerbsError>;

    /// Leaves a multicast group.
    fn detach_mcast(&self, gid: Gid) -> Result<(), VerbsError>;

    /// Destroys the QP: `EBUSY` while attached to a multicast group. Dropping the last handle destroys it, too.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
