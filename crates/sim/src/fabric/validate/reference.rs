//! The runs of the reference simulator (ns-3.17 with HPCC's changes) on the same flows. It cuts serialisation to whole nanoseconds; these checks do the same
//! (`ns3_quantum`), so that what remains are differences of behaviour.

use super::super::report;
use super::super::time::Ps;
use super::super::workload::flow_list::Flow;
use super::super::world::End;
use super::Check;
use super::trial::{Outcome, Trial, flows, profile};
use scalefabric_transport::congestion::Profile;

const INCAST16: &str = include_str!("../../../reference/incast16.csv");
const INCAST8: &str = include_str!("../../../reference/incast8.csv");
const TWO: &str = include_str!("../../../reference/two.csv");
const FB_STAR32: &str = include_str!("../../../reference/fb_star32.csv");
const WS_STAR32: &str = include_str!("../../../reference/ws_star32.csv");

pub(super) fn scenario(name: &str) -> Result<(u32, Vec<Flow>), String> {
    let (hosts, text) = match name {
        "incast16" => (17, INCAST16),
        "incast8" => (9, INCAST8),
        "two" => (3, TWO),
        "fb_star32" => (32, FB_STAR32),
        _ => (32, WS_STAR32),
    };
    Ok((hosts, flows(text, name, hosts)?))
}

pub(super) fn run(name: &str, profile: Profile, seed: u64) -> Result<Outcome, String> {
    let (hosts, flows) = scenario(name)?;
    let mut trial = Trial { seed, ..Trial::star(hosts, profile, flows) };
    trial.model.ns3_quantum = true;
    let outcome = trial.run()?;
    match &outcome.end {
        End::Done => Ok(outcome),
        other => Err(format!("{name} did not end: {other:?}")),
    }
}

/// Incast and two flows without chance.
pub(super) fn small() -> Result<Vec<Check>, String> {
    const GROUP: &str = "incast and two flows";
    // Scenario, controller, makespan µs and its tolerance, peak queue B and its tolerance, pauses and their tolerance.
    type Row = (&'static str, &'static str, f64, f64, f64, f64, f64, f64);
    let rows: [Row; 9] = [
        ("incast16", "none", 1332.09, 0.1, 15_721_048.0, 0.1, 0.0, 0.0),
        ("incast8", "none", 2660.09, 0.1, 16_808_872.0, 1.0, 448.0, 15.0),
        ("two", "none", 2328.09, 0.1, 6_719_776.0, 1.0, 117.0, 15.0),
        ("incast16", "hpcc", 1488.99, 2.0, 854_560.0, 1.0, 0.0, 0.0),
        ("incast8", "hpcc", 2958.76, 2.0, 400_030.0, 3.0, 0.0, 0.0),
        ("two", "hpcc", 2577.32, 2.0, 54_500.0, 3.0, 0.0, 0.0),
        ("incast16", "timely", 1348.09, 1.5, 15_074_400.0, 2.0, 0.0, 0.0),
        ("incast8", "timely", 2942.95, 5.0, 16_804_128.0, 2.0, 59.0, 50.0),
        ("two", "timely", 2756.03, 5.0, 1_286_208.0, 8.0, 0.0, 0.0),
    ];
    let mut checks = Vec::new();
    for (name, control, makespan, t1, queue, t2, pauses, t3) in rows {
        let out = run(name, profile(control, &[])?, 1)?;
        let label = |what: &str| format!("{control} {name}: {what}");
        checks.push(Check::new(GROUP, label("makespan"), makespan, out.makespan.as_us(), t1, "µs"));
        checks.push(Check::new(GROUP, label("peak queue"), queue, f64::from(out.queue_peak), t2, "B"));
        checks.push(Check::new(GROUP, label("pauses"), pauses, out.counters.pauses as f64, t3, ""));
        checks.push(Check::new(GROUP, label("drops"), 0.0, out.counters.dropped() as f64, 0.0, ""));
        if (name, control) == ("incast16", "hpcc") {
            let shortest = out.shortest().as_us();
            checks.push(Check::new(GROUP, label("shortest"), 1023.3, shortest, 10.0, "µs"));
            checks.push(Check::new(GROUP, label("mean queue"), 25_135.0, out.queue_mean, 15.0, "B"));
        }
    }
    // Rates of the two flows in the windows for which the reference told them.
    let (hosts, flows) = scenario("two")?;
    for (control, from, to, sum, index, tolerance) in [
        ("hpcc", 350, 600, 87.23, 0.9993, 0.5),
        ("hpcc", 600, 900, 87.20, 0.9999, 0.5),
        ("hpcc", 900, 1200, 87.20, 0.9997, 0.5),
        ("timely", 600, 900, 36.99, 0.9995, 1.0),
        ("timely", 900, 1200, 90.24, 0.9999, 1.0),
    ] {
        let mut trial =
            Trial { sample: Ps::from_ns(10_000), ..Trial::star(hosts, profile(control, &[])?, flows.clone()) };
        trial.model.ns3_quantum = true;
        let (rates, jain) = trial.run()?.rates(Ps::from_ns(from * 1_000), Ps::from_ns(to * 1_000));
        let label = |what: &str| format!("{control} two, {from}-{to} µs: {what}");
        let slack = if control == "timely" { 5.0 } else { 0.5 };
        checks.push(Check::new(GROUP, label("goodput"), sum, rates.iter().sum(), slack, "Gb/s"));
        checks.push(Check::new(GROUP, label("Jain"), index, jain, tolerance, ""));
    }
    Ok(checks)
}

