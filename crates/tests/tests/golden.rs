//! Captures made by a Linux 6.1 kernel (`golden/rxe`, whose README says what each holds) decode completely, every ICRC is
//! right, and the structs make the same bytes again. Where tshark is installed it must read the same fields.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use scalefabric_wire::cm::{CmMad, IpAddressing, Message};
use scalefabric_wire::frame::{Capture, Frame};
use scalefabric_wire::icrc::{Check, Flow, InverseCache};
use scalefabric_wire::pcap::Record;
use scalefabric_wire::{Qpn, describe};

fn captures() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("golden/rxe is part of the repository")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
        .collect();
    files.sort();
    assert_eq!(files.len(), 34, "captures in {}", folder.display());
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("a readable file"))).collect()
}

/// Calls `check` with every packet of every capture.
fn for_each(mut check: impl FnMut(&str, &Record<'_>, &Frame<'_>)) {
    let mut packets = 0;
    for (path, bytes) in captures() {
        let name = path.file_name().unwrap().to_string_lossy();
        for (i, record) in Capture::new(&bytes).unwrap_or_else(|e| panic!("{name}: {e}")).enumerate() {
            let at = format!("{name}, packet {}", i + 1);
            let record = record.unwrap_or_else(|e| panic!("{at}: {e}"));
            let frame = Frame::parse(record.link, record.data).unwrap_or_else(|e| panic!("{at}: {e}"));
            check(&at, &record, &frame);
            packets += 1;
        }
    }
    assert_eq!(packets, 466);
}

#[test]
fn every_packet_decodes_with_a_right_icrc_and_encodes_to_the_same_bytes() {
    for_each(|at, record, frame| {
        assert!(frame.icrc_ok(), "{at}: ICRC {:#010x}, not {:#010x}", frame.packet.icrc, frame.right_icrc);
        let mut again = Vec::new();
        frame.emit(&mut again).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert_eq!(again, record.data[..again.len()], "{at}");
        assert!(record.data[again.len()..].iter().all(|&byte| byte == 0), "{at}: only link-layer padding may be left");
    });
}

#[test]
fn the_fast_icrc_agrees_and_finds_every_unknown_identification() {
    let mut cache = InverseCache::new();
    for_each(|at, _, frame| {
        let flow = Flow::between(frame.src(), frame.dst(), frame.udp.src_port);
        let transport = &frame.bytes[..frame.bytes.len() - 4];
        match frame.ip {
            scalefabric_wire::frame::Ip::V4(ip) => {
                assert_eq!(flow.icrc(ip.id, transport), frame.packet.icrc, "{at}");
                assert_eq!(flow.check(ip.id, frame.bytes, &mut cache), Check::Ok, "{at}");
                assert_eq!(flow.check(!ip.id, frame.bytes, &mut cache), Check::OkWithId(ip.id), "{at}");
            }
            scalefabric_wire::frame::Ip::V6(_) => {
                assert_eq!(flow.check(0, frame.bytes, &mut cache), Check::Ok, "{at}");
            }
        }
        let mut damaged = frame.bytes.to_vec();
        let last = damaged.len() - 1;
        damaged[last] ^= 0x40;
        assert_eq!(flow.check(0, &damaged, &mut cache), Check::Bad, "{at}");
    });
}

#[test]
fn every_cm_message_is_read_and_made_again() {
    let mut messages = BTreeMap::new();
    for_each(|at, _, frame| {
        if frame.packet.headers.bth.dest_qp != Qpn::GSI {
            return;
        }
        let mad = CmMad::parse(frame.packet.payload).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert_eq!(mad.emit(), frame.packet.payload, "{at}: {}", describe::cm(&mad));
        *messages.entry(mad.message.name()).or_insert(0) += 1;
        if let Message::Req(req) = &mad.message {
            let ip = IpAddressing::parse(&req.private_data).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!((ip.src, ip.dst), (frame.ip.src(), frame.ip.dst()), "{at}");
            assert_eq!((req.primary.local_gid, req.primary.remote_gid), (frame.src(), frame.dst()), "{at}");
        }
    });
    let want =
        [("DREP", 2), ("DREQ", 2), ("REJ", 1), ("REP", 2), ("REQ", 3), ("RTU", 2), ("SIDR_REP", 1), ("SIDR_REQ", 1)];
    assert_eq!(messages, BTreeMap::from(want));
}

