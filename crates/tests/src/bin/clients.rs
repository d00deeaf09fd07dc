//! Runs the cases of `crates/tests/clients` and prints a table and one line of totals. `cargo xtask clients` builds the
//! products and calls it.

use clap::Parser;
use scalefabric_tests::clients::{case, folder, layout, page, pyverbs, run};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Cases that failed are tried again, alone and with twice the patience, if no more than so many did: two at a time on a
/// busy machine, a program's own limit of time can strike.
const TRIED_AGAIN: usize = 6;

/// Real verbs programs on the software NIC.
#[derive(Parser)]
struct Arguments {
    /// Only cases whose `name@layout` begins with one of these.
    names: Vec<String>,
    /// The program `sfab`, with its products beside it.
    #[arg(long)]
    sfab: PathBuf,
    /// Folder for outputs.
    #[arg(long)]
    scratch: PathBuf,
    /// Print the names of the cases and end.
    #[arg(long)]
    list: bool,
    /// Print the results as JSON, a line for each case.
    #[arg(long)]
    json: bool,
    /// Write the tables of docs/clients.md and end.
    #[arg(long)]
    page: bool,
    /// Cases at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Multiplies the seconds a case may take.
    #[arg(long, default_value_t = 1)]
    patience: u64,
}

fn main() -> ExitCode {
    match go(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("clients: {message}");
            ExitCode::from(2)
        }
    }
}

fn go(arguments: &Arguments) -> Result<bool, String> {
    if arguments.page {
        std::fs::write(page::path(), page::made()?).map_err(|error| format!("docs/clients.md: {error}"))?;
        return Ok(true);
    }
    let cases: Vec<case::Case> =
        case::all(&folder())?.into_iter().filter(|case| case.is_named_by(&arguments.names)).collect();
    if cases.is_empty() {
        return Err("no case has such a name: see --list".to_owned());
    }
    if arguments.list {
        cases.iter().for_each(|case| println!("{}", case.id()));
        return Ok(true);
    }
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let scratch = absolute(&arguments.scratch)?;
    std::fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    layout::sweep();
    let mut rig = run::Rig {
        sfab: absolute(&arguments.sfab)?,
        pyverbs: run::unpack_pyverbs(&scratch),
        scratch,
        skips: pyverbs::read(&folder().join("pyverbs-skips.txt"))?,
        first_port: 18600,
        patience: arguments.patience,
    };
    let mut outcomes = play(&rig, &cases, arguments.jobs, arguments.json);
    let failed: Vec<case::Case> = cases.into_iter().filter(|case| has_failed(&outcomes, &case.id())).collect();
    if !failed.is_empty() && failed.len() <= TRIED_AGAIN {
        if !arguments.json {
            println!("again, alone:");
        }
        rig.patience *= 2;
        let second = play(&rig, &failed, 1, arguments.json);
        outcomes.retain(|outcome| !second.iter().any(|again| again.id == outcome.id));
        outcomes.extend(second);
    }
    let count = |wanted: fn(&run::Verdict) -> bool| outcomes.iter().filter(|outcome| wanted(&outcome.verdict)).count();
    let failed = count(|verdict| matches!(verdict, run::Verdict::Failed(..)));
    let skipped = count(|verdict| matches!(verdict, run::Verdict::Skipped(_)));
    let passed = outcomes.len() - failed - skipped;
    if !arguments.json {
        println!("clients: {passed} passed, {failed} failed, {skipped} skipped");
    }
    Ok(failed == 0)
}

/// Runs cases, so many at the same time.
fn play(rig: &run::Rig, cases: &[case::Case], jobs: usize, json: bool) -> Vec<run::Outcome> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((index, case)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(i).map(|c| (i, c))
                } {
                    let outcome = rig.run(case, (index % 2000) as u16);
                    show(&outcome, json);
                    outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn has_failed(outcomes: &[run::Outcome], id: &str) -> bool {
    outcomes.iter().any(|outcome| outcome.id == id && matches!(outcome.verdict, run::Verdict::Failed(..)))
}

fn show(outcome: &run::Outcome, json: bool) {
    let (word, note) = match &outcome.verdict {
        run::Verdict::Passed => ("ok", String::new()),
        run::Verdict::Skipped(why) => ("skipped", why.clone()),
        run::Verdict::Failed(wrong, _) => ("FAILED", wrong.join("; ")),
    };
    let seconds = outcome.took.as_secs_f64();
    if json {
        let line = serde_json::json!({ "case": outcome.id, "result": word, "seconds": seconds, "note": note });
        println!("{line}");
        return;
    }
    let mut text = format!("{:<44} {word:<8} {seconds:6.2} s  {note}", outcome.id).trim_end().to_owned();
    if let run::Verdict::Failed(wrong, lines) = &outcome.verdict {
        text = format!("{:<44} {word:<8} {seconds:6.2} s", outcome.id);
        for sentence in wrong.iter().take(20) {
            text.push_str(&format!("\n  {sentence}"));
        }
        text.push('\n');
        text.push_str(lines.trim_end());
    }
    println!("{text}");
}
