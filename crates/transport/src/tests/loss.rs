//! What is lost comes again, and what comes twice changes nothing (clauses 9.7.5 and 9.7.6).

use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::{QpState, SendFlags};
use scalefabric_wire::opcode::Position;
use scalefabric_wire::packet::{NakCode, Syndrome};

use super::{Dialogue, FADD, READ, WRITE, piece};
use crate::counter::{Counter, DropReason};
use crate::host::WqeOp;
use crate::queue_pair::Next;

#[test]
fn one_ack_retires_everything_before_it() {
    let mut d = Dialogue::rc(|_| ());
    for wr_id in 1..=5 {
        d.post(wr_id, WRITE, 2000);
    }
    assert_eq!(d.sends().len(), 10);
    d.ack(6);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
    d.ack(9);
    assert_eq!(d.completions(), [(4, Success), (5, Success)]);
    assert_eq!(d.side.qp.deadline(), None);
}

#[test]
fn a_sequence_nak_goes_back_to_its_psn_and_acknowledges_what_lies_before() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 1000);
    d.post(2, WRITE, 4000);
    d.sends();
    d.nak(2, NakCode::PsnSequenceError);
    assert_eq!(d.completions(), [(1, Success)]);
    assert_eq!(d.sends_named(), [("RDMA WRITE MIDDLE", 2), ("RDMA WRITE MIDDLE", 3), ("RDMA WRITE LAST", 4)]);
    assert_eq!(d.side.host.counter(Counter::ReceivedSequenceNaks), 1);
    assert_eq!(d.side.host.counter(Counter::RetransmittedPackets), 3);
    d.ack(4);
    assert_eq!(d.completions(), [(2, Success)]);
}

#[test]
fn the_same_sequence_nak_twice_takes_one_retry() {
    let mut d = Dialogue::rc(|attr| attr.retry_cnt = 1);
    d.post(1, WRITE, 2000);
    d.sends();
    d.nak(0, NakCode::PsnSequenceError);
    d.nak(0, NakCode::PsnSequenceError);
    assert_eq!(d.side.host.dropped(DropReason::StaleResponse), 1);
    assert_eq!(d.sends().len(), 2);
    // Nor does one that comes when all has left again: nothing is sent a third time.
    d.nak(0, NakCode::PsnSequenceError);
    assert_eq!(d.side.host.dropped(DropReason::StaleResponse), 2);
    assert_eq!((d.sends().len(), d.side.qp.state()), (0, QpState::Rts));
    d.ack(1);
    assert_eq!(d.completions(), [(1, Success)]);
}

#[test]
fn a_sequence_nak_after_the_timer_is_a_new_loss() {
    let mut d = Dialogue::rc(|attr| attr.retry_cnt = 2);
    d.post(1, WRITE, 2000);
    d.sends();
    d.nak(0, NakCode::PsnSequenceError);
    assert_eq!(d.sends().len(), 2);
    d.passes(4096 << 14);
    assert_eq!(d.sends().len(), 2);
    d.nak(0, NakCode::PsnSequenceError);
    assert_eq!(d.completions(), [(1, RetryExcErr)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut d = Dialogue::rc(|attr| attr.retry_cnt = 1);
    d.post(1, WRITE, 10_000);
    d.sends();
    for psn in 1..9 {
        d.nak(psn, NakCode::PsnSequenceError);
        assert_eq!(d.sends().len(), 10 - psn as usize);
    }
    d.ack(9);
    assert_eq!(d.completions(), [(1, Success)]);
}

#[test]
fn the_timer_sends_all_that_is_not_acknowledged_and_starts_anew_with_each_ack() {
    let mut d = Dialogue::rc(|attr| attr.timeout = 10);
    let timeout = 4096 << 10;
    d.post(1, WRITE, 3000);
    d.sends();
    d.passes(timeout - 10);
    d.ack(0);
    d.passes(10);
    assert_eq!(d.sends(), []);
    assert_eq!(d.side.qp.deadline().unwrap().since(d.now()), timeout - 10);
    d.passes(timeout - 10);
    assert_eq!(d.sends_named(), [("RDMA WRITE MIDDLE", 1), ("RDMA WRITE LAST", 2)]);
}

#[test]
fn timeout_code_zero_waits_for_ever() {
    let mut d = Dialogue::rc(|attr| attr.timeout = 0);
    d.post(1, WRITE, 8);
    assert_eq!(d.sends().len(), 1);
    assert_eq!(d.side.qp.deadline(), None);
}

#[test]
fn an_ack_of_the_first_sending_ends_the_second_at_once() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 4096);
    d.sends();
    d.passes(4096 << 14);
    // Two of four have left again when the ACK of all comes.
    d.side.transmit(2);
    d.ack(3);
    assert_eq!(d.completions(), [(1, Success)]);
    d.side.host.wire.clear();
    assert_eq!(d.sends(), []);
    assert_eq!(d.side.qp.deadline(), None);
    // And the next message has the next PSN.
    d.post(2, WRITE, 8);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 4)]);
}

