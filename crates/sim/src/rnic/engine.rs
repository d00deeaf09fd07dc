//! The event simulation: threads post, a NIC works, another answers. Queues arise where something can do one thing at a time; caches are simulated entry
//! by entry. Latencies are those of [`Path`], so that an operation that meets nobody takes exactly its sum. Time is in picoseconds,
//! chance from the load's seed; the same load gives the same result, bit for bit.

use super::cache::{Cache, Eviction, Residents};
use super::load::{Issue, Load, Registers, Responder};
use super::parameter::Key;
use super::path::Path;
use super::profile::Profile;
use super::server::{Server, logarithm};
use super::shape::{Op, bus_bytes, bus_bytes_per_ns, request_bytes, time_ps, wire_bytes};
use crate::random::{Random, mix};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

/// What came of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Operations that were measured.
    pub operations: u64,
    /// Time that they took, in picoseconds.
    pub elapsed_ps: u64,
    /// Mean time from the call until the CPU saw the completion, in picoseconds, of signalled operations.
    pub latency_ps: u64,
    /// How busy each part was, in a thousand; the busiest first.
    pub busy: Vec<(&'static str, u64)>,
    /// Misses of each cache, in a million uses.
    pub misses: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// Million operations a second.
    pub fn mops(&self) -> f64 {
        if self.elapsed_ps == 0 { 0.0 } else { self.operations as f64 * 1e6 / self.elapsed_ps as f64 }
    }

    /// Misses of one cache, in a million uses.
    pub fn miss_ppm(&self, name: &str) -> u64 {
        self.misses.iter().find(|(have, _)| *have == name).map_or(0, |(_, ppm)| *ppm)
    }

    /// What was busiest, or `latency` if nothing was busy nine tenths of the time.
    pub fn limit(&self) -> &'static str {
        self.busy.first().filter(|(_, permille)| *permille >= 900).map_or("latency", |(name, _)| *name)
    }
}

/// Runs a load. It must have passed [`Load::check`].
pub fn run(profile: &Profile, load: &Load) -> Result<Outcome, String> {
    load.check(profile)?;
    let mut engine = Engine::new(profile, load);
    engine.warm();
    for thread in 0..load.threads {
        // Threads do not march in step: each begins at its own time within the first round.
        let at = if load.threads == 1 { 0 } else { engine.random.below(engine.round_ps()) };
        engine.schedule(at, Event::Wake(thread));
    }
    engine.turn();
    Ok(engine.outcome())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A thread looks whether it may post.
    Wake(u32),
    /// It has built its WQEs and wants the doorbell.
    Built(u32),
    /// The ring of a batch, by its first operation, reaches the NIC.
    Ring(u32),
    /// The NIC has the WQE of an operation.
    Ready(u32),
    /// Its turn has come within its QP.
    Turn(u32),
    /// Its turn has come in the NIC.
    Leave(u32),
    /// Its request reaches the responder.
    Arrive(u32),
    /// Its turn has come there.
    Serve(u32),
    /// Memory and locks are free for it: it will be answered.
    Answer(u32),
    /// Its answer reaches the requester.
    Back(u32),
    /// Data and CQE can be written.
    Land(u32),
    /// A CPU sees that it is done.
    Done(u32),
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Default)]
struct Operation {
    id: u64,
    thread: u32,
    qp: u32,
    /// The next of the same batch.
    next: u32,
    signalled: bool,
    posted: u64,
}

struct Thread {
    qps: Vec<u32>,
    under_way: u32,
    /// Completed, but not told, since unsignalled.
    untold: u32,
    /// Posted since the last signalled one.
    silent: u32,
    /// Signalled ones under way.
    signalled: u32,
    /// Told in this round.
    round: u32,
    /// CPU time for completions, to be spent before the next post.
    debt: u64,
    /// First and number of the batch that is being built.
    building: (u32, u32),
    busy: u64,
    /// A wake is on its way, or it is building.
    awake: bool,
    /// Posts in this round so far.
    posted: u32,
}

/// One side's PCIe.
#[derive(Default)]
struct Bus {
    up: Server,
    down: Server,
    reads: Server,
}

