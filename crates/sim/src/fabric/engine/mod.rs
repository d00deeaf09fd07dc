//! Hosts with the whole engine: the NIC that ships, with queue pairs, registered memory, PSNs, ICRCs and real bytes, on a port of the simulated fabric. For small
//! fabrics; [`super::host`] is the light one. The engine decides what is sent and when; this room carries its packets to and from the port and tells the workload
//! what completed. A message is one RDMA WRITE after the other, the last with immediate data, so that both ends hear of it; what arrived is compared with what was sent.

mod port;

use super::model::{EngineModel, Model, Notification};
use super::packet::{Kind, Packet};
use super::port::CONTROL;
use super::time::Ps;
use super::topology::Topology;
use super::world::{Event, Notice, Post, World};
use crate::random::fill;
use crate::wire::address;
use port::{EnginePort, Frame};
use scalefabric_nic::congestion::{Congestion, CongestionTable};
use scalefabric_nic::{ManualNic, NicConfig, PortConfig};
use scalefabric_transport::Time;
use scalefabric_verbs::{
    AccessFlags, AddressVector, CompletionQueue, Gid, MemoryRegion, Mtu, ProtectionDomain, Psn, QpAttr, QpCap, QpInit,
    QpType, QueuePair, RecvWr, SendFlags, SendOp, SendWr, Sge, VerbsError, WcStatus, WorkCompletion,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Hosts at most: each has memory and threadless machinery of its own.
pub const MOST_HOSTS: u32 = 64;
/// Bytes of one WRITE at most.
const CHUNK: usize = 1 << 20;
/// WRITEs that a QP has posted at once.
const DEPTH: u32 = 32;
/// Preamble 8, Ethernet 14 + 4, gap 12, IPv4 20, UDP 8: what is on the wire beside the datagram.
const FRAME_BYTES: u32 = 66;
/// What a turn that comes late may make up for: the engine's clock has whole nanoseconds, and a packet may wait for the wire.
const BURST_BYTES: u32 = 8192;
/// Turns of an engine at one moment, at most: one that is never done has a fault.
const TURNS: u32 = 100_000;

/// A host.
struct EngineHost {
    nic: ManualNic,
    port: EnginePort,
    pd: Arc<dyn ProtectionDomain>,
    send_cq: Arc<dyn CompletionQueue>,
    recv_cq: Arc<dyn CompletionQueue>,
    /// What it sends: two chunks of a pattern of its own.
    source: Arc<dyn MemoryRegion>,
    pattern: Vec<u8>,
    /// The event for its next turn.
    due: Ps,
}

/// A WRITE that waits.
#[derive(Clone, Copy)]
struct Piece {
    message: u32,
    offset: usize,
    length: usize,
    last: bool,
}

/// A QP with both ends, and what it has to do.
struct Connection {
    from: u32,
    qps: [Arc<dyn QueuePair>; 2],
    target: Arc<dyn MemoryRegion>,
    waiting: VecDeque<Piece>,
    /// Last pieces, in the order in which they will arrive.
    arriving: VecDeque<Piece>,
    posted: u32,
    failed: bool,
}

/// All hosts.
pub struct Engines {
    hosts: Vec<EngineHost>,
    /// By packet.
    frames: Vec<Option<Frame>>,
    lanes: BTreeMap<(u32, u32, u32), usize>,
    connections: Vec<Connection>,
    mtu: Mtu,
    timeout: u8,
    retry_cnt: u8,
    /// Messages whose bytes were not those that were sent.
    pub corrupted: u64,
    scratch: Vec<u8>,
}

impl Engines {
    /// One for each host of a small fabric. `routes`: for each host and peer the base RTT in ps and the switches between.
    pub fn new(
        topology: &Topology,
        model: &Model,
        engine: &EngineModel,
        line_bps: &[u64],
        routes: &dyn Fn(u32, u32) -> (u64, u8),
        seed: u64,
    ) -> Result<Self, String> {
        if topology.hosts > MOST_HOSTS {
            return Err(format!(
                "there are {} hosts; the whole engine runs on at most {MOST_HOSTS}: use host.kind = \"light\"",
                topology.hosts
            ));
        }
        let mtu = Mtu::from_bytes(model.host.mtu)
            .ok_or_else(|| format!("a payload of {} B; RDMA knows 256, 512, 1024, 2048 and 4096", model.host.mtu))?;
        let hosts = (0..topology.hosts).map(|host| {
            let congestion = congestion(engine, host, topology.hosts, line_bps[host as usize], routes)?;
            EngineHost::new(host, model, congestion, seed).map_err(|error| format!("host {host}: {error}"))
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_, String>>()?,
            frames: Vec::new(),
            lanes: BTreeMap::new(),
            connections: Vec::new(),
            mtu,
            timeout: model.host.timeout.map_or(0, timeout_code),
            retry_cnt: model.host.retry_cnt.min(7) as u8,
            corrupted: 0,
            scratch: vec![0; CHUNK],
        })
    }

    fn connect(&mut self, from: u32, to: u32, priority: u8, bytes: u64) -> Result<usize, VerbsError> {
        let length = usize::try_from(bytes).unwrap_or(CHUNK).clamp(1, CHUNK);
        let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: 4096, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let make = |host: &EngineHost| {
            let (send_cq, recv_cq) = (host.send_cq.clone(), host.recv_cq.clone());
            host.pd.create_qp(&QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true })
        };
        let ends = [from, to];
        let qps = [make(&self.hosts[from as usize])?, make(&self.hosts[to as usize])?];
        for side in 0..2 {
            let peer = address(ends[1 - side] as usize, false);
            let (qp, other) = (&qps[side], &qps[1 - side]);
            let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
            qp.modify(&attr, mask)?;
            let mut av = AddressVector::new(1, 0, Gid::from_ip(peer));
            av.traffic_class = priority << 5;
            let (attr, mask) = QpAttr::rtr(QpType::Rc, other.qp_num(), Psn::new(0), self.mtu, av);
            qp.modify(&attr, mask)?;
            let (mut attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(0));
            (attr.timeout, attr.retry_cnt) = (self.timeout, self.retry_cnt);
            qp.modify(&attr, mask)?;
        }
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let target = self.hosts[to as usize].pd.alloc_mr(length, access)?;
        self.connections.push(Connection {
            from,
            qps,
            target,
            waiting: VecDeque::new(),
            arriving: VecDeque::new(),
            posted: 0,
            failed: false,
        });
        Ok(self.connections.len() - 1)
    }

    /// Posts what a QP has room for.
    fn pump(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        let source = &self.hosts[connection.from as usize].source;
        while connection.posted < DEPTH
            && let Some(piece) = connection.waiting.pop_front()
        {
            let list =
                [Sge { addr: source.addr() + piece.offset as u64, length: piece.length as u32, lkey: source.lkey() }];
            let (remote_addr, rkey) = (connection.target.addr(), connection.target.rkey());
            let op = if piece.last {
                SendOp::WriteWithImm { remote_addr, rkey, imm: piece.message }
            } else {
                SendOp::Write { remote_addr, rkey }
            };
            let last = u64::from(piece.last) << 32;
            let wr_id = (index as u64) << 33 | last | u64::from(piece.message);
            let wr = SendWr { flags: SendFlags::SIGNALED, sg_list: &list, ..SendWr::new(wr_id, op) };
            connection.qps[0].post_send(&[wr]).map_err(|error| error.to_string())?;
            connection.posted += 1;
        }
        Ok(())
    }

    /// Whether what stands in a message's target is what its sender has.
    fn is_intact(&mut self, index: usize, piece: Piece) -> bool {
        let connection = &self.connections[index];
        let got = &mut self.scratch[..piece.length];
        connection.target.read(0, got).is_ok()
            && *got == self.hosts[connection.from as usize].pattern[piece.offset..piece.offset + piece.length]
    }
}

