//! What a connection carries, as a rate that the agent can give for any interval. Processes tell at their own moments, only of what carried something, and
//! large operations count when they end; so a rate comes from what was told in the last second, never from the last message alone. It takes time as an argument,
//! and holds a bounded number of messages.

use crate::local::Carried;
use crate::proto::control as proto;
use std::collections::VecDeque;
use std::time::Duration;

/// How far back is looked. Shorter, and a connection that sends 1 MiB five times a second would seem to carry nothing, or twice what it does.
const REACH: Duration = Duration::from_secs(1);
/// Messages that came closer together than this count as one.
const GRAIN: Duration = Duration::from_millis(50);
/// A rate is not taken over less than this: the first message of a connection is no measure.
const LEAST: Duration = Duration::from_millis(100);

/// Bytes sent, bytes received, packets, packets sent again.
type Counts = [u64; 4];

/// What a connection carried lately, as its process told.
#[derive(Debug)]
pub struct Carrying {
    /// From when on it was counted.
    since: Duration,
    /// The longest interval that its process counts in, twice and a half, if that is longer than [`REACH`].
    reach: Duration,
    told: VecDeque<(Duration, Counts)>,
}

impl Carrying {
    /// Of which the first message comes `now`, or just came.
    pub fn new(now: Duration, interval: Duration) -> Self {
        Self { since: now.saturating_sub(interval), reach: REACH, told: VecDeque::new() }
    }

    /// The process tells what it carried in `interval` up to `now`.
    pub fn tell(&mut self, now: Duration, interval: Duration, carried: &Carried) {
        self.reach = REACH.max(interval * 5 / 2);
        let counts = [carried.tx_bytes, carried.rx_bytes, carried.packets, carried.retransmitted];
        match self.told.back_mut() {
            Some((last, sum)) if now.saturating_sub(*last) < GRAIN => {
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
            }
            _ => self.told.push_back((now, counts)),
        }
        self.is_quiet(now);
    }

    /// Whether nothing was told lately: it carries nothing.
    pub fn is_quiet(&mut self, now: Duration) -> bool {
        let reach = self.reach;
        while self.told.front().is_some_and(|(then, _)| now.saturating_sub(*then) >= reach) {
            self.told.pop_front();
        }
        self.told.is_empty()
    }

    /// What it carries in an interval of this length.
    pub fn within(&self, now: Duration, interval: Duration, handle: u32, passive: bool) -> proto::ConnectionLoad {
        let looked_at = now.saturating_sub(self.since).clamp(LEAST, self.reach);
        let share = interval.as_secs_f64() / looked_at.as_secs_f64();
        let [tx_bytes, rx_bytes, packets, retransmitted] = std::array::from_fn(|at| {
            let sum = self.told.iter().fold(0_u64, |sum, (_, counts)| sum.saturating_add(counts[at]));
            (sum as f64 * share).round() as u64
        });
        proto::ConnectionLoad { handle, tx_bytes, rx_bytes, packets, retransmitted, passive }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_fabric::directory::ConnectionId;

    const TENTH: Duration = Duration::from_millis(100);

    fn carried(tx_bytes: u64) -> Carried {
        let id = ConnectionId { origin: "n1/1".into(), serial: 1 };
        Carried { id, tx_bytes, rx_bytes: tx_bytes / 2, packets: 10, retransmitted: 1 }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn five_large_operations_a_second_are_what_they_are_however_they_fall_into_intervals() {
        // One of 1 MiB ends every 200 ms; the process tells of each second interval only.
        let mut carrying = Carrying::new(ms(1000), TENTH);
        for at in (1000..4000).step_by(200) {
            carrying.tell(ms(at), TENTH, &carried(1 << 20));
            for late in [0, 50, 150] {
                if at >= 2000 {
                    let load = carrying.within(ms(at + late), TENTH, 7, true);
                    let mean = (5 << 20) / 10;
                    assert!((mean * 4 / 5..=mean * 6 / 5).contains(&load.tx_bytes), "{load:?}");
                    assert_eq!((load.handle, load.passive), (7, true));
                }
            }
        }
    }

    #[test]
    fn a_new_connection_is_measured_from_its_first_interval_on() {
        let mut carrying = Carrying::new(ms(1000), TENTH);
        carrying.tell(ms(1000), TENTH, &carried(1000));
        assert_eq!(carrying.within(ms(1000), TENTH, 1, false).tx_bytes, 1000);
        carrying.tell(ms(1100), TENTH, &carried(3000));
        let load = carrying.within(ms(1100), TENTH, 1, false);
        assert_eq!((load.tx_bytes, load.rx_bytes, load.packets, load.retransmitted), (2000, 1000, 10, 1));
    }

    #[test]
    fn who_is_not_spoken_of_carries_nothing_after_a_second() {
        let mut carrying = Carrying::new(ms(1000), TENTH);
        carrying.tell(ms(1000), TENTH, &carried(1000));
        assert!(!carrying.is_quiet(ms(1999)));
        assert!(carrying.is_quiet(ms(2000)));
    }

    #[test]
    fn a_process_that_counts_in_long_intervals_is_not_believed_to_carry_more() {
        let long = Duration::from_secs(2);
        let mut carrying = Carrying::new(ms(2000), long);
        for at in [2000, 4000, 6000, 8000] {
            carrying.tell(ms(at), long, &carried(2000));
        }
        let load = carrying.within(ms(8000), Duration::from_secs(1), 1, false);
        assert!((800..=1200).contains(&load.tx_bytes), "{load:?}");
    }

    #[test]
    fn messages_in_a_hurry_take_no_more_room() {
        let mut carrying = Carrying::new(ms(0), ms(1));
        for at in 0..10_000 {
            carrying.tell(ms(at), ms(1), &carried(10));
        }
        assert!(carrying.told.len() <= 21, "{}", carrying.told.len());
        assert_eq!(carrying.within(ms(9_999), TENTH, 1, false).tx_bytes, 1000);
    }
}
