//! What a cache's threads share: the map of kept registrations, those in the making, and those on their way out; and the rules by which a registration is
//! kept, found, and lost. No system call of its own and no unsafe code.
//!
//! **Why no hit is stale.** Memory changes in the kernel first. From before that until the change's event has been read, [`Watch::settled`] says
//! `Changing`. The thread that reads makes `sequence` odd before it reads, and even again when all that it read is applied. A hit asks the kernel first,
//! looks at the sequence next, and at the registration's mark last: whatever had changed before the call began shows in one of the three. A registration
//! in the making stands in `pending` from before its range is watched, so that changes meanwhile reach it, too.
//!
//! **Who may wait for whom.** The reader neither allocates nor frees: that could unmap watched memory, and who unmaps waits for the reader. It never waits
//! for `state` either, but goes on reading while somebody else has it, so that a thread which holds it may allocate and free.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use scalefabric_verbs::{AccessFlags, MemoryRegion, ProtectionDomain};

use super::config::{CacheConfig, CacheReport, Passing, Watching, Weakness};
use super::entry::{Entry, Registered};
use super::interval::IntervalMap;
use super::quarantine::Quarantine;
use super::watch::{Event, Maps, Settled, Watch};
use crate::fork::Home;

/// Times that a thread yields before it gives up to wait for changes to be read.
const PATIENCE: u32 = 20_000;

/// Moved ranges that are remembered until they are not watched any more. One that is forgotten costs who unmaps it a wait, and nothing else.
const STRAYS: usize = 1024;

/// How it learns that memory goes away.
#[derive(Debug)]
pub(super) enum Source {
    Kernel { watch: Watch, maps: Maps },
    Promised,
    Nobody,
}

#[derive(Debug)]
pub(super) struct Core {
    /// Never used again.
    pub id: u64,
    pub pds: Vec<Arc<dyn ProtectionDomain>>,
    pub config: CacheConfig,
    pub home: Home,
    pub is_lent: bool,
    pub source: Source,
    /// Why the source is not the one configured.
    pub reason: Option<String>,
    /// Odd while events are being read and applied.
    sequence: AtomicU64,
    is_broken: AtomicBool,
    /// Counts registrations: the time by which use is recent.
    clock: AtomicU64,
    /// Serial of the last range that some thread discards.
    discards: AtomicU64,
    /// Where each thread that looks something up leaves the last such serial that it saw: it is not in that call.
    pub marks: Mutex<Vec<Weak<Mark>>>,
    state: Mutex<State>,
    /// There is something to deregister, or to stop for.
    pub work: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    map: IntervalMap<Arc<Entry>>,
    pending: Vec<Pending>,
    /// Out of the map, or never in it. Has room for all of the map, so that the reader never allocates.
    pub removed: Vec<Arc<Entry>>,
    /// Given up by us and not by the device.
    pub stuck: Vec<Arc<dyn MemoryRegion>>,
    pub quarantine: Quarantine,
    /// Watched for nothing, since they moved. Has room for some.
    pub strays: Vec<(usize, usize)>,
    bytes: usize,
    pub must_stop: bool,
    pub counts: Counts,
}

/// Of one thread.
#[derive(Debug)]
pub(super) struct Mark {
    pub thread: u32,
    pub serial: AtomicU64,
}

/// A registration in the making.
#[derive(Debug)]
struct Pending {
    id: u64,
    start: usize,
    end: usize,
    is_intact: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Of entries that are deregistered.
    pub finds: u64,
    kept: u64,
    joined: u64,
    evicted: u64,
    invalidated: u64,
    pub passing: Passing,
    pub deregistered: u64,
}

/// What a lookup in the map says.
pub(super) enum Found {
    Entry(Arc<Entry>),
    /// Register this range, and come back with the number.
    Make(u64, usize, usize),
    /// It cannot be kept now.
    Quarantined,
}

