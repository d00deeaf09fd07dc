//! Queue pairs as objects (clause 11.2.4): made within the device's limits, modified and destroyed under the engine's lock,
//! posted to without it.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_verbs::{
    AsyncEvent, BindMw, CompletionQueue, CongestionState, DataInOrder, Errno, EventSubject, Gid, OpKind, PostError,
    QpAttr, QpAttrMask, QpCap, QpInit, QpInitInfo, QpState, QpType, Qpn, QueuePair, RateLimit, RecvWr, SendFlags,
    SendWr, SharedReceiveQueue, VerbsError, WcStatus,
};

use super::completion_queue::CqObject;
use super::context::Device;
use super::protection_domain::PdUse;
use super::shared_receive_queue::SrqObject;
use super::xrc_domain::{XrcdObject, XrcdUse};
use super::{Alive, ours};
use crate::engine::control::NewQp;
use crate::engine::drive::{Core, Held, State};
use crate::engine::entry::{NO_CQ, QpShared};
use crate::host::NO_PD;
use crate::port::faults::Verb;
use crate::post::{self, MAX_INLINE};
use crate::ring::{PlainEntry, RecvRing, SendRing, SendRingConfig};

/// An XRC target QP, which several contexts may have open.
#[derive(Debug)]
pub(crate) struct XrcTarget {
    shared: Arc<QpShared>,
    xrcd_id: u32,
    /// Until the QP is destroyed.
    xrcd: Mutex<Option<XrcdUse>>,
    /// Open handles; the QP is destroyed with the last one.
    handles: AtomicU32,
}

/// A queue pair.
#[derive(Debug)]
pub struct QpObject {
    core: Arc<Core>,
    device: Arc<Device>,
    shared: Arc<QpShared>,
    alive: Alive,
    pd: Option<PdUse>,
    /// An XRC target is shared by those who open it.
    target: Option<Arc<XrcTarget>>,
    srq: Option<Arc<dyn SharedReceiveQueue>>,
    _cqs: [Option<Arc<dyn CompletionQueue>>; 2],
}

