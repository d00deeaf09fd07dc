//! The NIC's engine as a stage: every node is a [`ManualNic`] with two ports, and its objects are used through the verbs
//! traits, as an application would. Only the wire is the script's.
//!
//! Each packet that leaves is checked for its ICRC, and each that arrives is made of bytes with a right one.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scalefabric_nic::port::{Datagram, Port, Sent, Train};
use scalefabric_nic::{ManualNic, NicConfig, PortChange, PortConfig};
use scalefabric_transport::{Config, Time};
use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, BindMw, CompletionQueue, Context, EventSubject, EventType, FlushLevel,
    LKey, MemoryRegion, MemoryWindow, MwType, OpKind, ProtectionDomain, QKey, QpAttr, QpAttrMask, QpCap, QpInit,
    QpType, QueuePair, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge, SharedReceiveQueue, SrqInit, UdAddress,
    VerbsError, WcStatus, WorkCompletion, XrcDomain,
};
use scalefabric_wire::icrc::Flow;
use scalefabric_wire::packet::Packet as WirePacket;
use scalefabric_wire::{Gid, PKey, Qpn, Srqn};

use crate::script::Queue;
use crate::stage::{Done, Packet, Piece, PlainSend, QpSpec, RegionInfo, Stage, Subject, Target};
use crate::transport_stage::placement;

/// A packet as it arrives: what the IP and UDP headers said, and BTH to ICRC.
struct Arriving {
    packet: Packet,
    ip_id: u16,
    bytes: Vec<u8>,
}

/// Both ends of a port: what arrives and what has left.
#[derive(Default)]
struct Line {
    inbox: VecDeque<Arriving>,
    outbox: VecDeque<Packet>,
    groups: Vec<IpAddr>,
    now: u64,
    port_num: u8,
}

/// A port whose other end is the script.
struct ScriptPort(Arc<Mutex<Line>>);

impl ScriptPort {
    fn line(&self) -> std::sync::MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Port for ScriptPort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut count = 0;
        while count < max {
            // The line is not locked while the engine works: it may send.
            let Some(arriving) = self.line().inbox.pop_front() else { break };
            let packet = &arriving.packet;
            sink(&Datagram {
                src: packet.src.to_ip(),
                src_port: packet.src_port,
                dst: packet.dst.to_ip(),
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
                ip_id: arriving.ip_id,
                bytes: &arriving.bytes,
            });
            count += 1;
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut line = self.line();
        let (src, dst) = (Gid::from_ip(train.src), Gid::from_ip(train.dst));
        for (id, bytes) in train.bytes.chunks(train.segment.max(1)).enumerate() {
            let packet = WirePacket::parse(bytes).expect("the engine sends packets that can be read");
            let icrc = Flow::between(src, dst, train.src_port).icrc(id as u16, &bytes[..bytes.len() - 4]);
            assert_eq!(packet.icrc, icrc, "the ICRC of a packet that leaves is right");
            let sent = Packet {
                headers: packet.headers,
                payload: packet.payload.to_vec(),
                src,
                dst,
                port_num: line.port_num,
                src_port: train.src_port,
                traffic_class: train.traffic_class,
                hop_limit: train.hop_limit,
                flow_label: train.flow_label,
                at: line.now,
            };
            line.outbox.push_back(sent);
        }
        Sent::Done
    }

    fn set_time(&mut self, now_ns: u64) {
        self.line().now = now_ns;
    }

    fn source_port(&self, _src: IpAddr, flow: u32) -> u16 {
        0xc000 | (flow as u16 & 0x3fff)
    }

    fn join(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.line().groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) -> std::io::Result<()> {
        self.line().groups.retain(|g| *g != group);
        Ok(())
    }
}

struct Node {
    nic: ManualNic,
    context: Arc<dyn Context>,
    ports: Vec<Gid>,
    lines: Vec<Arc<Mutex<Line>>>,
    pds: BTreeMap<u32, Arc<dyn ProtectionDomain>>,
    xrcd: Arc<dyn XrcDomain>,
    deadline: Option<u64>,
}

struct Qp {
    node: usize,
    pd: u32,
    qp: Arc<dyn QueuePair>,
    send_cq: Arc<dyn CompletionQueue>,
    recv_cq: Arc<dyn CompletionQueue>,
}

