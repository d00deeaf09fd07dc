//! Swift's rules, one by one (`congestion.md` §1.5).

use crate::congestion::swift::{Parameters, Swift};
use crate::congestion::{Controller, Event, Loss, Moment, Route};

use super::{G, STAR, US, ack, at, sent};

fn with_window(packets: f64) -> Swift {
    Swift::new(Parameters { initial_cwnd: packets, ..Parameters::google() }, &STAR, 0)
}

#[test]
fn it_begins_with_the_bandwidth_delay_product() {
    let c = Swift::new(Parameters::google(), &STAR, 0);
    assert_eq!((c.cwnd(), c.window_bytes()), (52.0, 52_000));
}

#[test]
fn fast_lines_are_filled_where_256_packets_would_not() {
    let fast = Route { line_rate_bps: 800 * G, base_rtt_ps: 12_240_000, packet_bytes: 1000, hops: 5 };
    let whole = Swift::new(Parameters::google(), &fast, 0);
    assert_eq!((whole.cwnd(), whole.rate_bps()), (1224.0, 800 * G));
    let bounded = Swift::new(Parameters { max_cwnd: 256.0, ..Parameters::google() }, &fast, 0);
    assert_eq!(bounded.cwnd(), 256.0, "who wants Google's number gets it");
}

#[test]
fn the_target_is_base_hops_and_flow_scaling() {
    // 25 us and one hop; nothing more for large windows.
    assert!((with_window(256.0).target_ps() / 26e6 - 1.0).abs() < 1e-4);
    // Everything at 0.1 packets and below.
    assert!((with_window(0.1).target_ps() / 126e6 - 1.0).abs() < 1e-4);
    assert!((with_window(0.02).target_ps() / 126e6 - 1.0).abs() < 1e-4);
    // alpha = 100 us / (1/sqrt(0.1) - 1/16), beta = -alpha / 16; at 4 packets alpha / 2 + beta.
    let alpha = 100.0 / (10f64.sqrt() - 1.0 / 16.0);
    let expected = 26.0 + alpha / 2.0 - alpha / 16.0;
    assert!((with_window(4.0).target_ps() / (expected * 1e6) - 1.0).abs() < 1e-4);
}

#[test]
fn a_round_trip_below_the_target_adds_one_packet() {
    let mut c = with_window(10.0);
    for _ in 0..10 {
        c.handle(at(1), ack(1000, 20));
    }
    assert!((c.cwnd() - 11.0).abs() < 0.06, "{}", c.cwnd());
    // Below one packet the whole of ai for each that is acknowledged.
    let mut c = with_window(0.5);
    c.handle(at(1), ack(1000, 20));
    assert!((c.cwnd() - 1.5).abs() < 1e-9, "{}", c.cwnd());
}

#[test]
fn a_delay_beyond_the_target_cuts_by_its_part_and_by_half_at_most_once_a_round_trip() {
    let mut c = with_window(200.0);
    let target = c.target_ps() / 1e6;
    c.handle(at(1000), ack(1000, 40));
    let expected = 200.0 * (1.0 - 0.8 * (40.0 - target) / 40.0);
    assert!((c.cwnd() - expected).abs() < 1e-6, "{} and {expected}", c.cwnd());
    c.handle(at(1039), ack(1000, 40));
    assert!((c.cwnd() - expected).abs() < 1e-6, "not again within 40 us");
    c.handle(at(1400), ack(1000, 400));
    assert!((c.cwnd() - expected / 2.0).abs() < 1e-6, "max_mdf");
}

#[test]
fn a_window_below_one_packet_becomes_time() {
    let mut c = with_window(0.5);
    c.handle(at(0), ack(0, 200));
    // Too late for the target: cut to a quarter.
    assert!((c.cwnd() - 0.25).abs() < 0.05, "{}", c.cwnd());
    c.handle(at(1), Event::Sent { flight_bytes: 1000, wire_bytes: 1000 });
    let wait = c.next_send().since(at(1)) as f64;
    assert!((wait / (200e6 / c.cwnd()) - 1.0).abs() < 1e-6, "one round trip over the window: {wait}");
    assert!(c.window_bytes() < 1000, "one packet, and no second one");
    // From one packet on only the line holds back.
    let mut c = with_window(2.0);
    c.handle(at(1), sent(1000));
    assert_eq!(c.next_send(), Moment(US + 83_840));
}

#[test]
fn losses_cut_by_max_mdf_and_many_timeouts_to_the_least() {
    let mut c = with_window(64.0);
    c.handle(at(100), Event::Lost(Loss::Nak));
    assert_eq!(c.cwnd(), 32.0);
    for n in 1..=3 {
        c.handle(at(1000 * n), Event::Lost(Loss::Timeout));
    }
    assert_eq!(c.cwnd(), 0.01);
    assert!(c.rate_bps() > 0 && c.window_bytes() > 0);
    // An answer ends the row of timeouts.
    let mut c = with_window(64.0);
    for n in 1..=6 {
        c.handle(at(1000 * n), Event::Lost(Loss::Timeout));
        c.handle(at(1000 * n + 1), ack(0, 100));
    }
    assert!(c.cwnd() >= 0.9, "{}", c.cwnd());
}

#[test]
fn a_long_way_raises_the_target_by_itself_and_a_target_below_it_is_refused() {
    let long = Route { base_rtt_ps: 400 * US, ..STAR };
    let c = Swift::new(Parameters { max_cwnd: 100_000.0, ..Parameters::google() }, &long, 0);
    assert!(c.target_ps() >= 600e6);
    assert_eq!(c.cwnd(), (100 * G / 8 * 400 / 1_000_000 / 1000) as f64);
    let wrong = Parameters { base_target_ns: 100_000, ..Parameters::google() }.check(&long).unwrap_err();
    assert!(wrong.0.contains("400000 ns"), "{wrong}");
}
