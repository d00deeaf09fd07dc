//! A run: NICs, connections and flows of a seed, driven through virtual time until all is done, with the checkers looking
//! on.
//!
//! The loop does what applications, NICs and the wire would do at the same time, in a fixed order: packets arrive, engines
//! take their turns, completions are polled, new work is posted; when nothing more can happen now, time jumps to the next
//! moment at which something can.

use std::sync::Arc;

use scalefabric_nic::PortChange;
use scalefabric_transport::Time;
use scalefabric_verbs::{
    AccessFlags, AddressHandle, FlushLevel, FlushPlacement, MemoryRegion, PostError, Psn, QpAttr, QpAttrMask, QpState,
    QpType, Qpn, SendFlags, SendOp, SendWr, Sge, UdAddress, VerbsError, WcStatus, WorkCompletion,
};

use crate::attacker::{Attacker, Victim, target};
use crate::canary::{Canary, Rule};
use crate::checker::{self, Checker, Event, Remains, Violation};
use crate::ledger::{Flow, Kind, Ledger, Op, SLOTS, TARGET_LEN, WORDS_LEN};
use crate::pattern::{Fault, Faults, Pattern};
use crate::random::{Random, fill};
use crate::receive::{Queue, RECEIVE_BIT, Receiver, gather};
use crate::station::{GUARD, Pair, QKEY, SECRET, Station, everything, path};
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
    /// Packets that arrived.
    pub packets: u64,
    /// Operations that were asked for.
    pub operations: u64,
    /// How often each kind of fault struck.
    pub faults: [u64; Fault::ALL.len()],
    /// Flows that ended with a status that their limits promise.
    pub failed_flows: u64,
    /// Operations of each kind that completed, by `Kind as usize`.
    pub done: [u64; 11],
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

    /// The next time at which a fault begins by itself.
    fn next_fault(&self) -> u64 {
        let flap = if self.faults.flap_ns + self.faults.mtu_ns > 0 { self.next_flap } else { u64::MAX };
        flap.min(self.kill_at.unwrap_or(u64::MAX))
    }

    fn run_faults(&mut self) -> Result<(), Stop> {
        for nic in 0..self.port_down.len() {
            if self.port_down[nic] != 0 && (self.port_down[nic] <= self.now || self.calm) {
                self.port_down[nic] = 0;
                self.stations[nic].nic.change_port(1, PortChange::Up)?;
                self.wire.state().deafen(nic, false);
                self.due[nic] = self.now;
            }
        }
        if self.calm {
            return Ok(());
        }
        if self.next_flap <= self.now && self.faults.flap_ns + self.faults.mtu_ns > 0 {
            let nic = self.random.below(self.stations.len() as u64) as usize;
            let longest = self.faults.flap_ns.max(self.faults.mtu_ns);
            let until = self.now + self.random.range(1_000, longest);
            let flap = self.faults.flap_ns > 0 && (self.faults.mtu_ns == 0 || self.random.chance(500_000));
            match (flap, self.random.chance(300_000)) {
                (true, true) => {
                    self.stations[nic].nic.change_port(1, PortChange::Down)?;
                    self.wire.state().deafen(nic, true);
                    self.port_down[nic] = until;
                    self.wire.state().tally.strike(Fault::LinkFlap);
                }
                (true, false) => self.wire.state().cut(nic, until),
                (false, _) => self.wire.state().narrow(nic, until),
            }
            self.next_flap = until + self.random.range(50_000, 400_000);
        }
        if self.kill_at.is_some_and(|at| at <= self.now) {
            self.kill_at = None;
            self.kill()?;
        }
        if self.next_forgery <= self.wire.state().tally.sent && self.faults.forge_ppm > 0 {
            let rate = 1_000_000 / u64::from(self.faults.forge_ppm);
            self.next_forgery = self.wire.state().tally.sent + self.random.range(rate / 2 + 1, rate * 2);
            self.forge()?;
        }
        Ok(())
    }

    fn forge(&mut self) -> Result<(), Stop> {
        let mut working: Vec<(usize, Qpn, Psn)> = Vec::with_capacity(8);
        for connection in &self.connections {
            working.push(target(connection.plan.nics[1], &*connection.pair.qps[1], connection.plan.psns[0]));
        }
        self.attacker.strike(&self.wire, &self.stations, &working, &self.victims);
        let mut canary = self.wire.state().canary.take();
        if let Some(canary) = &mut canary
            && canary.occasion(Rule::WriteAnywhere)
        {
            let station = &self.stations[0];
            station.arena.write(station.forbidden[0].offset + 17, &[0xa5])?;
        }
        self.wire.state().canary = canary;
        Ok(())
    }

    /// Takes the second side of the connections that are to be killed away, as if its process had died.
    fn kill(&mut self) -> Result<(), Stop> {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if !connection.plan.killed {
                continue;
            }
            let qp = &connection.pair.qps[1];
            let (attr, _) = qp.query()?;
            qp.modify(&QpAttr { qp_state: QpState::Reset, ..attr }, QpAttrMask::STATE)?;
            if let Some(flow) = connection.flows[0] {
                self.ledger.flows[flow].orphaned_ns = Some(self.now);
            }
            if let Some(flow) = connection.flows[1] {
                self.account_unknown(flow);
                self.ledger.flows[flow].vanish();
            }
            for receiver in &mut self.receivers {
                receiver.closed |= receiver.connection.0 == index;
            }
        }
        Ok(())
    }

    /// Operations of a flow that will not be heard of again may or may not have taken effect.
    fn account_unknown(&mut self, flow: usize) {
        let flow = &self.ledger.flows[flow];
        let adds = flow.ops[flow.ended..].iter().filter(|op| op.kind == Kind::SharedAdd).count();
        self.ledger.shared_unknown[flow.to] += adds as u64;
    }

    fn post_receives(&mut self) -> Result<bool, Stop> {
        let mut posted = false;
        for index in 0..self.receivers.len() {
            let receiver = &mut self.receivers[index];
            if !receiver.wants() || receiver.hungry_until > self.now && !self.calm {
                continue;
            }
            if !self.calm && self.random.chance(self.faults.starve_ppm) {
                receiver.hungry_until = self.now + self.random.range(10_000, 400_000);
                self.wire.state().tally.strike(Fault::ReceiverNotReady);
                continue;
            }
            let count = self.random.range(1, 8) as usize;
            receiver.post(count)?;
            let (connection, side) = receiver.connection;
            let nic = self.connections[connection].plan.nics[side];
            self.due[nic] = self.now;
            posted = true;
        }
        Ok(posted)
    }

    fn post_sends(&mut self) -> Result<bool, Stop> {
        if self.finishing.is_some() {
            return Ok(false);
        }
        let mut posted = false;
        for lane in 0..self.lanes.len() {
            let chain = self.lanes[lane].source.chain_length();
            let flow = &self.ledger.flows[lane];
            if flow.is_dead() || flow.outstanding() + chain > SLOTS - 2 || self.lanes[lane].next_post > self.now {
                continue;
            }
            if !flow.is_reliable() {
                self.lanes[lane].next_post = self.now + self.random.range(3_000, 30_000);
            }
            self.post_chain(lane, chain)?;
            posted = true;
        }
        if self.ledger.flows.iter().all(|flow| flow.is_dead() || !flow.is_reliable()) && self.rebuilt < REBUILDS {
            self.rebuild()?;
            posted = true;
        }
        let operations: usize = self.ledger.flows.iter().map(|flow| flow.ops.len()).sum();
        let tally = &self.wire.state().tally;
        let enough = tally.delivered >= MIN_PACKETS && tally.kinds() >= MIN_KINDS && self.kill_at.is_none();
        let enough = enough && self.main.is_none_or(|main| tally.faults[main as usize] > 0);
        if enough || operations > MAX_OPS {
            self.finishing = Some(self.now);
        }
        Ok(posted)
    }

    /// All reliable flows have given up: a new connection goes on with the work.
    fn rebuild(&mut self) -> Result<(), Stop> {
        self.rebuilt += 1;
        let psns = [self.random.below(1 << 24) as u32, self.random.below(1 << 24) as u32];
        let plan = ConnectionPlan { psns, ..self.connections[0].plan };
        let v6 = crate::wire::address(0, true) == self.wire.state().address(0);
        self.connect(self.random.clone().next(), &plan, v6)
    }

    fn post_chain(&mut self, lane: usize, chain: usize) -> Result<(), Stop> {
        let connection = &self.connections[self.lanes[lane].connection];
        let (plan, nic) = (connection.plan, connection.plan.nics[self.lanes[lane].side]);
        let qp = connection.pair.qps[self.lanes[lane].side].clone();
        if self.ledger.flows[lane].outstanding() == 0 {
            self.wire.state().stir(nic, qp.qp_num());
        }
        let mut inline = [[0; 64]; 4];
        let mut sges = [[Sge::default(); 3]; 4];
        let mut pieces = [0; 4];
        let mut first = 0;
        for i in 0..chain {
            let flow = &self.ledger.flows[lane];
            let op = self.lanes[lane].source.next(flow, i + 1 == chain, plan.sq_sig_all);
            if op.kind == Kind::SharedAdd {
                self.ledger.shared_adds[flow.to] += 1;
            }
            let index = self.ledger.flows[lane].post(op);
            first = index + 1 - chain.min(i + 1);
            self.prepare(lane, index, &mut inline[i], &mut sges[i], &mut pieces[i])?;
        }
        let lane_state = &self.lanes[lane];
        let peer = connection_peer(&self.connections[lane_state.connection], lane_state.side);
        let xrc_srqn = match (&self.connections[lane_state.connection].pair.srq, plan.qp_type) {
            (Some(srq), QpType::XrcSend) => Some(srq.srq_num()),
            _ => None,
        };
        let ud = lane_state.ah.as_deref().map(|ah| UdAddress { ah, remote_qpn: peer, remote_qkey: QKEY });
        let shared = &self.stations[plan.nics[1 - lane_state.side]].shared;
        let wr = |i: usize| {
            let index = first + i.min(chain - 1);
            let op = &self.ledger.flows[lane].ops[index];
            let wr = SendWr::new((lane as u64) << 32 | index as u64, operation(op, lane_state, &**shared));
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, op.signaled);
            flags.set(SendFlags::FENCE, op.fence);
            flags.set(SendFlags::INLINE, op.inline);
            flags.set(SendFlags::SOLICITED, op.kind.takes_receive() && op.imm & 3 == 0);
            let inline_data = if op.inline { &inline[i][..op.length] } else { &[] };
            SendWr { flags, sg_list: &sges[i][..pieces[i]], inline_data, ud, xrc_srqn, ..wr }
        };
        let chain_of_wrs = [wr(0), wr(1), wr(2), wr(3)];
        qp.post_send(&chain_of_wrs[..chain])?;
        self.due[nic] = self.now;
        Ok(())
    }

    /// Fills an operation's buffers and names them.
    fn prepare(
        &mut self,
        lane: usize,
        index: usize,
        inline: &mut [u8; 64],
        sges: &mut [Sge; 3],
        used: &mut usize,
    ) -> Result<(), Stop> {
        let (lane, flow) = (&self.lanes[lane], &self.ledger.flows[lane]);
        let op = &flow.ops[index];
        let slot = index % SLOTS;
        let (layout, base) = match op.kind {
            // The READ before it brought the bytes into its own buffer.
            Kind::Relay => (lane.layouts[(index - 1) % SLOTS], sink(index - 1)),
            kind if kind.brings() => (lane.layouts[slot], sink(index)),
            _ => (lane.layouts[slot], slot * BUFFER),
        };
        if op.kind == Kind::Flush {
            return Ok(());
        }
        let mut payload = std::mem::take(&mut self.scratch);
        payload.clear();
        payload.resize(op.length, 0);
        match op.kind {
            Kind::AtomicWrite => payload.copy_from_slice(&op.words[1].to_ne_bytes()),
            _ => fill(op.key, 0, &mut payload),
        }
        if op.inline {
            inline[..op.length].copy_from_slice(&payload);
        } else {
            let writes = !op.kind.brings() && op.kind != Kind::Relay;
            for (offset, range) in layout.pieces(op.length) {
                if writes {
                    lane.buffers.write(base + offset, &payload[range.clone()])?;
                }
                let addr = lane.buffers.addr() + (base + offset) as u64;
                sges[*used] = Sge { addr, length: range.len() as u32, lkey: lane.buffers.lkey() };
                *used += 1;
            }
        }
        self.scratch = payload;
        Ok(())
    }

    fn poll(&mut self, nic: usize) -> Result<bool, Stop> {
        let mut wcs = [WorkCompletion::default(); 16];
        let mut any = false;
        for receives in [false, true] {
            loop {
                let station = &self.stations[nic];
                let cq = if receives { &station.recv_cq } else { &station.send_cq };
                let count = cq.poll(&mut wcs)?;
                for wc in &wcs[..count] {
                    match receives {
                        true => self.received(nic, wc)?,
                        false => self.completed(wc)?,
                    }
                }
                any |= count > 0;
                if count < wcs.len() {
                    break;
                }
            }
        }
        Ok(any)
    }

    fn completed(&mut self, wc: &WorkCompletion) -> Result<(), Stop> {
        if self.wire.state().trace {
            let (flow, op) = (wc.wr_id >> 32, wc.wr_id & 0xffff_ffff);
            println!("{:>10} flow {flow} operation {op}: {:?} on {}", self.now, wc.status, wc.qp_num);
        }
        let forgotten = self.wire.state().canary.as_mut().is_some_and(|canary| canary.occasion(Rule::ForgetCompletion));
        if forgotten {
            return Ok(());
        }
        let (id, index) = ((wc.wr_id >> 32) as usize, (wc.wr_id & 0xffff_ffff) as usize);
        if wc.wr_id & RECEIVE_BIT != 0 || id >= self.lanes.len() || index >= self.ledger.flows[id].ops.len() {
            return Err(violation("exactly once", format!("a completion of nothing that was posted: {wc:?}")));
        }
        let (lane, flow) = (&self.lanes[id], &self.ledger.flows[id]);
        let op = flow.ops[index];
        let success = wc.status == WcStatus::Success;
        let mut brought = std::mem::take(&mut self.scratch);
        let mut target = std::mem::take(&mut self.message);
        brought.clear();
        target.clear();
        if success && op.kind.brings() {
            let layout = lane.layouts[index % SLOTS];
            if !gather(&*lane.buffers, sink(index), &layout, op.length, &mut brought)? {
                return Err(violation("isolation", format!("flow {id}: {:?} {index} wrote between its SGEs", op.kind)));
            }
        }
        if success && op.writes() {
            target.resize(op.length, 0);
            self.stations[flow.to].arena.read(lane.target_offset + op.target, &mut target)?;
        }
        let event = Event::Completed { flow: id, op: index, wc, brought: &brought, target: &target, now: self.now };
        self.check(&event)?;
        let flow = &mut self.ledger.flows[id];
        if success {
            flow.succeed(index);
        } else {
            flow.fail(index, wc.status, self.now);
        }
        if op.kind == Kind::SharedAdd {
            match <[u8; 8]>::try_from(&brought[..]) {
                Ok(old) if success => self.ledger.shared_olds[flow.to].push(u64::from_ne_bytes(old)),
                _ => self.ledger.shared_unknown[flow.to] += 1,
            }
        }
        if self.ledger.flows[id].failed.is_some() {
            self.close(id);
        }
        self.scratch = brought;
        self.message = target;
        Ok(())
    }

    /// A flow has failed: its QP is in ERR, so that whatever the peer asks of it ends as well.
    fn close(&mut self, id: usize) {
        let (connection, side) = (self.lanes[id].connection, self.lanes[id].side);
        for receiver in &mut self.receivers {
            receiver.closed |= receiver.connection == (connection, side);
        }
        if let Some(back) = self.connections[connection].flows[1 - side]
            && self.ledger.flows[back].orphaned_ns.is_none()
        {
            self.ledger.flows[back].orphaned_ns = Some(self.now);
        }
    }

    fn received(&mut self, nic: usize, wc: &WorkCompletion) -> Result<(), Stop> {
        let (queue, slot, number) = Receiver::decode(wc.wr_id);
        if wc.wr_id & RECEIVE_BIT == 0 || queue >= self.receivers.len() {
            return Err(violation("exactly once", format!("NIC {nic}: a receive that was never posted: {wc:?}")));
        }
        let (connection, side) = self.receivers[queue].connection;
        let Some(flow) = self.connections[connection].flows[1 - side] else {
            return Err(violation("order", format!("NIC {nic}: a receive of a side that nobody sends to")));
        };
        let mut message = std::mem::take(&mut self.message);
        let grh = if self.ledger.flows[flow].qp_type == QpType::Ud { 40 } else { 0 };
        // The bytes of a WRITE with immediate are elsewhere.
        let with_message = wc.status == WcStatus::Success && wc.opcode == scalefabric_verbs::WcOpcode::Recv;
        let length = if with_message { wc.byte_len as usize } else { 0 };
        if !self.receivers[queue].take(slot, length.min(BUFFER - 16), &mut message)? {
            return Err(violation(
                "isolation",
                format!("flow {flow}: a message was written between SGEs of its receive"),
            ));
        }
        let event = Event::Received {
            flow,
            receive: (queue, number),
            wc,
            message: message.get(grh.min(length)..).unwrap_or(&[]),
        };
        self.check(&event)?;
        self.message = message;
        match wc.status {
            WcStatus::Success => {
                let flow = &mut self.ledger.flows[flow];
                if flow.is_reliable()
                    && let Some(index) = flow.expect_receive()
                {
                    flow.next_receive = index + 1;
                }
            }
            WcStatus::WrFlushErr if self.receivers[queue].closed || self.ledger.flows[flow].is_dead() => {
                self.receivers[queue].closed = true;
            }
            status => {
                return Err(violation(
                    "progress",
                    format!("flow {flow}: a receive ended with {status}, without reason"),
                ));
            }
        }
        Ok(())
    }

    fn check(&mut self, event: &Event<'_>) -> Result<(), Stop> {
        let state = self.wire.state();
        for checker in &mut self.checkers {
            checker.see(&self.ledger, &state.tally, event)?;
        }
        Ok(())
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
        Ok(outcome(&self.ledger, &state.tally, self.now))
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
        packets: tally.delivered,
        operations: ledger.flows.iter().map(|flow| flow.ops.len() as u64).sum(),
        faults: tally.faults,
        failed_flows: ledger.flows.iter().filter(|flow| flow.failed.is_some()).count() as u64,
        done,
        time_ns: now,
        fingerprint: tally.fingerprint,
    }
}

