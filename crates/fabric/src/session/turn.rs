//! A change of path that keeps the QPs: what was begun on a QP ends (SQD), it takes a new address vector, and goes on. Where only the source port or the DSCP
//! changes, a side does it alone and its peer need not know. Where an address changes, both QPs must hear the other by its new one: then the leader says
//! *Redirect*, the follower drains and says *Quiet*, the leader drains, takes its vector and says *Turn*, the follower takes its own and says *Turned*. While
//! both are drained nothing of either is on its way, so nothing can be lost with the old address. Until Turn all can be taken back; after it only a rebuild
//! mends what goes wrong.
//!
//! With alternate paths (APM) the words are the same and nobody drains: Quiet says that the follower has loaded its path; the leader loads its own, waits until
//! both are armed, migrates, and says Turn. What was on its way by the old path is sent again by the new one, as after any loss. The leader loads last, so that
//! until then nobody is armed, and what is taken back was never taken.

use super::act::{Action, Change};
use super::machine::{Phase, Role, Session};
use super::message::{Body, LaneId, Redirect, Strategy};
use super::order::Giver;
use crate::directory::{ConnectionState, OrderResult};
use crate::path::Path;
use std::net::Ipv6Addr;

/// A change of vectors that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turning {
    lane: LaneId,
    /// The path from this side; `None`: only the peer's GID changes.
    path: Option<Path>,
    /// The peer's GID from then on; `None`: it stays, or is not known yet.
    dgid: Option<Ipv6Addr>,
    /// The order, and who gave it; it is tried in another way if this one fails.
    order: Option<(Change, Giver)>,
    step: Step,
    /// By an alternate path, instead of a new vector in SQD.
    alternate: bool,
    /// Since when nothing new is begun on the QP.
    since_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Alone: waits until the queue is drained, then for the vector.
    Alone,
    /// Leader: has said Redirect, or will when there is a channel; waits for Quiet.
    Asking(Redirect),
    /// Leader: the follower is drained; waits until this side is, and for the vector.
    Leading(u64),
    /// Leader: has said Turn; waits for Turned.
    Said(u64),
    /// Follower: waits until its queue is drained.
    Draining(u64),
    /// Follower: has said Quiet; waits for Turn.
    Quiet(u64, Ipv6Addr),
    /// Follower: waits for its vector.
    Following(u64),
    /// Follower: the leader took it back; goes on as soon as the queue is drained, for before that it cannot.
    Leaving,
}

/// How a change is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A second QP.
    Second,
    /// A new vector here, of which the peer need not know.
    Alone,
    /// New vectors on both sides.
    Together,
    /// Alternate paths on both sides.
    Alternate,
}

impl Session {
    /// The way of a change: the best that is allowed, and that both sides have.
    pub(super) fn way(&self, change: &Change) -> Result<Way, String> {
        let same_place = |present: &Path| {
            let wanted = &change.path;
            (&present.device, present.port_num, present.sgid) == (&wanted.device, wanted.port_num, wanted.sgid)
        };
        let alone = change.peer_path.is_none() && self.setup.path.as_ref().is_some_and(same_place);
        let (here, there) = (self.setup.abilities, self.peer_abilities);
        // A QP stays on its device.
        let stays = self.setup.path.as_ref().is_some_and(|present| present.device == change.path.device);
        let vector = match (here.drained_vector && stays, alone, there.drained_vector) {
            (true, true, _) => Some(Way::Alone),
            (true, false, true) => Some(Way::Together),
            _ => None,
        };
        let alternate = (stays && here.alternate_path && there.alternate_path).then_some(Way::Alternate);
        match change.strategy {
            None => Ok(vector.or(alternate).unwrap_or(Way::Second)),
            Some(Strategy::MakeBeforeBreak) => Ok(Way::Second),
            Some(Strategy::DrainedVector) => vector.ok_or_else(|| {
                "a new vector in SQD is not something that the QPs of both sides take, or it is another device's".into()
            }),
            Some(Strategy::AlternatePath) => alternate.ok_or_else(|| {
                "an alternate path is not something that the QPs of both sides load, or it is another device's".into()
            }),
        }
    }

