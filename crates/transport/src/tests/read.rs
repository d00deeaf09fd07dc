//! READ responses: in order, of the right length, resumed in the middle after a loss (clause 9.7.5.1.5 and 9.7.6.2).

use alloc::vec;
use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::{FlushLevel, FlushPlacement, QpType, RKey};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::Position::{self, First, Last, Middle, Only};

use super::{Dialogue, READ, WRITE};
use crate::counter::{Counter, DropReason};
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::responder::Alike;
use crate::testing::{Link, WHOLE};

fn full(d: &mut Dialogue, position: Position, psn: u32) {
    d.read_response(position, psn, &vec![psn as u8 + 1; 1024]);
}

#[test]
fn a_read_takes_a_psn_for_each_response_packet() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 4097);
    d.post(2, WRITE, 8);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 0), ("RDMA WRITE ONLY", 5)]);
    full(&mut d, First, 0);
    full(&mut d, Middle, 1);
    full(&mut d, Middle, 2);
    full(&mut d, Middle, 3);
    assert_eq!(d.completions(), []);
    d.read_response(Last, 4, &[9]);
    assert_eq!(d.completions(), [(1, Success)]);
    for psn in 0..4 {
        assert_eq!(d.side.host.memory[0x1000 + psn * 1024..][..1024], [psn as u8 + 1; 1024]);
    }
    assert_eq!(d.side.host.memory[0x2000], 9);
}

#[test]
fn a_response_acknowledges_the_requests_before_it() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.post(2, READ, 0);
    d.sends();
    d.read_response(Only, 1, &[]);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
}

#[test]
fn a_lost_response_packet_is_asked_for_from_the_middle() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 5000);
    d.sends();
    full(&mut d, First, 0);
    full(&mut d, Middle, 2);
    assert_eq!(d.side.host.counter(Counter::ImpliedNaks), 1);
    let again = d.sends();
    assert_eq!(again.len(), 1);
    let reth = again[0].headers.reth.unwrap();
    assert_eq!((super::relative(&again[0]), reth.va, reth.dma_len), (1, 0x100 + 1024, 5000 - 1024));
    // What else was on its way means the same loss.
    full(&mut d, Middle, 3);
    assert_eq!(d.side.host.dropped(DropReason::StaleResponse), 1);
    assert_eq!(d.sends(), []);
    full(&mut d, First, 1);
    full(&mut d, Middle, 2);
    full(&mut d, Middle, 3);
    d.read_response(Last, 4, &[7; 904]);
    assert_eq!(d.completions(), [(1, Success)]);
}

#[test]
fn each_of_two_losses_is_found_without_the_timer() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 4096);
    d.sends();
    full(&mut d, First, 0);
    full(&mut d, Middle, 2);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 1)]);
    full(&mut d, First, 1);
    full(&mut d, Last, 3);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 2)]);
    full(&mut d, First, 2);
    full(&mut d, Last, 3);
    assert_eq!(d.completions(), [(1, Success)]);
    assert_eq!(d.side.host.counter(Counter::ImpliedNaks), 2);
    assert_eq!(d.side.host.counter(Counter::AckTimeouts), 0);
}

#[test]
fn a_response_that_was_overtaken_takes_one_retry() {
    let mut d = Dialogue::rc(|attr| attr.retry_cnt = 0);
    for wr_id in 1..=3 {
        d.post(wr_id, READ, 8);
    }
    d.sends();
    d.read_response(Only, 1, &[0; 8]);
    assert_eq!(d.completions()[0], (1, RetryExcErr));
    let mut d = Dialogue::rc(|attr| attr.retry_cnt = 1);
    for wr_id in 1..=3 {
        d.post(wr_id, READ, 8);
    }
    d.sends();
    d.read_response(Only, 1, &[0; 8]);
    d.read_response(Only, 0, &[0; 8]);
    // We have gone back and nothing has left since: this tells nothing new.
    d.read_response(Only, 2, &[0; 8]);
    assert_eq!(d.side.host.counter(Counter::ImpliedNaks), 1);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 1), ("RDMA READ Request", 2)]);
    d.read_response(Only, 1, &[0; 8]);
    d.read_response(Only, 2, &[0; 8]);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn a_late_original_may_take_the_place_of_the_repeated_one() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 3072);
    d.sends();
    full(&mut d, First, 0);
    full(&mut d, Last, 2);
    d.sends();
    full(&mut d, Middle, 1);
    full(&mut d, First, 1);
    full(&mut d, Last, 2);
    assert_eq!(d.completions(), [(1, Success)]);
    assert_eq!(d.side.host.dropped(DropReason::StaleResponse), 1);
}

#[test]
fn responses_in_an_impossible_order_are_bad_resp_err() {
    for wrong in [Middle, Last] {
        let mut d = Dialogue::rc(|_| ());
        d.post(1, READ, 3072);
        d.sends();
        full(&mut d, wrong, 0);
        assert_eq!(d.completions(), [(1, BadRespErr)]);
    }
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 3072);
    d.sends();
    full(&mut d, First, 0);
    full(&mut d, First, 1);
    assert_eq!(d.completions(), [(1, BadRespErr)]);
}

#[test]
fn a_response_that_ends_early_or_late_is_loc_len_err() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 3072);
    d.sends();
    full(&mut d, First, 0);
    full(&mut d, Last, 1);
    assert_eq!(d.completions(), [(1, LocLenErr)]);
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 2048);
    d.sends();
    full(&mut d, First, 0);
    full(&mut d, Middle, 1);
    assert_eq!(d.completions(), [(1, LocLenErr)]);
}

