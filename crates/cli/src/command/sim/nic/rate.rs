//! `sfab sim nic rate`: message rate against QPs, regions, page size and more.

use super::{Chosen, Circumstances, Operation, headline, parse_large, write_file};
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::terminal::say;
use clap::{Args, ValueEnum};
use scalefabric_sim::rnic::curve::{self, Axis};
use scalefabric_sim::rnic::load::{Issue, Load, Memory, Registers, Responder};
use scalefabric_sim::rnic::{Key, Outcome, Profile, svg};
use serde_json::json;
use std::path::PathBuf;

/// Message rate of a load, along one axis; QPs, regions and pages miss in caches that are simulated entry by entry.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim nic rate --by qps --op read --plot qps.svg
  sfab sim nic rate --by page-size --region-size 16G --csv
  sfab sim nic rate --by threads --default-doorbells --values 1,8,16,32,64,96")]
pub struct Options {
    #[command(flatten)]
    operation: Operation,
    /// What is varied
    #[arg(long, value_enum, default_value_t = AxisName::Qps)]
    by: AxisName,
    /// Its values, as in 32,64,1K
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_large)]
    values: Vec<u64>,
    /// Threads that post
    #[arg(long, value_name = "N", default_value_t = 48)]
    threads: u32,
    /// QPs of all threads; fewer than threads are shared under locks [default: as many as threads]
    #[arg(long, value_name = "N")]
    qps: Option<u32>,
    /// Operations under way for each thread
    #[arg(long, value_name = "N", default_value_t = 10)]
    depth: u32,
    /// WQEs for each ring of the doorbell; 1 uses BlueFlame
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: u32,
    /// One in so many is signalled
    #[arg(long, value_name = "N", default_value_t = 4)]
    signal_every: u32,
    /// Post a depth, wait for all of it
    #[arg(long)]
    rounds: bool,
    /// Only the profile's number of doorbell registers, shared under locks
    #[arg(long)]
    default_doorbells: bool,
    /// This NIC answers as many requests as it makes
    #[arg(long)]
    mirror: bool,
    /// Registered regions at the responder
    #[arg(long, value_name = "N", default_value_t = 1)]
    regions: u64,
    /// Bytes of each
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_large)]
    region_size: u64,
    /// Bytes of a page
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_large)]
    page_size: u64,
    #[command(flatten)]
    circumstances: Circumstances,
    /// CSV instead of a table
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write a picture
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AxisName {
    Qps,
    Regions,
    PageSize,
    Size,
    Threads,
    Depth,
}

impl AxisName {
    fn axis(self) -> Axis {
        match self {
            AxisName::Qps => Axis::Qps,
            AxisName::Regions => Axis::Regions,
            AxisName::PageSize => Axis::PageBytes,
            AxisName::Size => Axis::Bytes,
            AxisName::Threads => Axis::Threads,
            AxisName::Depth => Axis::Depth,
        }
    }

    /// Values that show the bend.
    fn values(self, profile: &Profile) -> Vec<u64> {
        let around = |entries: u64, least: u64| -> Vec<u64> {
            let doublings = (0..).map(|power| least << power).take_while(|value| *value <= (4 * entries).min(1 << 18));
            let mut values: Vec<u64> = doublings.chain([entries]).filter(|value| *value >= least).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        match self {
            AxisName::Qps => around(profile.count(Key::QpcEntries).max(4096), 32),
            AxisName::Regions => around(profile.count(Key::MptEntries), 1),
            AxisName::PageSize => vec![1 << 12, 1 << 16, 1 << 21, 1 << 30],
            AxisName::Size => vec![8, 32, 64, 128, 256, 512, 1024, 2048, 4096],
            AxisName::Threads => vec![1, 2, 4, 8, 16, 32, 48, 64, 96],
            AxisName::Depth => vec![8, 16, 32, 64, 128],
        }
    }
}

fn load(options: &Options, seed: u64) -> Load {
    let shape = options.operation.shape(options.batch == 1);
    let one = Load::one(shape, options.circumstances.setting());
    Load {
        threads: options.threads,
        qps: options.qps.unwrap_or(options.threads),
        depth: options.depth,
        issue: if options.rounds { Issue::Round } else { Issue::Window },
        batch: options.batch,
        signal_every: options.signal_every,
        registers: if options.default_doorbells { Registers::Default } else { Registers::Own },
        responder: if options.mirror { Responder::Mirror } else { Responder::Peer },
        memory: Memory { regions: options.regions, region_bytes: options.region_size, page_bytes: options.page_size },
        operations: 20_000,
        seed,
        ..one
    }
}

fn misses(outcome: &Outcome) -> String {
    let told = outcome.misses.iter().filter(|(_, ppm)| *ppm > 0);
    let told: Vec<String> = told.map(|(name, ppm)| format!("{name} {:.1} %", *ppm as f64 / 1e4)).collect();
    told.join(", ")
}

/// The command.
pub fn run(chosen: &Chosen, options: &Options) -> Result<(), Failure> {
    let profile = chosen.read()?;
    let axis = options.by.axis();
    let values = if options.values.is_empty() { options.by.values(&profile) } else { options.values.clone() };
    let load = load(options, chosen.seed);
    let got = curve::along(&profile, &load, axis, &values).map_err(Failure::usage)?;
    let name = load.shape.op.label().to_uppercase();
    let title = format!("{} ({}): {name} against {}", profile.name, profile.kind.label(), axis.label());
    if let Some(file) = &options.plot {
        let points = got.iter().map(|(value, outcome)| (*value as f64, outcome.mops())).collect();
        write_file(file, &svg::plot(&title, axis.label(), "M/s", &[svg::Line { name, points }]))?;
    }
    if chosen.json {
        let rows = got.iter().map(|(value, outcome)| {
            let busy: serde_json::Map<_, _> =
                outcome.busy.iter().map(|(name, permille)| ((*name).to_owned(), json!(permille))).collect();
            let misses: serde_json::Map<_, _> =
                outcome.misses.iter().map(|(name, ppm)| ((*name).to_owned(), json!(ppm))).collect();
            json!({
                axis.label(): value, "mops": outcome.mops(), "operations": outcome.operations,
                "elapsed_ps": outcome.elapsed_ps, "latency_ps": outcome.latency_ps, "limit": outcome.limit(),
                "busy_permille": busy, "miss_ppm": misses,
            })
        });
        let rows: Vec<_> = rows.collect();
        say!(
            "{:#}",
            json!({ "profile": profile.name, "kind": profile.kind.label(), "by": axis.label(), "points": rows })
        );
        return Ok(());
    }
    if options.csv {
        say!("{},mops,latency_ns,limit", axis.label().replace(' ', "_"));
        for (value, outcome) in &got {
            let latency = outcome.latency_ps as f64 / 1000.0;
            say!("{value},{:.3},{latency:.1},{}", outcome.mops(), outcome.limit().replace(',', ""));
        }
        return Ok(());
    }
    say!("{}\n{title}\n", headline(&profile));
    let mut table = Table::new(&[
        (axis.label(), Align::Right),
        ("M/s", Align::Right),
        ("mean us", Align::Right),
        ("limit", Align::Left),
        ("misses", Align::Left),
    ]);
    for (value, outcome) in &got {
        table.row(vec![
            value.to_string(),
            format!("{:.2}", outcome.mops()),
            format!("{:.2}", outcome.latency_ps as f64 / 1e6),
            outcome.limit().to_owned(),
            misses(outcome),
        ]);
    }
    crate::terminal::print(format_args!("{table}"));
    Ok(())
}
