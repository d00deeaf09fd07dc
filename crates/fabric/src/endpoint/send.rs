//! The sending half of a connection: operations go into the log, are posted in chains with one doorbell, and end in order. Here stands when something is
//! signalled, and how much may be outstanding. It decides nothing about lanes: it is told which to post on.

use super::cell::Cells;
use super::completion::Completion;
use super::log::{Bounds, Kind, Log, Offered, Report, Resolved, Stage};
use super::operation::Operation;
use super::traffic::Traffic;
use super::window::BIND;
use crate::buffer::RemoteRange;
use crate::error::FabricError;
use crate::operation::Outcome;
use crate::session::{LaneId, MemoryOffer};
use scalefabric_verbs::{CompletionQueue, Errno, QueuePair, RKey, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Most work requests behind one doorbell.
const CHAIN: usize = 16;

/// `wr_id` of the WR that marks the end of a drain.
pub(crate) const MARKER: u64 = u64::MAX;

/// The lane that is posted on.
pub(crate) struct Outlet {
    pub lane: LaneId,
    /// The device it is on, and the one that the peer's QP is on: their keys open memory.
    pub domain: usize,
    pub peer_domain: u8,
    pub qp: Arc<dyn QueuePair>,
    /// PSN of the next operation.
    pub psn: u32,
    /// Bytes of a packet.
    pub mtu: u32,
    /// READs and atomics that may be outstanding.
    pub max_rd_atomic: u8,
}

/// Sending half.
pub(crate) struct Sender {
    /// By device: queues on which operations end.
    cqs: Vec<(usize, Arc<dyn CompletionQueue>)>,
    pub log: Log,
    pub bounds: Bounds,
    outlet: Option<Outlet>,
    /// The lane is there, but nothing more may be posted on it.
    held: bool,
    /// The next entry to post.
    next: u64,
    /// Messages posted, or known to be executed, since the connection began.
    pub messages: u64,
    /// Messages known to be executed.
    pub executed: u64,
    posted: usize,
    rd_atomics: u32,
    unsignalled: u32,
    /// Markers of a drain that came back.
    pub markers: usize,
    /// Binds of windows that were executed, and whether they could be.
    binds: Vec<(u64, bool)>,
    done: VecDeque<Completion>,
    pub cells: Cells,
    offers: Vec<MemoryOffer>,
    /// The peer's device whose keys are the right ones.
    peer_domain: u8,
    /// The round of the offers, and the entry before which operations may use older ones.
    pub round: u64,
    pub keys_idle_at: Option<u64>,
    pub wakers: Vec<Waker>,
    pub closed: Option<FabricError>,
    pub repeated: u64,
    pub in_doubt: u64,
    pub traffic: Arc<Traffic>,
}

/// What a look at the queue found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Something ended.
    pub ended: bool,
    /// Of the lane in use an operation failed.
    pub broken: Option<(LaneId, WcStatus)>,
}

impl Sender {
    pub fn new(cq: Arc<dyn CompletionQueue>, depth: u32, bounds: Bounds) -> Self {
        Self {
            cqs: vec![(0, cq)],
            log: Log::new(depth),
            bounds,
            outlet: None,
            held: false,
            next: 0,
            messages: 0,
            executed: 0,
            posted: 0,
            rd_atomics: 0,
            unsignalled: 0,
            markers: 0,
            binds: Vec::new(),
            done: VecDeque::with_capacity(depth as usize),
            cells: Cells::new(depth),
            offers: Vec::new(),
            peer_domain: 0,
            round: 0,
            keys_idle_at: None,
            wakers: Vec::with_capacity(4),
            closed: None,
            repeated: 0,
            in_doubt: 0,
            traffic: Arc::default(),
        }
    }

    /// Operations may end on this device from now on.
    pub fn attach(&mut self, domain: usize, cq: &Arc<dyn CompletionQueue>) {
        if !self.cqs.iter().any(|(known, _)| *known == domain) {
            self.cqs.push((domain, cq.clone()));
        }
    }

    /// There are lanes on these devices only.
    pub fn detach(&mut self, keep: impl Fn(usize) -> bool) {
        self.cqs.retain(|(domain, _)| keep(*domain));
    }

    /// The `index`th of the queues on which operations end.
    pub fn queue(&self, index: usize) -> Option<Arc<dyn CompletionQueue>> {
        self.cqs.get(index).map(|(_, cq)| cq.clone())
    }