impl EngineHost {
    fn new(host: u32, model: &Model, congestion: Congestion, seed: u64) -> Result<Self, VerbsError> {
        let gid = Gid::from_ip(address(host as usize, false));
        let mut port_config = PortConfig::new("fabric", vec![gid]);
        if let Some(mtu) = Mtu::from_bytes(model.host.mtu) {
            port_config.active_mtu = mtu;
        }
        let mut config = NicConfig::new(format!("host{host}"), vec![port_config]);
        config.congestion = congestion;
        config.seed = seed;
        config.solve_ip_ids = false;
        // One packet of each QP in turn, as hardware does.
        config.budget.transmit_per_qp = 1;
        config.transport.max_inflight_bytes = 1 << 30;
        // Receives are always posted: nobody waits for credits that were not told yet, as nobody does on the light host.
        config.transport.advertise_credits = false;
        config.transport.ack_req_interval = model.host.ack_every;
        if let Notification::Packets { interval } = model.host.notification {
            config.transport.cnp_interval_ns = interval.as_ns();
        }
        let port = EnginePort::default();
        let nic = ManualNic::new(config, vec![Box::new(port.clone())], seed ^ u64::from(host) << 48)?;
        let context = nic.context();
        let pd = context.alloc_pd()?;
        let source = pd.alloc_mr(2 * CHUNK, AccessFlags::LOCAL_WRITE)?;
        let mut pattern = vec![0; 2 * CHUNK];
        fill(seed ^ u64::from(host + 1), 0, &mut pattern);
        source.write(0, &pattern)?;
        Ok(Self {
            send_cq: context.create_cq(1 << 16, None, 0)?,
            recv_cq: context.create_cq(1 << 16, None, 0)?,
            nic,
            port,
            pd,
            source,
            pattern,
            due: Ps::NEVER,
        })
    }
}

