//! The world: virtual time, a queue of what will happen, and the network between all parts. One thing happens at a time, in an order that a seed decides. It knows no
//! faults of its own (they are in `storm`) and judges nothing (that is `checker`'s). What happens to each kind of thing is in a file of its own.

mod agents;
mod channels;
mod data;
mod loads;
mod operator;
mod processes;
mod replicas;
mod rotation;

use super::checker::Checker;
use super::dice::Dice;
use super::end::End;
use super::node::{Down, Node, Process, Up};
use super::replica::Replica;
use super::store::{Call, Reply, Store};
use super::{Canary, MS, NODES, PROCESSES, policy, tenants};
use crate::keys;
use crate::rebalance::UtilisationReport;
use crate::store::Event as StoreEvent;
use scalefabric_fabric::directory::ConnectionId;
use scalefabric_fabric::session::{Body, Input};
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
}
