//! The ring of a completion queue: one producer (the engine), any number of pollers (one at a time, under a lock of their
//! own).
//!
//! A queue may be made for 262,144 entries and more and mostly stand empty, so storage grows with what the queue really
//! held at once: it is a chain of segments, each twice the one before, of which the producer fills the last and the
//! poller drains the first. When a backlog has been seen once, its segment stays, and nothing is allocated any more.
//!
//! Arming (clause 11.4.2.2): the poller stores what it waits for, then looks at the queue; the producer stores the completion, then
//! looks at what is waited for. A full fence in between on both sides makes sure that at least one of them sees the
//! other, so "request, poll once more, sleep" loses no wake-up.

use std::sync::{Arc, OnceLock};

use scalefabric_verbs::{Qpn, WcStatus, WorkCompletion};

use super::cqe::Cqe;
use crate::ring::Latch;
use crate::ring::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, full_fence};

/// Entries of the first segment.
const FIRST_SEGMENT: u64 = if cfg!(loom) { 2 } else { 64 };
/// Segments, at most: the last alone would hold more than any queue may.
const SEGMENTS: usize = 24;

/// Makes a queue of at least `cqe` entries (at least 1). `events`: whether it has a channel; without one, arming does
/// nothing and placing a completion needs no fence.
pub fn completion_queue(cqe: u32, events: bool) -> (Producer, Arc<CompletionRing>) {
    completion_queue_with(cqe, events, Shape::default())
}

/// What a queue does beyond keeping completions in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Shape {
    /// Each completion carries the time at which it was placed.
    pub stamped: bool,
    /// It overruns only beyond so many, whatever its size; 0: beyond its size.
    pub at_least: u32,
    /// Completions are shown to the poller so many at a time; 0 and 1: at once.
    pub batch: u32,
}

/// As [`completion_queue`], of that shape.
pub fn completion_queue_with(cqe: u32, events: bool, shape: Shape) -> (Producer, Arc<CompletionRing>) {
    let segment = Arc::new(Segment::new(0, FIRST_SEGMENT));
    let ring = Arc::new(CompletionRing {
        capacity: AtomicU32::new(cqe.max(1)),
        placed: AtomicU64::new(0),
        taken: AtomicU64::new(0),
        armed: AtomicU8::new(UNARMED),
        told: AtomicU64::new(0),
        solicited: AtomicU64::new(0),
        overrun: AtomicBool::new(false),
        events,
        latch: Latch::new(),
        segments: [const { OnceLock::new() }; SEGMENTS],
        first: AtomicU32::new(0),
    });
    let _ = ring.segments[0].set(segment.clone());
    (Producer { ring: ring.clone(), segment, last: 0, placed: 0, shape, hidden: 0, solicited: false }, ring)
}

/// A part of the storage. It holds the entries from `start` to `end`, each at its number modulo its size.
#[derive(Debug)]
struct Segment {
    start: u64,
    entries: Box<[Cqe]>,
    /// First entry that is in the next segment; `u64::MAX` while this is the last.
    end: AtomicU64,
}

impl Segment {
    fn new(start: u64, size: u64) -> Self {
        let entries = (0..size).map(|_| Cqe::new()).collect();
        Self { start, entries, end: AtomicU64::new(u64::MAX) }
    }

    #[inline]
    fn entry(&self, number: u64) -> &Cqe {
        &self.entries[(number & (self.entries.len() as u64 - 1)) as usize]
    }
}

/// What came of placing a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pushed {
    /// It is there.
    Quiet,
    /// It is there, and the poller will see it with the rest of its batch: [`Producer::show`] it in a while.
    Hidden,
    /// It is there and the queue was armed for it: tell the channel (once: the queue is disarmed now).
    Notify,
    /// There was no room: the queue is in error for ever. Raise CQ_ERR and put the QPs that use it into error. If
    /// `notify`, tell the channel, so that a sleeper finds the error. Later pushes are `Lost`.
    Overrun {
        /// The queue was armed.
        notify: bool,
    },
    /// The queue had overrun before.
    Lost,
}

const UNARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED_NEXT: u8 = 2;

/// The engine's side.
#[derive(Debug)]
pub struct Producer {
    ring: Arc<CompletionRing>,
    segment: Arc<Segment>,
    /// Its index.
    last: usize,
    placed: u64,
    shape: Shape,
    /// The last so many that were placed are not shown yet.
    hidden: u32,
    /// A solicited or failed one is among them.
    solicited: bool,
}

impl Producer {
    /// Entries of the queue.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Whether its completions carry the time.
    pub fn is_stamped(&self) -> bool {
        self.shape.stamped
    }

    /// As [`Producer::push_at`], in a queue without timestamps.
    pub fn push(&mut self, wc: &WorkCompletion, solicited: bool) -> Pushed {
        self.push_at(wc, solicited, 0)
    }

    /// Places a completion. `solicited`: it also satisfies a request for solicited completions only (a failed one does
    /// so by itself). `now_ns`: the time, for queues with timestamps.
    #[inline(always)]
    pub fn push_at(&mut self, wc: &WorkCompletion, solicited: bool, now_ns: u64) -> Pushed {
        if self.ring.overrun.load(Ordering::Relaxed) {
            return Pushed::Lost;
        }
        // Acquire pairs with the poller's release: its reads of an entry come before our writes to it.
        let taken = self.ring.taken.load(Ordering::Acquire);
        if self.placed - taken >= u64::from(self.ring.capacity.load(Ordering::Relaxed).max(self.shape.at_least)) {
            self.hidden = 0;
            self.ring.placed.store(self.placed, Ordering::Release);
            self.ring.overrun.store(true, Ordering::Release);
            return Pushed::Overrun { notify: self.ring.events && self.tell(true) };
        }
        if self.placed - taken.max(self.segment.start) >= self.segment.entries.len() as u64 {
            self.grow();
        }
        let entry = self.segment.entry(self.placed);
        entry.write(wc);
        if self.shape.stamped {
            entry.stamp(now_ns);
        }
        self.placed += 1;
        let failed = wc.status != WcStatus::Success;
        if self.shape.batch > 1 {
            self.hidden += 1;
            self.solicited |= solicited || failed;
            // A failure ends a batch: nobody waits for what may never come.
            if !failed && self.hidden < self.shape.batch {
                return Pushed::Hidden;
            }
            return if self.show() { Pushed::Notify } else { Pushed::Quiet };
        }
        self.ring.placed.store(self.placed, Ordering::Release);
        if self.ring.events && self.tell(solicited || failed) { Pushed::Notify } else { Pushed::Quiet }
    }

    /// Shows the poller what is hidden. True if the queue was armed for it: tell the channel.
    pub fn show(&mut self) -> bool {
        if self.hidden == 0 {
            return false;
        }
        self.hidden = 0;
        self.ring.placed.store(self.placed, Ordering::Release);
        let solicited = core::mem::take(&mut self.solicited);
        self.ring.events && self.tell(solicited)
    }

    /// True, once, if the poller waits for what was just placed.
    fn tell(&self, solicited: bool) -> bool {
        if solicited {
            self.ring.solicited.store(self.placed, Ordering::Release);
        }
        full_fence();
        let wanted = if solicited { ARMED_SOLICITED } else { ARMED_NEXT };
        self.ring.armed.load(Ordering::Relaxed) >= wanted && self.ring.disarm(self.placed)
    }

    #[cold]
    fn grow(&mut self) {
        let next = Arc::new(Segment::new(self.placed, self.segment.entries.len() as u64 * 2));
        self.last += 1;
        // The poller looks there only after it has seen `end`.
        let _ = self.ring.segments[self.last].set(next.clone());
        self.segment.end.store(self.placed, Ordering::Release);
        self.segment = next;
    }

