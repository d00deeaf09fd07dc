//! DCQCN: the sender's part (the reaction point), rate-based, driven by CNPs (SIGCOMM 2015; 802.1Qau for the increase).
//!
//! A CNP says that packets arrive marked. The rate falls by a part that follows `alpha`, an estimate of how many intervals
//! bring CNPs; it rises again, counted by a timer and by a byte counter: first half the way to the target (fast recovery),
//! then the target rises, too (active, then hyper increase).
//!
//! The paper's NIC cuts at each CNP, which the receiver sends every 50 µs at most. ConnectX looks at the end of each
//! `rate_reduce_monitor_period` whether one came. Parameters have the names that `mlxconfig` and Linux's sysfs and debugfs give
//! them. `alpha` decays lazily: nothing wakes anybody every microsecond.

use super::moment::Moment;
use super::parameter::parameters;
use super::throttle::Throttle;
use super::{Controller, Event, Invalid, Route};

parameters! {
    /// Parameters of DCQCN.
    Parameters {
        dce_tcp_rtt_ns: u64, 100 ..= 1_000_000_000,
            "Time between two updates of alpha, ns.",
            "Short: alpha forgets a congestion before the next CNP can come, and cuts become small. Long: it remembers for ever, and each cut halves the rate.",
            "ConnectX firmware DCE_TCP_RTT 1 us, stretched below 25 Gb/s; paper 55 us.";
        dce_tcp_g: f64, 0.000_001 ..= 1,
            "Weight of an interval in alpha.",
            "Small: alpha hardly moves. 1: alpha is 0 or 1, and the rate is halved or left.",
            "Paper and reference simulator 1/256; ConnectX firmware 5/1024 (DCE_TCP_G 1019).";
        initial_alpha_value: f64, 0 ..= 1,
            "alpha at the first CNP.",
            "0: the first cuts do nothing. 1: the first cut halves the rate.",
            "Paper 1; ConnectX firmware 1023/1024.";
        rate_reduce_monitor_period_ns: u64, 0 ..= 1_000_000_000,
            "Time between two cuts, ns. 0: each CNP cuts at once, as in the paper.",
            "Short with many CNPs: the rate collapses before the network can show that it fell. Long: queues grow meanwhile.",
            "ConnectX firmware 4 us, stretched below 25 Gb/s; paper 0; reference simulator's paper timers 50 us.";
        rpg_gd: u64, 10 ..= 15,
            "The cut is alpha * 2^10 / 2^rpg_gd of the rate.",
            "10: up to all of it. 15: up to a thirty-second, which incast outruns.",
            "ConnectX firmware 11: up to one half, as in the paper.";
        rpg_min_dec_fac: f64, 1 ..= 100,
            "What a cut leaves at least, percent.",
            "1: a cut may take nearly all. 100: nothing is ever cut.",
            "ConnectX firmware 50.";
        rpg_time_reset_ns: u64, 1_000 ..= 10_000_000_000,
            "Period of the timer of rate increase, ns.",
            "Short: queues never drain. Long: the link idles after a congestion.",
            "ConnectX firmware 300 us, stretched below 25 Gb/s; paper 55 us.";
        rpg_byte_reset: u64, 0 ..= 1_000_000_000_000,
            "Bytes of the byte counter of rate increase. 0: no byte counter.",
            "Small: fast senders rise faster than slow ones, and fairness suffers. Large: only the timer counts.",
            "ConnectX firmware 32767; paper 10 MB; reference simulator none.";
        rpg_threshold: u64, 1 ..= 31,
            "Periods of timer or byte counter that are fast recovery.",
            "1: the target rises at once. 31: it takes 31 periods until it does.",
            "ConnectX firmware 1; paper 5.";
        rpg_ai_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "What active increase adds to the target, bit/s.",
            "Small: freed bandwidth is found late. Large: many senders together overrun the link at each step.",
            "ConnectX firmware 5 Mb/s, taken to be for 25 Gb/s and in proportion (reference simulator); paper 40 Mb/s at 40 Gb/s, in proportion.";
        rpg_hai_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "What hyper increase adds to the target, bit/s.",
            "As with rpg_ai_rate_bps.",
            "Ten times active increase (firmware, reference simulator); the paper names none: the same as active increase.";
        rpg_min_rate_bps: u64, 1_000 ..= 1_000_000_000_000,
            "The rate never falls below, bit/s.",
            "Small: a sender that was cut often needs long to come back. Large: that many senders times this is what the link must carry.",
            "ConnectX firmware 1 Mb/s; reference simulator 1 Gb/s at 100 Gb/s.";
        rpg_max_rate_bps: u64, 0 ..= 10_000_000_000_000,
            "The rate never rises above, bit/s. 0: the line rate.",
            "Small: bandwidth is left unused.",
            "ConnectX firmware 0.";
        rate_to_set_on_first_cnp_bps: u64, 0 ..= 10_000_000_000_000,
            "What the rate becomes at the first CNP, bit/s. 0: it stays, and is cut as by any other.",
            "Small: each new sender that meets congestion begins there.",
            "ConnectX firmware 0.";
        clamp_tgt_rate: bool, 0 ..= 1,
            "Whether each cut takes the target down to the rate before it.",
            "False: several cuts in a row leave the target high, and recovery goes back there. True: recovery is slow after several cuts.",
            "Paper true; ConnectX firmware false.";
        clamp_tgt_rate_after_time_inc: bool, 0 ..= 1,
            "Whether a cut does so if the timer has raised the rate since the last one.",
            "As with clamp_tgt_rate.",
            "ConnectX firmware and reference simulator true.";
        min_time_between_cnps_ns: u64, 0 ..= 1_000_000_000,
            "Of the receiver: time between two CNPs for a QP, ns.",
            "0: a CNP for each marked packet. Long: the sender hears late.",
            "ConnectX firmware 4 us, stretched below 25 Gb/s; paper 50 us; the reference simulator flags each ACK.";
        window: bool, 0 ..= 1,
            "Whether a window of the bandwidth-delay product times rate / line rate holds packets back, too.",
            "True needs an ACK for every few packets, or the sender stops between them.",
            "HPCC's comparison (\"+w\"); ConnectX and the paper have none.";
    }
}

