//! Each completion status that this transport can produce, produced.

use std::sync::Arc;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::*;

use crate::node::*;

const DAY: u64 = 86_400_000_000_000;

fn write_to(mr: &Arc<dyn MemoryRegion>) -> SendOp<'static> {
    SendOp::Write { remote_addr: mr.addr(), rkey: mr.rkey() }
}

/// The requester's statuses after one bad WR and one behind it.
fn statuses(w: &mut World, a: &Arc<dyn QueuePair>) -> Vec<WcStatus> {
    w.advance(DAY);
    assert_eq!(a.query().unwrap().0.qp_state, QpState::Err);
    w.nodes[0].poll().iter().map(|wc| wc.status).collect()
}

// proves: wc LOC_LEN_ERR; wc REM_INV_REQ_ERR
#[test]
fn loc_len_err_and_rem_inv_req_err_when_the_receive_is_too_short() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(4096), w.nodes[1].mr(4096));
    recv(&b, 1, &dst, 0, 100);
    recv(&b, 2, &dst, 0, 100);
    send(&a, 1, SendOp::Send, &src, 0, 101);
    send(&a, 2, SendOp::Send, &src, 0, 1);
    assert_eq!(statuses(&mut w, &a), [WcStatus::RemInvReqErr, WcStatus::WrFlushErr]);
    assert_eq!(outcome(&w.nodes[1].poll()), [(1, WcStatus::LocLenErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(b.query().unwrap().0.qp_state, QpState::Err);
}

// proves: wc REM_ACCESS_ERR
#[test]
fn rem_access_err_for_a_bad_key_bounds_rights_or_pd() {
    for case in 0..5 {
        let mut w = World::new(2);
        let [a, _b] = w.connect(QpType::Rc);
        let src = w.nodes[0].mr(4096);
        let node = &w.nodes[1];
        let dst = node.mr(4096);
        dst.write(0, &[7; 4096]).unwrap();
        let read_only = node.pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ).unwrap();
        let foreign = node.ctx.alloc_pd().unwrap().alloc_mr(4096, ALL_ACCESS).unwrap();
        let gone = node.mr(4096);
        let op = match case {
            0 => SendOp::Write { remote_addr: dst.addr(), rkey: RKey(dst.rkey().0 ^ 1) },
            1 => SendOp::Write { remote_addr: dst.addr() + 4096 - 99, rkey: dst.rkey() },
            2 => write_to(&read_only),
            3 => write_to(&foreign),
            _ => write_to(&gone),
        };
        gone.destroy().unwrap();
        send(&a, 1, op, &src, 0, 100);
        assert_eq!(statuses(&mut w, &a), [WcStatus::RemAccessErr], "case {case}");
        assert_eq!(read(&dst, 0, 4096), [7; 4096], "case {case}");
    }
}

#[test]
fn rem_access_err_when_the_qp_does_not_allow_it() {
    let mut w = World::new(2);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| attr.qp_access_flags = AccessFlags::REMOTE_READ);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    send(&qps[0], 1, write_to(&dst), &src, 0, 8);
    let got = statuses(&mut w, &qps[0]);
    assert!(matches!(got[..], [WcStatus::RemAccessErr] | [WcStatus::RemInvReqErr]), "{got:?}");
}

#[test]
fn rem_inv_req_err_for_a_misaligned_atomic() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let (local, remote) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let op = SendOp::FetchAdd { remote_addr: remote.addr() + 4, rkey: remote.rkey(), add: 1 };
    send(&a, 1, op, &local, 0, 8);
    assert_eq!(statuses(&mut w, &a), [WcStatus::RemInvReqErr]);
}

