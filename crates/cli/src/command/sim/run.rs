//! `sfab sim run`: runs a scenario, or all points of its sweep.

use super::progress::{Progress, end_on_ctrl_c, is_stopped};
use crate::failure::{During, Failure};
use crate::table::{Align, Table};
use crate::terminal::{print, say};
use clap::Args;
use scalefabric_sim::fabric::report::{Report, bytes, comparison};
use scalefabric_sim::fabric::runner::{run_all, run_with_timeline};
use scalefabric_sim::fabric::scenario::{self, Scenario};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Runs a scenario, or every point of its sweep.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim run examples/sim/slow-nic.toml
  sfab sim run examples/sim/ecn-400g.toml --jobs 4 --out results --resume
  sfab sim run examples/sim/incast.toml --set congestion.algorithm=hpcc --json | jq .[0].flows

Exit codes: 0 done, 1 a run is stuck or failed, 2 the file is wrong.")]
pub struct Options {
    /// Scenario file (TOML; docs/sim.md tells what may stand in it)
    file: PathBuf,
    /// Seed instead of the file's
    #[arg(long)]
    seed: Option<u64>,
    /// Runs at once; default: all cores
    #[arg(long, short, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Changes a field: table.field=value; may be given several times
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Writes summary.json, tables (CSV) and plots (SVG) into this folder, one folder below for each run of a sweep
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Writes each table a second time as Parquet, with types and units
    #[arg(long, requires = "out")]
    parquet: bool,
    /// Leaves out runs whose summary.json (and, with --parquet, tables as Parquet) are in --out already
    #[arg(long, requires = "out")]
    resume: bool,
    /// Writes a page to scrub through the run in a browser (small fabrics, no sweep)
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Prints JSON: a list with one object for each run
    #[arg(long)]
    json: bool,
}

/// Runs at once.
pub fn jobs(asked: Option<u16>) -> usize {
    asked.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let mut scenarios =
        scenario::read(&options.file, &options.set).map_err(|refusal| Failure::usage(refusal.to_string()))?;
    if let Some(seed) = options.seed {
        scenarios.iter_mut().for_each(|scenario| scenario.seed = seed);
    }
    let many = scenarios.len() > 1;
    let place = |scenario: &Scenario| {
        let out = options.out.as_ref()?;
        Some(if many { out.join(folder_of(scenario)) } else { out.clone() })
    };
    // What is there already is told with the rest, in the order of the sweep.
    let mut told: Vec<Option<Value>> = vec![None; scenarios.len()];
    if options.resume {
        for (scenario, told) in scenarios.iter().zip(&mut told) {
            // Of the tables this one is written last.
            let folder = place(scenario).filter(|folder| !options.parquet || folder.join("samples.parquet").exists());
            *told = folder.and_then(|folder| summary_of(&folder, scenario));
        }
        let mut is_there = told.iter().map(Option::is_some);
        scenarios.retain(|_| !is_there.next().unwrap_or(false));
    }
    let left_out = told.iter().flatten().count();
    if let Some(out) = &options.out {
        std::fs::create_dir_all(out).map_err(|error| Failure::usage(format!("{}: {error}", out.display())))?;
    }
    let reports = match &options.timeline {
        None => run_and_write(&scenarios, jobs(options.jobs), options.parquet, &place)?,
        Some(_) if many => {
            return Err(Failure::usage(
                "--timeline shows one run, and this file has a sweep: choose a point with --set",
            ));
        }
        Some(path) => {
            let each = scenarios.iter().map(|scenario| with_timeline(scenario, path, options.parquet, &place));
            each.collect::<Result<_, _>>()?
        }
    };
    let mut ran = reports.iter();
    for told in told.iter_mut().filter(|told| told.is_none()) {
        *told = ran.next().and_then(|report| serde_json::to_value(report).ok());
    }
    if options.json {
        let text = serde_json::to_string_pretty(&told).during(|| "writing JSON")?;
        say!("{text}");
    } else {
        if let Some(question) = scenarios.first().and_then(|scenario| scenario.question.as_ref()) {
            say!("{question}\n");
        }
        match reports.as_slice() {
            [one] if !many => print(format_args!("{}", one.text())),
            _ if left_out > 0 => print(format_args!("{}", table(told.iter().flatten()))),
            many => print(format_args!("{}{}", comparison(many), figures(many))),
        }
        if left_out > 0 {
            say!("{left_out} runs were there already");
        }
        if let Some(out) = &options.out {
            say!("written to {}", out.display());
        }
    }
    if is_stopped() {
        return Err(Failure::interrupted());
    }
    match reports.iter().find(|report| report.stuck) {
        Some(stuck) => Err(Failure::failed(format!("{}: {}", stuck.title(), stuck.end))),
        None => Ok(()),
    }
}