/// A time that is meant for links of `from_bps` and faster. On slower ones it grows in proportion, so that as many packets pass in it: else the
/// next mark comes when `alpha` has forgotten the last one, and each marked packet is a congestion of its own.
fn stretched(ns: u64, from_bps: u64, line_rate_bps: u64) -> u64 {
    let line = line_rate_bps.max(1);
    if line >= from_bps {
        ns
    } else {
        (u128::from(ns) * u128::from(from_bps) / u128::from(line)).min(1_000_000_000) as u64
    }
}

/// Links for which the firmware's times are.
const FIRMWARE_BPS: u64 = 25_000_000_000;

impl Parameters {
    /// ConnectX's firmware: its timers, its byte counter. Below 25 Gb/s times are stretched and increases shrink in proportion.
    pub fn connectx(line_rate_bps: u64) -> Self {
        let time = |ns| stretched(ns, FIRMWARE_BPS, line_rate_bps);
        Self {
            dce_tcp_rtt_ns: time(1_000),
            dce_tcp_g: 5.0 / 1024.0,
            initial_alpha_value: 1023.0 / 1024.0,
            rate_reduce_monitor_period_ns: time(4_000),
            rpg_gd: 11,
            rpg_min_dec_fac: 50.0,
            rpg_time_reset_ns: time(300_000),
            rpg_byte_reset: 32_767,
            rpg_threshold: 1,
            rpg_ai_rate_bps: (line_rate_bps / 5_000).max(1_000),
            rpg_hai_rate_bps: (line_rate_bps / 500).max(1_000),
            rpg_min_rate_bps: 1_000_000,
            rpg_max_rate_bps: 0,
            rate_to_set_on_first_cnp_bps: 0,
            clamp_tgt_rate: false,
            clamp_tgt_rate_after_time_inc: true,
            min_time_between_cnps_ns: time(4_000),
            window: false,
        }
    }