// proves: wc LOC_PROT_ERR; wc REM_OP_ERR
#[test]
fn loc_prot_err_for_a_bad_lkey_of_sender_and_receiver() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let bad = [Sge { lkey: LKey(src.lkey().0 ^ 1), ..sge(&src, 0, 8) }];
    a.post_send(&[SendWr { sg_list: &bad, ..SendWr::new(1, SendOp::Send) }]).unwrap();
    assert_eq!(statuses(&mut w, &a), [WcStatus::LocProtErr]);

    let mut w2 = World::new(2);
    let [a, b2] = w2.connect(QpType::Rc);
    let (src, dst2) = (w2.nodes[0].mr(64), w2.nodes[1].mr(64));
    let bad = [Sge { lkey: LKey(dst2.lkey().0 ^ 1), ..sge(&dst2, 0, 64) }];
    b2.post_recv(&[RecvWr { wr_id: 1, sg_list: &bad }]).unwrap();
    send(&a, 1, SendOp::Send, &src, 0, 8);
    assert_eq!(statuses(&mut w2, &a), [WcStatus::RemOpErr]);
    assert_eq!(outcome(&w2.nodes[1].poll()), [(1, WcStatus::LocProtErr)]);
    drop((b, dst));
}

#[test]
fn loc_prot_err_when_a_read_lands_where_nothing_may_be_written() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let remote = w.nodes[1].mr(64);
    let local = w.nodes[0].pd.alloc_mr(64, AccessFlags::empty()).unwrap();
    send(&a, 1, SendOp::Read { remote_addr: remote.addr(), rkey: remote.rkey() }, &local, 0, 8);
    assert_eq!(statuses(&mut w, &a), [WcStatus::LocProtErr]);
}

// proves: wc RETRY_EXC_ERR
#[test]
fn retry_exc_err_when_the_peer_is_silent() {
    let mut w = World::new(2);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| {
        attr.timeout = 8;
        attr.retry_cnt = 2;
    });
    qps[1].destroy().unwrap();
    let src = w.nodes[0].mr(64);
    send(&qps[0], 1, SendOp::Send, &src, 0, 8);
    send(&qps[0], 2, SendOp::Send, &src, 0, 8);
    let least = 3 * (4096u64 << 8);
    w.advance(least - 1);
    assert_eq!(w.nodes[0].poll(), [], "three timeouts have not passed yet");
    assert_eq!(statuses(&mut w, &qps[0]), [WcStatus::RetryExcErr, WcStatus::WrFlushErr]);
    let counter = scalefabric_transport::Counter::RetryExceeded;
    assert_eq!(w.nodes[0].nic.counters(1).counter(counter), 1);
}

// proves: wc RNR_RETRY_EXC_ERR
#[test]
fn rnr_retry_exc_err_when_nobody_posts_a_receive() {
    let mut w = World::new(2);
    let qps = [w.nodes[0].qp(QpType::Rc), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, attr, _| attr.rnr_retry = 2);
    let src = w.nodes[0].mr(64);
    send(&qps[0], 1, SendOp::Send, &src, 0, 8);
    assert_eq!(statuses(&mut w, &qps[0]), [WcStatus::RnrRetryExcErr]);
}

#[test]
fn a_receive_that_is_posted_late_ends_the_rnr_wait() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    send(&a, 1, SendOp::Send, &src, 0, 8);
    w.advance(DAY / 1000);
    assert_eq!(w.nodes[0].poll(), [], "rnr_retry 7 waits for ever");
    recv(&b, 2, &dst, 0, 64);
    w.advance(DAY / 1000);
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::Success)]);
    assert_eq!(outcome(&w.nodes[1].poll()), [(2, WcStatus::Success)]);
}

// proves: wc WR_FLUSH_ERR
#[test]
fn wr_flush_err_for_everything_that_is_posted_to_a_qp_in_err() {
    let mut w = World::new(2);
    let [a, b] = w.connect(QpType::Rc);
    let dst = w.nodes[0].mr(64);
    recv(&a, 1, &dst, 0, 64);
    let (attr, mask) = QpAttr::error();
    a.modify(&attr, mask).unwrap();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::WrFlushErr)], "flushed by the call itself");
    recv(&a, 2, &dst, 0, 64);
    send(&a, 3, SendOp::Send, &dst, 0, 8);
    w.settle();
    let mut got = outcome(&w.nodes[0].poll());
    got.sort_by_key(|g| g.0);
    assert_eq!(got, [(2, WcStatus::WrFlushErr), (3, WcStatus::WrFlushErr)]);
    drop(b);
}

