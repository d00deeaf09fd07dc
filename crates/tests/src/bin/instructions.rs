//! Instructions per packet: two NICs driven by hand over a pipe in memory, for callgrind. `cargo xtask bench` runs it
//! under valgrind, collecting in one of the three `measured_*` functions at a time, and divides by the packets.
//!
//! Usage: `instructions SIZE MESSAGES`. Prints the packets that each function handled. Nothing here measures time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use scalefabric_nic::manual::ManualNic;
use scalefabric_nic::port::{Datagram, Port, Sent, Train};
use scalefabric_nic::{NicConfig, PortConfig};
use scalefabric_transport::Time;
use scalefabric_verbs::{
    AccessFlags, AddressVector, CompletionQueue, Gid, MemoryRegion, Psn, QpAttrMask, QpCap, QpInit, QpState, QpType,
    QueuePair, SendFlags, SendOp, SendWr, Sge, VerbsError, WcStatus,
};

/// Work requests to a doorbell. All their packets fit in what may be unacknowledged.
const CHAIN: u64 = 8;

/// One direction of the pipe: datagrams one after the other, without allocation once it has grown.
#[derive(Default)]
struct Lane {
    bytes: Vec<u8>,
    lengths: Vec<(usize, u16)>,
    taken: usize,
    at: usize,
}

struct Pipe {
    own: IpAddr,
    other: IpAddr,
    out: Arc<Mutex<Lane>>,
    into: Arc<Mutex<Lane>>,
}

impl Port for Pipe {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut lane = self.into.lock().expect("one thread");
        let lane = &mut *lane;
        let end = lane.lengths.len().min(lane.taken + max);
        let count = end - lane.taken;
        for (length, ip_id) in &lane.lengths[lane.taken..end] {
            sink(&Datagram {
                src: self.other,
                src_port: 0xc000,
                dst: self.own,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
                ip_id: *ip_id,
                bytes: &lane.bytes[lane.at..lane.at + length],
            });
            lane.at += length;
        }
        lane.taken = end;
        if lane.taken == lane.lengths.len() {
            lane.bytes.clear();
            lane.lengths.clear();
            (lane.taken, lane.at) = (0, 0);
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut lane = self.out.lock().expect("one thread");
        for (index, bytes) in train.bytes.chunks(train.segment.max(1)).enumerate() {
            lane.bytes.extend_from_slice(bytes);
            lane.lengths.push((bytes.len(), index as u16));
        }
        Sent::Done
    }

    fn source_port(&self, _src: IpAddr, _flow: u32) -> u16 {
        0xc000
    }
}

struct Side {
    nic: ManualNic,
    queue_pair: Arc<dyn QueuePair>,
    send_cq: Arc<dyn CompletionQueue>,
    region: Arc<dyn MemoryRegion>,
}

