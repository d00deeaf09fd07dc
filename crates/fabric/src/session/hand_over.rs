//! A move's hand-over: both lanes are there, each side stops posting on the old one, waits until everything on it has completed, says how much it sent, and
//! posts on the new one. The receiver takes nothing from the new lane before it has everything of the old: nothing is lost, repeated or reordered.

use super::act::Action;
use super::machine::{Phase, Role, Session};
use super::message::{Body, LaneId};
use super::order::Giver;
use crate::directory::{ConnectionState, OrderResult};

/// Where a hand-over stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandOver {
    /// The new lane.
    pub lane: LaneId,
    /// The old one.
    pub before: Option<LaneId>,
    /// Who gave the order that it carries out; `None`: the peer did, or one at the peer.
    pub giver: Option<Giver>,
    since_ns: u64,
    /// We have sent so much on the old lane, and post on the new one.
    sent: Option<u64>,
    /// How long we could not post.
    pause_ns: u64,
    /// The peer has announced its count.
    expected: Option<u64>,
    /// We have received all of it.
    received: bool,
    /// The peer has received all that we sent.
    peer_retired: bool,
}

impl HandOver {
    pub fn new(lane: LaneId, before: Option<LaneId>, giver: Option<Giver>, now_ns: u64) -> Self {
        Self {
            lane,
            before,
            giver,
            since_ns: now_ns,
            sent: None,
            pause_ns: 0,
            expected: None,
            received: false,
            peer_retired: false,
        }
    }

    /// Nothing of ours is on the old lane, and nothing of the peer's is to come on it.
    fn done_here(&self) -> bool {
        self.sent.is_some() && self.received
    }
}

impl Session {
    pub(super) fn begin_hand_over(&mut self, over: HandOver, now_ns: u64) {
        let lane = over.lane;
        self.report(ConnectionState::Moving);
        self.phase = Phase::HandingOver(over);
        self.step(now_ns);
        self.push(Action::HandOver { lane });
    }

    pub(super) fn handle_idle(&mut self, lane: LaneId, sent: u64, now_ns: u64) {
        let Phase::HandingOver(over) = &mut self.phase else { return };
        if over.lane != lane || over.sent.is_some() {
            return;
        }
        over.sent = Some(sent);
        over.pause_ns = now_ns.saturating_sub(over.since_ns);
        let done = over.done_here();
        self.send(Body::Switched { lane, sent });
        self.push(Action::Switch { lane });
        self.after_hand_over_step(done, now_ns);
    }

    pub(super) fn handle_switched(&mut self, lane: LaneId, sent: u64) {
        let Phase::HandingOver(over) = &mut self.phase else { return };
        if over.lane != lane || over.expected.is_some() {
            return;
        }
        over.expected = Some(sent);
        self.push(Action::Expect { lane, after: sent });
    }

    pub(super) fn handle_received(&mut self, lane: LaneId, now_ns: u64) {
        let Phase::HandingOver(over) = &mut self.phase else { return };
        if over.lane != lane || over.expected.is_none() {
            return;
        }
        over.received = true;
        let done = over.done_here();
        self.after_hand_over_step(done, now_ns);
    }

    pub(super) fn handle_retired(&mut self, lane: LaneId, now_ns: u64) {
        if let Phase::HandingOver(over) = &mut self.phase
            && over.lane == lane
        {
            over.peer_retired = true;
            if over.done_here() {
                self.end_hand_over(now_ns);
            }
        } else if self.retired_lane == Some(lane) && self.setup.role == Role::Leader {
            // The follower asks again, because its channel broke: our word was lost.
            self.send(Body::Retired { lane });
        }
    }

    fn after_hand_over_step(&mut self, done: bool, now_ns: u64) {
        let Phase::HandingOver(over) = &self.phase else { return };
        let (lane, peer_retired) = (over.lane, over.peer_retired);
        if !done {
            return;
        }
        self.send(Body::Retired { lane });
        if peer_retired {
            self.end_hand_over(now_ns);
        }
    }

    fn end_hand_over(&mut self, now_ns: u64) {
        let Phase::HandingOver(over) = &self.phase else { return };
        let over = over.clone();
        self.retired_lane = Some(over.lane);
        self.push(Action::Retire { lane: over.lane });
        self.rest();
        if let Some(Giver::Here(ticket)) = over.giver {
            let pause_us = over.pause_ns.div_ceil(1000);
            self.answer(ticket, OrderResult::Done { generation: self.generation, pause_us });
        }
        self.proceed(now_ns);
    }

    /// Says again what this side has said in a hand-over: the channel broke, and it may not have been heard.
    pub(super) fn repeat_hand_over(&mut self, over: &HandOver) {
        if let Some(sent) = over.sent {
            self.send(Body::Switched { lane: over.lane, sent });
        }
        if over.done_here() {
            self.send(Body::Retired { lane: over.lane });
        }
    }
}
