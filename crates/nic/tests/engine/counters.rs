//! What is counted, and under which names.

use scalefabric_transport::{Counter, DropReason};
use scalefabric_verbs::*;

use crate::node::*;

#[test]
fn packets_and_bytes_are_counted_at_both_ends() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(8192), w.nodes[1].mr(8192));
    send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 3000);
    w.settle();
    let (tx, rx) = (w.nodes[0].nic.counters(1), w.nodes[1].nic.counters(1));
    let bytes = (12 + 16 + 1024 + 4) + (12 + 1024 + 4) + (12 + 952 + 4);
    assert_eq!((tx.counter(Counter::SentPackets), tx.counter(Counter::SentBytes)), (3, bytes));
    assert_eq!((rx.counter(Counter::ReceivedPackets), rx.counter(Counter::ReceivedBytes)), (3, bytes));
    assert_eq!(rx.counter(Counter::WriteRequests), 1);
    assert_eq!((tx.all_drops(), rx.all_drops()), (0, 0));
    let listed = w.nodes[1].ctx.hw_counters(1).unwrap();
    assert!(listed.contains(&("rcvd_pkts".into(), 3)));
    assert_eq!(listed.len(), Counter::ALL.len() + DropReason::ALL.len());
    assert_eq!(w.nodes[1].ctx.hw_counters(2).unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn an_unexpected_ip_id_is_solved_for_or_refused() {
    for solve in [true, false] {
        let mut w = World::with(2, 1, |config| config.solve_ip_ids = solve);
        let [a, _b] = w.connect(QpType::Rc);
        let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
        w.wire.hold(true);
        send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 8);
        w.settle();
        // As if the receiver could not see the identification and guessed wrongly.
        w.wire.in_flight(|q| q[0].ip_id = 0x4711);
        w.wire.hold(false);
        w.settle();
        let rx = w.nodes[1].nic.counters(1);
        assert_eq!(rx.counter(Counter::SolvedIpIds), u64::from(solve));
        assert_eq!(rx.drops(DropReason::BadIcrc), u64::from(!solve));
        assert_eq!(w.nodes[0].poll().len(), usize::from(solve));
    }
}

#[test]
fn a_ce_mark_is_answered_with_a_cnp() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    w.wire.hold(true);
    send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 8);
    w.settle();
    w.wire.in_flight(|q| q[0].traffic_class |= 3);
    w.wire.hold(false);
    w.settle();
    let (tx, rx) = (w.nodes[0].nic.counters(1), w.nodes[1].nic.counters(1));
    assert_eq!((rx.counter(Counter::EcnMarked), rx.counter(Counter::SentCnps)), (1, 1));
    assert_eq!(tx.counter(Counter::HandledCnps), 1);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
}

#[test]
fn the_address_vector_shapes_the_ip_header() {
    let mut w = World::new(2);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| {
        attr.ah_attr.traffic_class = 0x6a;
        attr.ah_attr.hop_limit = 3;
        attr.ah_attr.flow_label = 0x1234;
    });
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    w.wire.hold(true);
    send(&qps[0], 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, 8);
    w.settle();
    let packet = w.wire.in_flight(|q| q[0].clone());
    assert_eq!((packet.traffic_class, packet.hop_limit), (0x6a, 3));
    assert_eq!((packet.src, packet.dst), (ip(1, 1), ip(2, 1)));
    assert!(packet.src_port >= 0xc000);
}
