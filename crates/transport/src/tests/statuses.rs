//! Each completion status that a requester can produce, produced.

use alloc::vec;
use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{QpState, QpType, RKey, SendFlags, WcOpcode};
use scalefabric_wire::opcode::Position;
use scalefabric_wire::packet::{NakCode, Syndrome};

use super::{Dialogue, FADD, READ, SIGNALED, WRITE, piece};
use crate::counter::Counter;
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::Piece;

/// Three WQEs; the second one fails by what `peer` says of its PSN; the third is flushed.
fn second_fails(peer: impl FnOnce(&mut Dialogue), expected: scalefabric_verbs::WcStatus) {
    let mut d = Dialogue::rc(|_| ());
    for wr_id in 1..=3 {
        d.post(wr_id, WRITE, 8);
    }
    assert_eq!(d.sends().len(), 3);
    peer(&mut d);
    assert_eq!(d.completions(), [(1, Success), (2, expected), (3, WrFlushErr)]);
    assert_eq!(d.side.qp.state(), QpState::Err);
    assert_eq!(d.side.host.sends_left(), 0);
    assert_eq!(d.side.qp.deadline(), None);
}

#[test]
fn success_tells_opcode_length_and_qp() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 100);
    d.post(2, READ, 100);
    d.post(3, FADD, 8);
    d.sends();
    d.ack(0);
    d.read_response(Position::Only, 1, &[7; 100]);
    d.atomic_ack(2, 0x0102_0304);
    let wcs: alloc::vec::Vec<_> = d.side.host.sent.iter().map(|w| (w.status, w.opcode, w.byte_len, w.qp_num)).collect();
    let qpn = d.side.qp.qpn();
    assert_eq!(
        wcs,
        [
            (Success, WcOpcode::RdmaWrite, 0, qpn),
            (Success, WcOpcode::RdmaRead, 100, qpn),
            (Success, WcOpcode::FetchAdd, 8, qpn)
        ]
    );
    assert_eq!(d.side.host.memory[0x1000..0x1008], 0x0102_0304u64.to_ne_bytes());
    assert_eq!(d.side.host.memory[0x1008..0x1064], [7; 92]);
    assert_eq!(d.side.host.sends_left(), 0);
}

#[test]
fn unsignaled_success_is_silent_but_an_error_is_not() {
    let mut d = Dialogue::rc(|_| ());
    for wr_id in 1..=3 {
        d.side.host.post_send(wr_id, WRITE, SendFlags::empty(), &[piece(0, 8)]);
    }
    d.sends();
    d.ack(0);
    assert_eq!(d.completions(), []);
    assert_eq!(d.side.host.sends_left(), 2);
    d.nak(1, NakCode::RemoteAccessError);
    assert_eq!(d.completions(), [(2, RemAccessErr), (3, WrFlushErr)]);
}

#[test]
fn nak_invalid_request_is_rem_inv_req_err() {
    second_fails(|d| d.nak(1, NakCode::InvalidRequest), RemInvReqErr);
}

#[test]
fn nak_remote_access_error_is_rem_access_err() {
    second_fails(|d| d.nak(1, NakCode::RemoteAccessError), RemAccessErr);
}

#[test]
fn nak_remote_operational_error_is_rem_op_err() {
    second_fails(|d| d.nak(1, NakCode::RemoteOperationalError), RemOpErr);
}

#[test]
fn a_nak_that_only_rd_has_is_bad_resp_err() {
    second_fails(|d| d.nak(1, NakCode::InvalidRdRequest), BadRespErr);
}

#[test]
fn a_reserved_syndrome_is_bad_resp_err() {
    second_fails(|d| d.answers(1, Syndrome::Reserved(0x7f)), BadRespErr);
}

#[test]
fn a_read_response_to_a_write_is_bad_resp_err() {
    second_fails(|d| d.read_response(Position::Only, 1, &[]), BadRespErr);
}

#[test]
fn an_atomic_acknowledge_to_a_write_is_bad_resp_err() {
    second_fails(|d| d.atomic_ack(1, 0), BadRespErr);
}

#[test]
fn a_read_response_with_a_wrong_length_is_loc_len_err_and_with_the_right_one_is_not() {
    for (length, status) in [(99, LocLenErr), (101, LocLenErr), (100, Success)] {
        let mut d = Dialogue::rc(|_| ());
        d.post(1, READ, 100);
        d.sends();
        d.read_response(Position::Only, 0, &vec![0; length]);
        assert_eq!(d.completions(), [(1, status)], "{length}");
    }
}

#[test]
fn a_read_into_memory_that_went_away_is_loc_prot_err() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, READ, 100);
    d.sends();
    d.side.host.regions[0].gone = true;
    d.read_response(Position::Only, 0, &[0; 100]);
    assert_eq!(d.completions(), [(1, LocProtErr)]);
    assert_eq!(d.side.qp.state(), QpState::Err);
}

#[test]
fn an_atomic_result_that_has_no_place_is_loc_prot_err() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, FADD, 8);
    d.sends();
    d.side.host.regions.clear();
    d.atomic_ack(0, 1);
    assert_eq!(d.completions(), [(1, LocProtErr)]);
}

#[test]
fn a_bad_lkey_is_loc_prot_err_but_only_when_its_turn_has_come() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.side.host.post_send(2, WRITE, SIGNALED, &[Piece { addr: 0, length: 8, key: 0xbad }]);
    d.post(3, WRITE, 8);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 0)]);
    assert_eq!(d.completions(), []);
    assert_eq!(d.side.qp.state(), QpState::Rts);
    // The first is still repeated while the second waits.
    d.passes(4096 << 14);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 0)]);
    d.ack(0);
    assert_eq!(d.completions(), [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(d.side.qp.state(), QpState::Err);
}

#[test]
fn what_the_qp_type_does_not_have_is_loc_qp_op_err() {
    let mut d = Dialogue::new(QpType::Uc, Config::default(), |_| ());
    d.post(1, READ, 8);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, LocQpOpErr)]);
    assert_eq!(d.side.qp.state(), QpState::Sqe);
}

