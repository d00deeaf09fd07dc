//! The world: virtual time, a queue of what will happen, and the network between all parts. One thing happens at a time, in an order that a seed decides. It knows no
//! faults of its own (they are in `storm`) and judges nothing (that is `checker`'s).

use super::checker::Checker;
use super::dice::Dice;
use super::end::{Effect, End, Fate, Making};
use super::node::{Agent, Down, Node, Process, Up};
use super::replica::Replica;
use super::store::{Call, Reply, Store};
use super::{CALL_NS, Canary, MS, NODES, PER_NODE, PROCESSES, gid, node_name, place_of, policy, tenants};
use crate::keys;
use crate::message::Answer;
use crate::rebalance::{ConnectionLoad, PortLoad, UtilisationReport};
use crate::store::Event as StoreEvent;
use crate::topology::PortName;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{ConnectionId, FencingToken, Order, OrderId, OrderResult};
use scalefabric_fabric::session::{Body, Input, Purpose, Role};
use std::collections::BTreeMap;

/// Which end: its process, and the connection.
pub type EndKey = (usize, ConnectionId);

/// What a port carries at most, bits a second.
pub const CAPACITY_BPS: u64 = 100_000_000_000;
/// How often the application of a connection sends.
const POST_NS: u64 = 60 * MS;
/// How often retries and timers are looked at.
const TICK_NS: u64 = 50 * MS;
/// How long both keys of a process's memory are good at most.
pub const OVERLAP_NS: u64 = 2_000 * MS;

#[derive(Debug)]
enum Event {
    StoreTick,
    ReplicaTick(usize, u64),
    Watch(usize, u64),
    News { replica: usize, incarnation: u64, news: Option<(Vec<StoreEvent>, u64)> },
    Call { replica: usize, incarnation: u64, call: Call },
    Reply { replica: usize, incarnation: u64, call: Call, reply: Reply },
    Up { stream: u64, message: Up },
    Down { stream: u64, message: Down },
    StreamEnd { stream: u64, at_agent: bool },
    AgentTick(usize, u64),
    AgentSave(usize, u64),
    Join(usize, u64),
    Loads(usize, u64),
    ProcessTick(usize, u64),
    Post(usize, u64),
    Dialled(EndKey, u64),
    Said { channel: u64, to: EndKey, body: Body },
    ChannelEnd { channel: u64, end: EndKey },
    Data { from: u32, to: u32, psn: u64, number: u64, key: Option<u32> },
    Ack { to: u32, up_to: u64, refused: bool },
    Neighbour { replica: usize, report: Box<UtilisationReport> },
}

/// A stream from an agent to a replica.
#[derive(Debug)]
struct Stream {
    node: usize,
    agent: u64,
    replica: usize,
    incarnation: u64,
    /// When the last message of each direction comes: later ones come later.
    last: [u64; 2],
}

/// A channel between two processes for one connection.
#[derive(Debug)]
struct Channel {
    ends: [EndKey; 2],
    last: [u64; 2],
}

pub struct World {
    pub now: u64,
    pub dice: Dice,
    pub store: Store,
    pub replicas: Vec<Replica>,
    pub nodes: Vec<Node>,
    pub processes: Vec<Process>,
    pub ends: BTreeMap<EndKey, End>,
    pub checker: Checker,
    pub canary: Canary,
    /// Until then a replica does not reach the store.
    pub store_cut: Vec<u64>,
    /// Until then an agent reaches no replica.
    pub agent_cut: Vec<u64>,
    /// Until then processes of a node say nothing to others.
    pub channel_cut: Vec<u64>,
    /// What is lost, late and broken, thousandths; 0 when it is calm.
    pub trouble: u64,
    queue: BTreeMap<(u64, u64), Event>,
    serial: u64,
    streams: BTreeMap<u64, Stream>,
    channels: BTreeMap<u64, Channel>,
    qps: BTreeMap<u32, EndKey>,
    /// When the last packet of each QP comes: a QP's packets take one way.
    wires: BTreeMap<u32, u64>,
    next_qp: u32,
    trace: bool,
}

