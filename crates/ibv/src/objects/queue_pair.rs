//! Queue pairs.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_verbs::{
    BindMw, DataInOrder, Errno, Gid, MwType, OpKind, PostError, QpAttr, QpAttrMask, QpCap, QpInit, QpInitInfo, QpState,
    QpType, Qpn, QueuePair, RateLimit, RecvWr, SendFlags, SendWr, VerbsError, XrcDomain, op_allowed,
};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Parents, Use, destroy, stale};
use crate::library::last_errno;
use crate::objects::completion_queue::{CompletionQueueObject, SharedCq};
use crate::objects::device::{Device, operation};
use crate::objects::protection_domain::{PdObject, Shared as Pd};
use crate::objects::shared_receive_queue::{Shared as Srq, SrqObject};
use crate::objects::work_request::{bind_type1, post_receives, post_sends};
use crate::objects::xrc_domain::{Shared as Xrcd, XrcdObject};
use crate::objects::{ours, owned, returned};
use crate::translate;

/// What a QP hangs on.
#[derive(Debug, Default)]
struct QpParents {
    _pd: Option<Use<Pd>>,
    _send_cq: Option<Use<SharedCq>>,
    _recv_cq: Option<Use<SharedCq>>,
    _srq: Option<Use<Srq>>,
    _xrcd: Option<Use<Xrcd>>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QpObject {
    pub(crate) device: Arc<Device>,
    handle: Handle<abi::Qp>,
    qp_num: Qpn,
    qp_type: QpType,
    cap: QpCap,
    sq_sig_all: bool,
    has_srq: bool,
    parents: Parents<QpParents>,
    /// Groups it is attached to: who drops it leaves them first.
    groups: Mutex<Vec<Gid>>,
}

owned!(QpObject);

const DESTROYED: &str = "the QP was destroyed";

/// Every attribute that `query_qp` can be asked for.
const EVERYTHING: i32 = (1 << 21) - 1;

impl QpObject {
    pub(crate) fn create(pd: &PdObject, init: &QpInit) -> Result<Arc<Self>, VerbsError> {
        let (device, verbs) = (&pd.device, pd.device.verbs);
        if init.qp_type == QpType::XrcRecv {
            return Err(explain::create_qp(init, None, device.driver(), libc::EINVAL));
        }
        let send_cq = ours::<CompletionQueueObject>(device, init.send_cq.as_any(), "send completion queue")?;
        let recv_cq = ours::<CompletionQueueObject>(device, init.recv_cq.as_any(), "receive completion queue")?;
        let srq = match &init.srq {
            Some(srq) => Some(ours::<SrqObject>(device, srq.as_any(), "shared receive queue")?),
            None => None,
        };
        let parents = QpParents {
            _pd: Some(pd.used()),
            _send_cq: Some(send_cq.used()),
            _recv_cq: Some(recv_cq.used()),
            _srq: srq.map(SrqObject::used),
            _xrcd: None,
        };
        let (inside, send, recv) = (pd.shared.enter()?, send_cq.shared.enter()?, recv_cq.shared.enter()?);
        let shared = srq.map(|srq| srq.shared.enter()).transpose()?;
        let receives = init.qp_type.has_recv_queue();
        let mut attr = abi::QpInitAttr {
            qp_context: core::ptr::null_mut(),
            send_cq: send.pointer(),
            recv_cq: if receives { recv.pointer() } else { core::ptr::null_mut() },
            srq: shared.as_ref().map_or(core::ptr::null_mut(), |srq| srq.pointer()),
            cap: translate::cap_to_c(&init.cap),
            qp_type: init.qp_type as u32,
            sq_sig_all: init.sq_sig_all.into(),
        };
        // SAFETY: living objects of this device.
        let qp = unsafe { (verbs.create_qp)(inside.pointer(), &mut attr) };
        if qp.is_null() {
            let raw = last_errno();
            return Err(explain::create_qp(init, device.attr_or_none().as_ref(), device.driver(), raw));
        }
        let cap = translate::cap_from_c(&attr.cap);
        drop((inside, send, recv, shared));
        Ok(Arc::new(Self::of(device, qp, init.qp_type, cap, init.sq_sig_all, init.srq.is_some(), parents)))
    }

    fn of(
        device: &Arc<Device>,
        qp: *mut abi::Qp,
        qp_type: QpType,
        cap: QpCap,
        sq_sig_all: bool,
        has_srq: bool,
        parents: QpParents,
    ) -> Self {
        // SAFETY: just made.
        let qp_num = Qpn::new(unsafe { (*qp).qp_num });
        Self {
            device: device.clone(),
            handle: Handle::new(qp),
            qp_num,
            qp_type,
            cap,
            sq_sig_all,
            has_srq,
            parents: Parents::new(parents),
            groups: Mutex::default(),
        }
    }

