//! Orders: who has authority, which wait for the present change to end, what becomes of the one that is carried out, and the answers. How a move is made is in
//! `lead`, `follow`, `hand_over` and `turn`.

use super::act::{Action, Change};
use super::machine::{Phase, Role, Session};
use super::message::Body;
use crate::directory::{FencingToken, OrderResult};
use crate::error::FabricError;

/// Orders that wait for a change to end; more are answered at once.
const MAX_WAITING: usize = 16;

impl Session {
    pub(super) fn handle_move(&mut self, change: Change, now_ns: u64) {
        if !self.has_authority(change.token) {
            return;
        }
        if !self.waiting.is_empty() {
            return self.wait_with(change, false);
        }
        match self.setup.role {
            Role::Leader => self.lead_move(change, false, now_ns),
            Role::Follower => self.follow_ask_move(change, now_ns),
        }
    }

    pub(super) fn handle_close(&mut self, reason: String, token: Option<FencingToken>, now_ns: u64) {
        if let Some(token) = token
            && !self.has_authority(token)
        {
            return;
        }
        if self.channel {
            self.send(Body::Close { reason: reason.clone() });
            self.step_at = Some(now_ns.saturating_add(self.setup.patience.close_ns));
            self.phase = Phase::Closing { reason };
        } else {
            self.end(FabricError::new(crate::Fault::Closed, format!("closed: {reason}")));
        }
        if let Some(token) = token {
            self.answer(token, OrderResult::Done { generation: self.generation, pause_us: 0 });
        }
    }

    /// Looks at a token and remembers it; answers the order if it is too low.
    pub(super) fn has_authority(&mut self, token: FencingToken) -> bool {
        if token < self.highest {
            self.answer(token, OrderResult::Fenced { highest: self.highest });
            return false;
        }
        self.highest = token;
        true
    }

    /// Keeps an order until the present change has ended.
    pub(super) fn wait_with(&mut self, change: Change, asked_by_peer: bool) {
        if self.waiting.len() >= MAX_WAITING {
            let reason = format!("{MAX_WAITING} orders wait for the present change to end already");
            self.refuse_move(change.token, asked_by_peer, reason);
        } else {
            self.waiting.push_back((change, asked_by_peer));
        }
    }

    /// A move did not come about: says so to who wanted it.
    pub(super) fn refuse_move(&mut self, token: FencingToken, asked_by_peer: bool, reason: String) {
        if asked_by_peer {
            let highest = self.highest;
            self.send(Body::MoveRefused { token, reason, highest });
        } else {
            self.roll_back(token, reason);
        }
    }

    pub(super) fn roll_back(&mut self, token: FencingToken, reason: String) {
        self.answer(token, OrderResult::RolledBack { reason });
    }

    pub(super) fn answer(&mut self, token: FencingToken, result: OrderResult) {
        self.push(Action::Answer { token, result });
    }

    /// Takes up what waited, as soon as it is known which path the new lane took: orders are judged by where the connection is.
    pub(super) fn proceed_soon(&mut self, now_ns: u64) {
        if self.deferred.is_some() || !self.waiting.is_empty() {
            self.step_at = Some(now_ns);
        }
    }

    /// Takes up what waited for a change to end.
    pub(super) fn proceed(&mut self, now_ns: u64) {
        if let Some(body) = self.deferred.take() {
            self.handle_message(body, now_ns);
        }
        self.next_order(now_ns);
    }

    /// Takes up orders that wait, as long as each ends at once.
    pub(super) fn next_order(&mut self, now_ns: u64) {
        while self.phase == Phase::Up && self.asked_move.is_none() {
            let Some((change, asked_by_peer)) = self.waiting.pop_front() else { return };
            match self.setup.role {
                Role::Leader => self.lead_move(change, asked_by_peer, now_ns),
                Role::Follower => self.follow_ask_move(change, now_ns),
            }
        }
    }

    /// The order that is being carried out, and whether the peer wanted it.
    pub(super) fn move_under_way(&self) -> Option<(FencingToken, bool)> {
        match &self.phase {
            Phase::Making(attempt) | Phase::Asking(attempt, _) | Phase::Readying(attempt, _) => {
                attempt.change.as_ref().map(|change| (change.token, attempt.asked_by_peer))
            }
            Phase::HandingOver(over) => over.token.map(|token| (token, over.asked_by_peer)),
            Phase::Turning(turning) => turning.order(),
            _ => None,
        }
    }

    /// Takes back what is known of a move when a rebuild comes in between: the rebuild takes its path only if it was committed.
    pub(super) fn drop_move(&mut self, reason: &str) {
        if let Some((token, asked_by_peer)) = self.move_under_way() {
            self.refuse_move(token, asked_by_peer, reason.into());
        }
    }
}
