//! Two or more NICs on one wire, and the few calls that every dialogue makes.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use scalefabric_nic::faults::FaultSetup;
use scalefabric_nic::port::Port;
use scalefabric_nic::port::faults::{FaultPort, FaultSpec};
use scalefabric_nic::port::memory::MemoryWire;
use scalefabric_nic::{ManualNic, NicConfig, PortConfig};
use scalefabric_transport::Time;
use scalefabric_verbs::*;

/// Every right that plain memory can have: there is nothing to make it persistent.
pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE)
    .union(AccessFlags::MW_BIND)
    .difference(AccessFlags::FLUSH_PERSISTENT);

/// Address of node `n` on port `p`.
pub fn ip(n: u8, p: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, p, n).into()
}

/// GID of node `n` on port 1.
pub fn gid(n: u8) -> Gid {
    Gid::from_ip(ip(n, 1))
}

/// Index of the address of side `n` (from 0) of a connection. Where requests go without packets, both sides are on one NIC.
pub fn sgid(n: usize) -> u8 {
    if crate::DIRECT { n as u8 } else { 0 }
}

/// One NIC with a PD and a CQ.
pub struct Node {
    pub nic: Arc<ManualNic>,
    pub ctx: Arc<dyn Context>,
    pub pd: Arc<dyn ProtectionDomain>,
    pub cq: Arc<dyn CompletionQueue>,
}

impl Node {
    fn new(nic: &Arc<ManualNic>) -> Self {
        let ctx = nic.context();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(256, None, 0).unwrap();
        Self { nic: nic.clone(), ctx, pd, cq }
    }

    pub fn mr(&self, length: usize) -> Arc<dyn MemoryRegion> {
        self.pd.alloc_mr(length, ALL_ACCESS).unwrap()
    }

    pub fn qp_init(&self, qp_type: QpType) -> QpInit {
        QpInit {
            qp_type,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 },
            sq_sig_all: true,
        }
    }

    /// A QP that any device has: one SGE and no inline bytes.
    pub fn qp_small(&self, qp_type: QpType) -> Arc<dyn QueuePair> {
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 0 };
        self.pd.create_qp(&QpInit { cap, ..self.qp_init(qp_type) }).unwrap()
    }

    pub fn qp(&self, qp_type: QpType) -> Arc<dyn QueuePair> {
        self.pd.create_qp(&self.qp_init(qp_type)).unwrap()
    }

    /// All completions that are there.
    pub fn poll(&self) -> Vec<WorkCompletion> {
        poll(&self.cq)
    }

    pub fn events(&self) -> Vec<AsyncEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.ctx.get_async_event(Some(std::time::Duration::ZERO)).unwrap() {
            events.push(event);
        }
        events
    }
}

pub fn poll(cq: &Arc<dyn CompletionQueue>) -> Vec<WorkCompletion> {
    let mut all = Vec::new();
    let mut some = [blank(); 8];
    loop {
        let count = cq.poll(&mut some).unwrap();
        if count == 0 {
            return all;
        }
        all.extend_from_slice(&some[..count]);
    }
}

pub fn blank() -> WorkCompletion {
    // Not Success, so that an entry that nobody filled is noticed.
    WorkCompletion { status: WcStatus::GeneralErr, ..WorkCompletion::default() }
}