    /// An XRC target: no PD, no CQs.
    pub(crate) fn xrc_target(device: &Arc<Device>, xrcd: &Arc<dyn XrcDomain>) -> Result<Arc<Self>, VerbsError> {
        let xrcd = ours::<XrcdObject>(device, xrcd.as_any(), "XRC domain")?;
        let parents = QpParents { _xrcd: Some(xrcd.used()), ..QpParents::default() };
        let (domain, context) = (xrcd.shared.enter()?, device.context());
        let create =
            operation!(context.pointer(), create_qp_ex).ok_or_else(|| explain::unsupported("XRC target QPs"))?;
        // SAFETY: all members are numbers or pointers that may be null.
        let mut attr: abi::QpInitAttrEx = unsafe { core::mem::zeroed() };
        attr.qp_type = QpType::XrcRecv as u32;
        attr.comp_mask = 2;
        attr.xrcd = domain.pointer();
        // SAFETY: a living domain.
        let qp = unsafe { create(context.pointer(), &mut attr) };
        if qp.is_null() {
            return Err(explain::failed("make an XRC target QP", last_errno()));
        }
        drop(domain);
        Ok(Arc::new(Self::of(device, qp, QpType::XrcRecv, QpCap::default(), false, false, parents)))
    }

    /// Another handle of an XRC target.
    pub(crate) fn open(device: &Arc<Device>, xrcd: &Arc<dyn XrcDomain>, qp_num: Qpn) -> Result<Arc<Self>, VerbsError> {
        let xrcd = ours::<XrcdObject>(device, xrcd.as_any(), "XRC domain")?;
        let parents = QpParents { _xrcd: Some(xrcd.used()), ..QpParents::default() };
        let (domain, context) = (xrcd.shared.enter()?, device.context());
        let open =
            operation!(context.pointer(), open_qp).ok_or_else(|| explain::unsupported("opening QPs by number"))?;
        let mut attr = abi::QpOpenAttr {
            // Number, domain and type.
            comp_mask: 1 | 2 | 8,
            qp_num: qp_num.get(),
            xrcd: domain.pointer(),
            qp_context: core::ptr::null_mut(),
            qp_type: QpType::XrcRecv as u32,
        };
        // SAFETY: a living domain.
        let qp = unsafe { open(context.pointer(), &mut attr) };
        if qp.is_null() {
            return Err(match last_errno() {
                libc::EINVAL | libc::ENOENT => VerbsError::misuse(
                    Errno::EINVAL,
                    format!("no XRC target QP of this domain has number {:#x}", qp_num.get()),
                ),
                raw => explain::failed("open an XRC target QP", raw),
            });
        }
        drop(domain);
        Ok(Arc::new(Self::of(device, qp, QpType::XrcRecv, QpCap::default(), false, false, parents)))
    }

    /// The state as libibverbs last knew it.
    fn state(&self, qp: *mut abi::Qp) -> QpState {
        // SAFETY: the caller is inside.
        translate::qp_state(unsafe { (*qp).state })
    }