struct Srq {
    node: usize,
    srq: Arc<dyn SharedReceiveQueue>,
    cq: Arc<dyn CompletionQueue>,
}

/// The stage.
#[derive(Default)]
pub struct EngineStage {
    now: u64,
    nodes: Vec<Node>,
    regions: Vec<(usize, Arc<dyn MemoryRegion>, RegionInfo)>,
    windows: Vec<Arc<dyn MemoryWindow>>,
    qps: Vec<Qp>,
    srqs: Vec<Srq>,
    sent: Vec<(usize, Packet)>,
}

/// Completions that a CQ of a script holds.
const CQ_ENTRIES: u32 = 256;

fn text(error: VerbsError) -> String {
    error.to_string()
}

impl EngineStage {
    fn pd(&mut self, node: usize, pd: u32) -> Result<Arc<dyn ProtectionDomain>, String> {
        let node = &mut self.nodes[node];
        if let Some(found) = node.pds.get(&pd) {
            return Ok(found.clone());
        }
        let made = node.context.alloc_pd().map_err(text)?;
        node.pds.insert(pd, made.clone());
        Ok(made)
    }

    /// Lets one node work until it has nothing to do, and collects what it sent.
    fn turn_node(&mut self, node: usize) {
        let now = self.now;
        let place = &mut self.nodes[node];
        for _ in 0..10_000 {
            let turn = place.nic.turn(Time(now));
            place.deadline = turn.next_deadline.map(|t| t.0);
            let mut moved = false;
            for line in &place.lines {
                let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                moved |= !line.outbox.is_empty();
                self.sent.extend(line.outbox.drain(..).map(|packet| (node, packet)));
            }
            if !turn.progressed && !turn.ready && !moved {
                return;
            }
        }
        panic!("the engine never comes to rest");
    }

    fn sges(pieces: &[Piece]) -> Vec<Sge> {
        pieces.iter().map(|p| Sge { addr: p.addr, length: p.length, lkey: LKey(p.lkey) }).collect()
    }

    /// The bytes of inline data, which safe Rust hands over itself.
    fn inline(&self, pieces: &[Piece]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for piece in pieces {
            let holds = |info: &RegionInfo| {
                piece.addr >= info.addr && piece.addr + u64::from(piece.length) <= info.addr + info.len
            };
            let region = self.regions.iter().find(|(_, _, info)| info.lkey == piece.lkey && holds(info));
            let (_, region, info) = region.ok_or("inline data outside every region")?;
            let start = bytes.len();
            bytes.resize(start + piece.length as usize, 0);
            region.read((piece.addr - info.addr) as usize, &mut bytes[start..]).map_err(text)?;
        }
        Ok(bytes)
    }
}

impl Stage for EngineStage {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn add_node(&mut self, ports: &[Gid], pkeys: &[PKey], config: &Config) -> usize {
        let number = self.nodes.len();
        let mut lines = Vec::new();
        let mut boxed: Vec<Box<dyn Port>> = Vec::new();
        let mut configs = Vec::new();
        for (index, gid) in ports.iter().enumerate() {
            let line = Arc::new(Mutex::new(Line { port_num: index as u8 + 1, ..Line::default() }));
            lines.push(line.clone());
            boxed.push(Box::new(ScriptPort(line)));
            let mut port = PortConfig::new(format!("n{number}p{}", index + 1), vec![*gid]);
            port.pkeys = pkeys.to_vec();
            configs.push(port);
        }
        let mut nic = NicConfig::new(format!("node{number}"), configs);
        nic.transport = *config;
        let nic = ManualNic::new(nic, boxed, number as u64 + 1).expect("the configuration of a script's node is legal");
        let context = nic.context();
        let xrcd = context.open_xrcd().expect("a new device has an XRC domain");
        let ports = ports.to_vec();
        self.nodes.push(Node { nic, context, ports, lines, pds: BTreeMap::new(), xrcd, deadline: None });
        number
    }

    fn add_region(&mut self, node: usize, pd: u32, bytes: &[u8], access: AccessFlags) -> Result<usize, String> {
        let pd = self.pd(node, pd)?;
        let region = pd.alloc_mr(bytes.len(), access).map_err(text)?;
        region.write(0, bytes).map_err(text)?;
        let info =
            RegionInfo { addr: region.addr(), len: bytes.len() as u64, lkey: region.lkey().0, rkey: region.rkey().0 };
        self.regions.push((node, region, info));
        Ok(self.regions.len() - 1)
    }

