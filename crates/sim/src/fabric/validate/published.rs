//! The published curves: FB_Hadoop at 30 % on the fat tree of the HPCC paper, 95th percentile of slowdown by size, for three controllers; the values, and which
//! one is best.

use super::super::model::Model;
use super::super::report;
use super::super::time::Ps;
use super::super::topology::Topology;
use super::Check;
use super::trial::{Trial, flows, profile};

const TOPOLOGY: &str = include_str!("../../../reference/fat320.csv");
const FLOWS: &str = include_str!("../../../reference/fb3_fat320.csv");

/// Ends of bins in per cent of flows, and the published 95th percentiles there.
const BINS: [(u32, usize); 4] = [(60, 5), (80, 7), (90, 8), (100, 9)];

/// All of it: a minute or two.
pub(super) fn checks() -> Result<Vec<Check>, String> {
    const GROUP: &str = "FB_Hadoop 30 % on 320 hosts, published";
    let mut checks = Vec::new();
    let mut at_small = Vec::new();
    for (label, control, parameters, published) in [
        ("HPCC", "hpcc", &[("eta", 0.99), ("ai_rate_bps", 50e6)][..], [1.51, 1.82, 2.22, 3.39]),
        ("DCQCN+w", "dcqcn-reference", &[("window", 1.0)][..], [2.74, 2.68, 2.68, 3.21]),
        ("TIMELY+w", "timely", &[("window", 1.0)][..], [2.78, 2.72, 2.72, 3.31]),
    ] {
        let topology = Topology::from_csv(TOPOLOGY, "fat320.csv")?;
        let list = flows(FLOWS, "fb3_fat320.csv", topology.hosts)?;
        let profile = profile(control, parameters)?;
        let trial = Trial { topology, model: Model::reference(), profile, flows: list, seed: 1, sample: Ps::NEVER };
        let out = trial.run()?;
        let flows = report::flows(&out.messages);
        for ((percentile, bin), expected) in BINS.into_iter().zip(published) {
            let got = flows.bins.get(bin).map_or(0.0, |bin| bin.p95);
            let name = format!("{label}: p95 of flows up to {percentile} %");
            checks.push(Check::new(GROUP, name, expected, got, 20.0, ""));
        }
        checks.push(Check::new(GROUP, format!("{label}: drops"), 0.0, out.counters.dropped() as f64, 0.0, ""));
        at_small.push(flows.bins.get(5).map_or(0.0, |bin| bin.p95));
    }
    let ordered = at_small[0] < at_small[1] && at_small[1] <= at_small[2] * 1.03;
    checks.push(Check::new(
        GROUP,
        "HPCC < DCQCN+w <= TIMELY+w for small flows",
        1.0,
        f64::from(u8::from(ordered)),
        0.0,
        "",
    ));
    Ok(checks)
}
