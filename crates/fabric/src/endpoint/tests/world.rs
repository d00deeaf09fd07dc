//! Two sides of a connection in one thread and virtual time: shipped sessions, logs, receive halves and ways home; simulated QPs, ports, channel and clock. One
//! step at a time, in an order that a seed decides. Which path a side takes, and how it hears of ports, is in `ports`.

use super::super::log::{Bounds, Stage};
use super::super::operation::{Operation, Remote};
use super::super::receive::{ReceivePool, Receiver};
use super::super::resolve::resolve;
use super::super::send::{MARKER, Outlet, Sender};
use super::super::trigger::Home;
use super::super::{Completion, Piece};
use super::fake::{Effect, FakeCq, FakeQp, FakeRegion, FakeSrq};
use super::ports::{Heard, Ports};
use crate::buffer::{Local, RemoteRange};
use crate::directory::{FencingToken, OrderResult};
use crate::error::FabricError;
use crate::operation::Outcome;
use crate::path::Path;
use crate::session::{
    Abilities, Action, Body, Change, Drained, Input, LaneId, Patience, QpOffer, Role, Session, Setup, Strategy, Ticket,
};
use scalefabric_verbs::{Gid, MigState, QueuePair, SendFlags, SendOp, SendWr, Sge, WcStatus};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// SplitMix64.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

struct Nothing;

impl Local for Nothing {
    fn len(&self) -> usize {
        8
    }
    fn sge(&self, _: usize, length: usize) -> Option<Sge> {
        Some(Sge { length: length as u32, ..Sge::default() })
    }
    fn remote(&self, _: usize, _: usize) -> Option<RemoteRange> {
        None
    }
}

/// What an operation of the workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Message,
    Write,
    IdempotentWrite,
    Atomic,
    Read,
}

pub struct Side {
    pub session: Option<Session>,
    pub sender: Sender,
    pub receiver: Receiver,
    send_cq: Arc<FakeCq>,
    recv_cq: Arc<FakeCq>,
    srq: Arc<FakeSrq>,
    pub lanes: BTreeMap<LaneId, (Path, Arc<FakeQp>)>,
    /// What was loaded.
    alternate: Option<Path>,
    hand_over: Option<LaneId>,
    /// The QP that drains, and whether it goes on as soon as it has.
    draining: Option<(LaneId, bool)>,
    /// The QP that is to migrate, and the operation whose end says that its peer is armed.
    migrating: Option<(LaneId, Option<u64>)>,
    pub inputs: VecDeque<Input>,
    broken_told: bool,
    pub path: Option<Path>,
    pub home: Home,
    /// What the device tells, on its way.
    pub heard: VecDeque<Heard>,
    /// What was posted, by number.
    pub sorts: Vec<Sort>,
    /// How it ended, in the order in which it was told.
    pub ended: Vec<(u64, Outcome)>,
    /// Immediates that the application received.
    pub received: Vec<u32>,
    /// How often each of this side's operations was executed at the peer.
    pub executed: HashMap<u64, u32>,
    pub closed: Option<FabricError>,
    /// Orders without an answer; `None`: the way home.
    pub asked: BTreeMap<Ticket, Option<Path>>,
    tickets: u64,
    /// Answers that were wrong.
    pub wrong: Option<String>,
}

pub struct World {
    pub sides: [Side; 2],
    pub ports: Ports,
    qps: BTreeMap<u32, (usize, Arc<FakeQp>)>,
    /// Messages on their way to each side; `None`: there is no channel.
    channel: Option<[VecDeque<Body>; 2]>,
    pub now: u64,
    pub dice: Dice,
    next_qp: u32,
    pub vouches: bool,
    /// A canary: operations are resolved as if the peer had received less than it says.
    pub forgets: bool,
    /// Nothing fails any more.
    pub calm: bool,
    /// Time goes by in small steps only, so that nobody's patience ends.
    pub steady: bool,
    pub moves: u64,
    /// Those that kept the QP.
    pub turns: u64,
    /// Those that did not drain it either.
    pub migrations: u64,
    /// Orders that were answered as done.
    pub done: u64,
    pub rebuilds: u64,
    trace: bool,
}

pub const MS: u64 = 1_000_000;

