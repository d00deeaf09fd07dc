//! Faults on a wire in memory.

use std::net::Ipv4Addr;

use scalefabric_wire::icrc::Flow;

use super::*;
use crate::port::memory::{MemoryPort, MemoryWire};

const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SIZE: usize = 40;

/// A sender, and a receiver with these faults.
fn receiving(spec: &str) -> (MemoryPort, FaultPort<MemoryPort>) {
    let wire = MemoryWire::new();
    let (a, b) = (wire.port(&[A.into()]), wire.port(&[B.into()]));
    (a, FaultPort::new(b, &spec.parse().unwrap(), None))
}

/// A sender with these faults, and a receiver.
fn sending(spec: &str) -> (FaultPort<MemoryPort>, MemoryPort) {
    let wire = MemoryWire::new();
    let (a, b) = (wire.port(&[A.into()]), wire.port(&[B.into()]));
    (FaultPort::new(a, &spec.parse().unwrap(), None), b)
}

/// `count` datagrams numbered from `first`, each with the ICRC of its place.
fn bytes(first: u16, count: u16) -> Vec<u8> {
    let mut all = Vec::new();
    for i in 0..count {
        let mut datagram = [0x11u8; SIZE];
        datagram[5..8].copy_from_slice(&[1, 0, (i % 2) as u8]);
        datagram[20..22].copy_from_slice(&(first + i).to_be_bytes());
        let icrc = Flow::v4(A, B, 0xc000).icrc(i, &datagram[..SIZE - 4]);
        datagram[SIZE - 4..].copy_from_slice(&icrc.to_le_bytes());
        all.extend_from_slice(&datagram);
    }
    all
}

fn send(port: &mut impl Port, first: u16, count: u16) {
    let bytes = bytes(first, count);
    let train = Train {
        src: A.into(),
        src_port: 0xc000,
        dst: B.into(),
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        segment: SIZE,
        bytes: &bytes,
    };
    assert_eq!(port.send(&train), Sent::Done);
    port.flush();
}

#[derive(Debug, PartialEq)]
struct Got {
    number: u16,
    icrc_ok: bool,
    traffic_class: u8,
}

fn take(port: &mut impl Port) -> Vec<Got> {
    let mut got = Vec::new();
    port.receive(1000, &mut |d| {
        let icrc = Flow::v4(A, B, 0xc000).icrc(d.ip_id, &d.bytes[..SIZE - 4]);
        got.push(Got {
            number: u16::from_be_bytes([d.bytes[20], d.bytes[21]]),
            icrc_ok: d.bytes[SIZE - 4..] == icrc.to_le_bytes(),
            traffic_class: d.traffic_class,
        });
    });
    got
}

fn numbers(port: &mut impl Port) -> Vec<u16> {
    take(port).into_iter().map(|g| g.number).collect()
}

fn drops(port: &mut impl Port) -> u64 {
    let mut n = 0;
    port.take_drops(&mut |reason, count| {
        assert_eq!(reason, DropReason::Fault);
        n += count;
    });
    n
}

#[test]
fn the_numbered_packet_is_dropped_and_counted() {
    let (mut a, mut b) = receiving("drop packet=3");
    send(&mut a, 1, 5);
    assert_eq!(numbers(&mut b), [1, 2, 4, 5]);
    assert_eq!((drops(&mut b), drops(&mut b)), (1, 0));
    send(&mut a, 6, 5);
    assert_eq!(numbers(&mut b), [6, 7, 8, 9, 10], "it strikes once");
}

#[test]
fn every_nth_is_dropped_across_batches() {
    let (mut a, mut b) = receiving("drop every=4");
    send(&mut a, 1, 6);
    send(&mut a, 7, 6);
    assert_eq!(numbers(&mut b), [1, 2, 3, 5, 6, 7, 9, 10, 11]);
}

#[test]
fn a_duplicate_follows_its_twin() {
    let (mut a, mut b) = receiving("dup packet=2");
    send(&mut a, 1, 3);
    assert_eq!(numbers(&mut b), [1, 2, 2, 3]);
}

#[test]
fn a_reordered_packet_comes_behind_as_many_as_told() {
    let (mut a, mut b) = receiving("reorder packet=1 by=2");
    send(&mut a, 1, 5);
    assert_eq!(numbers(&mut b), [2, 3, 1, 4, 5]);
}

#[test]
fn a_reordered_packet_that_nobody_overtakes_comes_in_the_end() {
    let (mut a, mut b) = receiving("reorder packet=1 for=5us");
    b.set_time(1000);
    send(&mut a, 1, 1);
    assert!(numbers(&mut b).is_empty());
    assert_eq!(b.deadline(), Some(6000));
    b.set_time(5999);
    assert!(numbers(&mut b).is_empty());
    b.set_time(6000);
    assert_eq!(numbers(&mut b), [1]);
    assert_eq!(b.deadline(), None);
}

