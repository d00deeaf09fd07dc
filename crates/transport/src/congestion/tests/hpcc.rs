//! HPCC's rules, one by one (`congestion.md` §1.4).

use crate::congestion::hpcc::{Hpcc, Parameters};
use crate::congestion::{Controller, Event, Hop, Loss, Moment, Telemetry, pint};

use super::{G, STAR, US, at, sent};

const LINE: u64 = 100 * G;

fn new() -> Hpcc {
    Hpcc::new(Parameters::reference(LINE), &STAR, 0)
}

fn hop(ps: u64, tx_bytes: u64, queue_bytes: u64) -> Hop {
    Hop { node: 1, rate_bps: LINE, at_ps: ps, tx_bytes, queue_bytes }
}

fn hear(c: &mut Hpcc, now: Moment, hops: &[Hop]) {
    c.handle(now, Event::Ack { flight_bytes: 1000, rtt_ps: None, ecn_echo: false, telemetry: Telemetry::Hops(hops) });
}

fn ai() -> u64 {
    40_000_000
}

#[test]
fn it_begins_with_one_bandwidth_delay_product_at_line_rate() {
    let c = new();
    assert_eq!((c.window_bytes(), c.rate_bps()), (52_000, LINE));
}

#[test]
fn the_first_ack_is_only_remembered() {
    let mut c = new();
    c.handle(at(0), sent(1000));
    hear(&mut c, at(4), &[hop(0, 0, 1_000_000)]);
    assert_eq!(c.rate_bps(), LINE);
}

/// A round trip at whose end the link was used `percent`, without a queue.
fn used(c: &mut Hpcc, now: u64, ps: &mut u64, tx: &mut u64, percent: u64) {
    c.handle(Moment(now), sent(1000));
    *ps += STAR.base_rtt_ps;
    *tx += 52_000 * percent / 100;
    hear(c, Moment(now), &[hop(*ps, *tx, 0)]);
}

#[test]
fn a_round_trip_of_an_overused_link_divides_by_the_excess_and_adds() {
    let (mut c, mut ps, mut tx) = (new(), 0, 0);
    used(&mut c, 0, &mut ps, &mut tx, 100);
    used(&mut c, US, &mut ps, &mut tx, 100);
    // A whole round trip at 100 %: U = 1, U / eta = 1.0526.
    assert!((c.utilisation() - 1.0).abs() < 1e-9);
    assert_eq!(c.rate_bps(), (1e11 / (1.0 / 0.95)) as u64 + ai());
    assert_eq!(c.window_bytes(), 52_000 * c.rate_bps() / LINE);
}

#[test]
fn an_underused_link_raises_at_once_because_max_stage_is_0() {
    let (mut c, mut ps, mut tx) = (new(), 0, 0);
    used(&mut c, 0, &mut ps, &mut tx, 100);
    used(&mut c, US, &mut ps, &mut tx, 190);
    assert!(c.rate_bps().abs_diff(50 * G + ai()) <= 1, "{}", c.rate_bps());
    let before = c.rate_bps();
    used(&mut c, 2 * US, &mut ps, &mut tx, 76);
    assert!(c.rate_bps().abs_diff((before as f64 / 0.8) as u64 + ai()) <= 2, "{}", c.rate_bps());
}

#[test]
fn with_stages_it_adds_only_until_they_are_over() {
    let p = Parameters { max_stage: 2, ..Parameters::reference(LINE) };
    let (mut c, mut ps, mut tx) = (Hpcc::new(p, &STAR, 0), 0, 0);
    used(&mut c, 0, &mut ps, &mut tx, 100);
    used(&mut c, US, &mut ps, &mut tx, 190);
    let low = c.rate_bps();
    used(&mut c, 2 * US, &mut ps, &mut tx, 50);
    assert_eq!(c.rate_bps(), low + ai());
    used(&mut c, 3 * US, &mut ps, &mut tx, 50);
    assert_eq!(c.rate_bps(), low + 2 * ai());
    used(&mut c, 4 * US, &mut ps, &mut tx, 50);
    assert!(c.rate_bps() > low + low / 2, "{}", c.rate_bps());
}

#[test]
fn acks_of_one_round_trip_all_start_from_its_reference() {
    let mut c = new();
    for _ in 0..20 {
        c.handle(at(0), sent(1000));
    }
    hear(&mut c, at(4), &[hop(0, 0, 52_000)]);
    for _ in 0..20 {
        c.handle(at(4), sent(1000));
    }
    // Ten ACKs of the first round trip, each with a queue: the rate moves with each, and is not divided ten times.
    for n in 1..=10 {
        hear(&mut c, at(4 + n), &[hop(n * 416_000, n * 5_200, 52_000)]);
    }
    // U = 1 * 0.9^10 + 2 * (1 - 0.9^10) after ten tenths of a round trip at 2.
    let u: f64 = 2.0 - 0.9f64.powi(10);
    assert!((c.utilisation() - u).abs() < 1e-9, "{}", c.utilisation());
    assert!(c.rate_bps().abs_diff((1e11 / (u / 0.95)) as u64 + ai()) <= 1);
}

