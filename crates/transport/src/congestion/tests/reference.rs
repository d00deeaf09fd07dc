//! What HPCC's simulator gave for one switch (`congestion.md` §4, §5 and §7): times, queues, goodput, fairness. A wrong
//! constant in a controller shows here.

use alloc::vec;
use alloc::vec::Vec;

use crate::congestion::Profile;

use super::star::{MARKING_100G, Marking, Outcome, Setup, run};
use super::{STAR, US};

const NO_OVERHEAD: (u32, u32) = (0, 0);
const HPCC: (u32, u32) = (42, 28);
const TIMELY: (u32, u32) = (8, 0);

fn incast(senders: usize, bytes: u64) -> Vec<(u64, u64)> {
    vec![(0, bytes); senders]
}

fn two() -> Vec<(u64, u64)> {
    vec![(0, 20_000_000), (300 * US, 8_000_000)]
}

fn go(name: &str, overhead: (u32, u32), flows: Vec<(u64, u64)>, marking: Option<Marking>, seed: u64) -> Outcome {
    let profile = Profile::named(name, STAR.line_rate_bps).unwrap();
    profile.check(&STAR).unwrap();
    run(&Setup { profile, overhead, marking, flows, seed }, &[900, 1200])
}

#[track_caller]
fn near(what: &str, got: f64, expected: f64, tolerance: f64) {
    let off = (got / expected - 1.0).abs();
    assert!(off <= tolerance, "{what}: {got:.1}, expected {expected:.1} within {} %", tolerance * 100.0);
}

#[test]
fn without_control_an_incast_queues_all_but_one_sixteenth() {
    let out = go("none", NO_OVERHEAD, incast(16, 1_000_000), None, 1);
    near("makespan, us", out.makespan_us, 1332.1, 0.002);
    near("queue, bytes", out.queue_most as f64, 15_721_048.0, 0.002);
}

#[test]
fn hpcc_in_an_incast_of_16() {
    let out = go("hpcc", HPCC, incast(16, 1_000_000), None, 1);
    near("makespan, us", out.makespan_us, 1489.0, 0.02);
    near("shortest, us", out.shortest_us, 1023.3, 0.10);
    // The first burst is one window from each: ceil(52000 / 1000) packets of 1090 bytes, less what left meanwhile.
    near("queue, bytes", out.queue_most as f64, 854_560.0, 0.01);
}

#[test]
fn hpcc_in_an_incast_of_8_and_with_two_flows() {
    let out = go("hpcc", HPCC, incast(8, 4_000_000), None, 1);
    near("makespan, us", out.makespan_us, 2958.8, 0.02);
    near("queue, bytes", out.queue_most as f64, 400_030.0, 0.03);
    let out = go("hpcc", HPCC, two(), None, 1);
    near("makespan, us", out.makespan_us, 2577.3, 0.02);
    near("queue, bytes", out.queue_most as f64, 54_500.0, 0.03);
}

#[test]
fn hpcc_uses_eta_of_the_link_and_shares_it_equally() {
    let out = go("hpcc", HPCC, two(), None, 1);
    let rates: Vec<f64> = (0..2).map(|f| (out.samples[1].1[f] - out.samples[0].1[f]) as f64 * 8.0 / 300e3).collect();
    let sum: f64 = rates.iter().sum();
    // eta * C * 1000 / 1090 = 87.16 Gb/s.
    near("goodput, Gb/s", sum, 87.2, 0.005);
    let jain = sum * sum / (2.0 * rates.iter().map(|r| r * r).sum::<f64>());
    assert!(jain > 0.999, "{rates:?}");
}

#[test]
fn timely_in_an_incast_of_16_and_with_two_flows() {
    let out = go("timely", TIMELY, incast(16, 1_000_000), None, 1);
    near("makespan, us", out.makespan_us, 1348.1, 0.015);
    near("queue, bytes", out.queue_most as f64, 15_074_400.0, 0.02);
    let out = go("timely", TIMELY, two(), None, 1);
    near("makespan, us", out.makespan_us, 2756.0, 0.05);
    near("queue, bytes", out.queue_most as f64, 1_286_208.0, 0.08);
    near("queue on average, bytes", out.queue_mean, 134_412.6, 0.15);
}

#[test]
fn timely_with_scaled_thresholds_holds_the_queue_that_the_papers_does_not() {
    for flows in [two(), incast(8, 4_000_000)] {
        let [paper, scaled] = ["timely", "timely-scaled"].map(|name| go(name, TIMELY, flows.clone(), None, 1));
        assert!(scaled.queue_mean * 10.0 < paper.queue_mean, "{} and {}", scaled.queue_mean, paper.queue_mean);
        assert!(scaled.makespan_us < 1.25 * paper.makespan_us, "{} and {}", scaled.makespan_us, paper.makespan_us);
    }
}

/// Means over seeds: marking is by chance.
fn dcqcn(name: &str, flows: &[(u64, u64)]) -> (f64, f64) {
    let runs: Vec<Outcome> =
        (1..=4).map(|seed| go(name, NO_OVERHEAD, flows.to_vec(), Some(MARKING_100G), seed)).collect();
    let mean = |of: &dyn Fn(&Outcome) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    (mean(&|out| out.makespan_us), mean(&|out| out.queue_most as f64))
}

#[test]
fn dcqcn_in_an_incast_of_16() {
    let (makespan, queue) = dcqcn("dcqcn-reference", &incast(16, 1_000_000));
    near("makespan, us", makespan, 1676.0, 0.05);
    near("queue, bytes", queue, 5_670_000.0, 0.08);
}

#[test]
fn dcqcn_in_an_incast_of_8() {
    let (makespan, queue) = dcqcn("dcqcn-reference", &incast(8, 4_000_000));
    near("makespan, us", makespan, 3540.0, 0.08);
    near("queue, bytes", queue, 2_100_000.0, 0.08);
}

#[test]
fn dcqcn_with_two_flows() {
    let (makespan, queue) = dcqcn("dcqcn-reference", &two());
    near("makespan, us", makespan, 3122.0, 0.05);
    near("queue, bytes", queue, 749_000.0, 0.08);
}

#[test]
fn dcqcn_with_the_papers_timers() {
    let (makespan, queue) = dcqcn("dcqcn-reference-paper", &incast(8, 4_000_000));
    near("makespan, us", makespan, 2926.0, 0.08);
    near("queue, bytes", queue, 8_450_000.0, 0.08);
    let (makespan, queue) = dcqcn("dcqcn-reference-paper", &two());
    near("makespan, us", makespan, 2662.0, 0.05);
    near("queue, bytes", queue, 1_232_000.0, 0.08);
}

#[test]
fn swift_holds_the_queue_near_its_target() {
    let out = go("swift", NO_OVERHEAD, incast(16, 1_000_000), None, 1);
    // One window from each at the start, then 25 us of delay and what flow scaling adds.
    assert!(out.queue_most < 1_000_000, "{}", out.queue_most);
    near("makespan, us", out.makespan_us, 1340.0, 0.06);
}
