//! The whole NIC in one process: devices of their own on loopback addresses, real sockets, real time.

use std::time::Instant;

use scalefabric_verbs::*;

use super::*;
use crate::options::{DeviceOptions, PortOptions};
use crate::port::udp::socket::own_loopback;

/// A provider with one device `name` whose ports have these loopback addresses.
fn provider(name: &str, addresses: &[u8], change: impl FnOnce(&mut Options)) -> SoftwareProvider {
    let port = |&last: &u8| PortOptions { interface: "lo".into(), addresses: vec![own_loopback(last)] };
    let device =
        DeviceOptions { name: name.into(), ports: addresses.iter().map(port).collect(), ..DeviceOptions::default() };
    let mut options = Options { devices: vec![device], receive_buffer: 4 << 20, share: false, ..Options::default() };
    change(&mut options);
    SoftwareProvider::new(options)
}

struct End {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    mr: Arc<dyn MemoryRegion>,
    gid: Gid,
    mtu: Mtu,
}

fn end(context: &dyn Context, port_num: u8) -> End {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None, 0).unwrap();
    let access =
        AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let mr = pd.alloc_mr(1 << 20, access).unwrap();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
    let init =
        QpInit { qp_type: QpType::Rc, send_cq: cq.clone(), recv_cq: cq.clone(), srq: None, cap, sq_sig_all: true };
    let qp = pd.create_qp(&init).unwrap();
    let mtu = context.query_port(port_num).unwrap().active_mtu;
    End { qp, cq, mr, gid: context.query_gid(port_num, 0).unwrap(), mtu }
}

/// Takes a QP to RTS.
fn connect(end: &End, peer: &End, port_num: u8) {
    let (mut attr, _) = end.qp.query().unwrap();
    attr.qp_state = QpState::Init;
    attr.port_num = port_num;
    attr.pkey_index = 0;
    attr.qp_access_flags = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let init = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    end.qp.modify(&attr, init).unwrap();
    attr.qp_state = QpState::Rtr;
    attr.path_mtu = end.mtu;
    attr.dest_qp_num = peer.qp.qp_num();
    attr.rq_psn = Psn::new(7);
    attr.max_dest_rd_atomic = 8;
    attr.min_rnr_timer = 12;
    attr.ah_attr = AddressVector {
        dgid: peer.gid,
        sgid_index: 0,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        sl: 0,
        static_rate: 0,
        port_num,
    };
    let rtr = QpAttrMask::STATE
        | QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    end.qp.modify(&attr, rtr).unwrap();
    attr.qp_state = QpState::Rts;
    attr.timeout = 12;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.sq_psn = Psn::new(7);
    attr.max_rd_atomic = 8;
    let rts = QpAttrMask::STATE
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::SQ_PSN
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    end.qp.modify(&attr, rts).unwrap();
}

fn sge(mr: &dyn MemoryRegion, offset: u64, length: u32) -> Sge {
    Sge { addr: mr.addr() + offset, length, lkey: mr.lkey() }
}

fn wait(cq: &dyn CompletionQueue) -> WorkCompletion {
    let start = Instant::now();
    let none = WorkCompletion {
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
    };
    let mut out = [none];
    while cq.poll(&mut out).unwrap() == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "no completion");
    }
    out[0]
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + seed) as u8).collect()
}

/// WRITEs and READs a megabyte and checks every byte.
fn exchange(a: &End, b: &End) {
    let data = pattern(1 << 20, 3);
    a.mr.write(0, &data).unwrap();
    let list = [sge(&*a.mr, 0, 1 << 20)];
    let write =
        SendWr { sg_list: &list, ..SendWr::new(1, SendOp::Write { remote_addr: b.mr.addr(), rkey: b.mr.rkey() }) };
    a.qp.post_send(&[write]).unwrap();
    let wc = wait(&*a.cq);
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
    let mut got = vec![0; 1 << 20];
    b.mr.read(0, &mut got).unwrap();
    assert!(got == data, "the bytes differ");
    b.mr.write(0, &pattern(1 << 20, 9)).unwrap();
    let read =
        SendWr { sg_list: &list, ..SendWr::new(2, SendOp::Read { remote_addr: b.mr.addr(), rkey: b.mr.rkey() }) };
    a.qp.post_send(&[read]).unwrap();
    let wc = wait(&*a.cq);
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::Success));
    a.mr.read(0, &mut got).unwrap();
    assert!(got == pattern(1 << 20, 9), "the bytes differ");
}

