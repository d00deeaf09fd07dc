//! Our requester posts what the programs in front of a Linux 6.1 kernel's requester posted (`golden/rxe`), gets the answers
//! that the kernel's responder gave, and must send what the kernel's requester sent: the same opcodes, PSNs, AckReq, solicited
//! events, addresses, immediates and bytes, also when it repeats; and it must complete with the statuses of the log.
//!
//! Two things are left out on purpose. MigReq: rxe never sets it, though its QPs are in MIGRATED; we do (clause 17.2.8.1).
//! Time: after a lost READ response rxe waits for its timer, while we see the loss in the next response and ask at once; the
//! packet is the same. Of the captures, `rc-pipelined` interleaves by the clock and the CM ones are not a QP's own doing.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use scalefabric_transport::testing::{Packet, Piece, Side, WHOLE, attributes};
use scalefabric_transport::{Config, Next, Time, WqeOp};
use scalefabric_verbs::{AddressVector, Mtu, QKey, QpType, SendFlags};
use scalefabric_wire::frame::{Capture, Frame, Ip};
use scalefabric_wire::opcode::{Operation, Position};
use scalefabric_wire::packet::Headers;
use scalefabric_wire::{Psn, Qpn};

/// Where results of READs and atomics land, behind what is sent.
const RESULTS: u64 = 1 << 16;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe")
}

fn is_response(headers: &Headers) -> bool {
    matches!(
        headers.bth.opcode.info().operation,
        Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse
    )
}

fn packets(name: &str) -> Vec<Packet> {
    let path = folder().join(name).with_extension("pcap");
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let records = Capture::new(&bytes).expect("a capture").map(|record| {
        let record = record.expect("a record");
        let frame = Frame::parse(record.link, record.data).expect("a RoCEv2 frame");
        Packet {
            reads_telemetry: false,
            trailer: None,
            headers: frame.packet.headers,
            payload: frame.packet.payload.to_vec(),
            port_num: 1,
            src: frame.src(),
            dst: frame.dst(),
            traffic_class: match frame.ip {
                Ip::V4(ip) => ip.traffic_class,
                Ip::V6(ip) => ip.traffic_class,
            },
        }
    });
    records.collect()
}

/// What an application posted.
#[derive(Debug)]
struct Posted {
    op: WqeOp,
    flags: SendFlags,
    /// Bytes that are sent.
    data: Vec<u8>,
    /// Bytes that come back.
    result: u32,
    to: Option<(Qpn, QKey)>,
}

/// The operations behind a capture's requests: a packet whose PSN was sent before is a repetition.
fn operations(packets: &[Packet], pmtu: u32) -> VecDeque<Posted> {
    let mut posted: VecDeque<Posted> = VecDeque::new();
    let mut next = packets[0].headers.bth.psn;
    for packet in packets.iter().filter(|p| !is_response(&p.headers)) {
        let h = &packet.headers;
        if h.bth.psn != next {
            assert!(h.bth.psn.is_before(next), "a hole in the capture");
            continue;
        }
        let info = h.bth.opcode.info();
        let reth = h.reth.map(|r| (r.va, r.rkey, r.dma_len));
        let mut psns = 1;
        if matches!(info.position, Position::First | Position::Only) {
            let mut result = 0;
            let op = match (info.operation, reth, h.atomic_eth) {
                (Operation::Write | Operation::WriteWithImm, Some((remote_addr, rkey, _)), _) => {
                    WqeOp::Write { remote_addr, rkey }
                }
                (Operation::ReadRequest, Some((remote_addr, rkey, length)), _) => {
                    psns = length.div_ceil(pmtu).max(1);
                    result = length;
                    WqeOp::Read { remote_addr, rkey }
                }
                (Operation::CompareSwap, _, Some(eth)) => {
                    result = 8;
                    let (compare, swap) = (eth.compare, eth.swap_or_add);
                    WqeOp::CompareSwap { remote_addr: eth.va, rkey: eth.rkey, compare, swap }
                }
                (Operation::FetchAdd, _, Some(eth)) => {
                    result = 8;
                    WqeOp::FetchAdd { remote_addr: eth.va, rkey: eth.rkey, add: eth.swap_or_add }
                }
                (Operation::Send | Operation::SendWithImm | Operation::SendWithInv, ..) => WqeOp::Send,
                other => panic!("{other:?} in a capture"),
            };
            let to = h.deth.map(|deth| (h.bth.dest_qp, deth.qkey));
            posted.push_back(Posted { op, flags: SendFlags::SIGNALED, data: Vec::new(), result, to });
        }
        let last = posted.back_mut().expect("a message begins with FIRST or ONLY");
        last.data.extend_from_slice(&packet.payload);
        // What the last packet carries decides what was posted.
        if let Some(imm) = h.imm {
            last.op = match last.op {
                WqeOp::Write { remote_addr, rkey } => WqeOp::WriteWithImm { remote_addr, rkey, imm },
                _ => WqeOp::SendWithImm { imm },
            };
        }
        if let Some(invalidate_rkey) = h.ieth {
            last.op = WqeOp::SendWithInv { invalidate_rkey };
        }
        if h.bth.solicited {
            last.flags |= SendFlags::SOLICITED;
        }
        next = next.add(psns);
    }
    posted
}