/// wr_id and status.
pub fn outcome(all: &[WorkCompletion]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// NICs on a wire, and their time.
pub struct World {
    pub wire: MemoryWire,
    pub nodes: Vec<Node>,
    pub now: u64,
}

impl World {
    /// `count` NICs of one port, node 1 first.
    pub fn new(count: u8) -> Self {
        Self::with(count, 1, |_| {})
    }

    pub fn with(count: u8, ports: u8, change: impl Fn(&mut NicConfig)) -> Self {
        Self::build(count, ports, change, |_, port| port)
    }

    /// Two NICs, each with its faults.
    pub fn faulty(texts: [&str; 2]) -> (Self, [FaultSetup; 2]) {
        let setups = texts.map(|text| {
            let spec = if text.is_empty() { FaultSpec::default() } else { text.parse().unwrap() };
            FaultSetup::new(&spec, None)
        });
        let wrap = |n: u8, port: Box<dyn Port>| {
            let setup = &setups[usize::from(n) - 1];
            Box::new(FaultPort::new(port, &setup.spec, None).with_watch(&setup.watch)) as Box<dyn Port>
        };
        let world = Self::build(2, 1, |_| {}, wrap);
        for (node, setup) in world.nodes.iter().zip(&setups) {
            // Times count from here.
            node.nic.turn(Time(world.now));
            node.nic.core().install_faults(setup);
        }
        (world, setups)
    }

    fn build(
        count: u8,
        ports: u8,
        change: impl Fn(&mut NicConfig),
        wrap: impl Fn(u8, Box<dyn Port>) -> Box<dyn Port>,
    ) -> Self {
        if crate::DIRECT {
            return Self::one_nic(count, ports, change, wrap, true);
        }
        let wire = MemoryWire::new();
        let nodes = (1..=count)
            .map(|n| {
                let configs = (1..=ports).map(|p| PortConfig::new(format!("wire{p}"), vec![Gid::from_ip(ip(n, p))]));
                let mut config = NicConfig::new(format!("sim{n}"), configs.collect());
                config.seed = u64::from(n);
                change(&mut config);
                let ports = (1..=ports).map(|p| wrap(n, Box::new(wire.port(&[ip(n, p)])))).collect();
                Node::new(&Arc::new(ManualNic::new(config, ports, u64::from(n)).unwrap()))
            })
            .collect();
        Self { wire, nodes, now: 1_000_000 }
    }

    /// All nodes on one NIC, which has the addresses of all. With `direct`, requests between its QPs go without packets.
    pub fn one_nic(
        count: u8,
        ports: u8,
        change: impl Fn(&mut NicConfig),
        wrap: impl Fn(u8, Box<dyn Port>) -> Box<dyn Port>,
        direct: bool,
    ) -> Self {
        let wire = MemoryWire::new();
        let ips = |p| (1..=count).map(|n| ip(n, p)).collect::<Vec<_>>();
        let gids = |p| ips(p).into_iter().map(Gid::from_ip).collect();
        let configs = (1..=ports).map(|p| PortConfig::new(format!("wire{p}"), gids(p)));
        let mut config = NicConfig::new("sim1", configs.collect());
        config.seed = 1;
        change(&mut config);
        let ports = (1..=ports).map(|p| wrap(1, Box::new(wire.port(&ips(p))))).collect();
        let make = if direct { ManualNic::new_direct } else { ManualNic::new };
        let nic = Arc::new(make(config, ports, 1).unwrap());
        Self { wire, nodes: (0..count).map(|_| Node::new(&nic)).collect(), now: 1_000_000 }
    }

    /// Turns all NICs, at one moment, until nothing moves.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "the NICs do not come to rest");
            let mut moved = false;
            for node in &self.nodes {
                let turn = node.nic.turn(Time(self.now));
                moved |= turn.progressed || turn.ready;
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass, deadline by deadline, for at most `ns`.
    pub fn advance(&mut self, ns: u64) {
        let end = self.now + ns;
        loop {
            self.settle();
            let deadlines = self.nodes.iter().filter_map(|n| n.nic.turn(Time(self.now)).next_deadline);
            match deadlines.map(|d| d.0.max(self.now + 1)).min() {
                Some(at) if at <= end => self.now = at,
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// A connected pair of QPs between nodes 0 and 1, in RTS, with all access.
    pub fn connect(&self, qp_type: QpType) -> [Arc<dyn QueuePair>; 2] {
        let qps = [self.nodes[0].qp(qp_type), self.nodes[1].qp(qp_type)];
        self.connect_these(&qps, |_, _, _| {});
        qps
    }

    /// As [`World::connect`], with QPs that any device has.
    pub fn connect_small(&self, qp_type: QpType) -> [Arc<dyn QueuePair>; 2] {
        let qps = [self.nodes[0].qp_small(qp_type), self.nodes[1].qp_small(qp_type)];
        self.connect_these(&qps, |_, _, _| {});
        qps
    }

    /// Connects two QPs of nodes 0 and 1; `change` may alter attributes: (side, attributes, mask).
    pub fn connect_these(&self, qps: &[Arc<dyn QueuePair>; 2], change: impl Fn(usize, &mut QpAttr, &mut QpAttrMask)) {
        for side in 0..2 {
            let (me, peer) = (&qps[side], &qps[1 - side]);
            let qp_type = me.qp_type();
            let av = AddressVector::new(1, sgid(side), gid(2 - side as u8));
            let psn = |side: usize| Psn::new(0xff_fff0 + 0x100 * side as u32);
            let access = AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC
                | AccessFlags::FLUSH_GLOBAL
                | AccessFlags::FLUSH_PERSISTENT;
            let mut steps = vec![
                QpAttr::init(qp_type, 1, access),
                QpAttr::rtr(qp_type, peer.qp_num(), psn(1 - side), Mtu::Mtu1024, av),
            ];
            if qp_type != QpType::XrcRecv {
                steps.push(QpAttr::rts(qp_type, psn(side)));
            }
            for (mut attr, mut mask) in steps {
                attr.max_rd_atomic = 4;
                attr.max_dest_rd_atomic = 4;
                change(side, &mut attr, &mut mask);
                me.modify(&attr, mask).unwrap();
            }
        }
    }
}

/// A UD QP in RTS.
pub fn ud(node: &Node, qkey: QKey) -> Arc<dyn QueuePair> {
    let qp = node.qp(QpType::Ud);
    for (attr, mask) in [QpAttr::init_ud(1, qkey), QpAttr::rtr_ud(), QpAttr::rts(QpType::Ud, Psn::new(0))] {
        qp.modify(&attr, mask).unwrap();
    }
    qp
}

pub fn sge(mr: &Arc<dyn MemoryRegion>, offset: usize, length: u32) -> Sge {
    Sge { addr: mr.addr() + offset as u64, length, lkey: mr.lkey() }
}

/// Posts one receive of `length` bytes at `offset`.
pub fn recv(qp: &Arc<dyn QueuePair>, wr_id: u64, mr: &Arc<dyn MemoryRegion>, offset: usize, length: u32) {
    qp.post_recv(&[RecvWr { wr_id, sg_list: &[sge(mr, offset, length)] }]).unwrap();
}

/// Posts one send WR with one SGE.
pub fn send(
    qp: &Arc<dyn QueuePair>,
    wr_id: u64,
    op: SendOp<'_>,
    mr: &Arc<dyn MemoryRegion>,
    offset: usize,
    length: u32,
) {
    let sg_list = [sge(mr, offset, length)];
    qp.post_send(&[SendWr { sg_list: &sg_list, ..SendWr::new(wr_id, op) }]).unwrap();
}

/// Bytes that tell where they come from.
pub fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

pub fn read(mr: &Arc<dyn MemoryRegion>, offset: usize, length: usize) -> Vec<u8> {
    let mut out = vec![0; length];
    mr.read(offset, &mut out).unwrap();
    out
}