#[test]
fn a_read_larger_than_half_the_window_is_asked_for_in_parts() {
    let config = Config { max_inflight_bytes: 8192, ..Config::default() };
    let mut d = Dialogue::new(QpType::Rc, config, |_| ());
    d.post(1, READ, 10 * 1024 + 1);
    let first = d.sends();
    assert_eq!(first.len(), 1, "two parts and their headers are more than the window");
    assert_eq!(first[0].headers.reth.unwrap().dma_len, 4096);
    full(&mut d, First, 0);
    full(&mut d, Middle, 1);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 4)]);
    full(&mut d, Middle, 2);
    full(&mut d, Last, 3);
    full(&mut d, First, 4);
    for psn in 5..7 {
        full(&mut d, Middle, psn);
    }
    full(&mut d, Last, 7);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 8)]);
    full(&mut d, First, 8);
    full(&mut d, Middle, 9);
    d.read_response(Last, 10, &[1]);
    assert_eq!(d.completions(), [(1, Success)]);
}

#[test]
fn flush_and_atomic_write_complete_by_an_empty_read_response() {
    let mut d = Dialogue::rc(|_| ());
    let (remote_addr, rkey) = (0x100, RKey(WHOLE));
    let flush = WqeOp::Flush {
        remote_addr,
        rkey,
        length: 64,
        placement: FlushPlacement::GlobalAndPersistent,
        level: FlushLevel::Range,
    };
    d.post(1, WRITE, 64);
    d.post(2, flush, 0);
    d.post(3, WqeOp::AtomicWrite { remote_addr, rkey }, 8);
    let packets = d.sends();
    assert_eq!(packets[1].headers.feth.map(|f| (f.plt, f.sel)), Some((3, 0)));
    assert_eq!(packets[2].payload.len(), 8);
    d.ack(0);
    d.read_response(Only, 1, &[]);
    d.read_response(Only, 2, &[]);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
    // With bytes it would be a READ's.
    d.post(4, flush, 0);
    d.sends();
    d.read_response(Only, 3, &[1]);
    assert_eq!(d.completions(), [(4, BadRespErr)]);
}

#[test]
fn two_queue_pairs_read_a_megabyte() {
    let mut link = Link::new((QpType::Rc, QpType::Rc), 4 << 20, Config::default(), |_| ());
    for (i, byte) in link.b.host.memory.iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    let length = (2 << 20) + 5;
    let read = WqeOp::Read { remote_addr: 0x11, rkey: RKey(WHOLE) };
    link.a.host.post_send(1, read, super::SIGNALED, &[super::piece(0, length)]);
    link.run();
    assert_eq!(link.a.host.sent.iter().map(|w| (w.status, w.byte_len)).collect::<vec::Vec<_>>(), [(Success, length)]);
    assert_eq!(link.a.host.memory[..length as usize], link.b.host.memory[0x11..0x11 + length as usize]);
}

/// A READ whose responses come as `packets` say (PSN and length), the MIDDLE ones by the short way where it takes them. What was seen, and how
/// many took it.
fn read_by(short: bool, packets: &[(Position, u32, usize)]) -> (Dialogue, usize) {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 6 * 1024);
    d.post(2, WRITE, 8);
    d.sends();
    let mut taken = 0;
    for &(position, psn, length) in packets {
        let payload = vec![psn as u8 + 1; length];
        let alike =
            Alike { psn: Psn::new(super::START.wrapping_add(psn)), ack_req: false, reth: None, payload: &payload };
        let is_like = position == Middle && d.side.qp.takes_alike() && d.side.qp.expects_alike(alike.psn);
        if short && is_like && d.side.qp.receive_alike(&mut d.side.host, &alike) {
            taken += 1;
        } else {
            d.read_response(position, psn, &payload);
        }
    }
    (d, taken)
}

#[test]
fn both_ways_of_a_middle_response_do_the_same() {
    let whole = [First, Middle, Middle, Middle, Middle, Last];
    let all: vec::Vec<_> = (0..6).map(|psn| (whole[psn as usize], psn, 1024)).collect();
    let (_, taken) = read_by(true, &all);
    assert_eq!(taken, 3, "all MIDDLE behind the first one");
    let mut cases = vec![all.clone()];
    for flaw in 1..6 {
        // One is lost, comes twice, is too short, or has the place of the LAST.
        let mut lost = all.clone();
        lost.remove(flaw);
        let mut twice = all.clone();
        twice.insert(flaw, all[flaw]);
        let mut short = all.clone();
        short[flaw].2 = 1000;
        let mut late = all.clone();
        late[flaw].0 = Middle;
        late.push((Middle, 6, 1024));
        cases.extend([lost, twice, short, late]);
    }
    for packets in cases {
        let ([mut long, mut short], config) = ([false, true].map(|short| read_by(short, &packets).0), &packets);
        assert_eq!(long.completions(), short.completions(), "{config:?}");
        assert_eq!(long.side.host.memory, short.side.host.memory, "{config:?}");
        assert_eq!(long.side.qp.state(), short.side.qp.state(), "{config:?}");
        assert_eq!(long.side.qp.deadline(), short.side.qp.deadline(), "{config:?}");
        assert_eq!(long.sends(), short.sends(), "{config:?}");
        for &counter in Counter::ALL {
            assert_eq!(long.side.host.counter(counter), short.side.host.counter(counter), "{config:?}");
        }
        for &reason in DropReason::ALL {
            assert_eq!(long.side.host.dropped(reason), short.side.host.dropped(reason), "{config:?}");
        }
    }
}