/// What a request says, but for MigReq.
#[derive(Debug, PartialEq)]
struct Said {
    headers: Headers,
    payload: Vec<u8>,
    traffic_class: u8,
}

fn said(packet: &Packet) -> Said {
    let mut headers = packet.headers;
    headers.bth.mig_req = false;
    Said { headers, payload: packet.payload.clone(), traffic_class: packet.traffic_class }
}

fn requester(qp_type: QpType, mtu: Mtu, packets: &[Packet]) -> Side {
    let first = &packets[0];
    let config = Config { advertise_credits: false, ..Config::default() };
    let mut side = Side::new(qp_type, 1, 1 << 17, config);
    // The QPN must be the kernel's, for it stands in DETHs.
    if let Some(deth) = first.headers.deth {
        side.qp = scalefabric_transport::QueuePair::new(qp_type, deth.src_qp, config);
    }
    side.host.gids[0][0] = first.src;
    let mut attr = attributes();
    attr.path_mtu = mtu;
    attr.sq_psn = first.headers.bth.psn;
    attr.rq_psn = Psn::new(0x20_0000);
    attr.qkey = QKey(0x1111_1111);
    attr.timeout = 14;
    attr.dest_qp_num = first.headers.bth.dest_qp;
    attr.ah_attr = path(first);
    side.bring_up(&attr);
    side
}

/// The way that a captured request took.
fn path(packet: &Packet) -> AddressVector {
    AddressVector { traffic_class: packet.traffic_class & !3, ..AddressVector::new(1, 0, packet.dst) }
}

fn post(side: &mut Side, number: u64, posted: &Posted, datagrams_go: AddressVector) {
    let length = posted.data.len();
    side.host.memory[..length].copy_from_slice(&posted.data);
    let piece = match posted.result {
        0 => Piece { addr: 0, length: length as u32, key: WHOLE },
        result => Piece { addr: RESULTS, length: result, key: WHOLE },
    };
    match posted.to {
        None => side.host.post_send(number, posted.op, posted.flags, &[piece]),
        Some((qpn, qkey)) => side.host.post_datagram(number, posted.op, &[piece], (datagrams_go, qpn, qkey)),
    };
}

/// Sends; without anything to send, waits for the next timer or the end of an RNR wait. At most one second passes.
fn send_or_wait(side: &mut Side, at: &str) {
    for _ in 0..4 {
        let next = side.transmit(64);
        if !side.host.wire.is_empty() {
            return;
        }
        let paced = if let Next::At(time) = next { Some(time) } else { None };
        let next: Option<Time> = side.qp.deadline().into_iter().chain(paced).min();
        let time = next.unwrap_or_else(|| panic!("{at}: we send nothing and wait for nothing"));
        side.host.now = time.max(side.host.now);
        side.qp.on_timer(&mut side.host);
    }
    panic!("{at}: we send nothing");
}

/// Which captured responses the kernel's requester was made to lose: every nth of an operation and position.
#[derive(Clone, Copy)]
struct Loss(usize, Operation, Option<Position>);