impl World {
    pub fn new(seed: u64) -> Self {
        let patience = Patience { give_up_ns: 60_000 * MS, connect_ns: 60_000 * MS, ..Patience::default() };
        let mut dice = Dice::new(seed);
        let can = [dice.below(4) > 0, dice.below(4) > 0];
        let loads = [dice.below(4) > 0, dice.below(4) > 0];
        let setup = |role: Role, seed| Setup {
            role,
            service: "s".into(),
            tenant: String::new(),
            path: None,
            patience,
            abilities: Abilities {
                drained_vector: can[usize::from(role == Role::Follower)],
                alternate_path: loads[usize::from(role == Role::Follower)],
            },
            seed,
        };
        let side = |role| {
            let (send_cq, recv_cq, srq) = <(Arc<FakeCq>, Arc<FakeCq>, Arc<FakeSrq>)>::default();
            let pool = ReceivePool::of(srq.clone(), Arc::new(FakeRegion), 16, 64).unwrap();
            let bounds =
                Bounds { max_inline: 64, max_rd_atomic: 4, peer_receive_bytes: 64, keys: 0, domain: 0, xrc_srqn: None };
            Side {
                session: Some(Session::new(setup(role, seed), 0)),
                sender: Sender::new(send_cq.clone(), 16, bounds),
                receiver: Receiver::new(recv_cq.clone(), pool),
                send_cq,
                recv_cq,
                srq,
                lanes: BTreeMap::new(),
                alternate: None,
                hand_over: None,
                draining: None,
                migrating: None,
                inputs: VecDeque::new(),
                broken_told: false,
                path: None,
                home: Home::default(),
                heard: VecDeque::new(),
                sorts: Vec::new(),
                ended: Vec::new(),
                received: Vec::new(),
                executed: HashMap::new(),
                closed: None,
                asked: BTreeMap::new(),
                tickets: 0,
                wrong: None,
            }
        };
        Self {
            sides: [side(Role::Leader), side(Role::Follower)],
            ports: Ports::default(),
            qps: BTreeMap::new(),
            channel: None,
            now: 0,
            dice,
            next_qp: 0x100,
            vouches: seed.is_multiple_of(2),
            forgets: false,
            calm: false,
            steady: false,
            moves: 0,
            turns: 0,
            migrations: 0,
            done: 0,
            rebuilds: 0,
            trace: std::env::var("FABRIC_TRACE").is_ok(),
        }
    }

    /// Something happens.
    pub fn step(&mut self) {
        let s = self.dice.below(2) as usize;
        match self.dice.below(14) {
            0..=2 => self.hear(s),
            3..=5 => self.execute(),
            6 => self.acknowledge(),
            7..=9 => self.look(s),
            10 => self.hear_port(s),
            11 => self.starve(),
            _ => self.wait(),
        }
        self.act();
    }

    /// The application posts some operations.
    pub fn post(&mut self, s: usize) {
        for _ in 0..=self.dice.below(4) {
            let sort = match self.dice.below(8) {
                0 => Sort::Write,
                1 => Sort::IdempotentWrite,
                2 => Sort::Atomic,
                3 => Sort::Read,
                _ => Sort::Message,
            };
            let side = &mut self.sides[s];
            let number = side.sorts.len() as u64;
            let piece = Piece::new(Arc::new(Nothing), 0, 8);
            let at = RemoteRange { addr: number + 1, length: 8, rkey: 1 };
            let operation = match sort {
                Sort::Message => Operation::send_with_imm(&[0u8; 8], number as u32),
                Sort::Write => Operation::write(&[0u8; 8], at),
                Sort::IdempotentWrite => Operation::write(&[0u8; 8], at).idempotent(),
                Sort::Atomic => Operation::fetch_add(&piece, Remote::Range(at), 1),
                Sort::Read => Operation::read(&piece, at),
            };
            let operation = operation.context(number);
            if side.sender.post(&[operation]).is_ok_and(|count| count == 1) {
                side.sorts.push(sort);
            }
        }
    }

