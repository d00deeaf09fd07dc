//! The state machine: all or nothing, drain, reset (clauses 10.3.1 and 11.2.5.2).

use scalefabric_verbs::WcStatus::*;
use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{AccessFlags, QpAttr, QpAttrMask, QpState, QpType, Qpn};
use scalefabric_wire::Psn;

use super::{Dialogue, START, WRITE};
use crate::counter::DropReason;
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::Link;
use crate::testing::{Side, attributes};

fn to(d: &mut Dialogue, state: QpState, mask: QpAttrMask, change: impl FnOnce(&mut QpAttr)) -> bool {
    let mut attr = QpAttr { qp_state: state, ..d.side.qp.query() };
    change(&mut attr);
    d.side.modify(&attr, mask | QpAttrMask::STATE).is_ok()
}

#[test]
fn a_wrong_mask_changes_nothing() {
    let mut side = Side::new(QpType::Rc, 1, 64, Config::default());
    let before = side.qp.query();
    let attr = QpAttr { qp_state: QpState::Init, ..attributes() };
    let error = side.modify(&attr, QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::PKEY_INDEX).unwrap_err();
    assert!(error.message.contains("ACCESS_FLAGS"), "{}", error.message);
    assert_eq!(side.qp.query(), before);
}

#[test]
fn query_tells_what_was_set_and_where_the_psns_are() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 3000);
    d.sends();
    let q = d.side.qp.query();
    assert_eq!((q.qp_state, q.cur_qp_state), (QpState::Rts, QpState::Rts));
    assert_eq!(q.sq_psn, Psn::new(START + 3));
    assert_eq!((q.timeout, q.retry_cnt, q.rnr_retry, q.max_rd_atomic), (14, 7, 7, 4));
    assert_eq!((q.dest_qp_num, q.ah_attr), (Qpn::new(0x102), d.peer.address(1)));
}

#[test]
fn sqd_finishes_what_was_begun_and_begins_nothing() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 3000);
    d.post(2, WRITE, 8);
    d.side.transmit(1);
    assert!(to(&mut d, QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, |a| a.en_sqd_async_notify = true));
    assert!(d.side.qp.query().sq_draining);
    assert_eq!(d.sends().len(), 3);
    d.post(3, WRITE, 8);
    assert_eq!(d.sends(), []);
    // Repetition goes on.
    d.passes(4096 << 14);
    assert_eq!(d.sends().len(), 3);
    assert_eq!(d.side.host.events, []);
    d.ack(2);
    assert_eq!(d.side.host.events, [EventType::SqDrained]);
    assert!(!d.side.qp.query().sq_draining);
    assert_eq!(d.completions(), [(1, Success)]);
    assert_eq!(d.sends(), []);
    assert!(to(&mut d, QpState::Rts, QpAttrMask::empty(), |_| ()));
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 3), ("RDMA WRITE ONLY", 4)]);
}

#[test]
fn a_queue_that_ends_in_error_was_not_drained() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    // Refused here: an atomic has eight bytes. It ends the QP when its turn comes.
    d.post(2, WqeOp::FetchAdd { remote_addr: 0, rkey: scalefabric_wire::RKey(1), add: 1 }, 4);
    assert_eq!(d.sends().len(), 1);
    assert!(to(&mut d, QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, |a| a.en_sqd_async_notify = true));
    d.ack(0);
    assert_eq!(d.completions(), [(1, Success), (2, LocLenErr)]);
    assert_eq!(d.side.qp.state(), QpState::Err);
    assert!(!d.side.host.events.contains(&EventType::SqDrained), "{:?}", d.side.host.events);
}

#[test]
fn an_idle_queue_is_drained_at_once_and_silently_if_nobody_asked() {
    for asked in [true, false] {
        let mut d = Dialogue::rc(|_| ());
        let mask = if asked { QpAttrMask::EN_SQD_ASYNC_NOTIFY } else { QpAttrMask::empty() };
        assert!(to(&mut d, QpState::Sqd, mask, |a| a.en_sqd_async_notify = true));
        assert_eq!(d.side.host.events.len(), usize::from(asked));
        assert!(!d.side.qp.query().sq_draining);
    }
}

#[test]
fn attributes_change_in_sqd_only_when_it_is_drained() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.sends();
    assert!(to(&mut d, QpState::Sqd, QpAttrMask::empty(), |_| ()));
    assert!(!to(&mut d, QpState::Sqd, QpAttrMask::TIMEOUT, |a| a.timeout = 3));
    assert!(!to(&mut d, QpState::Rts, QpAttrMask::empty(), |_| ()));
    assert_eq!(d.side.qp.query().timeout, 14);
    d.ack(0);
    let other = d.peer.address(2);
    let mask = QpAttrMask::TIMEOUT | QpAttrMask::AV | QpAttrMask::PORT;
    assert!(to(&mut d, QpState::Sqd, mask, |a| {
        a.timeout = 3;
        a.ah_attr = other;
        a.port_num = 2;
    }));
    assert!(to(&mut d, QpState::Rts, QpAttrMask::empty(), |_| ()));
    d.post(2, WRITE, 8);
    let sent = d.sends();
    assert_eq!((sent[0].port_num, sent[0].dst), (2, other.dgid));
    assert_eq!(d.side.qp.deadline().unwrap().since(d.now()), 4096 << 3);
    d.ack(1);
    assert_eq!(d.completions(), [(1, Success), (2, Success)]);
}