    /// Takes operations in, as many as there is room for, and posts what may be posted.
    pub fn post(&mut self, operations: &[Operation<'_>]) -> Result<usize, FabricError> {
        self.check_open()?;
        let room = self.log.room().min(self.done.capacity().saturating_sub(self.done.len() + self.log.len()));
        let count = operations.len().min(room);
        for (index, operation) in operations[..count].iter().enumerate() {
            let number = self.log.tail + index as u64;
            let bounds = self.bounds;
            if let Err(error) = self.log.get_mut(number).fill(operation, &bounds) {
                for taken in 0..index {
                    self.log.get_mut(self.log.tail + taken as u64).release();
                }
                return Err(if operations.len() == 1 { error } else { error.during(format!("operation {index}")) });
            }
        }
        self.log.tail += count as u64;
        self.pump();
        Ok(count)
    }

    /// Takes one operation in, for somebody who waits for it. `None`: no room.
    pub fn post_for_cell(&mut self, operation: &Operation<'_>) -> Result<Option<u32>, FabricError> {
        self.check_open()?;
        if self.log.room() == 0 || self.done.capacity() <= self.done.len() + self.log.len() {
            return Ok(None);
        }
        let Some(cell) = self.cells.claim() else { return Ok(None) };
        let (tail, bounds) = (self.log.tail, self.bounds);
        let slot = self.log.get_mut(tail);
        if let Err(error) = slot.fill(operation, &bounds) {
            self.cells.free(cell);
            return Err(error);
        }
        slot.report = Report::Cell(cell);
        self.log.tail += 1;
        self.pump();
        Ok(Some(cell))
    }

    /// Posts a signal behind operations that have none, so that their end becomes known. True if everything has ended.
    pub fn settle(&mut self) -> bool {
        if self.log.len() == 0 {
            return true;
        }
        let last = self.log.get(self.log.tail - 1);
        if last.stage == Stage::Posted && !last.signalled() && self.log.room() > 0 && !self.held {
            self.probe();
        }
        false
    }

    /// Posts an operation without effect, to see whether the lane lives; its number. `None`: there is no lane, or no room.
    pub fn probe(&mut self) -> Option<u64> {
        if self.log.room() == 0 || self.outlet.is_none() || self.closed.is_some() {
            return None;
        }
        let (tail, bounds) = (self.log.tail, self.bounds);
        self.log.get_mut(tail).fill_probe(&bounds);
        self.log.tail += 1;
        self.pump();
        Some(tail)
    }

    /// Whether the end of an operation is known.
    pub fn has_ended(&self, number: u64) -> bool {
        !self.log.contains(number) || matches!(self.log.get(number).stage, Stage::Ended(_))
    }

    fn check_open(&self) -> Result<(), FabricError> {
        match &self.closed {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Posts what waits, as far as the lane and the flow control allow.
    pub fn pump(&mut self) {
        while self.next < self.log.tail && self.outlet.is_some() && !self.held {
            let before = self.next;
            if !self.post_chain() || self.next == before {
                return;
            }
        }
    }

    /// Posts one chain; false if nothing more can be posted now.
    fn post_chain(&mut self) -> bool {
        let Some(outlet) = &mut self.outlet else { return false };
        let mut numbers = [0u64; CHAIN];
        let mut count = 0;
        let force = (self.log.room() + self.log.len()).div_ceil(4) as u32;
        let keys = self.bounds.keys;
        let (mut full, mut number) = (false, self.next);
        // Somebody wants to hear of an operation that has no signal yet.
        let mut owed = false;
        while count < CHAIN && number < self.log.tail {
            let offers = &self.offers;
            let slot = self.log.get_mut(number);
            if slot.stage != Stage::Waiting {
                number += 1;
                continue;
            }
            let rd_atomic = slot.kind.is_rd_atomic();
            if rd_atomic && self.rd_atomics >= u32::from(outlet.max_rd_atomic) {
                full = true;
                break;
            }
            match slot.resolve_remote(|id| offer_of(offers, id, outlet.peer_domain, outlet.lane)) {
                Resolved::Yes => {}
                Resolved::Later => {
                    full = true;
                    break;
                }
                Resolved::No => {
                    slot.stage = Stage::Ended(Outcome::NotDone(WcStatus::RemAccessErr));
                    number += 1;
                    continue;
                }
            }
            if (slot.keys != keys || slot.domain != outlet.domain) && !slot.renew_local(keys, outlet.domain) {
                // Its memory is not registered with the device that the connection is on by now.
                slot.stage = Stage::Ended(Outcome::NotDone(WcStatus::LocProtErr));
                number += 1;
                continue;
            }
            let psns = if slot.kind.is_atomic() { 1 } else { slot.length.div_ceil(outlet.mtu).max(1) };
            let rd_full = rd_atomic && self.rd_atomics + 1 >= u32::from(outlet.max_rd_atomic).div_ceil(2);
            let wanted = matches!(slot.report, Report::Cell(_)) || slot.kind == Kind::Probe;
            let signalled = wanted || rd_full || self.unsignalled + 1 >= force;
            owed = !signalled && (owed || slot.report == Report::Queue);
            slot.mark(outlet.lane, self.messages, outlet.psn, psns, signalled);
            self.messages += u64::from(slot.kind.is_message());
            self.rd_atomics += u32::from(rd_atomic);
            self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
            outlet.psn = (outlet.psn + psns) & 0xff_ffff;
            numbers[count] = number;
            count += 1;
            number += 1;
        }
        let taken = self.next;
        self.next = number;
        if count == 0 {
            self.retire();
            return !full && self.next > taken;
        }
        if owed {
            // The last of a chain tells of all before it.
            self.log.get_mut(numbers[count - 1]).signal();
            self.unsignalled = 0;
        }
        self.posted += count;
        let posted = if count == 1 {
            outlet.qp.post_send(std::slice::from_ref(&self.log.get(numbers[0]).work_request(numbers[0])))
        } else {
            let mut chain = [SendWr::new(0, SendOp::Send); CHAIN];
            for (wr, number) in chain.iter_mut().zip(&numbers[..count]) {
                *wr = self.log.get(*number).work_request(*number);
            }
            outlet.qp.post_send(&chain[..count])
        };
        if let Err(error) = posted {
            self.take_back(&numbers[error.index.min(count - 1)..count], error.errno);
            return false;
        }
        !full
    }

    /// The QP refused these: a full queue waits, anything else is the first one's end.
    fn take_back(&mut self, numbers: &[u64], errno: Errno) {
        self.posted -= numbers.len();
        let Some(&first) = numbers.first() else { return };
        for &number in numbers {
            let slot = self.log.get_mut(number);
            slot.stage = Stage::Waiting;
            let (message, rd_atomic) = (slot.kind.is_message(), slot.kind.is_rd_atomic());
            self.messages -= u64::from(message);
            self.rd_atomics -= u32::from(rd_atomic);
        }
        let psn = self.log.get(first).psn;
        if let Some(outlet) = &mut self.outlet {
            outlet.psn = psn;
        }
        self.next = first;
        if errno != Errno::ENOMEM {
            self.log.get_mut(first).stage = Stage::Ended(Outcome::NotDone(WcStatus::LocQpOpErr));
            self.retire();
        }
    }

    /// Takes completions. In order, so that one of them ends all before it.
    pub fn poll(&mut self) -> Result<Found, FabricError> {
        let mut found = Found::default();
        let mut some = [WorkCompletion::default(); CHAIN];
        for index in 0..self.cqs.len() {
            loop {
                let count = self.cqs[index].1.poll(&mut some)?;
                for wc in &some[..count] {
                    self.take(wc, &mut found);
                }
                if count < some.len() {
                    break;
                }
            }
        }
        if found.ended {
            self.retire();
            self.pump();
        }
        Ok(found)
    }

    fn take(&mut self, wc: &WorkCompletion, found: &mut Found) {
        if wc.wr_id == MARKER {
            self.markers += 1;
            return;
        }
        if wc.wr_id & BIND != 0 {
            // What was flushed is bound anew on the next lane.
            if wc.status != WcStatus::WrFlushErr {
                self.binds.push((wc.wr_id, wc.status == WcStatus::Success));
            }
            return;
        }
        let number = wc.wr_id;
        if !self.log.contains(number) || self.log.get(number).stage != Stage::Posted {
            return;
        }
        let lane = self.log.get(number).lane;
        // What is behind it has been executed: only what fails is always told (clause 10.7.3.1).
        for earlier in self.log.head..number {
            let slot = self.log.get(earlier);
            if slot.stage == Stage::Posted && slot.failed.is_none() {
                let success = slot.success();
                self.finish(earlier, Outcome::Done(success));
            }
        }
        if wc.status == WcStatus::Success {
            let slot = self.log.get(number);
            let wc = if slot.signalled() { *wc } else { slot.success() };
            self.finish(number, Outcome::Done(wc));
        } else {
            self.log.get_mut(number).failed = Some(wc.status);
            if wc.status != WcStatus::WrFlushErr || found.broken.is_none() {
                found.broken = Some((lane, wc.status));
            }
        }
        found.ended = true;
    }

    fn finish(&mut self, number: u64, outcome: Outcome) {
        let slot = self.log.get_mut(number);
        slot.stage = Stage::Ended(outcome);
        self.posted -= 1;
        let (message, rd_atomic) = (slot.kind.is_message(), slot.kind.is_rd_atomic());
        if message && outcome.is_done() {
            self.executed = slot.message + 1;
        }
        if rd_atomic {
            self.rd_atomics = self.rd_atomics.saturating_sub(1);
        }
    }

    /// Tells of what has ended, in order, and makes room.
    pub fn retire(&mut self) {
        while self.log.head < self.log.tail {
            let head = self.log.head;
            let slot = self.log.get_mut(head);
            let Stage::Ended(outcome) = slot.stage else { break };
            slot.release();
            match slot.kind {
                Kind::Read => self.traffic.read(slot.length.into()),
                _ => self.traffic.sent(slot.length.into()),
            }
            let completion = Completion { context: slot.context, outcome };
            match slot.report {
                // Nobody asked for it.
                _ if slot.kind == Kind::Probe => {}
                Report::Quiet if outcome.is_done() => {}
                Report::Quiet | Report::Queue => self.done.push_back(completion),
                Report::Cell(cell) => self.cells.fill(cell, outcome),
            }
            if matches!(outcome, Outcome::InDoubt(_)) {
                self.in_doubt += 1;
            }
            self.log.head += 1;
            self.next = self.next.max(self.log.head);
        }
    }

    /// Completions for who polls.
    pub fn take_done(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.done.len());
        for (to, from) in out.iter_mut().zip(self.done.drain(..count)) {
            *to = from;
        }
        count
    }

    /// Posts on this lane from now on.
    pub fn use_lane(&mut self, outlet: Outlet) {
        (self.bounds.domain, self.peer_domain) = (outlet.domain, outlet.peer_domain);
        self.outlet = Some(outlet);
        self.held = false;
        self.next = self.log.head;
        self.unsignalled = 0;
        self.pump();
    }

    /// Posts nothing more on the present lane. What has no signal gets one, so that its end becomes known.
    pub fn hold(&mut self) {
        if self.posted > 0 && self.unsignalled > 0 {
            // Behind everything that is posted; what waits is posted after it, on the new lane.
            self.post_signal();
        }
        self.held = true;
    }

    /// Nothing comes of a hand-over: posts on the present lane again.
    pub fn release(&mut self) {
        self.held = false;
        self.pump();
    }

    fn post_signal(&mut self) {
        let Some(outlet) = &mut self.outlet else { return };
        let Some(last) = (self.log.head..self.next).rev().find(|n| self.log.get(*n).stage == Stage::Posted) else {
            return;
        };
        // It carries the number of the last operation, whose end it tells.
        let mut wr = SendWr::new(last, SendOp::Write { remote_addr: 0, rkey: RKey(0) });
        wr.flags = SendFlags::SIGNALED;
        if outlet.qp.post_send(std::slice::from_ref(&wr)).is_ok() {
            outlet.psn = (outlet.psn + 1) & 0xff_ffff;
            self.unsignalled = 0;
        }
    }

    /// Whether everything that was posted has ended.
    pub fn is_idle(&self) -> bool {
        self.posted == 0
    }

    /// The present lane is gone: nothing is posted until another comes.
    pub fn drop_lane(&mut self) {
        self.outlet = None;
    }

    /// The peer's offers. What is posted from now on uses them.
    pub fn take_offers(&mut self, round: u64, offers: Vec<MemoryOffer>) {
        (self.round, self.offers) = (round, offers);
        self.keys_idle_at = Some(self.next);
    }

    /// Whether nothing uses older keys any more; asked once.
    pub fn keys_are_idle(&mut self) -> Option<u64> {
        let at = self.keys_idle_at?;
        if self.log.head < at {
            return None;
        }
        self.keys_idle_at = None;
        Some(self.round)
    }

    /// Whether of everything that was posted the end is known, as failed if not otherwise.
    pub fn all_failed(&self) -> bool {
        let posted = |slot: &super::log::Slot| slot.stage == Stage::Posted && slot.failed.is_none();
        !(self.log.head..self.log.tail).any(|number| posted(self.log.get(number)))
    }

    /// It is over: what is outstanding is told as what it is, and nothing is taken any more.
    pub fn end(&mut self, error: FabricError) {
        self.closed = Some(error);
        for number in self.log.head..self.log.tail {
            let slot = self.log.get_mut(number);
            let status = slot.failed.unwrap_or(WcStatus::WrFlushErr);
            slot.stage = match slot.stage {
                Stage::Ended(outcome) => Stage::Ended(outcome),
                Stage::Posted if slot.kind.changes_peer() => Stage::Ended(Outcome::InDoubt(status)),
                Stage::Posted | Stage::Waiting => Stage::Ended(Outcome::NotDone(status)),
            };
        }
        self.retire();
    }

    /// The keys of local memory were made anew: what is posted from now on names it by the new ones.
    pub fn renew_local_keys(&mut self) {
        self.bounds.keys = self.bounds.keys.wrapping_add(1);
    }

    /// Whether something that was posted before the last rotation of local keys has not ended.
    pub fn uses_old_keys(&self) -> bool {
        let keys = self.bounds.keys;
        (self.log.head..self.log.tail).any(|number| {
            let slot = self.log.get(number);
            slot.stage == Stage::Posted && slot.keys != keys
        })
    }

    /// What the peer has offered, with the key of the device that it is on.
    pub fn offered(&self, id: u32) -> Option<RemoteRange> {
        match offer_of(&self.offers, id, self.peer_domain, self.lane()?) {
            Offered::Now(range) => Some(range),
            Offered::Later | Offered::Never => None,
        }
    }

    /// The lane that is posted on.
    pub fn lane(&self) -> Option<LaneId> {
        self.outlet.as_ref().map(|outlet| outlet.lane)
    }

    /// How many binds of this number have been executed since it was last asked, and whether one failed.
    pub fn take_binds(&mut self, number: u64) -> (usize, bool) {
        let of_it = |(wr_id, _): &&(u64, bool)| *wr_id == BIND | number;
        let done = self.binds.iter().filter(of_it).filter(|(_, ok)| *ok).count();
        let failed = self.binds.iter().filter(of_it).any(|(_, ok)| !ok);
        self.binds.clear();
        (done, failed)
    }

    /// After a rebuild: bookkeeping of what is outstanding begins anew.
    pub fn restart(&mut self, messages: u64) {
        (self.messages, self.executed) = (messages, messages);
        (self.posted, self.rd_atomics, self.unsignalled, self.next) = (0, 0, 0, self.log.head);
        self.retire();
    }

    /// The peer's offers.
    pub fn offers(&self) -> Vec<MemoryOffer> {
        self.offers.clone()
    }

    /// For a test that is stuck.
    #[cfg(test)]
    pub fn stages(&self) -> String {
        let stages: Vec<String> = (self.log.head..self.log.tail)
            .map(|n| format!("{n} {:?} {:?} {:?}", self.log.get(n).kind, self.log.get(n).stage, self.log.get(n).failed))
            .collect();
        let lane = self.outlet.as_ref().map(|outlet| outlet.lane);
        format!(
            "lane {lane:?} held {} posted {} rd {} next {}: {stages:?}",
            self.held, self.posted, self.rd_atomics, self.next
        )
    }

    pub fn has_completions(&self) -> bool {
        !self.done.is_empty()
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("head", &self.log.head).field("tail", &self.log.tail).finish_non_exhaustive()
    }
}

/// An offer under its number, by the key of a device, or of a window of the lane's QP.
fn offer_of(offers: &[MemoryOffer], id: u32, domain: u8, lane: LaneId) -> Offered {
    let mut found = Offered::Never;
    for offer in offers.iter().filter(|offer| offer.id == id) {
        match offer.lane {
            None if offer.domain == domain => return Offered::Now(offer.range),
            Some(of) if of == lane => return Offered::Now(offer.range),
            Some(_) => found = Offered::Later,
            None => {}
        }
    }
    found
}
