//! A QP as the model has it: what was sent on it and is not acknowledged, what came and may not be delivered yet, and how long nothing has come through. It knows no session and
//! no clock but the world's, which is handed in.

use super::MS;
use super::end::Effect;
use scalefabric_fabric::Path;
use std::collections::VecDeque;

/// A lane makes no progress for so long: everything is sent again.
const RESEND_NS: u64 = 300 * MS;
/// Nothing reaches the peer's QP for so long: the QP fails.
const RETRIES_NS: u64 = 2_000 * MS;

/// What became of a message that came to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Everything up to this place has come.
    Ack(u64),
    /// One before it is missing.
    Gap,
}

/// A QP.
#[derive(Debug)]
pub struct Lane {
    pub qp: u32,
    pub peer: Option<u32>,
    pub path: Path,
    /// What comes is delivered; else it waits.
    pub open: bool,
    /// It opens when so many messages were delivered.
    pub after: Option<u64>,
    /// The session knows that it has failed.
    pub told_broken: bool,
    /// In SQD: nothing new is begun. Whether it was told that all has ended.
    pub drains: Option<bool>,
    /// Came and was not delivered.
    pub stash: VecDeque<u64>,
    next_psn: u64,
    /// Place, number, key.
    unacked: VecDeque<(u64, u64, Option<u32>)>,
    expected: u64,
    progress_ns: u64,
    lost_since: Option<u64>,
}

impl Lane {
    pub fn new(qp: u32, path: Path, at: u64) -> Self {
        Self {
            qp,
            peer: None,
            path,
            open: false,
            after: None,
            told_broken: false,
            drains: None,
            stash: VecDeque::new(),
            next_psn: 0,
            unacked: VecDeque::new(),
            expected: 0,
            progress_ns: at,
            lost_since: None,
        }
    }

    /// Sends a message.
    pub fn send(&mut self, number: u64, key: Option<u32>, at: u64) -> Effect {
        let psn = self.next_psn;
        if self.unacked.is_empty() {
            self.progress_ns = at;
        }
        self.next_psn += 1;
        self.unacked.push_back((psn, number, key));
        Effect::Data { qp: self.qp, psn, number, key }
    }

    /// Everything that was sent is acknowledged.
    pub fn is_quiet(&self) -> bool {
        self.unacked.is_empty()
    }

    /// Keys that are in use.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.unacked.iter().filter_map(|(.., key)| *key)
    }

    /// A message came.
    pub fn take(&mut self, psn: u64, number: u64) -> Fate {
        match psn.cmp(&self.expected) {
            std::cmp::Ordering::Less => Fate::Ack(self.expected),
            std::cmp::Ordering::Greater => Fate::Gap,
            std::cmp::Ordering::Equal => {
                self.expected += 1;
                self.stash.push_back(number);
                Fate::Ack(self.expected)
            }
        }
    }

    /// The peer has everything before this place: how many of them are new.
    pub fn acknowledge(&mut self, up_to: u64, at: u64) -> usize {
        let before = self.unacked.len();
        while self.unacked.front().is_some_and(|(psn, ..)| *psn < up_to) {
            self.unacked.pop_front();
            self.progress_ns = at;
        }
        before - self.unacked.len()
    }

    /// What is to be sent again, while packets come through.
    pub fn retry(&mut self, at: u64) -> Vec<Effect> {
        self.lost_since = None;
        if self.unacked.is_empty() || at < self.progress_ns + RESEND_NS {
            return Vec::new();
        }
        self.progress_ns = at;
        let again = self.unacked.iter().map(|&(psn, number, key)| Effect::Data { qp: self.qp, psn, number, key });
        again.collect()
    }

    /// Packets do not come through; whether it has failed by that just now. `probes`: somebody looks whether the peer is there, though nothing is sent.
    pub fn fails(&mut self, probes: bool, at: u64) -> bool {
        if self.unacked.is_empty() && !probes {
            return false;
        }
        let since = *self.lost_since.get_or_insert(at);
        let now = at >= since + RETRIES_NS && !self.told_broken;
        self.told_broken |= now;
        now
    }
}
