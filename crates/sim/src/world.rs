//! A run: NICs, connections and flows of a seed, driven through virtual time until all is done, with the checkers looking
//! on.
//!
//! The loop does what applications, NICs and the wire would do at the same time, in a fixed order: packets arrive, engines
//! take their turns, completions are polled, new work is posted; when nothing more can happen now, time jumps to the next
//! moment at which something can.

mod complete;
mod faults;
mod post;

use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_verbs::{AccessFlags, AddressHandle, MemoryRegion, PostError, Psn, QpType, VerbsError};

use crate::attacker::{Attacker, Victim};
use crate::canary::Canary;
use crate::checker::{self, Checker, Remains, Violation};
use crate::ledger::{Flow, Ledger, SLOTS, TARGET_LEN, WORDS_LEN};
use crate::pattern::{Fault, Faults, Pattern};
use crate::random::Random;
use crate::receive::{Queue, Receiver};
use crate::station::{GUARD, Pair, SECRET, Station, everything, path};
use crate::wire::{SimWire, Tally};
use crate::workload::{BUFFER, ConnectionPlan, Layout, Plan, Source};

/// Packets that each run must see arrive.
pub const MIN_PACKETS: u64 = 1_000;
/// Kinds of fault that each run must see strike.
pub const MIN_KINDS: usize = 3;
/// Operations after which nothing new is asked, whatever was reached.
const MAX_OPS: usize = 6_000;
/// After the last operation was posted, faults go on for this long, ns.
const FAULTY_END_NS: u64 = 5_000_000;
/// And the run may take this long after that: all retries of the most patient flow, several times.
const CALM_END_NS: u64 = 3_000_000_000;
/// A run that has come to this many steps is going round in circles.
const MAX_STEPS: u64 = 2_000_000;
/// New connections, at most, when all reliable ones have given up.
const REBUILDS: usize = 6;

/// Why a run was stopped.
#[derive(Debug)]
pub enum Stop {
    /// A promise is broken.
    Violation(Violation),
    /// The simulation could not be set up or driven: a verb failed that had no reason to.
    Verb(String),
}

impl From<VerbsError> for Stop {
    fn from(error: VerbsError) -> Self {
        Self::Verb(error.to_string())
    }
}

impl From<PostError> for Stop {
    fn from(error: PostError) -> Self {
        Self::Verb(error.to_string())
    }
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that arrived, without forged ones.
    pub packets: u64,
    /// Operations that were asked for.
    pub operations: u64,
    /// How often each kind of fault struck.
    pub faults: [u64; Fault::ALL.len()],
    /// Flows that ended with a status that their limits promise.
    pub failed_flows: u64,
    /// Operations of each kind that completed, by `Kind as usize`.
    pub done: [u64; 11],
    /// NICs where a forged packet changed the memory that it was allowed to change.
    pub reached: u64,
    /// Virtual time at the end, ns.
    pub time_ns: u64,
    /// Equal for equal runs.
    pub fingerprint: u64,
}

/// A flow with its buffers.
struct Lane {
    connection: usize,
    side: usize,
    source: Source,
    /// Payloads, then what comes back.
    buffers: Arc<dyn MemoryRegion>,
    layouts: [Layout; SLOTS],
    target_offset: usize,
    target_addr: u64,
    target_rkey: scalefabric_verbs::RKey,
    #[allow(dead_code)] // Keeps the region.
    target_region: Arc<dyn MemoryRegion>,
    ah: Option<Arc<dyn AddressHandle>>,
    /// Nothing is posted before: services that wait for no answer would flood the wire.
    next_post: u64,
}

struct Connection {
    plan: ConnectionPlan,
    pair: Pair,
    /// Flow of each side's requests.
    flows: [Option<usize>; 2],
}

/// A run.
pub struct World {
    wire: SimWire,
    faults: Faults,
    /// The fault that must strike before the run may end.
    main: Option<Fault>,
    random: Random,
    stations: Vec<Station>,
    connections: Vec<Connection>,
    lanes: Vec<Lane>,
    receivers: Vec<Receiver>,
    victims: Vec<Victim>,
    attacker: Attacker,
    ledger: Ledger,
    checkers: Vec<Box<dyn Checker>>,
    /// When each NIC must have its next turn.
    due: Vec<u64>,
    now: u64,
    /// Nothing new is asked from this time on.
    finishing: Option<u64>,
    calm: bool,
    /// When the next port goes down, or the next path gets narrow.
    next_flap: u64,
    /// NICs whose port the device itself reports as down, until then.
    port_down: Vec<u64>,
    next_forgery: u64,
    kill_at: Option<u64>,
    scratch: Vec<u8>,
    message: Vec<u8>,
    drained: bool,
    rebuilt: usize,
}

fn violation(checker: &'static str, what: String) -> Stop {
    Stop::Violation(Violation { checker, what })
}

