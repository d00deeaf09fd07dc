//! Swift: a window from the delay of each packet against a target (SIGCOMM 2020, algorithms 1 and 2), with the parameters that
//! Google's open simulator has.
//!
//! The target grows with the number of switches, and with one over the root of the window: many senders that share a link have
//! small windows, and their queue is naturally longer. A window below one packet means less than one packet a round trip: then
//! the pace holds packets back.

use super::moment::{Moment, US};
use super::pace::Pace;
use super::parameter::parameters;
use super::{Controller, Event, Invalid, Loss, Route};

parameters! {
    /// Parameters of Swift. Windows are in full packets.
    Parameters {
        base_target_ns: u64, 0 ..= 1_000_000_000,
            "Delay that is aimed at before hops and flow scaling, ns. 0: 25 us, or one and a half times the route's base RTT if that is more.",
            "Below the base RTT: the window falls to the least. Large: that much time of the link is queue.",
            "Google's simulator 25 us.";
        per_hop_ns: u64, 0 ..= 1_000_000,
            "What each switch on the way adds to the target, ns.",
            "0: long ways get less than short ones. Large: short ways do.",
            "Google's simulator 1 us.";
        fs_range_ns: u64, 0 ..= 100_000_000,
            "What flow scaling adds to the target at most, ns.",
            "0: in large incasts all senders cut at once, and rates differ much. Large: queues of that length in incasts.",
            "Google's simulator 100 us.";
        fs_min_cwnd: f64, 0.001 ..= 100,
            "Window at which flow scaling adds everything, packets.",
            "Near fs_max_cwnd: scaling is a step.",
            "Google's simulator 0.1.";
        fs_max_cwnd: f64, 0.01 ..= 100_000,
            "Window from which on it adds nothing, packets.",
            "As with fs_min_cwnd.",
            "Google's simulator 256.";
        ai: f64, 0.001 ..= 100,
            "What a round trip below the target adds to the window, packets.",
            "Small: freed bandwidth is found late. Large: that many senders times this is what overruns the link each round trip.",
            "Paper and Google's simulator 1.0.";
        beta: f64, 0.01 ..= 1,
            "How much of the part of the delay that is beyond the target the window loses.",
            "Small: queues stay. 1: a delay far beyond the target halves at once.",
            "Paper and Google's simulator 0.8.";
        max_mdf: f64, 0.01 ..= 0.99,
            "What one decrease takes at most, as a part of the window. A loss takes that.",
            "Small: incasts are outrun. Near 1: one late packet stops the sender.",
            "Paper and Google's simulator 0.5.";
        min_cwnd: f64, 0.000_1 ..= 1,
            "The window never falls below, packets.",
            "1: more senders than the link's round trip has packets queue for ever. Small: a stopped sender needs long to come back.",
            "Google's simulator 0.01.";
        max_cwnd: f64, 0 ..= 100_000,
            "The window never rises above, packets. 0: 256, or one and a half times the bandwidth-delay product if that is more.",
            "Below the bandwidth-delay product: the link idles.",
            "Google's simulator 256, which 800 Gb/s with packets of 1000 bytes would leave at a fifth of the line.";
        initial_cwnd: f64, 0 ..= 100_000,
            "The window at the start, packets. 0: the bandwidth-delay product.",
            "Large: the first burst of each sender is that long.",
            "Chosen here: senders begin at line rate, as those of the other algorithms do.";
        retransmit_limit: u64, 1 ..= 100,
            "Timeouts in a row after which the window falls to the least.",
            "1: a lost last packet stops the sender.",
            "Google's simulator 3.";
    }
}

impl Parameters {
    /// Those of Google's simulator. They are times and packets, and do not follow the line rate.
    pub fn google() -> Self {
        Self {
            base_target_ns: 0,
            per_hop_ns: 1_000,
            fs_range_ns: 100_000,
            fs_min_cwnd: 0.1,
            fs_max_cwnd: 256.0,
            ai: 1.0,
            beta: 0.8,
            max_mdf: 0.5,
            min_cwnd: 0.01,
            max_cwnd: 0.0,
            initial_cwnd: 0.0,
            retransmit_limit: 3,
        }
    }