    /// An order to move: to another port, or by another source port, in one of the ways.
    pub fn order_move(&mut self, s: usize) {
        let (port_num, label) = (1 + self.dice.below(2) as u8, self.dice.below(100) as u32);
        let mut path = Path { flow_label: label, ..super::ports::path(s, port_num) };
        if self.dice.below(2) == 0
            && let Some(present) = &self.sides[s].path
        {
            path = Path { flow_label: label, ..present.clone() };
        }
        let both = s == 0 && self.dice.below(3) == 0;
        let peer_path = both.then(|| super::ports::path(1, 1 + self.dice.below(2) as u8));
        let strategy = match self.dice.below(5) {
            0 => Some(Strategy::MakeBeforeBreak),
            1 => Some(Strategy::DrainedVector),
            2 => Some(Strategy::AlternatePath),
            _ => None,
        };
        let token = FencingToken(1);
        let side = &mut self.sides[s];
        if side.session.is_none() || side.closed.is_some() {
            return;
        }
        side.home.forget();
        let wanted = Some(path.clone());
        side.order(Change { path, peer_path, strategy, token, reason: String::new() }, wanted);
        self.act();
    }

    /// A QP fails.
    pub fn break_qp(&mut self) {
        let up: Vec<Arc<FakeQp>> = self.qps.values().filter(|(_, qp)| qp.is_up()).map(|(_, qp)| qp.clone()).collect();
        if !up.is_empty() {
            up[self.dice.below(up.len() as u64) as usize].fail(WcStatus::RetryExcErr);
        }
    }

    /// The channel breaks, and what was on it is lost.
    pub fn break_channel(&mut self) {
        if self.channel.take().is_some() {
            for side in &mut self.sides {
                side.inputs.push_back(Input::ChannelDown { reason: "broken".into() });
            }
        }
        self.act();
    }

    /// A process ends: its QPs and its end of the channel with it.
    pub fn kill(&mut self, s: usize) {
        self.sides[s].session = None;
        let dead: Vec<u32> = self.qps.iter().filter(|(_, (of, _))| *of == s).map(|(n, _)| *n).collect();
        for qp_num in dead {
            self.qps.remove(&qp_num);
        }
        self.break_channel();
    }

    /// A QP whose packets reach nobody that hears it fails after its retries, if any are on their way.
    fn starve(&mut self) {
        for (s, qp) in self.qps.values() {
            let reached = self.qps.get(&qp.peer()).is_some_and(|(_, peer)| {
                (qp.hears(peer) || peer.follows(qp))
                    && self.ports.carries(*s, qp.sgid())
                    && self.ports.carries(1 - s, peer.sgid())
            });
            if qp.is_up() && qp.is_busy() && !reached && self.dice.below(4) == 0 && !qp.migrate() {
                qp.fail(WcStatus::RetryExcErr);
            }
        }
    }

    /// QPs that send to one another's former addresses, on ports that are up: what they send would wait for a retry.
    pub fn deaf(&self) -> usize {
        let deaf = |(_, qp): &&(usize, Arc<FakeQp>)| {
            qp.is_up()
                && qp.is_busy()
                && self
                    .qps
                    .get(&qp.peer())
                    .is_some_and(|(_, peer)| peer.is_up() && !qp.hears(peer) && !qp.follows(peer) && !peer.follows(qp))
        };
        self.qps.values().filter(deaf).count()
    }

    pub fn jump(&mut self) {
        self.now = match self.dice.below(3) {
            0 => self.now.saturating_sub(self.dice.below(1000 * MS)),
            _ => self.now + self.dice.below(3000 * MS),
        };
    }

    fn hear(&mut self, s: usize) {
        if let Some(channel) = &mut self.channel
            && let Some(body) = channel[s].pop_front()
            && let Some(session) = &self.sides[s].session
        {
            match (session.is_closed(), &body) {
                // Who serves the channel knows the connection no more.
                (true, Body::Close { .. }) => {}
                (true, _) => channel[1 - s].push_back(Body::Close { reason: "unknown connection".into() }),
                (false, _) => self.sides[s].inputs.push_back(Input::Message(body)),
            }
        }
    }

    fn execute(&mut self) {
        let numbers: Vec<u32> = self.qps.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = numbers[self.dice.below(numbers.len() as u64) as usize];
        let (s, qp) = self.qps[&number].clone();
        let Some((_, peer)) = self.qps.get(&qp.peer()) else { return };
        if !self.ports.carries(s, qp.sgid()) || !self.ports.carries(1 - s, peer.sgid()) {
            return;
        }
        let number = match qp.execute(peer) {
            Some(Effect::Message(imm)) => u64::from(imm),
            Some(Effect::Change(address)) => address - 1,
            Some(Effect::Nothing) | None => return,
        };
        *self.sides[s].executed.entry(number).or_default() += 1;
    }