#[test]
fn two_devices_move_a_megabyte_and_the_target_never_calls() {
    let (a, b) = (provider("one-a", &[61], |_| {}), provider("one-b", &[62], |_| {}));
    let (a, b) = (a.open("one-a").unwrap(), b.open("one-b").unwrap());
    let (x, y) = (end(&*a, 1), end(&*b, 1));
    connect(&x, &y, 1);
    connect(&y, &x, 1);
    // Nobody polls for `y`: its worker answers.
    exchange(&x, &y);
    let counters = b.hw_counters(1).unwrap();
    let value = |name: &str| counters.iter().find(|(n, _)| n == name).unwrap().1;
    assert!(
        value("rcvd_pkts") > 256 && value("rx_write_requests") >= 1 && value("rx_read_requests") >= 1,
        "{counters:?}"
    );
    assert_eq!(value("drop_bad_icrc"), 0);
    // Nothing moves any more: read by their places they are the same, with and without this process's own.
    let places: Vec<u32> = (0..counters.len() as u32).collect();
    for places in [&places[..], &places[3..40], &places[counters.len() - 6..]] {
        let mut values = vec![0; places.len()];
        b.read_hw_counters(1, places, &mut values).unwrap();
        for (place, read) in places.iter().zip(values) {
            let (name, listed) = &counters[*place as usize];
            assert!(read == *listed || !name.starts_with("rx_re"), "{name}: {read}, listed {listed}");
        }
    }
    assert_eq!(b.read_hw_counters(1, &[counters.len() as u32], &mut [0]).unwrap_err().errno, Errno::EINVAL);
    assert_eq!(b.read_hw_counters(1, &[0, 1], &mut [0]).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn faults_are_survived_and_seen_in_counters_and_capture() {
    let path = std::env::temp_dir().join(format!("scalefabric-provider-{}.pcapng", std::process::id()));
    let faults = |o: &mut Options| {
        o.faults = Some("drop=1%,corrupt=0.5%,dup=1%,reorder=1%,seed=5".parse().unwrap());
        o.capture = Some(path.clone());
    };
    let (a, b) = (provider("two-a", &[63], faults), provider("two-b", &[64], |_| {}));
    let (a, b) = (a.open_software("two-a").unwrap(), b.open("two-b").unwrap());
    let (x, y) = (end(&*a, 1), end(&*b, 1));
    connect(&x, &y, 1);
    connect(&y, &x, 1);
    for _ in 0..4 {
        exchange(&x, &y);
        exchange(&y, &x);
    }
    a.flush_capture().unwrap();
    let counters = a.hw_counters(1).unwrap();
    let value = |name: &str| counters.iter().find(|(n, _)| n == name).unwrap().1;
    assert!(value("fault_dropped") > 0 && value("fault_corrupted") > 0, "{counters:?}");
    assert_eq!(value("drop_fault"), value("fault_dropped"));
    assert_eq!(value("drop_bad_icrc"), value("fault_corrupted"), "each damaged packet is found by its ICRC");
    let bytes = std::fs::read(&path).unwrap();
    let mut reader = scalefabric_wire::pcapng::Reader::new(&bytes).unwrap();
    let (mut packets, mut comments) = (0, 0);
    while let Some(record) = reader.next() {
        packets += 1;
        comments += u64::from(record.unwrap().comment.is_some());
    }
    assert!(packets > 2048 && comments > 0);
    std::fs::remove_file(&path).unwrap();
}

/// Requests that left and answers that came, as a capture has them: opcode, PSN, AckReq, length in the RETH, MSN, value before an atomic, and bytes.
type Seen = (u8, u32, bool, Option<u32>, Option<u32>, Option<u64>, Vec<u8>);

fn captured(name: &str, way: RequestPath) -> Vec<Seen> {
    let path = std::env::temp_dir().join(format!("scalefabric-{name}-{}.pcapng", std::process::id()));
    let provider = provider(name, &[69], |options| {
        options.capture = Some(path.clone());
        options.path = way;
    });
    let context = provider.open_software(name).unwrap();
    let (x, y) = (end(&*context, 1), end(&*context, 1));
    connect(&x, &y, 1);
    connect(&y, &x, 1);
    x.mr.write(0, &pattern(20_000, 5)).unwrap();
    let (remote_addr, rkey) = (y.mr.addr(), y.mr.rkey());
    let fetch_add = SendOp::FetchAdd { remote_addr, rkey, add: 5 };
    let operations =
        [(SendOp::Write { remote_addr, rkey }, 9001), (SendOp::Read { remote_addr, rkey }, 9002), (fetch_add, 8)];
    // One after the other: each has its own answer on the wire, too.
    for (op, length) in operations.into_iter().cycle().take(6) {
        let list = [sge(&*x.mr, 0, length)];
        x.qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(1, op) }]).unwrap();
        assert_eq!(wait(&*x.cq).status, WcStatus::Success);
    }
    context.flush_capture().unwrap();
    let counters = context.hw_counters(1).unwrap();
    let direct = counters.iter().find(|(name, _)| name == "direct_requests").unwrap().1;
    assert_eq!(direct, if way == RequestPath::Auto { 6 } else { 0 });
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut reader = scalefabric_wire::pcapng::Reader::new(&bytes).unwrap();
    let mut seen = Vec::new();
    while let Some(record) = reader.next() {
        let record = record.unwrap();
        let frame = scalefabric_wire::frame::Frame::parse(record.link, record.data).unwrap();
        assert!(frame.icrc_ok());
        let headers = frame.packet.headers;
        // Both ends are in one process: on the wire each packet is seen as it leaves and as it comes.
        let (opcode, psn) = (headers.bth.opcode.byte(), headers.bth.psn.get());
        if seen.iter().any(|(other, at, ..): &Seen| (*other, *at) == (opcode, psn)) {
            continue;
        }
        assert_eq!(record.comment.is_some_and(|text| text.contains("same host")), way == RequestPath::Auto);
        seen.push((
            opcode,
            psn,
            headers.bth.ack_req,
            headers.reth.map(|reth| reth.dma_len),
            headers.aeth.map(|aeth| aeth.msn),
            headers.atomic_ack_eth,
            frame.packet.payload.to_vec(),
        ));
    }
    seen
}

