//! Shared receive queues as objects (clause 11.2.3; XRC: annex A14).

use std::any::Any;
use std::sync::Arc;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{
    AsyncEvent, CompletionQueue, Errno, EventSubject, PostError, RecvWr, SharedReceiveQueue, SrqInit, Srqn, VerbsError,
};

use super::completion_queue::CqObject;
use super::context::Device;
use super::protection_domain::PdUse;
use super::xrc_domain::{XrcdObject, XrcdUse};
use super::{Alive, ours};
use crate::engine::drive::{Core, Held};
use crate::engine::entry::SrqShared;
use crate::post;
use crate::ring::SharedRecvRing;

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqObject {
    pub(super) core: Arc<Core>,
    device: Arc<Device>,
    shared: Arc<SrqShared>,
    alive: Alive,
    pd: PdUse,
    /// XRC: the domain and the CQ live as long as the SRQ.
    xrc: Option<(XrcdUse, Arc<dyn CompletionQueue>)>,
}

impl SrqObject {
    pub(crate) fn new(device: &Arc<Device>, pd: PdUse, init: &SrqInit) -> Result<Self, VerbsError> {
        let core = &device.core;
        let attr = &core.config().attr;
        if attr.max_srq == 0 {
            return Err(VerbsError::misuse(
                Errno::EOPNOTSUPP,
                "this device has no shared receive queues (max_srq is 0)",
            ));
        }
        if init.max_wr == 0 || init.max_wr > attr.max_srq_wr {
            return Err(VerbsError::invalid(format!(
                "max_wr {} is out of range 1 to {}",
                init.max_wr, attr.max_srq_wr
            )));
        }
        if init.max_sge > attr.max_srq_sge {
            return Err(VerbsError::invalid(format!(
                "max_sge {} is more than max_srq_sge {}",
                init.max_sge, attr.max_srq_sge
            )));
        }
        let xrc = match &init.xrc {
            None => None,
            Some((xrcd, cq)) => {
                let xrcd = ours::<XrcdObject>(core, xrcd.as_any(), "XRC domain")?.enter()?;
                Some((xrcd, cq.clone(), ours::<CqObject>(core, cq.as_any(), "completion queue")?))
            }
        };
        let numbers = xrc.as_ref().map(|(xrcd, cq, _)| (xrcd.0.id, cq.cq_num()));
        let limit_wr = attr.max_srq_wr;
        let mut held = core.enter()?;
        // Under the lock, as in `create_qp`.
        xrc.as_ref().map_or(Ok(()), |(_, _, cq)| cq.check())?;
        let shared = held.engine.nic().add_srq(pd.id(), numbers, device.events.clone(), |srqn| {
            SharedRecvRing::new(srqn, init.max_wr, init.max_sge, limit_wr)
        })?;
        drop(held);
        let xrc = xrc.map(|(xrcd, cq, _)| (xrcd, cq));
        Ok(Self { core: core.clone(), device: device.clone(), shared, alive: Alive::new(), pd, xrc })
    }

    pub(crate) fn shared(&self) -> &Arc<SrqShared> {
        &self.shared
    }

    pub(crate) fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        self.alive.check("shared receive queue")
    }

    fn end(&self, mut held: Held<'_>) -> Result<(), VerbsError> {
        held.engine.nic().remove_srq(self.shared.srqn)?;
        self.alive.end();
        self.pd.release();
        // Before the lock is released: afterwards the number may be that of a new SRQ.
        let subject = EventSubject::SharedReceiveQueue(self.shared.srqn);
        self.device.events.forget(|event: &AsyncEvent| event.subject == subject);
        Ok(())
    }
}

impl SharedReceiveQueue for SrqObject {
    fn srq_num(&self) -> Srqn {
        self.shared.srqn
    }

    fn post_recv(&self, chain: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.alive.check_post("the shared receive queue was destroyed")?;
        post::post_srq_recv(&self.shared, chain)
    }

    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<(), VerbsError> {
        let max = self.core.config().attr.max_srq_wr;
        let held = self.core.enter()?;
        self.check()?;
        let ring = &self.shared.ring;
        let size = max_wr.unwrap_or_else(|| ring.capacity());
        if srq_limit.is_some_and(|limit| limit > size) {
            return Err(VerbsError::invalid(format!(
                "srq_limit {} is more than max_wr {size}: the event would come at once and for ever",
                srq_limit.unwrap_or_default()
            )));
        }
        if let Some(max_wr) = max_wr
            && !ring.grow(max_wr)
        {
            return Err(VerbsError::invalid(format!(
                "max_wr {max_wr} is out of range: at least the {} WRs it holds, at most {max}",
                ring.capacity()
            )));
        }
        let reached = srq_limit.is_some_and(|limit| ring.arm_limit(limit));
        drop(held);
        if reached {
            let subject = EventSubject::SharedReceiveQueue(self.shared.srqn);
            self.device.events.push(AsyncEvent { event_type: EventType::SrqLimitReached, subject });
            self.device.events.wake();
        }
        Ok(())
    }

    fn query(&self) -> Result<(u32, u32, u32), VerbsError> {
        self.check()?;
        let ring = &self.shared.ring;
        Ok((ring.capacity(), ring.max_sge(), ring.limit()))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        // Under the lock, under which a QP that wants this SRQ looks whether it lives, and is counted.
        let held = self.core.enter()?;
        self.check()?;
        let users = self.shared.users.load(std::sync::atomic::Ordering::Acquire);
        if users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the shared receive queue is used by {users} QPs: destroy them first"),
            ));
        }
        self.end(held)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SrqObject {
    fn drop(&mut self) {
        if self.alive.end() {
            let _ = self.end(self.core.lock());
        }
    }
}