    /// Changes the size. False (and no change) if the queue holds more than `cqe` now.
    pub fn resize(&mut self, cqe: u32) -> bool {
        let fits = u64::from(cqe) >= self.placed - self.ring.taken.load(Ordering::Acquire) && cqe > 0;
        if fits {
            self.ring.capacity.store(cqe, Ordering::Relaxed);
        }
        fits
    }

    /// The other side.
    pub fn ring(&self) -> &Arc<CompletionRing> {
        &self.ring
    }

    /// As [`CompletionRing::forget_qp`], what is hidden included.
    pub fn forget_qp(&mut self, qpn: Qpn) {
        // Nobody takes them before they are marked: a poller needs the lock that is taken there, and one that has it now
        // may see completions of the QP as it could a moment ago.
        self.ring.placed.store(self.placed, Ordering::Release);
        self.hidden = 0;
        self.ring.forget_qp(qpn);
    }
}

/// What polling found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// So many completions, 0 if it is empty.
    Some(usize),
    /// Empty, and it has overrun: completions were lost.
    Overrun,
}

/// The side that polls.
#[derive(Debug)]
pub struct CompletionRing {
    capacity: AtomicU32,
    /// Completions placed since the beginning. Only the engine writes it.
    placed: AtomicU64,
    /// Completions taken since the beginning. Only the poller writes it.
    taken: AtomicU64,
    armed: AtomicU8,
    /// Completions placed when the last event was raised: a sleeper has heard of them.
    told: AtomicU64,
    /// Completions placed when the last solicited or failed one was. Only the engine writes it.
    solicited: AtomicU64,
    overrun: AtomicBool,
    events: bool,
    /// Of those who poll.
    latch: Latch,
    /// Those that there were; a segment that is drained stays, and all before the last together are no larger than it.
    segments: [OnceLock<Arc<Segment>>; SEGMENTS],
    /// Index of the one from which the next completion is taken. Only the latch's holder uses it.
    first: AtomicU32,
}