/// DCQCN, whose marks are chance: means of eight seeds.
pub(super) fn dcqcn() -> Result<Vec<Check>, String> {
    const GROUP: &str = "DCQCN, mean of 8 seeds";
    let rows = [
        ("incast16", "dcqcn-reference", 1676.0, 5.0, 5_669_000.0),
        ("incast8", "dcqcn-reference", 3540.3, 8.0, 2_099_000.0),
        ("two", "dcqcn-reference", 3122.4, 5.0, 749_250.0),
        ("incast16", "dcqcn-reference-paper", 1332.09, 5.0, 15_423_000.0),
        ("incast8", "dcqcn-reference-paper", 2961.5, 8.0, 8_447_000.0),
        ("two", "dcqcn-reference-paper", 2660.7, 5.0, 1_246_500.0),
    ];
    let mut checks = Vec::new();
    for (name, control, makespan, tolerance, queue) in rows {
        let (mut sum, mut peak, mut dropped) = (0.0, 0.0, 0);
        for seed in 1..=8 {
            let out = run(name, profile(control, &[])?, seed)?;
            sum += out.makespan.as_us() / 8.0;
            peak += f64::from(out.queue_peak) / 8.0;
            dropped += out.counters.dropped();
        }
        let control = control.replace("-reference", "");
        checks.push(Check::new(GROUP, format!("{control} {name}: makespan"), makespan, sum, tolerance, "µs"));
        checks.push(Check::new(GROUP, format!("{control} {name}: peak queue"), queue, peak, 8.0, "B"));
        checks.push(Check::new(GROUP, format!("{control} {name}: drops"), 0.0, dropped as f64, 0.0, ""));
    }
    Ok(checks)
}

/// 20 MB over links that lose.
pub(super) fn go_back_n() -> Result<Vec<Check>, String> {
    const GROUP: &str = "go-back-N under loss";
    let mut checks = Vec::new();
    for (control, loss, expected) in [
        ("none", 1e-5, 1664.09),
        ("none", 1e-4, 1685.67),
        ("none", 1e-3, 1866.94),
        ("hpcc", 1e-5, 1838.2),
        ("hpcc", 1e-4, 1855.36),
    ] {
        let (mut sum, mut ended) = (0.0, 0.0);
        for seed in 1..=16 {
            let flow = vec![Flow { start: Ps::ZERO, from: 0, to: 2, bytes: 20_000_000 }];
            let mut trial = Trial { seed, ..Trial::star(3, profile(control, &[])?, flow) };
            trial.model.ns3_quantum = true;
            trial.topology.links.iter_mut().for_each(|link| link.loss_e7 = (loss * 1e7) as u32);
            let out = trial.run()?;
            // Without a timer a lost answer may end it all, as it did there.
            if out.end == End::Done {
                sum += out.makespan.as_us();
                ended += 1.0;
            }
        }
        let name = format!("{control}, {loss:e} on each wire, mean of those that end");
        let why = "the reference is one run; a NAK that is lost costs 500 µs, and one run in a few has such a loss";
        checks.push(Check::new(GROUP, name, expected, sum / f64::max(ended, 1.0), 3.0, "µs").because(why));
    }
    Ok(checks)
}

fn slowdowns(group: &str, name: &str, rows: &[(&str, &str, f64, f64, f64)]) -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for &(label, control, p50, p95, p99) in rows {
        let mut parameters: Vec<(&str, f64)> = Vec::new();
        if label.ends_with("+w") {
            parameters.push(("window", 1.0));
        }
        if control == "hpcc" {
            parameters.push(("ai_rate_bps", 50e6));
        }
        let out = run(name, profile(control, &parameters)?, 1)?;
        let flows = report::flows(&out.messages);
        for (what, expected, got, tolerance) in [
            ("p50", p50, flows.slowdown_p50, 3.0),
            ("p95", p95, flows.slowdown_p95, 10.0),
            ("p99", p99, flows.slowdown_p99, 15.0),
        ] {
            checks.push(Check::new(group, format!("{label}: slowdown {what}"), expected, got, tolerance, ""));
        }
        checks.push(Check::new(group, format!("{label}: drops"), 0.0, out.counters.dropped() as f64, 0.0, ""));
    }
    Ok(checks)
}

/// FB_Hadoop.
pub(super) fn fb_star32() -> Result<Vec<Check>, String> {
    slowdowns(
        "FB_Hadoop 50 % on 32 hosts",
        "fb_star32",
        &[
            ("HPCC", "hpcc", 1.034, 2.494, 3.757),
            ("DCQCN", "dcqcn-reference", 1.097, 9.922, 18.142),
            ("TIMELY", "timely", 1.176, 20.448, 54.521),
            ("DCQCN+w", "dcqcn-reference", 1.055, 3.665, 5.333),
            ("TIMELY+w", "timely", 1.064, 3.76, 5.455),
        ],
    )
}

/// WebSearch.
pub(super) fn ws_star32() -> Result<Vec<Check>, String> {
    slowdowns(
        "WebSearch 50 % on 32 hosts",
        "ws_star32",
        &[
            ("HPCC", "hpcc", 1.566, 4.384, 6.837),
            ("DCQCN", "dcqcn-reference", 1.719, 7.458, 12.533),
            ("TIMELY", "timely", 1.638, 9.894, 24.604),
            ("DCQCN+w", "dcqcn-reference", 1.718, 4.808, 6.177),
            ("TIMELY+w", "timely", 1.732, 4.887, 6.206),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The quick part of the report is a test, too: whoever changes a controller or a queue sees at once what it does to known results.
    #[test]
    fn runs_without_chance_agree_with_the_reference() {
        let wrong: Vec<Check> = small().unwrap().into_iter().filter(|check| !check.agrees()).collect();
        assert!(wrong.is_empty(), "\n{}", super::super::table(&wrong));
    }
}