/// The code of the retransmission timer that is nearest: 4.096 µs x 2^code.
fn timeout_code(timeout: Ps) -> u8 {
    let units = (timeout.0 / 4_096_000).max(1);
    (units.ilog2() + u32::from(!units.is_power_of_two() && units > 1 << units.ilog2())).min(31) as u8
}

/// What a NIC is told of congestion control: the profile, its parameters, and base RTT and switches for each peer.
fn congestion(
    engine: &EngineModel,
    host: u32,
    hosts: u32,
    line_bps: u64,
    routes: &dyn Fn(u32, u32) -> (u64, u8),
) -> Result<Congestion, String> {
    let mut congestion = Congestion::default();
    if engine.algorithm == "none" {
        return Ok(congestion);
    }
    let mut text = format!(
        "algorithm = {:?}\nline_rate_gbps = {}\nburst_bytes = {BURST_BYTES}\n[parameters]\n",
        engine.algorithm,
        line_bps as f64 / 1e9
    );
    for (name, value) in &engine.parameters {
        text += &format!("{name} = {value:?}\n");
    }
    for peer in (0..hosts).filter(|peer| *peer != host) {
        let (rtt_ps, hops) = routes(host, peer);
        let to = address(peer as usize, false);
        text += &format!("[[qp]]\nto = \"{to}\"\nbase_rtt_us = {:?}\nhops = {hops}\n", rtt_ps as f64 / 1e6);
    }
    let table: CongestionTable = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
    congestion.read(table).map_err(|error| error.to_string())?;
    Ok(congestion)
}

impl World {
    /// Messages whose bytes did not arrive as they were sent; always 0 on light hosts, which have none.
    pub fn corrupted(&self) -> u64 {
        self.engines.as_ref().map_or(0, |engines| engines.corrupted)
    }

    /// Posts a message that stands in the list already. It fails like a QP that gives up where verbs refuse.
    pub(super) fn post_to_engine(&mut self, message: u32, post: &Post) {
        let Some(mut engines) = self.engines.take() else { return };
        let posted = post_message(&mut engines, message, post);
        self.engines = Some(engines);
        if posted.is_err() {
            self.counters.given_up += 1;
            self.open -= 1;
            return;
        }
        self.turn_engine(post.from);
    }

