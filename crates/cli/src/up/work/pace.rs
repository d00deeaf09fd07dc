//! When the next operation is due: at fixed times of a grid that the rate and a phase give, so that many streams of one rate do not all send at once. What is
//! late is made up for, up to a little.

use std::time::Duration;

/// Operations that may be made up for.
const BACKLOG: f64 = 4.0;

/// The pace of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate_mhz: u64,
    /// Part of a period by which it is shifted, 0 to 1.
    phase: f64,
    /// Number of the next time in the grid.
    next: f64,
}

impl Pace {
    /// At this rate, operations a second in thousandths, at least 1. `number` tells it from the others.
    pub fn new(rate_mhz: u64, number: usize, now: Duration) -> Self {
        // Multiples of the golden ratio are spread evenly, however many there are.
        let phase = (number as f64 * 0.618_033_988_749_894_9).fract();
        let mut pace = Self { rate_mhz: rate_mhz.max(1), phase, next: 0.0 };
        pace.next = pace.place(now).ceil();
        pace
    }

    /// Another rate from now on.
    pub fn set_rate(&mut self, rate_mhz: u64, now: Duration) {
        if rate_mhz.max(1) != self.rate_mhz {
            self.rate_mhz = rate_mhz.max(1);
            self.next = self.place(now).ceil();
        }
    }

    /// Where in the grid a time is.
    fn place(&self, now: Duration) -> f64 {
        now.as_secs_f64() * self.rate_mhz as f64 / 1000.0 - self.phase
    }

    /// How long until the next operation is due; `None`: it is, and this call took it.
    pub fn take(&mut self, now: Duration) -> Option<Duration> {
        let place = self.place(now);
        if place < self.next {
            return Some(Duration::from_secs_f64((self.next - place) * 1000.0 / self.rate_mhz as f64));
        }
        self.next = (self.next + 1.0).max(place - BACKLOG);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pace: &mut Pace, from_ms: u64, to_ms: u64) -> usize {
        let at = |ms| Duration::from_millis(ms);
        (from_ms..to_ms).map(|ms| std::iter::from_fn(|| pace.take(at(ms)).is_none().then_some(())).count()).sum()
    }

    #[test]
    fn in_a_second_as_many_are_due_as_the_rate_says() {
        let mut pace = Pace::new(10_000, 3, Duration::ZERO);
        assert_eq!(taken(&mut pace, 0, 1000), 10);
        pace.set_rate(40_000, Duration::from_secs(1));
        assert_eq!(taken(&mut pace, 1000, 2000), 40);
    }

    #[test]
    fn a_pause_is_made_up_for_up_to_a_little() {
        let mut pace = Pace::new(100_000, 0, Duration::ZERO);
        assert!(taken(&mut pace, 10_000, 10_001) <= BACKLOG as usize + 2);
    }

    #[test]
    fn streams_of_one_rate_do_not_come_together() {
        let mut paces: Vec<Pace> = (0..8).map(|number| Pace::new(1000, number, Duration::ZERO)).collect();
        let most = (0..10)
            .map(|tenth| paces.iter_mut().map(|pace| taken(pace, tenth * 100, tenth * 100 + 100)).sum::<usize>());
        assert!(most.max() <= Some(2));
    }
}
