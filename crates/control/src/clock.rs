//! Time, handed in. Leases, timeouts and loads are measured by it, so that tests turn it by hand. It never goes back, and nobody asks it for the date.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A clock that never goes back.
pub trait Clock: Send + Sync + Debug {
    /// Time since some beginning.
    fn now(&self) -> Duration;
}

/// The machine's clock since it was made (`CLOCK_MONOTONIC`: a jump of the date does not touch it).
#[derive(Debug)]
pub struct Machine(Instant);

impl Default for Machine {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Machine {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A clock turned by hand.
#[derive(Debug, Default)]
pub struct Manual(AtomicU64);

impl Manual {
    /// Turns it forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for Manual {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }
}
