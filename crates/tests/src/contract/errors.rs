//! What goes wrong: each error ends with its status, takes the QP to ERR, and flushes what was queued.

use scalefabric_verbs::{
    AccessFlags, LKey, QpAttr, QpState, QpType, Qpn, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge, WcStatus,
};

use super::bench::{ALL_RIGHTS, Bench, Path, Shape};
use super::{Outcome, cases, ensure, same};

cases![
    a_wrong_rkey_ends_both_sides,
    a_right_that_the_qp_does_not_give_is_refused,
    a_wrong_lkey_ends_this_side,
    a_message_that_is_too_long_ends_both_sides,
    a_peer_without_receives_is_asked_so_often_and_no_more,
    a_peer_that_does_not_answer_is_given_up,
    what_is_queued_is_flushed_in_order,
    a_region_that_is_gone_is_refused,
    a_region_of_another_domain_is_refused,
    a_full_send_queue_is_refused_and_works_again,
    a_list_that_is_too_long_is_refused,
];

fn a_wrong_rkey_ends_both_sides(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    other.receive(9, 0, 64)?;
    let op = SendOp::Write { remote_addr: other.mr.addr(), rkey: RKey(other.mr.rkey().0 ^ 0x0055_0000) };
    one.send(1, op, &[one.sge(0, 8)])?;
    one.bad(1, WcStatus::RemAccessErr)?;
    one.reaches(QpState::Err)?;
    other.bad(9, WcStatus::WrFlushErr)?;
    other.reaches(QpState::Err)?;
    same!(other.bytes(0, 8)?, [0; 8], "the bytes there");
    Ok(())
}

fn a_right_that_the_qp_does_not_give_is_refused(bench: &Bench) -> Outcome {
    let path = Path { access: AccessFlags::REMOTE_READ, ..Path::default() };
    let (one, other) = bench.pair_with(&Shape::new(QpType::Rc), path)?;
    let (remote_addr, rkey) = (other.mr.addr(), other.mr.rkey());
    one.send(1, SendOp::Read { remote_addr, rkey }, &[one.sge(0, 8)])?;
    one.good(1)?;
    one.send(2, SendOp::Write { remote_addr, rkey }, &[one.sge(0, 8)])?;
    let wc = one.next()?;
    ensure!(
        matches!(wc.status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr),
        "a WRITE to a QP that allows READ only ends with {}",
        wc.status
    );
    Ok(())
}

fn a_wrong_lkey_ends_this_side(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    other.receive(9, 0, 64)?;
    let wrong = Sge { lkey: LKey(one.mr.lkey().0 ^ 0x0055_0000), ..one.sge(0, 8) };
    one.send(1, SendOp::Send, &[wrong])?;
    one.bad(1, WcStatus::LocProtErr)?;
    one.reaches(QpState::Err)?;
    Ok(())
}

fn a_message_that_is_too_long_ends_both_sides(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    other.receive(9, 0, 16)?;
    one.send(1, SendOp::Send, &[one.sge(0, 17)])?;
    other.bad(9, WcStatus::LocLenErr)?;
    one.bad(1, WcStatus::RemInvReqErr)?;
    one.reaches(QpState::Err)?;
    other.reaches(QpState::Err)
}

fn a_peer_without_receives_is_asked_so_often_and_no_more(bench: &Bench) -> Outcome {
    let path = Path { rnr_retry: 1, min_rnr_timer: 1, ..Path::default() };
    let (one, other) = bench.pair_with(&Shape::new(QpType::Rc), path)?;
    one.send(1, SendOp::Send, &[one.sge(0, 8)])?;
    one.bad(1, WcStatus::RnrRetryExcErr)?;
    one.reaches(QpState::Err)?;
    same!(other.state()?, QpState::Rts, "the peer, who did nothing wrong");
    Ok(())
}

