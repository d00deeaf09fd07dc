//! SEND and WRITE in all their kinds, and the ACKs that they get.

use alloc::vec;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{QpState, QpType, RKey, WcFlags, WcOpcode, WcStatus};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Operation, Position};
use scalefabric_wire::packet::{NakCode, Syndrome};

use super::*;
use crate::responder::Acks;
use crate::time::Time;

#[test]
fn send_of_three_packets_lands_in_the_buffer_and_completes_once() {
    let mut bed = Bed::rc();
    bed.post(9, 4096);
    let data = bytes(2 * PMTU + 100);
    bed.all(&[
        bed.send(Position::First, &data[..PMTU]),
        bed.send(Position::Middle, &data[PMTU..2 * PMTU]),
        bed.send(Position::Last, &data[2 * PMTU..]),
    ]);
    assert_ack(&bed.said(), Psn::new(0), 1);
    assert_eq!(bed.memory(BUFFER, data.len()), data);
    assert_eq!(bed.host.received.len(), 1);
    let wc = bed.host.received[0].wc;
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (9, WcStatus::Success, WcOpcode::Recv, 2148));
    assert_eq!((wc.flags, wc.qp_num), (WcFlags::empty(), US));
    assert!(!bed.host.received[0].solicited);
}

#[test]
fn send_scatters_over_the_pieces_of_its_buffer() {
    let mut bed = Bed::rc();
    let piece = |addr, length| Piece { addr, length, key: WHOLE };
    bed.host.post_recv(1, &[piece(BUFFER, 3), piece(BUFFER + 100, 0), piece(BUFFER + 200, 1030)]);
    let data = bytes(PMTU + 9);
    bed.all(&[bed.send(Position::First, &data[..PMTU]), bed.send(Position::Last, &data[PMTU..])]);
    assert_eq!(bed.memory(BUFFER, 3), &data[..3]);
    assert_eq!(bed.memory(BUFFER + 200, 1030), &data[3..]);
    assert_eq!(bed.statuses(), [WcStatus::Success]);
}

#[test]
fn empty_send_completes_with_no_bytes() {
    let mut bed = Bed::rc();
    bed.post(1, 0);
    bed.next(&bed.send(Position::Only, &[]));
    assert_ack(&bed.said(), Psn::new(0xff_fffe), 1);
    assert_eq!(bed.host.received[0].wc.byte_len, 0);
}

#[test]
fn solicited_is_what_the_last_packet_says() {
    for (first, last) in [(true, false), (false, true)] {
        let mut bed = Bed::rc();
        bed.post(1, 4096);
        let mut a = bed.send(Position::First, &bytes(PMTU));
        a.headers.bth.solicited = first;
        let mut b = bed.send(Position::Last, &[1]);
        b.headers.bth.solicited = last;
        bed.all(&[a, b]);
        assert_eq!(bed.host.received[0].solicited, last);
    }
}

#[test]
fn immediate_comes_with_its_flag() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    let mut packet = bed.packet(Operation::SendWithImm, Position::Only, &[5; 3]);
    packet.headers.imm = Some(0xfeed_0001);
    bed.next(&packet);
    let wc = bed.host.received[0].wc;
    assert_eq!((wc.flags, wc.imm, wc.byte_len, wc.opcode), (WcFlags::WITH_IMM, 0xfeed_0001, 3, WcOpcode::Recv));
}

#[test]
fn send_with_invalidate_takes_the_key_away_and_says_which() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    let mut packet = bed.packet(Operation::SendWithInv, Position::Only, &[5; 3]);
    packet.headers.ieth = Some(RKey(KEY));
    bed.next(&packet);
    assert_ack(&bed.said(), Psn::new(0xff_fffe), 1);
    let wc = bed.host.received[0].wc;
    assert_eq!((wc.flags, wc.invalidated_rkey), (WcFlags::WITH_INV, RKey(KEY)));
    assert_eq!(bed.host.invalidated, [RKey(KEY)]);
}

#[test]
fn invalidate_waits_for_the_last_packet() {
    let mut bed = Bed::rc();
    bed.post(1, 4096);
    bed.next(&bed.send(Position::First, &bytes(PMTU)));
    assert!(bed.host.invalidated.is_empty());
    let mut packet = bed.packet(Operation::SendWithInv, Position::Last, &[5; 3]);
    packet.headers.ieth = Some(RKey(KEY));
    bed.next(&packet);
    assert_eq!(bed.host.invalidated, [RKey(KEY)]);
}

