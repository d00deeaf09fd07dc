//! What the following side does: it makes its QP when the leader begins, accepts, and waits for the decision. Of its own it only tells what broke and asks
//! for moves.

use super::act::{Action, Change, Ticket};
use super::hand_over::HandOver;
use super::machine::{Asked, Phase, Session};
use super::message::{Accept, Begin, Body, LaneId, Purpose, QpOffer, Strategy};
use super::order::Giver;
use super::turn::Way;
use crate::directory::{ConnectionState, FencingToken};
use crate::path::Path;

impl Session {
    pub(super) fn follow_begin(&mut self, begin: Begin, now_ns: u64) {
        if matches!(begin.purpose, Purpose::Move(_)) && self.turns_alone() {
            self.deferred = Some(Body::Begin(begin));
            return;
        }
        let begin = Box::new(begin);
        self.highest = self.highest.max(begin.token);
        self.peer_abilities = begin.abilities;
        match &self.phase {
            // Said again, because the channel broke: what we answered may be lost.
            Phase::Accepted(old, accept) if old.lane == begin.lane => {
                let accept = (**accept).clone();
                return self.send(Body::Accept(accept));
            }
            Phase::FollowStopping(old) | Phase::FollowMaking(old) | Phase::FollowReadying(old, _)
                if old.lane == begin.lane =>
            {
                return;
            }
            Phase::Closing { .. } | Phase::Closed => return,
            _ => {}
        }
        if self.lane.is_some_and(|lane| begin.lane <= lane) {
            return; // Old.
        }
        // A rebuild takes everything, decided or not; a move goes on from what is decided.
        if let Some(present) = begin.present
            && begin.purpose != Purpose::Rebuild
        {
            self.follow_commit(present, now_ns);
        }
        if begin.lane <= self.last_lane {
            // It was begun here once and came to nothing. The leader may have heard Accept of the QP that is gone: never two QPs for one number.
            return self.refuse(begin.lane, "this lane was taken back: begin another".into());
        }
        self.last_lane = begin.lane;
        match begin.purpose {
            Purpose::Connect => {
                self.discard_attempt();
                self.follow_make(begin, now_ns);
            }
            Purpose::Rebuild => {
                // Whatever was begun: the leader may have decided for it and posted on it. Stop takes all lanes.
                self.drop_move("the connection had to be rebuilt meanwhile");
                self.deferred = None;
                self.report(ConnectionState::Rebuilding);
                self.begin_to_give_up(now_ns);
                self.push(Action::Stop);
                self.phase = Phase::FollowStopping(begin);
                self.step(now_ns);
            }
            Purpose::Move(Strategy::MakeBeforeBreak) if self.lane.is_some() => {
                let busy = matches!(self.phase, Phase::HandingOver(_) | Phase::Asked { .. } | Phase::Turning(_));
                if busy || self.lane != begin.present || self.hurt.is_some() {
                    return self.refuse(begin.lane, "another change has not ended yet".into());
                }
                self.discard_attempt();
                self.report(ConnectionState::Moving);
                self.follow_make(begin, now_ns);
            }
            Purpose::Move(strategy) => {
                self.refuse(begin.lane, format!("strategy {strategy:?} is not one that this side has"));
            }
        }
    }

    fn follow_make(&mut self, begin: Box<Begin>, now_ns: u64) {
        let path = begin.peer_path.clone();
        self.push(Action::Make { lane: begin.lane, path, peer: Some(begin.qp.clone()) });
        self.phase = Phase::FollowMaking(begin);
        self.step(now_ns);
    }

    pub(super) fn follow_drained(&mut self, now_ns: u64) {
        if let Phase::FollowStopping(begin) = &self.phase {
            let begin = begin.clone();
            self.follow_make(begin, now_ns);
        }
    }

    pub(super) fn follow_made(&mut self, lane: LaneId, qp: QpOffer, now_ns: u64) {
        let begin = match &self.phase {
            Phase::FollowMaking(begin) if begin.lane == lane => begin.clone(),
            _ => return self.push(Action::Discard { lane }),
        };
        if begin.purpose == Purpose::Rebuild {
            let Some(drained) = begin.drained.clone() else {
                self.push(Action::Discard { lane });
                return self.follow_failed(
                    lane,
                    "the rebuild does not say what the leader had received".into(),
                    now_ns,
                );
            };
            self.push(Action::Resolve(drained));
        }
        self.push(Action::Ready { lane, peer: begin.qp.clone() });
        let drained = (begin.purpose == Purpose::Rebuild).then(|| self.drained.clone().unwrap_or_default());
        let abilities = self.setup.abilities;
        self.phase = Phase::FollowReadying(begin, Box::new(Accept { lane, qp, drained, abilities }));
        self.step(now_ns);
    }

    pub(super) fn follow_ready(&mut self, lane: LaneId) {
        let Phase::FollowReadying(begin, accept) = &self.phase else { return };
        if begin.lane != lane {
            return;
        }
        let (begin, accept) = (begin.clone(), accept.clone());
        self.send(Body::Accept((*accept).clone()));
        self.phase = Phase::Accepted(begin, accept);
        // Only the leader ends this wait. Before the first lane and in a rebuild `give_up_at` bounds it; in a move data flows meanwhile.
        self.step_at = None;
    }