    fn base_target_ps(&self, route: &Route) -> u64 {
        let own = match self.base_target_ns {
            0 => (25 * US).max(route.base_rtt_ps.saturating_mul(3) / 2),
            ns => ns * 1_000,
        };
        own.saturating_add(u64::from(route.hops) * self.per_hop_ns * 1_000)
    }

    /// The upper bound of the window on this route, packets.
    fn max_cwnd(&self, route: &Route) -> f64 {
        match self.max_cwnd {
            0.0 => 256f64.max(1.5 * route.bdp_bytes() as f64 / f64::from(route.packet_bytes.max(1))),
            packets => packets,
        }
    }

    /// Whether they make sense together, and on this route.
    pub fn check(&self, route: &Route) -> Result<(), Invalid> {
        self.check_bounds()?;
        if self.fs_min_cwnd >= self.fs_max_cwnd {
            return Err(Invalid(alloc::format!(
                "fs_min_cwnd is {} and fs_max_cwnd {}: it must be below",
                self.fs_min_cwnd,
                self.fs_max_cwnd
            )));
        }
        if self.max_cwnd > 0.0 && self.max_cwnd < 1.0 {
            return Err(Invalid(alloc::format!(
                "max_cwnd is {}: it must be at least 1, or 0 for the route's own",
                self.max_cwnd
            )));
        }
        let target = self.base_target_ps(route);
        if target <= route.base_rtt_ps {
            return Err(Invalid(alloc::format!(
                "base_target_ns and per_hop_ns give a target of {} ns, and the base RTT of the route is {} ns: it must be above",
                target / 1_000,
                route.base_rtt_ps / 1_000
            )));
        }
        Ok(())
    }
}

/// No round trip is so long that the pace would be slower than this, bit/s.
const LEAST_BPS: u64 = 1_000;

/// Swift for one QP.
#[derive(Clone, Debug, PartialEq)]
pub struct Swift {
    parameters: Parameters,
    line_rate_bps: u64,
    packet_bytes: f64,
    burst_bytes: u64,
    target_ps: f64,
    /// Flow scaling is `fs_alpha / sqrt(cwnd) + fs_beta`, within 0 and the range.
    fs_alpha: f64,
    fs_beta: f64,
    cwnd: f64,
    /// The window never rises above, packets.
    max_cwnd: f64,
    /// The newest RTT, ps.
    rtt_ps: u64,
    last_decrease: Option<Moment>,
    timeouts: u64,
    pace: Pace,
}

impl Swift {
    /// `burst_bytes`: see [`Pace::sent`].
    pub fn new(parameters: Parameters, route: &Route, burst_bytes: u64) -> Self {
        let packet_bytes = f64::from(route.packet_bytes.max(1));
        let (low, high) = (1.0 / root(parameters.fs_min_cwnd), 1.0 / root(parameters.fs_max_cwnd));
        let fs_alpha = parameters.fs_range_ns as f64 * 1e3 / (low - high);
        let initial = match parameters.initial_cwnd {
            0.0 => route.bdp_bytes() as f64 / packet_bytes,
            packets => packets,
        };
        let max_cwnd = parameters.max_cwnd(route);
        Self {
            line_rate_bps: route.line_rate_bps.max(1),
            packet_bytes,
            burst_bytes,
            target_ps: parameters.base_target_ps(route) as f64,
            fs_alpha,
            fs_beta: -fs_alpha * high,
            cwnd: initial.clamp(parameters.min_cwnd, max_cwnd),
            max_cwnd,
            rtt_ps: route.base_rtt_ps.max(1),
            last_decrease: None,
            timeouts: 0,
            pace: Pace::default(),
            parameters,
        }
    }

    /// The window, packets.
    pub fn cwnd(&self) -> f64 {
        self.cwnd
    }

    /// The delay aimed at with the present window, ps.
    pub fn target_ps(&self) -> f64 {
        let scaling = self.fs_alpha / root(self.cwnd) + self.fs_beta;
        self.target_ps + scaling.clamp(0.0, self.parameters.fs_range_ns as f64 * 1e3)
    }