#[test]
fn write_of_several_packets_lands_in_order_and_completes_nothing() {
    let mut bed = Bed::rc();
    let data = bytes(2 * PMTU + 1);
    bed.next(&bed.write(Position::First, AT + 5, data.len() as u32, &data[..PMTU]));
    assert_eq!(bed.memory(AT + 5, PMTU), &data[..PMTU]);
    bed.all(&[
        bed.write(Position::Middle, 0, 0, &data[PMTU..2 * PMTU]),
        bed.write(Position::Last, 0, 0, &data[2 * PMTU..]),
    ]);
    assert_ack(&bed.said(), Psn::new(0), 1);
    assert_eq!(bed.memory(AT + 5, data.len()), data);
    assert!(bed.host.received.is_empty() && bed.host.events.is_empty());
    assert_eq!(bed.counter(Counter::WriteRequests), 1);
}

#[test]
fn write_with_immediate_takes_a_receive_and_tells_the_length_of_the_write() {
    let mut bed = Bed::rc();
    bed.post(4, 0);
    let data = bytes(PMTU + 8);
    let mut last = bed.packet(Operation::WriteWithImm, Position::Last, &data[PMTU..]);
    last.headers.imm = Some(7);
    last.headers.bth.solicited = true;
    bed.all(&[bed.write(Position::First, AT, data.len() as u32, &data[..PMTU]), last]);
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 1);
    assert_eq!(bed.memory(AT, data.len()), data);
    let got = bed.host.received[0];
    assert!(got.solicited);
    assert_eq!((got.wc.wr_id, got.wc.opcode), (4, WcOpcode::RecvRdmaWithImm));
    assert_eq!((got.wc.byte_len, got.wc.imm, got.wc.flags), (1032, 7, WcFlags::WITH_IMM));
}

#[test]
fn write_with_immediate_waits_for_a_receive_before_its_last_packet_is_written() {
    let mut bed = Bed::rc();
    let data = bytes(PMTU + 8);
    let mut last = bed.packet(Operation::WriteWithImm, Position::Last, &data[PMTU..]);
    last.headers.imm = Some(7);
    bed.next(&bed.write(Position::First, AT, data.len() as u32, &data[..PMTU]));
    last.headers.bth.psn = bed.psn;
    bed.give(&last);
    let said = bed.said();
    assert_eq!(verdict(&said[0]), (Psn::new(0xff_ffff), Syndrome::RnrNak(12)));
    assert_eq!(bed.memory(AT + PMTU as u64, 8), [0; 8]);
    bed.post(4, 0);
    bed.give(&last);
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 1);
    assert_eq!(bed.memory(AT, data.len()), data);
    assert_eq!(bed.host.received[0].wc.byte_len, 1032);
}

#[test]
fn zero_length_write_looks_at_no_key() {
    let mut bed = Bed::rc();
    let mut packet = bed.write(Position::Only, u64::MAX, 0, &[]);
    packet.headers.reth.as_mut().unwrap().rkey = RKey(0xbad);
    bed.next(&packet);
    assert_ack(&bed.said(), Psn::new(0xff_fffe), 1);
}

#[test]
fn one_ack_covers_a_batch() {
    let mut bed = Bed::rc();
    for n in 0..5 {
        bed.post(n, 64);
    }
    for _ in 0..5 {
        bed.next(&bed.send(Position::Only, &[1]));
    }
    assert_ack(&bed.said(), Psn::new(2), 5);
    assert!(bed.said().is_empty(), "and it is said once");
}

#[test]
fn immediate_policy_acks_each_request_that_asks() {
    let mut bed = Bed::rc();
    bed.ctx.config.acks = Acks::Immediate;
    for n in 0..3 {
        bed.post(n, 64);
        bed.next(&bed.send(Position::Only, &[1]));
    }
    let psns: Vec<u32> = bed.said().iter().map(|p| verdict(p).0.get()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0]);
}

#[test]
fn what_does_not_ask_gets_no_ack() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    let mut packet = bed.send(Position::Only, &[1]);
    packet.headers.bth.ack_req = false;
    bed.next(&packet);
    assert!(bed.said().is_empty());
    assert_eq!(bed.statuses(), [WcStatus::Success]);
}