// proves: wc FATAL_ERR; event DEVICE_FATAL
#[test]
fn fatal_err_when_the_device_fails_under_the_qp() {
    let mut w = World::new(2);
    let [a, _b] = w.connect(QpType::Rc);
    let src = w.nodes[0].mr(64);
    w.wire.hold(true);
    send(&a, 1, SendOp::Send, &src, 0, 8);
    send(&a, 2, SendOp::Send, &src, 0, 8);
    w.settle();
    w.nodes[0].nic.core().fail_device();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::FatalErr), (2, WcStatus::WrFlushErr)]);
    let events = w.nodes[0].events();
    assert!(events.contains(&AsyncEvent { event_type: EventType::DeviceFatal, subject: EventSubject::Device }));
}

// proves: event CQ_ERR; event QP_FATAL
#[test]
fn a_cq_that_overruns_fails_its_qps_and_says_so() {
    let mut w = World::new(2);
    let node = &w.nodes[0];
    let cq = node.ctx.create_cq(1, None, 0).unwrap();
    let mut init = node.qp_init(QpType::Rc);
    init.send_cq = cq.clone();
    let qps = [node.pd.create_qp(&init).unwrap(), w.nodes[1].qp(QpType::Rc)];
    w.connect_these(&qps, |_, _, _| {});
    let (src, dst) = (w.nodes[0].mr(64), w.nodes[1].mr(64));
    let room = cq.cqe();
    for i in 0..=room {
        send(&qps[0], u64::from(i), write_to(&dst), &src, 0, 8);
    }
    w.settle();
    assert_eq!(qps[0].query().unwrap().0.qp_state, QpState::Err);
    let events = w.nodes[0].events();
    let subject = EventSubject::CompletionQueue(cq.cq_num());
    assert!(events.contains(&AsyncEvent { event_type: EventType::CqErr, subject }), "{events:?}");
    let subject = EventSubject::QueuePair(qps[0].qp_num());
    let fatal = AsyncEvent { event_type: EventType::QpFatal, subject };
    assert_eq!(events.iter().filter(|e| **e == fatal).count(), 1, "{events:?}");
    let mut out = vec![blank(); room as usize];
    assert_eq!(cq.poll(&mut out).unwrap(), room as usize);
    assert_eq!(cq.poll(&mut out).unwrap_err().errno, Errno::EIO);
}

// proves: transition UC SQE -> RTS; transition UD SQE -> RTS
#[test]
fn ud_and_uc_go_to_sqe_by_a_send_error_and_come_back() {
    let mut w = World::new(2);
    let key = QKey(1);
    let qps = [ud(&w.nodes[0], key), ud(&w.nodes[1], key)];
    let (src, dst) = (w.nodes[0].mr(256), w.nodes[1].mr(256));
    recv(&qps[1], 1, &dst, 0, 256);
    let ah = w.nodes[0].pd.create_ah(&AddressVector::new(1, 0, gid(2))).unwrap();
    let to = UdAddress { ah: &*ah, remote_qpn: qps[1].qp_num(), remote_qkey: key };
    let bad = [Sge { lkey: LKey(src.lkey().0 ^ 1), ..sge(&src, 0, 8) }];
    let good = [sge(&src, 0, 8)];
    let wr = |wr_id, sg_list| SendWr { sg_list, ud: Some(to), ..SendWr::new(wr_id, SendOp::Send) };
    qps[0].post_send(&[wr(1, &bad), wr(2, &good)]).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(qps[0].query().unwrap().0.qp_state, QpState::Sqe);
    qps[0].post_send(&[wr(3, &good)]).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(3, WcStatus::WrFlushErr)]);
    let (attr, mask) = QpAttr::resume();
    qps[0].modify(&attr, mask).unwrap();
    qps[0].post_send(&[wr(4, &good)]).unwrap();
    w.settle();
    assert_eq!(outcome(&w.nodes[0].poll()), [(4, WcStatus::Success)]);
    assert_eq!(outcome(&w.nodes[1].poll()), [(1, WcStatus::Success)]);
}
