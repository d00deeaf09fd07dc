//! One end of a connection: a shipped session, and below it QPs ([`super::lane`]) and a model of the sender's and receiver's logs as `fabric::endpoint` keeps them. What it wants of
//! the network comes out as [`Effect`]s. It checks nothing.

use super::dice::Dice;
use super::lane::{Fate, Lane};
use super::{MS, gid};
use scalefabric_fabric::directory::{
    ConnectionId, ConnectionRecord, ConnectionState, FencingToken, Order, OrderId, OrderResult,
};
use scalefabric_fabric::session::{
    Abilities, Action, Body, Change, Drained, Input, LaneId, MemoryOffer, Patience, QpOffer, Role, Session, Setup,
    Ticket,
};
use scalefabric_fabric::{FabricError, Path, RemoteRange};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Messages that are posted and not acknowledged at most.
const DEPTH: usize = 16;

/// What an end wants of the world.
#[derive(Debug)]
pub enum Effect {
    Dial,
    Say(Box<Body>),
    /// A message on a QP: its place on the lane, its number, the key of the peer's memory that it uses.
    Data {
        qp: u32,
        psn: u64,
        number: u64,
        key: Option<u32>,
    },
    Publish(Box<ConnectionRecord>),
    Answered(OrderId, OrderResult),
    /// Messages that the application received.
    Received(u64),
    /// A lane came into use.
    Used,
    /// Keys from before the last offer may be withdrawn.
    Revoked,
    Closed(FabricError),
}

/// One end.
#[derive(Debug)]
pub struct End {
    pub id: ConnectionId,
    pub node: usize,
    pub tenant: String,
    pub service: String,
    pub role: Role,
    pub session: Session,
    pub lanes: BTreeMap<LaneId, Lane>,
    pub channel: Option<u64>,
    pub closed: Option<FabricError>,
    pub path: Option<Path>,
    pub out: Vec<Effect>,
    /// Messages that the application has sent, and received.
    pub sent: u64,
    pub delivered: u64,
    pub moves: u64,
    pub rebuilds: u64,
    /// Resolves as if the peer had received one less: a canary.
    pub forgets: bool,
    inputs: VecDeque<Input>,
    orders: BTreeSet<OrderId>,
    log: VecDeque<u64>,
    posted: usize,
    executed: u64,
    using: Option<LaneId>,
    hold: bool,
    hand_over: Option<LaneId>,
    key: Option<(u64, u32)>,
    key_told: u64,
    next_qp: u32,
    dice: Dice,
    state: ConnectionState,
    published: Option<ConnectionRecord>,
    up_ports: [bool; 2],
}

/// What an end is made with.
pub struct Making<'a> {
    pub id: ConnectionId,
    pub node: usize,
    pub tenant: &'a str,
    pub service: &'a str,
    pub role: Role,
    /// Numbers of its QPs begin here.
    pub qps: u32,
    pub seed: u64,
    /// By the process's clock.
    pub now_ns: u64,
    pub up_ports: [bool; 2],
}

impl End {
    pub fn new(making: Making<'_>) -> Self {
        let Making { id, node, tenant, service, role, qps, seed, now_ns, up_ports } = making;
        let setup = Setup {
            role,
            service: service.into(),
            tenant: tenant.into(),
            path: None,
            patience: Patience { connect_ns: 20_000 * MS, ..Patience::default() },
            abilities: Abilities { drained_vector: seed.is_multiple_of(2), ..Abilities::default() },
            seed,
        };
        let session = Session::new(setup, now_ns);
        Self {
            id,
            node,
            tenant: tenant.into(),
            service: service.into(),
            role,
            session,
            lanes: BTreeMap::new(),
            channel: None,
            closed: None,
            path: None,
            out: Vec::new(),
            sent: 0,
            delivered: 0,
            moves: 0,
            rebuilds: 0,
            forgets: false,
            inputs: VecDeque::new(),
            orders: BTreeSet::new(),
            log: VecDeque::new(),
            posted: 0,
            executed: 0,
            using: None,
            hold: false,
            hand_over: None,
            key: None,
            key_told: 0,
            next_qp: qps,
            dice: Dice::new(seed),
            state: ConnectionState::Connecting,
            published: None,
            up_ports,
        }
    }

    /// Something happened; `now_ns` by the process's clock, `at` by the world's.
    pub fn handle(&mut self, input: Input, now_ns: u64, at: u64) {
        self.inputs.push_back(input);
        self.run(now_ns, at);
    }

    /// An order to move or to close.
    pub fn order(&mut self, id: OrderId, order: &Order, now_ns: u64, at: u64) {
        let ticket = Ticket(id.0);
        let input = match order {
            Order::Move { path, token, reason, .. } => Input::Move { ticket, change: change(path, *token, reason) },
            Order::Close { token, reason, .. } => {
                Input::Close { reason: reason.clone(), order: Some((ticket, *token)) }
            }
            Order::RotateKeys { .. } => return,
        };
        self.orders.insert(id);
        self.handle(input, now_ns, at);
    }