    pub(super) fn follow_commit(&mut self, lane: LaneId, now_ns: u64) {
        match &self.phase {
            Phase::Accepted(begin, _) if begin.lane == lane => {
                let (purpose, peer_path) = (begin.purpose, begin.peer_path.clone());
                let before = self.lane.replace(lane);
                match purpose {
                    Purpose::Connect | Purpose::Rebuild => {
                        let hurt = self.hurt.take().filter(|(hurt, _)| *hurt == lane);
                        self.push(Action::Use { lane });
                        self.rest();
                        match hurt {
                            Some((_, reason)) => self.follow_broken(lane, reason, now_ns),
                            None => self.proceed_soon(now_ns),
                        }
                    }
                    Purpose::Move(_) => {
                        let giver = self.take_asked(peer_path.as_ref()).map(Giver::Here);
                        self.begin_hand_over(HandOver::new(lane, before, giver, now_ns), now_ns);
                        if let Some((lane, reason)) = self.hurt.take() {
                            self.follow_broken(lane, reason, now_ns);
                        }
                    }
                }
            }
            // The leader says which lane it uses, since it has a new channel: a later one that we have accepted was taken back.
            Phase::Accepted(begin, _) if begin.lane > lane && self.lane == Some(lane) => {
                let later = begin.lane;
                self.follow_abort(later, "the leading side took it back".into(), now_ns);
            }
            Phase::Asked { lane: failed, reason } if *failed == lane => {
                let (lane, reason) = (*failed, reason.clone());
                self.send(Body::Broken { lane, reason });
            }
            Phase::Closing { .. } | Phase::Closed => {}
            // The leader goes on as before.
            Phase::Turning(_) if self.lane == Some(lane) => self.stop_following(now_ns),
            // A later one is on its way, and mends everything.
            Phase::FollowStopping(_) => {}
            Phase::FollowMaking(begin) | Phase::FollowReadying(begin, _) | Phase::Accepted(begin, _)
                if begin.lane > lane && begin.purpose == Purpose::Rebuild => {}
            // We accepted it, lost its QP, and the leader did not hear that before it decided.
            _ if self.lane < Some(lane) => {
                let reason = String::from("its QP is gone at the following side");
                self.discard_attempt();
                self.begin_to_give_up(now_ns);
                self.report(ConnectionState::Rebuilding);
                self.send(Body::Broken { lane, reason: reason.clone() });
                self.phase = Phase::Asked { lane, reason };
                self.step_at = None;
            }
            _ => {}
        }
    }

    pub(super) fn follow_abort(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        // What was not taken up yet never is.
        self.deferred.take_if(|body| matches!(body, Body::Begin(begin) if begin.lane == lane));
        match &self.phase {
            Phase::FollowStopping(begin) if begin.lane == lane => {}
            Phase::FollowMaking(begin) | Phase::FollowReadying(begin, _) | Phase::Accepted(begin, _)
                if begin.lane == lane => {}
            _ => return,
        }
        self.back_from_attempt(reason, now_ns);
    }

    pub(super) fn follow_failed(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        match &self.phase {
            Phase::FollowMaking(begin) | Phase::FollowReadying(begin, _) | Phase::Accepted(begin, _)
                if begin.lane == lane => {}
            _ => return,
        }
        self.refuse(lane, reason.clone());
        self.back_from_attempt(reason, now_ns);
    }

    pub(super) fn follow_timeout(&mut self, now_ns: u64) {
        match &self.phase {
            Phase::FollowStopping(_) => {
                self.trouble = "the device did not drain the QP".into();
                self.step(now_ns);
            }
            Phase::FollowMaking(begin) | Phase::FollowReadying(begin, _) => {
                let lane = begin.lane;
                self.follow_failed(lane, "the QP was not ready in time".into(), now_ns);
            }
            _ => {}
        }
    }

    /// Back to what was before the leader began: nothing was posted on the lane.
    fn back_from_attempt(&mut self, reason: String, now_ns: u64) {
        let (Phase::FollowStopping(begin)
        | Phase::FollowMaking(begin)
        | Phase::FollowReadying(begin, _)
        | Phase::Accepted(begin, _)) = &self.phase
        else {
            return;
        };
        let begin = begin.clone();
        self.discard_attempt();
        self.step_at = None;
        self.hurt.take_if(|(lane, _)| *lane == begin.lane);
        match (begin.purpose, self.lane) {
            (Purpose::Move(_), Some(_)) => match self.hurt.take() {
                Some((lane, reason)) => {
                    self.report(ConnectionState::Rebuilding);
                    self.send(Body::Broken { lane, reason: reason.clone() });
                    self.phase = Phase::Asked { lane, reason };
                }
                None => self.up(now_ns),
            },
            // The leader tries again.
            (Purpose::Rebuild, Some(lane)) => {
                self.trouble.clone_from(&reason);
                self.phase = Phase::Asked { lane, reason };
            }
            _ => {
                self.trouble = reason;
                self.phase = Phase::New;
            }
        }
    }