impl World {
    /// The world of a seed under a pattern.
    pub fn new(seed: u64, pattern: &Pattern, canary: Option<Canary>) -> Result<Self, Stop> {
        let faults = pattern.faults(seed);
        let plan = Plan::new(seed, &faults);
        let wire = SimWire::new(plan.nics, plan.v6, faults, seed);
        let flows = (plan.connections.len() + REBUILDS) * 2;
        let mut stations = Vec::new();
        for index in 0..plan.nics {
            stations.push(Station::new(&wire, index, plan.v6, seed, flows)?);
        }
        let mut random = Random::new(seed, 0x3017);
        let nics = plan.nics;
        let killed = plan.connections.iter().any(|c| c.killed);
        let mut world = Self {
            wire,
            faults,
            main: pattern.main,
            stations,
            connections: Vec::new(),
            lanes: Vec::new(),
            receivers: Vec::new(),
            victims: Vec::new(),
            attacker: Attacker::new(seed, plan.v6),
            ledger: Ledger {
                shared_adds: vec![0; nics],
                shared_olds: vec![Vec::new(); nics],
                shared_unknown: vec![0; nics],
                ..Ledger::default()
            },
            checkers: checker::all(),
            due: vec![0; nics],
            now: 0,
            finishing: None,
            calm: false,
            next_flap: random.range(20_000, 300_000),
            port_down: vec![0; nics],
            next_forgery: 0,
            kill_at: killed.then(|| random.range(50_000, 600_000)),
            scratch: Vec::new(),
            message: Vec::new(),
            drained: false,
            rebuilt: 0,
            random,
        };
        for connection in &plan.connections {
            world.connect(seed, connection, plan.v6)?;
        }
        world.add_victims(&plan)?;
        if faults.psn_wrap {
            world.wire.state().tally.strike(Fault::PsnWrap);
        }
        let mut state = world.wire.state();
        state.guard_secret(SECRET);
        state.canary = canary;
        drop(state);
        Ok(world)
    }

    fn connect(&mut self, seed: u64, plan: &ConnectionPlan, v6: bool) -> Result<(), Stop> {
        let pair = Pair::new(&self.stations, plan)?;
        pair.connect(plan, v6)?;
        let index = self.connections.len();
        let mut flows = [None; 2];
        let sides = if plan.both_ways { 2 } else { 1 };
        for (side, flow) in flows.iter_mut().enumerate().take(sides) {
            let id = self.lanes.len();
            let (from, to) = (plan.nics[side], plan.nics[1 - side]);
            let qp = &pair.qps[side];
            self.ledger.flows.push(Flow::new(id, from, to, qp.qp_type(), plan.limits()));
            let peer = (to, pair.qps[1 - side].qp_num());
            self.wire.state().watch(from, qp.qp_num(), peer, plan.mtu.bytes(), Psn::new(plan.psns[side]));
            let pd = self.stations[to].pd.clone();
            let (target_region, target_offset) = self.stations[to].carve(&pd, TARGET_LEN, everything())?;
            let pd = &self.stations[from].pd;
            let ah = match plan.qp_type {
                QpType::Ud => Some(pd.create_ah(&path(plan, side, v6))?),
                _ => None,
            };
            let layouts = std::array::from_fn(|_| Layout::new(&mut self.random));
            self.lanes.push(Lane {
                connection: index,
                side,
                source: Source::new(seed, id, plan.mtu),
                buffers: pd.alloc_mr(2 * SLOTS * BUFFER, AccessFlags::LOCAL_WRITE)?,
                layouts,
                target_offset,
                target_addr: target_region.addr(),
                target_rkey: target_region.rkey(),
                target_region,
                ah,
                next_post: 0,
            });
            *flow = Some(id);
        }
        for side in 0..2 {
            // A side receives if the other one asks.
            if flows[1 - side].is_some() {
                let queue = match (&pair.srq, side) {
                    (Some(srq), 1) => Queue::Srq(srq.clone()),
                    _ => Queue::Qp(pair.qps[side].clone()),
                };
                let pd = &self.stations[plan.nics[side]].pd;
                let number = self.receivers.len();
                self.receivers.push(Receiver::new(number, (index, side), queue, pd, &mut self.random)?);
            }
        }
        self.connections.push(Connection { plan: *plan, pair, flows });
        Ok(())
    }

    /// Connections that carry nothing but forged packets.
    fn add_victims(&mut self, plan: &Plan) -> Result<(), Stop> {
        let (first, v6) = (plan.connections[0], plan.v6);
        for (qp_type, nics) in [(QpType::Rc, [0, 1]), (QpType::Uc, [1, 0])] {
            let plan = ConnectionPlan { qp_type, nics, srq: false, psns: [0x5000, 0x6000], both_ways: false, ..first };
            let pair = Pair::new(&self.stations, &plan)?;
            pair.connect(&plan, v6)?;
            self.stations[nics[1]].bind_window(&*pair.qps[1])?;
            self.victims.push(Victim { plan, pair });
        }
        Ok(())
    }

    /// Prints what the wire carries, and completions.
    pub fn trace(&mut self) {
        self.wire.state().trace = true;
    }

