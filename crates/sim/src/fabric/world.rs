//! The fabric that runs: all hosts, switches, links and packets, and the loop that takes events in the order of time. What each kind of node does stands in
//! [`super::host`] and [`super::switch`], PFC in [`super::pause`]. One seed, one run: nothing here takes time or chance from elsewhere, and nothing
//! depends on addresses or hash seeds of the process.

use super::buffer::{Buffer, BufferSizes, Ingress};
use super::engine::Engines;
use super::event::EventQueue;
use super::host::Host;
use super::model::{Model, PortMarking};
use super::packet::{Arena, Kind, NONE};
use super::pause::{Pauses, Stuck};
use super::port::{CONTROL, Port};
use super::qp::Qp;
use super::route::Routes;
use super::telemetry::Writing;
use super::time::{Ps, Rate, span};
use super::topology::Topology;
use crate::random::{Random, mix};
use scalefabric_transport::congestion::{Profile, Route};

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A packet has passed the wire of a port.
    Arrive { port: u32, packet: u32 },
    /// A transmitter is free.
    Free { port: u32 },
    /// A QP of the host may send.
    Wake { host: u32 },
    /// A controller's timer.
    Timer { qp: u32, generation: u32 },
    /// A retransmission timer.
    Deadline { qp: u32, generation: u32 },
    /// The workload has something to post.
    Workload,
    /// A change of the plan: index among the faults.
    Fault { index: u32 },
    /// Ways are computed anew.
    Reconverge,
    /// A PAUSE is over by its quanta.
    PauseOver { port: u32, priority: u8 },
    /// A PAUSE is told again.
    PauseAgain { port: u32, priority: u8 },
    /// The PFC watchdog looks.
    Watchdog { port: u32, priority: u8 },
    /// The watchdog obeys pauses again.
    Hear { port: u32, priority: u8 },
    /// A slow receiver has taken a packet.
    Taken { host: u32, packet: u32 },
    /// A slow receiver may have room again.
    Room { host: u32 },
    /// An engine has something to do.
    Turn { host: u32 },
    /// Somebody wants to look.
    Sample,
    /// Is there progress?
    Check,
}

/// A message: what a workload posts and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Payload.
    pub bytes: u64,
    /// When it was posted.
    pub posted: Ps,
    /// When its last byte was acknowledged; [`Ps::NEVER`] before.
    pub acked: Ps,
    /// When its last byte arrived; [`Ps::NEVER`] before.
    pub delivered: Ps,
    /// What it would take alone.
    pub ideal: Ps,
    /// What the workload calls it.
    pub tag: u64,
}

/// What a workload wants to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Payload.
    pub bytes: u64,
    /// Priority.
    pub priority: u8,
    /// The QP that it goes by: posts of the same lane between the same hosts share one. None: one of its own.
    pub lane: Option<u32>,
    /// The UDP source port that switches hash. None: the QP's own, by its number or its lane.
    pub source_port: Option<u16>,
    /// What the workload calls it.
    pub tag: u64,
}

/// Something that a workload hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The last byte of the message arrived.
    Delivered(u32),
    /// The last byte of the message was acknowledged.
    Acked(u32),
}

/// Who asks for traffic.
pub trait Workload {
    /// When it next wants to post by the clock; [`Ps::NEVER`]: only after notices.
    fn next(&self) -> Ps;
    /// What it posts now.
    fn due(&mut self, now: Ps, posts: &mut Vec<Post>);
    /// It hears of a message and may post.
    fn hear(&mut self, now: Ps, notice: Notice, message: &Message, posts: &mut Vec<Post>);
    /// True if it will post no more, once everything posted is done.
    fn is_done(&self) -> bool;
    /// All that it will post, if it knows; 0 if not. Only for progress.
    fn bytes(&self) -> u64 {
        0
    }
}