    /// This side alone.
    pub(super) fn turn_alone(&mut self, change: Change, giver: Giver, now_ns: u64) {
        let Some(lane) = self.lane else { return };
        let path = Some(change.path.clone());
        self.begin_turn(lane, path.clone(), Some((change, giver)), (Step::Alone, false), now_ns);
        self.push(Action::Drain { lane, path });
    }

    /// Leader: both sides, by new vectors or by alternate paths.
    pub(super) fn turn_together(&mut self, change: Change, giver: Giver, alternate: bool, now_ns: u64) {
        let Some(lane) = self.lane else { return };
        self.redirections += 1;
        let redirect = Redirect {
            number: self.redirections,
            lane,
            gid: Ipv6Addr::from(change.path.sgid.0),
            peer_path: change.peer_path.clone(),
            token: self.highest,
            alternate,
        };
        let (path, step) = (Some(change.path.clone()), Step::Asking(redirect.clone()));
        self.begin_turn(lane, path, Some((change, giver)), (step, alternate), now_ns);
        self.send(Body::Redirect(redirect));
    }

    fn begin_turn(
        &mut self,
        lane: LaneId,
        path: Option<Path>,
        order: Option<(Change, Giver)>,
        (step, alternate): (Step, bool),
        now_ns: u64,
    ) {
        self.report(ConnectionState::Moving);
        let turning = Turning { lane, path, dgid: None, order, step, alternate, since_ns: now_ns };
        self.phase = Phase::Turning(Box::new(turning));
        self.step(now_ns);
    }

    /// Makes the QP ready for what comes: drained, or with its alternate path.
    fn prepare(&mut self) {
        let Phase::Turning(turning) = &self.phase else { return };
        let (lane, path, dgid) = (turning.lane, turning.path.clone(), turning.dgid);
        self.push(if turning.alternate { Action::Load { lane, path, dgid } } else { Action::Drain { lane, path } });
    }

    /// The QP takes the new path.
    fn take(&mut self) {
        let Phase::Turning(turning) = &self.phase else { return };
        let (lane, path, dgid) = (turning.lane, turning.path.clone(), turning.dgid);
        self.push(if turning.alternate { Action::Migrate { lane } } else { Action::Vector { lane, path, dgid } });
    }

    /// The QP goes on as before.
    fn release(&mut self) {
        let Phase::Turning(turning) = &self.phase else { return };
        let lane = turning.lane;
        self.push(if turning.alternate { Action::Unload { lane } } else { Action::Resume { lane } });
    }

    /// Follower: the leader wants new vectors.
    pub(super) fn follow_redirect(&mut self, redirect: Redirect, now_ns: u64) {
        self.highest = self.highest.max(redirect.token);
        let Redirect { number, lane, gid, peer_path, alternate, .. } = redirect.clone();
        if number < self.redirections {
            return; // Old.
        }
        if matches!(&self.phase, Phase::Accepted(begin, _) if begin.lane == lane) {
            // It is the lane in use: that it was decided was said on a channel that broke.
            self.follow_commit(lane, now_ns);
        }
        let again = number == self.redirections;
        match &self.phase {
            Phase::Turning(turning) => match turning.step {
                // Said again, because the channel broke.
                Step::Quiet(_, own) if again => return self.send(Body::Quiet { number, gid: own }),
                _ if again => return,
                Step::Alone => {
                    self.deferred = Some(Body::Redirect(redirect));
                    return;
                }
                // It was taken back, and the word of it was lost.
                _ => {}
            },
            Phase::Up if self.lane == Some(lane) && !again => {}
            _ => {
                let reason = "another change has not ended yet".into();
                return self.send(Body::RedirectRefused { number, reason });
            }
        }
        self.redirections = number;
        // Only the leader ends this wait, while nothing new is begun here.
        self.begin_to_give_up(now_ns);
        self.begin_turn(lane, peer_path, None, (Step::Draining(number), alternate), now_ns);
        if let Phase::Turning(turning) = &mut self.phase {
            turning.dgid = Some(gid);
        }
        self.prepare();
    }

