//! Memory that is lent by windows of type 2: each loan's key is that of a window which is bound to the QP of the lane in use, so that it opens the memory for this
//! connection only, and new keys need no new registration. A window dies with its QP: on another lane all are bound anew, and the peer, which knows of each key
//! whose lane it is, waits for the new ones. It decides nothing about when keys are made anew.

use super::hub::Hub;
use super::lend::OFFER_OVERLAP;
use super::link::{Told, lock};
use super::task::Task;
use crate::buffer::RemoteRange;
use crate::session::{Input, LaneId, MemoryOffer};
use scalefabric_verbs::{
    AccessFlags, BindMw, Errno, MemoryRegion, MemoryWindow, MwType, RKey, SendFlags, SendOp, SendWr,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// `MEM_WINDOW_TYPE_2A` and `MEM_WINDOW_TYPE_2B` of `enum ibv_device_cap_flags`.
const TYPE_2: u32 = 1 << 23 | 1 << 24;

/// What a window grants.
const RIGHTS: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ).union(AccessFlags::REMOTE_ATOMIC);

/// `wr_id`s of binds have this bit, and the number of the binding below it.
pub(crate) const BIND: u64 = 1 << 63;

impl Hub {
    /// Whether the device has windows of type 2.
    pub fn has_windows(&self) -> bool {
        self.attr.device_cap_flags & TYPE_2 != 0
    }
}

/// Somebody who waits until the keys of before may go, and how long they may stay.
pub(crate) type Asked = (Duration, oneshot::Sender<bool>);

/// A window, and what it is bound to. Deallocated when it is dropped, before it lets go of the region.
#[derive(Debug)]
struct Window {
    id: u32,
    range: RemoteRange,
    mw: Arc<dyn MemoryWindow>,
    region: Arc<dyn MemoryRegion>,
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.mw.destroy();
    }
}

/// Windows that are being bound.
#[derive(Debug)]
struct Binding {
    lane: LaneId,
    domain: usize,
    number: u64,
    /// Not posted yet.
    waiting: VecDeque<Window>,
    posted: Vec<Window>,
    done: usize,
    /// Those of a binding that this one came before the end of: what is posted may wait in the queue behind other work, and would fail there without its window.
    replaced: Vec<Window>,
}

/// Windows of a connection.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Those whose keys the peer is to use, and those before, until it uses them no more.
    now: Vec<Window>,
    /// With the round of offers that replaced them: a word about an earlier round does not let go of them.
    old: Vec<(u64, Window)>,
    binding: Option<Binding>,
    bindings: u64,
    asked: Vec<Asked>,
    /// The device refused to bind: keys are those of registrations from then on.
    refused: bool,
}

impl Windows {
    /// Whether there is something to look for.
    pub fn is_binding(&self) -> bool {
        self.binding.is_some()
    }

    /// The QPs are gone, and what was begun on them.
    pub fn stop(&mut self) {
        self.binding = None;
    }

    /// Nobody uses the keys from before this round any more, or may.
    pub fn revoke(&mut self, round: u64) {
        self.old.retain(|(replaced_by, _)| *replaced_by > round);
    }

    /// The connection is over.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

impl Task {
    /// Binds all loans to the QP that is posted on, and tells the peer their keys. With `asked`, new keys for those that have some.
    pub(super) fn bind_windows(&mut self, asked: Option<Asked>) {
        self.windows.asked.extend(asked);
        // Without a lane it is done as soon as there is one.
        let Some(id) = lock(&self.link.sender).lane() else { return };
        let Some(lane) = self.lanes.iter().find(|lane| lane.id == id) else { return };
        let (domain, pd) = (lane.domain, lane.hub.pd.clone());
        let mut waiting = VecDeque::new();
        for loan in lock(&self.link.loans).iter().filter(|loan| loan.by_window) {
            let Some((region, range)) = loan.region(domain) else { continue };
            let Ok(mw) = pd.alloc_mw(MwType::Type2) else {
                self.windows.refused = true;
                break;
            };
            // The low byte is the consumer's: another key each time.
            let rkey = mw.rkey().0 & !0xff | mw.rkey().0.wrapping_add(1) & 0xff;
            waiting.push_back(Window { id: loan.id, range: RemoteRange { rkey, ..range }, mw, region });
        }
        if waiting.is_empty() && self.windows.now.is_empty() && !self.windows.refused {
            return self.windows.asked.drain(..).for_each(|(_, revoked)| _ = revoked.send(true));
        }
        self.windows.bindings += 1;
        let number = self.windows.bindings;
        let replaced = self
            .windows
            .binding
            .take()
            .map_or_else(Vec::new, |before| before.posted.into_iter().chain(before.replaced).collect());
        let posted = Vec::new();
        self.windows.binding = Some(Binding { lane: id, domain, number, waiting, posted, done: 0, replaced });
        self.look();
    }

