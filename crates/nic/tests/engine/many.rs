//! Many queue pairs that post at once: together they have no more under way than the buffer at the other end holds.

use scalefabric_nic::port::memory::WirePacket;
use scalefabric_transport::{Counter, Time};
use scalefabric_verbs::*;

use crate::node::*;

const QPS: usize = 40;
const EACH: usize = 16;
const LEN: usize = 4000;
const WINDOW: usize = 64 << 10;

/// What is longer than an ACK.
fn request_bytes(packets: &std::collections::VecDeque<WirePacket>) -> usize {
    packets.iter().map(|packet| packet.bytes.len()).filter(|length| *length > 64).sum()
}

/// Each QP posts 16 requests before anything moves. Gives the most bytes that were on the wire, and how many packets were sent again.
fn all_at_once(read_ones: bool, mut lose: impl FnMut(u32) -> bool) -> (usize, u64) {
    let mut w = World::with(2, 1, |config| {
        config.window_bytes = WINDOW as u64;
        config.transport.max_inflight_bytes = WINDOW as u32;
    });
    let total = QPS * EACH * LEN;
    let (near, far) = (w.nodes[0].mr(total), w.nodes[1].mr(total));
    let (from, to) = if read_ones { (&far, &near) } else { (&near, &far) };
    from.write(0, &pattern(3, total)).unwrap();
    w.wire.hold(true);
    let pairs: Vec<_> = (0..QPS)
        .map(|_| {
            let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
            w.connect_these(&qps, |_, attr, _| attr.timeout = 10);
            qps
        })
        .collect();
    for (index, [qp, _]) in pairs.iter().enumerate() {
        for request in 0..EACH {
            let at = (index * EACH + request) * LEN;
            let (remote_addr, rkey) = (far.addr() + at as u64, far.rkey());
            let op = if read_ones { SendOp::Read { remote_addr, rkey } } else { SendOp::Write { remote_addr, rkey } };
            send(qp, at as u64, op, &near, at, LEN as u32);
        }
    }
    let (mut done, mut most) = (0, 0);
    for round in 0..20_000 {
        for node in &w.nodes {
            // Until it has nothing to send: only then a port has all that may leave.
            while node.nic.turn(Time(w.now)).progressed {}
        }
        w.wire.in_flight(|packets| {
            most = most.max(request_bytes(packets));
            if lose(round) {
                packets.pop_front();
            }
        });
        w.wire.deliver(20);
        w.now += 10_000;
        let completions = w.nodes[0].poll();
        assert!(completions.iter().all(|completion| completion.status == WcStatus::Success), "{completions:?}");
        done += completions.len();
        if done == QPS * EACH {
            break;
        }
    }
    assert_eq!(done, QPS * EACH, "requests were forgotten");
    assert_eq!(read(to, 0, total), pattern(3, total));
    (most, w.nodes[0].nic.counters(1).counter(Counter::RetransmittedPackets))
}

/// A QP that has room sends a packet, whatever is left of it.
const OVERSHOOT: usize = 1024 + 128;

#[test]
fn what_many_queue_pairs_write_at_once_fits_the_window_of_the_destination() {
    let (most, again) = all_at_once(false, |_| false);
    assert!(most > WINDOW / 2 && most <= WINDOW + OVERSHOOT, "{most} bytes were on the wire");
    assert_eq!(again, 0);
}

#[test]
fn what_many_queue_pairs_read_at_once_fits_their_own_window() {
    // A request asks for a whole message, or half of the QP's window.
    let (most, again) = all_at_once(true, |_| false);
    assert!(most > WINDOW / 2 && most <= WINDOW + LEN + 4 * 128, "{most} bytes were on the wire");
    assert_eq!(again, 0);
}

#[test]
fn what_is_lost_gives_its_part_of_the_window_back() {
    // For a while: a loss that keeps step with the timer would take every retry.
    let (most, again) = all_at_once(false, |round| round < 150 && round % 3 == 0);
    assert!(most <= WINDOW + OVERSHOOT, "{most} bytes were on the wire");
    assert!(again > 0);
}

#[test]
fn a_queue_pair_that_goes_while_it_waits_or_has_bytes_under_way_gives_its_part_back() {
    let mut w = World::with(2, 1, |config| {
        config.window_bytes = WINDOW as u64;
        config.transport.max_inflight_bytes = WINDOW as u32;
    });
    let (src, dst) = (w.nodes[0].mr(WINDOW * 2), w.nodes[1].mr(WINDOW * 2));
    let write = SendOp::Write { remote_addr: dst.addr(), rkey: dst.rkey() };
    w.wire.hold(true);
    let [first, _peer] = w.connect(QpType::Rc);
    let [second, _peer2] = w.connect(QpType::Rc);
    let [third, _peer3] = w.connect(QpType::Rc);
    for qp in [&first, &second, &third] {
        send(qp, 1, write, &src, 0, WINDOW as u32 * 2);
        w.settle();
    }
    // The first has all there is; the second goes while it waits, then the first with all that it has.
    drop(second);
    drop(first);
    w.wire.in_flight(|packets| packets.clear());
    w.wire.hold(false);
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    drop(third);
}
