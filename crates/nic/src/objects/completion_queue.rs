//! Completion queues and channels as objects (clauses 11.2.6 and 11.4.2). Polling looks at the ring first and turns the
//! engine only when it is empty (D2).

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use scalefabric_verbs::{
    AsyncEvent, CompletionChannel, CompletionQueue, CqFlags, Errno, EventSubject, VerbsError, WorkCompletion,
};

use super::Alive;
use super::context::Device;
use crate::completion::{Channel, CompletionRing, Polled, Shape, completion_queue_with};
use crate::engine::drive::{Core, Held};
use crate::process::Own;

/// A completion queue.
#[derive(Debug)]
pub struct CqObject {
    pub(super) core: Arc<Core>,
    device: Arc<Device>,
    cq_num: u32,
    ring: Arc<CompletionRing>,
    channel: Option<Arc<ChannelShared>>,
    alive: Alive,
}

impl CqObject {
    pub(crate) fn new(
        device: &Arc<Device>,
        cqe: u32,
        channel: Option<Arc<ChannelShared>>,
        flags: CqFlags,
    ) -> Result<Arc<Self>, VerbsError> {
        let core = &device.core;
        check_cqe(core, cqe)?;
        if let Some(channel) = &channel {
            channel.alive.check("completion channel")?;
        }
        let shape = Shape {
            stamped: flags.contains(CqFlags::TIMESTAMP),
            at_least: if flags.contains(CqFlags::IGNORE_OVERRUN) { core.config().attr.max_cqe } else { 0 },
            batch: core.config().completion_batch,
        };
        let (producer, ring) = completion_queue_with(cqe, channel.is_some(), shape);
        let events = channel.as_ref().map(|c| c.events.clone());
        let cq_num = core.enter()?.engine.nic().add_cq(producer, events, device.events.clone())?;
        let cq =
            Arc::new(Self { core: core.clone(), device: device.clone(), cq_num, ring, channel, alive: Alive::new() });
        if let Some(channel) = &cq.channel {
            channel.cqs().insert(cq_num, Arc::downgrade(&cq));
        }
        Ok(cq)
    }

    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        self.alive.check("completion queue")
    }

    fn end(&self, mut held: Held<'_>) -> Result<(), VerbsError> {
        let entry = held.engine.nic().remove_cq(self.cq_num)?;
        self.alive.end();
        // Before the lock is released: afterwards the number may be that of a new CQ.
        if let Some(channel) = &self.channel {
            channel.cqs().remove(&self.cq_num);
            channel.events.forget(|&cq| cq == self.cq_num);
        }
        let subject = EventSubject::CompletionQueue(self.cq_num);
        self.device.events.forget(|event: &AsyncEvent| event.subject == subject);
        drop(held);
        // After the lock: its ring may be large.
        drop(entry);
        Ok(())
    }
}

fn check_cqe(core: &Core, cqe: u32) -> Result<(), VerbsError> {
    let max = core.config().attr.max_cqe;
    if cqe == 0 || cqe > max {
        return Err(VerbsError::invalid(format!("a completion queue of {cqe} entries: the device has 1 to {max}")));
    }
    Ok(())
}

impl CompletionQueue for CqObject {
    fn cq_num(&self) -> u32 {
        self.cq_num
    }

    fn cqe(&self) -> u32 {
        self.ring.capacity()
    }

    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        self.core.home().check("completion queue")?;
        let mut polled = self.ring.poll(out);
        if polled == Polled::Some(0) && !out.is_empty() && self.core.poll() {
            polled = self.ring.poll(out);
        }
        match polled {
            Polled::Some(count) => Ok(count),
            Polled::Overrun => Err(VerbsError::misuse(
                Errno::EIO,
                format!(
                    "completion queue {} has overrun: it held {} entries and more completed; its QPs are in error. Make it \
                     larger than all WRs that can be outstanding",
                    self.cq_num,
                    self.ring.capacity()
                ),
            )),
        }
    }

    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.check()?;
        if self.ring.req_notify(solicited_only)
            && let Some(channel) = &self.channel
        {
            channel.events.push(self.cq_num);
            channel.events.wake();
        }
        self.core.someone_sleeps();
        Ok(())
    }

    fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        check_cqe(&self.core, cqe)?;
        let mut held = self.core.enter()?;
        self.check()?;
        held.engine.nic().resize_cq(self.cq_num, cqe)
    }

    fn modify_moderation(&self, count: u16, period_us: u16) -> Result<(), VerbsError> {
        let mut held = self.core.enter()?;
        self.check()?;
        held.engine.nic().moderate_cq(self.cq_num, count, period_us)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.alive.is_inherited() {
            return Ok(());
        }
        let held = self.core.enter()?;
        self.check()?;
        self.end(held)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CqObject {
    fn drop(&mut self) {
        if self.alive.end() {
            // QPs and SRQs hold their CQs, so nobody uses it any more.
            let _ = self.end(self.core.lock());
        }
    }
}

/// What the CQs of a channel hold.
#[derive(Debug)]
pub(crate) struct ChannelShared {
    events: Arc<Channel>,
    cqs: Own<Mutex<HashMap<u32, Weak<CqObject>>>>,
    alive: Alive,
}

impl ChannelShared {
    fn cqs(&self) -> MutexGuard<'_, HashMap<u32, Weak<CqObject>>> {
        self.cqs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A completion channel.
#[derive(Debug)]
pub struct ChannelObject {
    pub(crate) shared: Arc<ChannelShared>,
    pub(super) core: Arc<Core>,
}

impl ChannelObject {
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self, VerbsError> {
        let events = Arc::new(Channel::new()?);
        let shared = ChannelShared { events, cqs: Own::new(Mutex::new(HashMap::new())), alive: Alive::new() };
        Ok(Self { shared: Arc::new(shared), core: core.clone() })
    }
}

impl CompletionChannel for ChannelObject {
    fn fd(&self) -> i32 {
        self.shared.events.fd()
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Arc<dyn CompletionQueue>>, VerbsError> {
        self.shared.alive.check("completion channel")?;
        let end = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut soon = self.core.spin_for(timeout, &self.shared.events);
        if soon.is_none() {
            self.core.someone_sleeps();
        }
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let event = soon.take().map_or_else(|| self.shared.events.wait(left), |event| Ok(Some(event)))?;
            let Some(cq_num) = event else { return Ok(None) };
            // A CQ that was destroyed after its event was pushed has no handle any more: wait for the next one.
            let cq = self.shared.cqs().get(&cq_num).and_then(Weak::upgrade);
            if let Some(cq) = cq {
                return Ok(Some(cq));
            }
        }
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        if self.shared.alive.is_inherited() {
            return Ok(());
        }
        self.shared.alive.check("completion channel")?;
        let users = self.shared.cqs().values().filter(|cq| cq.strong_count() > 0).count();
        if users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the completion channel is used by {users} completion queues: destroy them first"),
            ));
        }
        self.shared.alive.end();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
