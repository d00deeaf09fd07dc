//! Our responder gets the requests that a Linux 6.1 kernel's requester sent (`golden/rxe`), and must say what that kernel's
//! responder said: the same opcodes, PSNs, syndromes, MSNs, atomic results and bytes. What it received and what its memory
//! holds at the end must be what the log beside the capture tells.
//!
//! Left out are captures in which the kernel dropped packets after they were captured, or answered by the clock, and the
//! one whose README calls it a quirk.

use std::path::Path;

use scalefabric_transport::Config;
use scalefabric_transport::responder::{Acks, Cnps};
use scalefabric_transport::testing::{Packet, Piece, Region, Side, WHOLE, attributes};
use scalefabric_verbs::{AccessFlags, Mtu, QKey, QpType, WcStatus};
use scalefabric_wire::frame::{Capture, Frame};
use scalefabric_wire::opcode::Operation;
use scalefabric_wire::packet::{Aeth, Headers};
use scalefabric_wire::{Gid, Psn, Qpn};

/// The peers of the rig gave 1 MiB to the network.
const BUFFER: u64 = 1 << 20;
/// Receive buffers lie behind it.
const RECEIVE: u64 = 16 * 1024;
const RECEIVES: u64 = 64;

/// What a response says, as far as it does not depend on who says it.
#[derive(Debug, PartialEq)]
struct Said {
    operation: Operation,
    psn: Psn,
    aeth: Option<Aeth>,
    original: Option<u64>,
    payload: Vec<u8>,
    opcode: Option<u8>,
}

fn said(headers: &Headers, payload: &[u8], with_opcode: bool) -> Said {
    Said {
        operation: headers.bth.opcode.info().operation,
        psn: headers.bth.psn,
        aeth: if with_opcode { headers.aeth } else { None },
        original: headers.atomic_ack_eth,
        payload: payload.to_vec(),
        opcode: with_opcode.then(|| headers.bth.opcode.byte()),
    }
}

fn is_response(headers: &Headers) -> bool {
    matches!(
        headers.bth.opcode.info().operation,
        Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse
    )
}

/// Requests of a capture, with addresses made relative to the buffer, and responses, in the order of the wire.
fn packets(name: &str) -> Vec<Packet> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe").join(name).with_extension("pcap");
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut packets: Vec<Packet> = Capture::new(&bytes)
        .expect("a capture")
        .map(|record| {
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
                traffic_class: 0,
            }
        })
        .collect();
    let addresses = |p: &Packet| p.headers.reth.map(|r| r.va).or(p.headers.atomic_eth.map(|a| a.va));
    let lowest = packets.iter().filter_map(addresses).min().unwrap_or(0);
    // Atomics go to the last eight bytes of the buffer, everything else to its beginning.
    let base = if lowest % 0x1000 == 0x1000 - 8 { lowest + 8 - BUFFER } else { lowest & !0xfff };
    for packet in &mut packets {
        if let Some(reth) = &mut packet.headers.reth {
            reth.va -= base;
        }
        if let Some(eth) = &mut packet.headers.atomic_eth {
            eth.va -= base;
        }
    }
    packets
}

fn responder(qp_type: QpType, mtu: Mtu, packets: &[Packet]) -> Side {
    let first = &packets[0];
    let config = Config { acks: Acks::Immediate, cnps: Cnps::Never, advertise_credits: false, ..Config::default() };
    let mut side = Side::new(qp_type, 2, (BUFFER + RECEIVE * RECEIVES) as usize, config);
    let mut attr = attributes();
    attr.path_mtu = mtu;
    attr.rq_psn = first.headers.bth.psn;
    attr.qkey = QKey(0x1111_1111);
    attr.ah_attr = side.host.address(1);
    attr.ah_attr.dgid = first.src;
    attr.dest_qp_num = packets.iter().find(|p| is_response(&p.headers)).map_or(Qpn::new(2), |p| p.headers.bth.dest_qp);
    side.host.gids[0][0] = first.dst;
    let keys = packets.iter().filter_map(|p| p.headers.reth.map(|r| r.rkey).or(p.headers.atomic_eth.map(|a| a.rkey)));
    if let Some(key) = keys.map(|k| k.0).next() {
        let access = AccessFlags::REMOTE | AccessFlags::LOCAL_WRITE;
        side.host.regions.push(Region { key, addr: 0, length: BUFFER, access, gone: false });
    }
    side.bring_up(&attr);
    for n in 0..RECEIVES {
        side.host.post_recv(n, &[Piece { addr: BUFFER + n * RECEIVE, length: RECEIVE as u32, key: WHOLE }]);
    }
    side
}