    /// Runs to the end.
    pub fn run(mut self) -> Result<Outcome, Stop> {
        let mut steps = 0;
        while self.step()? {
            steps += 1;
            if steps > MAX_STEPS {
                return Err(violation("progress", format!("{steps} steps and no end; time {} ns", self.now)));
            }
        }
        self.finish()
    }

    /// Does all that can be done now, then lets time pass; false at the end.
    fn step(&mut self) -> Result<bool, Stop> {
        let reached = self.wire.state().advance(self.now);
        self.run_faults()?;
        let mut active = false;
        for nic in 0..self.stations.len() {
            if reached >> nic & 1 != 0 || self.due[nic] <= self.now {
                let turn = self.stations[nic].nic.turn(Time(self.now));
                self.due[nic] = match turn.next_deadline {
                    _ if turn.ready => self.now,
                    Some(deadline) => deadline.0.max(self.now + 1),
                    None => u64::MAX,
                };
                active |= turn.ready;
            }
            active |= self.poll(nic)?;
        }
        active |= self.post_receives()?;
        active |= self.post_sends()?;
        if active {
            return Ok(true);
        }
        self.pass_time()
    }

    fn pass_time(&mut self) -> Result<bool, Stop> {
        let end = self.finishing.map_or(u64::MAX, |at| at + if self.calm { CALM_END_NS } else { FAULTY_END_NS });
        let mut next = self.wire.state().next_arrival().unwrap_or(u64::MAX);
        next = self.due.iter().copied().fold(next, u64::min);
        for receiver in &self.receivers {
            if receiver.wants() && receiver.hungry_until > self.now {
                next = next.min(receiver.hungry_until);
            }
        }
        if self.finishing.is_none() {
            for lane in self.lanes.iter().filter(|lane| lane.next_post > self.now) {
                next = next.min(lane.next_post);
            }
        }
        for &until in &self.port_down {
            if until > self.now {
                next = next.min(until);
            }
        }
        if !self.calm {
            next = next.min(self.next_fault());
        }
        let done = self.finishing.is_some() && self.ledger.flows.iter().all(|f| f.outstanding() == 0 || f.vanished);
        if done && self.calm && self.wire.state().next_arrival().is_none() && !self.drained {
            // Late ACK timers may still run; nobody waits for them.
            self.drained = true;
            return Ok(false);
        }
        if done && !self.calm || next > end {
            if self.calm {
                return Ok(false);
            }
            self.calm = true;
            self.wire.state().calm();
            return Ok(true);
        }
        if next == u64::MAX {
            if self.finishing.is_none() {
                // Nobody has anything to do: every flow is dead or done.
                self.finishing = Some(self.now);
                return Ok(true);
            }
            return Ok(false);
        }
        self.now = next.max(self.now + 1);
        Ok(true)
    }

    /// The checkers look at what is left.
    fn finish(mut self) -> Result<Outcome, Stop> {
        let mut remains = Remains { now: self.now, ..Remains::default() };
        let mut pieces = vec![Vec::new(); self.stations.len()];
        for (lane, flow) in self.lanes.iter().zip(&self.ledger.flows) {
            let mut bytes = vec![0; TARGET_LEN];
            self.stations[flow.to].arena.read(lane.target_offset, &mut bytes)?;
            remains.targets.push(bytes);
            pieces[flow.to].push((lane.target_offset, TARGET_LEN));
        }
        for (index, station) in self.stations.iter().enumerate() {
            let mut word = [0; 8];
            station.arena.read(GUARD, &mut word)?;
            remains.shared.push(u64::from_ne_bytes(word));
            station.touched(index, &mut remains.touched)?;
            station.guards(index, &pieces[index], &mut remains.touched)?;
        }
        let state = self.wire.state();
        for checker in &mut self.checkers {
            checker.end(&self.ledger, &state.tally, &remains)?;
        }
        let mut outcome = outcome(&self.ledger, &state.tally, self.now);
        for station in &self.stations {
            outcome.reached += u64::from(station.was_reached()?);
        }
        Ok(outcome)
    }
}

fn outcome(ledger: &Ledger, tally: &Tally, now: u64) -> Outcome {
    let mut done = [0; 11];
    for op in ledger.flows.iter().flat_map(|flow| &flow.ops) {
        if op.stage == crate::ledger::Stage::Done {
            done[op.kind as usize] += 1;
        }
    }
    Outcome {
        packets: tally.delivered - tally.forged,
        operations: ledger.flows.iter().map(|flow| flow.ops.len() as u64).sum(),
        faults: tally.faults,
        failed_flows: ledger.flows.iter().filter(|flow| flow.failed.is_some()).count() as u64,
        done,
        reached: 0,
        time_ns: now,
        fingerprint: tally.fingerprint,
    }
}

/// Where in a flow's buffers an operation's result lands.
const fn sink(index: usize) -> usize {
    (SLOTS + index % SLOTS) * BUFFER
}

const _: () = assert!(WORDS_LEN < TARGET_LEN);
