//! A trunk takes another path while its peers are spoken with: a second pair of QPs is made ready beside the first, nothing new is begun on the old one until all
//! that was begun has ended, the old target is stopped, and what waited is posted on the new one. A target sends nothing of its own, so that an initiator whose
//! operations have ended leaves nothing behind on either end; and an initiator belongs to one process, which therefore decides alone. Until the old target is
//! stopped all can be taken back; what fails after that is mended as any QP that fails.

use super::super::hub::Hubs;
use super::super::lane::alternatives;
use super::super::link::lock;
use super::line::Line;
use super::meeting::{Answer, Ask, refused};
use super::trunk::{Begun, Readied, Trunk};
use crate::directory::{ConnectionRecord, ConnectionState, FencingToken, OrderResult};
use crate::error::{FabricError, Fault};
use crate::path::Path;
use crate::session::{Change, LaneId, QpOffer, Strategy};
use scalefabric_verbs::Gid;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Looks at a queue that drains before there is a pause between two.
const QUICK_LOOKS: u32 = 200;

impl Trunk {
    /// Takes a path, as ordered.
    pub async fn take_path(self: &Arc<Self>, change: &Change) -> OrderResult {
        if let Err(fenced) = self.obey(change.token) {
            return fenced;
        }
        if change.strategy.is_some_and(|strategy| strategy != Strategy::MakeBeforeBreak) || change.peer_path.is_some() {
            let reason = "an XRC connection moves by a second QP, and its peer's end follows the path's dgid".into();
            return OrderResult::RolledBack { reason };
        }
        match self.hand_over(&change.path).await {
            Ok(pause) => {
                self.moves.fetch_add(1, Ordering::Relaxed);
                let pause_us = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
                OrderResult::Done { generation: self.generation(), pause_us }
            }
            Err(error) => OrderResult::RolledBack { reason: error.message },
        }
    }

    /// Ends it, as ordered.
    pub fn close(self: &Arc<Self>, reason: &str, token: FencingToken) -> OrderResult {
        if let Err(fenced) = self.obey(token) {
            return fenced;
        }
        self.end(FabricError::new(Fault::Closed, format!("closed: {reason}")));
        self.fail();
        OrderResult::Done { generation: self.generation(), pause_us: 0 }
    }

    /// How often it has moved.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// Looks at the authority of an order and remembers it.
    fn obey(&self, token: FencingToken) -> Result<(), OrderResult> {
        let mut highest = lock(&self.highest);
        if token < *highest {
            return Err(OrderResult::Fenced { highest: *highest });
        }
        *highest = token;
        Ok(())
    }

    fn generation(&self) -> u64 {
        lock(&self.record).as_ref().map_or(0, |record| record.generation)
    }

    /// Brings the directory's record up to date.
    pub(super) fn tell(&self, state: ConnectionState) {
        let mut record = lock(&self.record);
        let end = lock(&self.end);
        let generation = record.as_ref().map_or(0, |record| record.generation);
        let device = &end.path.device;
        let mut new = ConnectionRecord {
            id: self.id.clone(),
            tenant: self.shared.config.tenant.clone(),
            service: self.service.clone(),
            qp_num: end.qp.qp_num().get(),
            peer_qp_num: end.target,
            path: end.path.clone(),
            alternatives: of_device(&self.shared.hubs, &end.path, device),
            state,
            generation,
        };
        drop(end);
        if record.as_ref() != Some(&new) {
            new.generation += 1;
            self.shared.directory.publish(new.clone());
            *record = Some(new);
        }
    }

    /// Makes the second pair of QPs, and goes over to it; how long nothing new was begun. An error: everything is as before, or is being mended.
    async fn hand_over(self: &Arc<Self>, path: &Path) -> Result<Duration, FabricError> {
        // Nobody comes to the trunk meanwhile, and nobody mends it, by a target that is about to go.
        let _turn = self.turn.lock().await;
        let lines = self.lines();
        if lines.is_empty() || !self.is_open() {
            return Err(FabricError::new(
                Fault::Closed,
                "the connection is closed, or nobody is reached by it any more",
            ));
        }
        let cq = lock(&self.sender).queue(0).ok_or_else(|| FabricError::environment("the queue is gone"))?;
        let begun = Begun::on(&self.shared, path.clone(), self.pkey, &cq)?;
        let present = lock(&self.end).path.dgid;
        // A path to where the peer is already leaves its end where it is.
        let wanted = if path.dgid == Gid::ZERO { present } else { path.dgid };
        let (target, first) = self.ask_beside(&lines, &begun.offer, wanted).await?;
        self.tell(ConnectionState::Moving);
        let old = self.target();
        let went = self.go_over(begun, &target, &lines, first).await;
        let (left, but) = match &went {
            Ok((_, who)) => (old, Some(*who)),
            Err(_) => (target.qp_num, None),
        };
        for (_, line) in lines.iter().enumerate().filter(|(index, _)| Some(*index) != but) {
            // Who is gone has left it, too.
            let _ = line.ask(&Ask::Leave { target: left }).await;
        }
        if !self.mending.load(Ordering::SeqCst) && self.is_open() {
            self.tell(ConnectionState::Up);
        }
        went.map(|(pause, _)| pause)
    }

