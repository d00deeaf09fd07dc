//! UC and UD: what is lost stays lost, and nobody is told.

use scalefabric_verbs::{QpState, QpType, WcFlags, WcOpcode};

use super::*;
use Position::{First, Last, Middle, Only};

fn uc() -> Bed {
    Bed::new(QpType::Uc)
}

fn ud() -> Bed {
    Bed::new(QpType::Ud)
}

#[track_caller]
fn quiet(bed: &mut Bed) {
    assert!(bed.said().is_empty(), "UC and UD answer nothing");
    assert_eq!(bed.ctx.state, QpState::Rts);
    assert!(bed.host.events.is_empty());
}

#[test]
fn uc_delivers_messages_of_all_kinds() {
    let mut bed = uc();
    bed.post(1, 4096);
    bed.post(2, 0);
    let data = bytes(PMTU + 5);
    let mut imm = bed.packet(Operation::WriteWithImm, Last, &data[PMTU..]);
    imm.headers.imm = Some(3);
    bed.all(&[
        bed.send(First, &data[..PMTU]),
        bed.send(Last, &data[PMTU..]),
        bed.write(First, AT, data.len() as u32, &data[..PMTU]),
        imm,
    ]);
    assert_eq!(bed.memory(BUFFER, data.len()), data);
    assert_eq!(bed.memory(AT, data.len()), data);
    assert_eq!(
        bed.host.received.iter().map(|r| r.wc.opcode).collect::<Vec<_>>(),
        [WcOpcode::Recv, WcOpcode::RecvRdmaWithImm]
    );
    quiet(&mut bed);
}

#[test]
fn uc_message_with_a_hole_is_dropped_and_its_receive_takes_the_next() {
    let mut bed = uc();
    bed.post(1, 4096);
    bed.next(&bed.send(First, &[0xaa; PMTU]));
    bed.psn = bed.psn.next(); // one MIDDLE is lost
    bed.next(&bed.send(Middle, &[0xbb; PMTU]));
    bed.next(&bed.send(Last, &[0xcc; 10]));
    assert!(bed.host.received.is_empty());
    assert_eq!(bed.dropped(DropReason::OutOfSequence), 2);
    bed.next(&bed.send(Only, &[0xdd; 10]));
    assert_eq!(bed.host.received.len(), 1);
    assert_eq!(bed.host.received[0].wc.byte_len, 10);
    assert_eq!(bed.memory(BUFFER, 10), [0xdd; 10]);
    quiet(&mut bed);
}

#[test]
fn uc_lost_last_is_noticed_by_the_next_first() {
    let mut bed = uc();
    bed.post(1, 4096);
    bed.next(&bed.send(First, &[0xaa; PMTU]));
    bed.psn = bed.psn.next();
    bed.all(&[bed.send(First, &[0xbb; PMTU]), bed.send(Last, &[0xcc; 2])]);
    assert_eq!(bed.host.received[0].wc.byte_len, PMTU as u32 + 2);
    assert_eq!(bed.memory(BUFFER, PMTU), [0xbb; PMTU]);
    quiet(&mut bed);
}

#[test]
fn uc_peer_that_forgets_last_loses_only_that_message() {
    let mut bed = uc();
    bed.post(1, 4096);
    bed.all(&[bed.send(First, &[0xaa; PMTU]), bed.send(Only, &[0xbb; 2])]);
    assert_eq!(bed.host.received[0].wc.byte_len, 2);
    quiet(&mut bed);
}

#[test]
fn uc_loss_of_whole_messages_needs_no_recovery() {
    let mut bed = uc();
    bed.post(1, 64);
    bed.psn = bed.psn.add(1000);
    bed.next(&bed.send(Only, &[1]));
    assert_eq!(bed.statuses(), [WcStatus::Success]);
    assert_eq!(bed.r.expected_psn(), bed.psn);
}

#[test]
fn uc_without_a_receive_drops_the_whole_message() {
    let mut bed = uc();
    bed.next(&bed.send(First, &bytes(PMTU)));
    bed.post(1, 4096);
    bed.all(&[bed.send(Middle, &bytes(PMTU)), bed.send(Last, &[1]), bed.send(Only, &[7])]);
    assert_eq!(bed.dropped(DropReason::ReceiverNotReady), 3);
    assert_eq!(bed.host.received[0].wc.byte_len, 1);
    quiet(&mut bed);
}

#[test]
fn uc_refusals_are_silent_and_keep_the_receive() {
    let too_long = [uc().send(First, &bytes(PMTU)), uc().send(Last, &bytes(PMTU))];
    let outside = [uc().write(First, AT + LEN - 2, 2000, &bytes(PMTU)), uc().write(Last, 0, 0, &bytes(2000 - PMTU))];
    let orphan = [uc().send(Middle, &bytes(PMTU)), uc().send(Last, &[1])];
    for (packets, reason, times) in [
        (too_long, DropReason::BadLength, 1),
        (outside, DropReason::RemoteAccess, 2),
        (orphan, DropReason::OpcodeSequence, 2),
    ] {
        let mut bed = uc();
        bed.post(1, 1500);
        bed.all(&packets);
        assert_eq!(bed.dropped(reason), times);
        assert!(bed.host.received.is_empty());
        bed.next(&bed.send(Only, &[7]));
        assert_eq!(bed.statuses(), [WcStatus::Success]);
        quiet(&mut bed);
    }
}