    /// Leader: the follower is drained, or has loaded its path.
    pub(super) fn lead_quiet(&mut self, number: u64, gid: Ipv6Addr, now_ns: u64) {
        let Phase::Turning(turning) = &mut self.phase else { return };
        if !matches!(&turning.step, Step::Asking(redirect) if redirect.number == number) {
            return;
        }
        (turning.step, turning.dgid, turning.since_ns) = (Step::Leading(number), Some(gid), now_ns);
        self.step(now_ns);
        self.prepare();
    }

    /// This side's queue is drained, or has its alternate path.
    pub(super) fn handle_quiet(&mut self, lane: LaneId, now_ns: u64) {
        let Phase::Turning(turning) = &mut self.phase else { return };
        if turning.lane != lane {
            return;
        }
        match turning.step {
            Step::Alone | Step::Leading(_) => self.take(),
            Step::Draining(number) => {
                let path = turning.path.as_ref().or(self.setup.path.as_ref());
                let Some(gid) = path.map(|path| Ipv6Addr::from(path.sgid.0)) else { return };
                turning.step = Step::Quiet(number, gid);
                self.step_at = None;
                self.send(Body::Quiet { number, gid });
            }
            Step::Leaving => {
                self.release();
                self.up(now_ns);
            }
            Step::Asking(_) | Step::Said(_) | Step::Quiet(..) | Step::Following(_) => {}
        }
    }

    /// Follower: the leader has its vector.
    pub(super) fn follow_turn(&mut self, number: u64, now_ns: u64) {
        match &mut self.phase {
            Phase::Turning(turning) if matches!(turning.step, Step::Quiet(of, _) if of == number) => {
                turning.step = Step::Following(number);
                self.step(now_ns);
                self.take();
            }
            // Its channel broke: our word was lost.
            Phase::Up if self.turned == number => self.send(Body::Turned { number }),
            _ => {}
        }
    }

    /// This side's QP has its vector.
    pub(super) fn handle_vectored(&mut self, lane: LaneId, now_ns: u64) {
        let Phase::Turning(turning) = &mut self.phase else { return };
        if turning.lane != lane {
            return;
        }
        match turning.step {
            Step::Alone => self.end_turn(now_ns),
            Step::Leading(number) => {
                turning.step = Step::Said(number);
                self.step(now_ns);
                self.send(Body::Turn { number });
            }
            Step::Following(number) => {
                self.turned = number;
                self.send(Body::Turned { number });
                self.end_turn(now_ns);
            }
            _ => {}
        }
    }

    /// Leader: the follower has its vector.
    pub(super) fn lead_turned(&mut self, number: u64, now_ns: u64) {
        if matches!(&self.phase, Phase::Turning(turning) if turning.step == Step::Said(number)) {
            self.end_turn(now_ns);
        }
    }

    fn end_turn(&mut self, now_ns: u64) {
        let Phase::Turning(turning) = &self.phase else { return };
        let (order, path) = (turning.order.clone(), turning.path.clone());
        let pause_us = if turning.alternate { 0 } else { now_ns.saturating_sub(turning.since_ns).div_ceil(1000) };
        if !turning.alternate {
            self.release();
        }
        // What a follower had asked for.
        let asked = match self.setup.role {
            Role::Follower if order.is_none() => self.take_asked(path.as_ref()),
            _ => None,
        };
        let own = match order {
            Some((_, Giver::Here(ticket))) => Some(ticket),
            _ => None,
        };
        self.rest();
        if let Some(ticket) = own.or(asked) {
            self.answer(ticket, OrderResult::Done { generation: self.generation, pause_us });
        }
        self.proceed(now_ns);
    }

    /// The QP could not be drained, or refused the vector; it has the one that it had.
    pub(super) fn handle_not_vectored(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        let Phase::Turning(turning) = &self.phase else { return };
        if turning.lane != lane {
            return;
        }
        match turning.step {
            Step::Alone | Step::Leading(_) => self.leave_turn(reason, true, now_ns),
            Step::Draining(number) => {
                self.send(Body::RedirectRefused { number, reason });
                self.release();
                self.up(now_ns);
            }
            Step::Leaving => self.up(now_ns),
            // The leader has its vector already.
            Step::Following(_) => self.handle_broken(lane, reason, now_ns),
            Step::Asking(_) | Step::Said(_) | Step::Quiet(..) => {}
        }
    }

