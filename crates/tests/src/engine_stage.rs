//! The NIC's engine as a stage: every node is a [`ManualNic`] with two ports, and its objects are used through the verbs
//! traits, as an application would. Only the wire is the script's.
//!
//! Each packet that leaves is checked for its ICRC, and each that arrives is made of bytes with a right one.
//!
//! With [`EngineStage::same_host`] the nodes of a script are ports of one NIC, two each, whose QPs execute what they ask of one another without packets (D3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scalefabric_nic::{ManualNic, PortChange};
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

mod line;
mod nic;

use line::{Arriving, Line};
use nic::{OneNic, PORTS, own_nic};

struct Node {
    nic: Arc<ManualNic>,
    /// Its first port is the NIC's of this number, less 1.
    before: u8,
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
    /// All nodes are on one NIC: that, and its ports.
    one: Option<OneNic>,
    /// There, who posts executes; else turns do.
    at_once: bool,
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

/// Attributes whose ports are called otherwise.
fn moved(attr: &QpAttr, name: impl Fn(u8) -> u8) -> QpAttr {
    let mut attr = *attr;
    for port in [&mut attr.port_num, &mut attr.alt_port_num, &mut attr.ah_attr.port_num, &mut attr.alt_ah_attr.port_num]
    {
        *port = name(*port);
    }
    attr
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

    /// Whether what happens on the one node's NIC happens on the other's.
    fn is_at(&self, node: usize, other: usize) -> bool {
        node == other || self.one.is_some()
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

    fn executes_by_itself(&self) -> bool {
        self.one.is_some()
    }

    fn add_node(&mut self, ports: &[Gid], pkeys: &[PKey], config: &Config) -> usize {
        let number = self.nodes.len();
        let (nic, lines, before) = match &self.one {
            None => {
                let (nic, lines) = own_nic(number, ports, pkeys, config);
                (nic, lines, 0)
            }
            Some(_) => self.own_ports(number, ports, pkeys, config),
        };
        let context = nic.context();
        let xrcd = context.open_xrcd().expect("a new device has an XRC domain");
        let ports = ports.to_vec();
        self.nodes.push(Node { nic, before, context, ports, lines, pds: BTreeMap::new(), xrcd, deadline: None });
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
        let before = self.nodes[self.qps[qp].node].before;
        self.qps[qp].qp.modify(&moved(attr, |port| if port == 0 { 0 } else { port + before }), mask)
    }

    fn query(&self, qp: usize) -> QpAttr {
        let attr = self.qps[qp].qp.query().expect("a QP that is not destroyed can be queried").0;
        moved(&attr, |port| port.saturating_sub(self.nodes[self.qps[qp].node].before))
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
                let port_num = self.nodes[node].before + 1;
                let av = AddressVector { dgid, port_num, ..AddressVector::default() };
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
                        let qp = self.qps.iter().position(|q| self.is_at(q.node, number) && q.qp.qp_num() == qpn);
                        qp.map_or(Subject::Node(number), Subject::Qp)
                    }
                    EventSubject::SharedReceiveQueue(srqn) => {
                        let srq = self.srqs.iter().position(|s| self.is_at(s.node, number) && s.srq.srq_num() == srqn);
                        srq.map_or(Subject::Node(number), Subject::Srq)
                    }
                    // On one NIC all nodes hear with one ear.
                    EventSubject::Port(port) if self.one.is_some() => Subject::Node(usize::from((port - 1) / PORTS)),
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
            let counters = node.nic.counters(node.before + port as u8 + 1);
            counters.all().filter(|(name, _)| *name == label).map(|(_, value)| value).sum::<u64>()
        };
        (0..node.ports.len()).map(of).sum()
    }

    fn set_pkey(&mut self, node: usize, port: u8, index: u16, value: PKey) {
        let change = PortChange::SetPKey { index, pkey: value };
        let Node { nic, before, .. } = &self.nodes[node];
        nic.change_port(before + port, change).expect("the script's P_Key has a place");
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
        let Node { nic, before, .. } = &self.nodes[node];
        nic.change_port(before + port, change).map_err(text)
    }

    fn fail(&mut self, _qp: usize, _status: WcStatus) -> Result<(), String> {
        Err("failing one QP is the transport's dialogue; on the engine a CQ overrun does it".into())
    }

    fn fail_device(&mut self, node: usize) -> Result<(), String> {
        self.nodes[node].nic.core().fail_device();
        Ok(())
    }
}