    /// At most one decrease in a round trip.
    fn decrease(&mut self, now: Moment, left: f64) {
        if self.last_decrease.is_none_or(|at| now.since(at) >= self.rtt_ps) {
            self.last_decrease = Some(now);
            self.set(self.cwnd * left);
        }
    }

    fn set(&mut self, cwnd: f64) {
        self.cwnd = cwnd.clamp(self.parameters.min_cwnd, self.max_cwnd);
    }

    fn acknowledged(&mut self, now: Moment, bytes: u32, rtt: Option<u64>) {
        self.timeouts = 0;
        if let Some(rtt) = rtt {
            self.rtt_ps = rtt.max(1);
        }
        let (delay, target) = (self.rtt_ps as f64, self.target_ps());
        if delay < target {
            let packets = f64::from(bytes) / self.packet_bytes;
            let step = self.parameters.ai * packets;
            self.set(self.cwnd + if self.cwnd >= 1.0 { step / self.cwnd } else { step });
        } else if rtt.is_some() {
            let left = 1.0 - self.parameters.beta * (delay - target) / delay;
            self.decrease(now, left.max(1.0 - self.parameters.max_mdf));
        }
    }

    /// The pace in bit/s: below one packet in a round trip it is the window's, else the line's.
    fn pace_bps(&self) -> u64 {
        if self.cwnd >= 1.0 {
            return self.line_rate_bps;
        }
        self.window_rate_bps()
    }

    fn window_rate_bps(&self) -> u64 {
        let rate = self.cwnd * self.packet_bytes * 8e12 / self.rtt_ps as f64;
        (rate as u64).clamp(LEAST_BPS.min(self.line_rate_bps), self.line_rate_bps)
    }
}

/// The square root, from whole numbers: 48 bits behind the point give one of 24.
fn root(x: f64) -> f64 {
    const ONE: f64 = (1u64 << 48) as f64;
    // A window of 65536 packets and more has the root of that: flow scaling is over long before.
    let fixed = (x * ONE).min(u64::MAX as f64) as u64;
    (fixed.max(1).isqrt() as f64) / (1u64 << 24) as f64
}

impl Controller for Swift {
    fn handle(&mut self, now: Moment, event: Event<'_>) {
        match event {
            Event::Sent { wire_bytes, .. } => {
                // Below one packet a round trip a burst would be the very thing that is to be avoided.
                let burst = if self.cwnd >= 1.0 { self.burst_bytes } else { 0 };
                self.pace.sent(now, wire_bytes, self.pace_bps(), burst);
            }
            Event::Ack { flight_bytes, rtt_ps, .. } => self.acknowledged(now, flight_bytes, rtt_ps),
            Event::Lost(Loss::Nak) => self.decrease(now, 1.0 - self.parameters.max_mdf),
            Event::Lost(Loss::Timeout) => {
                self.timeouts += 1;
                if self.timeouts >= self.parameters.retransmit_limit {
                    self.last_decrease = Some(now);
                    self.set(self.parameters.min_cwnd);
                } else {
                    self.decrease(now, 1.0 - self.parameters.max_mdf);
                }
            }
            Event::Cnp | Event::Withdrawn | Event::Timer => {}
        }
    }

    fn window_bytes(&self) -> u64 {
        ((self.cwnd * self.packet_bytes) as u64).max(1)
    }

    fn rate_bps(&self) -> u64 {
        self.window_rate_bps()
    }

    fn next_send(&self) -> Moment {
        self.pace.next_send(self.pace_bps())
    }

    fn next_timer(&self) -> Option<Moment> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_right_to_a_millionth_over_all_windows() {
        for (x, expected) in [(0.01, 0.1), (0.25, 0.5), (1.0, 1.0), (2.0, core::f64::consts::SQRT_2), (256.0, 16.0)] {
            assert!((root(x) / expected - 1.0).abs() < 1e-6, "{x}: {}", root(x));
        }
    }
}