    /// Lets the engine of a host take turns until it has nothing to do now, and tells what completed.
    pub(super) fn turn_engine(&mut self, host: u32) {
        let Some(mut engines) = self.engines.take() else { return };
        let now = Time(self.now.as_ns());
        let mut deadline = None;
        for _ in 0..TURNS {
            let own = &mut engines.hosts[host as usize];
            let turn = own.nic.turn(now);
            deadline = turn.next_deadline;
            let refused = own.port.waiting().refused;
            let completed = self.take_completions(&mut engines, host);
            // What has just left may have made room for a QP that found none.
            if !completed && (refused || !turn.ready && !turn.progressed) {
                break;
            }
        }
        let own = &mut engines.hosts[host as usize];
        if let Some(Time(at)) = deadline {
            let at = Ps::from_ns(at).max(self.now + Ps(1_000));
            if at < own.due {
                own.due = at;
                self.queue.push(at, Event::Turn { host });
            }
        }
        self.engines = Some(engines);
        self.transmit(self.hosts[host as usize].port);
    }

    /// The time of a turn has come.
    pub(super) fn turn_is_due(&mut self, host: u32) {
        if let Some(engines) = &mut self.engines {
            let own = &mut engines.hosts[host as usize];
            if own.due > self.now {
                return;
            }
            own.due = Ps::NEVER;
            self.turn_engine(host);
        }
    }

    /// Polls both completion queues; true if something was there.
    fn take_completions(&mut self, engines: &mut Engines, host: u32) -> bool {
        let mut any = false;
        let mut out = [WorkCompletion::default(); 32];
        let receives = engines.hosts[host as usize].recv_cq.clone();
        while let Ok(count @ 1..) = receives.poll(&mut out) {
            any = true;
            for wc in &out[..count] {
                let index = wc.wr_id as usize;
                let Some(piece) = engines.connections.get_mut(index).and_then(|c| c.arriving.pop_front()) else {
                    continue;
                };
                if wc.status != WcStatus::Success {
                    continue;
                }
                if wc.imm != piece.message || !engines.is_intact(index, piece) {
                    engines.corrupted += 1;
                }
                let message = &mut self.messages[piece.message as usize];
                message.delivered = self.now;
                self.counters.delivered_bytes += message.bytes;
                self.notices.push(Notice::Delivered(piece.message));
            }
        }
        let sends = engines.hosts[host as usize].send_cq.clone();
        while let Ok(count @ 1..) = sends.poll(&mut out) {
            any = true;
            for wc in &out[..count] {
                let (index, last, message) = ((wc.wr_id >> 33) as usize, wc.wr_id >> 32 & 1 != 0, wc.wr_id as u32);
                let connection = &mut engines.connections[index];
                connection.posted -= 1;
                if wc.status != WcStatus::Success {
                    connection.failed = true;
                    // What it holds never ends: each message is given up once, with its last piece.
                    let waiting = connection.waiting.drain(..).filter(|piece| piece.last).count() as u64;
                    let lost = waiting + u64::from(last);
                    self.open -= lost;
                    self.counters.given_up += lost;
                    continue;
                }
                if last {
                    let bytes = self.messages[message as usize].bytes;
                    self.messages[message as usize].acked = self.now;
                    self.acknowledged += bytes;
                    self.open -= 1;
                    self.notices.push(Notice::Acked(message));
                }
                if engines.pump(index).is_err() {
                    engines.connections[index].failed = true;
                }
            }
        }
        any
    }

    /// Brings what the engine wants to send to the queues of its port: answers all, of data two packets: the second sees
    /// to it that the port asks again.
    pub(super) fn feed_port(&mut self, index: u32, node: u32) {
        let Some(engines) = &mut self.engines else { return };
        let own = engines.hosts[node as usize].port.clone();
        let mut was_refused = false;
        loop {
            let mut waiting = own.waiting();
            let frame = match waiting.answers.pop_front() {
                Some(frame) => frame,
                None => {
                    let Some(frame) = waiting.data.front() else { break };
                    let queue = &self.ports[index as usize].queues[usize::from(frame.traffic_class >> 5)];
                    if queue.bytes >= 2 * self.model.host.mtu {
                        break;
                    }
                    was_refused |= std::mem::take(&mut waiting.refused);
                    let Some(frame) = waiting.data.pop_front() else { break };
                    frame
                }
            };
            drop(waiting);
            self.enqueue_frame(index, node, frame);
        }
        if was_refused && let Some(engines) = &mut self.engines {
            let host = &mut engines.hosts[node as usize];
            if self.now < host.due {
                host.due = self.now;
                self.queue.push(self.now, Event::Turn { host: node });
            }
        }
    }