#[test]
fn ack_that_finds_no_room_leaves_later_with_what_is_true_then() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    bed.post(2, 64);
    bed.host.room = 0;
    bed.next(&bed.send(Position::Only, &[1]));
    assert!(bed.said().is_empty());
    bed.next(&bed.send(Position::Only, &[1]));
    bed.host.room = 1;
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 2);
}

#[test]
fn credits_tell_the_receives_that_are_posted_and_the_one_in_use() {
    let mut bed = Bed::rc();
    bed.ctx.config.advertise_credits = true;
    for n in 0..7 {
        bed.post(n, 4096);
    }
    bed.next(&bed.send(Position::Only, &[1]));
    let credit = |bed: &mut Bed| verdict(&bed.said()[0]).1;
    assert_eq!(credit(&mut bed), Syndrome::Ack(5), "6 are posted: code 5");
    let mut first = bed.send(Position::First, &bytes(PMTU));
    first.headers.bth.ack_req = true;
    bed.next(&first);
    assert_eq!(credit(&mut bed), Syndrome::Ack(5), "5 are posted and one is being filled");
}

#[test]
fn with_an_srq_no_credits_are_given() {
    let mut bed = Bed::rc();
    bed.ctx.config.advertise_credits = true;
    bed.host.has_srq = true;
    bed.post(1, 64);
    bed.next(&bed.send(Position::Only, &[1]));
    assert_eq!(verdict(&bed.said()[0]).1, Syndrome::Ack(31));
}

#[test]
fn lost_request_gets_one_nak_until_it_comes() {
    let mut bed = Bed::rc();
    for n in 0..4 {
        bed.post(n, 64);
    }
    let missing = bed.psn;
    bed.psn = missing.next();
    bed.next(&bed.send(Position::Only, &[2]));
    assert_nak(&bed.said(), missing, NakCode::PsnSequenceError);
    bed.next(&bed.send(Position::Only, &[3]));
    assert!(bed.said().is_empty(), "the second packet beyond is dropped silently");
    assert_eq!((bed.dropped(DropReason::OutOfSequence), bed.counter(Counter::OutOfSequence)), (2, 2));
    assert_eq!(bed.counter(Counter::SentNaks), 1);
    bed.psn = missing;
    bed.next(&bed.send(Position::Only, &[1]));
    assert_ack(&bed.said(), missing, 1);
    bed.psn = missing.add(3);
    bed.next(&bed.send(Position::Only, &[3]));
    assert_nak(&bed.said(), missing.next(), NakCode::PsnSequenceError);
}

#[test]
fn reordering_within_a_batch_asks_for_what_was_dropped() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    let (first, second) = (bed.send(Position::Only, &[1]), {
        let mut packet = bed.send(Position::Only, &[2]);
        packet.headers.bth.psn = bed.psn.next();
        packet
    });
    bed.give(&second);
    bed.give(&first);
    assert_nak(&bed.said(), bed.psn.next(), NakCode::PsnSequenceError);
    bed.post(2, 64);
    bed.give(&second);
    assert_ack(&bed.said(), bed.psn.next(), 2);
}

#[test]
fn furthest_packet_ahead_is_out_of_sequence_and_one_more_is_a_duplicate() {
    let mut bed = Bed::rc();
    let expected = bed.psn;
    bed.psn = expected.add(0x7f_ffff);
    bed.give(&bed.send(Position::Only, &[1]));
    assert_nak(&bed.said(), expected, NakCode::PsnSequenceError);
    bed.psn = expected.add(0x80_0000);
    bed.give(&bed.send(Position::Only, &[1]));
    assert_eq!(bed.counter(Counter::DuplicateRequests), 1);
    assert_ack(&bed.said(), expected.sub(1), 0);
}

#[test]
fn no_receive_gets_an_rnr_nak_with_our_timer_and_later_requests_are_dropped_silently() {
    let mut bed = Bed::rc();
    let expected = bed.psn;
    bed.give(&bed.send(Position::Only, &[1]));
    let said = bed.said();
    assert_eq!(verdict(&said[0]), (expected, Syndrome::RnrNak(12)));
    assert_eq!(said[0].headers.aeth.unwrap().msn, 0);
    assert_eq!((bed.dropped(DropReason::ReceiverNotReady), bed.counter(Counter::SentRnrNaks)), (1, 1));
    bed.psn = expected.next();
    bed.give(&bed.send(Position::Only, &[2]));
    assert!(bed.said().is_empty());
    bed.post(1, 64);
    bed.psn = expected;
    bed.next(&bed.send(Position::Only, &[1]));
    assert_ack(&bed.said(), expected, 1);
    assert_eq!(bed.ctx.state, QpState::Rts);
}