#[test]
fn old_and_unasked_responses_are_dropped_with_their_reason() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.post(2, WRITE, 8);
    d.sends();
    d.ack(0);
    d.ack(0xff_ffff);
    assert_eq!(d.side.host.dropped(DropReason::StaleResponse), 1);
    d.nak(0, NakCode::RemoteAccessError);
    assert_eq!(d.side.host.dropped(DropReason::StaleResponse), 2);
    d.ack(2);
    d.read_response(Position::Only, 3, &[]);
    assert_eq!(d.side.host.dropped(DropReason::UnexpectedResponse), 2);
    assert_eq!(d.completions(), [(1, Success)]);
    assert_eq!(d.side.qp.state(), QpState::Rts);
}

#[test]
fn an_ack_beyond_a_read_implies_that_its_response_was_lost() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.post(2, READ, 3000);
    d.post(3, WRITE, 8);
    d.post(4, WRITE, 8);
    assert_eq!(
        d.sends_named(),
        [("RDMA WRITE ONLY", 0), ("RDMA READ Request", 1), ("RDMA WRITE ONLY", 4), ("RDMA WRITE ONLY", 5)]
    );
    d.ack(4);
    assert_eq!(d.completions(), [(1, Success)]);
    assert_eq!(d.side.host.counter(Counter::ImpliedNaks), 1);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 1), ("RDMA WRITE ONLY", 4), ("RDMA WRITE ONLY", 5)]);
    // The next ACK of the first sending is no news.
    d.ack(5);
    assert_eq!(d.side.host.counter(Counter::ImpliedNaks), 1);
    assert_eq!(d.sends(), []);
    for (position, psn, length) in [(Position::First, 1, 1024), (Position::Middle, 2, 1024), (Position::Last, 3, 952)] {
        d.read_response(position, psn, &alloc::vec![psn as u8; length]);
    }
    d.ack(5);
    assert_eq!(d.completions(), [(2, Success), (3, Success), (4, Success)]);
}

#[test]
fn a_lost_atomic_response_asks_again_with_the_same_psn() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, FADD, 8);
    d.post(2, FADD, 8);
    d.sends();
    d.atomic_ack(1, 5);
    assert_eq!(d.side.host.counter(Counter::ImpliedNaks), 1);
    assert_eq!(d.completions(), []);
    assert_eq!(d.sends_named(), [("FetchAdd", 0), ("FetchAdd", 1)]);
    d.atomic_ack(0, 4);
    d.atomic_ack(1, 5);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
    assert_eq!(d.side.host.memory[0x1000], 5);
}

