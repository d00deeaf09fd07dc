//! The bare transport as a stage: every node is a few vectors, and each QP is `transport::QueuePair` over them.
//!
//! Its memory checks are a second, simple implementation of the rules that the NIC's memory table keeps, so that the two
//! check each other through the scripts.

mod world;

use std::collections::BTreeMap;

use scalefabric_transport::{Config, DropReason, Incoming, Next, QueuePair, SendWqe, WqeOp};
use scalefabric_verbs::limit::{DeviceLimits, check_values};
use scalefabric_verbs::{
    AccessFlags, AddressVector, EventType, FlushLevel, FlushPlacement, Mtu, OpKind, QKey, QpAttr, QpAttrMask, QpState,
    RKey, SendFlags, VerbsError, WcStatus, op_allowed,
};
use scalefabric_wire::{Gid, PKey, Qpn, Srqn};

use self::world::{Node, Queues, RecvQueue, Region, Srq, View, Window, World};
use crate::script::Queue;
use crate::stage::{Done, Packet, Piece, PlainSend, QpSpec, RegionInfo, Stage, Subject, Target};

/// The stage.
#[derive(Default)]
pub struct TransportStage {
    world: World,
    qps: Vec<QueuePair>,
    /// What the last transmit of each QP waits for.
    paced: Vec<Option<u64>>,
}

/// Limits of a node's device.
struct Limits<'a>(&'a Node);

impl DeviceLimits for Limits<'_> {
    fn port_count(&self) -> u8 {
        self.0.ports.len() as u8
    }
    fn active_mtu(&self, _port_num: u8) -> Mtu {
        Mtu::Mtu4096
    }
    fn pkey(&self, port_num: u8, index: u16) -> Option<PKey> {
        self.0.pkeys.get(usize::from(port_num).checked_sub(1)?)?.get(usize::from(index)).copied()
    }
    fn gid(&self, port_num: u8, index: u8) -> Option<Gid> {
        self.0.ports.get(usize::from(port_num).checked_sub(1)?).copied().filter(|_| index == 0)
    }
    fn max_qp_rd_atom(&self) -> u32 {
        128
    }
    fn max_qp_init_rd_atom(&self) -> u32 {
        128
    }
}

impl TransportStage {
    fn with<R>(&mut self, qp: usize, act: impl FnOnce(&mut QueuePair, &mut View<'_>) -> R) -> R {
        act(&mut self.qps[qp], &mut View { world: &mut self.world, qp })
    }

    fn next_key(&self) -> u32 {
        ((self.world.regions.len() + self.world.windows.len()) as u32 + 1) << 12
    }
}

impl Stage for TransportStage {
    fn name(&self) -> &'static str {
        "transport"
    }

    fn add_node(&mut self, ports: &[Gid], pkeys: &[PKey], _config: &Config) -> usize {
        self.world.nodes.push(Node {
            ports: ports.to_vec(),
            pkeys: vec![pkeys.to_vec(); ports.len()],
            counters: BTreeMap::new(),
        });
        self.world.nodes.len() - 1
    }

    fn add_region(&mut self, node: usize, pd: u32, bytes: &[u8], access: AccessFlags) -> Result<usize, String> {
        access.check_mr().map_err(|e| e.to_string())?;
        let key = self.next_key();
        let addr = 0x10_0000 * (self.world.regions.len() as u64 + 1);
        let bytes = bytes.to_vec();
        self.world.regions.push(Region { node, pd, addr, key, bytes, access, valid: true, gone: false });
        Ok(self.world.regions.len() - 1)
    }

    fn region(&self, region: usize) -> RegionInfo {
        let r = &self.world.regions[region];
        RegionInfo { addr: r.addr, len: r.bytes.len() as u64, lkey: r.key, rkey: r.key }
    }

    fn read(&self, region: usize, offset: u64, length: usize) -> Result<Vec<u8>, String> {
        let bytes = &self.world.regions[region].bytes;
        let start = offset as usize;
        bytes.get(start..start + length).map(<[u8]>::to_vec).ok_or_else(|| "beyond the region".to_string())
    }