impl QpObject {
    pub(crate) fn new(device: &Arc<Device>, pd: PdUse, init: &QpInit) -> Result<Self, VerbsError> {
        let qp_type = init.qp_type;
        if qp_type == QpType::XrcRecv {
            return Err(VerbsError::invalid(
                "an XRC target QP belongs to an XRC domain: make it with create_xrc_target",
            ));
        }
        let core = &device.core;
        let attr = &core.config().attr;
        core.config().rules.check_type(qp_type)?;
        let own_recv = qp_type.has_recv_queue() && init.srq.is_none();
        let cap = &init.cap;
        let inline = attr.max_inline_data.min(MAX_INLINE as u32);
        for (name, value, max, counts) in [
            ("max_send_wr", cap.max_send_wr, attr.max_qp_wr, true),
            ("max_recv_wr", cap.max_recv_wr, attr.max_qp_wr, own_recv),
            ("max_send_sge", cap.max_send_sge, attr.max_sge, true),
            ("max_recv_sge", cap.max_recv_sge, attr.max_sge, own_recv),
            ("max_inline_data", cap.max_inline_data, inline, true),
        ] {
            if counts && value > max {
                return Err(VerbsError::invalid(format!(
                    "{name} {value} is more than the device's {max}: see query_device"
                )));
            }
        }
        let send_cq = ours::<CqObject>(core, init.send_cq.as_any(), "send completion queue")?;
        let recv_cq = match qp_type.has_recv_queue() {
            true => Some(ours::<CqObject>(core, init.recv_cq.as_any(), "receive completion queue")?),
            false => None,
        };
        let srq = match &init.srq {
            None => None,
            Some(_) if !qp_type.has_recv_queue() => {
                return Err(VerbsError::invalid(format!(
                    "a {} QP receives nothing: it takes no SRQ",
                    qp_type.as_str()
                )));
            }
            Some(srq) => {
                let ours = ours::<SrqObject>(core, srq.as_any(), "shared receive queue")?;
                if ours.is_xrc() {
                    return Err(VerbsError::invalid("an XRC SRQ is named by the sender, QP by QP: give a basic SRQ"));
                }
                Some(ours)
            }
        };
        let send = SendRing::new(SendRingConfig {
            max_wr: cap.max_send_wr.max(1),
            max_sge: cap.max_send_sge.max(1),
            max_inline: cap.max_inline_data,
            ud: qp_type == QpType::Ud,
        });
        let recv = own_recv.then(|| RecvRing::new(cap.max_recv_wr.max(1), cap.max_recv_sge.max(1)));
        // What the QP really has: at least what was asked for (clause 11.2.4.1), and never more than the device: programs ask
        // for it again (libfabric, when it tries how much inline data there is).
        let cap = QpCap {
            max_send_wr: send.capacity().min(attr.max_qp_wr),
            max_send_sge: send.max_sge().min(attr.max_sge),
            max_inline_data: send.max_inline().min(inline),
            max_recv_wr: recv.as_ref().map_or(0, |recv| recv.capacity().min(attr.max_qp_wr)),
            max_recv_sge: recv.as_ref().map_or(0, |recv| recv.max_sge().min(attr.max_sge)),
        };
        let new = NewQp {
            qp_type,
            pd: pd.id(),
            send_cq: send_cq.cq_num(),
            recv_cq: recv_cq.map_or(NO_CQ, CqObject::cq_num),
            srq: srq.map(|srq| srq.shared().clone()),
            xrcd: None,
            events: device.events.clone(),
            cap,
            sq_sig_all: init.sq_sig_all,
            send: Some(send),
            recv,
        };
        // That they live is asked under the lock under which they are destroyed and the QP is counted: the number of one
        // that is destroyed may be that of another a moment later.
        let mut held = core.enter()?;
        send_cq.check()?;
        recv_cq.map_or(Ok(()), CqObject::check)?;
        srq.map_or(Ok(()), SrqObject::check)?;
        let shared = held.engine.nic().add_qp(new)?;
        if init.qp_type == QpType::Ud {
            // The GRH of what it receives shows them.
            held.ports.iter_mut().for_each(|port| port.tell_headers());
        }
        if let Some(srq) = srq {
            srq.shared().users.fetch_add(1, Ordering::AcqRel);
        }
        drop(held);
        let recv_handle = recv_cq.map(|_| init.recv_cq.clone());
        Ok(Self {
            core: core.clone(),
            device: device.clone(),
            shared,
            alive: Alive::new(),
            pd: Some(pd),
            target: None,
            srq: init.srq.clone(),
            _cqs: [Some(init.send_cq.clone()), recv_handle],
        })
    }

    pub(crate) fn new_xrc_target(device: &Arc<Device>, xrcd: &XrcdObject) -> Result<Self, VerbsError> {
        let core = &device.core;
        core.config().rules.check_type(QpType::XrcRecv)?;
        let xrcd = xrcd.enter()?;
        let new = NewQp {
            qp_type: QpType::XrcRecv,
            pd: NO_PD,
            send_cq: NO_CQ,
            recv_cq: NO_CQ,
            srq: None,
            xrcd: Some(xrcd.0.id),
            events: device.events.clone(),
            cap: QpCap::default(),
            sq_sig_all: false,
            send: None,
            recv: None,
        };
        let shared = core.enter()?.engine.nic().add_qp(new)?;
        let (xrcd_id, xrcd) = (xrcd.0.id, Mutex::new(Some(xrcd)));
        let target = Arc::new(XrcTarget { shared, xrcd_id, xrcd, handles: AtomicU32::new(1) });
        core.registry().xrc.targets().insert(target.shared.qpn, target.clone());
        Ok(Self::of_target(device, target))
    }

    /// Another handle of a target QP.
    pub(crate) fn open_xrc_target(device: &Arc<Device>, xrcd: &XrcdObject, qpn: Qpn) -> Result<Self, VerbsError> {
        let core = &device.core;
        let domain = xrcd.enter()?;
        let target = {
            let targets = core.registry().xrc.targets();
            let found = targets.get(&qpn).filter(|target| target.xrcd_id == domain.0.id);
            let target = found.ok_or_else(|| {
                VerbsError::invalid(format!("the XRC domain has no target QP {:#x} in this process", qpn.get()))
            })?;
            target.handles.fetch_add(1, Ordering::AcqRel);
            target.clone()
        };
        core.enter()?.engine.nic().listen_to_qp(target.shared.index(), &device.events, true);
        Ok(Self::of_target(device, target))
    }

