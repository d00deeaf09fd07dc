//! Requests that the host executes itself: they take no packet and no PSN, come in order with those that do, and complete as
//! those do.

use alloc::vec::Vec;

use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::{QpState, QpType, SendFlags};
use scalefabric_wire::packet::{NakCode, Syndrome};

use super::{Dialogue, FADD, READ, START, WRITE};
use crate::host::{Direct, WqeOp};
use crate::queue_pair::Config;

fn sq_psn(d: &Dialogue) -> u32 {
    d.side.qp.query().sq_psn.sub(START).get()
}

#[test]
fn what_the_host_executes_takes_no_packet_and_the_next_packet_has_the_psn_it_would_have_had() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.extend([Direct::Done, Direct::Done, Direct::Done]);
    d.post(1, WRITE, 3000);
    d.post(2, FADD, 8);
    d.post(3, READ, 1024);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(sq_psn(&d), 3 + 1 + 1, "what query says is what packets would have taken");
    d.post(4, WqeOp::Send, 8);
    assert_eq!(d.sends_named(), [("SEND ONLY", 0)]);
    d.ack(0);
    assert_eq!(d.completions(), [(4, Success)]);
    assert_eq!(sq_psn(&d), 6);
}

#[test]
fn behind_a_packet_that_is_not_acknowledged_nothing_is_executed_by_the_host() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.extend([Direct::Done, Direct::Done]);
    d.post(1, WqeOp::Send, 8);
    d.post(2, WRITE, 8);
    assert_eq!(d.sends_named(), [("SEND ONLY", 0), ("RDMA WRITE ONLY", 1)]);
    assert_eq!(d.side.host.asked, []);
    d.ack(0);
    d.post(3, WRITE, 8);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 2)], "one before it is still under way");
    d.ack(2);
    d.post(4, WRITE, 8);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success), (4, Success)]);
    assert_eq!(d.side.host.asked, [(4, 0)]);
}

#[test]
fn after_going_back_the_first_that_was_never_begun_waits_for_the_wire() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    assert_eq!(d.sends().len(), 1);
    d.side.host.direct.push_back(Direct::Done);
    d.post(2, WRITE, 8);
    d.nak(0, NakCode::PsnSequenceError);
    let again = d.sends_named();
    assert_eq!(again, [("RDMA WRITE ONLY", 0), ("RDMA WRITE ONLY", 1)]);
    assert_eq!(d.side.host.asked, []);
}

#[test]
fn a_long_one_is_done_in_parts_and_others_have_their_turn_in_between() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.extend([Direct::Part(4000), Direct::Part(4000), Direct::Done]);
    d.post(1, WRITE, 10_000);
    d.side.transmit(100);
    assert_eq!(d.side.host.asked, [(1, 0), (1, 4000)]);
    assert_eq!(d.completions(), []);
    d.side.transmit(100);
    assert_eq!(d.side.host.asked, [(1, 0), (1, 4000), (1, 8000)]);
    assert_eq!(d.completions(), [(1, Success)]);
}

#[test]
fn one_that_was_done_in_part_goes_as_packets_from_its_first_byte() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.extend([Direct::Part(1024), Direct::Wire]);
    d.post(1, WRITE, 2048);
    assert_eq!(d.sends_named(), [("RDMA WRITE FIRST", 0), ("RDMA WRITE LAST", 1)]);
    d.ack(1);
    assert_eq!((d.completions(), sq_psn(&d)), (vec_of((1, Success)), 2));
}

fn vec_of<T>(one: T) -> alloc::vec::Vec<T> {
    alloc::vec![one]
}

#[test]
fn one_whose_result_has_no_place_ends_the_queue_pair() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.push_back(Direct::Failed(LocProtErr));
    d.post(1, FADD, 8);
    d.post(2, WRITE, 8);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!((d.side.qp.state(), sq_psn(&d)), (QpState::Err, 1));
}

#[test]
fn it_takes_no_credit_of_those_that_need_receives() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WqeOp::Send, 8);
    d.sends();
    d.answers(0, Syndrome::Ack(2));
    d.side.host.direct.extend([Direct::Done, Direct::Done, Direct::Done]);
    for wr_id in 2..=4 {
        d.post(wr_id, WRITE, 8);
    }
    assert_eq!(d.sends(), []);
    d.post(5, WqeOp::Send, 8);
    d.post(6, WqeOp::Send, 8);
    assert_eq!(d.sends_named(), [("SEND ONLY", 1), ("SEND ONLY", 2)]);
}

#[test]
fn a_rate_limit_another_type_and_two_sided_requests_are_packets() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.push_back(Direct::Done);
    d.post(
        1,
        WqeOp::WriteWithImm { remote_addr: 0x100, rkey: scalefabric_verbs::RKey(crate::testing::WHOLE), imm: 7 },
        8,
    );
    assert_eq!(d.sends().len(), 1);
    let mut slow = Dialogue::rc(|a| a.ah_attr.static_rate = 2);
    slow.side.host.direct.push_back(Direct::Done);
    slow.post(1, WRITE, 8);
    assert_eq!(slow.sends().len(), 1);
    let mut uc = Dialogue::new(QpType::Uc, Config::default(), |_| ());
    uc.side.host.direct.push_back(Direct::Done);
    uc.post(1, WRITE, 8);
    assert_eq!(uc.sends().len(), 1);
}

