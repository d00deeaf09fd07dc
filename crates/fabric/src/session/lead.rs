//! What the leading side does: it numbers lanes, begins each change, and alone decides that a lane is the connection's. Once it has said Commit it never
//! takes the lane back; until then it may, and nothing was posted on it.

use super::act::{Action, Change, Ticket};
use super::hand_over::HandOver;
use super::machine::{Attempt, Phase, Session};
use super::message::{Accept, Begin, Body, LaneId, Purpose, QpOffer, Strategy};
use super::order::Giver;
use super::turn::Way;
use crate::directory::{ConnectionState, FencingToken};
use crate::error::FabricError;
use crate::path::Path;

impl Session {
    /// Begins a lane: its QP first.
    pub(super) fn make(&mut self, purpose: Purpose, now_ns: u64) {
        self.make_for(purpose, None, now_ns);
    }

    fn make_for(&mut self, purpose: Purpose, order: Option<(Change, Giver)>, now_ns: u64) {
        self.last_lane = LaneId(self.last_lane.0 + 1);
        let lane = self.last_lane;
        let path = match (&order, purpose) {
            (Some((change, _)), _) => Some(change.path.clone()),
            (None, Purpose::Connect) => self.setup.path.clone(),
            (None, _) => None,
        };
        self.phase = Phase::Making(Attempt { lane, purpose, order });
        self.step(now_ns);
        self.push(Action::Make { lane, path, peer: None });
    }

    pub(super) fn lead_made(&mut self, lane: LaneId, qp: QpOffer, now_ns: u64) {
        let Phase::Making(attempt) = &self.phase else { return self.late(lane) };
        if attempt.lane != lane {
            return self.late(lane);
        }
        let attempt = attempt.clone();
        let begin = Box::new(Begin {
            lane,
            purpose: attempt.purpose,
            present: self.lane,
            qp,
            service: self.setup.service.clone(),
            tenant: self.setup.tenant.clone(),
            drained: self.drained.clone(),
            peer_path: attempt.order.as_ref().and_then(|(change, _)| change.peer_path.clone()),
            token: self.highest,
            abilities: self.setup.abilities,
        });
        self.send(Body::Begin((*begin).clone()));
        self.phase = Phase::Asking(attempt, begin);
        self.step(now_ns);
    }

    pub(super) fn lead_accept(&mut self, accept: Accept, now_ns: u64) {
        let Phase::Asking(attempt, begin) = &self.phase else { return };
        if attempt.lane != accept.lane {
            return;
        }
        let (attempt, begin) = (attempt.clone(), begin.clone());
        self.peer_abilities = accept.abilities;
        if attempt.purpose == Purpose::Rebuild {
            let Some(drained) = accept.drained else {
                let error = FabricError::peer("the peer accepted a rebuild and did not say what it had received");
                self.send(Body::Close { reason: error.message.clone() });
                return self.end(error);
            };
            self.push(Action::Resolve(drained));
        }
        self.push(Action::Ready { lane: attempt.lane, peer: accept.qp });
        self.phase = Phase::Readying(attempt, begin);
        self.step(now_ns);
    }

    pub(super) fn lead_ready(&mut self, lane: LaneId, now_ns: u64) {
        let Phase::Readying(attempt, _) = &self.phase else { return };
        if attempt.lane != lane {
            return;
        }
        let attempt = attempt.clone();
        let before = self.lane.replace(lane);
        self.send(Body::Commit { lane });
        match attempt.purpose {
            Purpose::Connect | Purpose::Rebuild => {
                self.push(Action::Use { lane });
                self.rest();
                self.proceed_soon(now_ns);
            }
            Purpose::Move(_) => {
                let giver = attempt.order.map(|(_, giver)| giver);
                self.begin_hand_over(HandOver::new(lane, before, giver, now_ns), now_ns);
            }
        }
    }