#[test]
fn a_delayed_packet_waits_for_its_time_and_is_overtaken() {
    let (mut a, mut b) = receiving("delay=1ms packet=1");
    b.set_time(0);
    send(&mut a, 1, 3);
    assert_eq!(numbers(&mut b), [2, 3]);
    assert_eq!(b.deadline(), Some(1_000_000));
    b.set_time(1_000_000);
    assert_eq!(numbers(&mut b), [1]);
}

#[test]
fn when_all_are_delayed_their_order_stays() {
    let (mut a, mut b) = receiving("delay=1ms");
    for (t, first) in [(0, 1), (10, 4)] {
        b.set_time(t);
        send(&mut a, first, 3);
        assert!(numbers(&mut b).is_empty());
    }
    b.set_time(1_000_009);
    assert_eq!(numbers(&mut b), [1, 2, 3]);
    b.set_time(1_000_010);
    assert_eq!(numbers(&mut b), [4, 5, 6]);
}

#[test]
fn a_corrupted_packet_has_a_wrong_icrc_whichever_bit_is_hit() {
    for seed in 0..200 {
        let (mut a, mut b) = receiving(&format!("corrupt,seed={seed}"));
        send(&mut a, 1, 8);
        let got = take(&mut b);
        assert_eq!(got.len(), 8);
        assert!(got.iter().all(|g| !g.icrc_ok), "seed {seed}: {got:?}");
    }
}

#[test]
fn a_mark_changes_the_ecn_bits_only() {
    let (mut a, mut b) = receiving("ce packet=2");
    send(&mut a, 1, 2);
    let got = take(&mut b);
    assert_eq!((got[0].traffic_class, got[1].traffic_class), (2, 3));
    assert!(got[1].icrc_ok);
}

#[test]
fn a_rule_for_a_qp_counts_and_strikes_only_that_qp() {
    let (mut a, mut b) = receiving("drop packet=2 qp=0x010001");
    send(&mut a, 1, 6);
    assert_eq!(numbers(&mut b), [1, 2, 3, 5, 6], "2 and 4 go to the QP; 4 is its second");
}

#[test]
fn chances_come_true_and_repeat_with_the_seed() {
    let run = |seed: u64| {
        let (mut a, mut b) = receiving(&format!("drop=10%,dup=5%,seed={seed}"));
        for round in 0..100 {
            send(&mut a, round * 64, 64);
        }
        let mut all = Vec::new();
        loop {
            let got = numbers(&mut b);
            if got.is_empty() {
                break;
            }
            all.extend(got);
        }
        let counters = b.counters().all();
        (all, counters[0].1, counters[1].1)
    };
    let (first, dropped, duplicated) = run(1);
    assert_eq!(first.len() as u64, 6400 - dropped + duplicated);
    // 6,400 draws of 10 %: 640, standard deviation 24; of 5 % of what is left: 288, 16. Five deviations either way.
    assert!((520..760).contains(&dropped) && (208..368).contains(&duplicated), "{dropped} {duplicated}");
    assert_eq!(run(1).0, first);
    assert_ne!(run(2).0, first);
}

#[test]
fn what_leaves_a_broken_train_has_the_icrc_of_its_new_place() {
    let (mut a, mut b) = sending("drop packet=3 dir=tx");
    send(&mut a, 1, 6);
    let got = take(&mut b);
    assert_eq!(got.iter().map(|g| g.number).collect::<Vec<_>>(), [1, 2, 4, 5, 6]);
    assert!(got.iter().all(|g| g.icrc_ok), "{got:?}");
    assert_eq!(drops(&mut a), 1);
}

#[test]
fn what_is_sent_can_be_corrupted_doubled_delayed_and_reordered() {
    let (mut a, mut b) =
        sending("corrupt packet=1 dir=tx,dup packet=2 dir=tx,reorder packet=3 dir=tx,delay=9ns packet=5 dir=tx");
    a.set_time(0);
    send(&mut a, 1, 5);
    let got = take(&mut b);
    assert_eq!(got.iter().map(|g| g.number).skip(1).collect::<Vec<_>>(), [2, 2, 4, 3]);
    assert!(!got[0].icrc_ok && got[1..].iter().all(|g| g.icrc_ok), "{got:?}");
    assert_eq!(a.deadline(), Some(9));
    a.set_time(9);
    a.flush();
    assert_eq!(numbers(&mut b), [5]);
}

#[test]
fn a_blocked_wire_loses_nothing_that_was_judged() {
    let wire = MemoryWire::new();
    let (a, mut b) = (wire.port(&[A.into()]), wire.port(&[B.into()]));
    let index = a.index();
    let mut a = FaultPort::new(a, &"drop packet=3 dir=tx".parse().unwrap(), None);
    wire.block(index, true);
    send(&mut a, 1, 5);
    assert!(numbers(&mut b).is_empty());
    assert!(a.deadline().is_some());
    wire.block(index, false);
    a.flush();
    let mut got = take(&mut b);
    got.sort_by_key(|g| g.number);
    assert_eq!(got.iter().map(|g| g.number).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert!(got.iter().all(|g| g.icrc_ok));
}
