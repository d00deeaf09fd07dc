//! How much processor time processes have used, from `/proc`. It measures nothing by itself.

use std::time::{Duration, Instant};

/// Processor time of some processes by wall time.
#[derive(Debug)]
pub struct Usage {
    ticks_per_second: f64,
    begun: Instant,
    base: u64,
    last: (Instant, u64),
    cores: f64,
}

impl Usage {
    /// Begins to look at this process and those.
    pub fn new(pids: &[u32]) -> Self {
        let (begun, base) = (Instant::now(), ticks_of(pids));
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        Self { ticks_per_second, begun, base, last: (begun, base), cores: 0.0 }
    }

    /// Cores in use lately: 1 is a whole one.
    pub fn lately(&mut self, pids: &[u32]) -> f64 {
        let passed = self.last.0.elapsed();
        if passed >= Duration::from_millis(900) {
            let ticks = ticks_of(pids);
            self.cores = self.rate(ticks.saturating_sub(self.last.1), passed);
            self.last = (Instant::now(), ticks);
        }
        self.cores
    }

    /// Cores in use since the beginning.
    pub fn mean(&self, pids: &[u32]) -> f64 {
        self.rate(ticks_of(pids).saturating_sub(self.base), self.begun.elapsed())
    }

    fn rate(&self, ticks: u64, passed: Duration) -> f64 {
        ticks as f64 / self.ticks_per_second / passed.as_secs_f64().max(0.001)
    }
}

fn ticks_of(pids: &[u32]) -> u64 {
    let all = pids.iter().map(|pid| format!("/proc/{pid}/stat")).chain(["/proc/self/stat".to_owned()]);
    all.filter_map(|path| ticks(&std::fs::read_to_string(path).ok()?)).sum()
}

/// User and system time, fields 14 and 15; a program's name may hold anything but ends with the last parenthesis.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        assert_eq!(ticks("7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 120 30 0 0 20"), Some(150));
        assert_eq!(ticks("nonsense"), None);
    }
}
