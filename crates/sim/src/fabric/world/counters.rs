//! What a run counts, and how one ends.

use super::super::pause::Stuck;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events taken.
    pub events: u64,
    /// Packets that a switch has passed on: data, ACKs, CNPs.
    pub forwards: u64,
    /// Data packets that hosts sent, again and again ones counted.
    pub data_packets: u64,
    /// Of them: sent again.
    pub resent: u64,
    /// Payload that arrived in order or was kept.
    pub delivered_bytes: u64,
    /// Packets marked.
    pub marked: u64,
    /// CNPs sent.
    pub cnps: u64,
    /// NAKs sent.
    pub naks: u64,
    /// Retransmission timers that ran out.
    pub timeouts: u64,
    /// QPs that gave up.
    pub given_up: u64,
    /// Dropped: no room in a buffer.
    pub dropped_full: u64,
    /// Dropped: the wire lost it.
    pub dropped_lost: u64,
    /// Dropped: the link was down.
    pub dropped_down: u64,
    /// Dropped: no way to the host.
    pub dropped_no_way: u64,
    /// Dropped by the PFC watchdog.
    pub dropped_watchdog: u64,
    /// PAUSE frames that switches and hosts sent, repetitions counted.
    pub pauses: u64,
    /// RESUME frames.
    pub resumes: u64,
    /// Storms that a watchdog has stopped.
    pub storms: u64,
}

impl Counters {
    /// All drops.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_lost + self.dropped_down + self.dropped_no_way + self.dropped_watchdog
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// Everything that was posted is done.
    Done,
    /// The time that was given is over.
    TimeIsUp,
    /// It cannot go on.
    Stuck(Stuck),
}