    fn gone(&mut self, region: usize) -> Result<(), String> {
        self.world.regions[region].gone = true;
        Ok(())
    }

    fn dereg(&mut self, region: usize) -> Result<(), String> {
        if self.world.windows.iter().any(|w| w.bound.is_some_and(|bound| bound.0 == region)) {
            return Err("EBUSY: a window is bound".into());
        }
        self.world.regions[region].valid = false;
        Ok(())
    }

    fn add_window(&mut self, node: usize, pd: u32) -> Result<usize, String> {
        let rkey = self.next_key();
        self.world.windows.push(Window { node, pd, rkey, bound: None });
        Ok(self.world.windows.len() - 1)
    }

    fn window_rkey(&self, window: usize, tag: u8) -> u32 {
        self.world.windows[window].rkey & !0xff | u32::from(tag)
    }

    fn add_srq(&mut self, node: usize, pd: u32, _xrc: bool, limit: u32) -> Result<usize, String> {
        if limit != 0 {
            return Err("the limit event is the NIC's work: run this script on the engine only".into());
        }
        self.world.srqs.push(Srq { node, pd, queue: RecvQueue::default() });
        Ok(self.world.srqs.len() - 1)
    }

    fn srqn(&self, srq: usize) -> Srqn {
        Srqn::new(srq as u32 + 1)
    }

    fn arm(&mut self, _srq: usize, _limit: u32) -> Result<(), String> {
        Err("the limit event is the NIC's work: run this script on the engine only".into())
    }

    fn add_qp(&mut self, spec: &QpSpec) -> Result<usize, String> {
        let number = self.qps.len();
        self.qps.push(QueuePair::new(spec.qp_type, Qpn::new(0x11 + number as u32), spec.config));
        self.paced.push(None);
        let none = AddressVector::default();
        self.world.queues.push(Queues {
            spec: *spec,
            sends: Vec::new(),
            first_send: 0,
            recv: RecvQueue::default(),
            done: Vec::new(),
            taken: BTreeMap::new(),
            next_slot: 0,
            paths: [none; 2],
            destroyed: false,
        });
        Ok(number)
    }

    fn qpn(&self, qp: usize) -> Qpn {
        self.qps[qp].qpn()
    }

    fn modify(&mut self, qp: usize, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let spec = self.world.queues[qp].spec;
        let current = self.qps[qp].query();
        // The order of the NIC: the table first (in the transport), values after; all or nothing.
        scalefabric_verbs::check_modify(spec.qp_type, self.qps[qp].state(), attr, mask)?;
        check_values(spec.qp_type, &current, attr, mask, &Limits(&self.world.nodes[spec.node]))?;
        self.with(qp, |qp, view| qp.modify(view, attr, mask))?;
        let now = self.qps[qp].query();
        let queues = &mut self.world.queues[qp];
        if mask.contains(QpAttrMask::AV) {
            queues.paths[0] = now.ah_attr;
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            queues.paths[1] = now.alt_ah_attr;
        }
        if now.qp_state == QpState::Reset {
            queues.recv.posted.clear();
            queues.sends.clear();
            queues.first_send = 0;
        }
        Ok(())
    }

    fn query(&self, qp: usize) -> QpAttr {
        self.qps[qp].query()
    }

    fn destroy(&mut self, qp: usize) -> Result<(), String> {
        self.world.queues[qp].destroyed = true;
        Ok(())
    }