impl CompletionRing {
    /// Entries it holds.
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Completions in it now.
    pub fn len(&self) -> u32 {
        // `taken` first: it may only grow towards `placed`.
        let taken = self.taken.load(Ordering::Acquire);
        (self.placed.load(Ordering::Acquire) - taken) as u32
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True once a completion was lost.
    pub fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// Takes up to `out.len()` completions, in order. What was placed before an overrun is still handed out.
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Polled {
        // The cheap look at an empty queue takes no lock.
        if self.taken.load(Ordering::Relaxed) == self.placed.load(Ordering::Acquire) {
            // Read after `placed`: a completion placed before the overrun is not passed over by another poller's look.
            return if self.has_overrun() && self.is_empty() { Polled::Overrun } else { Polled::Some(0) };
        }
        let _held = self.latch.hold();
        let (start, placed) = (self.taken.load(Ordering::Relaxed), self.placed.load(Ordering::Acquire));
        let (mut number, mut count) = (start, 0);
        let mut index = self.first.load(Ordering::Relaxed);
        let mut segment = self.segment(index);
        while number != placed && count < out.len() {
            if number == segment.end.load(Ordering::Acquire) {
                index += 1;
                segment = self.segment(index);
                self.first.store(index, Ordering::Relaxed);
            }
            count += usize::from(segment.entry(number).read_into(&mut out[count]));
            number += 1;
        }
        // Release: our reads come before the producer's next writes to those entries.
        self.taken.store(number, Ordering::Release);
        Polled::Some(count)
    }

    #[inline]
    fn segment(&self, index: u32) -> &Segment {
        self.segments[index as usize].get().expect("a segment that has ended has a next")
    }

    /// Drops the completions of a QP that is destroyed or reset, which must never be seen again (clause 10.2.4.4). The
    /// caller holds the engine's lock, so nothing is placed meanwhile.
    pub fn forget_qp(&self, qpn: Qpn) {
        let _held = self.latch.hold();
        let (start, placed) = (self.taken.load(Ordering::Relaxed), self.placed.load(Ordering::Acquire));
        let mut index = self.first.load(Ordering::Relaxed);
        let mut segment = self.segment(index);
        for number in start..placed {
            if number == segment.end.load(Ordering::Acquire) {
                index += 1;
                segment = self.segment(index);
            }
            if segment.entry(number).qpn() == qpn {
                segment.entry(number).forget();
            }
        }
    }

    /// Asks for one event: at the next completion, or only at a solicited or failed one. A request for the next one is
    /// never weakened by a later one for solicited ones.
    ///
    /// True if that one is there already: it came after the last poll, and no event told of it. Raise the event at once;
    /// the queue is disarmed again.
    #[must_use]
    pub fn req_notify(&self, solicited_only: bool) -> bool {
        if !self.events {
            return false;
        }
        let wanted = if solicited_only { ARMED_SOLICITED } else { ARMED_NEXT };
        let wanted = self.armed.fetch_max(wanted, Ordering::AcqRel).max(wanted);
        // Against the fence of `tell`: either the engine sees the request, or we see what it placed.
        full_fence();
        let come = if wanted == ARMED_SOLICITED { &self.solicited } else { &self.placed }.load(Ordering::Acquire);
        let heard_of = self.taken.load(Ordering::Acquire).max(self.told.load(Ordering::Acquire));
        come > heard_of && self.disarm(come)
    }

    /// Gives the event to exactly one of those who would raise it.
    fn disarm(&self, placed: u64) -> bool {
        let mine = self.armed.swap(UNARMED, Ordering::AcqRel) != UNARMED;
        if mine {
            self.told.fetch_max(placed, Ordering::AcqRel);
        }
        mine
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use scalefabric_verbs::{RKey, WcFlags, WcOpcode};

    pub(super) fn wc(wr_id: u64) -> WorkCompletion {
        WorkCompletion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            invalidated_rkey: RKey(0),
            qp_num: Qpn::new(wr_id as u32 % 3),
            src_qp: Qpn::new(0),
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
            timestamp_ns: 0,
        }
    }

    fn poll(ring: &CompletionRing, max: usize) -> Vec<u64> {
        let mut out = vec![wc(0); max];
        match ring.poll(&mut out) {
            Polled::Some(n) => out[..n].iter().map(|w| w.wr_id).collect(),
            Polled::Overrun => panic!("overrun"),
        }
    }

    #[test]
    fn completions_come_in_order_while_storage_grows() {
        let (mut producer, ring) = completion_queue(100_000, false);
        let (mut pushed, mut polled) = (0u64, 0u64);
        // Backlogs that grow and shrink, across several segments.
        for (push, take) in [(10, 3), (200, 50), (1000, 1157), (1, 1), (5000, 20), (3, 4000), (70_000, 70_983)] {
            for _ in 0..push {
                assert_eq!(producer.push(&wc(pushed), false), Pushed::Quiet);
                pushed += 1;
            }
            assert_eq!(poll(&ring, take), (polled..polled + take as u64).collect::<Vec<_>>());
            polled += take as u64;
        }
        assert!(ring.is_empty());
        let size = producer.segment.entries.len();
        for i in pushed..pushed + 1_000_000 {
            let _ = producer.push(&wc(i), false);
            assert_eq!(poll(&ring, 2), [i]);
        }
        assert_eq!(producer.segment.entries.len(), size, "a backlog seen once needs no more storage");
    }

    #[test]
    fn an_empty_queue_of_a_quarter_million_entries_is_small() {
        let (producer, ring) = completion_queue(262_144, true);
        assert_eq!(ring.capacity(), 262_144);
        assert_eq!(producer.segment.entries.len(), 64);
    }

    #[test]
    fn overrun_is_told_once_and_stays() {
        let (mut producer, ring) = completion_queue(2, true);
        let _ = ring.req_notify(true);
        assert_eq!(producer.push(&wc(0), false), Pushed::Quiet);
        assert_eq!(producer.push(&wc(1), false), Pushed::Quiet);
        assert_eq!(producer.push(&wc(2), false), Pushed::Overrun { notify: true });
        assert_eq!(producer.push(&wc(3), true), Pushed::Lost);
        assert_eq!(poll(&ring, 4), [0, 1], "what came before is handed out");
        assert_eq!(ring.poll(&mut [wc(0)]), Polled::Overrun);
        assert_eq!(producer.push(&wc(4), true), Pushed::Lost);
        assert_eq!(ring.poll(&mut [wc(0)]), Polled::Overrun);
    }

    #[test]
    fn a_batch_is_seen_at_once_or_when_it_is_shown() {
        let (mut producer, ring) = completion_queue_with(10, true, Shape { batch: 3, ..Shape::default() });
        let _ = ring.req_notify(false);
        assert_eq!((producer.push(&wc(0), false), producer.push(&wc(1), false)), (Pushed::Hidden, Pushed::Hidden));
        assert!(poll(&ring, 9).is_empty());
        assert_eq!(producer.push(&wc(2), false), Pushed::Notify);
        assert_eq!(poll(&ring, 9), [0, 1, 2]);
        assert_eq!(producer.push(&wc(3), true), Pushed::Hidden);
        let _ = ring.req_notify(true);
        assert!(producer.show() && !producer.show(), "one of them was solicited");
        assert_eq!(poll(&ring, 9), [3]);
        let failed = WorkCompletion { status: WcStatus::WrFlushErr, ..wc(5) };
        assert_eq!((producer.push(&wc(4), false), producer.push(&failed, false)), (Pushed::Hidden, Pushed::Quiet));
        assert_eq!(poll(&ring, 9), [4, 5], "a failure waits for nobody");
        assert_eq!((producer.push(&wc(6), false), producer.push(&wc(7), false)), (Pushed::Hidden, Pushed::Hidden));
        producer.forget_qp(Qpn::new(0));
        assert_eq!(poll(&ring, 9), [7], "6 is of the QP that is forgotten, and hidden ones are found, too");
    }

    #[test]
    fn hidden_completions_are_handed_out_before_an_overrun_is_told() {
        let (mut producer, ring) = completion_queue_with(2, false, Shape { batch: 8, ..Shape::default() });
        assert_eq!((producer.push(&wc(0), false), producer.push(&wc(1), false)), (Pushed::Hidden, Pushed::Hidden));
        assert_eq!(producer.push(&wc(2), false), Pushed::Overrun { notify: false });
        assert_eq!(poll(&ring, 9), [0, 1]);
        assert_eq!(ring.poll(&mut [wc(0)]), Polled::Overrun);
    }

    #[test]
    fn a_queue_that_may_not_overrun_grows_up_to_its_limit() {
        let (mut producer, ring) = completion_queue_with(1, false, Shape { at_least: 3, ..Shape::default() });
        for i in 0..3 {
            assert_eq!(producer.push(&wc(i), false), Pushed::Quiet);
        }
        assert_eq!(producer.push(&wc(3), false), Pushed::Overrun { notify: false });
        assert_eq!((ring.capacity(), poll(&ring, 9)), (1, vec![0, 1, 2]));
    }

    #[test]
    fn only_a_stamped_queue_tells_the_time() {
        for (stamped, time) in [(true, 77), (false, 0)] {
            let (mut producer, ring) = completion_queue_with(1, false, Shape { stamped, ..Shape::default() });
            let _ = producer.push_at(&wc(1), false, 77);
            let mut out = [wc(0)];
            assert_eq!((ring.poll(&mut out), out[0].timestamp_ns), (Polled::Some(1), time));
        }
    }

    #[test]
    fn exactly_full_is_no_overrun() {
        let (mut producer, ring) = completion_queue(3, false);
        for i in 0..10 {
            for j in 0..3 {
                assert_eq!(producer.push(&wc(3 * i + j), false), Pushed::Quiet);
            }
            assert_eq!(poll(&ring, 3).len(), 3);
        }
    }

    #[test]
    fn one_request_makes_one_event() {
        let (mut producer, ring) = completion_queue(10, true);
        assert_eq!(producer.push(&wc(0), true), Pushed::Quiet, "not armed");
        assert_eq!(ring.poll(&mut [wc(9)]), Polled::Some(1));
        assert!(!ring.req_notify(false), "nothing is there");
        assert_eq!(producer.push(&wc(1), false), Pushed::Notify);
        assert_eq!(producer.push(&wc(2), false), Pushed::Quiet);
    }

    #[test]
    fn what_came_between_the_last_poll_and_the_request_makes_its_event_at_once() {
        let (mut producer, ring) = completion_queue(10, true);
        assert_eq!(producer.push(&wc(0), false), Pushed::Quiet, "not armed");
        assert!(ring.req_notify(false), "it is there, and nobody has heard of it");
        assert!(!ring.req_notify(false), "the event told of it, taken or not");
        assert_eq!(producer.push(&wc(1), false), Pushed::Notify);
        assert!(!ring.req_notify(false));
        assert_eq!(producer.push(&wc(2), false), Pushed::Notify);
        assert_eq!(producer.push(&wc(3), false), Pushed::Quiet);
        assert!(ring.req_notify(false), "it came behind the event");
    }

    #[test]
    fn a_request_for_solicited_ones_looks_for_solicited_ones_that_are_there() {
        let (mut producer, ring) = completion_queue(10, true);
        assert_eq!(producer.push(&wc(0), false), Pushed::Quiet);
        assert!(!ring.req_notify(true), "not solicited");
        assert_eq!(ring.poll(&mut [wc(9)]), Polled::Some(1));
        assert_eq!(producer.push(&wc(1), true), Pushed::Notify);
        assert_eq!(producer.push(&wc(2), true), Pushed::Quiet);
        assert!(ring.req_notify(true));
        assert!(!ring.req_notify(true));
    }

    #[test]
    fn a_request_for_solicited_ones_waits_for_a_solicited_or_failed_one() {
        let (mut producer, ring) = completion_queue(10, true);
        assert!(!ring.req_notify(true));
        assert_eq!(producer.push(&wc(0), false), Pushed::Quiet);
        assert_eq!(producer.push(&wc(1), true), Pushed::Notify);
        assert!(!ring.req_notify(true));
        let failed = WorkCompletion { status: WcStatus::WrFlushErr, ..wc(2) };
        assert_eq!(producer.push(&failed, false), Pushed::Notify);
        assert!(!ring.req_notify(false));
        assert!(!ring.req_notify(true));
        assert_eq!(producer.push(&wc(3), false), Pushed::Notify, "not weakened");
    }

    #[test]
    fn resize_is_refused_below_what_it_holds() {
        let (mut producer, ring) = completion_queue(4, false);
        for i in 0..4 {
            let _ = producer.push(&wc(i), false);
        }
        assert!(!producer.resize(3));
        assert!(producer.resize(5));
        assert_eq!(producer.push(&wc(4), false), Pushed::Quiet);
        assert_eq!(poll(&ring, 4), [0, 1, 2, 3]);
        assert!(!producer.resize(0));
        assert!(producer.resize(1));
        assert_eq!((ring.capacity(), ring.len()), (1, 1));
        assert_eq!(producer.push(&wc(5), false), Pushed::Overrun { notify: false });
    }

    #[test]
    fn completions_of_a_forgotten_qp_are_never_seen() {
        let (mut producer, ring) = completion_queue(1000, false);
        for i in 0..300 {
            let _ = producer.push(&wc(i), false);
        }
        assert_eq!(poll(&ring, 10).len(), 10);
        ring.forget_qp(Qpn::new(1));
        assert_eq!(poll(&ring, 1000), (10..300).filter(|i| i % 3 != 1).collect::<Vec<_>>());
        assert_eq!(ring.len(), 0);
    }
}
