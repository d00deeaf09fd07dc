//! Shared receive queues.

use std::sync::Arc;
use std::time::Duration;

use scalefabric_verbs::{
    Errno, EventSubject, EventType, ProtectionDomain, QpType, RecvWr, SendOp, SharedReceiveQueue, SrqInit,
};

use super::bench::{Bench, End, PATIENCE, Path, Shape, or_skip, refused};
use super::{Outcome, Stop, cases, ensure, same};

cases![
    two_qps_receive_from_one_queue,
    a_queue_holds_what_it_was_made_for,
    the_limit_is_told_once,
    a_qp_with_a_shared_queue_takes_no_receives_of_its_own,
];

struct Shared {
    pd: Arc<dyn ProtectionDomain>,
    srq: Arc<dyn SharedReceiveQueue>,
}

fn shared(bench: &Bench, max_wr: u32) -> Result<Shared, Stop> {
    if bench.attr.max_srq == 0 {
        return Err(Stop::Skip("the device has no shared receive queues (max_srq is 0)".to_owned()));
    }
    let pd = bench.context.alloc_pd()?;
    let srq = or_skip(pd.create_srq(&SrqInit { max_wr, max_sge: 2, srq_limit: 0, xrc: None }))?;
    Ok(Shared { pd, srq })
}

/// A sender, and a receiver with the shared queue.
fn ends(bench: &Bench, shared: &Shared) -> Result<(End, End), Stop> {
    let mut shape = Shape::new(QpType::Rc);
    (shape.pd, shape.srq) = (Some(shared.pd.clone()), Some(shared.srq.clone()));
    (shape.cap.max_recv_wr, shape.cap.max_recv_sge) = (0, 0);
    let receiver = bench.end(&shape)?;
    let sender = bench.end(&Shape::new(QpType::Rc))?;
    bench.connect(&*receiver.qp, sender.qp.qp_num(), Path::default())?;
    bench.connect(&*sender.qp, receiver.qp.qp_num(), Path::default())?;
    Ok((sender, receiver))
}

fn two_qps_receive_from_one_queue(bench: &Bench) -> Outcome {
    let shared = shared(bench, 16)?;
    let pairs = [ends(bench, &shared)?, ends(bench, &shared)?];
    for wr_id in 0..8 {
        let into = [pairs[0].1.sge(wr_id * 128, 128)];
        shared.srq.post_recv(&[RecvWr { wr_id, sg_list: &into }])?;
    }
    for round in 0..8_u64 {
        let (sender, receiver) = &pairs[round as usize % 2];
        sender.fill(0, 100, round as u8)?;
        sender.send(100 + round, SendOp::Send, &[sender.sge(0, 100)])?;
        let wc = receiver.good(round)?;
        same!((wc.byte_len, wc.qp_num), (100, receiver.qp.qp_num()), "the receive");
        sender.good(100 + round)?;
        let got = pairs[0].1.bytes(round as usize * 128, 100)?;
        ensure!(got == sender.bytes(0, 100)?, "message {round} differs");
    }
    Ok(())
}

fn a_queue_holds_what_it_was_made_for(bench: &Bench) -> Outcome {
    let shared = shared(bench, 4)?;
    let (max_wr, max_sge, limit) = shared.srq.query()?;
    ensure!(max_wr >= 4 && max_sge >= 2 && limit == 0, "made for 4 and 2: {max_wr} {max_sge} {limit}");
    let list = vec![scalefabric_verbs::Sge::default(); max_sge as usize + 1];
    let error = shared.srq.post_recv(&[RecvWr { wr_id: 2, sg_list: &list }]).err();
    same!(error.map(|error| error.errno), Some(Errno::EINVAL), "one SGE too many");
    let empty = RecvWr { wr_id: 1, sg_list: &[] };
    for _ in 0..max_wr {
        shared.srq.post_recv(&[empty])?;
    }
    let error = shared.srq.post_recv(&[empty]).err();
    same!(error.map(|error| error.errno), Some(Errno::ENOMEM), "one receive too many");
    refused(shared.srq.modify(None, Some(max_wr + 1)), Errno::EINVAL, "a limit above the size")?;
    Ok(())
}

fn the_limit_is_told_once(bench: &Bench) -> Outcome {
    let shared = shared(bench, 16)?;
    let (sender, receiver) = ends(bench, &shared)?;
    for wr_id in 0..4 {
        let into = [receiver.sge(0, 64)];
        shared.srq.post_recv(&[RecvWr { wr_id, sg_list: &into }])?;
    }
    shared.srq.modify(None, Some(3))?;
    same!(shared.srq.query()?.2, 3, "the limit");
    for id in 0..3 {
        sender.send(id, SendOp::Send, &[sender.sge(0, 8)])?;
        sender.good(id)?;
        receiver.good(id)?;
    }
    let event = bench.context.get_async_event(Some(PATIENCE))?;
    let Some(event) = event else { return Err(Stop::Fail("no event".to_owned())) };
    same!(event.event_type, EventType::SrqLimitReached, "the event");
    same!(event.subject, EventSubject::SharedReceiveQueue(shared.srq.srq_num()), "to what it happened");
    let more = bench.context.get_async_event(Some(Duration::from_millis(100)))?;
    ensure!(more.is_none(), "told twice: {more:?}");
    Ok(())
}

fn a_qp_with_a_shared_queue_takes_no_receives_of_its_own(bench: &Bench) -> Outcome {
    let shared = shared(bench, 16)?;
    let (_sender, receiver) = ends(bench, &shared)?;
    let error = receiver.qp.post_recv(&[RecvWr { wr_id: 1, sg_list: &[] }]).err();
    same!(error.map(|error| error.errno), Some(Errno::EINVAL), "a receive on the QP");
    Ok(())
}