    pub(super) fn lead_failed(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        match &self.phase {
            Phase::Making(attempt) | Phase::Asking(attempt, _) | Phase::Readying(attempt, _)
                if attempt.lane == lane => {}
            _ => return,
        }
        self.take_back(reason, now_ns);
    }

    pub(super) fn lead_refuse(&mut self, lane: LaneId, reason: String, for_good: bool, now_ns: u64) {
        match &self.phase {
            Phase::Asking(attempt, _) | Phase::Readying(attempt, _) if attempt.lane == lane => {
                if for_good && !matches!(attempt.purpose, Purpose::Move(_)) {
                    self.end(FabricError::peer(format!("the peer refuses: {reason}")));
                } else {
                    self.take_back(format!("the peer could not: {reason}"), now_ns);
                }
            }
            // The peer knows nothing of the connection: it was started anew.
            _ if for_good => self.end(FabricError::peer(format!("the peer refuses: {reason}"))),
            // It accepted, and lost its QP before it heard that the lane was decided.
            _ => self.handle_broken(lane, format!("the peer lost its QP: {reason}"), now_ns),
        }
    }

    pub(super) fn lead_timeout(&mut self, now_ns: u64) {
        match &self.phase {
            Phase::Pausing(purpose) => {
                let purpose = *purpose;
                self.make(purpose, now_ns);
            }
            // A drain waits for nobody else; what hangs there is this machine.
            Phase::Stopping => {
                self.trouble = "the device did not drain the QP".into();
                self.step(now_ns);
            }
            Phase::Making(_) => self.take_back("the QP could not be made in time".into(), now_ns),
            Phase::Asking(..) => {
                let why =
                    if self.channel { "the peer did not answer in time" } else { "there is no channel to the peer" };
                let why = if self.channel { why.into() } else { format!("{why}: {}", self.trouble) };
                self.take_back(why, now_ns);
            }
            Phase::Readying(..) => self.take_back("the QP was not ready in time".into(), now_ns),
            _ => {}
        }
    }

    /// The lane that was begun does not come about: back to what was, or another try.
    fn take_back(&mut self, reason: String, now_ns: u64) {
        let (Phase::Making(attempt) | Phase::Asking(attempt, _) | Phase::Readying(attempt, _)) = &self.phase else {
            return;
        };
        let attempt = attempt.clone();
        self.push(Action::Discard { lane: attempt.lane });
        self.send(Body::Abort { lane: attempt.lane, reason: reason.clone() });
        match attempt.purpose {
            Purpose::Move(_) => {
                if let Some((_, giver)) = attempt.order {
                    self.refuse_move(giver, reason);
                }
                self.up(now_ns);
            }
            purpose => {
                // A channel that is away tells more than that nobody answered.
                if self.channel {
                    self.trouble = reason;
                }
                self.phase = Phase::Pausing(purpose);
                let pause = self.backoff.pause_ns(&self.setup.patience);
                self.step_at = Some(now_ns.saturating_add(pause));
            }
        }
    }

    pub(super) fn lead_broken(&mut self, lane: LaneId, reason: String, now_ns: u64) {
        match &self.phase {
            Phase::Making(attempt) | Phase::Asking(attempt, _) | Phase::Readying(attempt, _) => {
                let attempt = attempt.clone();
                if attempt.lane == lane {
                    self.take_back(reason, now_ns);
                } else if matches!(attempt.purpose, Purpose::Move(_)) && self.is_live(lane) {
                    // The rebuild stops all lanes, the new one included.
                    self.drop_move("the connection had to be rebuilt meanwhile");
                    self.begin_rebuild(reason, now_ns);
                }
            }
            Phase::Up | Phase::HandingOver(_) | Phase::Turning(_) if self.is_live(lane) => {
                self.drop_move("the connection had to be rebuilt meanwhile");
                self.begin_rebuild(reason, now_ns);
            }
            _ => {}
        }
    }