fn side(nic: ManualNic, bytes: usize) -> Result<Side, VerbsError> {
    let context = nic.context();
    let domain = context.alloc_pd()?;
    let send_cq = context.create_cq(1024, None, 0)?;
    let recv_cq = context.create_cq(16, None, 0)?;
    let region = domain.alloc_mr(bytes, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    let cap = QpCap { max_send_wr: 512, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init =
        QpInit { qp_type: QpType::Rc, send_cq: Arc::clone(&send_cq), recv_cq, srq: None, cap, sq_sig_all: false };
    let queue_pair = domain.create_qp(&init)?;
    let (mut attr, _) = queue_pair.query()?;
    attr.qp_state = QpState::Init;
    attr.port_num = 1;
    attr.qp_access_flags = AccessFlags::REMOTE_WRITE;
    queue_pair
        .modify(&attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS)?;
    Ok(Side { nic, queue_pair, send_cq, region })
}

fn connect(side: &Side, peer: &Side, to: IpAddr) -> Result<(), VerbsError> {
    let (mut attr, _) = side.queue_pair.query()?;
    attr.qp_state = QpState::Rtr;
    attr.path_mtu = side.nic.context().query_port(1)?.active_mtu;
    attr.dest_qp_num = peer.queue_pair.qp_num();
    attr.rq_psn = Psn::new(1);
    attr.sq_psn = Psn::new(1);
    attr.max_dest_rd_atomic = 1;
    attr.max_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr = AddressVector {
        dgid: Gid::from_ip(to),
        sgid_index: 0,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        sl: 0,
        static_rate: 0,
        port_num: 1,
    };
    side.queue_pair.modify(
        &attr,
        QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER,
    )?;
    attr.qp_state = QpState::Rts;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    side.queue_pair.modify(
        &attr,
        QpAttrMask::STATE
            | QpAttrMask::SQ_PSN
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC,
    )
}

/// WQEs become packets, packets become bytes, bytes leave.
#[inline(never)]
fn measured_requester(nic: &ManualNic, now: Time) {
    // Equal functions would be folded into one, and callgrind could not tell them apart.
    std::hint::black_box("requester");
    nic.turn(now);
}

/// Bytes arrive, are checked and executed, and answers leave.
#[inline(never)]
fn measured_responder(nic: &ManualNic, now: Time) {
    // Equal functions would be folded into one, and callgrind could not tell them apart.
    std::hint::black_box("responder");
    nic.turn(now);
}

/// Answers arrive, WQEs retire, completions are placed.
#[inline(never)]
fn measured_completer(nic: &ManualNic, now: Time) {
    // Equal functions would be folded into one, and callgrind could not tell them apart.
    std::hint::black_box("completer");
    nic.turn(now);
}

fn queued(lane: &Mutex<Lane>) -> usize {
    let lane = lane.lock().expect("one thread");
    lane.lengths.len() - lane.taken
}

fn run(size: u32, messages: u64) -> Result<[usize; 3], VerbsError> {
    let addresses = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))];
    let lanes = [Arc::new(Mutex::new(Lane::default())), Arc::new(Mutex::new(Lane::default()))];
    let make = |own: usize| {
        let other = 1 - own;
        let (out, into) = (Arc::clone(&lanes[own]), Arc::clone(&lanes[other]));
        let port = Pipe { own: addresses[own], other: addresses[other], out, into };
        let config = NicConfig::new("pipe", vec![PortConfig::new("pipe", vec![Gid::from_ip(addresses[own])])]);
        ManualNic::new(config, vec![Box::new(port)], own as u64 + 1)
    };
    let bytes = (size as usize).max(4096);
    let a = side(make(0)?, bytes)?;
    let b = side(make(1)?, bytes)?;
    connect(&a, &b, addresses[1])?;
    connect(&b, &a, addresses[0])?;
    let op = SendOp::Write { remote_addr: b.region.addr(), rkey: b.region.rkey() };
    let sge = [Sge { addr: a.region.addr(), length: size, lkey: a.region.lkey() }];
    let mut request = SendWr::new(0, op);
    request.sg_list = &sge;
    let mut chain = vec![request; CHAIN as usize];
    if let Some(last) = chain.last_mut() {
        last.flags = SendFlags::SIGNALED;
    }
    let mut packets = [0; 3];
    let (mut posted, mut done, mut now) = (0, 0, 0);
    let mut completions = [scalefabric_verbs::WorkCompletion::default(); 16];
    while done < messages {
        if posted == done {
            a.queue_pair.post_send(&chain).map_err(|e| VerbsError::invalid(e.to_string()))?;
            posted += CHAIN;
        }
        now += 1000;
        // Until everything has left: else the completer's turn would send the rest.
        let mut before = None;
        while before != Some(queued(&lanes[0])) {
            before = Some(queued(&lanes[0]));
            measured_requester(&a.nic, Time(now));
        }
        packets[0] += queued(&lanes[0]);
        packets[1] += queued(&lanes[0]);
        while queued(&lanes[0]) > 0 {
            measured_responder(&b.nic, Time(now));
        }
        packets[2] += queued(&lanes[1]);
        while queued(&lanes[1]) > 0 {
            measured_completer(&a.nic, Time(now));
        }
        let count = a.send_cq.poll(&mut completions)?;
        for completion in &completions[..count] {
            assert_eq!(completion.status, WcStatus::Success);
            done += CHAIN;
        }
    }
    Ok(packets)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let size = arguments.next().and_then(|text| text.parse().ok());
    let messages = arguments.next().and_then(|text| text.parse().ok());
    let (Some(size), Some(messages)) = (size, messages) else {
        eprintln!("usage: instructions SIZE MESSAGES");
        std::process::exit(2);
    };
    match run(size, messages) {
        Ok([requester, responder, completer]) => println!("{requester} {responder} {completer}"),
        Err(error) => {
            eprintln!("instructions: {error}");
            std::process::exit(1);
        }
    }
}