#[test]
fn a_read_without_read_resources_is_loc_qp_op_err_and_with_one_is_sent() {
    for (depth, expected) in [(0, vec![(1, LocQpOpErr)]), (1, vec![])] {
        let mut d = Dialogue::rc(|attr| attr.max_rd_atomic = depth);
        d.post(1, READ, 8);
        assert_eq!(d.sends().len(), usize::from(depth));
        assert_eq!(d.completions(), expected);
    }
}

#[test]
fn an_xrc_request_without_srq_number_is_loc_qp_op_err() {
    let mut d = Dialogue::new(QpType::XrcSend, Config::default(), |_| ());
    d.post(1, WqeOp::Send, 8);
    assert_eq!(d.sends(), []);
    assert_eq!(d.completions(), [(1, LocQpOpErr)]);
}

#[test]
fn an_atomic_of_other_than_eight_bytes_is_loc_len_err() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, FADD, 4);
    d.sends();
    assert_eq!(d.completions(), [(1, LocLenErr)]);
}

#[test]
fn a_message_beyond_two_gigabytes_is_loc_len_err() {
    for (length, refused) in [(1u32 << 31, false), ((1 << 31) + 1, true)] {
        let mut d = Dialogue::rc(|_| ());
        let read =
            crate::host::SendWqe { index: 0, wr_id: 1, op: READ, flags: SIGNALED, length, ud: None, xrc_srqn: None };
        d.side.host.post_wqe(read, &[]);
        assert_eq!(d.sends().is_empty(), refused);
        assert_eq!(!d.completions().is_empty(), refused);
    }
}

#[test]
fn a_bind_that_fails_is_mw_bind_err_in_its_turn() {
    let mut d = Dialogue::rc(|_| ());
    d.side.host.bind_result = Err(MwBindErr);
    d.post(1, WRITE, 8);
    d.post(2, WqeOp::BindMw, 0);
    d.sends();
    assert_eq!(d.completions(), []);
    d.ack(0);
    assert_eq!(d.completions(), [(1, Success), (2, MwBindErr)]);
}

#[test]
fn a_local_invalidate_of_a_stale_key_is_an_error() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WqeOp::LocalInv { rkey: RKey(0x99) }, 0);
    d.sends();
    assert_eq!(d.completions(), [(1, LocProtErr)]);
    assert_eq!(d.side.qp.state(), QpState::Err);
}

#[test]
fn silence_is_retry_exc_err_after_the_time_that_timeout_and_retry_cnt_promise() {
    let mut d = Dialogue::rc(|attr| {
        attr.timeout = 10;
        attr.retry_cnt = 3;
    });
    d.post(1, WRITE, 8);
    d.post(2, WRITE, 8);
    let timeout = 4096 << 10;
    for _ in 0..4 {
        assert_eq!(d.sends().len(), 2);
        assert_eq!(d.completions(), []);
        let due = d.side.qp.deadline().unwrap();
        assert_eq!(due.since(d.now()), timeout);
        d.passes(timeout - 1);
        assert_eq!(d.sends(), []);
        d.passes(1);
    }
    assert_eq!(d.completions(), [(1, RetryExcErr), (2, WrFlushErr)]);
    assert_eq!(d.now().0, 4 * timeout);
    assert_eq!(d.side.host.counter(Counter::RetryExceeded), 1);
    assert_eq!(d.side.host.counter(Counter::AckTimeouts), 4);
}

#[test]
fn no_receive_is_rnr_retry_exc_err_after_rnr_retry() {
    let mut d = Dialogue::rc(|attr| attr.rnr_retry = 2);
    d.post(1, WqeOp::Send, 8);
    for left in [2, 1, 0] {
        assert_eq!(d.sends().len(), 1, "{left}");
        d.answers(0, Syndrome::RnrNak(1));
        d.passes(10_000);
    }
    assert_eq!(d.completions(), [(1, RnrRetryExcErr)]);
    assert_eq!(d.side.host.counter(Counter::RnrRetryExceeded), 1);
}

#[test]
fn a_fault_from_outside_ends_the_oldest_wqe_with_its_status_and_is_an_event() {
    for status in [FatalErr, GeneralErr] {
        let mut d = Dialogue::rc(|_| ());
        d.post(1, WRITE, 8);
        d.post(2, WRITE, 8);
        d.sends();
        d.side.qp.fail(&mut d.side.host, status);
        assert_eq!(d.completions(), [(1, status), (2, WrFlushErr)]);
        assert_eq!(d.side.host.events, [EventType::QpFatal]);
        d.side.qp.fail(&mut d.side.host, status);
        assert_eq!(d.side.host.events.len(), 1);
    }
}

#[test]
fn what_is_posted_in_err_is_flushed_in_order() {
    let mut d = Dialogue::rc(|_| ());
    d.side.to_state(QpState::Err);
    d.post(5, WRITE, 8);
    d.post(6, READ, 8);
    d.side.host.post_recv(7, &[piece(0, 8)]);
    d.side.qp.flush(&mut d.side.host);
    assert_eq!(d.completions(), [(5, WrFlushErr), (6, WrFlushErr)]);
    assert_eq!(
        d.side.host.received.iter().map(|r| (r.wc.wr_id, r.wc.status)).collect::<vec::Vec<_>>(),
        [(7, WrFlushErr)]
    );
    assert_eq!(d.sends(), []);
}