/// A change during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A link goes down or comes back.
    Link {
        /// Index of the link.
        link: u32,
        /// Comes back.
        up: bool,
    },
    /// A link loses packets from now on.
    Loss {
        /// Index of the link.
        link: u32,
        /// In ten million.
        loss_e7: u32,
    },
    /// A host takes in only so many bits a second from now on; 0: as fast as its link.
    SlowHost {
        /// The host.
        host: u32,
        /// Bits a second.
        bps: u64,
    },
    /// A host sends PAUSE without reason, or stops to.
    Storm {
        /// The host.
        host: u32,
        /// Its priority.
        priority: u8,
        /// Begins.
        on: bool,
    },
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events taken.
    pub events: u64,
    /// Packets that a switch has passed on: data, ACKs, CNPs.
    pub forwards: u64,
    /// Data packets that hosts sent, again and again ones counted.
    pub data_packets: u64,
    /// Of them: sent again.
    pub resent: u64,
    /// Payload that arrived in order or was kept.
    pub delivered_bytes: u64,
    /// Packets marked.
    pub marked: u64,
    /// CNPs sent.
    pub cnps: u64,
    /// NAKs sent.
    pub naks: u64,
    /// Retransmission timers that ran out.
    pub timeouts: u64,
    /// QPs that gave up.
    pub given_up: u64,
    /// Dropped: no room in a buffer.
    pub dropped_full: u64,
    /// Dropped: the wire lost it.
    pub dropped_lost: u64,
    /// Dropped: the link was down.
    pub dropped_down: u64,
    /// Dropped: no way to the host.
    pub dropped_no_way: u64,
    /// Dropped by the PFC watchdog.
    pub dropped_watchdog: u64,
    /// PAUSE frames that switches and hosts sent, repetitions counted.
    pub pauses: u64,
    /// RESUME frames.
    pub resumes: u64,
    /// Storms that a watchdog has stopped.
    pub storms: u64,
}

impl Counters {
    /// All drops.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_lost + self.dropped_down + self.dropped_no_way + self.dropped_watchdog
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Everything that was posted is done.
    Done,
    /// The time that was given is over.
    TimeIsUp,
    /// It cannot go on.
    Stuck(Stuck),
}

/// What a caller wants to see while it runs.
pub trait Observer {
    /// Comes every sampling interval.
    fn sample(&mut self, _world: &World) {}
    /// Asked after each sample; true ends the run as if its time were over.
    fn has_seen_enough(&self) -> bool {
        false
    }
    /// Comes now and then, for a progress line. False ends the run.
    fn progress(&mut self, _world: &World) -> bool {
        true
    }
}

/// Sees nothing.
pub struct Nobody;

impl Observer for Nobody {}

/// Times between looks for progress in a fabric with PFC.
const CHECK: Ps = Ps(1_000_000_000);
/// Events between two calls of [`Observer::progress`].
const PROGRESS_EVENTS: u64 = 1 << 20;

/// What switches hash of a QP: addresses and source port.
pub(super) fn entropy(from: u32, to: u32, source_port: u64) -> u32 {
    let addresses = (u64::from(from) << 32) | u64::from(to);
    mix(addresses ^ mix(source_port.wrapping_add(0x9e37))) as u32
}

