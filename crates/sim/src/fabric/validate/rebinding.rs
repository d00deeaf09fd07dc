//! The reported table of rebinding QPs between ports, on the fabric of docs/decisions/rebinding.md: rates and gains, by the closed form and packet by packet.

use super::super::rebind::table::{Job, Method, Row, run};
use super::super::rebind::{GAIN_TOLERANCE_PERCENT, RATE_TOLERANCE_PERCENT, Setup};
use super::Check;

/// How far packets may be from the closed form on the same seeds, in per cent: until rings wait for each other their
/// loads differ, and the rule sees more to do.
const PACKETS_TOLERANCE_PERCENT: f64 = 15.0;

/// The closed form beside what was reported, and packets beside the closed form, for small numbers of nodes.
pub(super) fn checks() -> Result<Vec<Check>, String> {
    let mut checks = reported("Rebinding, closed form", &[8, 32], 32)?;
    checks.extend(packets("Rebinding, packets and closed form", &[8, 32], 2)?);
    Ok(checks)
}

/// The same on 128 nodes.
pub(super) fn long() -> Result<Vec<Check>, String> {
    let mut checks = reported("Rebinding, closed form", &[128], 32)?;
    checks.extend(packets("Rebinding, packets and closed form", &[128], 2)?);
    Ok(checks)
}

fn rows(nodes: &[u32], method: Method, seeds: u32) -> Result<Vec<Row>, String> {
    let job = |nodes: &u32| Job { variant: String::new(), method, setup: Setup::new(*nodes, 1), seeds };
    let jobs: Vec<Job> = nodes.iter().map(job).collect();
    run(&jobs, std::thread::available_parallelism().map_or(1, usize::from), &|_, _, _| true)
}

fn packets(group: &str, nodes: &[u32], seeds: u32) -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for (got, expected) in rows(nodes, Method::Packets, seeds)?.iter().zip(rows(nodes, Method::Lockstep, seeds)?) {
        let nodes = got.nodes;
        let mut add = |name: &str, expected: f64, got: f64| {
            let name = format!("{nodes} nodes: {name}, seeds 1 to {seeds}");
            checks.push(Check::new(group, name, expected, got, PACKETS_TOLERANCE_PERCENT, "Gb/s"));
        };
        add("static", expected.fixed_gbps.mean, got.fixed_gbps.mean);
        add("moved", expected.moved_gbps.mean, got.moved_gbps.mean);
    }
    Ok(checks)
}

fn reported(group: &str, nodes: &[u32], seeds: u32) -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for row in rows(nodes, Method::Lockstep, seeds)? {
        let Some((fixed, moved)) = row.reported_gbps else { continue };
        let nodes = row.nodes;
        let mut add = |name: String, expected: f64, got: f64, tolerance: f64, unit| {
            checks.push(Check::new(group, name, expected, got, tolerance, unit));
        };
        add(format!("{nodes} nodes: static"), fixed, row.fixed_gbps.mean, RATE_TOLERANCE_PERCENT, "Gb/s");
        add(format!("{nodes} nodes: moved"), moved, row.moved_gbps.mean, RATE_TOLERANCE_PERCENT, "Gb/s");
        let ratio = row.moved_gbps.mean / row.fixed_gbps.mean;
        add(format!("{nodes} nodes: moved over static"), moved / fixed, ratio, GAIN_TOLERANCE_PERCENT, "");
    }
    Ok(checks)
}
