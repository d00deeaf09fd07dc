//! The pace: when the next packet may leave, given what left and how fast it may go.

use super::moment::{Moment, time_ps};

/// What left last. The next packet waits until that is through at the rate of the moment in which it is asked: when the rate
/// rises, what waits comes sooner, and when it falls, later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// When the last packet's time began.
    from: Moment,
    /// Its bytes.
    bytes: u32,
}

impl Pace {
    /// When the next packet may leave at `rate_bps`.
    pub fn next_send(&self, rate_bps: u64) -> Moment {
        if self.bytes == 0 { self.from } else { self.from.after(time_ps(u64::from(self.bytes), rate_bps)) }
    }

    /// A packet of `bytes` left at `now`. A sender that is late, because its turn came late, may make up for what `burst_bytes`
    /// take; 0: nothing is made up for, as in a NIC that sends on time.
    pub fn sent(&mut self, now: Moment, bytes: u32, rate_bps: u64, burst_bytes: u64) {
        self.from = if burst_bytes == 0 {
            now
        } else {
            self.next_send(rate_bps).max(Moment(now.0.saturating_sub(time_ps(burst_bytes, rate_bps))))
        };
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_at_the_rate_and_what_waits_follows_its_changes() {
        let mut pace = Pace::default();
        pace.sent(Moment(1_000), 1000, 8_000_000_000, 0);
        assert_eq!(pace.next_send(8_000_000_000), Moment(1_001_000), "1 us for 1000 bytes at 8 Gb/s");
        assert_eq!(pace.next_send(4_000_000_000), Moment(2_001_000));
        assert_eq!(pace.next_send(16_000_000_000), Moment(501_000));
    }

    #[test]
    fn late_turns_are_made_up_for_within_the_burst() {
        let (rate, mut pace, mut now, mut sent) = (8_000_000_000, Pace::default(), Moment(1_000_000_000), 0u64);
        // Turns come every 10 us, and 10 packets of 1000 bytes are due in each.
        for _ in 0..100 {
            while pace.next_send(rate) <= now {
                pace.sent(now, 1000, rate, 20_000);
                sent += 1;
            }
            now = now.after(10_000_000);
        }
        assert!((1000..=1021).contains(&sent), "{sent} packets in 990 us, and a burst of 20 at the start");
        // After a pause the burst, and no more.
        now = now.after(1_000_000_000_000);
        let before = sent;
        while pace.next_send(rate) <= now {
            pace.sent(now, 1000, rate, 20_000);
            sent += 1;
        }
        assert_eq!(sent - before, 21);
    }
}