/// The fabric.
pub struct World {
    pub(super) now: Ps,
    pub(super) queue: EventQueue<Event>,
    pub(super) arena: Arena,
    pub(super) model: Model,
    pub(super) profile: Profile,
    pub(super) writing: Writing,
    pub(super) with_stamp: bool,
    pub(super) topology: Topology,
    pub(super) routes: Routes,
    pub(super) ports: Vec<Port>,
    /// The ports of each node.
    pub(super) node_ports: Vec<Vec<u32>>,
    pub(super) ingress: Vec<Ingress>,
    pub(super) marking: Vec<PortMarking>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) hash_seeds: Vec<u32>,
    pub(super) hosts: Vec<Host>,
    pub(super) qps: Vec<Qp>,
    free_qps: Vec<u32>,
    lanes: std::collections::BTreeMap<(u32, u32, u32), u32>,
    pub(super) messages: Vec<Message>,
    /// Messages that are not acknowledged.
    pub(super) open: u64,
    pub(super) tickets: u64,
    pub(super) random: Random,
    pub(super) counters: Counters,
    pub(super) notices: Vec<Notice>,
    pub(super) done: Vec<u32>,
    pub(super) pauses: Pauses,
    faults: Vec<(Ps, Fault)>,
    greatest: (Ps, u8),
    sample_every: Ps,
    last_done: Ps,
    until: Ps,
    posted_bytes: u64,
    acked_bytes: u64,
    pub(super) acknowledged: u64,
    expected_bytes: u64,
    /// Hosts with the whole engine, if there are such.
    pub(super) engines: Option<Box<Engines>>,
}

impl World {
    /// A fabric at rest. The topology must have passed its check; buffers that do not hold reserves and headroom are refused.
    pub fn new(topology: Topology, model: Model, profile: Profile, seed: u64) -> Result<Self, String> {
        topology.check()?;
        let routes = Routes::new(&topology, |_| true);
        let nodes = (topology.hosts + topology.switches) as usize;
        let mut ports = Vec::with_capacity(topology.links.len() * 2);
        for link in &topology.links {
            let rate = Rate::new(link.bps, model.ns3_quantum);
            for (node, peer) in [(link.a, link.b), (link.b, link.a)] {
                let mut port = Port::new(node, peer, rate, link.delay);
                port.loss_e7 = link.loss_e7;
                ports.push(port);
            }
        }
        let mut node_ports = vec![Vec::new(); nodes];
        for (index, port) in (0_u32..).zip(&ports) {
            node_ports[port.node as usize].push(index);
        }
        let mut host_ports = vec![u32::MAX; topology.hosts as usize];
        for (index, port) in (0_u32..).zip(&ports) {
            if let Some(own) = host_ports.get_mut(port.node as usize) {
                *own = index;
            }
        }
        let slowest = host_ports.iter().map(|port| ports[*port as usize].rate.bps).min().unwrap_or(1);
        let mut ingress = vec![Ingress::default(); ports.len()];
        let mut set_aside = vec![0_u64; nodes];
        let pfc = &model.switch.pfc;
        for (port, place) in ports.iter().zip(&mut ingress) {
            if port.node < topology.hosts {
                continue;
            }
            let times = if pfc.alpha_by_speed { (port.rate.bps / slowest.max(1)).max(1).ilog2() } else { 0 };
            place.alpha_1024 = pfc.alpha_1024.saturating_mul(1 << times.min(10));
            let headroom =
                u64::from(pfc.headroom_delays) * port.rate.bytes_in(port.delay) + u64::from(pfc.headroom_bytes);
            place.headroom_limit = u32::try_from(headroom).unwrap_or(u32::MAX);
            set_aside[port.node as usize] +=
                (headroom + u64::from(pfc.reserve)) * u64::from(pfc.priorities.count_ones());
        }
        let mut buffers = Vec::with_capacity(topology.switches as usize);
        for switch in topology.hosts..topology.hosts + topology.switches {
            let aside = set_aside[switch as usize];
            if aside >= model.switch.buffer {
                return Err(format!(
                    "{} has a buffer of {} B, but reserve and headroom of its ports take {aside} B: give it more, shorten its links, \
                     or use PFC on fewer priorities",
                    topology.name(switch),
                    model.switch.buffer
                ));
            }
            let sizes = BufferSizes {
                total: model.switch.buffer,
                reserve: pfc.reserve,
                resume_below: pfc.resume_below,
                lossless: pfc.priorities,
                lossy_alpha_1024: model.switch.lossy_alpha_1024,
            };
            buffers.push(Buffer::new(sizes, aside));
        }
        let marking = ports.iter().map(|port| PortMarking::of(model.switch.marking, port.rate.bps)).collect();
        // As many slots of the wheel as there are packets on all wires in the time of one.
        let fastest = ports.iter().map(|port| port.rate.serialise(1000).0).min().unwrap_or(1000);
        let width = Ps((fastest * 2 / ports.len().max(1) as u64).max(64));
        let with_stamp = matches!(profile, Profile::Timely(_) | Profile::Swift(_));
        let random = Random::new(seed, 0xfab);
        let hash_seeds = (0..nodes as u64).map(|node| mix(seed ^ mix(node + 1)) as u32).collect();
        let hosts = host_ports.into_iter().map(Host::new).collect();
        let mut world = Self {
            now: Ps::ZERO,
            queue: EventQueue::new(width),
            arena: Arena::new(false),
            writing: Writing::Nothing,
            with_stamp,
            pauses: Pauses::new(ports.len()),
            model,
            profile,
            routes,
            ports,
            node_ports,
            ingress,
            marking,
            buffers,
            hash_seeds,
            hosts,
            qps: Vec::new(),
            free_qps: Vec::new(),
            lanes: std::collections::BTreeMap::new(),
            messages: Vec::new(),
            open: 0,
            tickets: 0,
            random,
            counters: Counters::default(),
            notices: Vec::new(),
            done: Vec::new(),
            faults: Vec::new(),
            greatest: (Ps::ZERO, 0),
            sample_every: Ps::NEVER,
            last_done: Ps::ZERO,
            until: Ps::NEVER,
            posted_bytes: 0,
            acked_bytes: 0,
            acknowledged: 0,
            expected_bytes: 0,
            engines: None,
            topology,
        };
        world.greatest = world.greatest_rtt();
        world.start_engines(seed)?;
        world.writing = Writing::for_profile(&world.profile, &world.ports, world.greatest.0);
        world.arena = Arena::new(world.writing.has_records());
        Ok(world)
    }