    fn enqueue_frame(&mut self, index: u32, node: u32, frame: Frame) {
        let std::net::IpAddr::V4(dst) = frame.dst else { return };
        let host = &self.model.host;
        let to = u32::from(dst.octets()[3]) - 1;
        let answers = frame.is_answer();
        let (kind, priority) = match (frame.is_cnp(), answers) {
            (true, _) => (Kind::Cnp, host.cnp_priority),
            (false, true) => (Kind::Ack, host.ack_priority),
            (false, false) => (Kind::Data, frame.traffic_class >> 5),
        };
        self.counters.data_packets += u64::from(!answers);
        self.counters.cnps += u64::from(kind == Kind::Cnp);
        let bytes = frame.bytes.len() as u32;
        let packet = Packet {
            to,
            entropy: super::world::entropy(node, to, u64::from(frame.src_port)),
            payload: bytes,
            ..Packet::bare(kind, priority, bytes + FRAME_BYTES, self.now)
        };
        let queue = if answers && host.acks_first { CONTROL } else { usize::from(priority) };
        let place = self.arena.add(packet);
        if let Some(engines) = &mut self.engines {
            if engines.frames.len() <= place as usize {
                engines.frames.resize_with(place as usize + 1, || None);
            }
            engines.frames[place as usize] = Some(frame);
        }
        self.ports[index as usize].enqueue(self.now, &mut self.arena, queue, place);
    }

    /// A packet reached a host with an engine.
    pub(super) fn receive_by_engine(&mut self, node: u32, place: u32) {
        let marked = self.arena.get(place).marked;
        self.arena.remove(place);
        if let Some(engines) = &mut self.engines
            && let Some(mut frame) = engines.frames.get_mut(place as usize).and_then(Option::take)
        {
            if marked {
                frame.mark();
            }
            engines.hosts[node as usize].port.waiting().arrived.push_back(frame);
        }
        self.turn_engine(node);
    }

    /// A packet of an engine is lost.
    pub(super) fn forget_frame(&mut self, place: u32) {
        if let Some(engines) = &mut self.engines
            && let Some(frame) = engines.frames.get_mut(place as usize)
        {
            *frame = None;
        }
    }
}

/// Cuts a message into WRITEs and posts the first of them.
fn post_message(engines: &mut Engines, message: u32, post: &Post) -> Result<(), String> {
    let told = |error: VerbsError| error.to_string();
    let index = match post.lane.and_then(|lane| engines.lanes.get(&(post.from, post.to, lane))) {
        Some(&index) => index,
        None => {
            let length = if post.lane.is_some() { CHUNK as u64 } else { post.bytes };
            let index = engines.connect(post.from, post.to, post.priority, length).map_err(told)?;
            if let Some(lane) = post.lane {
                engines.lanes.insert((post.from, post.to, lane), index);
            }
            index
        }
    };
    if engines.connections[index].failed {
        return Err("the QP has failed".to_owned());
    }
    // Neighbours begin elsewhere in the pattern, so that one's bytes are not taken for another's.
    let offset = message as usize * 64 % CHUNK;
    let mut left = post.bytes;
    loop {
        let length = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        left -= length as u64;
        let piece = Piece { message, offset, length, last: left == 0 };
        let connection = &mut engines.connections[index];
        connection.waiting.push_back(piece);
        if piece.last {
            connection.arriving.push_back(piece);
            let receive = RecvWr { wr_id: index as u64, sg_list: &[] };
            connection.qps[1].post_recv(&[receive]).map_err(|error| error.to_string())?;
            break;
        }
    }
    engines.pump(index)
}