impl Core {
    pub fn new(
        pds: Vec<Arc<dyn ProtectionDomain>>,
        config: CacheConfig,
        home: Home,
        source: Source,
        reason: Option<String>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            pds,
            is_lent: config.access.intersects(AccessFlags::REMOTE),
            config,
            home,
            source,
            reason,
            sequence: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            clock: AtomicU64::new(1),
            discards: AtomicU64::new(0),
            marks: Mutex::new(Vec::new()),
            state: Mutex::new(State {
                map: IntervalMap::new(),
                pending: Vec::new(),
                removed: Vec::new(),
                stuck: Vec::new(),
                quarantine: Quarantine::new(),
                strays: Vec::with_capacity(STRAYS),
                bytes: 0,
                must_stop: false,
                counts: Counts::default(),
            }),
            work: Condvar::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The calling thread is here, and not in a call that discards memory.
    #[inline(always)]
    pub fn mark(&self, mark: &Mark) {
        let serial = self.discards.load(Ordering::Acquire);
        if mark.serial.load(Ordering::Relaxed) != serial {
            mark.serial.store(serial, Ordering::Release);
        }
    }

    /// Whether anything is kept at all.
    pub fn keeps(&self) -> bool {
        !matches!(self.source, Source::Nobody)
            && self.config.max_bytes > 0
            && self.config.max_entries > 0
            && !self.is_broken.load(Ordering::Relaxed)
    }

    /// Waits until all that the kernel has changed is applied; false if that does not come to be.
    #[inline(always)]
    fn settle(&self) -> bool {
        match &self.source {
            Source::Kernel { watch, .. } => self.look(watch) == Settled::Yes || self.settle_in_time(watch),
            Source::Promised | Source::Nobody => true,
        }
    }

    /// One look, at the kernel and at what was read of it.
    #[inline(always)]
    fn look(&self, watch: &Watch) -> Settled {
        let settled = if self.config.weakness == Weakness::NoQuestion { Settled::Yes } else { watch.settled() };
        // The kernel's look comes before ours. What is held was held before both: `Entry::hold` is one instruction that nothing overtakes.
        fence(Ordering::Acquire);
        if settled == Settled::Yes && !self.sequence.load(Ordering::SeqCst).is_multiple_of(2) {
            return Settled::Changing;
        }
        settled
    }

    #[cold]
    #[inline(never)]
    fn settle_in_time(&self, watch: &Watch) -> bool {
        for _ in 0..PATIENCE {
            match self.look(watch) {
                Settled::Yes => return true,
                Settled::Broken => return false,
                Settled::Changing => std::thread::yield_now(),
            }
        }
        false
    }

    /// Whether an entry that the caller holds is good: asked last.
    #[inline(always)]
    pub fn confirm(&self, entry: &Entry) -> bool {
        self.settled() && entry.is_live()
    }

    /// Whether entries that the caller holds are good if they are live: asked once for all of them, after they were held and before their marks are looked at.
    #[inline(always)]
    pub fn settled(&self) -> bool {
        self.settle()
    }

    /// Looks for `start..end`; if it is not there, says what to register: with `join`, together with neighbours.
    pub fn find(&self, start: usize, end: usize, join: bool) -> Found {
        let mut state = self.lock();
        if let Some(entry) = state.map.covering(start, end) {
            entry.hold(self.now());
            return Found::Entry(Arc::clone(entry));
        }
        if self.is_quarantined(&state, start, end) {
            state.counts.passing.quarantined += 1;
            return Found::Quarantined;
        }
        let (mut from, mut to) =
            if join { state.map.joined(start, end, self.config.merge_bytes) } else { (start, end) };
        if to - from > self.config.max_bytes || self.is_quarantined(&state, from, to) {
            (from, to) = (start, end);
        }
        let id = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        state.pending.push(Pending { id, start: from, end: to, is_intact: true });
        Found::Make(id, from, to)
    }

    /// A registration in the making that is not to be kept.
    pub fn give_up(&self, id: u64, why: impl FnOnce(&mut Passing)) {
        let mut state = self.lock();
        why(&mut state.counts.passing);
        if let Some(at) = state.pending.iter().position(|pending| pending.id == id) {
            let pending = state.pending.swap_remove(at);
            self.unwatch(&state, pending.start, pending.end);
        }
    }

    /// Keeps what was registered, if its memory is still what it was.
    pub fn keep(self: &Arc<Self>, id: u64, made: Registered) -> Arc<Entry> {
        loop {
            let is_settled = self.settle();
            let mut state = self.lock();
            if is_settled && !self.sequence.load(Ordering::SeqCst).is_multiple_of(2) {
                continue;
            }
            let at = state.pending.iter().position(|pending| pending.id == id).expect("it was announced");
            let pending = state.pending.swap_remove(at);
            if !is_settled || !pending.is_intact || self.is_broken.load(Ordering::Relaxed) {
                state.counts.passing.changed += 1;
            } else if self.make_room(&mut state, &made) {
                let entry = self.insert(&mut state, made);
                if !state.removed.is_empty() {
                    self.work.notify_one();
                }
                return entry;
            } else {
                state.counts.passing.full += 1;
            }
            self.unwatch(&state, made.start, made.end);
            return Entry::new(self, made, false);
        }
    }

    fn insert(self: &Arc<Self>, state: &mut State, made: Registered) -> Arc<Entry> {
        let entry = Entry::new(self, made, true);
        let joined = state.map.len();
        state.take_out(entry.start, entry.end);
        state.counts.joined += u64::from(state.map.len() < joined);
        state.counts.kept += 1;
        state.bytes += entry.bytes();
        state.map.insert(entry.start, entry.end, Arc::clone(&entry));
        state.reserve();
        entry
    }

    /// Evicts what was not used for longest, until `made` fits in. What it will take into itself makes room, too.
    fn make_room(&self, state: &mut State, made: &Registered) -> bool {
        let inside = |entry: &Entry| entry.start < made.end && entry.end > made.start;
        let (mut entries, mut bytes) = (state.map.len() + 1, state.bytes + (made.end - made.start));
        for entry in state.map.values().filter(|entry| inside(entry)) {
            entries -= 1;
            bytes -= entry.bytes();
        }
        if entries <= self.config.max_entries && bytes <= self.config.max_bytes {
            return true;
        }
        let mut idle: Vec<(u64, usize)> = state
            .map
            .values()
            .filter(|entry| entry.is_idle() && !inside(entry))
            .map(|entry| (entry.used(), entry.start))
            .collect();
        idle.sort_unstable();
        // A few at once, so that not every call has to sort.
        let wanted = self.config.max_entries - self.config.max_entries / 16;
        for (_, start) in idle {
            if entries <= wanted && bytes <= self.config.max_bytes {
                break;
            }
            let size = state.map.covering(start, start + 1).map_or(0, |entry| entry.bytes());
            state.take_out(start, start + 1);
            state.counts.evicted += 1;
            (entries, bytes) = (entries - 1, bytes - size);
        }
        entries <= self.config.max_entries && bytes <= self.config.max_bytes
    }

    /// Loses all that lies in `start..end`. Neither allocates nor frees.
    pub fn forget(&self, state: &mut State, start: usize, end: usize) {
        state.counts.invalidated += state.take_out(start, end);
        for pending in &mut state.pending {
            pending.is_intact &= pending.end <= start || pending.start >= end;
        }
    }

    /// Reads and applies what the kernel tells. Neither allocates nor frees, and never waits for `state`: who holds it may wait for an event to be read.
    pub fn hear(&self, watch: &Watch) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
        let mut backlog = [Event::Unknown; 64];
        let mut length = 0;
        loop {
            let event = watch.read();
            if let Some(event) = event {
                if length < backlog.len() {
                    backlog[length] = event;
                    length += 1;
                } else {
                    // What does not fit in may be anything.
                    backlog[0] = Event::Unknown;
                }
            }
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            let was_idle = state.is_idle();
            backlog[..length].iter().for_each(|event| self.apply(&mut state, *event));
            length = 0;
            if was_idle && !state.is_idle() || state.removed.len() >= self.config.batch {
                self.work.notify_one();
            }
            if event.is_none() {
                break;
            }
        }
        self.sequence.fetch_add(1, Ordering::SeqCst);
    }