fn a_peer_that_does_not_answer_is_given_up(bench: &Bench) -> Outcome {
    let (one, other) = (bench.end(&Shape::new(QpType::Rc))?, bench.end(&Shape::new(QpType::Rc))?);
    // A QP that was there a moment ago.
    let gone: Qpn = other.qp.qp_num();
    other.qp.destroy()?;
    bench.connect(&*one.qp, gone, Path { timeout: 12, retry_cnt: 1, ..Path::default() })?;
    one.send(1, SendOp::Write { remote_addr: 0, rkey: RKey(0) }, &[one.sge(0, 8)])?;
    one.bad(1, WcStatus::RetryExcErr)?;
    one.reaches(QpState::Err)
}

fn what_is_queued_is_flushed_in_order(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    for id in 0..4 {
        one.receive(id, 0, 64)?;
    }
    let (attr, mask) = QpAttr::error();
    one.qp.modify(&attr, mask)?;
    one.send(10, SendOp::Send, &[one.sge(0, 8)])?;
    one.receive(4, 0, 64)?;
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let wc = one.next()?;
        same!(wc.status, WcStatus::WrFlushErr, "the status of WR");
        same!(wc.qp_num, one.qp.qp_num(), "the QP");
        if wc.wr_id >= 10 { sends.push(wc.wr_id) } else { receives.push(wc.wr_id) }
    }
    same!((receives, sends), (vec![0, 1, 2, 3, 4], vec![10]), "what is flushed");
    drop(other);
    Ok(())
}

fn a_region_that_is_gone_is_refused(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let (remote_addr, rkey) = (other.mr.addr(), other.mr.rkey());
    other.mr.destroy()?;
    one.send(1, SendOp::Read { remote_addr, rkey }, &[one.sge(0, 8)])?;
    one.bad(1, WcStatus::RemAccessErr)?;
    Ok(())
}

fn a_region_of_another_domain_is_refused(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let elsewhere = bench.context.alloc_pd()?;
    let foreign = elsewhere.alloc_mr(4096, ALL_RIGHTS)?;
    let op = SendOp::Write { remote_addr: foreign.addr(), rkey: foreign.rkey() };
    one.send(1, op, &[one.sge(0, 8)])?;
    one.bad(1, WcStatus::RemAccessErr)?;
    drop(other);
    Ok(())
}

fn a_full_send_queue_is_refused_and_works_again(bench: &Bench) -> Outcome {
    // The peer has no receives: nothing completes, and the queue fills.
    let path = Path { rnr_retry: 7, min_rnr_timer: 8, ..Path::default() };
    let (one, other) = bench.pair_with(&Shape::new(QpType::Rc), path)?;
    let room = u64::from(one.qp.query()?.1.cap.max_send_wr);
    let list = [one.sge(0, 8)];
    let wr = |id| SendWr { flags: SendFlags::SIGNALED, sg_list: &list, ..SendWr::new(id, SendOp::Send) };
    let mut posted = 0;
    let error = loop {
        match one.qp.post_send(&[wr(posted)]) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        ensure!(posted <= room + 1, "{posted} sends fit into a queue of {room}");
    };
    same!(error.errno, scalefabric_verbs::Errno::ENOMEM, "the errno of a full queue");
    ensure!(posted >= room, "{posted} sends fit into a queue of {room}");
    for id in 0..posted {
        other.receive(id, 0, 64)?;
        other.good(id)?;
        one.good(id)?;
    }
    other.receive(0, 0, 64)?;
    one.qp.post_send(&[wr(1)])?;
    one.good(1)?;
    Ok(())
}

fn a_list_that_is_too_long_is_refused(bench: &Bench) -> Outcome {
    let (one, _other) = bench.pair(QpType::Rc)?;
    let cap = one.qp.query()?.1.cap;
    let list = vec![one.sge(0, 8); cap.max_send_sge.max(cap.max_recv_sge) as usize + 1];
    let mut wr = SendWr::new(1, SendOp::Send);
    wr.sg_list = &list;
    let send = one.qp.post_send(&[wr]).err();
    same!(send.map(|error| error.errno), Some(scalefabric_verbs::Errno::EINVAL), "a send with too many SGEs");
    let receive = one.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &list }]).err();
    same!(receive.map(|error| error.errno), Some(scalefabric_verbs::Errno::EINVAL), "a receive with too many SGEs");
    Ok(())
}