#[test]
fn in_sqd_the_responder_goes_on() {
    let mut link = Link::rc();
    link.a.to_state(QpState::Sqd);
    link.a.host.post_recv(1, &[super::piece(0, 64)]);
    link.b.host.post_send(2, WqeOp::Send, super::SIGNALED, &[super::piece(0, 8)]);
    link.run();
    assert_eq!(link.a.host.received.len(), 1);
    assert_eq!(link.b.host.sent.len(), 1);
}

#[test]
fn going_to_err_flushes_both_queues_in_order() {
    let mut d = Dialogue::rc(|_| ());
    for wr_id in 1..=3 {
        d.post(wr_id, WRITE, 8);
        d.side.host.post_recv(wr_id + 10, &[super::piece(0, 8)]);
    }
    d.sends();
    d.ack(0);
    d.side.to_state(QpState::Err);
    assert_eq!(d.completions(), [(1, Success), (2, WrFlushErr), (3, WrFlushErr)]);
    let flushed: alloc::vec::Vec<_> = d.side.host.received.iter().map(|r| (r.wc.wr_id, r.wc.status)).collect();
    assert_eq!(flushed, [(11, WrFlushErr), (12, WrFlushErr), (13, WrFlushErr)]);
    d.ack(1);
    assert_eq!(d.side.host.dropped(DropReason::QpState), 1);
    assert_eq!(d.side.qp.deadline(), None);
}

#[test]
fn reset_forgets_everything() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.sends();
    d.side.to_state(QpState::Reset);
    assert_eq!(d.side.qp.query(), Side::new(QpType::Rc, 1, 64, Config::default()).qp.query());
    assert_eq!(d.completions(), []);
    assert_eq!(d.side.qp.deadline(), None);
    // And it can be used again, from the first WQE and its own PSN.
    d.side.host = crate::testing::TestHost::new(1, 1 << 20);
    let mut attr = attributes();
    attr.sq_psn = Psn::new(START);
    attr.ah_attr = d.peer.address(1);
    d.side.bring_up(&attr);
    d.post(2, WRITE, 8);
    assert_eq!(d.sends_named(), [("RDMA WRITE ONLY", 0)]);
}

#[test]
fn access_rights_and_rnr_timer_change_in_rts() {
    let mut d = Dialogue::rc(|_| ());
    let attr = QpAttr { qp_access_flags: AccessFlags::REMOTE_READ, min_rnr_timer: 3, ..d.side.qp.query() };
    d.side.modify(&attr, QpAttrMask::ACCESS_FLAGS | QpAttrMask::MIN_RNR_TIMER).unwrap();
    let q = d.side.qp.query();
    assert_eq!((q.qp_access_flags, q.min_rnr_timer, q.qp_state), (AccessFlags::REMOTE_READ, 3, QpState::Rts));
}

#[test]
fn responses_pass_the_checks_of_peer_port_p_key_and_service_too() {
    let mut d = Dialogue::rc(|_| ());
    d.post(1, WRITE, 8);
    d.sends();
    let good =
        d.response(scalefabric_wire::opcode::Operation::Acknowledge, scalefabric_wire::opcode::Position::Only, 0, &[]);
    let mut bad = good.clone();
    bad.src = d.peer.address(2).dgid;
    d.side.receive(&bad);
    bad = good.clone();
    bad.port_num = 2;
    d.side.receive(&bad);
    bad = good.clone();
    bad.dst = d.peer.address(1).dgid;
    d.side.receive(&bad);
    assert_eq!(d.side.host.dropped(DropReason::WrongPeer), 3);
    bad = good.clone();
    bad.headers.bth.pkey = scalefabric_wire::PKey(0x8001);
    d.side.receive(&bad);
    assert_eq!(d.side.host.dropped(DropReason::BadPKey), 1);
    d.side.host.pkeys[0][0] = scalefabric_wire::PKey(0x8001);
    d.side.receive(&good);
    assert_eq!(d.side.host.dropped(DropReason::BadPKey), 2);
    d.side.host.pkeys[0][0] = scalefabric_wire::PKey::DEFAULT;
    assert_eq!(d.completions(), []);
    d.side.receive(&good);
    assert_eq!(d.completions(), [(1, Success)]);
}
