//! Captures that are read again, by our own reader and by tshark.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Command;

use scalefabric_wire::frame::Frame;
use scalefabric_wire::ids::{PKey, Psn, Qpn};
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};
use scalefabric_wire::packet::Headers;
use scalefabric_wire::pcapng::Reader;

use super::*;
use crate::port::faults::FaultPort;
use crate::port::memory::MemoryWire;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("scalefabric-{name}-{}.pcapng", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A packet with the ICRC for its place in a train.
fn packet(src: IpAddr, dst: IpAddr, port: u16, place: u16) -> Vec<u8> {
    let opcode = Opcode::find(Service::Rc, Operation::Send, Position::Only).unwrap();
    let headers = Headers::new(opcode, PKey::DEFAULT, Qpn::new(0x1_0011), Psn::new(u32::from(place) + 7));
    let mut bytes = vec![0; 12];
    scalefabric_wire::bth::Bth::emit(&headers.bth, bytes.first_chunk_mut().unwrap());
    bytes.extend((0..64).map(|i| i as u8 ^ place as u8));
    let flow = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Flow::v4(src, dst, port),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Flow::v6(src, dst, port),
        _ => unreachable!(),
    };
    let icrc = flow.icrc(place, &bytes);
    bytes.extend_from_slice(&icrc.to_le_bytes());
    bytes
}

fn train<'a>(src: IpAddr, dst: IpAddr, bytes: &'a [u8], segment: usize) -> Train<'a> {
    Train { src, src_port: 0xc123, dst, traffic_class: 106, hop_limit: 61, flow_label: 5, segment, bytes }
}

/// Sends trains over IPv4 and IPv6 through a captured port to another; returns the file.
fn capture(path: &Path, faults: Option<&str>) {
    let (v4, v6): ([IpAddr; 2], [IpAddr; 2]) = (
        [Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into()],
        [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into()],
    );
    let wire = MemoryWire::new();
    let capture = Capture::create(path, 1_700_000_000_000_000_000).unwrap();
    let mut a = CapturePort::new(wire.port(&[v4[0], v6[0]]), capture.tape("sf0/1"));
    let b = wire.port(&[v4[1], v6[1]]);
    let mut b: Box<dyn Port> = match faults {
        None => Box::new(CapturePort::new(b, capture.tape("sf1/1"))),
        Some(spec) => Box::new(FaultPort::new(b, &spec.parse().unwrap(), Some(capture.tape("sf1/1")))),
    };
    a.set_time(5);
    b.set_time(6);
    for [src, dst] in [v4, v6] {
        let bytes: Vec<u8> = (0..3).flat_map(|place| packet(src, dst, 0xc123, place)).collect();
        a.send(&train(src, dst, &bytes, bytes.len() / 3));
    }
    b.receive(100, &mut |_| {});
    capture.finish().unwrap();
}

#[test]
fn what_was_captured_is_read_again_with_right_icrcs() {
    let file = Scratch::new("capture");
    capture(&file.0, None);
    let bytes = std::fs::read(&file.0).unwrap();
    let mut reader = Reader::new(&bytes).unwrap();
    let mut seen = 0;
    while let Some(record) = reader.next() {
        let record = record.unwrap();
        let frame = Frame::parse(record.link, record.data).unwrap();
        assert!(frame.icrc_ok(), "packet {seen}");
        assert_eq!((frame.ip.traffic_class(), frame.ip.hop_limit()), (106, 61));
        assert_eq!(record.time_ns, 1_700_000_000_000_000_000 + if seen < 6 { 5 } else { 6 });
        seen += 1;
    }
    assert_eq!(seen, 12, "six sent, six received");
}

#[test]
fn faults_are_told_in_the_capture() {
    let file = Scratch::new("faults");
    capture(&file.0, Some("drop packet=2,corrupt packet=3"));
    let bytes = std::fs::read(&file.0).unwrap();
    let mut reader = Reader::new(&bytes).unwrap();
    let mut comments = Vec::new();
    while let Some(record) = reader.next() {
        comments.extend(record.unwrap().comment.map(str::to_owned));
    }
    // Rules see what the rules before them let through: the third one to the second rule is the fourth of all.
    assert_eq!(comments.len(), 2, "{comments:?}");
    assert_eq!(comments[0], "fault: dropped");
    assert!(comments[1].starts_with("fault: corrupted (bit "), "{comments:?}");
}

#[test]
fn what_no_packet_shows_stands_in_the_next_ones_comment() {
    let file = Scratch::new("notes");
    let capture = Capture::create(&file.0, 0).unwrap();
    let mut tape = capture.tape("sim/1");
    let address = std::net::Ipv4Addr::new(10, 0, 0, 1).into();
    let datagram = Datagram {
        src: address,
        src_port: 0xc000,
        dst: address,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        ip_id: 0,
        bytes: &[0; 20],
    };
    capture.note("fault: port 1 down");
    capture.note("fault: port 1 up again");
    tape.record(1, Way::Out, &datagram, "fault: delayed");
    tape.record(2, Way::Out, &datagram, "");
    capture.finish().unwrap();
    let bytes = std::fs::read(&file.0).unwrap();
    let mut reader = Reader::new(&bytes).unwrap();
    let comments: Vec<_> =
        std::iter::from_fn(|| reader.next()).map(|record| record.unwrap().comment.map(str::to_owned)).collect();
    let first = "fault: port 1 down; fault: port 1 up again; fault: delayed".to_owned();
    assert_eq!(comments, [Some(first), None]);
}

#[test]
fn tshark_agrees_about_headers_and_icrcs() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: tshark is not installed");
        return;
    }
    let file = Scratch::new("tshark");
    capture(&file.0, None);
    let fields =
        ["infiniband.bth.psn", "infiniband.invariant.crc", "udp.checksum.status", "ip.checksum.status", "ip.id"];
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(&file.0).args(["-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    command.args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines.len(), 12, "{text}{}", String::from_utf8_lossy(&output.stderr));
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line[0], (i % 3 + 7).to_string(), "PSN of packet {i}: {text}");
        // Status 1 is good, 3 is "not there" (IPv4 sends none).
        let expected = if i % 6 < 3 { ("3", "1") } else { ("1", "") };
        assert_eq!((line[2], line[3]), expected, "checksums of packet {i}: {text}");
    }
    // tshark prints the ICRC as it stands in the packet; that it is the right one it says only in its expert notes.
    let notes = Command::new("tshark").args(["-n", "-r"]).arg(&file.0).args(["-Y", "_ws.malformed"]).output().unwrap();
    assert_eq!(String::from_utf8(notes.stdout).unwrap(), "");
}

#[test]
fn a_file_that_another_captures_to_is_left_alone() {
    let scratch = Scratch::new("twice");
    let first = Capture::create(&scratch.0, 0).unwrap();
    first.finish().unwrap();
    let whole = std::fs::read(&scratch.0).unwrap();
    let second = Capture::create(&scratch.0, 0).unwrap();
    second.finish().unwrap();
    assert_eq!(std::fs::read(&scratch.0).unwrap(), whole);
    let own = Scratch(format!("{}.{}", scratch.0.display(), std::process::id()).into());
    assert_eq!(std::fs::read(&own.0).unwrap(), whole);
    drop((first, second));
    // Nobody writes it any more: it is overwritten.
    std::fs::write(&scratch.0, vec![7; 10_000]).unwrap();
    Capture::create(&scratch.0, 0).unwrap().finish().unwrap();
    assert_eq!(std::fs::read(&scratch.0).unwrap(), whole);
}
