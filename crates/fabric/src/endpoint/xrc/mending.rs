//! A trunk whose QP has failed is made anew: stopped and drained here, its target stopped there, a new pair of QPs, and then each operation that was outstanding is
//! done, posted again, or told as in doubt, by what the old target had executed. Operations that are posted meanwhile wait. It goes on with back-off until
//! somebody answers, nobody is left to be reached, or [`crate::session::Patience::give_up_ns`] has passed.

use super::super::link::lock;
use super::super::resolve::resolve_by_psn;
use super::super::send::MARKER;
use super::line::Line;
use super::meeting::{Answer, Ask, refused};
use super::trunk::{Begun, Readied, Trunk};
use crate::directory::ConnectionState;
use crate::error::{FabricError, Fault};
use crate::session::{Backoff, LaneId, QpOffer};
use scalefabric_verbs::{QpAttr, SendFlags, SendOp, SendWr, Srqn};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A QP in ERR that has not flushed all by then will not.
const FLUSH: Duration = Duration::from_secs(1);

impl Trunk {
    /// The QP has failed. Whoever finds it says so; it is mended once.
    pub(super) fn begin_to_mend(self: &Arc<Self>) {
        if !self.mending.swap(true, Ordering::SeqCst) {
            let trunk = self.clone();
            self.shared.handle.spawn(async move { trunk.mend().await });
        }
    }

    async fn mend(self: &Arc<Self>) {
        let patience = self.shared.config.patience;
        let mut backoff = Backoff::new(self.shared.random());
        // A QP that is made anew and fails again before anything has come through has not been mended.
        let begun = *lock(&self.trouble_since).get_or_insert_with(Instant::now);
        self.tell(ConnectionState::Rebuilding);
        self.stop().await;
        self.broken.store(false, Ordering::SeqCst);
        loop {
            let error = match self.rebuild().await {
                Ok(()) if begun.elapsed() < Duration::from_nanos(patience.give_up_ns) => {
                    self.rebuilds.fetch_add(1, Ordering::Relaxed);
                    if lock(&self.sender).log.len() == 0 {
                        // Nobody waits for anything that could come through.
                        *lock(&self.trouble_since) = None;
                    }
                    self.mending.store(false, Ordering::SeqCst);
                    self.tell(ConnectionState::Up);
                    self.look();
                    // It may have failed again at once, and who saw that left it to us.
                    if self.broken.load(Ordering::SeqCst) {
                        self.begin_to_mend();
                    }
                    return;
                }
                Ok(()) => FabricError::unreachable("nothing comes through on any QP"),
                Err(error) => error,
            };
            if error.fault == Fault::Closed || begun.elapsed() >= Duration::from_nanos(patience.give_up_ns) {
                return self.end(error.during("the QP to the peer's host failed and was not made anew"));
            }
            tokio::time::sleep(Duration::from_nanos(backoff.pause_ns(&patience))).await;
        }
    }

    /// Takes completions on behalf of those who sleep.
    fn look(self: &Arc<Self>) {
        let _ = self.drive(&mut lock(&self.sender));
        self.bell.ring();
    }

    /// To ERR, and every completion taken.
    async fn stop(&self) {
        let qp = lock(&self.end).qp.clone();
        {
            let mut sender = lock(&self.sender);
            sender.drop_lane();
            sender.markers = 0;
        }
        let (attr, mask) = QpAttr::error();
        let _ = qp.modify(&attr, mask);
        let mut wr = SendWr::new(MARKER, SendOp::Send);
        (wr.flags, wr.xrc_srqn) = (SendFlags::SIGNALED, Some(Srqn::new(0)));
        let posted = qp.post_send(std::slice::from_ref(&wr)).is_ok();
        let begun = Instant::now();
        while begun.elapsed() < FLUSH {
            {
                let mut sender = lock(&self.sender);
                let _ = sender.poll();
                if sender.markers > 0 || !posted && sender.all_failed() {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }

    /// One try.
    async fn rebuild(&self) -> Result<(), FabricError> {
        // Nobody comes to the trunk meanwhile by a target that is about to go.
        let _turn = self.turn.lock().await;
        let lines = self.lines();
        if lines.is_empty() {
            return Err(FabricError::new(Fault::Closed, "nobody is reached by it any more"));
        }
        let cq = lock(&self.sender).queue(0).ok_or_else(|| FabricError::environment("the queue is gone"))?;
        let present = lock(&self.end).path.clone();
        // Where it was, or has been moved to, as long as that port is up.
        let begun = Begun::on(&self.shared, present, self.pkey, &cq)
            .or_else(|_| Begun::new(&self.shared, self.near, self.pkey, &cq))?;
        let (target, asked) = self.ask_for_target(&lines, &begun.offer).await?;
        target.check()?;
        for (_, line) in lines.iter().enumerate().filter(|(index, _)| *index != asked) {
            // Its SRQ is reached in any case; that it holds the QP keeps the QP there when others go.
            let _ = line.ask(&Ask::Use { target: target.qp_num, beside: false }).await;
        }
        let lane = LaneId(lock(&self.end).lane.0 + 1);
        let Readied { qp, outlet, path } = begun.ready(&self.shared, &target, lane)?;
        let (old, executed) = {
            let mut end = lock(&self.end);
            (end.target, end.lane, end.path) = (target.qp_num, lane, path);
            (std::mem::replace(&mut end.qp, qp), end.executed.take().flatten())
        };
        let _ = old.destroy();
        {
            let mut sender = lock(&self.sender);
            let (keys, messages) = (sender.bounds.keys, sender.messages);
            sender.repeated += resolve_by_psn(&mut sender.log, LaneId(lane.0 - 1), executed, keys);
            sender.restart(messages);
            sender.use_lane(outlet);
        }
        self.bell.ring();
        Ok(())
    }

    /// Has a member of the domain stop the old target and make a new one; which line it was.
    async fn ask_for_target(&self, lines: &[Arc<Line>], qp: &QpOffer) -> Result<(QpOffer, usize), FabricError> {
        let mut trouble = FabricError::unreachable("nobody of the domain answers");
        for (index, line) in lines.iter().enumerate() {
            let target = lock(&self.end).target;
            match line.ask(&Ask::Rebuild { target, qp: qp.clone() }).await {
                Ok(Answer::Rebuilt { qp, executed }) => {
                    let mut end = lock(&self.end);
                    // What the first said counts: a target that came after it, and was never used, has executed nothing.
                    end.executed.get_or_insert(executed);
                    end.target = qp.qp_num;
                    return Ok((qp, index));
                }
                Ok(answer) => trouble = refused(answer),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }

    /// It is given up: what is outstanding is told as what it is.
    pub(super) fn end(&self, error: FabricError) {
        lock(&self.sender).end(error);
        self.tell(ConnectionState::Closed);
        self.bell.ring();
    }
}
