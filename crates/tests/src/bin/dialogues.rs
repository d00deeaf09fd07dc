//! Plays the dialogues against Linux's rxe in the rig's guest, once for each node that Linux can be, and compares what
//! differs with `rig/linux-differs.txt`. Run by `rig/dialogues.sh` inside the rig's namespace.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use scalefabric_tests::library::{Entry, StageName, scripts};
use scalefabric_tests::linux_stage::rules::{left_out, lets_time_pass, nodes};
use scalefabric_tests::linux_stage::table::{Judge, Table, flat};
use scalefabric_tests::linux_stage::{LinuxStage, wire::Wire};
use scalefabric_tests::runner::{Excuse, play_excusing};

/// Dialogues against Linux.
#[derive(Parser)]
struct Arguments {
    /// Where the guest's program listens.
    #[arg(long, default_value = "10.77.0.1:18600")]
    guest: SocketAddr,
    /// The table of known differences.
    #[arg(long)]
    table: PathBuf,
    /// How often a play is repeated that is not as the table says: a slow machine may lose a packet or come too late.
    #[arg(long, default_value_t = 2)]
    again: u32,
    /// Excuse every difference and print it as the beginning of a row of the table.
    #[arg(long)]
    rows: bool,
    /// Only scripts whose name contains one of these.
    only: Vec<String>,
}

/// How a play went.
enum Outcome {
    /// As the script and the table say.
    AsSaid,
    /// Otherwise: a report.
    Otherwise(String),
}

struct Player<'a> {
    arguments: &'a Arguments,
    table: Table,
    wire: Wire,
}

impl Player<'_> {
    /// Plays once.
    fn once(&mut self, entry: &Entry, number: usize, node: &str) -> Outcome {
        let here = if entry.script.on_transport { StageName::Transport } else { StageName::Engine };
        let patient = !lets_time_pass(&entry.script);
        let Self { arguments, table, wire } = self;
        let mut judge = Judge::new(table.of(&entry.name, node));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut stage = LinuxStage::new(here.make(), arguments.guest, wire, number, patient, &table.never)
                .map_err(|error| format!("the guest's program: {error}"))?;
            let mut excuse = |line: usize, message: &str| {
                // The statement is part of it, without its comment.
                let statement = entry.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
                let statement = statement.split('#').next().unwrap_or_default();
                let message = flat(&format!("{message} at '{statement}'")).replace('|', "/");
                if arguments.rows {
                    println!("{} {node} | {message}", entry.name);
                    return Excuse::GoOn;
                }
                judge.excuse(&message)
            };
            play_excusing(&entry.script, &mut stage, &mut excuse)
                .map(|_| ())
                .map_err(|failure| failure.report(&entry.name, "linux", &entry.text))
        }));
        match outcome {
            Ok(Ok(())) => match judge.unused() {
                None => Outcome::AsSaid,
                Some(_) if arguments.rows => Outcome::AsSaid,
                Some(row) => Outcome::Otherwise(format!(
                    "agrees where the table says that it differs: {} ('{}')",
                    row.does, row.message
                )),
            },
            Ok(Err(report)) => Outcome::Otherwise(report),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                Outcome::Otherwise(
                    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default(),
                )
            }
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let text = std::fs::read_to_string(&arguments.table).map_err(|e| format!("{}: {e}", arguments.table.display()))?;
    let table = Table::parse(&text).map_err(|error| format!("{}: {error}", arguments.table.display()))?;
    let wire = Wire::open().map_err(|error| format!("UDP port 4791 of the scripts' hosts: {error}"))?;
    let mut player = Player { arguments, table, wire };
    let (mut agree, mut differ, mut failed, mut repeated) = (0, 0, 0, 0);
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in scripts()? {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|only| entry.name.contains(only.as_str())) {
            continue;
        }
        for (number, node) in nodes(&entry.script).iter().enumerate() {
            if let Some(reason) = left_out(&entry.script, node) {
                *reasons.entry(reason).or_default() += 1;
                continue;
            }
            let started = Instant::now();
            let mut outcome = player.once(&entry, number, node);
            for _ in 0..arguments.again {
                if let Outcome::Otherwise(_) = outcome {
                    repeated += 1;
                    outcome = player.once(&entry, number, node);
                }
            }
            let (name, ms) = (format!("{} {node}", entry.name), started.elapsed().as_millis());
            let rows = player.table.of(&entry.name, node);
            match outcome {
                Outcome::Otherwise(report) => {
                    failed += 1;
                    println!("FAIL     {name} ({ms} ms)\n{report}");
                }
                Outcome::AsSaid if rows.is_empty() => {
                    agree += 1;
                    println!("agrees   {name} ({ms} ms)");
                }
                Outcome::AsSaid => {
                    differ += 1;
                    println!("differs  {name} ({ms} ms)");
                    for row in rows {
                        println!("         {}; {}; right: {:?}", row.does, row.clause, row.right);
                    }
                }
            }
        }
    }
    for (reason, count) in &reasons {
        println!("left out {count}: {reason}");
    }
    let out: usize = reasons.values().sum();
    println!(
        "dialogues on Linux: {agree} agree, {differ} differ as the table says, {failed} failed, {out} left out by rules, \
         {repeated} played again"
    );
    if agree + differ == 0 {
        return Err("nothing was played".into());
    }
    Ok(failed == 0)
}

fn main() -> ExitCode {
    // What a play panics with is in its report.
    std::panic::set_hook(Box::new(|_| {}));
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("dialogues: {error}");
            ExitCode::FAILURE
        }
    }
}
