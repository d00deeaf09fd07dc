//! Completion events and asynchronous events.

use std::time::Duration;

use scalefabric_verbs::{
    AsyncEvent, EventSubject, EventType, QpAttr, QpInit, QpType, RKey, SendFlags, SendOp, SendWr, SrqInit,
};

use super::bench::{Bench, PATIENCE, Path, Shape};
use super::{Outcome, Stop, cases, ensure, same};

cases![
    a_completion_rings_once_for_each_request,
    a_solicited_request_sleeps_through_others,
    nothing_rings_without_a_completion,
    a_refused_access_is_told_to_its_owner,
    a_qp_with_a_shared_queue_tells_its_last_receive,
];

const SHORT: Option<Duration> = Some(Duration::from_millis(100));

fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of ours.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// A receiver whose receives ring on a channel, and its sender.
struct Ringing {
    sender: super::bench::End,
    receiver: super::bench::End,
    channel: std::sync::Arc<dyn scalefabric_verbs::CompletionChannel>,
}

fn ringing(bench: &Bench) -> Result<Ringing, Stop> {
    let channel = bench.context.create_comp_channel()?;
    let cq = bench.context.create_cq(64, Some(channel.clone()), 0)?;
    let shape = Shape::new(QpType::Rc);
    let mut receiver = bench.end(&shape)?;
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: shape.cap,
        sq_sig_all: true,
    };
    receiver.qp = receiver.pd.create_qp(&init)?;
    receiver.cq = cq;
    let sender = bench.end(&shape)?;
    bench.connect(&*receiver.qp, sender.qp.qp_num(), Path::default())?;
    bench.connect(&*sender.qp, receiver.qp.qp_num(), Path::default())?;
    for id in 0..8 {
        receiver.receive(id, 0, 64)?;
    }
    Ok(Ringing { sender, receiver, channel })
}

impl Ringing {
    fn send(&self, id: u64, flags: SendFlags) -> Outcome {
        let list = [self.sender.sge(0, 8)];
        let mut wr = SendWr::new(id, SendOp::Send);
        (wr.flags, wr.sg_list) = (flags | SendFlags::SIGNALED, &list);
        self.sender.qp.post_send(&[wr])?;
        self.sender.good(id)?;
        Ok(())
    }

    fn rings(&self) -> Outcome {
        let cq = self.channel.wait(Some(PATIENCE))?;
        let Some(cq) = cq else { return Err(Stop::Fail("no event".to_owned())) };
        same!(cq.cq_num(), self.receiver.cq.cq_num(), "the queue that rings");
        Ok(())
    }

    fn silent(&self) -> Outcome {
        ensure!(self.channel.wait(SHORT)?.is_none(), "an event that nobody asked for");
        ensure!(!is_readable(self.channel.fd()), "the descriptor is readable without an event");
        Ok(())
    }
}

fn a_completion_rings_once_for_each_request(bench: &Bench) -> Outcome {
    let ringing = ringing(bench)?;
    ringing.receiver.cq.req_notify(false)?;
    ringing.silent()?;
    ringing.send(0, SendFlags::empty())?;
    ringing.rings()?;
    ringing.receiver.good(0)?;
    // Not asked again: silence.
    ringing.send(1, SendFlags::empty())?;
    ringing.silent()?;
    ringing.receiver.good(1)?;
    ringing.receiver.cq.req_notify(false)?;
    ringing.send(2, SendFlags::empty())?;
    ringing.rings()?;
    ringing.receiver.good(2)?;
    Ok(())
}

fn a_solicited_request_sleeps_through_others(bench: &Bench) -> Outcome {
    let ringing = ringing(bench)?;
    ringing.receiver.cq.req_notify(true)?;
    ringing.send(0, SendFlags::empty())?;
    ringing.silent()?;
    ringing.send(1, SendFlags::SOLICITED)?;
    ringing.rings()?;
    ringing.receiver.good(0)?;
    ringing.receiver.good(1)?;
    Ok(())
}

fn nothing_rings_without_a_completion(bench: &Bench) -> Outcome {
    let channel = bench.context.create_comp_channel()?;
    let cq = bench.context.create_cq(4, Some(channel.clone()), 0)?;
    cq.req_notify(false)?;
    ensure!(channel.wait(SHORT)?.is_none(), "an event out of nothing");
    ensure!(bench.context.get_async_event(SHORT)?.is_none(), "an asynchronous event out of nothing");
    ensure!(bench.context.async_fd() >= 0 && !is_readable(bench.context.async_fd()), "the descriptor is readable");
    Ok(())
}

/// The next asynchronous event of a kind; others of the QP's life (COMM_EST) may come before.
fn event(bench: &Bench, event_type: EventType) -> Result<AsyncEvent, Stop> {
    loop {
        match bench.context.get_async_event(Some(PATIENCE))? {
            Some(event) if event.event_type == event_type => return Ok(event),
            Some(event) if event.event_type == EventType::CommEst => {}
            Some(event) => return Err(Stop::Fail(format!("{event:?}, not {event_type:?}"))),
            None => return Err(Stop::Fail(format!("no event {event_type:?}"))),
        }
    }
}

fn a_refused_access_is_told_to_its_owner(bench: &Bench) -> Outcome {
    let (one, other) = bench.pair(QpType::Rc)?;
    let op = SendOp::Write { remote_addr: other.mr.addr(), rkey: RKey(other.mr.rkey().0 ^ 0x5500_0000) };
    one.send(1, op, &[one.sge(0, 8)])?;
    one.bad(1, scalefabric_verbs::WcStatus::RemAccessErr)?;
    let told = event(bench, EventType::QpAccessErr)?;
    same!(told.subject, EventSubject::QueuePair(other.qp.qp_num()), "to what it happened");
    Ok(())
}

fn a_qp_with_a_shared_queue_tells_its_last_receive(bench: &Bench) -> Outcome {
    if bench.attr.max_srq == 0 {
        return Err(Stop::Skip("the device has no shared receive queues".to_owned()));
    }
    let pd = bench.context.alloc_pd()?;
    let srq = pd.create_srq(&SrqInit { max_wr: 8, max_sge: 1, srq_limit: 0, xrc: None })?;
    let mut shape = Shape::new(QpType::Rc);
    (shape.pd, shape.srq) = (Some(pd), Some(srq));
    (shape.cap.max_recv_wr, shape.cap.max_recv_sge) = (0, 0);
    let end = bench.end(&shape)?;
    bench.connect(&*end.qp, end.qp.qp_num(), Path::default())?;
    let (attr, mask) = QpAttr::error();
    end.qp.modify(&attr, mask)?;
    let told = event(bench, EventType::QpLastWqeReached)?;
    same!(told.subject, EventSubject::QueuePair(end.qp.qp_num()), "to what it happened");
    Ok(())
}
