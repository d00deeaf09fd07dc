//! Times of single operations: recorded in a histogram of three significant digits, told as percentiles. And the schedule of an open
//! loop, whose latencies count from when an operation should have started, not from when it could: who measures from the post leaves
//! out the waiting that a slow answer causes for those behind it (coordinated omission).

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Longest time that is told apart from longer ones.
const LONGEST_NS: u64 = 600_000_000_000;

/// Times of operations.
pub struct Times {
    histogram: Histogram<u64>,
}

/// What is told of them, µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Operations.
    pub samples: u64,
    /// Fastest.
    pub min_us: f64,
    /// Typical: the median.
    pub p50_us: f64,
    /// Nine of ten are at most this.
    pub p90_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1,000.
    pub p999_us: f64,
    /// Slowest.
    pub max_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
}

impl Default for Times {
    fn default() -> Self {
        // Bounds and digits are constants that the crate accepts; a histogram that grows would be the same with a pause in between.
        let histogram =
            Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("1 ns to 600 s with 3 digits are valid bounds");
        Self { histogram }
    }
}

impl Times {
    /// One more operation took so long.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS);
        self.histogram.saturating_record(ns);
    }

    /// Operations recorded.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Percentiles; each time divided by `parts` (2: one way of there and back). `None` without any.
    pub fn latency(&self, parts: u32) -> Option<Latency> {
        if self.histogram.is_empty() {
            return None;
        }
        let us = |ns: f64| ns / 1e3 / f64::from(parts);
        let at = |quantile| us(self.histogram.value_at_quantile(quantile) as f64);
        Some(Latency {
            samples: self.len(),
            min_us: us(self.histogram.min() as f64),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.histogram.max() as f64),
            mean_us: us(self.histogram.mean()),
            stdev_us: us(self.histogram.stdev()),
        })
    }
}

/// When the operations of an open loop should start: evenly, whatever happens to those before.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    interval_ns: f64,
}

impl Schedule {
    /// So many a second.
    pub fn new(rate: f64) -> Self {
        Self { interval_ns: 1e9 / rate }
    }

    /// When operation `index` should start, from the beginning.
    pub fn start(&self, index: u64) -> Duration {
        Duration::from_nanos((index as f64 * self.interval_ns) as u64)
    }

    /// How long operation `index` took that was over at `end`: from its intended start.
    pub fn latency(&self, index: u64, end: Duration) -> Duration {
        end.saturating_sub(self.start(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_numbers() {
        let mut times = Times::default();
        for us in 1..=1000 {
            times.record(Duration::from_micros(us));
        }
        let told = times.latency(1).unwrap();
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.002;
        assert_eq!(told.samples, 1000);
        assert!(near(told.min_us, 1.0) && near(told.max_us, 1000.0), "{told:?}");
        assert!(near(told.p50_us, 500.0) && near(told.p90_us, 900.0), "{told:?}");
        assert!(near(told.p99_us, 990.0) && near(told.p999_us, 999.0), "{told:?}");
        assert!(near(told.mean_us, 500.5) && near(told.stdev_us, 288.7), "{told:?}");
        let half = times.latency(2).unwrap();
        assert!(near(half.p50_us, 250.0) && near(half.stdev_us, 144.3), "{half:?}");
    }

    #[test]
    fn nothing_has_no_percentiles_and_the_very_long_is_kept() {
        let mut times = Times::default();
        assert_eq!(times.latency(1), None);
        times.record(Duration::from_secs(100_000));
        assert_eq!(times.len(), 1);
    }

    /// Ten operations a second; the fourth takes 350 ms, all others 10 ms, one at a time. Those behind it could not start in time, and
    /// that is told of them.
    #[test]
    fn an_open_loop_counts_the_waiting_behind_a_slow_operation() {
        let schedule = Schedule::new(10.0);
        let mut free = Duration::ZERO;
        let mut told = Vec::new();
        for index in 0..8 {
            let takes = Duration::from_millis(if index == 3 { 350 } else { 10 });
            let end = schedule.start(index).max(free) + takes;
            free = end;
            told.push(schedule.latency(index, end).as_millis());
        }
        assert_eq!(told, [10, 10, 10, 350, 260, 170, 80, 10]);
    }

    #[test]
    fn a_schedule_does_not_drift() {
        let schedule = Schedule::new(3.0);
        assert_eq!(schedule.start(0), Duration::ZERO);
        assert_eq!(schedule.start(3_000_000).as_secs(), 1_000_000);
    }
}