    fn apply(&self, state: &mut State, event: Event) {
        match event {
            Event::Unmapped(start, end) => self.forget(state, start, end),
            Event::Moved(from, to, bytes) => {
                self.forget(state, from, from.saturating_add(bytes));
                self.forget(state, to, to.saturating_add(bytes));
                // The kernel goes on watching it at its new place.
                state.stray(to, to.saturating_add(bytes));
            }
            Event::Discarding(start, end) => {
                self.forget(state, start, end);
                state.quarantine.add(start, end);
                self.discards.store(state.quarantine.serial(), Ordering::SeqCst);
            }
            Event::Unknown => {
                self.forget(state, 0, usize::MAX);
                state.quarantine.add_all();
                self.discards.store(state.quarantine.serial(), Ordering::SeqCst);
            }
        }
    }

    /// Nobody reads events any more: nothing that is kept can be trusted, and nobody may wait for a reader.
    pub fn break_down(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
        if let Source::Kernel { watch, .. } = &self.source {
            watch.give_up();
        }
        let mut state = self.lock();
        self.forget(&mut state, 0, usize::MAX);
    }

    fn is_quarantined(&self, state: &State, start: usize, end: usize) -> bool {
        self.config.weakness != Weakness::NoQuarantine && state.quarantine.holds(start, end)
    }