#[test]
fn a_capture_shows_requests_to_this_host_as_the_packets_they_would_have_been() {
    let (wire, direct) = (captured("shown-a", RequestPath::Wire), captured("shown-b", RequestPath::Auto));
    assert_eq!(wire.len(), 2 * (3 + 1 + 1 + 3 + 1 + 1));
    assert_eq!(direct, wire);
}

#[test]
fn a_device_of_two_ports_has_a_gid_on_each() {
    let provider = provider("three", &[65, 66], |_| {});
    let context = provider.open("three").unwrap();
    assert_eq!(context.query_device().unwrap().phys_port_cnt, 2);
    let gid = |port| context.query_gid(port, 0).unwrap().to_ip();
    assert_eq!((gid(1), gid(2)), (own_loopback(65), own_loopback(66)));
    assert!(context.query_gid(3, 0).is_err());
    let (x, y) = (end(&*context, 1), end(&*context, 2));
    connect(&x, &y, 1);
    connect(&y, &x, 2);
    exchange(&x, &y);
}

#[test]
fn a_pkey_change_raises_its_event() {
    let provider = provider("four", &[67], |_| {});
    let context = provider.open_software("four").unwrap();
    context.set_pkey(1, 3, PKey(0x8888)).unwrap();
    let event = context.get_async_event(Some(Duration::from_secs(10))).unwrap().unwrap();
    assert_eq!((event.event_type, event.subject), (event::EventType::PkeyChange, EventSubject::Port(1)));
    assert_eq!(context.query_pkey(1, 3).unwrap(), PKey(0x8888));
    assert!(context.set_pkey(2, 0, PKey(1)).is_err());
}

#[test]
fn the_last_object_closes_the_device_and_it_can_be_opened_again() {
    let provider = provider("five", &[68], |_| {});
    for _ in 0..3 {
        let context = provider.open("five").unwrap();
        let again = provider.open("five").unwrap();
        let pd = context.alloc_pd().unwrap();
        drop((context, again));
        drop(pd);
    }
}

#[test]
fn an_unknown_device_is_told_apart_from_those_there_are() {
    let error = provider("six", &[69], |_| {}).open("mlx5_0").unwrap_err();
    assert_eq!(error.errno, Errno::ENODEV);
    assert!(error.message.contains("sflo") && error.message.contains("six"), "{error}");
}

#[test]
fn what_came_before_a_qp_is_ended_was_received() {
    // Both are deaf while nobody calls them.
    let deaf = |options: &mut Options| options.worker = false;
    let left = provider("before-a", &[161], deaf).open("before-a").unwrap();
    let right = provider("before-b", &[162], deaf).open("before-b").unwrap();
    let (a, b) = (end(&*left, 1), end(&*right, 1));
    connect(&a, &b, 1);
    connect(&b, &a, 1);
    for wr_id in [5, 6] {
        b.qp.post_recv(&[RecvWr { wr_id, sg_list: &[sge(&*b.mr, 0, 64)] }]).unwrap();
    }
    // It lies in the other side's socket when this returns.
    let sg_list = [sge(&*a.mr, 0, 16)];
    a.qp.post_send(&[SendWr { sg_list: &sg_list, ..SendWr::new(1, SendOp::Send) }]).unwrap();
    let (error, mask) = QpAttr::error();
    b.qp.modify(&error, mask).unwrap();
    assert_eq!(
        [wait(&*b.cq), wait(&*b.cq)].map(|wc| (wc.wr_id, wc.status)),
        [(5, WcStatus::Success), (6, WcStatus::WrFlushErr)]
    );
    assert_eq!(wait(&*a.cq).status, WcStatus::Success, "and it was acknowledged");
}