/// Plays a capture. Answers may come later than the next request, as they did on the wire, but in the same order. `same_opcodes`: FIRST, MIDDLE, LAST and what hangs on them must agree, too.
fn play(name: &str, qp_type: QpType, mtu: Mtu, same_opcodes: bool) -> Side {
    let packets = packets(name);
    let requester = packets[0].src;
    let mut side = responder(qp_type, mtu, &packets);
    let mut ours = std::collections::VecDeque::new();
    let mut compared = 0;
    for (i, packet) in packets.iter().enumerate() {
        let at = format!("{name}, packet {}", i + 1);
        if is_response(&packet.headers) {
            let answer: Packet = ours.pop_front().unwrap_or_else(|| panic!("{at}: we said nothing"));
            assert_eq!(
                said(&answer.headers, &answer.payload, same_opcodes),
                said(&packet.headers, &packet.payload, same_opcodes),
                "{at}"
            );
            assert_eq!((answer.headers.bth.dest_qp, answer.dst), (packet.headers.bth.dest_qp, requester), "{at}");
            compared += 1;
        } else {
            side.receive(packet);
            side.qp.end_of_batch(&mut side.host);
            side.transmit(1000);
            ours.extend(side.host.wire.drain(..));
        }
    }
    assert!(ours.is_empty(), "{name}: the kernel did not say {ours:?}");
    assert_eq!(compared > 0, qp_type == QpType::Rc, "{name}");
    check_log(name, &side);
    side
}

/// The responder's half of the log: `recv N status=success opcode=… len=… imm=… crc32=…` and the sum over the first 64 KiB.
fn check_log(name: &str, side: &Side) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe").join(name).with_extension("log");
    let log = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let log = log.split("--- guest 2").nth(1).expect("the responder's half");
    let mut lines = 0;
    let mut received = side.host.received.iter();
    for line in log.lines() {
        let field = |key: &str| line.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
        if line.starts_with("recv ") {
            lines += 1;
            let wc = received.next().unwrap_or_else(|| panic!("{name}: we lack {line}")).wc;
            assert_eq!(wc.status, WcStatus::Success, "{name}: {line}");
            assert_eq!((wc.opcode as u32).to_string(), field("opcode").unwrap(), "{name}: {line}");
            assert_eq!(wc.byte_len.to_string(), field("len").unwrap(), "{name}: {line}");
            if let Some(imm) = field("imm") {
                assert_eq!(format!("{:08x}", wc.imm), imm, "{name}: {line}");
            }
            if let Some(sum) = field("crc32") {
                let grh = if side.qp.qp_type() == QpType::Ud { 40 } else { 0 };
                let start = (BUFFER + wc.wr_id * RECEIVE) as usize;
                let bytes = &side.host.memory[start + grh..start + wc.byte_len as usize];
                assert_eq!(format!("{:08x}", crc32fast::hash(bytes)), sum, "{name}: {line}");
            }
        } else if line.starts_with("buffer first 64 KiB") {
            lines += 1;
            let sum = crc32fast::hash(&side.host.memory[..64 * 1024]);
            assert_eq!(format!("{sum:08x}"), field("crc32").unwrap(), "{name}: {line}");
            let last: [u8; 8] = side.host.memory[BUFFER as usize - 8..][..8].try_into().expect("eight bytes");
            assert_eq!(format!("{:016x}", u64::from_le_bytes(last)), field("last8").unwrap(), "{name}: {line}");
        }
    }
    assert!(lines > 0, "{name}: the log tells nothing");
}

#[test]
fn reliable_requests_get_the_kernels_answers() {
    for name in [
        "rc-atomic",
        "rc-dscp",
        "rc-dup-ack",
        "rc-dup-atomic",
        "rc-ecn-ce",
        "rc-nak-access",
        "rc-nak-range",
        "rc-psn-wrap",
        "rc-read",
        "rc-send",
        "rc-send-kinds",
        "rc-write",
        "rc-write-imm",
        "v6-rc",
        "v6ll-rc",
    ] {
        play(name, QpType::Rc, Mtu::Mtu1024, true);
    }
    for name in ["rc-read-mtu9000", "rc-send-mtu9000", "rc-write-mtu9000"] {
        play(name, QpType::Rc, Mtu::Mtu4096, true);
    }
    play("rc-pmtu256", QpType::Rc, Mtu::Mtu256, true);
}

/// A READ that is asked for again from its middle is, for the standard, a READ of its own: FIRST (or ONLY) comes first. The
/// kernel goes on with MIDDLE. The PSNs and bytes are the same, and a requester of either kind takes both.
#[test]
fn repeated_reads_get_the_kernels_bytes() {
    play("rc-dup-read", QpType::Rc, Mtu::Mtu1024, false);
}

#[test]
fn unreliable_requests_arrive_as_with_the_kernel() {
    play("uc", QpType::Uc, Mtu::Mtu1024, true);
    play("uc-mtu9000", QpType::Uc, Mtu::Mtu4096, true);
    for name in ["ud", "ud-mtu9000", "v6-ud"] {
        let side = play(name, QpType::Ud, Mtu::Mtu4096, true);
        // The GRH of the first datagram names both ends.
        let grh = &side.host.memory[BUFFER as usize..][..40];
        let (src, dst) = (packets(name)[0].src, packets(name)[0].dst);
        let end = |gid: Gid, v6: &[u8], v4: &[u8]| if gid.is_ipv4() { gid.0[12..] == *v4 } else { gid.0 == *v6 };
        assert!(end(src, &grh[8..24], &grh[32..36]) && end(dst, &grh[24..40], &grh[36..40]), "{name}: {grh:02x?}");
    }
}
