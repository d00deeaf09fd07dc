//! TIMELY's rules, one by one (`congestion.md` §1.3).

use crate::congestion::timely::{Parameters, Timely};
use crate::congestion::{Controller, Event, Loss, Route};

use super::{G, STAR, ack, at, sent};

const M: u64 = 1_000_000;

/// One round trip: a packet leaves, another one that ends the round, and an ACK for both comes with `rtt_us`.
fn round(c: &mut Timely, us: u64, rtt_us: u64) {
    c.handle(at(us), sent(1000));
    c.handle(at(us), ack(1000, rtt_us));
}

fn started(rtt_us: u64) -> Timely {
    let mut c = Timely::new(Parameters::paper(STAR.line_rate_bps), &STAR, 0);
    round(&mut c, 0, rtt_us);
    assert_eq!(c.rate_bps(), 100 * G, "the first RTT is only remembered");
    c
}

#[test]
fn below_t_low_the_rate_rises_and_after_five_rounds_faster() {
    let mut c = started(40);
    c.handle(at(1), Event::Lost(Loss::Nak));
    let cut = c.rate_bps();
    assert!(cut.abs_diff(60 * G) <= 1, "{cut}");
    for n in 0..5 {
        round(&mut c, 2 + n, 40 + n);
    }
    assert_eq!(c.rate_bps(), cut + 5 * 100 * M);
    round(&mut c, 10, 49);
    assert_eq!(c.rate_bps(), cut + 5 * 100 * M + 500 * M);
}

#[test]
fn above_t_high_it_falls_whatever_the_gradient_is() {
    let mut c = started(2000);
    round(&mut c, 1, 1000);
    // 1 - 0.8 * (1 - 500 / 1000)
    assert!(c.rate_bps().abs_diff(60 * G) <= 1, "{}", c.rate_bps());
}

#[test]
fn between_them_a_rising_rtt_cuts_by_its_gradient_and_a_falling_one_does_not() {
    let mut c = started(100);
    round(&mut c, 1, 104);
    // 0.875 * 4 / 20 = 0.175; 1 - 0.8 * 0.175
    assert!(c.rate_bps().abs_diff(86 * G) <= 1, "{}", c.rate_bps());
    round(&mut c, 2, 100);
    // 0.125 * 3.5 + 0.875 * -4 < 0
    assert!(c.rate_bps().abs_diff(86 * G + 100 * M) <= 1, "{}", c.rate_bps());
}

#[test]
fn a_gradient_beyond_all_stops_at_the_least_rate() {
    let mut c = started(60);
    round(&mut c, 1, 400);
    assert_eq!(c.rate_bps(), G);
}

#[test]
fn only_the_first_ack_of_a_round_counts() {
    let mut c = started(100);
    for _ in 0..10 {
        c.handle(at(1), sent(1000));
    }
    for n in 0..10 {
        c.handle(at(2), ack(1000, 104 + n * 100));
    }
    assert!(c.rate_bps().abs_diff(86 * G) <= 1, "{}", c.rate_bps());
}

#[test]
fn scaled_thresholds_are_the_same_bytes_at_every_rate() {
    for rate in [10, 25, 100, 400, 800] {
        let p = Parameters::scaled(rate * G);
        let route = Route { line_rate_bps: rate * G, ..STAR };
        p.check(&route).unwrap();
        let bytes = p.t_low_ns * rate / 8;
        assert!((61_000..=62_500).contains(&bytes), "{rate} Gb/s: {bytes}");
        assert!((620_000..=625_000).contains(&(p.t_high_ns * rate / 8)), "{rate} Gb/s: {}", p.t_high_ns);
        // They count from the base RTT.
        let mut c = Timely::new(p, &route, 0);
        round(&mut c, 0, 4);
        c.handle(at(1), Event::Lost(Loss::Nak));
        let cut = c.rate_bps();
        round(&mut c, 2, 4 + p.t_low_ns / 1000);
        assert!(c.rate_bps() > cut, "{rate} Gb/s");
    }
}
