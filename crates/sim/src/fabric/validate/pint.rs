//! HPCC with one byte of telemetry beside HPCC with records: the same law at the sender, so the same rates, queues and times, less what the shorter header saves
//! and within what a code of 5 % can tell. No reference simulator's runs with PINT are at hand: what is expected is the closed form, and the records' own run.

use super::super::report;
use super::super::time::Ps;
use super::Check;
use super::reference::{run, scenario};
use super::trial::{Trial, profile};

const GROUP: &str = "HPCC, PINT beside INT";
/// Wire bytes of a packet of 1000 bytes with records, and with a code.
const RECORDS: f64 = 1090.0;
const CODE: f64 = 1050.0;

/// All checks.
pub(super) fn checks() -> Result<Vec<Check>, String> {
    let mut checks = small()?;
    checks.extend(workload()?);
    Ok(checks)
}

/// Incasts and two flows.
fn small() -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for (name, makespan, queue) in [("incast16", 8.0, 2.0), ("incast8", 8.0, 2.0), ("two", 8.0, 5.0)] {
        let records = run(name, profile("hpcc", &[])?, 1)?;
        let code = run(name, profile("hpcc-pint", &[])?, 1)?;
        let label = |what: &str| format!("{name}: {what}");
        let expected = records.makespan.as_us() * CODE / RECORDS;
        checks.push(Check::new(GROUP, label("makespan"), expected, code.makespan.as_us(), makespan, "µs"));
        // The first burst is a window of each sender, whatever comes back.
        let expected = f64::from(records.queue_peak) * CODE / RECORDS;
        checks.push(Check::new(GROUP, label("peak queue"), expected, f64::from(code.queue_peak), queue, "B"));
        checks.push(Check::new(GROUP, label("pauses"), 0.0, code.counters.pauses as f64, 0.0, ""));
        checks.push(Check::new(GROUP, label("drops"), 0.0, code.counters.dropped() as f64, 0.0, ""));
    }
    let (hosts, flows) = scenario("two")?;
    let mut trial = Trial { sample: Ps::from_ns(10_000), ..Trial::star(hosts, profile("hpcc-pint", &[])?, flows) };
    trial.model.ns3_quantum = true;
    let (rates, jain) = trial.run()?.rates(Ps::from_ns(900_000), Ps::from_ns(1_200_000));
    // Codes are rounded up, so that a sender stays below eta by up to a step of the scale: 5 %, half of it on average.
    let expected = 0.95 * 100.0 * 1000.0 / CODE;
    checks.push(Check::new(GROUP, "two, 900-1200 µs: goodput", expected, rates.iter().sum(), 5.0, "Gb/s"));
    checks.push(Check::new(GROUP, "two, 900-1200 µs: Jain", 1.0, jain, 1.0, ""));
    Ok(checks)
}

/// FB_Hadoop on 32 hosts.
fn workload() -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    let records = report::flows(&run("fb_star32", profile("hpcc", &[("ai_rate_bps", 50e6)])?, 1)?.messages);
    let code = report::flows(&run("fb_star32", profile("hpcc-pint", &[("ai_rate_bps", 50e6)])?, 1)?.messages);
    for (what, expected, got, tolerance) in [
        ("p50", records.slowdown_p50, code.slowdown_p50, 3.0),
        ("p95", records.slowdown_p95, code.slowdown_p95, 15.0),
        ("p99", records.slowdown_p99, code.slowdown_p99, 20.0),
    ] {
        checks.push(Check::new(GROUP, format!("FB_Hadoop 50 %: slowdown {what}"), expected, got, tolerance, ""));
    }
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_of_telemetry_does_what_records_do() {
        let wrong: Vec<Check> = small().unwrap().into_iter().filter(|check| !check.agrees()).collect();
        assert!(wrong.is_empty(), "\n{}", super::super::table(&wrong));
    }
}