    fn acknowledge(&mut self) {
        for (s, qp) in self.qps.values() {
            if self.dice.below(2) == 0 && self.ports.carries(*s, qp.sgid()) {
                qp.acknowledge(self.qps.get(&qp.peer()).map(|(_, peer)| &**peer));
            }
        }
    }

    /// A side polls its queues.
    fn look(&mut self, s: usize) {
        let side = &mut self.sides[s];
        if side.session.is_none() {
            return;
        }
        let sent = side.sender.poll().unwrap();
        let got = side.receiver.poll().unwrap();
        let broken = sent.broken.map(|(lane, _)| lane).or(got.broken.map(|(lane, _)| lane));
        if let Some(lane) = broken
            && !side.broken_told
        {
            side.broken_told = true;
            side.inputs.push_back(Input::Broken { lane, reason: "failed".into() });
        }
        if let Some(lane) = got.received {
            side.inputs.push_back(Input::Received { lane });
        }
        if let Some(lane) = side.hand_over
            && side.sender.is_idle()
        {
            side.hand_over = None;
            side.inputs.push_back(Input::Idle { lane, sent: side.sender.executed });
        }
        if let Some((lane, resume)) = side.draining
            && let Some((_, qp)) = side.lanes.get(&lane)
            && !qp.is_draining()
        {
            side.draining = None;
            if resume {
                qp.resume();
            } else if qp.is_drained() {
                side.inputs.push_back(Input::Quiet { lane });
            } else {
                side.inputs.push_back(Input::Broken { lane, reason: "failed while it was drained".into() });
            }
        }
        side.take();
        self.look_at_migration(s);
    }

    /// As `alternate` has it.
    fn look_at_migration(&mut self, s: usize) {
        let side = &mut self.sides[s];
        let Some((lane, probe)) = side.migrating else { return };
        let leads = side.session.as_ref().is_some_and(|session| session.role() == Role::Leader);
        let Some((_, qp)) = side.lanes.get(&lane).filter(|(_, qp)| qp.is_up()) else {
            side.migrating = None;
            return side.inputs.push_back(Input::Broken { lane, reason: "failed before it migrated".into() });
        };
        let armed = qp.migration() == MigState::Armed && (!leads || probe.is_some_and(|n| side.sender.has_ended(n)));
        if qp.migration() != MigState::Migrated && !(armed && qp.migrate()) {
            if probe.is_none() {
                side.migrating = Some((lane, side.sender.probe()));
            }
            return;
        }
        side.migrating = None;
        if let (Some(path), Some((present, _))) = (side.alternate.take(), side.lanes.get_mut(&lane)) {
            *present = path;
        }
        (self.moves, self.migrations) = (self.moves + 1, self.migrations + 1);
        side.take_path(lane);
        side.sender.probe();
        side.inputs.push_back(Input::Vectored { lane });
        self.leave_dead_port(s);
    }

    fn load(&mut self, s: usize, lane: LaneId, path: Option<Path>, dgid: Option<std::net::Ipv6Addr>) {
        let refused = !self.calm && self.dice.below(30) == 0;
        let side = &mut self.sides[s];
        let Some((present, qp)) = side.lanes.get(&lane) else { return };
        let mut path = path.unwrap_or_else(|| present.clone());
        path.dgid = dgid.map_or(present.dgid, |gid| Gid(gid.octets()));
        if !refused && self.ports.is_up(s, path.port_num) && qp.is_up() {
            qp.load(path.sgid, path.dgid);
            side.alternate = Some(path);
            side.inputs.push_back(Input::Loaded { lane });
        } else {
            side.inputs.push_back(Input::NotVectored { lane, reason: "refused".into() });
        }
    }

