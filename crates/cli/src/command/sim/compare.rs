//! `sfab sim compare`: the same traffic under several controllers, in one table: throughput, how even latency is, fairness.

use super::run::{jobs, run_and_write};
use crate::failure::{During, Failure};
use crate::table::{Align, Table};
use crate::terminal::{print, say};
use clap::Args;
use scalefabric_sim::fabric::report::{Report, bytes, slowdown_by_size};
use scalefabric_sim::fabric::scenario::{self, Scenario};
use std::path::PathBuf;

/// Runs scenarios under several congestion controllers and compares them in one table.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim compare examples/sim/compare.toml
  sfab sim compare examples/sim/incast.toml --algorithms dcqcn,timely-scaled,hpcc,swift
  sfab sim compare a.toml b.toml --algorithms hpcc")]
pub struct Options {
    /// Scenario files
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Controllers, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = ["dcqcn", "dcqcn-paper", "timely", "timely-scaled", "hpcc", "swift"].map(str::to_owned))]
    algorithms: Vec<String>,
    /// Seed instead of the files'
    #[arg(long)]
    seed: Option<u64>,
    /// Runs at once; default: all cores
    #[arg(long, short, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Changes a field: table.field=value; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Writes the picture of slowdowns by size into this file (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Prints JSON: a list with one object for each run
    #[arg(long)]
    json: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for file in &options.files {
        for algorithm in &options.algorithms {
            let mut changes = options.set.clone();
            changes.push(format!("congestion.algorithm=\"{algorithm}\""));
            let read = scenario::read(file, &changes).map_err(|refusal| Failure::usage(refusal.to_string()))?;
            scenarios.extend(read);
        }
    }
    if let Some(seed) = options.seed {
        scenarios.iter_mut().for_each(|scenario| scenario.seed = seed);
    }
    let reports = run_and_write(&scenarios, jobs(options.jobs), false, &|_| None)?;
    if let Some(path) = &options.svg {
        std::fs::write(path, slowdown_by_size(&reports)).during(|| path.display())?;
    }
    if options.json {
        let text = serde_json::to_string_pretty(&reports).during(|| "writing JSON")?;
        say!("{text}");
        return Ok(());
    }
    if let Some(question) = scenarios.first().and_then(|scenario| scenario.question.as_ref()) {
        say!("{question}\n");
    }
    print(format_args!("{}", table(&reports)));
    say!(
        "\nthroughput: goodput of all; latency: p99 over p50 of the smaller half of the flows (1 is even); fairness: Jain's index, mean over time"
    );
    Ok(())
}

/// How uneven the latency of small flows is: the worst ratio of p99 to p50 among the bins of the smaller half.
fn unevenness(report: &Report) -> Option<f64> {
    let small = report.flows.bins.iter().filter(|bin| bin.percentile <= 50 || report.flows.bins.len() == 1);
    small.map(|bin| bin.p99 / bin.p50.max(1e-9)).max_by(f64::total_cmp)
}

fn table(reports: &[Report]) -> Table {
    let right = Align::Right;
    let several = reports.windows(2).any(|pair| pair[0].scenario != pair[1].scenario);
    let mut table = Table::new(&[
        ("congestion control", Align::Left),
        ("Gb/s", right),
        ("p99/p50", right),
        ("Jain", right),
        ("slow p50", right),
        ("p99", right),
        ("peak queue", right),
        ("mean queue", right),
        ("pauses", right),
        ("drops", right),
    ]);
    for report in reports {
        let queue = report.queues.first();
        let name = if several { format!("{} {}", report.scenario, report.algorithm) } else { report.algorithm.clone() };
        let dash = || "-".to_owned();
        table.row(vec![
            name,
            format!("{:.2}", report.goodput_gbps),
            unevenness(report).map_or_else(dash, |ratio| format!("{ratio:.2}")),
            report.jain.map_or_else(dash, |jain| format!("{jain:.3}")),
            format!("{:.2}", report.flows.slowdown_p50),
            format!("{:.2}", report.flows.slowdown_p99),
            queue.map_or_else(dash, |queue| bytes(f64::from(queue.peak_bytes))),
            queue.map_or_else(dash, |queue| bytes(queue.mean_bytes)),
            report.counter("pfc_pauses").to_string(),
            report.counter("dropped").to_string(),
        ]);
    }
    table
}
