//! HPCC: window and rate from in-band telemetry (SIGCOMM 2019, algorithm 1), as its authors' simulator has it.
//!
//! Each switch writes its queue, its count of bytes and the time on data packets, and the receiver echoes that in the ACK. *The
//! sender* computes from it how much of the fullest link was used, and sets its rate so that it would have been `eta`. Texts
//! that let the receiver compute a rate and return it in a CNP describe something else.
//!
//! Every ACK moves the rate; but they all start from the reference rate of the round trip, so that one congestion is not
//! answered many times. With [`Telemetry::Pint`] switches do the averaging and one byte comes back (SIGCOMM 2020).

use super::flight::Flight;
use super::moment::Moment;
use super::parameter::parameters;
use super::throttle::Throttle;
use super::{Controller, Event, Hop, Invalid, Loss, Route, Telemetry, pint};

parameters! {
    /// Parameters of HPCC.
    Parameters {
        eta: f64, 0.1 ..= 1,
            "What part of the fullest link shall be used.",
            "Small: bandwidth is given away for empty queues. 1: queues do not drain.",
            "Paper 0.95; the authors' project page recommends 0.99.";
        max_stage: u64, 0 ..= 1_000,
            "Round trips of additive increase before a multiplicative one.",
            "0: each round trip aims at eta at once. Large: freed bandwidth is found in small steps.",
            "Reference simulator 0 (its project page: the paper's 5 is a typo).";
        ai_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "What each update adds, bit/s: this alone makes rates equal.",
            "Small: fairness takes long. Large: that many senders times this times the round trip is a standing queue.",
            "Reference simulator 10 Mb/s at 25 Gb/s, in proportion.";
        min_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "The rate never falls below, bit/s.",
            "Large: that many senders times this is what the link must carry.",
            "Reference simulator 1 Gb/s at 100 Gb/s, in proportion.";
        fast_react: bool, 0 ..= 1,
            "Whether every ACK moves the rate, and not only one in a round trip.",
            "False: a round trip passes before a congestion is answered.",
            "Paper and reference simulator true.";
        pint: bool, 0 ..= 1,
            "Whether switches send back a code of the utilisation instead of a record of each hop.",
            "True in a network whose switches write records: nothing is heard, and the rate stays.",
            "Paper false; PINT true.";
        window_bytes: u64, 0 ..= 1_000_000_000_000,
            "The window at line rate, bytes. 0: the route's bandwidth-delay product.",
            "Small: the link idles. Large: the first burst of each sender is that long.",
            "Reference simulator: the largest product of the network.";
    }
}

impl Parameters {
    /// The reference simulator's.
    pub fn reference(line_rate_bps: u64) -> Self {
        Self {
            eta: 0.95,
            max_stage: 0,
            ai_rate_bps: (line_rate_bps / 2_500).max(1_000),
            min_rate_bps: (line_rate_bps / 100).max(1_000),
            fast_react: true,
            pint: false,
            window_bytes: 0,
        }
    }

    /// The same with PINT.
    pub fn pint(line_rate_bps: u64) -> Self {
        Self { pint: true, ..Self::reference(line_rate_bps) }
    }

    /// Whether they make sense on this route.
    pub fn check(&self, route: &Route) -> Result<(), Invalid> {
        self.check_bounds()?;
        if self.min_rate_bps > route.line_rate_bps {
            return Err(Invalid(alloc::format!(
                "min_rate_bps is {} and the line rate {}: it must not be above",
                self.min_rate_bps,
                route.line_rate_bps
            )));
        }
        if route.base_rtt_ps == 0 {
            return Err(Invalid("hpcc needs the base RTT of the route: it is 0".into()));
        }
        Ok(())
    }
}

/// Hops that are remembered. A packet that crossed more is not believed.
pub const MAX_HOPS: usize = 8;

/// HPCC for one QP.
#[derive(Clone, Debug, PartialEq)]
pub struct Hpcc {
    parameters: Parameters,
    base_rtt_ps: u64,
    window_bytes: u64,
    throttle: Throttle,
    /// The rate that the round trip's updates start from.
    reference_bps: u64,
    stage: u64,
    /// Utilisation of the fullest link, smoothed over a round trip; 1 is full.
    utilisation: f64,
    /// The two ways that were heard of last: requests go one, READ responses come by another.
    ways: [Way; 2],
    /// Round trips that have ended.
    rounds: u64,
    flight: Flight,
}

/// What is known of one way through the network.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    hops: [Hop; MAX_HOPS],
    hop_count: usize,
    utilisation: f64,
    /// The round trip in which it was heard of last; `None`: never.
    heard: Option<u64>,
}

impl Way {
    const UNKNOWN: Self = Self {
        hops: [Hop { node: 0, rate_bps: 0, at_ps: 0, tx_bytes: 0, queue_bytes: 0 }; MAX_HOPS],
        hop_count: 0,
        utilisation: 1.0,
        heard: None,
    };

    fn is(&self, hops: &[Hop]) -> bool {
        self.heard.is_some()
            && self.hop_count == hops.len()
            && hops.iter().zip(&self.hops).all(|(new, old)| new.node == old.node)
    }
}