/// What the kernel says of this process's thread of that name.
fn thread_status(name: &str, key: &str) -> String {
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        if value("Name:") == Some(name) {
            return value(key).unwrap_or_default().to_owned();
        }
    }
    panic!("no thread {name}");
}

/// Times that a thread went off the processor by itself.
fn voluntary_switches(name: &str) -> u64 {
    thread_status(name, "voluntary_ctxt_switches:").parse().unwrap()
}

/// The device's own thread, once it sleeps with nothing to wake up for.
fn sleeping(context: &SoftwareContext, name: &str) -> Arc<Worker> {
    let worker = context.device.worker.get().and_then(Weak::upgrade).expect("a thread of its own");
    let start = Instant::now();
    while !(worker.sleeps_without_end() && thread_status(name, "State:").starts_with('S')) {
        assert!(start.elapsed() < Duration::from_secs(30), "the device does not come to rest");
        std::thread::sleep(Duration::from_millis(1));
    }
    worker
}

#[test]
fn a_device_with_many_connected_qps_that_are_idle_does_nothing_at_all() {
    let provider = provider("idle", &[71], |_| {});
    let context = provider.open_software("idle").unwrap();
    let one = end(&*context, 1);
    connect(&one, &one, 1);
    let pd = context.alloc_pd().unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (one.cq.clone(), one.cq.clone());
    let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true };
    let mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE).unwrap();
    let many: Vec<End> = (0..1000)
        .map(|_| {
            let other = End { qp: pd.create_qp(&init).unwrap(), cq: one.cq.clone(), mr: mr.clone(), ..one };
            connect(&other, &other, 1);
            other
        })
        .collect();
    // Each has had its timers, and they are over: none is armed again.
    for other in [&one, &many[0], &many[999]] {
        let list = [sge(&*other.mr, 0, 8)];
        let op = SendOp::Write { remote_addr: other.mr.addr() + 64, rkey: other.mr.rkey() };
        other.qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(1, op) }]).unwrap();
        assert_eq!(wait(&*one.cq).status, WcStatus::Success);
    }
    // The timers of acknowledged requests run out once and find nothing; nothing else wakes the thread.
    let worker = sleeping(&context, "sf-idle");
    let seen = || (worker.turns(), worker.sleeps(), voluntary_switches("sf-idle"));
    let (start, mut before) = (Instant::now(), seen());
    // Long enough for anything that ticks. The first looks may fall into the moment in which the thread goes to sleep.
    loop {
        std::thread::sleep(Duration::from_millis(500));
        match seen() {
            now if now == before => break,
            now if start.elapsed() > Duration::from_secs(30) => panic!("something ticks: {before:?}, then {now:?}"),
            now => before = now,
        }
    }
}

#[test]
fn a_passive_target_answers_within_one_wake() {
    let (a, b) = (provider("wake-a", &[72], |_| {}), provider("wake-b", &[73], |_| {}));
    let (a, b) = (a.open_software("wake-a").unwrap(), b.open_software("wake-b").unwrap());
    let (x, y) = (end(&*a, 1), end(&*b, 1));
    connect(&x, &y, 1);
    connect(&y, &x, 1);
    const ROUNDS: u64 = 20;
    let target = sleeping(&b, "sf-wake-b");
    let switches = voluntary_switches("sf-wake-b");
    for round in 0..ROUNDS {
        let sleeps = target.sleeps();
        let list = [sge(&*x.mr, 0, 8)];
        let op = SendOp::Write { remote_addr: y.mr.addr(), rkey: y.mr.rkey() };
        x.qp.post_send(&[SendWr { sg_list: &list, ..SendWr::new(round, op) }]).unwrap();
        assert_eq!(wait(&*x.cq).status, WcStatus::Success);
        sleeping(&b, "sf-wake-b");
        assert_eq!(target.sleeps(), sleeps + 1, "it woke, answered and slept again");
    }
    // One of them may be counted late, in the moment in which the thread goes to sleep.
    let switched = voluntary_switches("sf-wake-b") - switches;
    assert!(switched <= ROUNDS + 1, "off the processor {switched} times for {ROUNDS} messages");
}