    /// The paper's, with its times at every rate.
    pub fn paper(line_rate_bps: u64) -> Self {
        let increase = (line_rate_bps / 1_000).max(1_000_000);
        Self {
            dce_tcp_rtt_ns: 55_000,
            dce_tcp_g: 1.0 / 256.0,
            initial_alpha_value: 1.0,
            rate_reduce_monitor_period_ns: 0,
            rpg_time_reset_ns: 55_000,
            rpg_byte_reset: 10_000_000,
            rpg_threshold: 5,
            rpg_ai_rate_bps: increase,
            rpg_hai_rate_bps: increase,
            clamp_tgt_rate: true,
            clamp_tgt_rate_after_time_inc: true,
            min_time_between_cnps_ns: 50_000,
            ..Self::connectx(line_rate_bps)
        }
    }

    /// As HPCC's simulator has it ("dcqcn"): the firmware's timers at every rate, no byte counter, a CNP flag in each ACK.
    pub fn reference(line_rate_bps: u64) -> Self {
        Self {
            dce_tcp_rtt_ns: 1_000,
            rate_reduce_monitor_period_ns: 4_000,
            rpg_time_reset_ns: 300_000,
            dce_tcp_g: 1.0 / 256.0,
            initial_alpha_value: 1.0,
            rpg_byte_reset: 0,
            rpg_min_rate_bps: (line_rate_bps / 100).max(1_000),
            min_time_between_cnps_ns: 0,
            ..Self::connectx(line_rate_bps)
        }
    }

    /// The same with the paper's timers ("dcqcn_paper").
    pub fn reference_paper(line_rate_bps: u64) -> Self {
        Self {
            dce_tcp_rtt_ns: 50_000,
            rate_reduce_monitor_period_ns: 50_000,
            rpg_time_reset_ns: 55_000,
            ..Self::reference(line_rate_bps)
        }
    }

    /// Whether they make sense together, and on this route.
    pub fn check(&self, route: &Route) -> Result<(), Invalid> {
        self.check_bounds()?;
        let top = self.top_rate(route);
        if self.rpg_min_rate_bps > top {
            return Err(Invalid(alloc::format!(
                "rpg_min_rate_bps is {} and the most the route and rpg_max_rate_bps allow is {top}: it must not be above",
                self.rpg_min_rate_bps
            )));
        }
        if self.rate_to_set_on_first_cnp_bps > top {
            return Err(Invalid(alloc::format!(
                "rate_to_set_on_first_cnp_bps is {} and the most that is allowed is {top}: it must not be above",
                self.rate_to_set_on_first_cnp_bps
            )));
        }
        Ok(())
    }

    fn top_rate(&self, route: &Route) -> u64 {
        match self.rpg_max_rate_bps {
            0 => route.line_rate_bps,
            most => most.min(route.line_rate_bps),
        }
        .max(1)
    }
}

/// The reaction point of one QP.
#[derive(Clone, Debug, PartialEq)]
pub struct Dcqcn {
    parameters: Parameters,
    throttle: Throttle,
    target_bps: u64,
    /// `None`: no CNP has come yet.
    alpha: Option<f64>,
    /// The next update of alpha.
    alpha_at: Moment,
    /// A CNP came since the last update.
    alpha_cnp: bool,
    /// The end of a monitor period: the next, or one in the past, from which the next is found.
    decrease_at: Moment,
    /// A CNP came in the present one.
    decrease_cnp: bool,
    /// When the timer of increase is due; `None` while there is nothing to increase.
    increase_at: Option<Moment>,
    time_stage: u32,
    byte_stage: u32,
    bytes_left: u64,
}

/// Increases that one event may catch up with. A sender that slept longer begins its timer anew.
const CATCH_UP: u32 = 10_000;