#[test]
fn rnr_nak_comes_again_while_there_is_no_receive() {
    let mut bed = Bed::rc();
    for _ in 0..3 {
        bed.give(&bed.send(Position::Only, &[1]));
        assert_eq!(verdict(&bed.said()[0]), (bed.psn, Syndrome::RnrNak(12)));
    }
}

#[test]
fn first_packet_in_rtr_tells_that_the_peer_is_there_and_is_taken() {
    let mut bed = Bed::rc();
    bed.ctx.state = QpState::Rtr;
    bed.post(1, 64);
    bed.post(2, 64);
    bed.next(&bed.send(Position::Only, &[1]));
    bed.next(&bed.send(Position::Only, &[1]));
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 2);
    assert_eq!(bed.host.events, [EventType::CommEst]);
}

#[test]
fn nothing_is_told_when_we_are_in_rts_already() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    bed.next(&bed.send(Position::Only, &[1]));
    assert_eq!(bed.host.events, []);
}

#[test]
fn xrc_request_takes_its_receive_from_the_srq_that_it_names() {
    let mut bed = Bed::new(QpType::XrcRecv);
    let other = Srqn::new(78);
    bed.host.post_srq_recv(other, 1, &[Piece { addr: BUFFER, length: 64, key: WHOLE }]);
    bed.host.post_srq_recv(SRQ, 2, &[Piece { addr: BUFFER, length: 64, key: WHOLE }]);
    bed.next(&bed.send(Position::Only, &[1, 2, 3]));
    let mut packet = bed.send(Position::Only, &[4]);
    packet.headers.xrceth = Some(other);
    bed.next(&packet);
    let said = bed.said();
    assert_eq!(said[0].headers.bth.opcode.byte(), 0xb1, "the ACK is of the XRC service");
    assert_eq!(bed.host.received.iter().map(|r| (r.wc.wr_id, r.wc.qp_num)).collect::<Vec<_>>(), [(2, US), (1, US)]);
}

#[test]
fn ce_mark_is_answered_with_one_cnp_in_each_interval() {
    let mut bed = Bed::rc();
    let mut packet = bed.send(Position::Only, &[1]);
    packet.traffic_class = 3;
    let mark = |bed: &mut Bed, now| {
        bed.host.now = Time(now);
        let incoming = packet.incoming();
        let admitted = admission::admit(&mut bed.ctx, &mut bed.host, &incoming).unwrap();
        bed.r.congestion_experienced(&bed.ctx, &mut bed.host, &admitted);
        bed.host.wire.drain(..).collect::<Vec<_>>()
    };
    let cnp = mark(&mut bed, 1000).remove(0);
    assert_eq!(cnp.headers.bth.opcode.byte(), 0x81);
    assert!(cnp.headers.bth.becn && !cnp.headers.bth.ack_req);
    assert_eq!((cnp.headers.bth.dest_qp, cnp.headers.bth.psn, cnp.payload), (PEER, Psn::new(0), vec![0; 16]));
    assert!(mark(&mut bed, 1000 + 3_999).is_empty());
    assert_eq!(mark(&mut bed, 1000 + 4_000).len(), 1);
    bed.ctx.config.cnps = crate::responder::Cnps::Never;
    assert!(mark(&mut bed, 1_000_000).is_empty());
    assert_eq!(bed.counter(Counter::SentCnps), 2);
}

#[test]
fn cnp_without_room_is_not_counted_and_the_next_mark_gets_it() {
    let mut bed = Bed::rc();
    bed.host.room = 0;
    let packet = bed.send(Position::Only, &[1]);
    let incoming = packet.incoming();
    for room in [0, 1] {
        bed.host.room = room;
        let admitted = admission::admit(&mut bed.ctx, &mut bed.host, &incoming).unwrap();
        bed.r.congestion_experienced(&bed.ctx, &mut bed.host, &admitted);
        assert_eq!(bed.counter(Counter::SentCnps), room as u64);
    }
}