#[test]
fn an_rnr_nak_waits_as_long_as_its_code_says_and_not_a_moment_less() {
    let mut d = Dialogue::rc(|attr| attr.rnr_retry = 7);
    d.post(1, WqeOp::Send, 8);
    d.post(2, WqeOp::Send, 8);
    d.sends();
    let wait = scalefabric_wire::aeth::rnr_timer_ns(14);
    for _ in 0..20 {
        d.answers(0, Syndrome::RnrNak(14));
        assert_eq!(d.sends(), []);
        assert_eq!(d.side.qp.deadline().unwrap().since(d.now()), wait);
        d.passes(wait - 1);
        assert!(matches!(d.next(), Next::At(_)));
        assert_eq!(d.sends(), []);
        d.passes(1);
        assert_eq!(d.sends().len(), 2);
    }
    assert_eq!(d.side.host.counter(Counter::ReceivedRnrNaks), 20);
    d.ack(1);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
}

#[test]
fn an_rnr_nak_twice_takes_one_retry_and_progress_gives_it_back() {
    let mut d = Dialogue::rc(|attr| attr.rnr_retry = 1);
    d.post(1, WqeOp::Send, 8);
    d.post(2, WqeOp::Send, 8);
    d.sends();
    d.answers(0, Syndrome::RnrNak(1));
    d.answers(0, Syndrome::RnrNak(1));
    d.passes(10_000);
    d.sends();
    d.answers(1, Syndrome::RnrNak(1));
    assert_eq!(d.completions(), [(1, Success)]);
    d.passes(10_000);
    d.sends();
    d.ack(1);
    assert_eq!(d.completions(), [(2, Success)]);
}

#[test]
fn a_wire_without_room_loses_nothing_and_repeats_nothing() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 3000);
    d.side.host.room = 1;
    assert_eq!(d.side.transmit(10), Next::Blocked);
    assert_eq!(d.side.transmit(10), Next::Blocked);
    d.side.host.room = 10;
    assert_eq!(d.side.transmit(10), Next::Idle);
    let psns: alloc::vec::Vec<_> = d.side.host.wire.iter().map(super::relative).collect();
    assert_eq!(psns, [0, 1, 2]);
    assert_eq!(d.side.host.counter(Counter::RetransmittedPackets), 0);
}

#[test]
fn an_executed_local_operation_is_not_executed_again() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.regions.push(crate::testing::Region { key: 0x77, ..d.side.host.regions[0] });
    d.post(1, WRITE, 8);
    d.side.host.post_send(2, WqeOp::LocalInv { rkey: scalefabric_verbs::RKey(0x77) }, SendFlags::SIGNALED, &[]);
    d.side.host.post_send(3, WRITE, SendFlags::SIGNALED, &[piece(0, 8)]);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 0), ("RDMA WRITE ONLY", 1)]);
    d.passes(4096 << 14);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 0), ("RDMA WRITE ONLY", 1)]);
    assert_eq!(d.side.host.invalidated.len(), 1);
    d.ack(0);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
    d.ack(1);
    assert_eq!(d.completions(), [(3, Success)]);
}

#[test]
fn a_timer_that_is_seen_much_too_late_begins_anew_once_and_takes_no_retry() {
    let mut d = Dialogue::rc(|attr| (attr.timeout, attr.retry_cnt) = (10, 1));
    let timeout = 4096 << 10;
    d.post(1, WRITE, 8);
    d.sends();
    // We were away: the packet may have left just now.
    d.passes(2 * timeout);
    assert_eq!(d.sends(), []);
    assert_eq!(d.side.qp.deadline().unwrap().since(d.now()), timeout);
    assert_eq!(d.side.host.counter(Counter::AckTimeouts), 0);
    // The second time it counts, however late.
    d.passes(2 * timeout);
    assert_eq!(d.sends().len(), 1);
    assert_eq!(d.side.host.counter(Counter::AckTimeouts), 1);
    // What was sent again has its own time; what is only a little late counts at once.
    d.passes(2 * timeout);
    assert_eq!(d.side.qp.state(), QpState::Rts);
    d.passes(timeout + timeout / 4);
    assert_eq!(d.completions(), [(1, RetryExcErr)]);
}