    /// Has a member of the domain make a new target, and the others open it; which line it was.
    async fn ask_beside(&self, lines: &[Arc<Line>], qp: &QpOffer, at: Gid) -> Result<(QpOffer, usize), FabricError> {
        let mut trouble = FabricError::unreachable("nobody of the domain answers");
        for (first, line) in lines.iter().enumerate() {
            let make = Ask::Make { qp: qp.clone(), gid: Some(at.0.into()), beside: true };
            let made = match line.ask(&make).await {
                Ok(Answer::Made { qp }) => qp.check().map(|()| qp),
                Ok(answer) => Err(refused(answer)),
                Err(error) => Err(error),
            };
            let target = match made {
                Ok(target) => target,
                Err(error) => {
                    trouble = error;
                    continue;
                }
            };
            for (_, line) in lines.iter().enumerate().filter(|(index, _)| *index != first) {
                // Its SRQ is reached in any case; that it holds the QP keeps the QP there when others go.
                let _ = line.ask(&Ask::Use { target: target.qp_num, beside: true }).await;
            }
            return Ok((target, first));
        }
        Err(trouble)
    }

    /// Drains the old QP and posts on the new one; the pause, and who has left the old target by then.
    async fn go_over(
        self: &Arc<Self>,
        begun: Begun,
        target: &QpOffer,
        lines: &[Arc<Line>],
        first: usize,
    ) -> Result<(Duration, usize), FabricError> {
        let (before, old_target) = {
            let end = lock(&self.end);
            (end.lane, end.target)
        };
        let lane = LaneId(before.0 + 1);
        let Readied { qp, outlet, path } = begun.ready(&self.shared, target, lane)?;
        let since = Instant::now();
        let who = match self.come_to_rest(before, old_target, lines, first).await {
            Ok(who) => who,
            Err(error) => {
                let mut sender = lock(&self.sender);
                if sender.lane() == Some(before) {
                    sender.release();
                }
                drop(sender);
                self.bell.ring();
                let _ = qp.destroy();
                return Err(error);
            }
        };
        let old = {
            let mut sender = lock(&self.sender);
            if let Err(error) = self.still(sender.lane(), before) {
                drop(sender);
                let _ = qp.destroy();
                return Err(error);
            }
            let mut end = lock(&self.end);
            (end.target, end.lane, end.path) = (target.qp_num, lane, path);
            let old = std::mem::replace(&mut end.qp, qp);
            drop(end);
            sender.use_lane(outlet);
            old
        };
        let pause = since.elapsed();
        let _ = old.destroy();
        self.bell.ring();
        Ok((pause, who))
    }

    /// Waits until all that was posted on the old QP has ended, and has its target stopped: what came by it is then told, before anything comes by another. Who
    /// stopped it.
    async fn come_to_rest(
        self: &Arc<Self>,
        before: LaneId,
        old_target: u32,
        lines: &[Arc<Line>],
        first: usize,
    ) -> Result<usize, FabricError> {
        let patience = Duration::from_nanos(self.shared.config.patience.step_ns);
        let (since, mut looks) = (Instant::now(), 0);
        loop {
            let (ended, idle) = {
                let mut sender = lock(&self.sender);
                self.still(sender.lane(), before)?;
                if looks == 0 {
                    sender.hold();
                }
                (self.drive(&mut sender)?, sender.is_idle())
            };
            if ended {
                self.bell.ring();
            }
            if idle {
                break;
            }
            if since.elapsed() >= patience {
                return Err(FabricError::unreachable(
                    "what was posted did not end in time: a peer takes no messages, or is out of reach",
                ));
            }
            looks += 1;
            match looks {
                1..QUICK_LOOKS => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        let mut trouble = FabricError::unreachable("nobody of the domain answers");
        for index in (first..lines.len()).chain(0..first) {
            match lines[index].ask(&Ask::Leave { target: old_target }).await {
                Ok(Answer::Ready) => return Ok(index),
                Ok(answer) => trouble = refused(answer),
                Err(error) => trouble = error,
            }
        }
        Err(trouble)
    }

    /// An error if the QP that was to be left has failed meanwhile.
    fn still(&self, present: Option<LaneId>, before: LaneId) -> Result<(), FabricError> {
        if self.mending.load(Ordering::SeqCst) || present != Some(before) {
            return Err(FabricError::environment("the QP had to be made anew meanwhile"));
        }
        Ok(())
    }
}

/// Other paths of the same device: the domain is there.
fn of_device(hubs: &Hubs, path: &Path, device: &str) -> Vec<Path> {
    let mut others = alternatives(hubs, path);
    others.retain(|other| other.device == device);
    others
}