impl Dcqcn {
    /// At line rate, as every new QP begins. `burst_bytes`: see [`super::Pace::sent`].
    pub fn new(parameters: Parameters, route: &Route, burst_bytes: u64) -> Self {
        let top_bps = parameters.top_rate(route);
        Self {
            throttle: Throttle::new(route, top_bps, parameters.window.then(|| route.bdp_bytes()), burst_bytes),
            target_bps: top_bps,
            alpha: None,
            alpha_at: Moment(0),
            alpha_cnp: false,
            decrease_at: Moment(0),
            decrease_cnp: false,
            increase_at: None,
            time_stage: 0,
            byte_stage: 0,
            bytes_left: parameters.rpg_byte_reset,
            parameters,
        }
    }

    /// The estimate of congestion, 0 to 1; 0 before the first CNP.
    pub fn alpha(&self, now: Moment) -> f64 {
        let mut then = self.clone();
        then.decay(now);
        then.alpha.unwrap_or(0.0)
    }

    /// Where recovery leads to, bit/s.
    pub fn target_bps(&self) -> u64 {
        self.target_bps
    }

    /// Does what was due until `now`.
    fn advance(&mut self, now: Moment) {
        for _ in 0..CATCH_UP {
            let decrease = self.decrease_cnp.then_some(self.decrease_at).filter(|at| *at <= now);
            let increase = self.increase_at.filter(|at| *at <= now);
            match (decrease, increase) {
                (Some(at), other) if other.is_none_or(|other| at <= other) => {
                    self.decay(at);
                    self.decrease_cnp = false;
                    self.decrease_at = at.after(self.monitor_ps());
                    self.decrease(at);
                }
                (_, Some(at)) => {
                    self.increase_at = Some(at.after(self.parameters.rpg_time_reset_ns * 1_000));
                    self.increase();
                    self.time_stage = self.time_stage.saturating_add(1);
                    self.rest();
                }
                _ => return,
            }
        }
        if self.increase_at.is_some() {
            self.increase_at = Some(now.after(self.parameters.rpg_time_reset_ns * 1_000));
        }
    }

    fn monitor_ps(&self) -> u64 {
        self.parameters.rate_reduce_monitor_period_ns * 1_000
    }

    /// The updates of alpha that were due until `now`: the first one with what is noted, the others without a CNP.
    fn decay(&mut self, now: Moment) {
        let Some(alpha) = self.alpha else { return };
        if now < self.alpha_at {
            return;
        }
        let (g, interval) = (self.parameters.dce_tcp_g, self.parameters.dce_tcp_rtt_ns * 1_000);
        let missed = now.since(self.alpha_at) / interval;
        let first = (1.0 - g) * alpha + if core::mem::take(&mut self.alpha_cnp) { g } else { 0.0 };
        self.alpha = Some(first * power(1.0 - g, missed));
        self.alpha_at = self.alpha_at.after((missed + 1).saturating_mul(interval));
    }

    fn notified(&mut self, now: Moment) {
        let p = self.parameters;
        self.decay(now);
        let first = self.alpha.is_none();
        if first {
            self.alpha = Some(p.initial_alpha_value);
            self.alpha_at = now.after(p.dce_tcp_rtt_ns * 1_000);
            // Behind the update of alpha that falls due at the same time.
            self.decrease_at = now.after(self.monitor_ps() + 1_000);
            if p.rate_to_set_on_first_cnp_bps != 0 {
                self.throttle.set(p.rate_to_set_on_first_cnp_bps, 1);
                self.target_bps = self.throttle.rate_bps;
            }
        }
        if self.monitor_ps() == 0 {
            self.decrease(now);
            self.alpha = self.alpha.map(|alpha| (1.0 - p.dce_tcp_g) * alpha + p.dce_tcp_g);
            self.alpha_at = now.after(p.dce_tcp_rtt_ns * 1_000);
            return;
        }
        // alpha has its first value from this CNP already.
        self.alpha_cnp = !first;
        if !self.decrease_cnp && self.decrease_at <= now {
            let periods = now.since(self.decrease_at) / self.monitor_ps() + 1;
            self.decrease_at = self.decrease_at.after(periods * self.monitor_ps());
        }
        self.decrease_cnp = true;
    }

