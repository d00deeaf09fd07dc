//! `sfab sim rebind`: what an AllReduce gains if QPs leave ports above 70 % utilisation: the table, what it depends on, and its picture.

use super::progress::{Progress, end_on_ctrl_c, is_stopped};
use super::run::jobs;
use crate::failure::{During, Failure};
use crate::terminal::{print, say};
use clap::Args;
use scalefabric_sim::fabric::rebind::Setup;
use scalefabric_sim::fabric::rebind::table::{Job, Method, VARIANTS, picture, run as run_table, text};
use std::path::PathBuf;

/// Compares a static binding of QPs to ports and paths with one that the balancing rule changes, under a ring AllReduce.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim rebind                                   8, 32 and 128 nodes, packet by packet (minutes)
  sfab sim rebind --quick --nodes 8,32,128,512,2048 the closed form (a minute or two)
  sfab sim rebind --quick --sensitivity             on what the gain depends
  sfab sim rebind --nodes 32 --seeds 1 --json

The fabric and the reasons: docs/decisions/rebinding.md. Exit codes: 0 done, 1 it differs from what was reported or failed, 2 wrong use.")]
pub struct Options {
    /// Numbers of nodes: 8, 16, 24, 32 or multiples of 32
    #[arg(long, value_delimiter = ',', default_values_t = [8, 32, 128])]
    nodes: Vec<u32>,
    /// Placements, bindings and hashes to average over; default 4, with --quick 32
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The closed form instead of packets: all QPs go at the pace of the slowest
    #[arg(long)]
    quick: bool,
    /// Also what changes with oversubscription, QPs, placement, thresholds and so on, one at a time
    #[arg(long)]
    sensitivity: bool,
    /// Spine switches of a plane: 4 is 1:1, 2 is 2:1, 1 is 4:1
    #[arg(long, default_value_t = 2)]
    spines: u32,
    /// QPs from each node to its neighbour; together they offer what 8 do
    #[arg(long, default_value_t = 8)]
    qps: u32,
    /// Congestion control of the packets
    #[arg(long, default_value = "dcqcn")]
    algorithm: String,
    /// Runs at once; default: all cores
    #[arg(long, short, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Writes the picture into this file (SVG)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Prints JSON: a list with one object for each row
    #[arg(long)]
    json: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let (method, seeds) = if options.quick { (Method::Lockstep, 32) } else { (Method::Packets, 4) };
    let seeds = options.seeds.unwrap_or(seeds);
    let mut lines: Vec<Job> = Vec::new();
    for &nodes in &options.nodes {
        let mut setup = Setup::new(nodes, options.seed);
        if options.qps != setup.qps {
            setup.qp_bps = setup.qp_bps * u64::from(setup.qps) / u64::from(options.qps.max(1));
            setup.qps = options.qps;
        }
        setup.spines = options.spines;
        setup.algorithm.clone_from(&options.algorithm);
        setup.check().map_err(Failure::usage)?;
        lines.push(Job { variant: String::new(), method, setup, seeds });
    }
    let table = lines.len();
    if options.sensitivity {
        let plain = lines.clone();
        for (name, change) in VARIANTS {
            for line in plain.iter().cloned() {
                let mut setup = line.setup;
                change(&mut setup);
                lines.push(Job { variant: (*name).to_owned(), setup, ..line });
            }
        }
    }
    end_on_ctrl_c();
    let progress = Progress::new(0);
    let rows = run_table(&lines, jobs(options.jobs), &|done, total, world| progress.look_at(done, total, world));
    progress.clear();
    if is_stopped() {
        return Err(Failure::interrupted());
    }
    let rows = rows.map_err(Failure::failed)?;
    if let Some(path) = &options.svg {
        std::fs::write(path, picture(&rows[..table])).during(|| path.display())?;
    }
    if options.json {
        let text = serde_json::to_string_pretty(&rows).during(|| "writing JSON")?;
        say!("{text}");
    } else {
        print(format_args!("{}", text(&rows[..table])));
        if options.sensitivity {
            say!("");
            print(format_args!("{}", text(&rows[table..])));
        }
    }
    let is_stated = options.spines == 2 && options.qps == 8;
    let differs = rows[..table].iter().filter(|row| row.agrees() == Some(false)).count();
    if is_stated && differs > 0 {
        return Err(Failure::failed(format!("{differs} rows differ from what was reported")));
    }
    Ok(())
}