#[test]
fn a_queue_counts_by_the_smaller_of_two_records_and_the_fullest_hop_counts() {
    let mut c = new();
    c.handle(at(0), sent(1000));
    hear(&mut c, at(4), &[hop(0, 0, 26_000), hop(0, 0, 0)]);
    c.handle(at(4), sent(1000));
    // The first hop: half used, and a queue of half a window in the smaller record; the second: nine tenths used.
    let t = STAR.base_rtt_ps;
    hear(&mut c, at(8), &[hop(t, 26_000, 52_000), hop(t, 46_800, 0)]);
    assert!((c.utilisation() - 1.0).abs() < 1e-9, "{}", c.utilisation());
}

#[test]
fn a_faster_link_counts_by_its_own_rate() {
    let mut c = new();
    let fast = |ps, tx_bytes, queue_bytes| Hop { rate_bps: 4 * LINE, ..hop(ps, tx_bytes, queue_bytes) };
    c.handle(at(0), sent(1000));
    hear(&mut c, at(4), &[fast(0, 0, 208_000)]);
    c.handle(at(4), sent(1000));
    hear(&mut c, at(8), &[fast(STAR.base_rtt_ps, 208_000, 208_000)]);
    // Full, and a queue of one bandwidth-delay product of its own: 2.
    assert!((c.utilisation() - 2.0).abs() < 1e-9, "{}", c.utilisation());
}

#[test]
fn another_way_is_remembered_anew() {
    let (mut c, mut ps, mut tx) = (new(), 0, 0);
    used(&mut c, 0, &mut ps, &mut tx, 100);
    used(&mut c, US, &mut ps, &mut tx, 100);
    let rate = c.rate_bps();
    c.handle(at(2), sent(1000));
    hear(&mut c, at(2), &[Hop { node: 2, ..hop(ps + 1, 0, 10_000_000) }]);
    assert_eq!(c.rate_bps(), rate, "its counters are not those of the old way");
}

/// A round trip that was heard of from two ways, used `first` and `second` percent; 0: nothing was heard of it.
fn two_ways(c: &mut Hpcc, round: u64, tx: &mut [u64; 2], percent: [u64; 2]) {
    for (node, (tx, percent)) in tx.iter_mut().zip(percent).enumerate() {
        c.handle(Moment(round * STAR.base_rtt_ps), sent(1000));
        *tx += 52_000 * percent / 100;
        if percent > 0 {
            hear(
                c,
                Moment(round * STAR.base_rtt_ps),
                &[Hop { node: node as u32, ..hop(round * STAR.base_rtt_ps, *tx, 0) }],
            );
        }
    }
}

#[test]
fn of_two_ways_in_use_the_fuller_one_counts_and_an_old_one_is_forgotten() {
    let (mut c, mut tx) = (new(), [0; 2]);
    for round in 1..10 {
        two_ways(&mut c, round, &mut tx, [30, 120]);
    }
    assert!((c.utilisation() - 1.2).abs() < 1e-9, "{}", c.utilisation());
    for round in 10..14 {
        two_ways(&mut c, round, &mut tx, [30, 0]);
    }
    assert!((c.utilisation() - 0.3).abs() < 1e-9, "{}", c.utilisation());
}

#[test]
fn pint_takes_the_utilisation_as_the_switch_gives_it() {
    let mut c = Hpcc::new(Parameters::pint(LINE), &STAR, 0);
    let hear = |c: &mut Hpcc, now, u| {
        c.handle(now, sent(1000));
        let telemetry = Telemetry::Pint(pint::code(u));
        c.handle(now, Event::Ack { flight_bytes: 1000, rtt_ps: None, ecn_echo: false, telemetry });
    };
    hear(&mut c, at(0), 1.9);
    assert_eq!(c.rate_bps(), LINE);
    hear(&mut c, at(4), 1.9);
    let u = pint::utilisation(pint::code(1.9));
    assert_eq!(c.rate_bps(), (1e11 / (u / 0.95)) as u64 + ai());
}

#[test]
fn timeouts_halve_and_the_rest_is_left_to_telemetry() {
    let mut c = new();
    c.handle(at(0), Event::Lost(Loss::Nak));
    c.handle(at(0), Event::Cnp);
    assert_eq!(c.rate_bps(), LINE);
    c.handle(at(0), Event::Lost(Loss::Timeout));
    assert_eq!(c.rate_bps(), LINE / 2);
    for _ in 0..50 {
        c.handle(at(0), Event::Lost(Loss::Timeout));
    }
    assert_eq!(c.rate_bps(), LINE / 100);
}