struct Engine<'a> {
    profile: &'a Profile,
    load: &'a Load,
    path: Path<'a>,
    now: u64,
    sequence: u64,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    random: Random,
    operations: Vec<Operation>,
    free: Vec<u32>,
    threads: Vec<Thread>,
    slowdown: f64,
    queue_locks: Vec<Server>,
    sharers: Vec<u32>,
    register_locks: Vec<Server>,
    register_sharers: Vec<u32>,
    register_holders: Vec<u32>,
    doorbell: Server,
    units: Vec<Server>,
    qp_units: Vec<Server>,
    pipeline: Server,
    under_way: Vec<u32>,
    waiting: HashMap<u32, VecDeque<u32>>,
    bus: Bus,
    out: Server,
    contexts: Cache,
    map: Cache,
    wqes: Residents,
    spill: Residents,
    answers: Server,
    answer_bus: Bus,
    back: Server,
    responder_contexts: Cache,
    pages: Cache,
    regions: Cache,
    atomic: Server,
    lines: HashMap<u64, Server>,
    completed: u64,
    measured: u64,
    warm_until: u64,
    from: u64,
    to: u64,
    latency: u128,
    signalled: u64,
    next_id: u64,
}

impl<'a> Engine<'a> {
    fn new(profile: &'a Profile, load: &'a Load) -> Self {
        let count = |key| profile.count(key);
        let qps = u64::from(load.qps);
        let registers = match load.registers {
            Registers::Own => load.qps,
            Registers::Default => load.qps.min(count(Key::DoorbellRegisters) as u32),
        };
        let mut sharers = vec![0; load.qps as usize];
        let mut threads = Vec::new();
        for index in 0..load.threads {
            let qps: Vec<u32> = match load.qps >= load.threads {
                true => (index..load.qps).step_by(load.threads as usize).collect(),
                false => vec![index % load.qps],
            };
            qps.iter().for_each(|qp| sharers[*qp as usize] += 1);
            threads.push(Thread {
                qps,
                under_way: 0,
                untold: 0,
                silent: 0,
                signalled: 0,
                round: 0,
                debt: 0,
                building: (NONE, 0),
                busy: 0,
                awake: true,
                posted: 0,
            });
        }
        // Threads contend for a register only if they come from different QPs: within one QP, its lock has sorted them out.
        let mut holders = vec![0; registers as usize];
        (0..load.qps).for_each(|qp| holders[(qp % registers) as usize] += 1);
        let users =
            threads.iter().enumerate().flat_map(|(thread, of)| of.qps.iter().map(move |qp| (qp % registers, thread)));
        let mut register_sharers = vec![0; registers as usize];
        for (register, _) in users.collect::<HashSet<_>>() {
            register_sharers[register as usize] += 1;
        }
        register_sharers.iter_mut().zip(&holders).filter(|(_, qps)| **qps == 1).for_each(|(sharers, _)| *sharers = 1);
        let residents = if load.shape.op.is_answered() { Key::FlightEntries } else { Key::WqeEntries };
        let eviction = if load.shape.op.is_answered() { Eviction::Newcomer } else { Eviction::Oldest };
        Self {
            profile,
            load,
            path: Path::new(profile, load.shape, load.setting),
            now: 0,
            sequence: 0,
            heap: BinaryHeap::new(),
            random: Random::new(load.seed, 0x006e_6963),
            operations: Vec::new(),
            free: Vec::new(),
            threads,
            slowdown: 1.0 + profile.value(Key::CpuSlowdown) / 1000.0 * f64::from(load.threads - 1),
            queue_locks: vec![Server::default(); load.qps as usize],
            sharers,
            register_locks: vec![Server::default(); registers as usize],
            register_sharers,
            register_holders: vec![NONE; registers as usize],
            doorbell: Server::default(),
            units: vec![Server::default(); count(Key::NicUnits) as usize],
            qp_units: vec![Server::default(); load.qps as usize],
            pipeline: Server::default(),
            under_way: vec![0; load.qps as usize],
            waiting: HashMap::new(),
            bus: Bus::default(),
            out: Server::default(),
            contexts: Cache::for_keys(count(Key::QpcEntries), qps),
            map: Cache::for_keys(count(Key::MapEntries), qps),
            wqes: Residents::new(count(residents), eviction),
            spill: Residents::new(count(Key::SpillEntries), Eviction::Newcomer),
            answers: Server::default(),
            answer_bus: Bus::default(),
            back: Server::default(),
            responder_contexts: Cache::for_keys(count(Key::ResponderEntries), qps),
            pages: Cache::for_keys(count(Key::MttEntries), load.memory.pages() * load.memory.regions),
            regions: Cache::for_keys(count(Key::MptEntries), load.memory.regions),
            atomic: Server::default(),
            lines: HashMap::new(),
            completed: 0,
            measured: u64::from(load.operations).max(3 * load.outstanding()),
            // A queue before hot lines takes its time to fill with nothing but who wants them.
            warm_until: 2000.max(if load.target.hot_ppm > 0 { 12 } else { 3 } * load.outstanding()),
            from: 0,
            to: 0,
            latency: 0,
            signalled: 0,
            next_id: 0,
        }
    }