    fn begin_rebuild(&mut self, reason: String, now_ns: u64) {
        self.trouble = reason;
        self.begin_to_give_up(now_ns);
        self.report(ConnectionState::Rebuilding);
        self.push(Action::Stop);
        self.phase = Phase::Stopping;
        self.step(now_ns);
    }

    pub(super) fn lead_drained(&mut self, now_ns: u64) {
        if self.phase == Phase::Stopping {
            self.make(Purpose::Rebuild, now_ns);
        }
    }

    pub(super) fn lead_move(&mut self, mut change: Change, giver: Giver, now_ns: u64) {
        match self.phase {
            Phase::Up => {
                if matches!(giver, Giver::Peer { .. })
                    && let (Some(own), Some(theirs)) = (&self.setup.path, &change.peer_path)
                {
                    // This side stays where it is now, and leads to the peer's new place. Other moves may have come in between.
                    change.path = Path { dgid: theirs.sgid, flow_label: theirs.flow_label, ..own.clone() };
                }
                match self.way(&change) {
                    Ok(Way::Alone) => self.turn_alone(change, giver, now_ns),
                    Ok(Way::Together) => self.turn_together(change, giver, false, now_ns),
                    Ok(Way::Alternate) => self.turn_together(change, giver, true, now_ns),
                    Ok(Way::Second) => self.move_by_second_qp(change, giver, now_ns),
                    Err(reason) => self.refuse_move(giver, reason),
                }
            }
            Phase::Closing { .. } | Phase::Closed => {
                self.refuse_move(giver, "the connection is being closed".into());
            }
            _ => self.wait_with(change, giver),
        }
    }

    /// Make before break.
    pub(super) fn move_by_second_qp(&mut self, change: Change, giver: Giver, now_ns: u64) {
        self.report(ConnectionState::Moving);
        self.make_for(Purpose::Move(Strategy::MakeBeforeBreak), Some((change, giver)), now_ns);
    }

    pub(super) fn lead_asked_move(
        &mut self,
        path: Path,
        strategy: Option<Strategy>,
        (ticket, token): (Option<Ticket>, FencingToken),
        reason: String,
        now_ns: u64,
    ) {
        let giver = Giver::Peer { ticket, token };
        if token < self.highest {
            let reason = format!("an order with the higher token {} was seen", self.highest.0);
            return self.refuse_move(giver, reason);
        }
        self.highest = token;
        let Some(own) = self.setup.path.clone() else {
            return self.refuse_move(giver, "the leading side does not know its path yet".into());
        };
        let change = Change { path: own, peer_path: Some(path), strategy, token, reason };
        if !self.waiting.is_empty() {
            return self.wait_with(change, giver);
        }
        self.lead_move(change, giver, now_ns);
    }

    /// A channel is there: says again what was said last, so that the peer knows who calls and what is decided.
    pub(super) fn lead_resume(&mut self, now_ns: u64) {
        match &self.phase {
            Phase::Asking(_, begin) => {
                let begin = (**begin).clone();
                self.send(Body::Begin(begin));
                self.step(now_ns);
            }
            Phase::Readying(_, begin) => {
                let begin = (**begin).clone();
                self.send(Body::Begin(begin));
            }
            Phase::HandingOver(over) => {
                let over = over.clone();
                self.say_lane();
                self.repeat_hand_over(&over);
            }
            Phase::Turning(_) => self.repeat_turn(now_ns),
            _ => self.say_lane(),
        }
    }

    pub(super) fn say_lane(&mut self) {
        if let Some(lane) = self.lane {
            self.send(Body::Commit { lane });
        }
    }

    /// A QP that was made for a lane that has been taken back.
    fn late(&mut self, lane: LaneId) {
        self.push(Action::Discard { lane });
    }

    /// The path in use now, from which later ones are made.
    pub fn set_path(&mut self, path: Path) {
        self.setup.path = Some(path);
    }
}