/// Where in a flow's buffers an operation's result lands.
const fn sink(index: usize) -> usize {
    (SLOTS + index % SLOTS) * BUFFER
}

fn connection_peer(connection: &Connection, side: usize) -> Qpn {
    connection.pair.qps[1 - side].qp_num()
}

/// An operation in the words of the verbs.
fn operation<'a>(op: &Op, lane: &Lane, shared: &dyn MemoryRegion) -> SendOp<'a> {
    let (remote_addr, rkey) = (lane.target_addr + op.target as u64, lane.target_rkey);
    debug_assert!(op.target + op.length <= TARGET_LEN || !op.writes());
    match op.kind {
        Kind::Send => SendOp::Send,
        Kind::SendImm => SendOp::SendWithImm { imm: op.imm },
        Kind::Write | Kind::Relay => SendOp::Write { remote_addr, rkey },
        Kind::WriteImm => SendOp::WriteWithImm { remote_addr, rkey, imm: op.imm },
        Kind::Read => SendOp::Read { remote_addr, rkey },
        Kind::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: op.words[0], swap: op.words[1] },
        Kind::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: op.words[1] },
        Kind::SharedAdd => SendOp::FetchAdd { remote_addr: shared.addr(), rkey: shared.rkey(), add: 1 },
        Kind::Flush => {
            let whole = op.imm & 1 != 0;
            let level = if whole { FlushLevel::MemoryRegion } else { FlushLevel::Range };
            SendOp::Flush { remote_addr, rkey, length: op.length as u32, placement: FlushPlacement::Global, level }
        }
        Kind::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
    }
}

const _: () = assert!(WORDS_LEN < TARGET_LEN);