    /// Fills the caches as a long run would have.
    fn warm(&mut self) {
        let qps = u64::from(self.load.qps);
        let (pages, regions) = (self.load.memory.pages() * self.load.memory.regions, self.load.memory.regions);
        for (cache, keys) in [
            (&mut self.contexts, qps),
            (&mut self.map, qps),
            (&mut self.responder_contexts, qps),
            (&mut self.pages, pages),
            (&mut self.regions, regions),
        ] {
            if keys <= cache.entries() {
                (0..keys).for_each(|key| _ = cache.touch(key));
            } else {
                (0..3 * cache.entries()).for_each(|_| _ = cache.touch(self.random.below(keys)));
            }
            cache.warm();
        }
    }

    /// What a thread alone needs for its depth.
    fn round_ps(&self) -> u64 {
        let each = self.path.build_ps() + self.path.ring_ps() + self.ps(Key::CpuCompletion);
        self.path.latency_ps() + u64::from(self.load.depth) * each
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, event)));
    }

    fn turn(&mut self) {
        while let Some(Reverse((at, _, event))) = self.heap.pop() {
            self.now = at;
            self.handle(event);
            if self.completed >= self.warm_until + self.measured {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake(thread) => self.wake(thread),
            Event::Built(thread) => self.built(thread),
            Event::Ring(operation) => self.ring(operation),
            Event::Ready(operation) => self.ready(operation),
            Event::Turn(operation) => self.turn_of(operation),
            Event::Leave(operation) => self.leave(operation),
            Event::Arrive(operation) => self.arrive(operation),
            Event::Serve(operation) => self.serve(operation),
            Event::Answer(operation) => self.answer(operation),
            Event::Back(operation) => self.back(operation),
            Event::Land(operation) => self.land(operation),
            Event::Done(operation) => self.done(operation),
        }
    }

    /// The next step of an operation. A part is asked for only when its turn has come, so that who comes first is served first.
    fn then(&mut self, at: u64, event: Event) {
        if at > self.now { self.schedule(at, event) } else { self.handle(event) }
    }

    fn cpu(&self, ps: u64) -> u64 {
        (ps as f64 * self.slowdown).round() as u64
    }

    fn ps(&self, key: Key) -> u64 {
        self.profile.ps(key)
    }

    /// A thread builds a batch if it may post one.
    fn wake(&mut self, index: u32) {
        let (load, now) = (self.load, self.now);
        let mut spent = std::mem::take(&mut self.threads[index as usize].debt);
        let thread = &mut self.threads[index as usize];
        let may = match load.issue {
            Issue::Window => thread.under_way + load.batch <= load.depth,
            Issue::Round if thread.posted < load.depth => true,
            Issue::Round if thread.round == load.depth => {
                (thread.posted, thread.round) = (0, 0);
                spent += if load.depth > 1 { self.profile.ps(Key::CpuGather) } else { 0 };
                true
            }
            Issue::Round => false,
        };
        if !may {
            thread.awake = false;
            thread.debt = spent;
            return;
        }
        thread.posted += load.batch;
        thread.under_way += load.batch;
        let (qp, mut silent) = (thread.qps[self.random.below(thread.qps.len() as u64) as usize], thread.silent);
        let mut first = NONE;
        let mut flags = Vec::new();
        for _ in 0..load.batch {
            silent += 1;
            flags.push(silent == load.signal_every);
            silent = if silent == load.signal_every { 0 } else { silent };
        }
        thread.silent = silent;
        thread.signalled += flags.iter().filter(|signalled| **signalled).count() as u32;
        for signalled in flags.into_iter().rev() {
            first = self.allocate(Operation { id: 0, thread: index, qp, next: first, signalled, posted: now });
        }
        let build = u64::from(load.batch) * self.path.build_ps();
        // Threads that share a host are not equally fast at all times; alone, a thread is.
        let vary = if self.load.threads > 1 { self.random.range(500, 1500) } else { 1000 };
        let cpu = self.cpu(spent) + self.cpu(build) * vary / 1000;
        let thread = &mut self.threads[index as usize];
        thread.building = (first, qp);
        thread.busy += cpu;
        // Of a batch the first could have been rung at once: its clock starts when the thread turns to it.
        let started = now + self.cpu(spent);
        let mut at = first;
        while at != NONE {
            self.operations[at as usize].posted = started;
            at = self.operations[at as usize].next;
        }
        self.schedule(now + cpu, Event::Built(index));
    }

    fn allocate(&mut self, operation: Operation) -> u32 {
        self.next_id += 1;
        let operation = Operation { id: self.next_id, ..operation };
        match self.free.pop() {
            Some(at) => {
                self.operations[at as usize] = operation;
                at
            }
            None => {
                self.operations.push(operation);
                self.operations.len() as u32 - 1
            }
        }
    }

    /// The thread takes the locks that it shares, and rings.
    fn built(&mut self, index: u32) {
        let (first, qp) = self.threads[index as usize].building;
        let ring = self.cpu(self.path.ring_ps());
        let sharers = self.sharers[qp as usize];
        let register = qp as usize % self.register_locks.len();
        let mut at = self.now;
        if sharers > 1 {
            let lock = &mut self.queue_locks[qp as usize];
            let contended = self.profile.value(Key::CpuQueueContention) * logarithm(sharers);
            let hold = self.profile.value(Key::CpuQueueLock) + contended;
            at = at.max(lock.free) + (hold * 1000.0) as u64;
        }
        let contenders = self.register_sharers[register];
        if contenders > 1 {
            // The lock's line comes from another core, unless this thread was its last holder.
            let last = std::mem::replace(&mut self.register_holders[register], index);
            let contended = if last == index { 0.0 } else { logarithm(contenders) };
            let hold = self.profile.value(Key::CpuDoorbellLock) * contended;
            at = self.register_locks[register].take(at, ring + (hold * 1000.0) as u64);
        } else {
            at += ring;
        }
        if sharers > 1 {
            let lock = &mut self.queue_locks[qp as usize];
            lock.busy += at - self.now.max(lock.free);
            lock.free = at;
        }
        self.threads[index as usize].busy += at - self.now;
        self.schedule(at, Event::Ring(first));
        self.schedule(at, Event::Wake(index));
    }

    /// The NIC hears the ring and gets the WQEs.
    fn ring(&mut self, first: u32) {
        let load = self.load;
        let address = if self.path.copies_address() { self.ps(Key::DoorbellAddressHandle) } else { 0 };
        let handle = self.ps(Key::DoorbellHandle) + address;
        let heard = if load.responder == Responder::Only { self.now } else { self.doorbell.start(self.now, handle) };
        let looked = heard + self.path.schedule_ps();
        let bytes = 64 * load.shape.wqe_blocks();
        let prefetch = self.profile.count(Key::WqePrefetch);
        let (mut at, mut place) = (first, 0);
        let mut ready = looked;
        while at != NONE {
            if !load.shape.blueflame {
                if place % prefetch == 0 {
                    let left = u64::from(load.batch) - place;
                    ready = self.dma_read(looked, bytes * left.min(prefetch)) + self.path.fetch_ps();
                }
            } else {
                ready = looked;
            }
            let operation = self.operations[at as usize];
            self.wqes.enter(operation.id);
            if load.shape.op.is_answered() {
                self.spill.enter(operation.id);
            }
            self.schedule(ready, Event::Ready(at));
            (at, place) = (operation.next, place + 1);
        }
    }

    /// A read by the requester's NIC: when it may begin. Its latency is the caller's.
    fn dma_read(&mut self, at: u64, bytes: u64) -> u64 {
        if self.load.responder == Responder::Only {
            return at;
        }
        let credit = self.ps(Key::BusRead) / self.profile.count(Key::BusReadCredits);
        dma_read(self.profile, &mut self.bus, at, bytes, credit)
    }

    /// The NIC sends a request, if the QP may have one more under way.
    fn ready(&mut self, index: u32) {
        let qp = self.operations[index as usize].qp;
        if self.load.shape.op.is_answered() {
            if u64::from(self.under_way[qp as usize]) >= self.profile.count(Key::NicOutstanding) {
                self.waiting.entry(qp).or_default().push_back(index);
                return;
            }
            self.under_way[qp as usize] += 1;
        }
        let unit_ps = self.ps(Key::NicUnit);
        match self.load.responder {
            Responder::Only => self.leave(index),
            _ => {
                let at = self.qp_units[qp as usize].start(self.now, unit_ps);
                self.then(at, Event::Turn(index));
            }
        }
    }

    /// The requester's units, pipeline and caches.
    fn turn_of(&mut self, index: u32) {
        let shape = self.load.shape;
        let qp = self.operations[index as usize].qp;
        let mut at = self.now;
        let unit_ps = self.ps(Key::NicUnit);
        if unit_ps > 0 {
            // A QP is worked on by one unit at a time, by whichever is free.
            let first = self.units.iter_mut().min_by_key(|unit| unit.free).expect("there is a unit");
            at = first.start(at, unit_ps);
        }
        let op = match (shape.op, self.path.is_acknowledged()) {
            (Op::Read, _) => Key::NicRead,
            (Op::Fadd | Op::Cas, _) => Key::NicAtomic,
            (_, true) => Key::NicWrite,
            (_, false) => Key::NicUnconnected,
        };
        let mut busy = self.ps(op) + self.size_ps();
        let mut wait = 0;
        if !self.contexts.touch(qp.into()) {
            busy += self.ps(if shape.op.is_answered() { Key::QpcReadStall } else { Key::QpcWriteStall });
            wait += self.ps(Key::QpcFetch);
        }
        if !self.map.touch(qp.into()) {
            busy += self.ps(Key::MapStall);
            wait += self.ps(Key::QpcFetch);
        }
        let at = self.pipeline.start(at, busy) + wait;
        self.then(at, Event::Leave(index));
    }

    /// The request leaves.
    fn leave(&mut self, index: u32) {
        let at = match self.load.shape.gathered_bytes() {
            0 => self.now,
            bytes => self.dma_read(self.now, bytes),
        };
        let serial = self.path.serialise_ps(wire_bytes(self.profile, self.load.shape.request_bytes()));
        let at = self.out.start(at + self.path.leave_ps(), serial) + serial;
        match self.path.is_acknowledged() {
            true => self.schedule(at + self.path.hop_ps(), Event::Arrive(index)),
            false => self.schedule(at, Event::Back(index)),
        }
    }

    fn size_ps(&self) -> u64 {
        let bytes = u64::from(self.load.shape.bytes);
        let more = bytes.div_ceil(self.profile.count(Key::BusMaxPayload)).saturating_sub(1);
        more * self.ps(Key::NicSegment) + (bytes as f64 * self.profile.value(Key::NicByte)) as u64
    }

    /// The responder's pipeline and caches.
    fn arrive(&mut self, index: u32) {
        let load = self.load;
        let mut busy = self.ps(Key::NicResponder);
        let mut wait = 0;
        if !self.responder_contexts.touch(self.operations[index as usize].qp.into()) {
            busy += self.ps(Key::ResponderStall);
            wait += self.ps(Key::QpcFetch);
        }
        let region = self.random.below(load.memory.regions);
        if !self.regions.touch(region) {
            busy += self.ps(Key::MptStall);
            wait += self.ps(Key::MptMiss);
        }
        let page = region * load.memory.pages() + self.random.below(load.memory.pages());
        if !self.pages.touch(page) {
            busy += self.ps(Key::MttStall);
            wait += self.ps(Key::MttMiss);
        }
        let at = self.answers.start(self.now, busy) + wait;
        self.then(at, Event::Serve(index));
    }

    /// The responder's memory.
    fn serve(&mut self, index: u32) {
        let (load, profile) = (self.load, self.profile);
        let mut at = self.now;
        let hot = self.random.chance(load.target.hot_ppm);
        let line = match hot {
            true => self.random.below(load.target.hot_lines),
            false => (1 << 40) + self.random.below(load.target.lines),
        };
        let mirror = load.responder == Responder::Mirror;
        if load.shape.op.is_atomic() {
            at = self.atomic(at, line, hot);
        } else if !load.setting.device_memory {
            let credit = self.ps(Key::BusRead) / profile.count(Key::BusReadCredits);
            let line_ps = self.ps(Key::HotRead);
            let bus = if mirror { &mut self.bus } else { &mut self.answer_bus };
            if load.shape.op == Op::Read {
                at = dma_read(profile, bus, at, load.shape.bytes.into(), credit);
                if hot && line_ps > 0 {
                    at = self.lines.entry(line).or_default().start(at, line_ps);
                }
            } else {
                dma_write(profile, bus, at, load.shape.request_bytes());
            }
        }
        self.then(at, Event::Answer(index));
    }

    /// The answer leaves.
    fn answer(&mut self, index: u32) {
        let serial = self.path.serialise_ps(wire_bytes(self.profile, self.load.shape.answer_bytes()));
        // Where all ask and answer alike, answers leave by the wire by which requests leave.
        let mirror = self.load.responder == Responder::Mirror;
        let wire = if mirror { &mut self.out } else { &mut self.back };
        let at = wire.start(self.now + self.path.answer_ps(), serial) + serial + self.path.hop_ps();
        self.schedule(at, Event::Back(index));
    }

    /// The atomic unit, and the lock of the line: when the operation begins.
    fn atomic(&mut self, at: u64, line: u64, hot: bool) -> u64 {
        let setting = self.load.setting;
        let dram = if setting.dram { self.ps(Key::AtomicDram) } else { 0 };
        let factor = if setting.emulated_atomics { self.profile.value(Key::AtomicEmulated) } else { 1.0 };
        let slowed = |ps: u64| (ps as f64 * factor) as u64;
        let engine = slowed(self.ps(Key::AtomicEngine) + dram);
        let held = if setting.device_memory { self.ps(Key::AtomicDevice) } else { self.ps(Key::AtomicLine) + dram };
        let buckets = self.profile.count(Key::AtomicBuckets);
        // Hot lines are laid out so that they share no lock; others fall where their address falls.
        let bucket = if hot { line % buckets } else { mix(line) % buckets };
        let at = self.atomic.start(at, engine);
        self.lines.entry(bucket).or_default().start(at, slowed(held))
    }

    /// The requester has the answer, and looks for what it kept of the request.
    fn back(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        let answered = self.load.shape.op.is_answered();
        let here = self.wqes.leave(operation.id);
        let spilled = answered && !self.spill.leave(operation.id);
        let mut at = self.now;
        if self.load.responder != Responder::Only {
            let mut stall = 0;
            if !here {
                stall += self.ps(if answered { Key::FlightStall } else { Key::WqeStall });
            }
            if spilled {
                stall += self.ps(Key::SpillStall);
            }
            if stall > 0 {
                at = self.pipeline.start(at, stall) + self.ps(Key::BusRead);
            }
        }
        if answered {
            let qp = operation.qp;
            self.under_way[qp as usize] -= 1;
            if let Some(next) = self.waiting.get_mut(&qp).and_then(VecDeque::pop_front) {
                self.schedule(self.now, Event::Ready(next));
            }
        }
        self.then(at, Event::Land(index));
    }

    /// Data and CQE are written.
    fn land(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        let (profile, shape) = (self.profile, self.load.shape);
        let mut at = self.now;
        if self.load.responder != Responder::Only {
            let data = if shape.op.is_answered() { bus_bytes(profile, shape.answer_bytes()) } else { 0 };
            let cqe = bus_bytes(profile, profile.count(Key::CqeBytes)) / profile.count(Key::CqeCompress);
            let bytes = data + if operation.signalled { cqe } else { 0 };
            at = self.bus.up.start(at, time_ps(bytes, bus_bytes_per_ns(profile)));
        }
        let others = self.ps(Key::CpuPollThread) * u64::from(self.load.threads - 1);
        let seen = if operation.signalled { self.path.seen_ps() + others } else { 0 };
        self.schedule(at + self.path.come_back_ps() + seen, Event::Done(index));
    }

    /// The thread learns of it, if it is told.
    fn done(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        self.free.push(index);
        self.completed += 1;
        if self.completed == self.warm_until {
            self.begin_to_measure();
        }
        let completion = self.ps(Key::CpuCompletion);
        let thread = &mut self.threads[operation.thread as usize];
        thread.untold += 1;
        if operation.signalled {
            thread.signalled -= 1;
            thread.debt += completion;
        }
        // Operations of different QPs overtake each other: the last is told of even if its signalled neighbour was faster.
        if operation.signalled || thread.signalled == 0 {
            let told = std::mem::take(&mut thread.untold);
            thread.under_way -= told;
            thread.round += told;
            if !thread.awake {
                thread.awake = true;
                self.schedule(self.now, Event::Wake(operation.thread));
            }
            if operation.signalled && self.completed > self.warm_until {
                self.latency += u128::from(self.now - operation.posted);
                self.signalled += 1;
            }
        }
        self.to = self.now;
    }

    fn begin_to_measure(&mut self) {
        self.from = self.now;
        [&mut self.contexts, &mut self.map, &mut self.responder_contexts, &mut self.pages, &mut self.regions]
            .into_iter()
            .for_each(Cache::warm);
        self.wqes.warm();
        self.spill.warm();
        let buses = [&mut self.bus, &mut self.answer_bus]
            .into_iter()
            .flat_map(|bus| [&mut bus.up, &mut bus.down, &mut bus.reads]);
        let servers = [
            &mut self.doorbell,
            &mut self.pipeline,
            &mut self.out,
            &mut self.answers,
            &mut self.back,
            &mut self.atomic,
        ];
        let many = self
            .units
            .iter_mut()
            .chain(&mut self.qp_units)
            .chain(&mut self.queue_locks)
            .chain(&mut self.register_locks);
        buses.chain(servers).chain(many).chain(self.lines.values_mut()).for_each(|server| server.busy = 0);
        self.threads.iter_mut().for_each(|thread| thread.busy = 0);
    }

    fn outcome(&self) -> Outcome {
        let elapsed = self.to.saturating_sub(self.from).max(1);
        let most = |servers: &[Server]| servers.iter().map(|server| server.busy).max().unwrap_or(0);
        let threads: u64 = self.threads.iter().map(|thread| thread.busy).sum();
        let mut busy = vec![
            ("CPU", threads / u64::from(self.load.threads)),
            ("lock of a shared QP", most(&self.queue_locks)),
            ("shared doorbell", most(&self.register_locks)),
            ("doorbells in the NIC", self.doorbell.busy),
            ("one QP's processing unit", most(&self.qp_units)),
            ("NIC, requests", self.pipeline.busy),
            ("NIC, answers", self.answers.busy),
            ("PCIe to memory", self.bus.up.busy),
            ("PCIe from memory", self.bus.down.busy),
            ("DMA read credits", self.bus.reads.busy),
            ("PCIe to memory, responder", self.answer_bus.up.busy),
            ("PCIe from memory, responder", self.answer_bus.down.busy),
            ("DMA read credits, responder", self.answer_bus.reads.busy),
            ("wire, out", self.out.busy),
            ("wire, back", self.back.busy),
            ("atomic unit", self.atomic.busy),
            ("one cache line", self.lines.values().map(|line| line.busy).max().unwrap_or(0)),
        ];
        // What is counted is what was begun: at the end a queue may stand that is still to be served.
        busy.iter_mut().for_each(|(_, ps)| *ps = (u128::from(*ps) * 1000 / u128::from(elapsed)).min(1000) as u64);
        busy.sort_by_key(|(name, permille)| (Reverse(*permille), *name));
        let misses = vec![
            ("QP contexts", self.contexts.miss_ppm()),
            ("context map", self.map.miss_ppm()),
            ("responder contexts", self.responder_contexts.miss_ppm()),
            ("WQEs in flight", self.wqes.miss_ppm()),
            ("state of READs", self.spill.miss_ppm()),
            ("pages (MTT)", self.pages.miss_ppm()),
            ("regions (MPT)", self.regions.miss_ppm()),
        ];
        Outcome {
            operations: self.completed.saturating_sub(self.warm_until),
            elapsed_ps: elapsed,
            latency_ps: (self.latency / u128::from(self.signalled.max(1))) as u64,
            busy,
            misses,
        }
    }
}

/// A DMA read: a request up, data down, a credit held; when it may begin.
fn dma_read(profile: &Profile, bus: &mut Bus, at: u64, bytes: u64, credit_ps: u64) -> u64 {
    let rate = bus_bytes_per_ns(profile);
    let at = bus.reads.start(at, credit_ps);
    let at = bus.up.start(at, time_ps(request_bytes(profile, bytes), rate));
    bus.down.start(at, time_ps(bus_bytes(profile, bytes), rate))
}

/// A posted DMA write; when it may begin.
fn dma_write(profile: &Profile, bus: &mut Bus, at: u64, bytes: u64) -> u64 {
    bus.up.start(at, time_ps(bus_bytes(profile, bytes), bus_bytes_per_ns(profile)))
}
