//! End-to-end flow control (clause 9.7.7.2): a peer that counts its receives is not overrun.

use scalefabric_verbs::WcStatus::*;
use scalefabric_wire::packet::Syndrome;

use super::{Dialogue, WRITE};
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::{Fate, Link};
use scalefabric_verbs::QpType;

#[test]
fn without_credits_one_packet_at_a_time_finds_out() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WqeOp::Send, 8);
    d.sends();
    d.answers(0, Syndrome::Ack(0));
    d.post(2, WqeOp::Send, 4000);
    d.post(3, WqeOp::Send, 8);
    let probe = d.sends();
    assert_eq!(probe.len(), 1);
    assert!(probe[0].headers.bth.ack_req);
    assert_eq!(d.sends(), []);
    // Its message has its receive now, and all of it may go; the next one has not.
    d.answers(1, Syndrome::Ack(0));
    assert_eq!(d.sends_named(), [("SEND MIDDLE", 2), ("SEND MIDDLE", 3), ("SEND LAST", 4)]);
    d.answers(4, Syndrome::Ack(1));
    assert_eq!(d.sends_named(), [("SEND ONLY", 5)]);
    d.answers(5, Syndrome::Ack(0));
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn credits_limit_sends_but_not_writes() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.sends();
    d.answers(0, Syndrome::Ack(2));
    for wr_id in 2..=4 {
        d.post(wr_id, WqeOp::Send, 8);
    }
    assert_eq!(d.sends_named(), [("SEND ONLY", 1), ("SEND ONLY", 2)]);
    d.answers(2, Syndrome::Ack(0));
    assert_eq!(d.sends_named(), [("SEND ONLY", 3)]);
    d.answers(3, Syndrome::Ack(0));
    for wr_id in 5..=6 {
        d.post(wr_id, WRITE, 8);
    }
    assert_eq!(d.sends().len(), 2);
}

#[test]
fn credits_that_come_late_in_the_same_ack_again_are_taken() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WqeOp::Send, 8);
    d.sends();
    d.answers(0, Syndrome::Ack(0));
    d.answers(0, Syndrome::Ack(3));
    for wr_id in 2..=9 {
        d.post(wr_id, WqeOp::Send, 8);
    }
    assert_eq!(d.sends().len(), 3);
}

#[test]
fn code_31_limits_nothing() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WqeOp::Send, 8);
    d.sends();
    d.answers(0, Syndrome::Ack(0));
    d.answers(0, Syndrome::Ack(31));
    for wr_id in 2..=9 {
        d.post(wr_id, WqeOp::Send, 8);
    }
    assert_eq!(d.sends().len(), 8);
}

#[test]
fn a_slow_receiver_is_never_overrun_once_it_counts() {
    let mut link = Link::new((QpType::Rc, QpType::Rc), 1 << 16, Config::default(), |_| ());
    link.b.host.post_recv(0, &[super::piece(0, 64)]);
    for wr_id in 0..50 {
        link.a.host.post_send(wr_id, WqeOp::Send, super::SIGNALED, &[super::piece(0, 64)]);
        if wr_id == 0 {
            link.run();
        }
    }
    // Each time the receiver has one more.
    for wr_id in 1..50 {
        link.b.host.post_recv(wr_id, &[super::piece(0, 64)]);
        let end = link.now().after(2_000_000);
        link.run_until(end, &mut |_, _| Fate::Arrives);
    }
    link.run();
    assert_eq!(link.a.host.sent.len(), 50);
    assert!(link.a.host.sent.iter().all(|w| w.status == Success));
}