    fn query_raw(&self, qp: *mut abi::Qp) -> Result<(abi::QpAttr, abi::QpInitAttr), i32> {
        // SAFETY: all members are numbers or pointers that may be null.
        let (mut attr, mut init): (abi::QpAttr, abi::QpInitAttr) = unsafe { core::mem::zeroed() };
        // SAFETY: the caller is inside; structures of ours to fill.
        match unsafe { (self.device.verbs.query_qp)(qp, &mut attr, EVERYTHING, &mut init) } {
            0 => Ok((attr, init)),
            code => Err(returned(code)),
        }
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Gid>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, chain: &[SendWr<'_>], raw: bool) -> Result<(), PostError> {
        let qp = self.handle.enter_to_post(DESTROYED)?;
        post_sends(
            chain,
            raw,
            // SAFETY: a living QP; the chain lives until the call returns.
            |first, bad| unsafe { (self.device.fast.post_send)(qp.pointer(), first, bad) },
            |wr, raw| self.why_send(qp.pointer(), wr, raw),
        )
    }

    /// Why the driver refused a send.
    fn why_send(&self, qp: *mut abi::Qp, wr: &SendWr<'_>, raw: i32) -> (Errno, &'static str) {
        let bytes = wr.inline_data.len().max(wr.sg_list.iter().map(|sge| sge.length as usize).sum());
        if !self.state(qp).post_send_allowed() {
            return (Errno::EINVAL, "the QP is not in RTS: sends can be posted in RTS, SQD, SQE and ERR only");
        }
        if !op_allowed(self.qp_type, wr.op.kind()) {
            return (Errno::EINVAL, "QPs of this type do not have this operation");
        }
        if wr.sg_list.len() > self.cap.max_send_sge as usize {
            return (Errno::EINVAL, "more SGEs than the QP was made for (max_send_sge)");
        }
        if wr.flags.contains(SendFlags::INLINE) && bytes > self.cap.max_inline_data as usize {
            return (Errno::EINVAL, "more inline bytes than the QP was made for (max_inline_data)");
        }
        if self.qp_type == QpType::Ud && wr.ud.is_none() {
            return (Errno::EINVAL, "a datagram needs an address (ud)");
        }
        match raw {
            libc::ENOMEM | libc::ENOSPC | libc::EAGAIN => {
                (Errno::ENOMEM, "the send queue is full: poll completions before posting more")
            }
            libc::EOPNOTSUPP | libc::ENOSYS => (Errno::EOPNOTSUPP, "the driver does not have this operation"),
            raw => (Errno::from_raw(raw).unwrap_or(Errno::EINVAL), "the driver refuses the work request"),
        }
    }

    fn end(&self, qp: *mut abi::Qp) -> i32 {
        // SAFETY: a living QP, ended once.
        returned(unsafe { (self.device.verbs.destroy_qp)(qp) })
    }
}

impl Drop for QpObject {
    fn drop(&mut self) {
        let groups = core::mem::take(&mut *self.groups());
        if let Some(qp) = self.handle.enter()
            && !self.handle.is_inherited()
        {
            for group in groups {
                // SAFETY: a living QP, and groups that it joined.
                unsafe { (self.device.verbs.detach_mcast)(qp.pointer(), &translate::gid(group), 0) };
            }
        }
        let _ = self.handle.end(|qp| self.end(qp));
    }
}

impl QueuePair for QpObject {
    fn qp_num(&self) -> Qpn {
        self.qp_num
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let qp = self.handle.enter_or("QP")?;
        let before = self.query_raw(qp.pointer()).ok();
        let mut raw_attr = translate::qp_attr_to_c(attr);
        // A vector or path that is not meant may hold anything.
        if !mask.contains(QpAttrMask::AV) {
            raw_attr.ah_attr = abi::AhAttr::default();
        }
        if !mask.contains(QpAttrMask::ALT_PATH) {
            raw_attr.alt_ah_attr = abi::AhAttr::default();
        }
        // SAFETY: a living QP.
        let code = unsafe { (self.device.verbs.modify_qp)(qp.pointer(), &mut raw_attr, mask.bits() as i32) };
        if code == 0 {
            return Ok(());
        }
        let current = before.map(|(attr, _)| translate::qp_attr_from_c(&attr));
        let call = explain::Modify {
            qp_type: self.qp_type,
            state: current.as_ref().map_or_else(|| self.state(qp.pointer()), |attr| attr.qp_state),
            current: current.as_ref(),
            attr,
            mask,
        };
        Err(explain::modify_qp(&call, &*self.device, self.device.driver(), returned(code)))
    }

    fn query(&self) -> Result<(QpAttr, QpInitInfo), VerbsError> {
        let qp = self.handle.enter_or("QP")?;
        let (attr, init) = self.query_raw(qp.pointer()).map_err(|raw| explain::failed("query the QP", raw))?;
        let mut attr = translate::qp_attr_from_c(&attr);
        let cap = if self.qp_type == QpType::XrcRecv { self.cap } else { translate::cap_from_c(&init.cap) };
        attr.cap = cap;
        Ok((attr, QpInitInfo { qp_type: self.qp_type, cap, sq_sig_all: self.sq_sig_all }))
    }

    fn post_send(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.post(chain, false)
    }

    unsafe fn post_send_raw(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.post(chain, true)
    }

    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
        let qp = self.handle.enter_to_post(DESTROYED)?;
        if self.has_srq || !self.qp_type.has_recv_queue() {
            let reason = "the QP has no receive queue of its own: post to its SRQ";
            return Err(PostError { index: 0, errno: Errno::EINVAL, reason });
        }
        // SAFETY: a living QP; the chain lives until the call returns.
        let posted =
            post_receives(chain, |first, bad| unsafe { (self.device.fast.post_recv)(qp.pointer(), first, bad) });
        posted.map_err(|(index, raw)| {
            let too_long = chain.get(index).is_some_and(|wr| wr.sg_list.len() > self.cap.max_recv_sge as usize);
            let (errno, reason) = match raw {
                _ if !self.state(qp.pointer()).post_recv_allowed() => {
                    (Errno::EINVAL, "the QP is in RESET: receives can be posted from INIT on")
                }
                _ if too_long => (Errno::EINVAL, "more SGEs than the QP was made for (max_recv_sge)"),
                libc::ENOMEM | libc::ENOSPC => (Errno::ENOMEM, "the receive queue is full"),
                raw => (Errno::from_raw(raw).unwrap_or(Errno::EINVAL), "the driver refuses the receive"),
            };
            PostError { index, errno, reason }
        })
    }

