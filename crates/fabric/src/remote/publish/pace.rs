//! What a compute node does about a memory node's pressure: how long it pauses before its next operation, and how it takes locks there. A rule without clock and
//! chance: the pause doubles while the node is congested, stays while it is loaded, and halves when it is calm.

use super::Pressure;
use std::time::Duration;

/// How to wait for a lock in far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum LockStrategy {
    /// Try again at once: the lowest latency while the node has room for the tries.
    #[default]
    Spin,
    /// Draw a ticket and try when its turn has come: one try at a time reaches the node's atomics, whoever waits.
    Queue,
}

/// Bounds of a [`Pace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first pause, when congestion begins. Default 20 µs. 0 would never grow: at least 1 ns.
    pub first: Duration,
    /// The longest pause. Default 10 ms. Very long: a node that has recovered stays idle for so long.
    pub longest: Duration,
    /// Calm looks in a row after which locks are spun on again. Default 3. 0 and 1: after the first, so that a load near the limit makes it flap.
    pub calm: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { first: Duration::from_micros(20), longest: Duration::from_millis(10), calm: 3 }
    }
}

/// The pace of one compute node towards one memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    limits: Limits,
    pause: Duration,
    strategy: LockStrategy,
    calm: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl Pace {
    /// Without a pause, spinning.
    pub fn new(limits: Limits) -> Self {
        Self { limits, pause: Duration::ZERO, strategy: LockStrategy::Spin, calm: 0 }
    }

    /// The node was seen to do so.
    pub fn handle_pressure(&mut self, pressure: Pressure) {
        let first = self.limits.first.max(Duration::from_nanos(1));
        match pressure {
            Pressure::Congested => {
                self.pause = self.pause.saturating_mul(2).max(first).min(self.limits.longest.max(first));
                (self.strategy, self.calm) = (LockStrategy::Queue, 0);
            }
            Pressure::Loaded => (self.strategy, self.calm) = (LockStrategy::Queue, 0),
            Pressure::Calm => {
                self.pause = if self.pause <= first { Duration::ZERO } else { self.pause / 2 };
                self.calm = self.calm.saturating_add(1);
                if self.calm >= self.limits.calm {
                    self.strategy = LockStrategy::Spin;
                }
            }
        }
    }

    /// How long to wait before the next operation.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// How to take locks.
    pub fn lock_strategy(&self) -> LockStrategy {
        self.strategy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_doubles_the_pause_to_its_bound_load_holds_it_and_calm_takes_it_back() {
        let us = Duration::from_micros;
        let mut pace = Pace::new(Limits { first: us(20), longest: us(100), calm: 2 });
        let mut feel = |pressure| {
            pace.handle_pressure(pressure);
            (pace.pause(), pace.lock_strategy())
        };
        use LockStrategy::{Queue, Spin};
        use Pressure::{Calm, Congested, Loaded};
        assert_eq!(feel(Calm), (us(0), Spin));
        assert_eq!(feel(Loaded), (us(0), Queue));
        for pause in [20, 40, 80, 100, 100] {
            assert_eq!(feel(Congested), (us(pause), Queue));
        }
        assert_eq!(feel(Loaded), (us(100), Queue));
        assert_eq!(feel(Calm), (us(50), Queue));
        // Not two in a row.
        assert_eq!(feel(Loaded), (us(50), Queue));
        assert_eq!(feel(Calm), (us(25), Queue));
        assert_eq!(feel(Calm), (us(12) + Duration::from_nanos(500), Spin));
        assert_eq!(feel(Calm), (us(0), Spin));
    }

    #[test]
    fn limits_at_their_ends_stay_within_themselves() {
        let mut pace = Pace::new(Limits { first: Duration::ZERO, longest: Duration::ZERO, calm: 0 });
        for _ in 0..100 {
            pace.handle_pressure(Pressure::Congested);
        }
        assert_eq!(pace.pause(), Duration::from_nanos(1));
        let mut pace = Pace::new(Limits { longest: Duration::MAX / 4, ..Limits::default() });
        for _ in 0..80 {
            pace.handle_pressure(Pressure::Congested);
        }
        assert_eq!(pace.pause(), Duration::MAX / 4);
    }
}
