//! A QP with its charge. When it comes to RTS it gets its part of the tenant's rate.

use super::Charge;
use scalefabric_verbs::operation::OpKind;
use scalefabric_verbs::{
    BindMw, CongestionState, DataInOrder, Gid, PostError, QpAttr, QpAttrMask, QpInitInfo, QpState, QpType, Qpn,
    QueuePair, RateLimit, RecvWr, SendFlags, SendWr, VerbsError,
};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub(super) struct TenantQueuePair {
    // Dropped before the charge: what is given back is gone.
    inner: Arc<dyn QueuePair>,
    charge: Mutex<Option<Charge>>,
}

impl TenantQueuePair {
    pub fn new(inner: Arc<dyn QueuePair>, charge: Charge) -> Self {
        Self { inner, charge: Mutex::new(Some(charge)) }
    }

    fn give_back(&self) {
        let charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(charge) = charge {
            charge.ledger.leave(&self.inner);
        }
    }
}

impl Drop for TenantQueuePair {
    fn drop(&mut self) {
        // The rest of what is given back when a QP is let go of without being destroyed.
        if let Some(charge) = self.charge.get_mut().unwrap_or_else(PoisonError::into_inner) {
            charge.ledger.leave(&self.inner);
        }
    }
}

impl QueuePair for TenantQueuePair {
    fn qp_num(&self) -> Qpn {
        self.inner.qp_num()
    }
    fn qp_type(&self) -> QpType {
        self.inner.qp_type()
    }
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.inner.modify(attr, mask)?;
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::Rts {
            let charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner);
            charge.as_ref().map_or(Ok(()), |charge| charge.ledger.share_rate(&self.inner))?;
        }
        Ok(())
    }
    fn losses(&self) -> Option<u64> {
        self.inner.losses()
    }
    fn set_congestion(&self, name: &str) -> Result<(), VerbsError> {
        self.inner.set_congestion(name)
    }
    fn congestion(&self) -> Option<CongestionState> {
        self.inner.congestion()
    }
    fn query(&self) -> Result<(QpAttr, QpInitInfo), VerbsError> {
        self.inner.query()
    }
    fn post_send(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.inner.post_send(chain)
    }
    unsafe fn post_send_raw(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller keeps what it has promised; it is handed on as it is.
        unsafe { self.inner.post_send_raw(chain) }
    }
    fn post_send_whole(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.inner.post_send_whole(chain)
    }
    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.inner.post_recv(chain)
    }
    fn bind_mw(&self, wr_id: u64, flags: SendFlags, bind: &BindMw<'_>) -> Result<(), VerbsError> {
        self.inner.bind_mw(wr_id, flags, bind)
    }
    fn data_in_order(&self, kind: OpKind) -> DataInOrder {
        self.inner.data_in_order(kind)
    }
    fn modify_rate_limit(&self, limit: &RateLimit) -> Result<(), VerbsError> {
        self.inner.modify_rate_limit(limit)
    }
    fn attach_mcast(&self, gid: Gid) -> Result<(), VerbsError> {
        self.inner.attach_mcast(gid)
    }
    fn detach_mcast(&self, gid: Gid) -> Result<(), VerbsError> {
        self.inner.detach_mcast(gid)
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.destroy()?;
        self.give_back();
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}
