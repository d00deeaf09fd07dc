//! A chosen way, taken: the topology chooses a flow label for each way between two nodes, the live NIC sends by it, and the software switch counts on which links the packets
//! really went. Two network namespaces, each with an interface that leads into the switch; needs root.

use scalefabric_control::topology::{NicReport, NodeReport, PortName, PortReport, Topology, TopologyFile, Way, Wish};
use scalefabric_fabric::ecmp::EcmpHash;
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_sim::switch::body::Forwarder;
use scalefabric_sim::switch::{Network, SwitchId};
use scalefabric_tests::netns::{Namespace, Peer, interface};
use scalefabric_verbs::*;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHILD: &str = "SCALEFABRIC_ECMP_CHILD";
/// Bytes of a message: ten packets of 4096 and more of a smaller MTU.
const BYTES: usize = 40_960;

/// Not a test by itself: what a process in a namespace runs.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        End::open().serve();
    }
}

/// One end of a connection, told what to do line by line.
struct End {
    context: Arc<dyn Context>,
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    mr: Arc<dyn MemoryRegion>,
}

impl End {
    fn open() -> Self {
        let provider = SoftwareProvider::from_environment().unwrap();
        let context = provider.open("ecmp").unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None, 0).unwrap();
        let mr = pd.alloc_mr(BYTES, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
        let qp = pd.create_qp(&init).unwrap();
        Self { context, qp, cq, mr }
    }

    fn serve(&self) {
        println!("@{} {} {}", self.qp.qp_num().get(), self.mr.rkey().0, self.mr.addr());
        for line in std::io::stdin().lock().lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let number = |n: usize| words[n].parse::<u64>().unwrap();
            let done = match words[0] {
                "connect" => self.connect(Qpn::new(number(1) as u32), words[2].parse().unwrap(), number(3) as u32),
                "write" => self.write(RKey(number(1) as u32), number(2)),
                "relabel" => self.relabel(number(1) as u32),
                other => panic!("{other}"),
            };
            println!("@{done}");
        }
    }

    fn connect(&self, peer: Qpn, address: IpAddr, flow_label: u32) -> String {
        let (attr, mask) = QpAttr::init(QpType::Rc, 1, AccessFlags::REMOTE_WRITE);
        self.qp.modify(&attr, mask).unwrap();
        let table = self.context.query_gid_table().unwrap();
        let own = table.iter().find(|entry| entry.gid.is_ipv4()).unwrap();
        let av = AddressVector { flow_label, ..AddressVector::new(1, own.gid_index as u8, Gid::from_ip(address)) };
        let (mut attr, mask) = QpAttr::rtr(QpType::Rc, peer, Psn::new(0), Mtu::Mtu1024, av);
        attr.max_dest_rd_atomic = 1;
        self.qp.modify(&attr, mask).unwrap();
        let (attr, mask) = QpAttr::rts(QpType::Rc, Psn::new(0));
        self.qp.modify(&attr, mask).unwrap();
        "ok".into()
    }

    fn write(&self, rkey: RKey, remote_addr: u64) -> String {
        let list = [Sge { addr: self.mr.addr(), length: BYTES as u32, lkey: self.mr.lkey() }];
        let wr = SendWr { sg_list: &list, ..SendWr::new(1, SendOp::Write { remote_addr, rkey }) };
        self.qp.post_send(&[wr]).unwrap();
        let (mut out, start) = ([blank()], Instant::now());
        while self.cq.poll(&mut out).unwrap() == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "no completion");
        }
        format!("{:?}", out[0].status)
    }

    /// Another source port while the connection lives.
    fn relabel(&self, flow_label: u32) -> String {
        let (attr, mask) = QpAttr::sqd(false);
        self.qp.modify(&attr, mask).unwrap();
        let start = Instant::now();
        let mut attr = self.qp.query().unwrap().0;
        while attr.sq_draining {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not drain");
            attr = self.qp.query().unwrap().0;
        }
        attr.ah_attr.flow_label = flow_label;
        attr.qp_state = QpState::Sqd;
        self.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::AV).unwrap();
        attr.qp_state = QpState::Rts;
        self.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        "ok".into()
    }
}

/// Room for a completion.
fn blank() -> WorkCompletion {
    WorkCompletion {
        wr_id: 0,
        status: WcStatus::GeneralErr,
        opcode: WcOpcode::Send,
        vendor_err: 0,
        byte_len: 0,
        imm: 0,
        invalidated_rkey: RKey(0),
        qp_num: Qpn::new(0),
        src_qp: Qpn::new(0),
        flags: WcFlags::empty(),
        pkey_index: 0,
        sl: 0,
        timestamp_ns: 0,
    }
}

/// QPN, key and address.
fn key(peer: &Peer) -> (u32, u32, u64) {
    let number = |n: usize| peer.hello[n].parse::<u64>().unwrap();
    (number(0) as u32, number(1) as u32, number(2))
}

const ADDRESSES: [[u8; 4]; 2] = [[10, 77, 3, 1], [10, 77, 3, 2]];
const LEAF1: SwitchId = SwitchId(0);
const LEAF2: SwitchId = SwitchId(1);

