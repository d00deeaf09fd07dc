//! TIMELY: rate-based, driven by the round trip time and its gradient (SIGCOMM 2015, algorithm 1), as HPCC's simulator has it:
//! one update for each round trip, with the RTT of the first ACK of the round.

use super::flight::Flight;
use super::moment::Moment;
use super::parameter::parameters;
use super::throttle::Throttle;
use super::{Controller, Event, Invalid, Loss, Route};

parameters! {
    /// Parameters of TIMELY.
    Parameters {
        ewma_alpha: f64, 0.001 ..= 1,
            "Weight of the newest difference of RTTs in the gradient.",
            "Small: the gradient lags behind the queue by many round trips. 1: it is noise of single packets.",
            "Reference simulator 0.875; Google's published snippet has 0.02 for each packet.";
        beta: f64, 0.01 ..= 1,
            "How much of a gradient, or of what is beyond t_high, the rate loses.",
            "Small: queues stay. 1: a gradient of 1 stops the sender.",
            "Paper and reference simulator 0.8.";
        t_low_ns: u64, 0 ..= 1_000_000_000,
            "RTT below which the rate always rises, ns.",
            "0: the gradient alone counts, and bursts of single senders are punished. Large: that much time of the link is queue before anybody slows down: 50 us are 625 KB at 100 Gb/s.",
            "Paper 50 us at 10 Gb/s, which is 62.5 KB; the scaled profile keeps the bytes and not the time.";
        t_high_ns: u64, 1_000 ..= 10_000_000_000,
            "RTT above which the rate always falls, ns.",
            "Near t_low: hardly any gradient. Large: the tail of latency.",
            "Paper 500 us at 10 Gb/s, which is 625 KB; the scaled profile keeps the bytes.";
        beyond_base_rtt: bool, 0 ..= 1,
            "Whether t_low_ns and t_high_ns count from the route's base RTT, and not from 0.",
            "False on a route whose base RTT is above t_high_ns: the rate falls to the least.",
            "Paper false; scaled true.";
        min_rtt_ns: u64, 0 ..= 1_000_000_000,
            "What differences of RTTs are divided by, ns. 0: the route's base RTT.",
            "Small: the smallest rise of the queue stops the sender. Large: the gradient counts for nothing.",
            "Reference simulator 20 us; scaled 0.";
        ai_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "What an update without congestion adds, bit/s.",
            "Small: freed bandwidth is found late. Large: many senders together overrun the link.",
            "Paper 10 Mb/s at 10 Gb/s, in proportion.";
        hai_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "What it adds after hai_after updates without congestion, bit/s.",
            "As with ai_rate_bps.",
            "Reference simulator 50 Mb/s at 10 Gb/s, in proportion.";
        hai_after: u64, 1 ..= 1_000,
            "Updates without congestion after which hyperactive increase begins.",
            "1: nearly at once. 1000: never.",
            "Paper 5.";
        min_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "The rate never falls below, bit/s.",
            "Small: a stopped sender hears of the next round trip late. Large: that many senders times this is what the link must carry.",
            "Reference simulator 1 Gb/s at 100 Gb/s, in proportion.";
        window: bool, 0 ..= 1,
            "Whether a window of the bandwidth-delay product times rate / line rate holds packets back, too.",
            "True needs an ACK for every few packets, or the sender stops between them.",
            "HPCC's comparison (\"+w\"); the paper has none.";
    }
}

impl Parameters {
    /// The paper's, with increases in proportion to the rate.
    pub fn paper(line_rate_bps: u64) -> Self {
        Self {
            ewma_alpha: 0.875,
            beta: 0.8,
            t_low_ns: 50_000,
            t_high_ns: 500_000,
            beyond_base_rtt: false,
            min_rtt_ns: 20_000,
            ai_rate_bps: (line_rate_bps / 1_000).max(1_000),
            hai_rate_bps: (line_rate_bps / 200).max(1_000),
            hai_after: 5,
            min_rate_bps: (line_rate_bps / 100).max(1_000),
            window: false,
        }
    }

    /// Thresholds that are the paper's in bytes of queue: at 100 Gb/s 5 and 50 µs beyond the base RTT.
    pub fn scaled(line_rate_bps: u64) -> Self {
        let scale = 10e9 / line_rate_bps.max(1) as f64;
        let scaled = |ns: f64| ((ns * scale) as u64).clamp(100, 1_000_000_000);
        Self {
            t_low_ns: scaled(50_000.0),
            t_high_ns: scaled(500_000.0),
            beyond_base_rtt: true,
            min_rtt_ns: 0,
            min_rate_bps: (line_rate_bps / 1_000).max(1_000),
            ..Self::paper(line_rate_bps)
        }
    }