fn with_timeline(
    scenario: &Scenario,
    path: &Path,
    parquet: bool,
    place: &dyn Fn(&Scenario) -> Option<PathBuf>,
) -> Result<Report, Failure> {
    end_on_ctrl_c();
    let progress = Progress::new(1);
    let run = run_with_timeline(scenario, &mut |world| progress.look(world));
    progress.clear();
    let (report, page) = run.map_err(|refusal| Failure::usage(refusal.to_string()))?;
    std::fs::write(path, page).during(|| path.display())?;
    if let Some(folder) = place(scenario) {
        write(&report, parquet, &folder).map_err(Failure::failed)?;
    }
    Ok(report)
}

/// Runs scenarios and writes what each came to as soon as it has ended.
pub fn run_and_write(
    scenarios: &[Scenario],
    jobs: usize,
    parquet: bool,
    place: &(dyn Fn(&Scenario) -> Option<PathBuf> + Sync),
) -> Result<Vec<Report>, Failure> {
    end_on_ctrl_c();
    let progress = Progress::new(scenarios.len());
    let failure = std::sync::Mutex::new(None);
    let results = run_all(scenarios, jobs, &|_, world| progress.look(world), &|index, result| {
        progress.ended();
        if is_stopped() {
            return;
        }
        if let (Ok(report), Some(folder)) = (result, place(&scenarios[index]))
            && let Err(error) = write(report, parquet, &folder)
            && let Ok(mut first) = failure.lock()
        {
            first.get_or_insert(error);
        }
    });
    progress.clear();
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(Failure::failed(error));
    }
    results.into_iter().collect::<Result<Vec<Report>, _>>().map_err(|refusal| Failure::usage(refusal.to_string()))
}

fn write(report: &Report, parquet: bool, folder: &Path) -> Result<(), String> {
    let told = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(folder).map_err(|error| told(folder, error))?;
    // The summary comes last and at once: a folder that has it is whole.
    for (name, bytes) in report.files(parquet)?.into_iter().rev() {
        let (path, draft) = (folder.join(&name), folder.join(format!("{name}.part")));
        std::fs::write(&draft, bytes).map_err(|error| told(&draft, error))?;
        std::fs::rename(&draft, &path).map_err(|error| told(&path, error))?;
    }
    Ok(())
}

/// The folder of a run in a sweep: its values, as far as file names allow.
fn folder_of(scenario: &Scenario) -> String {
    let point: Vec<String> = scenario
        .point
        .iter()
        .map(|(key, value)| format!("{}={value}", key.rsplit('.').next().unwrap_or(key)))
        .collect();
    point.join(",").chars().map(|c| if c.is_ascii_alphanumeric() || "=,.-_".contains(c) { c } else { '_' }).collect()
}

/// The result that a folder holds, if it is that of just this run.
fn summary_of(folder: &Path, scenario: &Scenario) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join("summary.json")).ok()?;
    let summary: Value = serde_json::from_str(&text).ok()?;
    (summary["fingerprint"].as_u64() == Some(scenario.fingerprint())).then_some(summary)
}

/// Results of a sweep of which some were there already.
fn table<'a>(summaries: impl Iterator<Item = &'a Value>) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("run", Align::Left),
        ("Gb/s", right),
        ("makespan µs", right),
        ("slow p50", right),
        ("slow p99", right),
        ("peak queue", right),
        ("end", Align::Left),
    ]);
    for summary in summaries {
        let pairs = summary["point"].as_array().into_iter().flatten();
        let point: Vec<String> = pairs
            .map(|pair| {
                let key = pair[0].as_str().unwrap_or_default();
                format!("{}={}", key.rsplit('.').next().unwrap_or(key), pair[1].as_str().unwrap_or_default())
            })
            .collect();
        let number = |value: &Value, digits: usize| format!("{:.digits$}", value.as_f64().unwrap_or_default());
        table.row(vec![
            point.join(" "),
            number(&summary["goodput_gbps"], 2),
            number(&summary["makespan_us"], 1),
            number(&summary["flows"]["slowdown_p50"], 2),
            number(&summary["flows"]["slowdown_p99"], 2),
            bytes(summary["queues"][0]["peak_bytes"].as_f64().unwrap_or_default()),
            summary["end"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// What workloads told, side by side.
fn figures(reports: &[Report]) -> String {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for report in reports {
        for figure in &report.figures {
            if !names.contains(&(&figure.name, &figure.unit)) {
                names.push((&figure.name, &figure.unit));
            }
        }
    }
    let mut out = String::new();
    for (name, unit) in names {
        out += &format!("\n{name}{}\n", if unit.is_empty() { String::new() } else { format!(", {unit}") });
        for report in reports {
            if let Some(figure) = report.figures.iter().find(|figure| figure.name == name) {
                out += &format!("  {:<48} {:>14.3}\n", report.title(), figure.value);
            }
        }
    }
    out
}