impl Hpcc {
    /// At line rate. `burst_bytes`: see [`super::Pace::sent`].
    pub fn new(parameters: Parameters, route: &Route, burst_bytes: u64) -> Self {
        let window_bytes = if parameters.window_bytes == 0 { route.bdp_bytes() } else { parameters.window_bytes };
        let throttle = Throttle::new(route, route.line_rate_bps, Some(window_bytes), burst_bytes);
        Self {
            base_rtt_ps: route.base_rtt_ps.max(1),
            window_bytes,
            reference_bps: throttle.rate_bps,
            throttle,
            stage: 0,
            utilisation: 1.0,
            ways: [Way::UNKNOWN; 2],
            rounds: 0,
            flight: Flight::default(),
            parameters,
        }
    }

    /// The smoothed utilisation of the fullest link; 1 is full.
    pub fn utilisation(&self) -> f64 {
        self.utilisation
    }

    /// Remembers the records; what can be compared with those before of the same way gives the utilisation. False: nothing could be
    /// compared. The fuller of two ways counts while both are in use: one rate goes for both.
    fn measure(&mut self, hops: &[Hop]) -> bool {
        let known = self.ways.iter().position(|way| way.is(hops));
        // A new way takes the place of the one that was not heard of for longest.
        let place = known.unwrap_or(usize::from(self.ways[1].heard < self.ways[0].heard));
        let way = &mut self.ways[place];
        let (mut fullest, mut over) = (0.0, 0);
        if known.is_some() {
            for (new, old) in hops.iter().zip(&way.hops) {
                let tau = new.at_ps.saturating_sub(old.at_ps);
                if tau == 0 || new.rate_bps == 0 {
                    continue;
                }
                let rate = new.rate_bps as f64;
                let sent_bps = new.tx_bytes.saturating_sub(old.tx_bytes) as f64 * 8e12 / tau as f64;
                let queue = new.queue_bytes.min(old.queue_bytes) as f64;
                let used =
                    sent_bps / rate + queue * (self.throttle.line_rate_bps as f64 / rate) / self.window_bytes as f64;
                if used > fullest {
                    (fullest, over) = (used, tau);
                }
            }
        }
        way.hop_count = hops.len();
        way.hops[..hops.len()].copy_from_slice(hops);
        way.heard = Some(self.rounds);
        if known.is_none() {
            // It begins as full as the fullest is believed to be.
            way.utilisation = self.utilisation;
            return false;
        }
        let over = over.min(self.base_rtt_ps) as f64;
        let whole = self.base_rtt_ps as f64;
        way.utilisation = (way.utilisation * (whole - over) + fullest * over) / whole;
        let in_use = |way: &&Way| way.heard.is_some_and(|heard| heard + 2 > self.rounds);
        self.utilisation = self.ways.iter().filter(in_use).map(|way| way.utilisation).fold(0.0, f64::max);
        true
    }

    fn update(&mut self, commit: bool) {
        let p = &self.parameters;
        let excess = self.utilisation / p.eta;
        let (from, stage) = if excess >= 1.0 || self.stage >= p.max_stage {
            // A link that nobody uses allows more than any rate: the line rate bounds it.
            (self.reference_bps as f64 / excess.max(1e-9), 0)
        } else {
            (self.reference_bps as f64, self.stage + 1)
        };
        // A float beyond the range becomes its end.
        self.throttle.set((from as u64).saturating_add(p.ai_rate_bps), p.min_rate_bps);
        if commit {
            self.reference_bps = self.throttle.rate_bps;
            self.stage = stage;
        }
    }

    fn acknowledged(&mut self, telemetry: Telemetry<'_>) {
        let over = self.flight.round_is_over();
        let first = self.flight.is_first();
        let heard = match telemetry {
            Telemetry::Hops(hops) if !self.parameters.pint && !hops.is_empty() && hops.len() <= MAX_HOPS => {
                if !over && !self.parameters.fast_react {
                    return;
                }
                let compared = self.measure(hops);
                compared && !first
            }
            Telemetry::Pint(code) if self.parameters.pint && code != 0 => {
                if !over && !self.parameters.fast_react {
                    return;
                }
                self.utilisation = pint::utilisation(code);
                !first
            }
            _ => return,
        };
        if heard {
            self.update(over);
        }
        if over {
            self.flight.begin_round();
            self.rounds += 1;
        }
    }
}

impl Controller for Hpcc {
    fn handle(&mut self, now: Moment, event: Event<'_>) {
        match event {
            Event::Sent { flight_bytes, wire_bytes } => {
                self.flight.sent(flight_bytes);
                self.throttle.sent(now, wire_bytes);
            }
            Event::Ack { flight_bytes, telemetry, .. } => {
                self.flight.acked(flight_bytes);
                self.acknowledged(telemetry);
            }
            Event::Lost(loss) => {
                self.flight.gone_back();
                // A loss that telemetry did not announce is a corrupted packet, or telemetry does not come: then half.
                if loss == Loss::Timeout {
                    self.throttle.set(self.throttle.rate_bps / 2, self.parameters.min_rate_bps);
                    self.reference_bps = self.throttle.rate_bps;
                }
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