    fn wait(&mut self) {
        self.now += self.dice.below(MS);
        let deadline = |side: &Side| {
            let home = side.home.deadline_ns().filter(|_| side.session.as_ref().is_some_and(Session::is_up));
            side.session.as_ref()?.deadline_ns().into_iter().chain(home).min()
        };
        let next = self.sides.iter().filter_map(deadline).min();
        if let Some(next) = next
            && self.dice.below(10) == 0
            && !self.steady
        {
            // Never far: what has just happened must be heard by somebody before his patience ends.
            self.now = self.now.max(next.min(self.now + 3000 * MS));
        }
        for side in &mut self.sides {
            if self.channel.is_none() && side.session.is_some() && self.dice.below(10) == 0 {
                side.sender.probe();
            }
            if let Some(session) = &mut side.session
                && session.deadline_ns().is_some_and(|at| at <= self.now)
            {
                session.handle_timer(self.now);
            }
        }
    }

    /// Sessions hear what happened, and what they want is done.
    fn act(&mut self) {
        for s in 0..2 {
            while let Some(session) = &mut self.sides[s].session {
                if let Some(action) = session.poll_action() {
                    self.carry_out(s, action);
                } else if let Some(input) = self.sides[s].inputs.pop_front() {
                    let now = self.now;
                    if let Some(session) = &mut self.sides[s].session {
                        session.handle(input, now);
                    }
                } else if !self.go_home(s) {
                    break;
                }
            }
        }
    }

    fn carry_out(&mut self, s: usize, action: Action) {
        if self.trace {
            eprintln!("{} ms, side {s}: {action:?}", self.now / MS);
        }
        let other = 1 - s;
        match action {
            Action::Dial => {
                if self.sides[other].session.is_some() && self.dice.below(3) > 0 {
                    self.channel = Some(Default::default());
                    for side in &mut self.sides {
                        side.inputs.push_back(Input::ChannelUp);
                    }
                } else {
                    self.sides[s].inputs.push_back(Input::ChannelDown { reason: "nobody answers".into() });
                }
            }
            Action::Send(body) => {
                if let Some(channel) = &mut self.channel {
                    channel[other].push_back(body);
                }
            }
            Action::Make { lane, path, .. } => self.make(s, lane, path),
            Action::Ready { lane, peer } => {
                let side = &mut self.sides[s];
                let (path, qp) = side.lanes.get_mut(&lane).unwrap();
                path.dgid = Gid(peer.gid.octets());
                qp.ready(peer.qp_num, path.dgid, peer.psn);
                side.inputs.push_back(Input::Ready { lane });
            }
            Action::Stop => self.stop(s),
            Action::Resolve(mut peer) => {
                let side = &mut self.sides[s];
                if self.forgets {
                    peer.received = peer.received.saturating_sub(1).max(side.sender.executed);
                }
                let (executed, posted) = (side.sender.executed, side.sender.messages);
                match resolve(&mut side.sender.log, &peer, executed, posted, 0, |_, _| false) {
                    Ok(_) => side.sender.restart(peer.received),
                    Err(reason) => side.inputs.push_back(Input::Contradicted { reason }),
                }
                side.take();
            }
            Action::Use { lane } => {
                self.rebuilds += u64::from(lane.0 > 1);
                let before = self.sides[s].path.clone().filter(|_| !self.sides[s].home.is_away());
                self.use_lane(s, lane);
                let side = &mut self.sides[s];
                side.receiver.open(lane);
                if let (Some(before), Some(now)) = (before, &side.path)
                    && before.port_num != now.port_num
                {
                    side.home.leave(&before, self.now);
                }
                self.leave_dead_port(s);
            }
            Action::HandOver { lane } => {
                self.sides[s].sender.hold();
                self.sides[s].hand_over = Some(lane);
            }
            Action::Switch { lane } => {
                self.use_lane(s, lane);
                self.leave_dead_port(s);
            }
            Action::Drain { lane, path } => self.drain(s, lane, path),
            Action::Vector { lane, path, dgid } => self.vector(s, lane, path, dgid),
            Action::Load { lane, path, dgid } => self.load(s, lane, path, dgid),
            Action::Migrate { lane } => self.sides[s].migrating = Some((lane, None)),
            Action::Unload { lane } => {
                let side = &mut self.sides[s];
                (side.migrating, side.alternate) = (None, None);
                if let Some((_, qp)) = side.lanes.get(&lane) {
                    qp.unload();
                }
            }
            Action::Resume { lane } => {
                let side = &mut self.sides[s];
                side.draining = None;
                if let Some((_, qp)) = side.lanes.get(&lane) {
                    if qp.is_draining() {
                        side.draining = Some((lane, true));
                    } else {
                        qp.resume();
                    }
                }
                self.leave_dead_port(s);
            }
            Action::Expect { lane, after } => {
                let side = &mut self.sides[s];
                match side.receiver.expect(lane, after) {
                    Ok(found) => {
                        if let Some(lane) = found.received {
                            side.inputs.push_back(Input::Received { lane });
                        }
                    }
                    Err(error) => side.inputs.push_back(Input::Contradicted { reason: error.message }),
                }
            }
            Action::Discard { lane } => self.destroy(s, |other| other == lane),
            Action::Retire { lane } => {
                self.moves += 1;
                self.destroy(s, |other| other < lane);
            }
            Action::Answer { ticket, result } => {
                self.done += u64::from(matches!(result, OrderResult::Done { .. }));
                self.sides[s].answered(ticket, &result, self.now);
            }
            Action::TakeKeys { .. } | Action::Revoke { .. } | Action::Report(_) => {}
            Action::Closed(error) => self.close(s, error),
        }
    }

