//! Orders: who has authority, which wait for the present change to end, what becomes of the one that is carried out, and the answers. How a move is made is in
//! `lead`, `follow`, `hand_over` and `turn`.

use super::act::{Action, Change, Ticket};
use super::machine::{Phase, Role, Session};
use super::message::Body;
use crate::directory::{FencingToken, OrderResult};
use crate::error::FabricError;

/// Orders that wait for a change to end; more are answered at once.
const MAX_WAITING: usize = 16;

/// Who gave an order, and hears what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Giver {
    /// Somebody here.
    Here(Ticket),
    /// Leader: the follower, which calls it so.
    Peer { ticket: Option<Ticket>, token: FencingToken },
}

impl Session {
    pub(super) fn handle_move(&mut self, ticket: Ticket, change: Change, now_ns: u64) {
        if !self.has_authority(ticket, change.token) {
            return;
        }
        let giver = Giver::Here(ticket);
        if !self.waiting.is_empty() {
            return self.wait_with(change, giver);
        }
        match self.setup.role {
            Role::Leader => self.lead_move(change, giver, now_ns),
            Role::Follower => self.follow_ask_move(ticket, change, now_ns),
        }
    }

    pub(super) fn handle_close(&mut self, reason: String, order: Option<(Ticket, FencingToken)>, now_ns: u64) {
        if let Some((ticket, token)) = order
            && !self.has_authority(ticket, token)
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
        if let Some((ticket, _)) = order {
            self.answer(ticket, OrderResult::Done { generation: self.generation, pause_us: 0 });
        }
    }

    /// Looks at a token and remembers it; answers the order if it is too low.
    pub(super) fn has_authority(&mut self, ticket: Ticket, token: FencingToken) -> bool {
        if token < self.highest {
            self.answer(ticket, OrderResult::Fenced { highest: self.highest });
            return false;
        }
        self.highest = token;
        true
    }

    /// Keeps an order until the present change has ended.
    pub(super) fn wait_with(&mut self, change: Change, giver: Giver) {
        if self.waiting.len() >= MAX_WAITING {
            let reason = format!("{MAX_WAITING} orders wait for the present change to end already");
            self.refuse_move(giver, reason);
        } else {
            self.waiting.push_back((change, giver));
        }
    }

    /// A move did not come about: says so to who wanted it.
    pub(super) fn refuse_move(&mut self, giver: Giver, reason: String) {
        match giver {
            Giver::Here(ticket) => self.roll_back(ticket, reason),
            Giver::Peer { ticket, token } => {
                let highest = self.highest;
                self.send(Body::MoveRefused { token, ticket, reason, highest });
            }
        }
    }

    pub(super) fn roll_back(&mut self, ticket: Ticket, reason: String) {
        self.answer(ticket, OrderResult::RolledBack { reason });
    }

    pub(super) fn answer(&mut self, ticket: Ticket, result: OrderResult) {
        self.push(Action::Answer { ticket, result });
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
            let Some((change, giver)) = self.waiting.pop_front() else { return };
            match (self.setup.role, giver) {
                (Role::Follower, Giver::Here(ticket)) => self.follow_ask_move(ticket, change, now_ns),
                _ => self.lead_move(change, giver, now_ns),
            }
        }
    }

    /// Who gave the order that is being carried out.
    pub(super) fn move_under_way(&self) -> Option<Giver> {
        match &self.phase {
            Phase::Making(attempt) | Phase::Asking(attempt, _) | Phase::Readying(attempt, _) => {
                attempt.order.as_ref().map(|(_, giver)| *giver)
            }
            Phase::HandingOver(over) => over.giver,
            Phase::Turning(turning) => turning.giver(),
            _ => None,
        }
    }

    /// Takes back what is known of a move when a rebuild comes in between: the rebuild takes its path only if it was committed.
    pub(super) fn drop_move(&mut self, reason: &str) {
        if let Some(giver) = self.move_under_way() {
            self.refuse_move(giver, reason.into());
        }
    }
}
