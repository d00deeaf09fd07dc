//! What may be seen of a fabric from outside, while it runs and afterwards. Nothing is changed.

use super::super::model::Model;
use super::super::pause::Pauses;
use super::super::port::Port;
use super::super::qp::Qp;
use super::super::time::Ps;
use super::super::topology::Topology;
use super::{Counters, Message, World};

impl World {
    /// The time.
    pub fn now(&self) -> Ps {
        self.now
    }

    /// When the last message was acknowledged.
    pub fn last_done(&self) -> Ps {
        self.last_done
    }

    /// Payload that was acknowledged, of all QPs there ever were.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged
    }

    /// Messages that are not acknowledged.
    pub fn open_messages(&self) -> u64 {
        self.open
    }

    /// A guess of how much of the run is done, 0 to 1, for a progress line.
    pub fn part_done(&self) -> f64 {
        let by_time = if self.until == Ps::NEVER { 0.0 } else { self.now.0 as f64 / self.until.0.max(1) as f64 };
        let (bytes, acked) = (self.posted_bytes, self.acked_bytes);
        let by_bytes = if self.expected_bytes > 0 && bytes > 0 {
            acked as f64 / self.expected_bytes.max(bytes) as f64
        } else {
            0.0
        };
        by_time.max(by_bytes).min(1.0)
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All messages, in the order in which they were posted.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// All ports: link i has 2i at its end a and 2i+1 at b.
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// All QPs; places of closed ones are used again.
    pub fn qps(&self) -> &[Qp] {
        &self.qps
    }

    /// What it was built from.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What it assumes.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// PFC, as it spread.
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// Most packets at one moment.
    pub fn peak_packets(&self) -> usize {
        self.arena.peak()
    }
}