    fn make(&mut self, s: usize, lane: LaneId, path: Option<Path>) {
        let path = self.choose(s, path).filter(|_| self.calm || self.dice.below(30) > 0);
        let Some(path) = path else {
            let reason = "no QP is left, or no port".into();
            return self.sides[s].inputs.push_back(Input::Failed { lane, reason });
        };
        self.next_qp += 1;
        let number = self.next_qp;
        let side = &mut self.sides[s];
        let qp = FakeQp::new(number, path.sgid, &side.send_cq, &side.recv_cq, &side.srq);
        side.receiver.add(lane, 0, number);
        side.inputs.push_back(Input::Made { lane, qp: offer(number, path.sgid) });
        side.lanes.insert(lane, (path, qp.clone()));
        self.qps.insert(number, (s, qp));
    }

    fn drain(&mut self, s: usize, lane: LaneId, path: Option<Path>) {
        let usable =
            path.is_none_or(|path| self.ports.is_up(s, path.port_num)) && (self.calm || self.dice.below(30) > 0);
        let more = self.dice.below(4) as usize;
        let side = &mut self.sides[s];
        match side.lanes.get(&lane).filter(|_| usable) {
            Some((_, qp)) => {
                qp.drain(more);
                side.draining = Some((lane, false));
            }
            None => side.inputs.push_back(Input::NotVectored { lane, reason: "refused".into() }),
        }
    }

    fn vector(&mut self, s: usize, lane: LaneId, path: Option<Path>, dgid: Option<std::net::Ipv6Addr>) {
        let refused = !self.calm && self.dice.below(30) == 0;
        let side = &mut self.sides[s];
        let Some((present, qp)) = side.lanes.get_mut(&lane) else { return };
        let mut path = path.unwrap_or_else(|| present.clone());
        path.dgid = dgid.map_or(present.dgid, |gid| Gid(gid.octets()));
        if !refused && self.ports.is_up(s, path.port_num) && qp.turn(path.sgid, path.dgid) {
            *present = path;
            (self.moves, self.turns) = (self.moves + 1, self.turns + 1);
            side.take_path(lane);
            side.inputs.push_back(Input::Vectored { lane });
        } else {
            side.inputs.push_back(Input::NotVectored { lane, reason: "refused".into() });
        }
    }

    fn use_lane(&mut self, s: usize, lane: LaneId) {
        let side = &mut self.sides[s];
        let qp: Arc<dyn QueuePair> = side.lanes[&lane].1.clone();
        side.broken_told = false;
        side.take_path(lane);
        let psn = offer(qp.qp_num().get(), Gid::ZERO).psn;
        side.sender.use_lane(Outlet { lane, domain: 0, peer_domain: 0, qp, psn, mtu: 1024, max_rd_atomic: 4 });
    }

    fn stop(&mut self, s: usize) {
        let side = &mut self.sides[s];
        (side.hand_over, side.draining, side.migrating, side.alternate) = (None, None, None, None);
        side.sender.drop_lane();
        let mut executed = Vec::new();
        for (lane, (_, qp)) in &side.lanes {
            qp.fail(WcStatus::WrFlushErr);
            let mut wr = SendWr::new(MARKER, SendOp::Send);
            wr.flags = SendFlags::SIGNALED;
            qp.post_send(std::slice::from_ref(&wr)).unwrap();
            executed.push((*lane, self.vouches.then(|| qp.rq_psn())));
        }
        side.sender.poll().unwrap();
        let (received, _) = side.receiver.stop().unwrap();
        side.take();
        side.inputs.push_back(Input::Drained(Drained { received, executed }));
        self.destroy(s, |_| true);
    }

