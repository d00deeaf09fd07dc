//! READ, atomics, ATOMIC WRITE and FLUSH the first time, and the order in which answers leave.

use alloc::vec;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{QpState, QpType};
use scalefabric_wire::packet::Syndrome;

use super::*;
use Operation::{AtomicAcknowledge, ReadResponse};
use Position::{First, Last, Middle, Only};

fn fill(bed: &mut Bed) {
    let data = bytes(LEN as usize);
    bed.host.memory[AT as usize..(AT + LEN) as usize].copy_from_slice(&data);
}

#[test]
fn read_is_answered_in_as_many_packets_as_the_path_mtu_wants() {
    for (length, shapes) in [
        (0, vec![Only]),
        (1, vec![Only]),
        (PMTU, vec![Only]),
        (PMTU + 1, vec![First, Last]),
        (2 * PMTU, vec![First, Last]),
        (3 * PMTU - 1, vec![First, Middle, Last]),
    ] {
        let mut bed = Bed::rc();
        fill(&mut bed);
        bed.give(&bed.read(AT + 3, length as u32));
        let said = bed.said();
        let expected: Vec<_> =
            shapes.iter().enumerate().map(|(i, p)| (ReadResponse, *p, bed.psn.add(i as u32).get())).collect();
        assert_eq!(shape(&said), expected, "{length} bytes");
        let data: Vec<u8> = said.iter().flat_map(|p| p.payload.clone()).collect();
        assert_eq!(data, bytes(LEN as usize)[3..3 + length]);
        for packet in &said {
            let has_aeth = packet.headers.bth.opcode.info().position != Middle;
            assert_eq!(packet.headers.aeth.map(|a| (a.syndrome, a.msn)), has_aeth.then_some((Syndrome::Ack(31), 1)));
        }
        assert_eq!(bed.r.expected_psn(), bed.psn.add(shapes.len() as u32), "the next request follows the answer");
    }
}

#[test]
fn zero_length_read_looks_at_no_key() {
    let mut bed = Bed::rc();
    let mut packet = bed.read(u64::MAX, 0);
    packet.headers.reth.as_mut().unwrap().rkey = RKey(0xbad);
    bed.give(&packet);
    assert_eq!(shape(&bed.said()), [(ReadResponse, Only, 0xff_fffe)]);
}

#[test]
fn ack_waits_for_the_read_before_it_and_is_not_said_for_what_the_read_covers() {
    let mut bed = Bed::rc();
    fill(&mut bed);
    for n in 0..2 {
        bed.post(n, 64);
    }
    bed.next(&bed.send(Only, &[1]));
    bed.give(&bed.read(AT, 2 * PMTU as u32));
    bed.psn = bed.psn.add(2);
    bed.next(&bed.send(Only, &[1]));
    let said = bed.said();
    assert_eq!(
        shape(&said),
        [(ReadResponse, First, 0xff_ffff), (ReadResponse, Last, 0), (Operation::Acknowledge, Only, 1),]
    );
    assert_eq!(said.iter().map(|p| p.headers.aeth.unwrap().msn).collect::<Vec<_>>(), [2, 2, 3]);
}

#[test]
fn nak_waits_for_the_read_before_it() {
    let mut bed = Bed::rc();
    bed.give(&bed.read(AT, 2 * PMTU as u32));
    bed.psn = bed.psn.add(3);
    bed.give(&bed.send(Only, &[1]));
    let said = bed.said();
    assert_eq!(shape(&said)[..2], [(ReadResponse, First, 0xff_fffe), (ReadResponse, Last, 0xff_ffff)]);
    assert_nak(&said[2..], Psn::new(0), NakCode::PsnSequenceError);
}

#[test]
fn fatal_nak_waits_for_the_read_before_it_although_the_qp_is_in_error() {
    let mut bed = Bed::rc();
    bed.give(&bed.read(AT, 2 * PMTU as u32));
    bed.psn = bed.psn.add(2);
    bed.give(&bed.write(Only, AT + LEN, 1, &[1]));
    assert_eq!(bed.ctx.state, QpState::Err);
    let said = bed.said();
    assert_eq!(shape(&said)[..2], [(ReadResponse, First, 0xff_fffe), (ReadResponse, Last, 0xff_ffff)]);
    assert_nak(&said[2..], Psn::new(0), NakCode::RemoteAccessError);
}

#[test]
fn read_streams_by_budget_and_goes_on_where_the_wire_was_full() {
    let mut bed = Bed::rc();
    fill(&mut bed);
    bed.give(&bed.read(AT, 4 * PMTU as u32));
    assert_eq!(bed.transmit(0), Some(Next::Ready));
    assert_eq!(bed.transmit(1), Some(Next::Ready));
    bed.host.room = 1;
    assert_eq!(bed.transmit(9), Some(Next::Blocked));
    bed.host.room = usize::MAX;
    assert_eq!(bed.transmit(9), Some(Next::Idle));
    let said = bed.said();
    let positions: Vec<_> = said.iter().map(|p| p.headers.bth.opcode.info().position).collect();
    assert_eq!(positions, [First, Middle, Middle, Last]);
    assert_eq!(said.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes(4 * PMTU));
}

