//! What a controller of rates holds packets back with: a rate, the pace that follows from it, and a window in proportion.

use super::Route;
use super::moment::Moment;
use super::pace::Pace;

/// The rate of one QP, and what follows from it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Throttle {
    /// Rate now, bit/s.
    pub rate_bps: u64,
    /// The rate never rises above, bit/s.
    pub top_bps: u64,
    /// Rate of the link, bit/s.
    pub line_rate_bps: u64,
    /// The window at line rate, bytes; `None`: no window.
    pub full_window_bytes: Option<u64>,
    burst_bytes: u64,
    pace: Pace,
}

impl Throttle {
    /// At `top_bps`. `burst_bytes`: see [`Pace::sent`].
    pub fn new(route: &Route, top_bps: u64, full_window_bytes: Option<u64>, burst_bytes: u64) -> Self {
        let (line_rate_bps, top_bps) = (route.line_rate_bps.max(1), top_bps.max(1));
        Self { rate_bps: top_bps, top_bps, line_rate_bps, full_window_bytes, burst_bytes, pace: Pace::default() }
    }

    /// Takes a rate as far as it lies between `least_bps`, which is 1 at least, and the top.
    pub fn set(&mut self, rate_bps: u64, least_bps: u64) {
        self.rate_bps = rate_bps.clamp(least_bps.clamp(1, self.top_bps), self.top_bps);
    }

    /// A packet left.
    pub fn sent(&mut self, now: Moment, wire_bytes: u32) {
        self.pace.sent(now, wire_bytes, self.rate_bps, self.burst_bytes);
    }

    /// When the next packet may leave.
    pub fn next_send(&self) -> Moment {
        self.pace.next_send(self.rate_bps)
    }

    /// The window at the present rate, 1 byte at least; `u64::MAX`: none.
    pub fn window_bytes(&self) -> u64 {
        self.full_window_bytes.map_or(u64::MAX, |full| {
            let window = u128::from(full) * u128::from(self.rate_bps) / u128::from(self.line_rate_bps);
            (window as u64).max(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route { line_rate_bps: 8_000_000_000, base_rtt_ps: 10_000_000, packet_bytes: 1000, hops: 1 };

    #[test]
    fn rate_window_and_pace_move_together() {
        let mut throttle = Throttle::new(&ROUTE, ROUTE.line_rate_bps, Some(ROUTE.bdp_bytes()), 0);
        throttle.sent(Moment(7), 1000);
        assert_eq!((throttle.window_bytes(), throttle.next_send()), (10_000, Moment(1_000_007)));
        throttle.set(2_000_000_000, 1);
        assert_eq!((throttle.window_bytes(), throttle.next_send()), (2_500, Moment(4_000_007)));
        throttle.set(0, 0);
        assert_eq!((throttle.rate_bps, throttle.window_bytes()), (1, 1), "never nothing at all");
        throttle.set(u64::MAX, 0);
        assert_eq!(throttle.rate_bps, ROUTE.line_rate_bps);
        throttle.set(5, u64::MAX);
        assert_eq!(throttle.rate_bps, ROUTE.line_rate_bps, "a floor above the top is the top");
        assert_eq!(Throttle::new(&ROUTE, 1, None, 0).window_bytes(), u64::MAX);
    }
}