impl World {
    pub fn new(seed: u64, canary: Canary) -> Self {
        let mut dice = Dice::new(seed);
        let replicas: Vec<Replica> =
            (0..[1, 2, 2, 3, 3][dice.index(5)]).map(|number| Replica::start(number, 1, &policy())).collect();
        let liar = dice.index(2 * NODES);
        let mut store = Store::default();
        let key = format!("{}{}", keys::TENANTS, keys::TENANT_RULES);
        store.carry_out(&Call::Put { key, value: tenants(false) }, 0);
        let mut world = Self {
            now: 0,
            store,
            store_cut: vec![0; replicas.len()],
            agent_cut: vec![0; NODES],
            channel_cut: vec![0; NODES],
            nodes: (0..NODES).map(|node| Node::new(node == liar)).collect(),
            processes: (0..PROCESSES).map(|slot| Process::start(slot, 1, Default::default(), &mut dice)).collect(),
            replicas,
            ends: BTreeMap::new(),
            checker: Checker::default(),
            canary,
            trouble: 0,
            queue: BTreeMap::new(),
            serial: 0,
            streams: BTreeMap::new(),
            channels: BTreeMap::new(),
            qps: BTreeMap::new(),
            wires: BTreeMap::new(),
            next_qp: 1,
            trace: std::env::var_os("SYSTEM_TRACE").is_some(),
            dice,
        };
        world.at(0, Event::StoreTick);
        for replica in 0..world.replicas.len() {
            world.begin_replica(replica);
        }
        for node in 0..NODES {
            world.start_agent(node);
        }
        for slot in 0..PROCESSES {
            world.begin_process(slot);
        }
        world
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>9.3} s  {}", self.now as f64 / 1e9, what());
        }
    }

    fn at(&mut self, delay: u64, event: Event) {
        self.at_time(self.now + delay, event);
    }

    fn at_time(&mut self, time: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((time.max(self.now), self.serial), event);
    }

    /// How long something takes in the network.
    fn delay(&mut self) -> u64 {
        let late = self.trouble > 0 && self.dice.permille(self.trouble);
        let most = if late { 1_500 * MS } else { 5 * MS };
        MS / 10 + self.dice.below(most)
    }

    /// The next thing happens. False: nothing will until then.
    pub fn step(&mut self, until: u64) -> bool {
        let Some(entry) = self.queue.first_entry() else { return false };
        if entry.key().0 > until {
            self.now = until;
            return false;
        }
        let ((time, _), event) = entry.remove_entry();
        self.now = time;
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::StoreTick => {
                self.store.expire(self.now);
                self.at(100 * MS, Event::StoreTick);
            }
            Event::ReplicaTick(replica, incarnation) => {
                if self.is_replica(replica, incarnation) {
                    self.at(100 * MS, Event::ReplicaTick(replica, incarnation));
                    if self.replicas[replica].paused_until <= self.now {
                        let now = self.now;
                        self.replicas[replica].tick(now);
                        let one = &self.replicas[replica];
                        self.checker.leads(one.token().filter(|_| one.is_awake()), self.store.leader());
                        self.settle_replica(replica);
                    }
                }
            }
            Event::Watch(replica, incarnation) => self.watch(replica, incarnation),
            Event::News { replica, incarnation, news } => {
                if self.is_replica(replica, incarnation) {
                    let wait = self.replicas[replica].paused_until;
                    if wait > self.now {
                        return self.at_time(wait, Event::News { replica, incarnation, news });
                    }
                    let now = self.now;
                    match news {
                        Some((events, up_to)) => self.replicas[replica].take_events(&events, up_to, now),
                        // It fell too far behind: everything must be read anew.
                        None => self.replicas[replica].seen = None,
                    }
                    self.settle_replica(replica);
                    self.at(10 * MS, Event::Watch(replica, incarnation));
                }
            }
            Event::Call { replica, incarnation, call } => self.carry_out(replica, incarnation, call),
            Event::Reply { replica, incarnation, call, reply } => {
                if self.is_replica(replica, incarnation) {
                    let wait = self.replicas[replica].paused_until;
                    if wait > self.now {
                        return self.at_time(wait, Event::Reply { replica, incarnation, call, reply });
                    }
                    let now = self.now;
                    self.replicas[replica].answered(&call, reply, now);
                    self.settle_replica(replica);
                }
            }
            Event::Up { stream, message } => self.hear_agent(stream, message),
            Event::Down { stream, message } => self.hear_replica(stream, message),
            Event::StreamEnd { stream, at_agent } => self.stream_ended(stream, at_agent),
            Event::AgentTick(node, incarnation) => {
                if self.agent(node, incarnation).is_some() {
                    self.at(2_000 * MS, Event::AgentTick(node, incarnation));
                    self.exchange(node);
                }
            }
            Event::AgentSave(node, incarnation) => self.save(node, incarnation),
            Event::Join(node, incarnation) => self.join(node, incarnation),
            Event::Loads(node, incarnation) => self.tell_loads(node, incarnation),
            Event::ProcessTick(slot, incarnation) => self.process_tick(slot, incarnation),
            Event::Post(slot, incarnation) => self.post(slot, incarnation),
            Event::Dialled(end, incarnation) => self.dialled(end, incarnation),
            Event::Said { channel, to, body } => self.hear_peer(channel, to, body),
            Event::ChannelEnd { channel, end } => {
                if self.ends.get(&end).is_some_and(|one| one.channel == Some(channel)) {
                    if let Some(one) = self.ends.get_mut(&end) {
                        one.channel = None;
                    }
                    self.give(&end, Input::ChannelDown { reason: "the channel broke".into() });
                }
            }
            Event::Data { from, to, psn, number, key } => self.arrive(from, to, psn, number, key),
            Event::Ack { to, up_to, refused } => self.acknowledge(to, up_to, refused),
            Event::Neighbour { replica, report } => {
                let now = self.now;
                if self.replicas[replica].alive {
                    self.replicas[replica].hear_neighbour(*report, now);
                }
            }
        }
    }

    // Replicas and the store.

    fn is_replica(&self, replica: usize, incarnation: u64) -> bool {
        self.replicas[replica].alive && self.replicas[replica].incarnation == incarnation
    }

    fn begin_replica(&mut self, replica: usize) {
        let incarnation = self.replicas[replica].incarnation;
        let first = self.dice.below(100 * MS);
        self.at(first, Event::ReplicaTick(replica, incarnation));
        self.at(first, Event::Watch(replica, incarnation));
    }

    /// A replica ends, and a new one takes its place later.
    pub fn kill_replica(&mut self, replica: usize) {
        self.note(|| format!("replica {replica} ends"));
        self.replicas[replica].alive = false;
        let streams: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.replica == replica).map(|(id, _)| *id).collect();
        streams.into_iter().for_each(|stream| self.break_stream(stream));
    }

    pub fn revive_replica(&mut self, replica: usize) {
        if !self.replicas[replica].alive {
            self.note(|| format!("replica {replica} begins anew"));
            let incarnation = self.replicas[replica].incarnation + 1;
            self.replicas[replica] = Replica::start(replica, incarnation, &policy());
            self.begin_replica(replica);
        }
    }

    /// What a replica wants is done.
    fn settle_replica(&mut self, replica: usize) {
        let incarnation = self.replicas[replica].incarnation;
        for call in std::mem::take(&mut self.replicas[replica].calls) {
            let delay = self.delay();
            self.at(delay, Event::Call { replica, incarnation, call });
        }
        for (stream, message) in std::mem::take(&mut self.replicas[replica].tells) {
            self.send_down(stream, message);
        }
        for stream in std::mem::take(&mut self.replicas[replica].ended) {
            self.break_stream(stream);
        }
        for report in std::mem::take(&mut self.replicas[replica].published) {
            for other in (0..self.replicas.len()).filter(|other| *other != replica) {
                if self.store_cut[replica] <= self.now
                    && self.store_cut[other] <= self.now
                    && self.store.has_leader(self.now)
                {
                    // Loads are published twice a second through the store.
                    let delay = 250 * MS + self.delay();
                    let mut report = Box::new(report.clone());
                    report.age_ms += delay / MS;
                    self.at(delay, Event::Neighbour { replica: other, report });
                }
            }
        }
    }

    fn watch(&mut self, replica: usize, incarnation: u64) {
        if !self.is_replica(replica, incarnation) {
            return;
        }
        let Some(seen) = self.replicas[replica].seen else {
            return self.at(20 * MS, Event::Watch(replica, incarnation));
        };
        let reaches = self.store_cut[replica] <= self.now && self.store.has_leader(self.now);
        let news = if reaches { Some(self.store.since(seen)) } else { None };
        match news {
            Some(Some((events, _))) if events.is_empty() => self.at(10 * MS, Event::Watch(replica, incarnation)),
            Some(news) => {
                let delay = self.delay().max(self.replicas[replica].paused_until.saturating_sub(self.now));
                self.at(delay, Event::News { replica, incarnation, news });
            }
            None => self.at(100 * MS, Event::Watch(replica, incarnation)),
        }
    }

    fn carry_out(&mut self, replica: usize, incarnation: u64, call: Call) {
        // A replica that has ended may still have said something.
        let cut = self.store_cut[replica] > self.now;
        let reply = if cut || !self.store.has_leader(self.now) {
            Reply::Unknown
        } else {
            let before = self.store.leader();
            let reply = self.store.carry_out(&call, self.now);
            if let (Call::Stand { .. }, Reply::Done(revision, _)) = (&call, &reply) {
                self.note(|| format!("replica {replica} leads with token {}", revision.0));
                self.checker.granted(revision.0, before);
            }
            if let (Call::Order { key, value }, Reply::Done(..)) = (&call, &reply) {
                self.checker.ordered(key, value);
            }
            let lost = self.dice.permille(self.trouble / 2);
            if lost { Reply::Unknown } else { reply }
        };
        let delay = if matches!(reply, Reply::Unknown) { CALL_NS } else { self.delay().min(CALL_NS / 2) };
        self.at(delay, Event::Reply { replica, incarnation, call, reply });
    }

    // Agents and replicas.

    fn agent(&self, node: usize, incarnation: u64) -> Option<&Agent> {
        self.nodes[node].agent.as_ref().filter(|agent| agent.incarnation == incarnation)
    }

    pub fn start_agent(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            return;
        }
        self.nodes[node].starts += 1;
        let incarnation = self.nodes[node].starts;
        self.note(|| format!("the agent of n{node} begins"));
        let one = &mut self.nodes[node];
        one.agent = Some(Agent::start(node, incarnation, one.memory.clone(), self.now));
        one.known_token = one.saved_token;
        let phase = self.dice.below(100 * MS);
        self.at(phase, Event::AgentTick(node, incarnation));
        self.at(1_000 * MS + phase, Event::AgentSave(node, incarnation));
        self.at(phase, Event::Loads(node, incarnation));
        // One that was there before waits for its processes.
        let wait = if incarnation > 1 { 2_500 * MS } else { phase };
        self.at(wait, Event::Join(node, incarnation));
    }

    pub fn kill_agent(&mut self, node: usize) {
        self.note(|| format!("the agent of n{node} ends"));
        if let Some(agent) = self.nodes[node].agent.take()
            && let Some((stream, _)) = agent.stream
        {
            self.break_stream(stream);
        }
        self.processes.iter_mut().filter(|process| process.node == node).for_each(Process::unlink);
    }

    fn save(&mut self, node: usize, incarnation: u64) {
        let Some(agent) = self.agent(node, incarnation) else { return };
        let memory = agent.hub.take_memory();
        let one = &mut self.nodes[node];
        if let Some(memory) = memory {
            one.memory = memory;
        }
        one.saved_token = one.known_token;
        self.at(1_000 * MS, Event::AgentSave(node, incarnation));
    }

    fn join(&mut self, node: usize, incarnation: u64) {
        let Some(agent) = self.agent(node, incarnation) else { return };
        if agent.stream.is_some() {
            return;
        }
        let replica = self.dice.index(self.replicas.len());
        let reaches = self.agent_cut[node] <= self.now && self.replicas[replica].alive;
        if !reaches {
            let pause = 100 * MS + self.dice.below(1_000 * MS);
            return self.at(pause, Event::Join(node, incarnation));
        }
        self.serial += 1;
        let stream = self.serial;
        let of_replica = self.replicas[replica].incarnation;
        let last = [self.now; 2];
        self.streams.insert(stream, Stream { node, agent: incarnation, replica, incarnation: of_replica, last });
        if let Some(agent) = &mut self.nodes[node].agent {
            agent.stream = Some((stream, false));
        }
        self.send_up(stream, Up::Hello { incarnation });
    }

    fn send_up(&mut self, stream: u64, message: Up) {
        self.send(stream, 0, Event::Up { stream, message });
    }

    fn send_down(&mut self, stream: u64, message: Down) {
        self.send(stream, 1, Event::Down { stream, message });
    }

    /// In order, or the stream breaks.
    fn send(&mut self, stream: u64, way: usize, event: Event) {
        let delay = self.delay();
        let Some(one) = self.streams.get_mut(&stream) else { return };
        if self.agent_cut[one.node] > self.now {
            return self.break_stream(stream);
        }
        let time = (self.now + delay).max(one.last[way] + 1);
        one.last[way] = time;
        self.at_time(time, event);
        if self.trouble > 0 && self.dice.permille(self.trouble / 20) {
            self.break_stream(stream);
        }
    }

    /// What is on its way is lost; both sides learn of it later.
    pub fn break_stream(&mut self, stream: u64) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (replica, incarnation) = (one.replica, one.incarnation);
        if self.is_replica(replica, incarnation) {
            let delay = self.delay();
            self.at(delay, Event::StreamEnd { stream, at_agent: false });
        }
        let delay = self.delay();
        self.at(delay, Event::StreamEnd { stream, at_agent: true });
    }

    fn stream_ended(&mut self, stream: u64, at_agent: bool) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (node, agent, replica, incarnation) = (one.node, one.agent, one.replica, one.incarnation);
        if !at_agent {
            if self.is_replica(replica, incarnation) {
                self.replicas[replica].lose(stream);
            }
            return;
        }
        self.streams.remove(&stream);
        if self.is_replica(replica, incarnation) {
            self.replicas[replica].lose(stream);
        }
        let is_its = self.agent(node, agent).is_some_and(|agent| agent.stream.is_some_and(|(own, _)| own == stream));
        if is_its {
            if let Some(agent) = &mut self.nodes[node].agent {
                agent.stream = None;
            }
            let pause = 100 * MS + self.dice.below(1_000 * MS);
            self.at(pause, Event::Join(node, agent));
        }
    }

    fn hear_agent(&mut self, stream: u64, message: Up) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (node, replica, incarnation) = (one.node, one.replica, one.incarnation);
        if !self.is_replica(replica, incarnation) {
            return;
        }
        let wait = self.replicas[replica].paused_until;
        if wait > self.now {
            return self.at_time(wait, Event::Up { stream, message });
        }
        let now = self.now;
        self.replicas[replica].hear(node, stream, message, now);
        self.settle_replica(replica);
    }

    fn hear_replica(&mut self, stream: u64, message: Down) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (node, incarnation) = (one.node, one.agent);
        if self.agent(node, incarnation).is_none() {
            return;
        }
        let canary = self.canary;
        let Some(agent) = &mut self.nodes[node].agent else { return };
        agent.set_clock(self.now);
        match message {
            Down::Welcome => {
                agent.stream = Some((stream, true));
                let whole = agent.whole();
                whole.into_iter().for_each(|message| self.send_up(stream, message));
            }
            Down::Services(service, addresses) => agent.hub.handle_services(&service, addresses),
            Down::Policy(json) => agent.hub.handle_policy(&json),
            Down::Order(id, order) => {
                let known = self.nodes[node].known_token;
                let token = crate::client::token(&order).0;
                let order = if canary == Canary::NoFencing { with_token(&order, known.max(token)) } else { order };
                self.note(|| format!("n{node} hears {id}: {order:?}"));
                let one = &mut self.nodes[node];
                one.orders.insert(id.clone(), order.clone());
                one.known_token = one.known_token.max(token);
                self.checker.heard(node, &id, token);
                if let Some(agent) = &one.agent {
                    agent.hub.handle_order(&id, &order);
                }
            }
        }
        self.exchange(node);
    }

    /// Everything between the agent and its processes, and what the agent has to tell.
    fn exchange(&mut self, node: usize) {
        let Some(agent) = &self.nodes[node].agent else { return };
        agent.set_clock(self.now);
        loop {
            let mut spoken = false;
            for process in self.processes.iter_mut().filter(|process| process.node == node && process.alive) {
                spoken |= process.exchange(&agent.hub);
            }
            if !spoken {
                break;
            }
        }
        let told = match agent.stream {
            Some((stream, true)) => agent.news().into_iter().map(|message| (stream, message)).collect(),
            _ => Vec::new(),
        };
        for (stream, message) in told {
            if let Up::Answer(_, Answer::Answered { outcome: OrderResult::Fenced { .. } }) = &message {
                self.checker.seen.fenced += 1;
            }
            self.send_up(stream, message);
        }
        for slot in node * PER_NODE..(node + 1) * PER_NODE {
            self.obey(slot);
        }
    }

    /// Orders that came to a process go to its connections.
    fn obey(&mut self, slot: usize) {
        for (id, order) in std::mem::take(&mut self.processes[slot].orders) {
            let node = &self.nodes[slot / PER_NODE];
            self.checker.given(node, &order);
            let (now, clock) = (self.now, self.processes[slot].clock(self.now));
            match &order {
                Order::Move { connection, .. } | Order::Close { connection, .. } => {
                    let key = (slot, connection.clone());
                    match self.ends.get_mut(&key).filter(|end| end.closed.is_none()) {
                        Some(end) => {
                            end.order(id, &order, clock, now);
                            self.carry(&key);
                        }
                        None => {
                            let reason = "not a connection of this process".into();
                            self.processes[slot].directory.answer(id, OrderResult::RolledBack { reason });
                        }
                    }
                }
                Order::RotateKeys { .. } => self.rotate(slot, Some(id)),
            }
        }
    }

    fn tell_loads(&mut self, node: usize, incarnation: u64) {
        if self.agent(node, incarnation).is_none() {
            return;
        }
        self.at(100 * MS, Event::Loads(node, incarnation));
        let Some((stream, true)) = self.nodes[node].agent.as_ref().and_then(|agent| agent.stream) else { return };
        self.nodes[node].reports += 1;
        let ports = [1, 2].map(|port_num: u8| {
            let [tx, rx] = self.load(node, port_num);
            PortLoad {
                port: PortName { node: node_name(node), device: "sf0".into(), port_num },
                up: self.nodes[node].up[usize::from(port_num) - 1],
                capacity_bps: CAPACITY_BPS,
                tx_bps: tx as f64,
                rx_bps: rx as f64,
                addresses: vec![gid(node, port_num).to_ip()],
            }
        });
        let own = self.ends.iter().filter(|((slot, _), end)| slot / PER_NODE == node && end.role == Role::Leader);
        let connections = own.filter(|(_, end)| end.is_up()).map(|(_, end)| ConnectionLoad {
            connection: end.id.clone(),
            tx_bps: if self.flows(end) { demand(&end.id) as f64 } else { 0.0 },
            rx_bps: 0.0,
            retransmit_ratio: 0.0,
        });
        let mut report = UtilisationReport {
            node: node_name(node),
            epoch: incarnation,
            serial: self.nodes[node].reports,
            age_ms: 0,
            ports: ports.into(),
            connections: connections.collect(),
        };
        if self.nodes[node].lies {
            self.lie(&mut report);
        }
        self.send_up(stream, Up::Load(Box::new(report)));
    }

    fn lie(&mut self, report: &mut UtilisationReport) {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 1e30, CAPACITY_BPS as f64 * 1.2];
        let value = odd[self.dice.index(odd.len())];
        match self.dice.below(4) {
            0 => report.ports.iter_mut().for_each(|port| port.tx_bps = value),
            1 => report.ports.iter_mut().for_each(|port| port.capacity_bps = 0),
            2 => report.age_ms = 5_000,
            _ => report.connections.iter_mut().for_each(|one| one.tx_bps = value),
        }
        // It also speaks of its neighbour, in the neighbour's name.
        let mut foreign = report.ports[0].clone();
        foreign.port.node = node_name(NODES - 1);
        foreign.up = false;
        report.ports.push(foreign);
    }

    /// Whether a connection's data comes to the peer.
    fn flows(&self, end: &End) -> bool {
        end.path.as_ref().is_some_and(|path| {
            let far = place_of(path.dgid);
            let up = |node: usize, port: u8| self.nodes[node].up[usize::from(port) - 1];
            up(end.node, path.port_num) && far.is_some_and(|(node, port)| up(node, port))
        })
    }

    /// What a port sends and receives.
    pub fn load(&self, node: usize, port_num: u8) -> [u64; 2] {
        let mut load = [0; 2];
        for end in self.ends.values().filter(|end| end.role == Role::Leader && end.is_up() && self.flows(end)) {
            let Some(path) = &end.path else { continue };
            if (end.node, path.port_num) == (node, port_num) {
                load[0] += demand(&end.id);
            }
            if place_of(path.dgid) == Some((node, port_num)) {
                load[1] += demand(&end.id);
            }
        }
        load.map(|load| load.min(CAPACITY_BPS))
    }

    // Processes.

    fn begin_process(&mut self, slot: usize) {
        let incarnation = self.processes[slot].incarnation;
        let phase = self.dice.below(100 * MS);
        self.at(phase, Event::ProcessTick(slot, incarnation));
        self.at(phase, Event::Post(slot, incarnation));
    }

    /// A process ends: its QPs and its ends of channels with it.
    pub fn kill_process(&mut self, slot: usize) {
        self.note(|| format!("process {slot} ends"));
        let node = self.processes[slot].node;
        let hub = self.nodes[node].agent.as_ref().map(|agent| &agent.hub);
        self.processes[slot].die(hub);
        let dead: Vec<EndKey> = self.ends.keys().filter(|(of, _)| *of == slot).cloned().collect();
        for key in dead {
            if let Some(end) = self.ends.remove(&key) {
                self.checker.died(&key);
                if let Some(channel) = end.channel {
                    self.break_channel(channel);
                }
            }
        }
        self.qps.retain(|_, (of, _)| *of != slot);
        self.exchange(node);
    }

    pub fn revive_process(&mut self, slot: usize) {
        if self.processes[slot].alive {
            return;
        }
        self.note(|| format!("process {slot} begins anew"));
        let incarnation = self.processes[slot].incarnation + 1;
        let memory = self.nodes[slot / PER_NODE].process_memory.clone();
        self.processes[slot] = Process::start(slot, incarnation, memory, &mut self.dice);
        self.begin_process(slot);
    }

    fn is_process(&self, slot: usize, incarnation: u64) -> bool {
        self.processes[slot].alive && self.processes[slot].incarnation == incarnation
    }

    fn process_tick(&mut self, slot: usize, incarnation: u64) {
        if !self.is_process(slot, incarnation) {
            return;
        }
        let wait = self.processes[slot].paused_until.saturating_sub(self.now);
        if wait > 0 {
            return self.at(wait, Event::ProcessTick(slot, incarnation));
        }
        self.at(TICK_NS, Event::ProcessTick(slot, incarnation));
        let node = slot / PER_NODE;
        if !self.processes[slot].is_linked()
            && let Some(agent) = &self.nodes[node].agent
        {
            self.processes[slot].link(slot, &agent.hub);
        }
        self.exchange(node);
        let memory = self.processes[slot].directory.memory();
        // The file keeps what another process knows and this one does not.
        let file = &mut self.nodes[node].process_memory;
        file.token.0 = file.token.0.max(memory.token.0);
        file.policy = memory.policy.or(file.policy.take());
        file.services.extend(memory.services);
        self.want(slot);
        let (now, clock) = (self.now, self.processes[slot].clock(self.now));
        let keys: Vec<EndKey> = self.ends.keys().filter(|(of, _)| *of == slot).cloned().collect();
        for key in keys {
            let Some(mut end) = self.ends.remove(&key) else { continue };
            let reaches = |lane: &super::end::Lane| self.reaches(node, lane);
            end.ports(self.nodes[node].up, clock, now);
            end.tick(clock, now, reaches);
            self.ends.insert(key.clone(), end);
            self.carry(&key);
        }
        self.withdraw_late(slot);
    }

    /// Whether packets of a lane come to the QP of its peer.
    fn reaches(&self, node: usize, lane: &super::end::Lane) -> bool {
        let Some(peer) = lane.peer.and_then(|peer| self.qps.get(&peer)) else { return false };
        let near = self.nodes[node].up[usize::from(lane.path.port_num) - 1];
        let far = place_of(lane.path.dgid).is_some_and(|(node, port)| self.nodes[node].up[usize::from(port) - 1]);
        let there = self.ends.get(peer).is_some_and(|end| end.lanes.values().any(|other| Some(other.qp) == lane.peer));
        near && far && there
    }

    /// Connects to what it wants and has not.
    fn want(&mut self, slot: usize) {
        for service in self.processes[slot].wants.clone() {
            let is_that =
                |(of, _): &EndKey, end: &End| *of == slot && end.role == Role::Leader && end.service == service;
            if self.ends.iter().any(|(key, end)| is_that(key, end) && end.closed.is_none()) || !self.dice.permille(200)
            {
                continue;
            }
            let process = &self.processes[slot];
            let tenant = process.tenant.clone();
            let allowed = process.directory.may_connect(&tenant, &service).is_ok() || self.canary == Canary::NoTenants;
            let known = process.directory.resolve(&service);
            if !allowed || known.is_empty() {
                continue;
            }
            let process = &mut self.processes[slot];
            process.serial += 1;
            let id = ConnectionId { origin: process.origin(), serial: process.serial };
            self.make(slot, id, &service, Role::Leader);
        }
    }

    fn make(&mut self, slot: usize, id: ConnectionId, service: &str, role: Role) {
        self.next_qp += 1000;
        let (seed, process) = (self.dice.next(), &self.processes[slot]);
        let mut end = End::new(Making {
            id: id.clone(),
            node: process.node,
            tenant: &process.tenant,
            service,
            role,
            qps: self.next_qp,
            seed,
            now_ns: process.clock(self.now),
            up_ports: self.nodes[process.node].up,
        });
        end.forgets = self.canary == Canary::Forgets;
        let key = (slot, id);
        self.ends.insert(key.clone(), end);
        self.give_offer(&key);
    }

    /// Lends the process's memory to a new connection's peer.
    fn give_offer(&mut self, key: &EndKey) {
        let (lent, now) = (self.processes[key.0].keys.now, self.now);
        let clock = self.processes[key.0].clock(now);
        if let Some(end) = self.ends.get_mut(key) {
            end.offer(lent, OVERLAP_NS, clock, now);
        }
        self.carry(key);
    }

    fn post(&mut self, slot: usize, incarnation: u64) {
        if !self.is_process(slot, incarnation) {
            return;
        }
        self.at(POST_NS, Event::Post(slot, incarnation));
        let now = self.now;
        let keys: Vec<EndKey> = self.ends.keys().filter(|(of, _)| *of == slot).cloned().collect();
        for key in keys {
            if self.dice.permille(700) {
                if let Some(end) = self.ends.get_mut(&key).filter(|_| !self.checker.is_ending) {
                    end.post(now);
                }
                self.carry(&key);
            }
        }
    }

    /// New keys for the memory that a process lends. While old ones are still being withdrawn another rotation is not begun.
    pub fn rotate(&mut self, slot: usize, order: Option<OrderId>) {
        let process = &mut self.processes[slot];
        if process.keys.before.is_some() {
            if let Some(order) = order {
                process.directory.answer(order, OrderResult::RolledBack { reason: "keys are being rotated".into() });
            }
            return;
        }
        let old = process.keys.now;
        // The upper bits say whose, the lower ones count.
        process.keys.now = (old & 0xffff_0000) | (old.wrapping_add(257) & 0xffff);
        let (lent, clock, now) = (process.keys.now, process.clock(self.now), self.now);
        process.keys.before = Some((old, now + OVERLAP_NS));
        process.keys.order = order;
        let ends = self.ends.iter().filter(|((of, _), end)| *of == slot && end.closed.is_none());
        let keys: Vec<EndKey> = ends.map(|(key, _)| key.clone()).collect();
        process.keys.waits = keys.iter().map(|(_, id)| id.clone()).collect();
        self.note(|| format!("process {slot} lends {lent} instead of {old}"));
        for key in keys {
            if let Some(end) = self.ends.get_mut(&key) {
                end.offer(lent, OVERLAP_NS, clock, now);
            }
            self.carry(&key);
        }
        self.withdraw(slot);
    }

    /// Withdraws the key before, when nobody uses it any more.
    fn withdraw(&mut self, slot: usize) {
        let process = &mut self.processes[slot];
        if self.canary == Canary::KeysStay || !process.keys.waits.is_empty() {
            return;
        }
        if process.keys.before.take().is_some()
            && let Some(order) = process.keys.order.take()
        {
            process.directory.answer(order, OrderResult::Rotated { keys: 1, peers: 0, late: 0 });
        }
    }

    /// An end that is gone holds nothing up.
    fn withdraw_late(&mut self, slot: usize) {
        let there = |id: &ConnectionId| self.ends.get(&(slot, id.clone())).is_some_and(|end| end.closed.is_none());
        let waits: std::collections::BTreeSet<_> =
            self.processes[slot].keys.waits.iter().filter(|id| there(id)).cloned().collect();
        if waits.len() != self.processes[slot].keys.waits.len() {
            self.processes[slot].keys.waits = waits;
            self.withdraw(slot);
        }
    }

    // Channels and data.

    fn give(&mut self, key: &EndKey, input: Input) {
        let (now, clock) = (self.now, self.processes[key.0].clock(self.now));
        if let Some(end) = self.ends.get_mut(key) {
            end.handle(input, clock, now);
        }
        self.carry(key);
    }

    /// What an end wants is done.
    fn carry(&mut self, key: &EndKey) {
        let Some(end) = self.ends.get_mut(key) else { return };
        let effects = std::mem::take(&mut end.out);
        for lane in end.lanes.values() {
            self.qps.insert(lane.qp, key.clone());
        }
        for effect in effects {
            self.carry_one(key, effect);
        }
    }

    fn carry_one(&mut self, key: &EndKey, effect: Effect) {
        match effect {
            Effect::Dial => {
                let incarnation = self.processes[key.0].incarnation;
                let delay = self.delay();
                self.at(delay, Event::Dialled(key.clone(), incarnation));
            }
            Effect::Say(body) => {
                let Some(channel) = self.ends.get(key).and_then(|end| end.channel) else { return };
                self.say(channel, key, body);
            }
            Effect::Data { qp, psn, number, key: with } => self.send_data(key, qp, psn, number, with),
            Effect::Publish(record) => {
                self.processes[key.0].directory.publish(*record);
            }
            Effect::Answered(order, result) => {
                self.note(|| format!("{key:?} answers {result:?}"));
                self.checker.answered(&result, self.now);
                self.processes[key.0].directory.answer(order, result);
            }
            Effect::Received(number) => self.checker.received(key, number),
            Effect::Used => {
                let Some(end) = self.ends.get(key) else { return };
                self.checker.used(end);
            }
            Effect::Revoked => {
                if self.processes[key.0].keys.waits.remove(&key.1) {
                    self.withdraw(key.0);
                }
            }
            Effect::Closed(error) => {
                self.note(|| format!("{key:?} is closed: {error}"));
                let known = self.ends.get(key).and_then(|end| end.channel);
                if let Some(channel) = known {
                    self.break_channel(channel);
                }
                self.checker.closed(key, &error);
            }
        }
    }

    fn dialled(&mut self, key: EndKey, incarnation: u64) {
        if !self.is_process(key.0, incarnation) || !self.ends.contains_key(&key) {
            return;
        }
        let node = self.processes[key.0].node;
        let service = self.ends[&key].service.clone();
        // It dials where the directory said when it was made; a process that was started anew is elsewhere, but its successor may be found there.
        let peer = (0..PROCESSES).find(|slot| self.processes[*slot].services.contains(&service));
        let reaches = |peer: &usize| {
            let far = self.processes[*peer].node;
            let cut = self.channel_cut[node].max(self.channel_cut[far]) > self.now && node != far;
            self.processes[*peer].alive && !cut && self.processes[*peer].paused_until <= self.now
        };
        let Some(peer) = peer.filter(reaches).filter(|_| !self.dice.permille(self.trouble)) else {
            return self.give(&key, Input::ChannelDown { reason: "nobody answers".into() });
        };
        self.serial += 1;
        let channel = self.serial;
        let ends = [key.clone(), (peer, key.1.clone())];
        self.channels.insert(channel, Channel { ends, last: [self.now; 2] });
        if let Some(end) = self.ends.get_mut(&key) {
            end.channel = Some(channel);
        }
        self.give(&key, Input::ChannelUp);
    }

    fn say(&mut self, channel: u64, from: &EndKey, body: Body) {
        let delay = self.delay();
        let Some(one) = self.channels.get_mut(&channel) else { return };
        let way = usize::from(one.ends[1] == *from);
        let to = one.ends[1 - way].clone();
        let (near, far) = (from.0 / PER_NODE, to.0 / PER_NODE);
        if near != far && self.channel_cut[near].max(self.channel_cut[far]) > self.now {
            return self.break_channel(channel);
        }
        let time = (self.now + delay).max(one.last[way] + 1);
        one.last[way] = time;
        self.at_time(time, Event::Said { channel, to, body });
        if self.trouble > 0 && self.dice.permille(self.trouble / 10) {
            self.break_channel(channel);
        }
    }

    pub fn break_channel(&mut self, channel: u64) {
        let Some(one) = self.channels.remove(&channel) else { return };
        for end in one.ends {
            let delay = self.delay();
            self.at(delay, Event::ChannelEnd { channel, end });
        }
    }

    /// Channels there are, for whoever breaks them.
    pub fn channels(&self) -> Vec<u64> {
        self.channels.keys().copied().collect()
    }

    /// Streams there are.
    pub fn streams(&self) -> Vec<u64> {
        self.streams.keys().copied().collect()
    }

    /// A word comes to a process.
    fn hear_peer(&mut self, channel: u64, to: EndKey, body: Body) {
        if !self.channels.contains_key(&channel) || !self.processes[to.0].alive {
            return;
        }
        let wait = self.processes[to.0].paused_until;
        if wait > self.now {
            return self.at_time(wait, Event::Said { channel, to, body });
        }
        self.note(|| format!("{to:?} hears {body:?}"));
        let is_closed = self.ends.get(&to).is_none_or(|end| end.closed.is_some());
        if is_closed {
            let connects = match &body {
                Body::Begin(begin) if begin.purpose == Purpose::Connect && !self.ends.contains_key(&to) => {
                    Some(begin.clone())
                }
                _ => None,
            };
            match connects {
                Some(begin) if self.processes[to.0].services.contains(&begin.service) => {
                    self.make(to.0, to.1.clone(), &begin.service, Role::Follower);
                    self.checker.met(&to, &begin.tenant, &begin.service);
                }
                _ if matches!(body, Body::Close { .. }) => return,
                _ => {
                    return self.say(
                        channel,
                        &to,
                        Body::Close { reason: "this process does not know the connection".into() },
                    );
                }
            }
        }
        let Some(end) = self.ends.get_mut(&to) else { return };
        let is_new = end.channel != Some(channel);
        if is_new && end.role == Role::Leader {
            return;
        }
        if is_new {
            let before = end.channel.replace(channel);
            if let Some(before) = before {
                self.break_channel(before);
            }
            self.give(&to, Input::ChannelUp);
        }
        self.give(&to, Input::Message(body));
    }

    fn send_data(&mut self, key: &EndKey, qp: u32, psn: u64, number: u64, with: Option<u32>) {
        let Some(end) = self.ends.get(key) else { return };
        let Some(lane) = end.lanes.values().find(|lane| lane.qp == qp) else { return };
        let (Some(to), true) = (lane.peer, self.reaches(key.0 / PER_NODE, lane)) else { return };
        if !self.dice.permille(self.trouble / 2) {
            let time = self.now + MS / 10 + self.dice.below(MS);
            let last = self.wires.entry(qp).or_default();
            *last = time.max(*last + 1);
            let time = *last;
            self.at_time(time, Event::Data { from: qp, to, psn, number, key: with });
        }
    }

    fn arrive(&mut self, from: u32, to: u32, psn: u64, number: u64, with: Option<u32>) {
        let Some(key) = self.qps.get(&to).cloned() else { return };
        let wait = self.processes[key.0].paused_until;
        if wait > self.now {
            // The NIC is in the process: it does nothing while that stands still, and then timers are first.
            return self.at_time(wait + MS, Event::Data { from, to, psn, number, key: with });
        }
        let owned = &self.processes[key.0].keys;
        let good = with.is_none_or(|with| with == owned.now || owned.before.is_some_and(|(before, _)| before == with));
        if !good {
            return self.at(MS / 2, Event::Ack { to: from, up_to: 0, refused: true });
        }
        let (now, clock) = (self.now, self.processes[key.0].clock(self.now));
        let fate = self.ends.get_mut(&key).and_then(|end| end.take(to, from, psn, number, clock, now));
        if let (Some(Fate::Ack(up_to)), Some(with)) = (fate, with)
            && up_to == psn + 1
        {
            self.checker.key_used(owned_key(&self.processes[key.0]), with, now);
        }
        self.carry(&key);
        if let Some(Fate::Ack(up_to)) = fate
            && !self.dice.permille(self.trouble / 2)
        {
            self.at(MS / 2, Event::Ack { to: from, up_to, refused: false });
        }
    }

    fn acknowledge(&mut self, to: u32, up_to: u64, refused: bool) {
        let Some(key) = self.qps.get(&to).cloned() else { return };
        let (now, clock) = (self.now, self.processes[key.0].clock(self.now));
        if let Some(end) = self.ends.get_mut(&key) {
            if refused { end.refused(to, clock, now) } else { end.acknowledge(to, up_to, clock, now) }
        }
        self.carry(&key);
    }

    /// A port goes down, or comes up.
    pub fn set_port(&mut self, node: usize, port: usize, up: bool) {
        self.note(|| format!("n{node} port {} is {}", port + 1, if up { "up" } else { "down" }));
        self.nodes[node].up[port] = up;
    }

    /// Lets the tenants' rules be others.
    pub fn set_tenants(&mut self, open: bool) {
        let key = format!("{}{}", keys::TENANTS, keys::TENANT_RULES);
        self.store.carry_out(&Call::Put { key, value: tenants(open) }, self.now);
    }

    /// An operator wants new keys on a node.
    pub fn order_rotation(&mut self, node: usize) {
        if let Some(token) = self.store.leader() {
            self.order(node, super::rotation(FencingToken(token), OVERLAP_NS / MS));
        }
    }

    /// A connection is to move, by whoever leads or, late, by one who has led before: its word was long on its way.
    pub fn order_move(&mut self, is_late: bool) {
        let made_here = self.ends.iter().filter(|(_, end)| end.role == Role::Leader && end.is_up());
        let all: Vec<_> = made_here.map(|(key, end)| (key.clone(), end.path.clone())).collect();
        let token = if is_late { self.checker.former_leader(&mut self.dice) } else { self.store.leader() };
        let (Some(token), false) = (token, all.is_empty()) else { return };
        let ((slot, connection), path) = all[self.dice.index(all.len())].clone();
        let Some(path) = path else { return };
        let node = slot / PER_NODE;
        let port_num = 3 - path.port_num;
        let path = scalefabric_fabric::Path { port_num, sgid: gid(node, port_num), ..path };
        let reason = String::from("somebody wants it");
        self.order(node, Order::Move { connection, path, token: FencingToken(token), reason });
    }

    /// Through the store, as every order.
    fn order(&mut self, node: usize, order: Order) {
        self.serial += 1;
        let key = keys::order(&node_name(node), &format!("operator-{}", self.serial));
        let record = crate::order::OrderRecord { order, by: "operator".into(), answer: None };
        let call = Call::Order { key, value: serde_json::to_vec(&record).expect("JSON") };
        if self.store.has_leader(self.now) {
            self.store.carry_out(&call, self.now);
        }
    }
}

/// The key of now, and the one before with its end.
fn owned_key(process: &Process) -> (u32, Option<(u32, u64)>) {
    (process.keys.now, process.keys.before)
}

/// What a connection wants to send, bits a second: 4 to 20 % of a port.
pub fn demand(id: &ConnectionId) -> u64 {
    let mut dice = Dice::new(id.serial.wrapping_mul(31).wrapping_add(id.origin.bytes().map(u64::from).sum::<u64>()));
    CAPACITY_BPS / 100 * (4 + dice.below(17))
}

fn with_token(order: &Order, token: u64) -> Order {
    let mut order = order.clone();
    match &mut order {
        Order::Move { token: old, .. } | Order::Close { token: old, .. } | Order::RotateKeys { token: old, .. } => {
            old.0 = token
        }
    }
    order
}
