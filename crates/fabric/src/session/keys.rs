//! Offers of memory and the rotation of their keys: new ones are told, the peer says when nothing uses the old ones any more, and only then, or when the
//! overlap has passed, may they be withdrawn. It never sees memory.

use super::act::Action;
use super::machine::Session;
use super::message::{Body, MemoryOffer};

/// Where offers stand.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Keys {
    /// Our last round, and what it offers.
    round: u64,
    offers: Vec<MemoryOffer>,
    /// The last round that the peer has taken.
    taken: u64,
    /// When older keys may be withdrawn in any case.
    pub revoke_at: Option<u64>,
    /// The peer's last round that we have heard, and the last that is idle.
    heard: u64,
    idle: u64,
}

impl Keys {
    /// The peer may be another one: it has heard nothing of ours, and counts its rounds from the beginning.
    pub(super) fn forget_peer(&mut self) {
        (self.taken, self.heard, self.idle) = (0, 0, 0);
    }
}

impl Session {
    pub(super) fn handle_offer(&mut self, offers: Vec<MemoryOffer>, overlap_ns: u64, now_ns: u64) {
        self.keys.round += 1;
        self.keys.offers = offers;
        // Keys of a round before may still be promised for longer: a short overlap of this one does not take that back.
        let until = now_ns.saturating_add(overlap_ns);
        self.keys.revoke_at = Some(self.keys.revoke_at.map_or(until, |promised| promised.max(until)));
        self.say_keys();
    }

    fn say_keys(&mut self) {
        let (round, offers) = (self.keys.round, self.keys.offers.clone());
        self.send(Body::Memory { round, offers });
    }

    /// Says the offers again on a new channel, if the peer has not taken them, and what was taken of the peer's.
    pub(super) fn repeat_keys(&mut self) {
        if self.keys.taken < self.keys.round {
            self.say_keys();
        }
        if self.keys.idle > 0 {
            let round = self.keys.idle;
            self.send(Body::MemoryTaken { round });
        }
    }

    pub(super) fn handle_memory(&mut self, round: u64, offers: Vec<MemoryOffer>) {
        if round <= self.keys.heard {
            return;
        }
        self.keys.heard = round;
        self.push(Action::TakeKeys { round, offers });
    }

    pub(super) fn handle_keys_idle(&mut self, round: u64) {
        if round > self.keys.idle && round <= self.keys.heard {
            self.keys.idle = round;
            self.send(Body::MemoryTaken { round });
        }
    }

    pub(super) fn handle_memory_taken(&mut self, round: u64) {
        if round > self.keys.taken && round <= self.keys.round {
            self.keys.taken = round;
            if round == self.keys.round && self.keys.revoke_at.is_some() {
                self.revoke_keys(true);
            }
        }
    }

    pub(super) fn revoke_keys(&mut self, taken: bool) {
        self.keys.revoke_at = None;
        let round = self.keys.round;
        self.push(Action::Revoke { round, taken });
    }
}