    /// Lends memory to the peer under a new key.
    pub fn offer(&mut self, key: u32, overlap_ns: u64, now_ns: u64, at: u64) {
        let range = RemoteRange { addr: 0, length: 64, rkey: key };
        self.handle(
            Input::Offer { offers: vec![MemoryOffer { id: 1, domain: 0, lane: None, range }], overlap_ns },
            now_ns,
            at,
        );
    }

    /// The application sends a message.
    pub fn post(&mut self, at: u64) {
        if self.closed.is_none() && self.log.len() < 4 * DEPTH {
            self.log.push_back(self.sent);
            self.sent += 1;
            self.push_data(at);
        }
    }

    /// Ports of its node have changed.
    pub fn ports(&mut self, up: [bool; 2], now_ns: u64, at: u64) {
        let went = (0..2).find(|port| self.up_ports[*port] && !up[*port]);
        self.up_ports = up;
        let on = self.path.as_ref().map(|path| usize::from(path.port_num) - 1);
        if went.is_some() && went == on && up.contains(&true) {
            self.handle(Input::Rebuild { reason: "its port went down".into() }, now_ns, at);
        } else {
            self.publish();
        }
    }

    /// Timers of the session, and retries of QPs. `reaches` says whether a QP's packets come to its peer now.
    pub fn tick(&mut self, now_ns: u64, at: u64, reaches: impl Fn(&Lane) -> bool) {
        if self.closed.is_some() {
            return;
        }
        if self.session.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
            self.session.handle_timer(now_ns);
        }
        // Who has no channel and cannot dial looks whether its peer is there.
        let probes = self.channel.is_none() && self.role == Role::Follower;
        let mut broken = Vec::new();
        for (id, lane) in &mut self.lanes {
            if lane.peer.is_none() {
                continue;
            }
            if reaches(lane) {
                self.out.extend(lane.retry(at));
            } else if lane.fails(probes && self.using == Some(*id), at) {
                broken.push(*id);
            }
        }
        for lane in broken {
            self.inputs.push_back(Input::Broken { lane, reason: "retries are used up".into() });
        }
        self.run(now_ns, at);
    }

    /// A message came to one of its QPs from another QP.
    pub fn take(&mut self, qp: u32, from: u32, psn: u64, number: u64, now_ns: u64, at: u64) -> Option<Fate> {
        let (id, lane) = self.lanes.iter_mut().find(|(_, lane)| lane.qp == qp && lane.peer == Some(from))?;
        let id = *id;
        let fate = lane.take(psn, number);
        if self.lanes[&id].open {
            self.deliver(id);
        }
        self.open_due();
        self.run(now_ns, at);
        Some(fate)
    }

    /// The peer has everything before this place.
    pub fn acknowledge(&mut self, qp: u32, up_to: u64, now_ns: u64, at: u64) {
        let Some(lane) = self.lanes.values_mut().find(|lane| lane.qp == qp) else { return };
        let done = lane.acknowledge(up_to, at);
        self.log.drain(..done);
        self.posted -= done;
        self.executed += done as u64;
        self.push_data(at);
        self.settle();
        self.run(now_ns, at);
    }

    /// The peer refused what a QP sent: a key that is withdrawn.
    pub fn refused(&mut self, qp: u32, now_ns: u64, at: u64) {
        let lane = self.lanes.iter_mut().find(|(_, lane)| lane.qp == qp && !lane.told_broken);
        if let Some((id, lane)) = lane {
            lane.told_broken = true;
            let id = *id;
            self.handle(Input::Broken { lane: id, reason: "the key is not good any more".into() }, now_ns, at);
        }
    }

    /// Nothing of this end is outstanding.
    pub fn is_settled(&self) -> bool {
        self.log.is_empty()
    }

    pub fn is_up(&self) -> bool {
        self.closed.is_none() && self.state == ConnectionState::Up
    }

    fn run(&mut self, now_ns: u64, at: u64) {
        loop {
            while let Some(action) = self.session.poll_action() {
                self.carry_out(action, at);
            }
            match self.inputs.pop_front() {
                Some(input) => self.session.handle(input, now_ns),
                None => return,
            }
        }
    }

    fn carry_out(&mut self, action: Action, at: u64) {
        match action {
            Action::Dial => self.out.push(Effect::Dial),
            Action::Send(body) => self.out.push(Effect::Say(Box::new(body))),
            Action::Make { lane, path, .. } => self.make(lane, path, at),
            Action::Ready { lane, peer } => self.ready(lane, &peer),
            Action::Stop => self.stop(),
            Action::Resolve(peer) => self.resolve(&peer),
            Action::Use { lane } => {
                self.rebuilds += u64::from(lane.0 > 1);
                self.take_lane(lane, at);
                if let Some(lane) = self.lanes.get_mut(&lane) {
                    lane.open = true;
                }
                self.deliver(lane);
            }
            Action::HandOver { lane } => {
                self.hold = true;
                self.hand_over = Some(lane);
                self.settle();
            }
            Action::Switch { lane } => self.take_lane(lane, at),
            Action::Expect { lane, after } => {
                if self.delivered > after {
                    let reason = format!("{} messages have come of {after}", self.delivered);
                    return self.inputs.push_back(Input::Contradicted { reason });
                }
                if let Some(lane) = self.lanes.get_mut(&lane) {
                    lane.after = Some(after);
                }
                self.open_due();
            }
            Action::Drain { lane, path } => self.drain(lane, path.as_ref()),
            Action::Vector { lane, path, dgid } => self.vector(lane, path, dgid),
            // Its QPs have no alternate paths.
            Action::Load { .. } | Action::Migrate { .. } | Action::Unload { .. } => {}
            Action::Resume { lane } => {
                if let Some(one) = self.lanes.get_mut(&lane) {
                    one.drains = None;
                }
                if self.using == Some(lane) {
                    self.take_lane(lane, at);
                }
            }
            Action::Discard { lane } => {
                self.lanes.remove(&lane);
            }
            Action::Retire { lane } => {
                self.moves += 1;
                self.lanes.retain(|other, _| *other >= lane);
            }
            Action::TakeKeys { round, offers } => {
                self.key = offers.first().map(|offer| (round, offer.range.rkey));
                self.settle();
            }
            Action::Revoke { .. } => self.out.push(Effect::Revoked),
            Action::Report(state) => {
                self.state = state;
                self.publish();
            }
            Action::Answer { ticket, result } => {
                if self.orders.remove(&OrderId(ticket.0)) {
                    self.out.push(Effect::Answered(OrderId(ticket.0), result));
                }
            }
            Action::Closed(error) => {
                self.stop();
                for order in std::mem::take(&mut self.orders) {
                    self.out.push(Effect::Answered(order, OrderResult::RolledBack { reason: error.message.clone() }));
                }
                self.closed = Some(error.clone());
                self.out.push(Effect::Revoked);
                self.out.push(Effect::Closed(error));
            }
        }
    }

    fn make(&mut self, id: LaneId, path: Option<Path>, at: u64) {
        if self.dice.permille(20) {
            return self.inputs.push_back(Input::Failed { lane: id, reason: "no QP is left".into() });
        }
        let up = |path: &Path| self.up_ports[usize::from(path.port_num) - 1];
        let path = path.or_else(|| self.path.clone().filter(up)).unwrap_or_else(|| {
            let first = self.dice.index(2);
            let port = if self.up_ports[first] { first } else { 1 - first };
            self.own_path(port as u8 + 1)
        });
        let qp = self.next_qp;
        self.next_qp += 1;
        let offer = QpOffer {
            qp_num: qp,
            psn: 0,
            gid: std::net::Ipv6Addr::from(path.sgid.0),
            mtu: 4096,
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            receive_bytes: 64,
            receives: 16,
            port: String::new(),
            srq_num: None,
            domain: 0,
        };
        self.lanes.insert(id, Lane::new(qp, path, at));
        self.inputs.push_back(Input::Made { lane: id, qp: offer });
    }

    fn own_path(&self, port_num: u8) -> Path {
        let dgid = self.path.as_ref().map_or(scalefabric_verbs::Gid::ZERO, |path| path.dgid);
        Path { device: "sf0".into(), port_num, sgid: gid(self.node, port_num), dgid, flow_label: 0, dscp: 0 }
    }

    fn ready(&mut self, id: LaneId, peer: &QpOffer) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return self.inputs.push_back(Input::Failed { lane: id, reason: "the QP is gone".into() });
        };
        lane.peer = Some(peer.qp_num);
        lane.path.dgid = scalefabric_verbs::Gid(peer.gid.octets());
        self.inputs.push_back(Input::Ready { lane: id });
    }

    fn take_lane(&mut self, id: LaneId, at: u64) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let path = lane.path.clone();
        self.session.set_path(path.clone());
        self.path = Some(path);
        self.using = Some(id);
        self.hold = false;
        self.out.push(Effect::Used);
        self.publish();
        self.push_data(at);
    }

    /// Everything that may be sent is sent.
    fn push_data(&mut self, at: u64) {
        let (false, Some(using)) = (self.hold, self.using) else { return };
        let Some(lane) = self.lanes.get_mut(&using).filter(|lane| lane.drains.is_none()) else { return };
        while self.posted < self.log.len().min(DEPTH) {
            let key = self.key.map(|(_, key)| key);
            self.out.push(lane.send(self.log[self.posted], key, at));
            self.posted += 1;
        }
    }

    fn may_send(&self, path: Option<&Path>) -> bool {
        path.is_none_or(|path| self.up_ports[usize::from(path.port_num) - 1])
    }

    fn drain(&mut self, id: LaneId, path: Option<&Path>) {
        let usable = self.may_send(path);
        match self.lanes.get_mut(&id).filter(|lane| usable && !lane.told_broken) {
            Some(lane) => {
                lane.drains = Some(false);
                self.settle();
            }
            None => self.inputs.push_back(Input::NotVectored { lane: id, reason: "its port is down".into() }),
        }
    }

    fn vector(&mut self, id: LaneId, path: Option<Path>, dgid: Option<std::net::Ipv6Addr>) {
        let usable = self.may_send(path.as_ref());
        let Some(lane) = self.lanes.get_mut(&id).filter(|lane| usable && lane.drains == Some(true)) else {
            return self.inputs.push_back(Input::NotVectored { lane: id, reason: "its port is down".into() });
        };
        let dgid = dgid.map_or(lane.path.dgid, |gid| scalefabric_verbs::Gid(gid.octets()));
        lane.path = Path { dgid, ..path.unwrap_or_else(|| lane.path.clone()) };
        self.inputs.push_back(Input::Vectored { lane: id });
    }

    /// Looks whether what is waited for has come about: nothing is on earlier lanes, nothing is outstanding where nothing is begun, nothing uses earlier keys.
    fn settle(&mut self) {
        for (id, lane) in &mut self.lanes {
            if lane.drains == Some(false) && lane.is_quiet() {
                lane.drains = Some(true);
                self.inputs.push_back(Input::Quiet { lane: *id });
            }
        }
        if let Some(lane) = self.hand_over
            && self.posted == 0
        {
            self.hand_over = None;
            self.inputs.push_back(Input::Idle { lane, sent: self.executed });
        }
        if let Some((round, key)) = self.key
            && round > self.key_told
        {
            let mut used = self.lanes.values().flat_map(Lane::keys);
            if used.all(|used| used == key) {
                self.key_told = round;
                self.inputs.push_back(Input::KeysIdle { round });
            }
        }
    }

    fn stop(&mut self) {
        (self.using, self.hand_over, self.hold) = (None, None, false);
        let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
        lanes.into_iter().for_each(|lane| self.deliver(lane));
        let executed = self.lanes.keys().map(|lane| (*lane, None)).collect();
        self.lanes.clear();
        self.inputs.push_back(Input::Drained(Drained { received: self.delivered, executed }));
    }

    fn resolve(&mut self, peer: &Drained) {
        let least = self.executed;
        let mut received = peer.received;
        if self.forgets {
            received = received.saturating_sub(1).max(least);
        }
        if received < least || received > least + self.log.len() as u64 {
            let reason = format!("it received {received}, {least} were acknowledged of {}", self.sent);
            return self.inputs.push_back(Input::Contradicted { reason });
        }
        self.log.drain(..(received - least) as usize);
        (self.executed, self.posted) = (received, 0);
        self.settle();
    }

    fn deliver(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        for number in lane.stash.drain(..) {
            self.delivered += 1;
            self.out.push(Effect::Received(number));
        }
    }

    fn open_due(&mut self) {
        let delivered = self.delivered;
        let due = |lane: &Lane| !lane.open && lane.after.is_some_and(|after| delivered >= after);
        if let Some(id) = self.lanes.iter().find(|(_, lane)| due(lane)).map(|(id, _)| *id) {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.open = true;
            }
            self.deliver(id);
            self.inputs.push_back(Input::Received { lane: id });
        }
    }

    /// Brings the directory's record up to date, as the endpoint does.
    fn publish(&mut self) {
        let Some(path) = &self.path else { return };
        let other = 3 - path.port_num;
        let record = ConnectionRecord {
            id: self.id.clone(),
            tenant: self.tenant.clone(),
            service: self.service.clone(),
            qp_num: self.lanes.values().next_back().map_or(0, |lane| lane.qp & 0xff_ffff),
            peer_qp_num: 0,
            path: path.clone(),
            alternatives: vec![Path { port_num: other, sgid: gid(self.node, other), ..path.clone() }],
            state: self.state,
            generation: self.session.generation(),
        };
        if self.published.as_ref() != Some(&record) {
            self.published = Some(record.clone());
            self.out.push(Effect::Publish(Box::new(record)));
        }
    }
}

fn change(path: &Path, token: FencingToken, reason: &str) -> Change {
    Change { path: path.clone(), peer_path: None, strategy: None, token, reason: reason.into() }
}