/// The fabric as the control plane is told of it.
const FILE: &str = r#"
    switch = [{ name = "leaf1", hash = { seed = 1 } }, { name = "leaf2", hash = { seed = 2 } },
              { name = "spine1", hash = { seed = 3 } }, { name = "spine2", hash = { seed = 4 } }]
    link = [{ between = ["leaf1:10", "spine1:0"] }, { between = ["leaf1:11", "spine1:1"] },
            { between = ["leaf1:12", "spine2:0"] }, { between = ["leaf1:13", "spine2:1"] },
            { between = ["leaf2:10", "spine1:10"] }, { between = ["leaf2:11", "spine1:11"] },
            { between = ["leaf2:12", "spine2:10"] }, { between = ["leaf2:13", "spine2:11"] }]
    port = [{ node = "a", device = "ecmp", switch = "leaf1:1" }, { node = "b", device = "ecmp", switch = "leaf2:1" }]
"#;

/// The same fabric as it is.
fn network() -> Network {
    let mut network = Network::new();
    for seed in 1..=4 {
        network.add_switch(EcmpHash { seed, ..EcmpHash::default() });
    }
    for (spine, first) in [(SwitchId(2), 10), (SwitchId(3), 12)] {
        for lane in 0..2 {
            network.link((LEAF1, first + lane), (spine, lane));
            network.link((LEAF2, first + lane), (spine, 10 + lane));
        }
    }
    network
}

fn topology() -> Topology {
    let node = |name: &str, address: [u8; 4]| NodeReport {
        node: name.into(),
        nics: vec![NicReport {
            device: "ecmp".into(),
            numa_node: None,
            ports: vec![PortReport {
                port_num: 1,
                up: true,
                speed_mbps: 10_000,
                addresses: vec![address.into()],
                interface: "tun".into(),
                neighbour: None,
            }],
        }],
    };
    let reports = [node("a", ADDRESSES[0]), node("b", ADDRESSES[1])];
    Topology::build(&TopologyFile::parse(FILE).unwrap(), &reports)
}

fn end_of(text: &str) -> (SwitchId, u16) {
    let (switch, port) = text.split_once(':').unwrap();
    let number = ["leaf1", "leaf2", "spine1", "spine2"].iter().position(|name| *name == switch).unwrap();
    (SwitchId(number), port.parse().unwrap())
}

/// Packets that left by each port of the first leaf and of the spines towards the second.
fn counts(forwarder: &Forwarder) -> BTreeMap<(SwitchId, u16), u64> {
    let network = forwarder.network();
    let ends = (10..14)
        .map(|port| (LEAF1, port))
        .chain([2, 3].into_iter().flat_map(|spine| [10, 11].map(|port| (SwitchId(spine), port))));
    ends.map(|end| (end, network.counters(end).packets)).filter(|(_, packets)| *packets > 0).collect()
}

/// All of a way's links but the last were taken, and no other one.
fn assert_taken(forwarder: &Forwarder, way: &Way) {
    let taken: Vec<_> = counts(forwarder).into_keys().collect();
    let mut wanted: Vec<_> = way.exits[..2].iter().map(|exit| end_of(&exit.to_string())).collect();
    wanted.sort();
    assert_eq!(taken, wanted, "{way:?}: {:?}", counts(forwarder));
    let least = BYTES as u64 / 1024;
    assert!(counts(forwarder).values().all(|&packets| packets >= least), "{:?}", counts(forwarder));
}

#[test]
fn the_live_nic_takes_the_way_that_was_chosen_and_changes_it_while_it_is_connected() {
    let (left, right) = match (interface("sfe0"), interface("sfe1")) {
        (Ok(left), Ok(right)) => (left, right),
        (Err(why), _) | (_, Err(why)) => return eprintln!("skipped: {why}"),
    };
    let addresses = ADDRESSES.map(IpAddr::from);
    let spaces = [Namespace::new(&left, addresses[0]), Namespace::new(&right, addresses[1])];
    let configs = [&left, &right].map(|tun| {
        let path = std::env::temp_dir().join(format!("{}.toml", tun.name()));
        let text = format!("[[device]]\nname = \"ecmp\"\n[[device.port]]\ninterface = \"{}\"\n", tun.name());
        std::fs::write(&path, text).unwrap();
        path
    });
    let mut network = network();
    let hosts = [network.attach((LEAF1, 1), &addresses[..1]), network.attach((LEAF2, 1), &addresses[1..])];
    let forwarder = Forwarder::start(network, BTreeMap::from([(hosts[0], left), (hosts[1], right)])).unwrap();
    let topology = topology();
    let port = |node: &str| PortName { node: node.into(), device: "ecmp".into(), port_num: 1 };
    let ways = topology.ways(&port("a"), &port("b"));
    assert_eq!(ways.len(), 8);
    let labels: Vec<u32> = ways.iter().map(|way| topology.path(way, &Wish::default()).unwrap().flow_label).collect();

    let mut a = Peer::start(&spaces[0], &configs[0], CHILD);
    let mut b = Peer::start(&spaces[1], &configs[1], CHILD);
    let ((a_qpn, ..), (b_qpn, rkey, addr)) = (key(&a), key(&b));
    assert_eq!(a.ask(&format!("connect {b_qpn} {} {}", addresses[1], labels[0])), "ok");
    assert_eq!(b.ask(&format!("connect {a_qpn} {} 0", addresses[0])), "ok");
    for (n, (way, label)) in ways.iter().zip(&labels).enumerate() {
        if n > 0 {
            assert_eq!(a.ask(&format!("relabel {label}")), "ok");
        }
        forwarder.network().reset_counters();
        assert_eq!(a.ask(&format!("write {rkey} {addr}")), "Success");
        assert_taken(&forwarder, way);
    }
    drop((a, b));
    configs.iter().for_each(|path| drop(std::fs::remove_file(path)));
}