    /// Leader: the follower refuses.
    pub(super) fn lead_redirect_refused(&mut self, number: u64, reason: String, now_ns: u64) {
        let Phase::Turning(turning) = &self.phase else { return };
        if matches!(&turning.step, Step::Asking(redirect) if redirect.number == number) {
            self.leave_turn(format!("the peer could not: {reason}"), true, now_ns);
        }
    }

    /// Nothing has been changed yet: on as before, or by `another_way` if the order allows one.
    fn leave_turn(&mut self, reason: String, another_way: bool, now_ns: u64) {
        let Phase::Turning(turning) = &self.phase else { return };
        let turning = turning.clone();
        match turning.step {
            // Who refused knows.
            Step::Asking(_) if another_way => {}
            Step::Asking(Redirect { number, .. }) | Step::Leading(number) => {
                self.send(Body::RedirectAborted { number, reason: reason.clone() });
            }
            _ => {}
        }
        if !matches!(turning.step, Step::Asking(_)) {
            self.release();
        }
        let Some((change, giver)) = turning.order else { return self.up(now_ns) };
        let second = another_way && change.strategy.is_none();
        match (self.setup.role, second) {
            (Role::Leader, true) => self.move_by_second_qp(change, giver, now_ns),
            (Role::Follower, true) => {
                let change = Change { strategy: Some(Strategy::MakeBeforeBreak), ..change };
                self.waiting.push_front((change, giver));
                self.up(now_ns);
            }
            (_, false) => {
                self.refuse_move(giver, reason);
                self.up(now_ns);
            }
        }
    }

    /// Follower: the leader took it back before it changed anything.
    pub(super) fn follow_redirect_aborted(&mut self, number: u64, now_ns: u64) {
        self.deferred.take_if(|body| matches!(body, Body::Redirect(redirect) if redirect.number == number));
        if self.redirections == number {
            self.stop_following(now_ns);
        }
    }

    /// Goes on as before, if this is a redirection of the leader's that has changed nothing here.
    pub(super) fn stop_following(&mut self, now_ns: u64) {
        let Phase::Turning(turning) = &mut self.phase else { return };
        match turning.step {
            Step::Draining(_) => {
                turning.step = Step::Leaving;
                self.step(now_ns);
            }
            Step::Quiet(..) => {
                self.release();
                self.up(now_ns);
            }
            _ => {}
        }
    }

    /// A step took too long.
    pub(super) fn turn_timeout(&mut self, now_ns: u64) {
        let Phase::Turning(turning) = &self.phase else { return };
        let lane = turning.lane;
        match turning.step {
            Step::Asking(_) => {
                let why =
                    if self.channel { "the peer did not answer in time" } else { "there is no channel to the peer" };
                self.leave_turn(why.into(), false, now_ns);
            }
            // The peer's application takes no messages, or the peer is gone. A rebuild needs no drain.
            _ => self.handle_broken(lane, "the QP was not drained for its new path in time".into(), now_ns),
        }
    }

    /// Leader, on a new channel: says again what was said last.
    pub(super) fn repeat_turn(&mut self, now_ns: u64) {
        let Phase::Turning(turning) = &self.phase else { return };
        let body = match &turning.step {
            Step::Asking(redirect) => Body::Redirect(redirect.clone()),
            Step::Said(number) => Body::Turn { number: *number },
            // Commit would tell the follower that the redirection was taken back.
            Step::Leading(_) => return,
            _ => return self.say_lane(),
        };
        self.send(body);
        self.step(now_ns);
    }

    /// Follower: changes its own vector, and what the leader begins meanwhile can wait for that.
    pub(super) fn turns_alone(&self) -> bool {
        matches!(&self.phase, Phase::Turning(turning) if turning.step == Step::Alone)
    }
}

impl Turning {
    /// Who gave the order that is carried out.
    pub fn giver(&self) -> Option<Giver> {
        self.order.as_ref().map(|(_, giver)| *giver)
    }
}