    fn post_send(&mut self, qp: usize, wr: &PlainSend) -> Result<(), String> {
        let state = self.qps[qp].state();
        let queues = &mut self.world.queues[qp];
        if !state.post_send_allowed() {
            return Err(format!("EINVAL: post_send in {state}"));
        }
        if !op_allowed(queues.spec.qp_type, wr.kind) {
            return Err(format!("EINVAL: a {} QP has no {}", queues.spec.qp_type, wr.kind.as_str()));
        }
        let mut flags = wr.flags;
        if queues.spec.sig_all {
            flags |= SendFlags::SIGNALED;
        }
        let index = queues.first_send.wrapping_add(queues.sends.len() as u32);
        let wqe = SendWqe {
            index,
            wr_id: wr.wr,
            op: operation(wr),
            flags,
            length: wr.pieces.iter().map(|p| p.length).sum(),
            ud: wr.ud.map(|(dgid, qpn, qkey)| (AddressVector { dgid, ..AddressVector::default() }, qpn, QKey(qkey))),
            xrc_srqn: wr.srqn,
        };
        let inline = if flags.contains(SendFlags::INLINE) {
            let view = View { world: &mut self.world, qp };
            view.gather(&wr.pieces, 0, wqe.length).map_err(|fault| format!("EFAULT: {fault:?}"))?
        } else {
            Vec::new()
        };
        self.world.queues[qp].sends.push((wqe, wr.pieces.clone(), inline, wr.bind));
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.with(qp, |qp, view| qp.flush(view));
        }
        Ok(())
    }

    fn post_recv(&mut self, target: Target, wr: u64, pieces: &[Piece]) -> Result<(), String> {
        match target {
            Target::Srq(srq) => self.world.srqs[srq].queue.posted.push_back((wr, pieces.to_vec())),
            Target::Qp(qp) => {
                let state = self.qps[qp].state();
                if !state.post_recv_allowed() {
                    return Err(format!("EINVAL: post_recv in {state}"));
                }
                if self.world.queues[qp].spec.srq.is_some() || !self.qps[qp].qp_type().has_recv_queue() {
                    return Err("EINVAL: this QP has no receive queue of its own".into());
                }
                self.world.queues[qp].recv.posted.push_back((wr, pieces.to_vec()));
                if state == QpState::Err {
                    self.with(qp, |qp, view| qp.flush(view));
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, out: &mut Vec<(usize, Packet)>) {
        for qp in 0..self.qps.len() {
            if self.world.queues[qp].destroyed {
                continue;
            }
            self.paced[qp] = loop {
                match self.with(qp, |qp, view| qp.transmit(view, 16)) {
                    Next::Ready => {}
                    Next::At(time) => break Some(time.0),
                    Next::Idle | Next::Blocked => break None,
                }
            };
        }
        out.append(&mut self.world.sent);
    }

    fn deliver(&mut self, node: usize, packets: &[Packet]) {
        let mut touched = Vec::new();
        for packet in packets {
            let qpn = packet.headers.bth.dest_qp;
            let place = (0..self.qps.len()).find(|&qp| {
                let queues = &self.world.queues[qp];
                queues.spec.node == node && self.qps[qp].qpn() == qpn && !queues.destroyed
            });
            let Some(qp) = place else {
                *self.world.nodes[node].counters.entry(DropReason::NoSuchQp.label()).or_default() += 1;
                continue;
            };
            let incoming = Incoming {
                headers: &packet.headers,
                payload: &packet.payload,
                port_num: packet.port_num,
                src: packet.src,
                dst: packet.dst,
                src_port: packet.src_port,
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: packet.flow_label,
                reads_telemetry: false,
                trailer: None,
            };
            self.with(qp, |qp, view| qp.receive(view, &incoming));
            touched.push(qp);
        }
        touched.dedup();
        for qp in touched {
            self.with(qp, |qp, view| qp.end_of_batch(view));
        }
    }

    fn now(&self) -> u64 {
        self.world.now
    }

    fn next_deadline(&mut self) -> Option<u64> {
        let timers =
            self.qps.iter().zip(&self.world.queues).filter(|(_, q)| !q.destroyed).filter_map(|(qp, _)| qp.deadline());
        timers.map(|t| t.0).chain(self.paced.iter().flatten().copied()).min()
    }

    fn set_now(&mut self, ns: u64) {
        self.world.now = ns;
        for qp in 0..self.qps.len() {
            if !self.world.queues[qp].destroyed && self.qps[qp].deadline().is_some_and(|t| t.0 <= ns) {
                self.with(qp, |qp, view| qp.on_timer(view));
            }
        }
    }

    fn poll(&mut self, target: Target, queue: Queue) -> Vec<Done> {
        let done = match (target, queue) {
            (Target::Qp(qp), Queue::Send) => &mut self.world.queues[qp].done,
            (Target::Qp(qp), Queue::Recv) => &mut self.world.queues[qp].recv.done,
            (Target::Srq(srq), _) => &mut self.world.srqs[srq].queue.done,
        };
        std::mem::take(done)
    }

    fn events(&mut self) -> Vec<(Subject, EventType)> {
        std::mem::take(&mut self.world.events)
    }

    fn counter(&self, node: usize, label: &str) -> u64 {
        self.world.nodes[node].counters.get(label).copied().unwrap_or(0)
    }

    fn set_pkey(&mut self, node: usize, port: u8, index: u16, value: PKey) {
        let table = &mut self.world.nodes[node].pkeys[usize::from(port) - 1];
        table[usize::from(index)] = value;
        self.world.events.push((Subject::Node(node), EventType::PkeyChange));
    }

    fn change_port(&mut self, _node: usize, _port: u8, _change: &str) -> Result<(), String> {
        Err("ports are the NIC's work: run this script on the engine only".into())
    }

    fn fail(&mut self, qp: usize, status: WcStatus) -> Result<(), String> {
        self.with(qp, |qp, view| qp.fail(view, status));
        Ok(())
    }

    fn fail_device(&mut self, _node: usize) -> Result<(), String> {
        Err("a device is the NIC's work: run this script on the engine only".into())
    }

    fn attach(&mut self, _qp: usize, _group: Gid) -> Result<(), String> {
        Err("groups are the NIC's work: run this script on the engine only".into())
    }

    fn detach(&mut self, _qp: usize, _group: Gid) -> Result<(), String> {
        Err("groups are the NIC's work: run this script on the engine only".into())
    }

    fn members(&self, _group: Gid) -> Vec<usize> {
        Vec::new()
    }
}

/// The WQE's operation.
fn operation(wr: &PlainSend) -> WqeOp {
    let (remote_addr, rkey) = (wr.remote_addr, RKey(wr.rkey));
    match wr.kind {
        OpKind::Send => WqeOp::Send,
        OpKind::SendWithImm => WqeOp::SendWithImm { imm: wr.imm },
        OpKind::SendWithInv => WqeOp::SendWithInv { invalidate_rkey: RKey(wr.inv) },
        OpKind::Write => WqeOp::Write { remote_addr, rkey },
        OpKind::WriteWithImm => WqeOp::WriteWithImm { remote_addr, rkey, imm: wr.imm },
        OpKind::Read => WqeOp::Read { remote_addr, rkey },
        OpKind::CompareSwap => WqeOp::CompareSwap { remote_addr, rkey, compare: wr.compare, swap: wr.swap },
        OpKind::FetchAdd => WqeOp::FetchAdd { remote_addr, rkey, add: wr.add },
        OpKind::LocalInv => WqeOp::LocalInv { rkey: RKey(wr.inv) },
        OpKind::BindMw => WqeOp::BindMw,
        OpKind::Flush => WqeOp::Flush {
            remote_addr,
            rkey,
            length: wr.length,
            placement: placement(wr.placement),
            level: if wr.whole_region { FlushLevel::MemoryRegion } else { FlushLevel::Range },
        },
        OpKind::AtomicWrite => WqeOp::AtomicWrite { remote_addr, rkey },
    }
}

/// FLUSH placement of its bits.
pub fn placement(bits: u8) -> FlushPlacement {
    match bits & 3 {
        2 => FlushPlacement::Persistent,
        3 => FlushPlacement::GlobalAndPersistent,
        _ => FlushPlacement::Global,
    }
}
