//! What comes again: nothing is done twice, everything is answered again.

use scalefabric_verbs::QpState;

use super::*;
use Operation::{AtomicAcknowledge, ReadResponse};
use Position::{First, Last, Middle, Only};

fn filled() -> Bed {
    let mut bed = Bed::rc();
    let data = bytes(LEN as usize);
    bed.host.memory[AT as usize..(AT + LEN) as usize].copy_from_slice(&data);
    bed
}

fn at(mut packet: Packet, psn: Psn) -> Packet {
    packet.headers.bth.psn = psn;
    packet
}

#[test]
fn lost_ack_is_acknowledged_again_with_what_is_true_now() {
    let mut bed = Bed::rc();
    bed.post(1, 64);
    bed.post(2, 64);
    let first = bed.send(Only, &[1]);
    bed.next(&first);
    bed.next(&bed.send(Only, &[2]));
    assert_eq!(bed.said().len(), 1);
    bed.give(&first);
    bed.give(&first);
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 2);
    assert_eq!(bed.counter(Counter::DuplicateRequests), 2);
    assert_eq!(bed.host.received.len(), 2);
}

#[test]
fn duplicate_without_ack_req_is_acknowledged_too() {
    let mut bed = Bed::rc();
    let mut packet = bed.write(Only, AT, 1, &[1]);
    packet.headers.bth.ack_req = false;
    bed.next(&packet);
    assert!(bed.said().is_empty());
    bed.give(&packet);
    assert_ack(&bed.said(), Psn::new(0xff_fffe), 1);
}

#[test]
fn duplicate_write_writes_nothing() {
    let mut bed = Bed::rc();
    let packet = bed.write(Only, AT, 1, &[1]);
    bed.next(&packet);
    bed.host.memory[AT as usize] = 9;
    bed.give(&packet);
    assert_eq!(bed.memory(AT, 1), [9]);
}

#[test]
fn duplicate_in_the_middle_of_a_message_does_not_disturb_it() {
    let mut bed = Bed::rc();
    bed.post(1, 4096);
    let first = bed.send(First, &bytes(PMTU));
    bed.next(&first);
    bed.give(&first);
    bed.next(&bed.send(Last, &[1]));
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 1);
    assert_eq!(bed.host.received[0].wc.byte_len, PMTU as u32 + 1);
}

#[test]
fn duplicate_read_is_read_again() {
    let mut bed = filled();
    let read = bed.read(AT, 2 * PMTU as u32);
    bed.give(&read);
    let before = bed.said();
    bed.host.memory[AT as usize] = 0xee;
    bed.give(&read);
    let again = bed.said();
    assert_eq!(shape(&again), shape(&before));
    assert_eq!(again[0].payload[0], 0xee, "memory as it is now");
    assert_eq!(bed.r.expected_psn(), bed.psn.add(2));
}

#[test]
fn duplicate_read_may_ask_for_the_rest_only() {
    let mut bed = filled();
    let psn = bed.psn;
    bed.give(&bed.read(AT, 4 * PMTU as u32));
    bed.said();
    bed.give(&at(bed.read(AT + PMTU as u64, 3 * PMTU as u32), psn.next()));
    let said = bed.said();
    assert_eq!(
        shape(&said),
        [
            (ReadResponse, First, psn.next().get()),
            (ReadResponse, Middle, psn.add(2).get()),
            (ReadResponse, Last, psn.add(3).get()),
        ]
    );
    assert_eq!(said.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes(4 * PMTU)[PMTU..]);
    bed.give(&at(bed.read(AT + 3 * PMTU as u64, PMTU as u32), psn.add(3)));
    assert_eq!(shape(&bed.said()), [(ReadResponse, Only, psn.add(3).get())]);
}

#[test]
fn duplicate_read_of_something_else_is_dropped() {
    let mut bed = filled();
    let psn = bed.psn;
    let p = PMTU as u32;
    bed.give(&bed.read(AT + 100, 2 * p));
    bed.said();
    let mut other_key = bed.read(AT + 100, 1);
    other_key.headers.reth.as_mut().unwrap().rkey = RKey(WHOLE);
    for packet in [
        bed.read(AT + 99, 1),
        bed.read(AT + 100, 2 * p + 1),
        bed.read(AT + 101, 2 * p),
        bed.read(u64::MAX, 2),
        other_key,
        bed.fetch_add(AT + 104, 1),
        // More packets than PSNs are left in the range.
        at(bed.read(AT + 100, 2 * p), psn.next()),
    ] {
        let before = bed.dropped(DropReason::DuplicateRequest);
        bed.give(&packet);
        assert!(bed.said().is_empty());
        assert_eq!(bed.dropped(DropReason::DuplicateRequest), before + 1);
    }
    bed.give(&bed.read(AT + 100, 2 * p));
    assert_eq!(bed.said().len(), 2);
}

#[test]
fn duplicate_read_whose_key_was_taken_back_is_dropped_and_the_connection_lives() {
    let mut bed = filled();
    let read = bed.read(AT, 10);
    bed.next(&read);
    bed.said();
    bed.host.regions.remove(1);
    bed.give(&read);
    assert!(bed.said().is_empty());
    assert_eq!((bed.dropped(DropReason::RemoteAccess), bed.ctx.state), (1, QpState::Rts));
}

#[test]
fn key_that_is_taken_back_while_a_repetition_waits_ends_only_that() {
    let mut bed = filled();
    let read = bed.read(AT, 10);
    bed.next(&read);
    bed.said();
    bed.give(&read);
    bed.host.regions.remove(1);
    assert!(bed.said().is_empty());
    assert_eq!(bed.ctx.state, QpState::Rts);
    bed.post(1, 64);
    bed.next(&bed.send(Only, &[1]));
    assert_ack(&bed.said(), Psn::new(0xff_ffff), 2);
}