fn play(name: &str, qp_type: QpType, mtu: Mtu, loss: Option<Loss>) {
    let packets = packets(name);
    let mut operations = operations(&packets, mtu.bytes());
    let mut side = requester(qp_type, mtu, &packets);
    let (mut posted, mut seen, mut compared, mut lost) = (0, 0, 0, 0);
    for (number, packet) in packets.iter().enumerate() {
        let at = format!("{name}, packet {}", number + 1);
        let info = packet.headers.bth.opcode.info();
        if is_response(&packet.headers) {
            let counts = |l: &Loss| l.1 == info.operation && l.2.is_none_or(|p| p == info.position);
            if let Some(loss) = loss.filter(counts) {
                seen += 1;
                if seen % loss.0 == 0 {
                    lost += 1;
                    continue;
                }
            }
            side.receive(packet);
            side.qp.end_of_batch(&mut side.host);
            continue;
        }
        // The programs wait for each completion before they post the next operation.
        if side.host.wire.is_empty() && side.host.sends_left() == 0 {
            let next = operations.pop_front().unwrap_or_else(|| panic!("{at}: nothing is left to post"));
            post(&mut side, posted, &next, path(packet));
            posted += 1;
        }
        if side.host.wire.is_empty() {
            send_or_wait(&mut side, &at);
        }
        let ours = side.host.take_packet().unwrap_or_else(|| panic!("{at}: we send nothing"));
        let mut theirs = said(packet);
        if name == "rc-ecn-ce" {
            // ECT(0) became CE on the way; the first hop is not in the capture.
            theirs.traffic_class = ours.traffic_class;
        }
        assert_eq!(said(&ours), theirs, "{at}");
        compared += 1;
    }
    assert!(side.host.wire.is_empty(), "{name}: the kernel did not send {:?}", side.host.wire);
    assert!(operations.is_empty() && compared > 0, "{name}");
    assert_eq!(loss.is_some(), lost > 0, "{name}: the loss of the README happened");
    check_log(name, &side);
}

/// The statuses of the log, in order.
fn check_log(name: &str, side: &Side) {
    let path = folder().join(name).with_extension("log");
    let log = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let theirs: Vec<&str> = log
        .lines()
        .take_while(|line| !line.starts_with("---"))
        .filter_map(|line| {
            line.strip_prefix("wc op=")?.split_once("status=")?.1.rsplit_once(" len=").map(|(status, _)| status)
        })
        .collect();
    let ours: Vec<&str> = side.host.sent.iter().map(|wc| wc.status.as_str()).collect();
    assert_eq!(ours, theirs, "{name}");
    for (place, wc) in side.host.sent.iter().enumerate() {
        assert_eq!(wc.wr_id, place as u64, "{name}: completions come in order");
    }
}

#[test]
fn reliable_requests_are_those_of_the_kernel() {
    for name in [
        "rc-send",
        "rc-send-kinds",
        "rc-write",
        "rc-write-imm",
        "rc-read",
        "rc-atomic",
        "rc-dscp",
        "rc-psn-wrap",
        "rc-ecn-ce",
        "rc-send-inv",
        "v6-rc",
        "v6ll-rc",
    ] {
        play(name, QpType::Rc, Mtu::Mtu1024, None);
    }
    play("rc-pmtu256", QpType::Rc, Mtu::Mtu256, None);
    for name in ["rc-send-mtu9000", "rc-write-mtu9000", "rc-read-mtu9000"] {
        play(name, QpType::Rc, Mtu::Mtu4096, None);
    }
}

#[test]
fn a_nak_ends_the_request_as_with_the_kernel() {
    for name in ["rc-nak-access", "rc-nak-range"] {
        play(name, QpType::Rc, Mtu::Mtu1024, None);
    }
}

/// The kernel's receiver dropped packets, or had no buffer: what is repeated, and from where, must be the same.
#[test]
fn repetitions_are_those_of_the_kernel() {
    for name in ["rc-nak-seq", "rc-timeout", "rc-rnr"] {
        play(name, QpType::Rc, Mtu::Mtu1024, None);
    }
}

/// The kernel's requester was made to lose what was sent to it.
#[test]
fn lost_answers_are_asked_for_as_by_the_kernel() {
    let losses = [
        ("rc-dup-ack", Loss(2, Operation::Acknowledge, None)),
        ("rc-dup-atomic", Loss(2, Operation::AtomicAcknowledge, None)),
        ("rc-dup-read", Loss(3, Operation::ReadResponse, Some(Position::Middle))),
    ];
    for (name, loss) in losses {
        play(name, QpType::Rc, Mtu::Mtu1024, Some(loss));
    }
}

#[test]
fn unreliable_requests_are_those_of_the_kernel() {
    for (name, qp_type, mtu) in [
        ("uc", QpType::Uc, Mtu::Mtu1024),
        ("uc-mtu9000", QpType::Uc, Mtu::Mtu4096),
        ("ud", QpType::Ud, Mtu::Mtu1024),
        ("ud-mtu9000", QpType::Ud, Mtu::Mtu4096),
        ("v6-ud", QpType::Ud, Mtu::Mtu1024),
    ] {
        play(name, qp_type, mtu, None);
    }
}