    fn region(&self, region: usize) -> RegionInfo {
        self.regions[region].2
    }

    fn read(&self, region: usize, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length];
        self.regions[region].1.read(offset as usize, &mut bytes).map_err(text)?;
        Ok(bytes)
    }

    fn gone(&mut self, _region: usize) -> Result<(), String> {
        Err("memory that goes away is the transport's dialogue; the NIC's own tests unmap real pages".into())
    }

    fn dereg(&mut self, region: usize) -> Result<(), String> {
        self.regions[region].1.destroy().map_err(text)
    }

    fn add_window(&mut self, node: usize, pd: u32) -> Result<usize, String> {
        let window = self.pd(node, pd)?.alloc_mw(MwType::Type2).map_err(text)?;
        self.windows.push(window);
        Ok(self.windows.len() - 1)
    }

    fn window_rkey(&self, window: usize, tag: u8) -> u32 {
        self.windows[window].rkey().0 & !0xff | u32::from(tag)
    }

    fn add_srq(&mut self, node: usize, pd: u32, xrc: bool, limit: u32) -> Result<usize, String> {
        let pd = self.pd(node, pd)?;
        let cq = self.nodes[node].context.create_cq(CQ_ENTRIES, None, 0).map_err(text)?;
        let xrc = xrc.then(|| (self.nodes[node].xrcd.clone(), cq.clone()));
        let srq = pd.create_srq(&SrqInit { max_wr: 64, max_sge: 4, srq_limit: limit, xrc }).map_err(text)?;
        self.srqs.push(Srq { node, srq, cq });
        Ok(self.srqs.len() - 1)
    }

    fn srqn(&self, srq: usize) -> Srqn {
        self.srqs[srq].srq.srq_num()
    }

    fn arm(&mut self, srq: usize, limit: u32) -> Result<(), String> {
        self.srqs[srq].srq.modify(None, Some(limit)).map_err(text)
    }

    fn add_qp(&mut self, spec: &QpSpec) -> Result<usize, String> {
        let context = self.nodes[spec.node].context.clone();
        let send_cq = context.create_cq(spec.cq.unwrap_or(CQ_ENTRIES), None, 0).map_err(text)?;
        let recv_cq = context.create_cq(spec.cq.unwrap_or(CQ_ENTRIES), None, 0).map_err(text)?;
        let qp = if spec.qp_type == QpType::XrcRecv {
            context.create_xrc_target(&self.nodes[spec.node].xrcd).map_err(text)?
        } else {
            let init = QpInit {
                qp_type: spec.qp_type,
                send_cq: send_cq.clone(),
                recv_cq: recv_cq.clone(),
                srq: spec.srq.map(|srq| self.srqs[srq].srq.clone()),
                cap: QpCap {
                    max_send_wr: spec.max_send_wr,
                    max_recv_wr: spec.max_recv_wr,
                    max_send_sge: 4,
                    max_recv_sge: 4,
                    max_inline_data: 64,
                },
                sq_sig_all: spec.sig_all,
            };
            self.pd(spec.node, spec.pd)?.create_qp(&init).map_err(text)?
        };
        self.qps.push(Qp { node: spec.node, pd: spec.pd, qp, send_cq, recv_cq });
        Ok(self.qps.len() - 1)
    }

    fn qpn(&self, qp: usize) -> Qpn {
        self.qps[qp].qp.qp_num()
    }

    fn modify(&mut self, qp: usize, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.qps[qp].qp.modify(attr, mask)
    }

    fn query(&self, qp: usize) -> QpAttr {
        self.qps[qp].qp.query().expect("a QP that is not destroyed can be queried").0
    }

    fn destroy(&mut self, qp: usize) -> Result<(), String> {
        self.qps[qp].qp.destroy().map_err(text)
    }

    fn attach(&mut self, qp: usize, group: Gid) -> Result<(), String> {
        self.qps[qp].qp.attach_mcast(group).map_err(text)
    }

    fn detach(&mut self, qp: usize, group: Gid) -> Result<(), String> {
        self.qps[qp].qp.detach_mcast(group).map_err(text)
    }

    fn members(&self, group: Gid) -> Vec<usize> {
        let joined = |node: &Node| {
            node.lines
                .iter()
                .any(|line| line.lock().unwrap_or_else(PoisonError::into_inner).groups.contains(&group.to_ip()))
        };
        (0..self.nodes.len()).filter(|node| joined(&self.nodes[*node])).collect()
    }

    fn post_send(&mut self, qp: usize, wr: &PlainSend) -> Result<(), String> {
        let (node, pd) = (self.qps[qp].node, self.qps[qp].pd);
        let handle: Option<(Arc<dyn AddressHandle>, Qpn, QKey)> = match wr.ud {
            None => None,
            Some((dgid, qpn, qkey)) => {
                let av = AddressVector { dgid, ..AddressVector::default() };
                Some((self.pd(node, pd)?.create_ah(&av).map_err(text)?, qpn, QKey(qkey)))
            }
        };
        let inline = wr.flags.contains(SendFlags::INLINE);
        let inline_data = if inline { self.inline(&wr.pieces)? } else { Vec::new() };
        let sg_list = if inline { Vec::new() } else { Self::sges(&wr.pieces) };
        let window = wr.bind.map(|bind| self.windows[bind.window].clone());
        let bound_to = wr.bind.and_then(|bind| bind.region).map(|region| self.regions[region].1.clone());
        let (remote_addr, rkey) = (wr.remote_addr, RKey(wr.rkey));
        let op = match wr.kind {
            OpKind::Send => SendOp::Send,
            OpKind::SendWithImm => SendOp::SendWithImm { imm: wr.imm },
            OpKind::SendWithInv => SendOp::SendWithInv { invalidate_rkey: RKey(wr.inv) },
            OpKind::Write => SendOp::Write { remote_addr, rkey },
            OpKind::WriteWithImm => SendOp::WriteWithImm { remote_addr, rkey, imm: wr.imm },
            OpKind::Read => SendOp::Read { remote_addr, rkey },
            OpKind::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: wr.compare, swap: wr.swap },
            OpKind::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: wr.add },
            OpKind::LocalInv => SendOp::LocalInv { rkey: RKey(wr.inv) },
            OpKind::BindMw => {
                let (Some(bind), Some(mw)) = (wr.bind, &window) else { return Err("bind needs mw=".into()) };
                SendOp::BindMw(BindMw {
                    mw: &**mw,
                    rkey: RKey(bind.rkey),
                    mr: bound_to.as_deref(),
                    addr: bind.addr,
                    length: bind.length,
                    access: bind.access,
                })
            }
            OpKind::Flush => SendOp::Flush {
                remote_addr,
                rkey,
                length: wr.length,
                placement: placement(wr.placement),
                level: if wr.whole_region { FlushLevel::MemoryRegion } else { FlushLevel::Range },
            },
            OpKind::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
        };
        let ud = handle.as_ref().map(|(ah, qpn, qkey)| UdAddress { ah: &**ah, remote_qpn: *qpn, remote_qkey: *qkey });
        let wr = SendWr {
            flags: wr.flags,
            sg_list: &sg_list,
            inline_data: &inline_data,
            ud,
            xrc_srqn: wr.srqn,
            ..SendWr::new(wr.wr, op)
        };
        self.qps[qp].qp.post_send(&[wr]).map_err(|error| error.to_string())
    }

    fn post_recv(&mut self, target: Target, wr: u64, pieces: &[Piece]) -> Result<(), String> {
        let sg_list = Self::sges(pieces);
        let chain = [RecvWr { wr_id: wr, sg_list: &sg_list }];
        let outcome = match target {
            Target::Qp(qp) => self.qps[qp].qp.post_recv(&chain),
            Target::Srq(srq) => self.srqs[srq].srq.post_recv(&chain),
        };
        outcome.map_err(|error| error.to_string())
    }

    fn turn(&mut self, out: &mut Vec<(usize, Packet)>) {
        for node in 0..self.nodes.len() {
            self.turn_node(node);
        }
        out.append(&mut self.sent);
    }

    fn deliver(&mut self, node: usize, packets: &[Packet]) {
        for packet in packets {
            let mut bytes = vec![0; packet.headers.len() + packet.payload.len().next_multiple_of(4) + 4];
            let mut made = WirePacket { headers: packet.headers, payload: &packet.payload, icrc: 0 };
            made.emit(&mut bytes).expect("the script's packets can be made");
            let ip_id = 0;
            made.icrc = Flow::between(packet.src, packet.dst, packet.src_port).icrc(ip_id, &bytes[..bytes.len() - 4]);
            made.emit(&mut bytes).expect("the script's packets can be made");
            let line = &self.nodes[node].lines[usize::from(packet.port_num) - 1];
            let arriving = Arriving { packet: packet.clone(), ip_id, bytes };
            line.lock().unwrap_or_else(PoisonError::into_inner).inbox.push_back(arriving);
        }
        self.turn_node(node);
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn next_deadline(&mut self) -> Option<u64> {
        self.nodes.iter().filter_map(|node| node.deadline).min()
    }

    fn set_now(&mut self, ns: u64) {
        self.now = ns;
    }

    fn poll(&mut self, target: Target, queue: Queue) -> Vec<Done> {
        let cq = match (target, queue) {
            (Target::Qp(qp), Queue::Send) => &self.qps[qp].send_cq,
            (Target::Qp(qp), Queue::Recv) => &self.qps[qp].recv_cq,
            (Target::Srq(srq), _) => &self.srqs[srq].cq,
        };
        let mut all = Vec::new();
        let mut buffer = [WorkCompletion::default(); 16];
        // An overrun CQ is told by its event.
        while let Ok(count) = cq.poll(&mut buffer) {
            all.extend(buffer[..count].iter().map(|wc| Done { wc: *wc, solicited: None }));
            if count == 0 {
                break;
            }
        }
        all
    }

    fn events(&mut self) -> Vec<(Subject, EventType)> {
        let mut events = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            while let Ok(Some(event)) = node.context.get_async_event(Some(Duration::ZERO)) {
                let subject = match event.subject {
                    EventSubject::QueuePair(qpn) => {
                        let qp = self.qps.iter().position(|q| q.node == number && q.qp.qp_num() == qpn);
                        qp.map_or(Subject::Node(number), Subject::Qp)
                    }
                    EventSubject::SharedReceiveQueue(srqn) => {
                        let srq = self.srqs.iter().position(|s| s.node == number && s.srq.srq_num() == srqn);
                        srq.map_or(Subject::Node(number), Subject::Srq)
                    }
                    EventSubject::CompletionQueue(_) | EventSubject::Port(_) | EventSubject::Device => {
                        Subject::Node(number)
                    }
                };
                events.push((subject, event.event_type));
            }
        }
        events
    }

    fn counter(&self, node: usize, label: &str) -> u64 {
        let node = &self.nodes[node];
        let of = |port: usize| {
            let counters = node.nic.counters(port as u8 + 1);
            counters.all().filter(|(name, _)| *name == label).map(|(_, value)| value).sum::<u64>()
        };
        (0..node.ports.len()).map(of).sum()
    }

    fn set_pkey(&mut self, node: usize, port: u8, index: u16, value: PKey) {
        let change = PortChange::SetPKey { index, pkey: value };
        self.nodes[node].nic.change_port(port, change).expect("the script's P_Key has a place");
    }

    fn change_port(&mut self, node: usize, port: u8, change: &str) -> Result<(), String> {
        let gid = self.nodes[node].ports.get(usize::from(port) - 1).copied().unwrap_or_default();
        let change = match change {
            "down" => PortChange::Down,
            "up" => PortChange::Up,
            "remove_gid" => PortChange::RemoveGid { gid },
            "add_gid" => PortChange::AddGid { gid, index: None },
            _ => return Err(format!("{change}: write down, up, remove_gid or add_gid")),
        };
        self.nodes[node].nic.change_port(port, change).map_err(text)
    }

    fn fail(&mut self, _qp: usize, _status: WcStatus) -> Result<(), String> {
        Err("failing one QP is the transport's dialogue; on the engine a CQ overrun does it".into())
    }

    fn fail_device(&mut self, node: usize) -> Result<(), String> {
        self.nodes[node].nic.core().fail_device();
        Ok(())
    }
}
