//! What the wire does to packets, and that nobody above notices.

use scalefabric_verbs::*;

use crate::node::*;

fn run_with(mangle: impl Fn(u32, &mut std::collections::VecDeque<scalefabric_nic::port::memory::WirePacket>)) {
    let mut w = World::new(2);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| attr.timeout = 10);
    const N: u64 = 12;
    const LEN: usize = 3500;
    let (src, dst) = (w.nodes[0].mr(LEN * N as usize), w.nodes[1].mr(LEN * N as usize));
    src.write(0, &pattern(9, LEN * N as usize)).unwrap();
    let counter = w.nodes[1].mr(64);
    let result = w.nodes[0].mr(64);
    w.wire.hold(true);
    for i in 0..N {
        let at = LEN * i as usize;
        recv(&qps[1], i, &dst, at, LEN as u32);
        send(&qps[0], 2 * i, SendOp::Send, &src, at, LEN as u32);
        let add = SendOp::FetchAdd { remote_addr: counter.addr(), rkey: counter.rkey(), add: 1 };
        send(&qps[0], 2 * i + 1, add, &result, 0, 8);
    }
    let mut done = Vec::new();
    for round in 0..5000 {
        for node in &w.nodes {
            node.nic.turn(scalefabric_transport::Time(w.now));
        }
        w.wire.in_flight(|q| mangle(round, q));
        w.wire.deliver(3);
        w.now += 100_000;
        done.extend(w.nodes[0].poll());
        if done.len() as u64 == 2 * N {
            break;
        }
    }
    let want: Vec<_> = (0..2 * N).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(outcome(&done), want);
    let want: Vec<_> = (0..N).map(|i| (i, WcStatus::Success)).collect();
    assert_eq!(outcome(&w.nodes[1].poll()), want);
    assert_eq!(read(&dst, 0, LEN * N as usize), pattern(9, LEN * N as usize));
    assert_eq!(counter.load_u64(0).unwrap(), N, "each atomic exactly once");
}

#[test]
fn every_fifth_packet_is_lost() {
    run_with(|round, q| {
        if round % 5 == 0 {
            q.pop_front();
        }
    });
}

#[test]
fn packets_overtake_each_other() {
    run_with(|round, q| {
        if round % 3 == 0 && q.len() > 1 {
            q.swap(0, 1);
        }
    });
}

#[test]
fn packets_come_twice() {
    run_with(|_, q| {
        if let Some(packet) = q.front().cloned() {
            q.push_front(packet);
        }
    });
}

#[test]
fn packets_are_damaged() {
    run_with(|round, q| {
        if round % 4 == 0
            && let Some(packet) = q.front_mut()
        {
            let at = round as usize % packet.bytes.len();
            packet.bytes[at] ^= 0x10;
        }
    });
}

#[test]
fn a_port_without_room_delays_and_loses_nothing() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    const LEN: usize = 600_000;
    let (src, dst) = (w.nodes[0].mr(LEN), w.nodes[1].mr(LEN));
    src.write(0, &pattern(4, LEN)).unwrap();
    w.wire.block(0, true);
    send(&a, 1, SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() }, &src, 0, LEN as u32);
    for _ in 0..10 {
        let turn = w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
        assert!(!turn.ready, "turning in circles makes no room");
        assert!(turn.next_deadline.is_some(), "somebody must look again");
    }
    w.wire.block(0, false);
    w.advance(1_000_000);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(read(&dst, 0, LEN), pattern(4, LEN));
    let again = w.nodes[0].nic.counters(1).counter(scalefabric_transport::Counter::RetransmittedPackets);
    assert_eq!(again, 0);
}

#[test]
fn an_answer_that_waits_behind_others_when_the_timer_is_due_came_in_time() {
    let mut w = World::with(2, 1, |config| config.budget.receive = 1);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| (attr.timeout, attr.retry_cnt) = (10, 0));
    let memory = [w.nodes[0].mr(64), w.nodes[1].mr(64)];
    let write = |from: usize, wr_id| {
        let to = &memory[1 - from];
        let op = SendOp::Write { remote_addr: to.addr(), rkey: to.rkey() };
        send(&qps[from], wr_id, op, &memory[from], 0, 8);
    };
    write(0, 1);
    w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
    // Eight requests of the peer leave before its answer.
    (0..8).for_each(|wr_id| write(1, wr_id));
    w.nodes[1].nic.turn(scalefabric_transport::Time(w.now));
    // Not late, but the turn takes one packet only. No retry is left.
    w.now += 4096 << 10;
    w.nodes[0].nic.turn(scalefabric_transport::Time(w.now));
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    w.settle();
    assert_eq!(outcome(&w.nodes[1].poll()), (0..8).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
}
