//! The event simulation: threads post, a NIC works, another answers. Queues arise where something can do one thing at a time; caches are simulated entry
//! by entry. Latencies are those of [`Path`], so that an operation that meets nobody takes exactly its sum. Time is in picoseconds,
//! chance from the load's seed; the same load gives the same result, bit for bit.
//!
//! `poster` is the CPU's threads, `requester` and `responder` the two NICs, `bus` their PCIe, `outcome` what is counted.

mod bus;
mod outcome;
mod poster;
mod requester;
mod responder;

pub use outcome::Outcome;

use super::cache::{Cache, Eviction, Residents};
use super::load::{Load, Registers};
use super::parameter::Key;
use super::path::Path;
use super::profile::Profile;
use super::server::Server;
use crate::random::Random;
use bus::Bus;
use poster::Thread;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

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
}