    /// Whether they make sense together, and on this route.
    pub fn check(&self, route: &Route) -> Result<(), Invalid> {
        self.check_bounds()?;
        if self.t_low_ns >= self.t_high_ns {
            return Err(Invalid(alloc::format!(
                "t_low_ns is {} and t_high_ns {}: it must be below",
                self.t_low_ns,
                self.t_high_ns
            )));
        }
        if !self.beyond_base_rtt && self.t_high_ns * 1_000 <= route.base_rtt_ps {
            return Err(Invalid(alloc::format!(
                "t_high_ns is {} and the base RTT of the route {} ns: it must be above, or beyond_base_rtt true",
                self.t_high_ns,
                route.base_rtt_ps / 1_000
            )));
        }
        if self.min_rate_bps > route.line_rate_bps {
            return Err(Invalid(alloc::format!(
                "min_rate_bps is {} and the line rate {}: it must not be above",
                self.min_rate_bps,
                route.line_rate_bps
            )));
        }
        Ok(())
    }
}

/// TIMELY for one QP.
#[derive(Clone, Debug, PartialEq)]
pub struct Timely {
    parameters: Parameters,
    low_ps: f64,
    high_ps: f64,
    min_rtt_ps: f64,
    /// Of the last round, ps.
    last_rtt: f64,
    /// Smoothed difference of RTTs, ps.
    difference: f64,
    calm: u64,
    flight: Flight,
    throttle: Throttle,
}

impl Timely {
    /// At line rate. `burst_bytes`: see [`super::Pace::sent`].
    pub fn new(parameters: Parameters, route: &Route, burst_bytes: u64) -> Self {
        let base = if parameters.beyond_base_rtt { route.base_rtt_ps } else { 0 };
        let beyond = |ns: u64| (base + ns * 1_000) as f64;
        let min_rtt = match parameters.min_rtt_ns {
            0 => route.base_rtt_ps,
            ns => ns * 1_000,
        };
        Self {
            low_ps: beyond(parameters.t_low_ns),
            high_ps: beyond(parameters.t_high_ns),
            min_rtt_ps: min_rtt.max(1) as f64,
            last_rtt: 0.0,
            difference: 0.0,
            calm: 0,
            flight: Flight::default(),
            throttle: Throttle::new(
                route,
                route.line_rate_bps,
                parameters.window.then(|| route.bdp_bytes()),
                burst_bytes,
            ),
            parameters,
        }
    }

    fn update(&mut self, rtt: f64) {
        let p = &self.parameters;
        self.difference = (1.0 - p.ewma_alpha) * self.difference + p.ewma_alpha * (rtt - self.last_rtt);
        let gradient = self.difference / self.min_rtt_ps;
        let left = if rtt < self.low_ps {
            None
        } else if rtt > self.high_ps {
            Some(1.0 - p.beta * (1.0 - self.high_ps / rtt))
        } else if gradient <= 0.0 {
            None
        } else {
            Some((1.0 - p.beta * gradient).max(0.0))
        };
        match left {
            Some(left) => self.slow_down(left),
            None => {
                let step = if self.calm < p.hai_after { p.ai_rate_bps } else { p.hai_rate_bps };
                self.calm = self.calm.saturating_add(1);
                self.throttle.set(self.throttle.rate_bps.saturating_add(step), 1);
            }
        }
    }

    fn slow_down(&mut self, left: f64) {
        self.calm = 0;
        self.throttle.set((self.throttle.rate_bps as f64 * left) as u64, self.parameters.min_rate_bps);
    }
}

impl Controller for Timely {
    fn handle(&mut self, now: Moment, event: Event<'_>) {
        match event {
            Event::Sent { flight_bytes, wire_bytes } => {
                self.flight.sent(flight_bytes);
                self.throttle.sent(now, wire_bytes);
            }
            Event::Ack { flight_bytes, rtt_ps, .. } => {
                self.flight.acked(flight_bytes);
                let Some(rtt) = rtt_ps.map(|rtt| rtt as f64) else { return };
                if self.flight.round_is_over() {
                    if !self.flight.is_first() {
                        self.update(rtt);
                    }
                    self.last_rtt = rtt;
                    self.flight.begin_round();
                }
            }
            // TIMELY was made for networks without loss. One that loses has a full queue whose RTT nobody will see.
            Event::Lost(loss) => {
                self.flight.gone_back();
                self.slow_down(if loss == Loss::Timeout { 0.0 } else { 1.0 - self.parameters.beta / 2.0 });
            }
            Event::Withdrawn => self.flight.gone_back(),
            Event::Cnp | Event::Timer => {}
        }
    }

    fn window_bytes(&self) -> u64 {
        self.throttle.window_bytes()
    }

    fn rate_bps(&self) -> u64 {
        self.throttle.rate_bps
    }

    fn next_send(&self) -> Moment {
        self.throttle.next_send()
    }

    fn next_timer(&self) -> Option<Moment> {
        None
    }
}