    fn destroy(&mut self, s: usize, gone: impl Fn(LaneId) -> bool) {
        let side = &mut self.sides[s];
        side.receiver.remove(&gone);
        let dead: Vec<LaneId> = side.lanes.keys().copied().filter(|lane| gone(*lane)).collect();
        for lane in dead {
            if let Some((_, qp)) = side.lanes.remove(&lane) {
                self.qps.remove(&qp.qp_num);
            }
        }
    }

    fn close(&mut self, s: usize, error: FabricError) {
        self.stop(s);
        let side = &mut self.sides[s];
        side.inputs.clear();
        side.sender.closed = Some(error.clone());
        side.closed = Some(error);
        for number in side.sender.log.head..side.sender.log.tail {
            let slot = side.sender.log.get_mut(number);
            slot.stage = match slot.stage {
                Stage::Ended(outcome) => Stage::Ended(outcome),
                Stage::Posted if slot.kind.changes_peer() => Stage::Ended(Outcome::InDoubt(WcStatus::WrFlushErr)),
                Stage::Posted | Stage::Waiting => Stage::Ended(Outcome::NotDone(WcStatus::WrFlushErr)),
            };
        }
        side.sender.retire();
        side.take();
    }

    /// Whether everything that was posted has ended, everything that was sent has come, every order is answered, and everybody is at home.
    pub fn is_quiet(&self) -> bool {
        (0..2).all(|s| {
            let (side, peer) = (&self.sides[s], &self.sides[1 - s]);
            let messages = side.sorts.iter().filter(|sort| **sort == Sort::Message).count();
            let came = side.closed.is_some() || peer.closed.is_some() || peer.received.len() == messages;
            let settled = side.closed.is_some() || side.asked.is_empty() && !side.home.is_away();
            side.ended.len() == side.sorts.len() && came && settled
        })
    }
}

impl Side {
    /// The path of this lane is in use.
    fn take_path(&mut self, lane: LaneId) {
        let path = self.lanes[&lane].0.clone();
        self.home.arrive(&path);
        if let Some(session) = &mut self.session {
            session.set_path(path.clone());
        }
        self.path = Some(path);
    }

    /// An order to move: to this path, or home.
    pub fn order(&mut self, change: Change, path: Option<Path>) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.asked.insert(ticket, path);
        self.inputs.push_back(Input::Move { ticket, change });
    }

    fn answered(&mut self, ticket: Ticket, result: &OrderResult, now: u64) {
        let Some(path) = self.asked.remove(&ticket) else {
            self.wrong = Some(format!("nobody waits for {result:?}"));
            return;
        };
        let done = matches!(result, OrderResult::Done { .. });
        match path {
            None if done => self.home.forget(),
            None => self.home.refused(now),
            Some(path) => {
                let place = |path: &Path| (path.port_num, path.sgid, path.flow_label);
                if done && self.path.as_ref().map(place) != Some(place(&path)) {
                    self.wrong = Some(format!("moved to {path:?}, it says, and is on {:?}", self.path));
                }
            }
        }
    }

    fn take(&mut self) {
        let mut out = [Completion::default(); 8];
        loop {
            let count = self.sender.take_done(&mut out);
            self.ended.extend(out[..count].iter().map(|completion| (completion.context, completion.outcome)));
            if count == 0 {
                break;
            }
        }
        while let Some(arrival) = self.receiver.next() {
            self.received.push(arrival.imm.unwrap_or(u32::MAX));
            self.receiver.give_back(&arrival);
        }
        self.sender.pump();
    }
}

fn offer(number: u32, sgid: Gid) -> QpOffer {
    QpOffer {
        qp_num: number,
        // Close to the end, so that PSNs wrap.
        psn: 0xff_fff0 + number % 16,
        gid: std::net::Ipv6Addr::from(sgid.0),
        mtu: 1024,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        receive_bytes: 64,
        receives: 16,
        port: String::new(),
        srq_num: None,
        domain: 0,
    }
}
