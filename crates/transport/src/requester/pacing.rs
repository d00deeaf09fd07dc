//! Pacing: a rate limit becomes the earliest time of the next packet.
//!
//! Turns of an engine come late, so a sender that fell behind may catch up, but by no more than [`BURST_BYTES`].

use crate::context::Context;
use crate::time::{Time, ack_timeout_ns};

/// What may leave at once after a pause.
const BURST_BYTES: u64 = 64 * 1024;

/// The pace of one QP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    next: Time,
}

/// The rate in kb/s that `rate_limit` (kb/s, 0 none) and an address vector's `static_rate` (`enum ibv_rate`) leave; 0
/// for none. An unknown code limits nothing.
pub(crate) fn rate_kbps(rate_limit: u32, static_rate: u8) -> u32 {
    let by_path = static_rate_kbps(static_rate);
    match (rate_limit, by_path) {
        (0, other) | (other, 0) => other,
        (a, b) => a.min(b),
    }
}

/// `enum ibv_rate` in kb/s.
const fn static_rate_kbps(code: u8) -> u32 {
    let gbps_tenths = match code {
        2 => 25,
        3 => 100,
        4 => 300,
        5 => 50,
        6 => 200,
        7 => 400,
        8 => 600,
        9 => 800,
        10 => 1200,
        11 => 140,
        12 => 560,
        13 => 1120,
        14 => 1680,
        15 => 250,
        16 => 1000,
        17 => 2000,
        18 => 3000,
        19 => 280,
        20 => 500,
        21 => 4000,
        22 => 6000,
        23 => 8000,
        24 => 12000,
        _ => 0,
    };
    gbps_tenths * 100_000
}

/// Whether packets of `bytes` leave so slowly that the ACK timer could run out before one of `ack_req_interval` packets
/// asks for an ACK; then each must ask, or nothing would ever be acknowledged.
pub(crate) fn is_slow(rate_kbps: u32, bytes: u32, ctx: &Context) -> bool {
    rate_kbps != 0
        && ack_timeout_ns(ctx.attr.timeout).is_some_and(|timeout| {
            time_ns(u64::from(bytes), rate_kbps).saturating_mul(u64::from(ctx.config.ack_req_interval)) > timeout / 2
        })
}

impl Pacer {
    /// When the next packet may leave under `rate_kbps`; `now` or earlier: at once.
    pub fn next_send(&self, rate_kbps: u32) -> Time {
        if rate_kbps == 0 { Time(0) } else { self.next }
    }

    /// A packet of `bytes` left.
    pub fn sent(&mut self, now: Time, bytes: u32, rate_kbps: u32) {
        if rate_kbps != 0 {
            let earliest = now.0.saturating_sub(time_ns(BURST_BYTES, rate_kbps));
            self.next = Time(self.next.0.max(earliest)).after(time_ns(u64::from(bytes), rate_kbps));
        }
    }
}

fn time_ns(bytes: u64, rate_kbps: u32) -> u64 {
    bytes.saturating_mul(8_000_000) / u64::from(rate_kbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_packets_take_the_time_that_the_rate_says() {
        let mut pacer = Pacer::default();
        let (rate, start) = (1_000_000, Time(1_000_000_000));
        let mut now = start;
        for _ in 0..1000 {
            now = now.max(pacer.next_send(rate));
            pacer.sent(now, 1250, rate);
        }
        // 10 µs each at 1 Gb/s, less the burst that is free.
        let burst_ns = BURST_BYTES * 8;
        assert!(now.since(start) >= 9_990_000 - burst_ns && now.since(start) <= 9_990_000, "{}", now.since(start));
    }

    #[test]
    fn the_smaller_of_two_limits_counts_and_none_is_none() {
        assert_eq!(rate_kbps(0, 0), 0);
        assert_eq!(rate_kbps(5_000_000, 2), 2_500_000);
        assert_eq!(rate_kbps(1_000, 2), 1_000);
        assert_eq!(rate_kbps(1_000, 0), 1_000);
    }
}