    fn bind_mw(&self, wr_id: u64, flags: SendFlags, bind: &BindMw<'_>) -> Result<(), VerbsError> {
        let qp = self.handle.enter_or("QP")?;
        let context = self.device.context();
        // SAFETY: an open context.
        let call = unsafe { (*context.pointer()).ops.bind_mw }.ok_or_else(|| explain::unsupported("memory windows"))?;
        let (mw, region, bind_info) = bind_type1(bind).map_err(|(_, reason)| VerbsError::invalid(reason))?;
        if bind.mw.mw_type() != MwType::Type1 {
            return Err(VerbsError::invalid("a window of type 2 is bound by a work request: SendOp::BindMw"));
        }
        if bind.mr.is_none() && (bind.addr != 0 || bind.length != 0) {
            return Err(VerbsError::invalid("a bind without a region unbinds: its addr and length must be 0"));
        }
        let window = mw.handle.enter_or("memory window")?;
        let mut attr = abi::MwBind { wr_id, send_flags: flags.bits(), bind_info };
        // SAFETY: living objects; the region is held until the call returns.
        let code = unsafe { call(qp.pointer(), window.pointer(), &mut attr) };
        drop(region);
        if code != 0 {
            return Err(explain::failed("bind the memory window", returned(code)));
        }
        // SAFETY: living; the driver has chosen the key.
        mw.rkey.store(unsafe { (*window.pointer()).rkey }, Ordering::Relaxed);
        Ok(())
    }

    fn attach_mcast(&self, gid: Gid) -> Result<(), VerbsError> {
        let qp = self.handle.enter_or("QP")?;
        // SAFETY: a living QP.
        match unsafe { (self.device.verbs.attach_mcast)(qp.pointer(), &translate::gid(gid), 0) } {
            0 => {
                let mut groups = self.groups();
                if !groups.contains(&gid) {
                    groups.push(gid);
                }
                Ok(())
            }
            code => Err(match returned(code) {
                libc::EINVAL if self.qp_type != QpType::Ud => {
                    VerbsError::invalid(format!("a {} QP cannot join a group: only UD can", self.qp_type))
                }
                libc::EINVAL if !gid.is_multicast() => VerbsError::invalid(format!("{gid} is no multicast GID")),
                raw => explain::failed(&format!("join the group {gid}"), raw),
            }),
        }
    }

    fn detach_mcast(&self, gid: Gid) -> Result<(), VerbsError> {
        let qp = self.handle.enter_or("QP")?;
        // SAFETY: a living QP.
        match unsafe { (self.device.verbs.detach_mcast)(qp.pointer(), &translate::gid(gid), 0) } {
            0 => {
                self.groups().retain(|group| *group != gid);
                Ok(())
            }
            code => Err(match returned(code) {
                libc::EINVAL if !self.groups().contains(&gid) => {
                    VerbsError::invalid(format!("the QP is not in the group {gid}"))
                }
                raw => explain::failed(&format!("leave the group {gid}"), raw),
            }),
        }
    }

    fn data_in_order(&self, kind: OpKind) -> DataInOrder {
        let (Some(query), Some(qp)) = (self.device.verbs.query_qp_data_in_order, self.handle.enter()) else {
            return DataInOrder::empty();
        };
        // SAFETY: a living QP. Without flags the answer is 1 or 0 for the whole message.
        match unsafe { query(qp.pointer(), kind as u32, 0) } {
            1 => DataInOrder::WHOLE_MSG,
            _ => DataInOrder::empty(),
        }
    }

    fn modify_rate_limit(&self, limit: &RateLimit) -> Result<(), VerbsError> {
        let qp = self.handle.enter_or("QP")?;
        let context = self.device.context();
        let modify =
            operation!(context.pointer(), modify_qp_rate_limit).ok_or_else(|| explain::unsupported("rate limits"))?;
        let mut attr = abi::QpRateLimitAttr {
            rate_limit: limit.rate_limit,
            max_burst_sz: limit.max_burst_sz,
            typical_pkt_sz: limit.typical_pkt_sz,
            comp_mask: 0,
        };
        // SAFETY: a living QP.
        match unsafe { modify(qp.pointer(), &mut attr) } {
            0 => Ok(()),
            code => Err(explain::failed("limit the rate of the QP", returned(code))),
        }
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let groups = self.groups().len();
        if groups > 0 && !self.handle.is_inherited() {
            if self.handle.enter().is_none() {
                return Err(stale("QP"));
            }
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the QP is attached to {groups} multicast group(s): detach it first"),
            ));
        }
        destroy(&self.handle, &self.parents, None, "QP", |qp| self.end(qp))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