    /// Stops watching the mappings in `start..end` of which no registration needs a part any more.
    pub fn unwatch(&self, state: &State, start: usize, end: usize) {
        let Source::Kernel { watch, maps } = &self.source else { return };
        let mut at = start;
        while at < end {
            let Ok(Some(mapping)) = maps.mapping(at) else { return };
            let (from, to) = (mapping.start, mapping.end);
            let is_pending = state.pending.iter().any(|pending| pending.start < to && pending.end > from);
            if from < end && !is_pending && !state.map.overlaps(from, to) {
                watch.stop(from, to);
            }
            at = to;
        }
    }

    pub fn report(&self) -> CacheReport {
        let state = self.lock();
        let counts = &state.counts;
        CacheReport {
            watching: match self.source {
                Source::Kernel { .. } if self.is_broken.load(Ordering::Relaxed) => Watching::Never,
                Source::Kernel { .. } => Watching::Kernel,
                Source::Promised => Watching::Promised,
                Source::Nobody => Watching::Never,
            },
            reason: self.reason.clone(),
            entries: state.map.len(),
            bytes: state.bytes,
            waiting: state.removed.len(),
            stuck: state.stuck.len(),
            quarantined_bytes: state.quarantine.bytes(),
            hits: counts.finds + state.map.values().map(|entry| entry.finds()).sum::<u64>(),
            kept: counts.kept,
            joined: counts.joined,
            evicted: counts.evicted,
            invalidated: counts.invalidated,
            passing: counts.passing,
            deregistered: counts.deregistered,
        }
    }
}

impl State {
    /// Takes entries out of the map; returns how many. Neither allocates nor frees.
    fn take_out(&mut self, start: usize, end: usize) -> u64 {
        let Self { map, removed, bytes, .. } = self;
        let mut taken = 0;
        map.remove_overlapping(start, end, |entry| {
            entry.kill();
            taken += 1;
            *bytes -= entry.bytes();
            removed.push(entry);
        });
        taken
    }

    /// Whether the sweeper has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.removed.is_empty() && self.strays.is_empty() && self.quarantine.is_empty()
    }

    fn stray(&mut self, start: usize, end: usize) {
        if self.strays.len() < STRAYS {
            self.strays.push((start, end));
        }
    }

    /// Keeps `removed` large enough for all of the map.
    pub fn reserve(&mut self) {
        self.removed.reserve(self.map.len());
    }
}