    fn start_engines(&mut self, seed: u64) -> Result<(), String> {
        let Some(engine) = &self.model.host.engine else { return Ok(()) };
        let line: Vec<u64> = self.hosts.iter().map(|host| self.ports[host.port as usize].rate.bps).collect();
        let route = |from: u32, to: u32| {
            let route = self.route_of(from, to);
            (route.base_rtt_ps, route.hops)
        };
        let engines = Engines::new(&self.topology, &self.model, engine, &line, &route, seed)?;
        self.engines = Some(Box::new(engines));
        Ok(())
    }

    /// Plans a change.
    pub fn plan(&mut self, at: Ps, fault: Fault) {
        self.queue.push(at, Event::Fault { index: self.faults.len() as u32 });
        self.faults.push((at, fault));
    }

    /// The observer is called each so often.
    pub fn sample_every(&mut self, interval: Ps) {
        if interval != Ps::NEVER && interval > Ps::ZERO {
            self.sample_every = interval;
            self.queue.push(interval, Event::Sample);
        }
    }

    /// The time.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// When the last message was acknowledged.
    pub fn last_done(&self) -> Ps {
        self.last_done
    }

    /// Payload that was acknowledged, of all QPs there ever were.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged
    }

    /// Messages that are not acknowledged.
    pub fn open_messages(&self) -> u64 {
        self.open
    }

    /// A guess of how much of the run is done, 0 to 1, for a progress line.
    pub fn part_done(&self) -> f64 {
        let by_time = if self.until == Ps::NEVER { 0.0 } else { self.now.0 as f64 / self.until.0.max(1) as f64 };
        let (bytes, acked) = (self.posted_bytes, self.acked_bytes);
        let by_bytes = if self.expected_bytes > 0 && bytes > 0 {
            acked as f64 / self.expected_bytes.max(bytes) as f64
        } else {
            0.0
        };
        by_time.max(by_bytes).min(1.0)
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All messages, in the order in which they were posted.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// All ports: link i has 2i at its end a and 2i+1 at b.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// All QPs; places of closed ones are used again.
    pub fn qps(&self) -> &[Qp] {
        &self.qps
    }

    /// What it was built from.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What it assumes.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// PFC, as it spread.
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// Most packets at one moment.
    pub fn peak_packets(&self) -> usize {
        self.arena.peak()
    }

    /// The port of a switch that leads to a host.
    pub fn last_port(&self, host: u32) -> u32 {
        self.hosts[host as usize].port ^ 1
    }

    /// The links from one host to another, by the first way of each switch, as ports.
    pub fn way(&self, from: u32, to: u32) -> Vec<u32> {
        let mut way = vec![self.hosts[from as usize].port];
        let mut node = self.ports[way[0] as usize].peer;
        while node != to && way.len() < 32 {
            if node < self.topology.hosts {
                break;
            }
            let Some(&port) = self.routes.ports(node - self.topology.hosts, to).first() else { break };
            way.push(port);
            node = self.ports[port as usize].peer;
        }
        way
    }

    /// The links by which a QP with this source port goes from one host to another, as ports, where switches choose by a hash.
    pub fn hashed_way(&self, from: u32, to: u32, source_port: u16) -> Vec<u32> {
        let entropy = entropy(from, to, u64::from(source_port));
        let mut way = vec![self.hosts[from as usize].port];
        let mut node = self.ports[way[0] as usize].peer;
        while node != to && node >= self.topology.hosts && way.len() < 32 {
            let ways = self.routes.ports(node - self.topology.hosts, to);
            let Some(&port) = ways.get(self.hashed(node, entropy, ways.len())) else { break };
            way.push(port);
            node = self.ports[port as usize].peer;
        }
        way
    }

    /// Which of `count` ways of equal length a switch takes for a flow.
    #[inline]
    pub(super) fn hashed(&self, node: u32, entropy: u32, count: usize) -> usize {
        let hash = mix(u64::from(entropy) << 32 | u64::from(self.hash_seeds[node as usize])) >> 32;
        ((hash * count as u64) >> 32) as usize
    }

    /// Round trip of a full payload without queues, as the reference simulators count it: there and back on every wire, and the payload's time
    /// at each; and the number of switches on the way.
    fn base_rtt(&self, from: u32, to: u32) -> (Ps, u8) {
        let mut rtt = Ps::ZERO;
        let way = self.way(from, to);
        for &port in &way {
            let port = &self.ports[port as usize];
            rtt += port.delay + port.delay + port.rate.serialise(self.model.host.mtu);
        }
        (rtt, (way.len() - 1) as u8)
    }

    fn greatest_rtt(&self) -> (Ps, u8) {
        let mut greatest = (Ps::ZERO, 0);
        let some = self.routes.representatives();
        for &from in some.iter().take(64) {
            for &to in &some {
                if from != to {
                    greatest = greatest.max(self.base_rtt(from, to));
                }
            }
        }
        // All on one switch.
        greatest.max(self.base_rtt(0, 1))
    }

    /// What a message would take alone.
    pub fn ideal(&self, from: u32, to: u32, bytes: u64) -> Ps {
        let host = &self.model.host;
        let wire = bytes as f64 * f64::from(host.mtu + host.header_bytes) / f64::from(host.mtu);
        let way = self.way(from, to);
        let slowest = way.iter().map(|port| self.ports[*port as usize].rate.bps).min().unwrap_or(1);
        self.base_rtt(from, to).0 + span(wire.ceil() as u64, slowest)
    }

    fn route_of(&self, from: u32, to: u32) -> Route {
        let (rtt, hops) = if self.model.host.greatest_rtt { self.greatest } else { self.base_rtt(from, to) };
        let mut line = self.ports[self.hosts[from as usize].port as usize].rate.bps;
        if let Some(rate) = self.model.host.qp_rate {
            line = line.min(rate.bps);
        }
        Route { line_rate_bps: line, base_rtt_ps: rtt.0, packet_bytes: self.model.host.mtu, hops: hops.max(1) }
    }

    /// Refuses a profile that its parameters do not allow on this fabric.
    pub fn check_profile(&self) -> Result<(), String> {
        self.profile.check(&self.route_of(0, self.topology.hosts - 1)).map_err(|error| error.to_string())
    }

    fn open_qp(&mut self, post: &Post) -> u32 {
        let route = self.route_of(post.from, post.to);
        let control = self.profile.controller(&route, 0);
        let place = self.free_qps.pop();
        let generation = place.map_or(0, |place| self.qps[place as usize].generation + 1);
        // The source port of a QP: by its number, or by its lane, so that a lane keeps its way.
        let own = || post.lane.map_or_else(|| self.messages.len() as u64, u64::from);
        let port = post.source_port.map_or_else(own, u64::from);
        let entropy = entropy(post.from, post.to, port);
        let mut qp = Qp::new(generation, post.from, post.to, post.priority, entropy, control);
        qp.once = post.lane.is_none();
        qp.lane = post.lane;
        match place {
            Some(place) => {
                self.qps[place as usize] = qp;
                place
            }
            None => {
                self.qps.push(qp);
                self.qps.len() as u32 - 1
            }
        }
    }

    /// Posts a message.
    pub fn post(&mut self, post: &Post) {
        let message = self.messages.len() as u32;
        self.messages.push(Message {
            from: post.from,
            to: post.to,
            bytes: post.bytes,
            posted: self.now,
            acked: Ps::NEVER,
            delivered: Ps::NEVER,
            ideal: self.ideal(post.from, post.to, post.bytes),
            tag: post.tag,
        });
        self.open += 1;
        self.posted_bytes += post.bytes;
        if self.engines.is_some() {
            return self.post_to_engine(message, post);
        }
        let qp = match post.lane {
            None => self.open_qp(post),
            Some(lane) => match self.lanes.get(&(post.from, post.to, lane)) {
                Some(&qp) => qp,
                None => {
                    let qp = self.open_qp(post);
                    self.lanes.insert((post.from, post.to, lane), qp);
                    qp
                }
            },
        };
        self.qps[qp as usize].post(post.bytes, self.model.host.mtu, message);
        self.offer(qp);
        self.watch_cut_off(qp);
        self.transmit(self.hosts[post.from as usize].port);
    }

    /// A packet of a QP is no more.
    pub(super) fn forget(&mut self, packet: u32) {
        let (kind, qp) = {
            let packet = self.arena.get(packet);
            (packet.kind, packet.qp)
        };
        self.arena.remove(packet);
        if qp == NONE {
            self.forget_frame(packet);
        } else if !matches!(kind, Kind::Pause | Kind::Resume) {
            self.qps[qp as usize].packets -= 1;
            self.close_if_done(qp);
        }
    }

    pub(super) fn close_if_done(&mut self, index: u32) {
        let qp = &mut self.qps[index as usize];
        if qp.once && qp.open && qp.packets == 0 && qp.posted.is_empty() && !qp.held {
            qp.open = false;
            qp.ticket = 0;
            self.free_qps.push(index);
        }
    }

    pub(super) fn is_switch(&self, node: u32) -> bool {
        node >= self.topology.hosts
    }

    /// Runs until everything is done, `until` has come, or nothing can go on.
    pub fn run(&mut self, workload: &mut dyn Workload, until: Ps, observer: &mut dyn Observer) -> End {
        let mut posts = Vec::new();
        self.until = until;
        self.expected_bytes = workload.bytes();
        let mut asked = Ps::NEVER;
        self.ask(workload, &mut asked);
        self.queue.push(self.now + CHECK, Event::Check);
        loop {
            if self.open == 0 && workload.is_done() {
                return End::Done;
            }
            let Some((at, event)) = self.queue.pop() else {
                return End::Stuck(self.explain());
            };
            if at > until {
                self.now = until;
                return End::TimeIsUp;
            }
            self.now = at;
            self.counters.events += 1;
            match event {
                Event::Arrive { port, packet } => self.arrive(port, packet),
                Event::Free { port } => {
                    self.ports[port as usize].armed = false;
                    self.transmit(port);
                }
                Event::Workload => {
                    asked = Ps::NEVER;
                    if workload.next() <= self.now {
                        workload.due(self.now, &mut posts);
                    }
                    posts.drain(..).for_each(|post| self.post(&post));
                    self.ask(workload, &mut asked);
                }
                Event::Sample => {
                    observer.sample(self);
                    if observer.has_seen_enough() {
                        return End::TimeIsUp;
                    }
                    self.queue.push(self.now + self.sample_every, Event::Sample);
                }
                Event::Check => {
                    if let Some(stuck) = self.look_for_deadlock() {
                        return End::Stuck(stuck);
                    }
                    // Nothing but looks is left: whoever still waits, waits for ever.
                    let own = 1 + usize::from(self.sample_every != Ps::NEVER);
                    if self.queue.len() < own {
                        return End::Stuck(self.explain());
                    }
                    self.queue.push(self.now + CHECK, Event::Check);
                }
                other => self.handle(other),
            }
            if !self.notices.is_empty() {
                let mut notices = std::mem::take(&mut self.notices);
                for notice in notices.drain(..) {
                    let (Notice::Delivered(index) | Notice::Acked(index)) = notice;
                    if let Notice::Acked(_) = notice {
                        self.last_done = self.now;
                        self.acked_bytes += self.messages[index as usize].bytes;
                    }
                    let message = self.messages[index as usize];
                    workload.hear(self.now, notice, &message, &mut posts);
                    posts.drain(..).for_each(|post| self.post(&post));
                }
                if self.notices.is_empty() {
                    self.notices = notices;
                }
                self.ask(workload, &mut asked);
            }
            if self.counters.events.is_multiple_of(PROGRESS_EVENTS) && !observer.progress(self) {
                return End::TimeIsUp;
            }
        }
    }

    fn ask(&mut self, workload: &dyn Workload, asked: &mut Ps) {
        let next = workload.next();
        if next < *asked {
            *asked = next;
            self.queue.push(next, Event::Workload);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake { host } => {
                let host = &mut self.hosts[host as usize];
                if host.wake <= self.now {
                    host.wake = Ps::NEVER;
                }
                let port = host.port;
                self.transmit(port);
            }
            Event::Timer { qp, generation } => self.timer(qp, generation),
            Event::Deadline { qp, generation } => self.deadline(qp, generation),
            Event::Fault { index } => self.fault(self.faults[index as usize].1),
            Event::Reconverge => {
                let ports = &self.ports;
                self.routes = Routes::new(&self.topology, |link| ports[2 * link as usize].up);
            }
            Event::PauseOver { port, priority } => self.pause_is_over(port, priority),
            Event::PauseAgain { port, priority } => self.pause_again(port, priority),
            Event::Watchdog { port, priority } => self.watchdog(port, priority),
            Event::Hear { port, priority } => {
                self.ports[port as usize].deaf &= !(1 << priority);
            }
            Event::Taken { host, packet } => self.take(host, packet),
            Event::Room { host } => self.room(host),
            Event::Turn { host } => self.turn_is_due(host),
            Event::Arrive { .. } | Event::Free { .. } | Event::Workload | Event::Sample | Event::Check => {}
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Link { link, up } => {
                for port in [2 * link, 2 * link + 1] {
                    self.ports[port as usize].up = up;
                    if up {
                        self.ports[port as usize].paused = 0;
                        self.transmit(port);
                    } else {
                        self.drop_queues(port);
                    }
                }
                for qp in 0..self.qps.len() as u32 {
                    self.watch_cut_off(qp);
                }
                self.queue.push(self.now + self.model.switch.reconvergence, Event::Reconverge);
            }
            Fault::Loss { link, loss_e7 } => {
                for port in [2 * link, 2 * link + 1] {
                    self.ports[port as usize].loss_e7 = loss_e7;
                }
            }
            Fault::SlowHost { host, bps } => self.slow_down(host, bps),
            Fault::Storm { host, priority, on } => self.storm(host, priority, on),
        }
    }

    /// Everything that waits at a port whose link is down is lost.
    fn drop_queues(&mut self, port: u32) {
        for queue in 0..=CONTROL {
            while self.ports[port as usize].waiting & (1 << queue) != 0 {
                let packet = self.ports[port as usize].dequeue(self.now, &self.arena, queue);
                if queue != CONTROL && self.is_switch(self.ports[port as usize].node) {
                    self.release(port, packet);
                }
                self.counters.dropped_down += 1;
                self.forget(packet);
            }
        }
    }

    /// A packet has reached the far end of a port's link.
    #[inline]
    fn arrive(&mut self, port: u32, packet: u32) {
        let link = &self.ports[port as usize];
        let (node, loss_e7) = (link.peer, link.loss_e7);
        if !link.up {
            self.counters.dropped_down += 1;
            self.forget(packet);
            return;
        }
        let kind = self.arena.get(packet).kind;
        if loss_e7 > 0
            && !matches!(kind, Kind::Pause | Kind::Resume)
            && self.random.below(10_000_000) < u64::from(loss_e7)
        {
            self.counters.dropped_lost += 1;
            self.forget(packet);
            return;
        }
        let local = port ^ 1;
        if matches!(kind, Kind::Pause | Kind::Resume) {
            let priority = self.arena.get(packet).priority;
            self.arena.remove(packet);
            self.obey(local, priority, kind == Kind::Pause);
        } else if self.is_switch(node) {
            self.forward(node, local, packet);
        } else {
            self.receive(node, packet);
        }
    }

    /// Sends what a port may send, if it is free; else sees to it that it will.
    #[inline]
    pub(super) fn transmit(&mut self, index: u32) {
        let port = &mut self.ports[index as usize];
        if self.now < port.busy_until {
            if !port.armed {
                port.armed = true;
                self.queue.push(port.busy_until, Event::Free { port: index });
            }
            return;
        }
        if !port.up {
            return;
        }
        if self.is_switch(self.ports[index as usize].node) {
            self.transmit_switch(index);
        } else {
            self.transmit_host(index);
        }
    }

    /// Puts a packet on the wire of a free port.
    #[inline]
    pub(super) fn launch(&mut self, index: u32, packet: u32, bytes: u32) {
        let port = &mut self.ports[index as usize];
        port.busy_until = self.now + port.rate.serialise(bytes);
        port.tx_bytes += u64::from(bytes);
        port.tx_packets += 1;
        self.queue.push(port.busy_until + port.delay, Event::Arrive { port: index, packet });
    }

    /// Takes one event more than the run needed, but none of those that come again and again; how many wait.
    #[cfg(test)]
    pub(super) fn drain_for_test(&mut self) -> Option<usize> {
        let (at, event) = self.queue.pop()?;
        self.now = at;
        match event {
            Event::Arrive { port, packet } => self.arrive(port, packet),
            Event::Free { port } => {
                self.ports[port as usize].armed = false;
                self.transmit(port);
            }
            other => self.handle(other),
        }
        Some(self.queue.len())
    }

    /// Packets that exist.
    #[cfg(test)]
    pub(super) fn packets_in_use(&self) -> usize {
        self.arena.used()
    }

    /// Bytes of shared buffers in use.
    #[cfg(test)]
    pub(super) fn buffers_in_use(&self) -> u64 {
        self.buffers.iter().map(Buffer::shared_used).sum()
    }
}
