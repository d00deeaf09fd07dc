//! Order: fence, READ limit, local operations (clauses 10.8.3 and table 79).

use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::{QpState, RKey, SendFlags};
use scalefabric_wire::opcode::Position::Only;

use super::{Dialogue, FADD, READ, SIGNALED, WRITE, piece};
use crate::host::WqeOp;
use crate::testing::Region;

#[test]
fn a_fenced_request_waits_for_reads_and_atomics_but_not_for_writes() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 8);
    d.post(2, FADD, 8);
    d.post(3, WRITE, 8);
    d.side.host.post_send(4, WRITE, SIGNALED | SendFlags::FENCE, &[piece(0, 8)]);
    assert_eq!(d.sends().len(), 3);
    d.read_response(Only, 0, &[0; 8]);
    assert_eq!(d.sends(), []);
    d.atomic_ack(1, 0);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 3)]);
}

#[test]
fn ring_space_is_free_before_its_completion_is_seen() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.regions.push(Region { key: 0x77, ..d.side.host.regions[0] });
    d.post(1, WRITE, 8);
    d.post(2, READ, 8);
    d.side.host.post_send(3, WqeOp::LocalInv { rkey: RKey(0x77) }, SIGNALED, &[]);
    d.sends();
    d.ack(0);
    d.read_response(Only, 1, &[0; 8]);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
    assert_eq!(d.side.host.retired_at_completion, [1, 2, 3]);
}

#[test]
fn a_request_without_fence_does_not_wait() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 8);
    d.post(2, WRITE, 8);
    assert_eq!(d.sends().len(), 2);
}

#[test]
fn a_local_invalidate_with_fence_waits_for_everything() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.regions.push(Region { key: 0x77, ..d.side.host.regions[0] });
    d.post(1, WRITE, 8);
    d.side.host.post_send(2, WqeOp::LocalInv { rkey: RKey(0x77) }, SIGNALED | SendFlags::FENCE, &[]);
    d.post(3, WRITE, 8);
    assert_eq!(d.sends().len(), 1);
    assert!(d.side.host.invalidated.is_empty());
    d.ack(0);
    assert_eq!(d.sends().len(), 1);
    assert_eq!(d.side.host.invalidated, [RKey(0x77)]);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
}

#[test]
fn no_more_reads_than_max_rd_atomic_and_nothing_overtakes_the_one_that_waits() {
    let mut d = Dialogue::rc(|attr| attr.max_rd_atomic = 2);
    for wr_id in 1..=3 {
        d.post(wr_id, READ, 8);
    }
    d.post(4, WRITE, 8);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 0), ("RDMA READ Request", 1)]);
    d.read_response(Only, 0, &[0; 8]);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 2), ("RDMA WRITE ONLY", 3)]);
}

#[test]
fn after_going_back_the_read_limit_counts_anew() {
    let mut d = Dialogue::rc(|attr| attr.max_rd_atomic = 2);
    for wr_id in 1..=3 {
        d.post(wr_id, READ, 8);
    }
    d.sends();
    d.passes(4096 << 14);
    assert_eq!(d.sends_named(), [("RDMA READ Request", 0), ("RDMA READ Request", 1)]);
    for psn in 0..3 {
        d.read_response(Only, psn, &[0; 8]);
        d.sends();
    }
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn a_bind_completes_in_order_behind_what_is_on_its_way() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.post(2, WqeOp::BindMw, 0);
    d.post(3, WqeOp::BindMw, 0);
    d.sends();
    assert_eq!(d.completions(), []);
    d.ack(0);
    assert_eq!(d.completions(), [(1, Success), (2, Success), (3, Success)]);
    // With nothing before them they complete at once.
    d.post(4, WqeOp::BindMw, 0);
    d.sends();
    assert_eq!(d.completions(), [(4, Success)]);
    assert_eq!(d.side.host.sends_left(), 0);
    assert_eq!(d.side.qp.state(), QpState::Rts);
}

#[test]
fn wqe_indexes_and_psns_wrap() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.start_sends_at(u32::MAX - 1);
    d.side.qp.start_sends_at(u32::MAX - 1);
    for wr_id in 0..6 {
        d.post(wr_id, WRITE, 8);
        d.post(wr_id, READ, 8);
    }
    let sent = d.sends_named();
    assert_eq!(sent.len(), 9, "four READs at a time, and the WRITEs before the fifth");
    d.passes(4096 << 14);
    assert_eq!(d.sends_named(), sent);
    for psn in 0..6 {
        d.ack(2 * psn);
        d.read_response(Only, 2 * psn + 1, &[0; 8]);
        d.sends();
    }
    assert_eq!(d.completions().len(), 12);
    assert_eq!(d.side.host.sends_left(), 0);
}