#[test]
fn atomics_do_what_they_say_and_answer_with_the_old_value() {
    let mut bed = Bed::rc();
    bed.next(&bed.fetch_add(AT + 8, u64::MAX));
    bed.next(&bed.fetch_add(AT + 8, 11));
    bed.next(&bed.compare_swap(AT + 8, 10, 99));
    bed.next(&bed.compare_swap(AT + 8, 10, 77));
    let said = bed.said();
    assert_eq!(said.iter().map(|p| p.headers.atomic_ack_eth.unwrap()).collect::<Vec<_>>(), [0, u64::MAX, 10, 99]);
    assert_eq!(shape(&said).iter().map(|s| s.0).collect::<Vec<_>>(), [AtomicAcknowledge; 4]);
    assert_eq!(bed.memory(AT + 8, 8), 99_u64.to_le_bytes());
    assert_eq!(said[3].headers.aeth.unwrap().msn, 4);
}

#[test]
fn atomic_write_stores_its_bytes_as_they_came_and_is_answered_like_an_empty_read() {
    let mut bed = Bed::rc();
    bed.give(&bed.atomic_write(AT + 16, *b"abcdefgh"));
    let said = bed.said();
    assert_eq!(shape(&said), [(ReadResponse, Only, 0xff_fffe)]);
    assert!(said[0].payload.is_empty() && said[0].headers.aeth.is_some());
    assert_eq!(bed.memory(AT + 16, 8), b"abcdefgh");
}

#[test]
fn flush_is_done_and_answered_like_an_empty_read() {
    let mut bed = Bed::rc();
    for (plt, rights) in [
        (1, AccessFlags::FLUSH_GLOBAL),
        (2, AccessFlags::FLUSH_PERSISTENT),
        (3, AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT),
    ] {
        bed.next(&bed.flush_request(AT, 100, plt, 0));
        let said = bed.said();
        assert_eq!(shape(&said).iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(), [(ReadResponse, Only)]);
        let done = bed.host.flushed.pop().unwrap();
        assert_eq!((done.va, done.length, done.access), (AT, 100, rights));
    }
}

#[test]
fn xrc_answers_are_of_the_xrc_service() {
    let mut bed = Bed::new(QpType::XrcRecv);
    bed.host.post_srq_recv(SRQ, 2, &[Piece { addr: BUFFER, length: 64, key: WHOLE }]);
    bed.next(&bed.read(AT, 4 * PMTU as u32));
    bed.psn = bed.psn.add(3);
    bed.next(&bed.fetch_add(AT, 1));
    let codes: Vec<u8> = bed.said().iter().map(|p| p.headers.bth.opcode.byte()).collect();
    assert_eq!(codes, [0xad, 0xae, 0xae, 0xaf, 0xb2]);
}

#[test]
fn memory_that_goes_away_in_the_middle_of_a_read_ends_it_with_a_nak_there() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    bed.give(&bed.read(AT, 3 * PMTU as u32));
    assert_eq!(bed.transmit(1), Some(Next::Ready));
    bed.host.regions[1].gone = true;
    let said = bed.said();
    assert_eq!(shape(&said)[0], (ReadResponse, First, 0xff_fffe));
    assert_nak(&said[1..], Psn::new(0xff_ffff), NakCode::RemoteOperationalError);
    assert_eq!(bed.ctx.state, QpState::Err);
    assert_eq!(bed.host.events, [EventType::QpFatal]);
    assert_eq!(bed.statuses(), [WcStatus::WrFlushErr]);
}

#[test]
fn earlier_read_that_fails_speaks_before_the_later_request_that_was_refused() {
    let mut bed = Bed::rc();
    bed.give(&bed.read(AT, 3 * PMTU as u32));
    bed.psn = bed.psn.add(3);
    bed.give(&bed.write(Only, AT + LEN, 1, &[1]));
    assert_eq!(bed.ctx.state, QpState::Err);
    bed.host.regions.remove(1);
    assert_nak(&bed.said(), Psn::new(0xff_fffe), NakCode::RemoteAccessError);
}

#[test]
fn error_from_outside_lets_no_answer_leave() {
    let mut bed = Bed::rc();
    bed.give(&bed.read(AT, 3 * PMTU as u32));
    bed.ctx.state = QpState::Err;
    bed.r.flush(&bed.ctx, &mut bed.host);
    assert!(bed.said().is_empty());
}

#[test]
fn pkey_that_was_taken_away_silences_the_answers() {
    let mut bed = Bed::rc();
    bed.give(&bed.read(AT, 3 * PMTU as u32));
    bed.host.pkeys[0].clear();
    assert!(bed.said().is_empty());
    assert!(bed.dropped(DropReason::BadPKey) > 0);
}