    fn of_target(device: &Arc<Device>, target: Arc<XrcTarget>) -> Self {
        Self {
            core: device.core.clone(),
            device: device.clone(),
            shared: target.shared.clone(),
            alive: Alive::new(),
            pd: None,
            target: Some(target),
            srq: None,
            _cqs: [None, None],
        }
    }

    /// An injected fault (D8): the QP goes to ERR as if the device had failed under it, its oldest send WR ends with
    /// `status`.
    pub fn fail(&self, status: WcStatus) -> Result<(), VerbsError> {
        let mut held = self.hold()?;
        let now = self.core.now();
        let State { engine, ports } = &mut *held;
        let (memory, nic) = engine.parts();
        nic.fail_qp(self.shared.index(), now, &memory, ports, status)
    }

    /// Posts the WRs at the head of a chain that `next` gives one after the other, while they have the short form, with one doorbell: for a caller
    /// whose WRs are no slice of [`SendWr`]. How many were posted; those behind them are for `post_send`, also if the QP takes none this way
    /// (a QP in another state than RTS, one whose peer is on this host, a UD QP). An error names the WR that was refused; those
    /// before it are posted. INLINE is not set in any.
    #[inline]
    pub fn post_plain<'a>(&self, next: impl FnMut() -> Option<PlainEntry<'a>>) -> Result<usize, PostError> {
        self.alive()?;
        post::post_plain(&self.core, &self.shared, next)
    }

    #[inline]
    fn alive(&self) -> Result<(), PostError> {
        self.alive.check_post("the QP was destroyed")
    }

    fn pd(&self) -> crate::memory::PdId {
        self.pd.as_ref().map_or(NO_PD, PdUse::id)
    }

    /// The engine, for a verb on a QP that lives. Asked under the lock, because the number of a QP that another thread
    /// destroys may be that of a new one a moment later.
    fn hold(&self) -> Result<Held<'_>, VerbsError> {
        let held = self.core.enter()?;
        self.alive.check("queue pair")?;
        Ok(held)
    }

    /// Gives up this handle of an XRC target; true if others are left, and the QP lives on.
    fn leave_target(&self) -> bool {
        let Some(target) = &self.target else { return false };
        // Under the lock under which handles come.
        let mut targets = self.core.registry().xrc.targets();
        if target.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            return true;
        }
        targets.remove(&self.shared.qpn);
        *target.xrcd.lock().unwrap_or_else(PoisonError::into_inner) = None;
        false
    }

    fn end(&self, mut held: Held<'_>) -> Result<(), VerbsError> {
        if self.leave_target() {
            self.alive.end();
            held.engine.nic().listen_to_qp(self.shared.index(), &self.device.events, false);
            return Ok(());
        }
        self.core.take_in(&mut held);
        let State { engine, ports } = &mut *held;
        let (memory, nic) = engine.parts();
        let now = self.core.now();
        nic.check_removal(self.shared.index())?;
        nic.send_posted(self.shared.index(), now, &memory, ports);
        nic.remove_qp(self.shared.index(), now, &memory, ports)?;
        drop(memory);
        self.alive.end();
        // Before the lock is released: afterwards the number may be that of a new QP.
        let subject = EventSubject::QueuePair(self.shared.qpn);
        self.device.events.forget(|event: &AsyncEvent| event.subject == subject);
        drop(held);
        if let Some(pd) = &self.pd {
            pd.release();
        }
        if let Some(srq) = self.srq.as_ref().and_then(|s| s.as_any().downcast_ref::<SrqObject>()) {
            srq.shared().users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

impl QueuePair for QpObject {
    fn qp_num(&self) -> Qpn {
        self.shared.qpn
    }

    fn qp_type(&self) -> QpType {
        self.shared.qp_type
    }

    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.core.check_verb(Verb::ModifyQp)?;
        let mut held = self.hold()?;
        if mask.contains(QpAttrMask::STATE) && matches!(attr.qp_state, QpState::Err | QpState::Reset) {
            self.core.take_in(&mut held);
        }
        let now = self.core.now();
        let State { engine, ports } = &mut *held;
        let (memory, nic) = engine.parts();
        nic.modify_qp(self.shared.index(), now, &memory, ports, attr, mask)
    }

    fn query(&self) -> Result<(QpAttr, QpInitInfo), VerbsError> {
        let attr = self.hold()?.engine.nic().query_qp(self.shared.index())?;
        let QpShared { qp_type, cap, sq_sig_all, .. } = &*self.shared;
        Ok((attr, QpInitInfo { qp_type: *qp_type, cap: *cap, sq_sig_all: *sq_sig_all }))
    }

    fn set_congestion(&self, name: &str) -> Result<(), VerbsError> {
        let mut held = self.hold()?;
        // It is also who answers marks.
        held.ports.iter_mut().for_each(|port| port.tell_headers());
        held.engine.nic().set_congestion(self.shared.index(), name)
    }

    fn congestion(&self) -> Option<CongestionState> {
        self.hold().ok()?.engine.nic().congestion(self.shared.index())
    }

    fn losses(&self) -> Option<u64> {
        self.hold().ok()?.engine.nic().losses(self.shared.index())
    }

    #[inline]
    fn post_send(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.alive()?;
        post::post_send(&self.core, &self.shared, self.pd(), chain, false, false)
    }

    #[inline]
    unsafe fn post_send_raw(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.alive()?;
        post::post_send(&self.core, &self.shared, self.pd(), chain, true, false)
    }

    #[inline]
    fn post_send_whole(&self, chain: &[SendWr<'_>]) -> Result<(), PostError> {
        self.alive()?;
        post::post_send(&self.core, &self.shared, self.pd(), chain, false, true)
    }

    #[inline]
    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.alive()?;
        post::post_recv(&self.core, &self.shared, chain)
    }

    fn bind_mw(&self, wr_id: u64, flags: SendFlags, bind: &BindMw<'_>) -> Result<(), VerbsError> {
        self.alive.check("queue pair")?;
        post::bind_mw(&self.core, &self.shared, wr_id, flags, bind)
    }

    /// Packets are executed in the order of their PSNs, and `memory::copy` writes each in the order of its addresses.
    fn data_in_order(&self, kind: OpKind) -> DataInOrder {
        if self.core.config().rules.supports(self.shared.qp_type, kind) {
            DataInOrder::all()
        } else {
            DataInOrder::empty()
        }
    }

    fn modify_rate_limit(&self, limit: &RateLimit) -> Result<(), VerbsError> {
        let most = self.core.config().attr.rate_limit_max;
        if most == 0 {
            return Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device does not limit the rate of its QPs"));
        }
        // The pacer lets 64 KiB go at once (transport's `requester/pacing.rs`); the size of packets does not matter to it.
        if limit.max_burst_sz != 0 {
            return Err(VerbsError::misuse(
                Errno::EOPNOTSUPP,
                format!("max_burst_sz {}: this device has one burst size, 64 KiB; give 0", limit.max_burst_sz),
            ));
        }
        let (attr, _) = self.query()?;
        self.modify(&QpAttr { rate_limit: limit.rate_limit, ..attr }, QpAttrMask::RATE_LIMIT)
    }

    fn attach_mcast(&self, gid: Gid) -> Result<(), VerbsError> {
        let mut held = self.hold()?;
        let State { engine, ports } = &mut *held;
        engine.nic().attach(self.shared.index(), gid, ports)
    }

    fn detach_mcast(&self, gid: Gid) -> Result<(), VerbsError> {
        let mut held = self.hold()?;
        let State { engine, ports } = &mut *held;
        engine.nic().detach(self.shared.index(), gid, ports)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        self.end(self.hold()?)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for QpObject {
    fn drop(&mut self) {
        if !self.alive.end() {
            return;
        }
        let groups = self.core.lock().engine.nic().groups_of(self.shared.index());
        for group in groups {
            let mut held = self.core.lock();
            let State { engine, ports } = &mut *held;
            let _ = engine.nic().detach(self.shared.index(), group, ports);
        }
        let _ = self.end(self.core.lock());
    }
}