#[test]
fn read_that_is_asked_for_again_while_it_is_answered_starts_again_there() {
    let mut bed = filled();
    let psn = bed.psn;
    bed.give(&bed.read(AT, 4 * PMTU as u32));
    assert_eq!(bed.transmit(3), Some(Next::Ready));
    bed.host.wire.clear();
    bed.give(&at(bed.read(AT + PMTU as u64, 3 * PMTU as u32), psn.next()));
    let said = bed.said();
    let psns: Vec<u32> = said.iter().map(|p| p.headers.bth.psn.get()).collect();
    assert_eq!(psns, [psn.next(), psn.add(2), psn.add(3)].map(Psn::get));
    assert_eq!(said.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), bytes(4 * PMTU)[PMTU..]);
}

#[test]
fn go_back_over_two_reads_answers_both_in_order() {
    let mut bed = filled();
    let first = bed.read(AT, 2 * PMTU as u32);
    let second = at(bed.read(AT, 2 * PMTU as u32), bed.psn.add(2));
    bed.give(&first);
    bed.give(&second);
    assert_eq!(bed.transmit(3), Some(Next::Ready));
    bed.host.wire.clear();
    bed.give(&first);
    bed.give(&second);
    let psns: Vec<u32> = bed.said().iter().map(|p| p.headers.bth.psn.get()).collect();
    assert_eq!(psns, [0, 1, 2, 3].map(|n| bed.psn.add(n).get()));
}

#[test]
fn atomics_are_done_once_and_answered_each_time() {
    let mut bed = Bed::rc();
    let add = bed.fetch_add(AT, 5);
    bed.next(&add);
    let swap = bed.compare_swap(AT, 5, 7);
    bed.next(&swap);
    let first = bed.said();
    bed.host.memory[AT as usize] = 0xaa;
    for packet in [&add, &swap, &add] {
        bed.give(packet);
        let said = bed.said();
        assert_eq!(shape(&said)[0].0, AtomicAcknowledge);
        let before = first.iter().find(|p| p.headers.bth.psn == packet.headers.bth.psn).unwrap();
        assert_eq!(said[0], *before);
    }
    assert_eq!(bed.memory(AT, 1), [0xaa]);
    assert_eq!(bed.counter(Counter::AtomicRequests), 2);
}

#[test]
fn duplicate_atomic_that_is_another_one_is_dropped() {
    let mut bed = Bed::rc();
    let add = bed.fetch_add(AT, 5);
    bed.give(&add);
    bed.said();
    for packet in [bed.fetch_add(AT + 8, 5), bed.compare_swap(AT, 5, 5), bed.read(AT, 8)] {
        bed.give(&packet);
        assert!(bed.said().is_empty());
    }
    assert_eq!(bed.dropped(DropReason::DuplicateRequest), 3);
    bed.give(&add);
    assert_eq!(bed.said().len(), 1);
}

#[test]
fn atomic_write_and_flush_are_done_once() {
    let mut bed = Bed::rc();
    let write = bed.atomic_write(AT, *b"12345678");
    bed.next(&write);
    let flush = bed.flush_request(AT, 8, 1, 0);
    bed.next(&flush);
    bed.said();
    bed.host.memory[AT as usize] = b'x';
    bed.give(&write);
    bed.give(&flush);
    assert_eq!(shape(&bed.said()).iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(), [(ReadResponse, Only); 2]);
    assert_eq!(bed.memory(AT, 8), b"x2345678");
    assert_eq!(bed.host.flushed.len(), 1);
}

#[test]
fn only_as_many_are_remembered_as_the_peer_may_have_outstanding() {
    let mut bed = Bed::rc();
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(bed.fetch_add(AT, 1));
        bed.next(all.last().unwrap());
        bed.said();
    }
    bed.give(&all[0]);
    assert!(bed.said().is_empty(), "the oldest of five was overwritten");
    bed.give(&all[1]);
    assert_eq!(bed.said()[0].headers.atomic_ack_eth, Some(1));
    assert_eq!(bed.memory(AT, 1), [5]);
}

#[test]
fn new_request_takes_the_place_of_a_repetition_that_nobody_waits_for() {
    let mut bed = filled();
    bed.ctx.attr.max_dest_rd_atomic = 1;
    let first = bed.read(AT, 1);
    bed.next(&first);
    bed.said();
    bed.give(&first);
    bed.next(&bed.read(AT, 2));
    assert_eq!(shape(&bed.said()), [(ReadResponse, Only, 0xff_ffff)]);
    assert_eq!(bed.ctx.state, QpState::Rts);
}

#[test]
fn result_of_2_to_the_24_packets_ago_is_not_taken_for_one_of_now() {
    let mut bed = Bed::rc();
    let add = bed.fetch_add(AT, 1);
    bed.next(&add);
    bed.said();
    // A whole turn of the PSNs, by READs of the longest kind: they do not evict, since the test cannot send 2^24 packets.
    bed.r.expected += 1 << 24;
    bed.give(&add);
    assert!(bed.said().is_empty());
    assert_eq!(bed.dropped(DropReason::DuplicateRequest), 1);
}

#[test]
fn smaller_max_dest_rd_atomic_keeps_the_newest() {
    let mut bed = Bed::rc();
    let mut all = Vec::new();
    for n in 0..4 {
        bed.ctx.attr.max_dest_rd_atomic = if n == 3 { 2 } else { 4 };
        all.push(bed.fetch_add(AT, 1));
        bed.next(all.last().unwrap());
        bed.said();
    }
    let mut replayed = 0;
    for packet in &all {
        bed.give(packet);
        replayed += bed.said().len();
    }
    assert_eq!(replayed, 2);
}