    /// Posts binds as far as there is room, and looks which have been executed.
    pub(super) fn look_at_windows(&mut self) {
        let Some(mut binding) = self.windows.binding.take() else { return };
        if self.windows.refused {
            return self.lend_by_registrations();
        }
        let Some(lane) = self.lanes.iter().find(|lane| lane.id == binding.lane) else { return };
        while let Some(window) = binding.waiting.pop_front() {
            let bind = BindMw {
                mw: &*window.mw,
                rkey: RKey(window.range.rkey),
                mr: Some(&*window.region),
                addr: window.range.addr,
                length: window.range.length,
                access: RIGHTS,
            };
            let mut wr = SendWr::new(BIND | binding.number, SendOp::BindMw(bind));
            wr.flags = SendFlags::SIGNALED;
            match lane.qp.post_send(std::slice::from_ref(&wr)) {
                Ok(()) => binding.posted.push(window),
                // The queue is full of what was posted before.
                Err(error) if error.errno == Errno::ENOMEM => {
                    binding.waiting.push_front(window);
                    break;
                }
                Err(_) => {
                    self.windows.refused = true;
                    return self.lend_by_registrations();
                }
            }
        }
        let (done, failed) = lock(&self.link.sender).take_binds(binding.number);
        binding.done += done;
        if failed {
            // The QP is in ERR by now; on the next one keys are those of registrations.
            self.windows.refused = true;
            let reason = "a window could not be bound: was the memory registered with MW_BIND?".into();
            return self.inputs.push_back(Input::Broken { lane: binding.lane, reason });
        }
        if binding.waiting.is_empty() && binding.done == binding.posted.len() {
            self.offer_windows(binding);
        } else {
            self.windows.binding = Some(binding);
        }
    }

    fn offer_windows(&mut self, binding: Binding) {
        let Binding { lane, domain, posted, replaced, .. } = binding;
        let offer = |window: &Window| MemoryOffer {
            id: window.id,
            domain: domain as u8,
            lane: Some(lane),
            range: window.range,
        };
        let offers: Vec<MemoryOffer> = posted.iter().map(offer).collect();
        let mut before = std::mem::replace(&mut self.windows.now, posted);
        before.extend(replaced);
        self.offer(&offers, before);
    }

    /// The device has no windows after all.
    fn lend_by_registrations(&mut self) {
        let mut loans = lock(&self.link.loans);
        loans.iter_mut().for_each(|loan| loan.by_window = false);
        let offers: Vec<MemoryOffer> =
            loans.iter().filter_map(|loan| loan.offers(self.link.docks.len())).flatten().collect();
        drop(loans);
        let before = std::mem::take(&mut self.windows.now);
        self.offer(&offers, before);
    }

    /// Tells the peer; `before` are the windows that it used until now.
    fn offer(&mut self, offers: &[MemoryOffer], before: Vec<Window>) {
        let overlap = self.windows.asked.iter().map(|(overlap, _)| *overlap).max().unwrap_or(OFFER_OVERLAP);
        let offers = self.link.replace_offers(offers);
        let overlap_ns = u64::try_from(overlap.as_nanos()).unwrap_or(u64::MAX);
        let asked: Vec<_> = self.windows.asked.drain(..).map(|(_, revoked)| revoked).collect();
        let round = self.give_offer(Input::Offer { offers, overlap_ns }, asked);
        self.windows.old.extend(before.into_iter().map(|window| (round, window)));
    }
}

/// Tells a connection's task to bind.
pub(crate) fn ask_to_bind(link: &super::link::Link, asked: Option<Asked>) -> Result<(), crate::FabricError> {
    link.tell.send(Told::Bind(asked)).map_err(|_| link.closed_error())
}