    /// Destroys the QP of a lane that was begun and not committed.
    fn discard_attempt(&mut self) {
        if let Phase::FollowMaking(begin) | Phase::FollowReadying(begin, _) | Phase::Accepted(begin, _) = &self.phase {
            let lane = begin.lane;
            self.push(Action::Discard { lane });
        }
    }

    fn refuse(&mut self, lane: LaneId, reason: String) {
        self.send(Body::Refuse { lane, reason, for_good: false });
    }

    pub(super) fn follow_broken(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        let attempt = match &self.phase {
            Phase::FollowMaking(begin) | Phase::FollowReadying(begin, _) | Phase::Accepted(begin, _) => {
                Some(begin.lane)
            }
            _ => None,
        };
        if attempt == Some(lane) {
            if !matches!(self.phase, Phase::Accepted(..)) {
                return self.follow_failed(lane, reason, now_ns);
            }
            // The leader may have decided for it, and posted: what was executed on it is known only as long as its QP is there.
            self.begin_to_give_up(now_ns);
            self.send(Body::Broken { lane, reason: reason.clone() });
            self.hurt = Some((lane, reason));
            return;
        }
        match &self.phase {
            Phase::Up | Phase::HandingOver(_) | Phase::Turning(_) if self.is_live(lane) => {
                self.drop_move("the connection had to be rebuilt meanwhile");
                self.deferred = None;
                self.trouble.clone_from(&reason);
                self.begin_to_give_up(now_ns);
                self.report(ConnectionState::Rebuilding);
                self.send(Body::Broken { lane, reason: reason.clone() });
                self.phase = Phase::Asked { lane, reason };
                self.step_at = None;
            }
            // The lane in use failed while the leader moves: it must know, and the lane that was accepted waits for its decision.
            Phase::FollowMaking(_) | Phase::FollowReadying(..) | Phase::Accepted(..) if self.is_live(lane) => {
                self.begin_to_give_up(now_ns);
                self.send(Body::Broken { lane, reason: reason.clone() });
                self.hurt = Some((lane, reason));
            }
            _ => {}
        }
    }

    pub(super) fn follow_ask_move(&mut self, ticket: Ticket, change: Change, now_ns: u64) {
        let giver = Giver::Here(ticket);
        let busy = self.asked_move.is_some() || self.phase != Phase::Up;
        if busy {
            return self.wait_with(change, giver);
        }
        match self.way(&change) {
            Ok(Way::Alone) => return self.turn_alone(change, giver, now_ns),
            Ok(_) => {}
            Err(reason) => return self.roll_back(ticket, reason),
        }
        if !self.channel {
            return self.roll_back(ticket, "there is no channel to the leading side now: try again".into());
        }
        self.send(Body::AskMove {
            path: change.path.clone(),
            strategy: change.strategy,
            token: change.token,
            ticket: Some(ticket),
            reason: change.reason.clone(),
        });
        let until = now_ns.saturating_add(self.setup.patience.step_ns.saturating_mul(3));
        self.asked_move = Some(Asked { ticket, change, until });
    }

    /// The order that this side asked the leader to carry out, if this path is what it wants: the leader may be carrying out another.
    pub(super) fn take_asked(&mut self, path: Option<&Path>) -> Option<Ticket> {
        let asked = self.asked_move.take_if(|asked| Some(&asked.change.path) == path);
        asked.map(|asked| asked.ticket)
    }

    pub(super) fn follow_move_refused(
        &mut self,
        ticket: Option<Ticket>,
        token: FencingToken,
        reason: String,
        now_ns: u64,
    ) {
        // An answer that comes late must not be taken for that of the order that is asked now.
        let is_it = |asked: &mut Asked| ticket.map_or(asked.change.token == token, |ticket| asked.ticket == ticket);
        if let Some(asked) = self.asked_move.take_if(is_it) {
            self.roll_back(asked.ticket, reason);
            self.next_order(now_ns);
        }
    }

    /// A channel is there. The leader speaks first, and we answer; what only we know is said again.
    pub(super) fn follow_resume(&mut self, _now_ns: u64) {
        if let Some((lane, reason)) = self.hurt.clone() {
            self.send(Body::Broken { lane, reason });
        }
        match &self.phase {
            Phase::Accepted(_, accept) => {
                let accept = (**accept).clone();
                self.send(Body::Accept(accept));
            }
            Phase::Asked { lane, reason } => {
                let (lane, reason) = (*lane, reason.clone());
                self.send(Body::Broken { lane, reason });
            }
            Phase::HandingOver(over) => {
                let over = over.clone();
                self.repeat_hand_over(&over);
            }
            Phase::Up => {
                // A hand-over that has ended here may not have ended there.
                if let Some(lane) = self.lane
                    && self.retired_lane == Some(lane)
                {
                    self.send(Body::Retired { lane });
                }
            }
            _ => {}
        }
    }
}