#[test]
fn every_packet_has_its_line() {
    for_each(|at, record, frame| {
        let line = describe::line(record.time_ns, frame);
        assert!(line.ends_with(" icrc ok") && line.contains(" qp 0x"), "{at}: {line}");
    });
}

/// Fields that are compared with tshark's: its name, and ours as tshark would print it.
const FIELDS: &[&str] = &[
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.a",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.p_key",
    "infiniband.invariant.crc",
    "infiniband.reth.dmalen",
    "infiniband.aeth.msn",
    "infiniband.deth.srcqp",
    "infiniband.immdt",
    // Set where tshark tried to read the payload as some upper protocol and failed; it then gives up on the rest.
    MALFORMED,
];

const MALFORMED: &str = "_ws.malformed";

/// tshark's numbers: decimal, hexadecimal with 0x, or words for flags.
fn number(text: &str) -> Option<u64> {
    match text {
        "" => None,
        "True" => Some(1),
        "False" => Some(0),
        hex if hex.starts_with("0x") => u64::from_str_radix(&hex[2..], 16).ok(),
        decimal => decimal.parse().ok(),
    }
}

#[test]
fn tshark_reads_the_same_fields() {
    let works = Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: tshark is not installed (Debian: apt-get install tshark)");
        return;
    }
    for (path, bytes) in captures() {
        let name = path.file_name().unwrap().to_string_lossy();
        let mut command = Command::new("tshark");
        command
            .args(["--disable-protocol", "rpcordma", "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", "-r"])
            .arg(&path);
        for field in FIELDS {
            command.args(["-e", field]);
        }
        let output = command.output().expect("tshark starts");
        let text = String::from_utf8(output.stdout).expect("tshark prints text");
        let lines: Vec<&str> = text.lines().collect();
        let mut count = 0;
        for (i, record) in Capture::new(&bytes).unwrap().enumerate() {
            let record = record.unwrap();
            let frame = Frame::parse(record.link, record.data).unwrap();
            let headers = &frame.packet.headers;
            let bth = &headers.bth;
            let ours: BTreeMap<&str, Option<u64>> = BTreeMap::from([
                ("infiniband.bth.opcode", Some(bth.opcode.byte().into())),
                ("infiniband.bth.destqp", Some(bth.dest_qp.get().into())),
                ("infiniband.bth.psn", Some(bth.psn.get().into())),
                ("infiniband.bth.a", Some(bth.ack_req.into())),
                ("infiniband.bth.se", Some(bth.solicited.into())),
                ("infiniband.bth.m", Some(bth.mig_req.into())),
                ("infiniband.bth.padcnt", Some(bth.pad_count.into())),
                ("infiniband.bth.p_key", Some(bth.pkey.0.into())),
                ("infiniband.invariant.crc", Some(frame.packet.icrc.swap_bytes().into())),
                ("infiniband.reth.dmalen", headers.reth.map(|reth| reth.dma_len.into())),
                ("infiniband.aeth.msn", headers.aeth.map(|aeth| aeth.msn.into())),
                ("infiniband.deth.srcqp", headers.deth.map(|deth| deth.src_qp.get().into())),
                ("infiniband.immdt", headers.imm.map(u64::from)),
            ]);
            let theirs: Vec<&str> =
                lines.get(i).unwrap_or_else(|| panic!("{name}: a line a packet")).split('|').collect();
            let gave_up = theirs.last().is_some_and(|theirs| !theirs.is_empty());
            for (field, theirs) in FIELDS.iter().zip(theirs) {
                if *field == MALFORMED || gave_up && *field == "infiniband.invariant.crc" {
                    continue;
                }
                let theirs = theirs.trim();
                let theirs = match *field {
                    // Printed as bytes.
                    "infiniband.immdt" if !theirs.starts_with("0x") => u64::from_str_radix(theirs, 16).ok(),
                    _ => number(theirs),
                };
                assert_eq!(theirs, ours[field], "{name}, packet {}: {field}", i + 1);
            }
            count += 1;
        }
        assert_eq!(lines.len(), count, "{name}");
    }
}