    fn decrease(&mut self, now: Moment) {
        let p = &self.parameters;
        let raised = self.byte_stage != 0 || (p.clamp_tgt_rate_after_time_inc && self.time_stage != 0);
        if p.clamp_tgt_rate || raised {
            self.target_bps = self.throttle.rate_bps;
        }
        let part = self.alpha.unwrap_or(0.0) * 1024.0 / (1u64 << p.rpg_gd) as f64;
        let left = (1.0 - part).max(p.rpg_min_dec_fac / 100.0);
        self.throttle.set((self.throttle.rate_bps as f64 * left) as u64, p.rpg_min_rate_bps);
        self.time_stage = 0;
        self.byte_stage = 0;
        self.bytes_left = p.rpg_byte_reset;
        self.increase_at = Some(now.after(p.rpg_time_reset_ns * 1_000));
    }

    /// One period of the timer or of the byte counter. The stages are those before it.
    fn increase(&mut self) {
        let p = &self.parameters;
        let threshold = p.rpg_threshold as u32;
        let (most, least) = match p.rpg_byte_reset {
            0 => (self.time_stage, self.time_stage),
            _ => (self.time_stage.max(self.byte_stage), self.time_stage.min(self.byte_stage)),
        };
        if most >= threshold {
            let step = if least > threshold { p.rpg_hai_rate_bps } else { p.rpg_ai_rate_bps };
            self.target_bps = self.target_bps.saturating_add(step).min(self.throttle.top_bps);
        }
        // Rounded up, so that the target is reached.
        let (rate, target) = (self.throttle.rate_bps, self.target_bps);
        self.throttle.set(rate / 2 + target / 2 + ((rate & 1) + (target & 1)).div_ceil(2), 1);
    }

    /// At the top nothing is left to increase: the timer rests until the next cut.
    fn rest(&mut self) {
        if self.throttle.rate_bps >= self.throttle.top_bps && self.target_bps >= self.throttle.top_bps {
            self.increase_at = None;
        }
    }

    fn count_bytes(&mut self, bytes: u32) {
        if self.parameters.rpg_byte_reset == 0 || self.increase_at.is_none() {
            return;
        }
        let mut bytes = u64::from(bytes);
        while bytes >= self.bytes_left {
            bytes -= self.bytes_left;
            self.bytes_left = self.parameters.rpg_byte_reset;
            self.increase();
            self.byte_stage = self.byte_stage.saturating_add(1);
            self.rest();
            if self.increase_at.is_none() {
                return;
            }
        }
        self.bytes_left -= bytes;
    }
}

/// `base` to the `exponent`, by squaring.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

impl Controller for Dcqcn {
    fn handle(&mut self, now: Moment, event: Event<'_>) {
        self.advance(now);
        match event {
            Event::Sent { wire_bytes, .. } => {
                self.throttle.sent(now, wire_bytes);
                self.count_bytes(wire_bytes);
            }
            Event::Cnp => self.notified(now),
            // DCQCN was made for networks without loss. A loss says more than a mark: it counts as one.
            Event::Lost(_) => self.notified(now),
            Event::Ack { .. } | Event::Withdrawn | Event::Timer => {}
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
        match (self.decrease_cnp.then_some(self.decrease_at), self.increase_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::moment::time_ps;
    use super::*;

    #[test]
    fn time_ps_is_what_next_send_uses() {
        let route = Route { line_rate_bps: 100_000_000_000, base_rtt_ps: 4_160_000, packet_bytes: 1000, hops: 1 };
        let mut c = Dcqcn::new(Parameters::reference(route.line_rate_bps), &route, 0);
        c.handle(Moment(5), Event::Sent { flight_bytes: 1000, wire_bytes: 1048 });
        assert_eq!(c.next_send(), Moment(5 + time_ps(1048, 100_000_000_000)));
    }

    #[test]
    fn a_power_is_what_multiplying_gives() {
        let slow = (0..1000).fold(1.0, |product, _| product * (1.0 - 1.0 / 256.0));
        assert!((power(1.0 - 1.0 / 256.0, 1000) / slow - 1.0).abs() < 1e-12);
        assert_eq!(power(0.5, 0), 1.0);
    }
}
