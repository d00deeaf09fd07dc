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
use scalefabric_tests::linux_stage::table::{self, Verdict};
use scalefabric_tests::linux_stage::{LinuxStage, wire::Wire};
use scalefabric_tests::runner::play;

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
    /// Print the reports of known differences, too.
    #[arg(long)]
    reports: bool,
    /// Only scripts whose name contains one of these.
    only: Vec<String>,
}

/// Plays once; the report if it differs.
fn once(entry: &Entry, node: usize, guest: SocketAddr, wire: &mut Wire) -> Result<(), String> {
    let here = if entry.script.on_transport { StageName::Transport } else { StageName::Engine };
    let patient = !lets_time_pass(&entry.script);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut stage = LinuxStage::new(here.make(), guest, wire, node, patient).map_err(|e| format!("{e}"))?;
        play(&entry.script, &mut stage).map(|_| ()).map_err(|failure| failure.report(&entry.name, "linux", &entry.text))
    }));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    })
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let text = std::fs::read_to_string(&arguments.table).map_err(|e| format!("{}: {e}", arguments.table.display()))?;
    let table = table::parse(&text)?;
    let mut wire = Wire::open().map_err(|error| format!("UDP port 4791: {error}"))?;
    let (mut agree, mut differ, mut wrong, mut repeated) = (0, 0, 0, 0);
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
            let row = table.get(&(entry.name.clone(), node.clone()));
            let started = Instant::now();
            let mut outcome = once(&entry, number, arguments.guest, &mut wire);
            for _ in 0..arguments.again {
                let verdict = table::judge(row, outcome.as_ref().err().map(String::as_str));
                if matches!(verdict, Verdict::Agrees | Verdict::Differs) {
                    break;
                }
                repeated += 1;
                outcome = once(&entry, number, arguments.guest, &mut wire);
            }
            let report = outcome.as_ref().err();
            let (name, ms) = (format!("{} {node}", entry.name), started.elapsed().as_millis());
            match (table::judge(row, report.map(String::as_str)), row) {
                (Verdict::Agrees, _) => {
                    agree += 1;
                    println!("agrees   {name} ({ms} ms)");
                }
                (Verdict::Differs, Some(row)) => {
                    differ += 1;
                    println!("differs  {name} ({ms} ms): {}; {}; right: {:?}", row.does, row.clause, row.right);
                    if arguments.reports {
                        println!("{}", report.map_or("", |r| r));
                    }
                }
                (_, Some(row)) if report.is_none() => {
                    wrong += 1;
                    println!("FAIL     {name} ({ms} ms): agrees, but the table says: {}", row.does);
                }
                _ => {
                    wrong += 1;
                    println!("FAIL     {name} ({ms} ms)\n{}", report.map_or("", |r| r));
                }
            }
        }
    }
    for (reason, count) in &reasons {
        println!("left out {count}: {reason}");
    }
    let out: usize = reasons.values().sum();
    println!(
        "dialogues on Linux: {agree} agree, {differ} differ as the table says, {wrong} failed, {out} left out by rules, \
         {repeated} played again"
    );
    if agree + differ == 0 {
        return Err("nothing was played".into());
    }
    Ok(wrong == 0)
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