#[test]
fn unsignaled_and_fenced_ones_behave_as_on_the_wire() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.direct.extend([Direct::Done, Direct::Done]);
    let pieces = [super::piece(0x1000, 8)];
    d.side.host.post_send(1, WRITE, SendFlags::empty(), &pieces);
    d.side.host.post_send(2, READ, SendFlags::SIGNALED | SendFlags::FENCE, &pieces);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(2, Success)]);
    assert_eq!(d.side.host.sends_left(), 0, "ring space comes back");
}

/// WRITEs go as packets until it is worth waiting; then the next one waits. How many went.
fn fill(d: &mut Dialogue) -> u32 {
    d.side.host.could_execute = true;
    let mut sent = 0;
    for wr_id in 1..100 {
        d.post(wr_id, WRITE, 8);
        if d.sends().is_empty() {
            break;
        }
        sent += 1;
    }
    assert_eq!(sent, 15);
    assert_eq!(d.side.host.asked, []);
    sent
}

#[test]
fn a_full_queue_lets_the_wire_run_dry_and_all_that_waited_is_executed() {
    let mut d = Dialogue::rc(|_| ());
    let sent = fill(&mut d);
    d.post(20, WRITE, 8);
    assert_eq!(d.sends(), [], "nor what is posted behind it");
    d.ack(sent - 2);
    assert_eq!(d.sends(), [], "one is still under way");
    d.side.host.direct.extend([Direct::Done, Direct::Done]);
    d.ack(sent - 1);
    assert_eq!(d.sends(), []);
    assert_eq!(d.side.host.asked, [(16, 0), (20, 0)]);
    let completed: Vec<u64> = d.completions().into_iter().map(|(wr_id, _)| wr_id).collect();
    assert_eq!(completed, (1..=16).chain([20]).collect::<Vec<_>>());
}

#[test]
fn what_is_long_waits_for_a_short_one_before_it() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.could_execute = true;
    d.post(1, WqeOp::Send, 8);
    d.post(2, WRITE, 8);
    assert_eq!(d.sends_named(), [("SEND ONLY", 0), ("RDMA WRITE ONLY", 1)]);
    d.post(3, WRITE, 16 << 10);
    d.side.host.memory.resize(1 << 20, 0);
    assert_eq!(d.sends().len(), 16);
    d.post(4, WRITE, 64 << 10);
    assert_eq!(d.sends(), []);
}

#[test]
fn a_message_that_has_to_be_a_packet_waits_for_nobody_and_makes_those_behind_it_begin_anew() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.could_execute = true;
    for n in 0..40 {
        d.post(2 * n, WRITE, 8);
        d.post(2 * n + 1, WqeOp::Send, 8);
        assert_eq!(d.sends().len(), 2);
    }
}

#[test]
fn who_is_only_reached_by_packets_is_not_waited_for() {
    let mut d = Dialogue::rc(|_| ());
    let sent = fill(&mut d);
    d.side.host.could_execute = false;
    d.side.transmit(100);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", sent)], "it was asked again");
}

#[test]
fn what_was_waited_for_in_vain_is_not_waited_for_again_at_once() {
    let mut d = Dialogue::rc(|_| ());
    let sent = fill(&mut d);
    d.ack(sent - 1);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", sent)]);
    for wr_id in 20..34 {
        d.post(wr_id, WRITE, 8);
        assert_eq!(d.sends().len(), 1, "{wr_id}");
    }
    d.post(40, WRITE, 8);
    assert_eq!(d.sends(), []);
}

#[test]
fn what_is_waited_for_is_sent_again_and_given_up_like_anything_else() {
    let mut d = Dialogue::rc(|_| ());
    let sent = fill(&mut d);
    d.nak(3, NakCode::PsnSequenceError);
    assert_eq!(d.sends().len() as u32, sent - 3);
    for _ in 0..40 {
        d.passes(1_000_000_000);
        assert!(d.sends().len() as u32 <= sent);
    }
    let done = d.completions();
    assert_eq!(d.side.qp.state(), QpState::Err);
    assert_eq!(done.last().copied(), Some((16, WrFlushErr)));
}

#[test]
fn a_peer_without_a_receive_holds_back_what_waits_and_no_longer() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.could_execute = true;
    d.post(1, WqeOp::Send, 8);
    d.sends();
    d.side.host.memory.resize(1 << 20, 0);
    d.post(2, WRITE, 64 << 10);
    assert_eq!(d.sends(), []);
    d.answers(0, Syndrome::RnrNak(1));
    assert_eq!(d.sends(), []);
    d.passes(1_000_000_000);
    assert_eq!(d.sends_named(), [("SEND ONLY", 0)]);
    d.side.host.direct.push_back(Direct::Done);
    d.ack(0);
    assert_eq!((d.sends(), d.completions()), (Vec::new(), alloc::vec![(1, Success), (2, Success)]));
}

#[test]
fn a_queue_that_is_drained_begins_nothing_that_waited() {
    let mut d = Dialogue::rc(|_| ());
    let sent = fill(&mut d);
    let mut attr = d.side.qp.query();
    attr.qp_state = QpState::Sqd;
    d.side.qp.modify(&mut d.side.host, &attr, scalefabric_verbs::QpAttrMask::STATE).unwrap();
    d.side.host.direct.push_back(Direct::Done);
    d.ack(sent - 1);
    assert_eq!((d.sends().len(), d.side.host.asked.len()), (0, 0));
    attr.qp_state = QpState::Rts;
    d.side.qp.modify(&mut d.side.host, &attr, scalefabric_verbs::QpAttrMask::STATE).unwrap();
    assert_eq!((d.sends().len(), d.completions().len()), (0, 16));
}