#[test]
fn uc_without_the_right_to_write_drops_the_write() {
    let mut bed = uc();
    bed.ctx.attr.qp_access_flags = AccessFlags::empty();
    bed.next(&bed.write(Only, AT, 1, &[1]));
    assert_eq!((bed.dropped(DropReason::RemoteAccess), bed.memory(AT, 1)), (1, &[0][..]));
    quiet(&mut bed);
}

#[test]
fn uc_receive_from_an_srq_completes_in_error_since_it_cannot_go_back() {
    let mut bed = uc();
    bed.host.has_srq = true;
    bed.post(1, 1500);
    bed.all(&[bed.send(First, &bytes(PMTU)), bed.send(Last, &bytes(PMTU))]);
    assert_eq!(bed.statuses(), [WcStatus::LocLenErr]);
    quiet(&mut bed);
}

#[test]
fn uc_bad_buffer_ends_the_qp() {
    let mut bed = uc();
    bed.host.post_recv(1, &[Piece { addr: BUFFER, length: 64, key: 0xbad }]);
    bed.post(2, 64);
    bed.next(&bed.send(Only, &[1]));
    assert!(bed.said().is_empty());
    assert_eq!(bed.statuses(), [WcStatus::LocProtErr, WcStatus::WrFlushErr]);
    assert_eq!(bed.ctx.state, QpState::Err);
}

#[test]
fn datagram_lands_behind_its_grh() {
    let mut bed = ud();
    bed.post(3, 43);
    let mut packet = bed.packet(Operation::SendWithImm, Only, b"abc");
    packet.headers.imm = Some(5);
    packet.headers.bth.solicited = true;
    bed.give(&packet);
    let got = bed.host.received[0];
    assert!(got.solicited);
    assert_eq!((got.wc.status, got.wc.byte_len, got.wc.src_qp, got.wc.imm), (WcStatus::Success, 43, PEER, 5));
    assert_eq!(got.wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(bed.memory(BUFFER, 20), [0; 20]);
    assert_eq!(bed.memory(BUFFER + 20, 1), [0x45]);
    assert_eq!(bed.memory(BUFFER + 32, 8), [10, 0, 1, 1, 10, 0, 1, 2]);
    assert_eq!(bed.memory(BUFFER + 40, 3), b"abc");
    quiet(&mut bed);
}

#[test]
fn datagram_needs_room_for_its_grh() {
    let mut bed = ud();
    bed.post(1, 42);
    bed.post(2, 43);
    bed.give(&bed.send(Only, b"abc"));
    assert_eq!(bed.statuses(), [WcStatus::LocLenErr]);
    assert_eq!(bed.counter(Counter::LocalLengthErrors), 1);
    bed.give(&bed.send(Only, b"abc"));
    assert_eq!(bed.statuses(), [WcStatus::LocLenErr, WcStatus::Success], "a stranger cannot end the QP");
    quiet(&mut bed);
}

#[test]
fn datagram_with_another_q_key_is_dropped() {
    let mut bed = ud();
    bed.post(1, 64);
    let mut packet = bed.send(Only, b"abc");
    packet.headers.deth = Some(Deth { qkey: QKey(0x1235), src_qp: PEER });
    bed.give(&packet);
    assert_eq!(bed.dropped(DropReason::BadQKey), 1);
    assert!(bed.host.received.is_empty());
}

#[test]
fn datagram_by_another_port_than_the_qp_s_is_dropped() {
    let mut bed = ud();
    bed.post(1, 64);
    let mut packet = bed.send(Only, b"abc");
    packet.port_num = 2;
    bed.give(&packet);
    assert_eq!(bed.dropped(DropReason::WrongPeer), 1);
    assert!(bed.host.received.is_empty());
}

#[test]
fn datagrams_may_come_from_anywhere_with_any_psn_and_to_a_group() {
    let mut bed = ud();
    for (n, psn) in [5, 5, 9, 2].into_iter().enumerate() {
        bed.post(n as u64, 64);
        let mut packet = bed.send(Only, b"abc");
        packet.headers.bth.psn = Psn::new(psn);
        packet.headers.bth.dest_qp = Qpn::MULTICAST;
        packet.src.0[15] = n as u8;
        packet.dst = scalefabric_wire::Gid::from_ip(core::net::IpAddr::from([239, 1, 1, 1]));
        bed.give(&packet);
    }
    assert_eq!(bed.statuses(), [WcStatus::Success; 4]);
}

#[test]
fn datagram_without_a_receive_is_lost() {
    let mut bed = ud();
    bed.give(&bed.send(Only, b"abc"));
    assert_eq!(bed.dropped(DropReason::ReceiverNotReady), 1);
    quiet(&mut bed);
}

#[test]
fn datagram_for_a_bad_buffer_ends_the_qp() {
    let mut bed = ud();
    bed.host.post_recv(1, &[Piece { addr: BUFFER, length: 64, key: 0xbad }]);
    bed.give(&bed.send(Only, &[1]));
    assert_eq!(bed.statuses(), [WcStatus::LocProtErr]);
    assert_eq!(bed.ctx.state, QpState::Err);
}
