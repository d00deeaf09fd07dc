//! `cargo xtask test`: all tests. It prepares the machine, runs the workspace's tests, real verbs programs, a few
//! conversations with a Linux kernel and the seeded simulation, and ends with one line of totals. A test that skips itself
//! prints a line `skipped: <why>`, which is counted here. What fails gets a second try, alone: what passes then does not stop
//! a change, and is named at the end, because it is a fault all the same.

use crate::harness::{Failure, Harness};
use crate::machine;
use crate::process::{Outcome, cargo, shown};
use crate::totals::Totals;
use crate::watchdog;
use clap::Args;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Options of `test`.
#[derive(Args)]
pub struct Options {
    /// Seeds of the simulation, in each of its patterns taken together.
    #[arg(long, default_value_t = 2000)]
    seeds: u32,
    /// Install no packages; say what is missing.
    #[arg(long)]
    no_install: bool,
}

/// A test that failed is tried again, alone, if no more than so many did: chance strikes a few, a fault strikes many.
const TRIED_AGAIN: usize = 6;
/// No test and no compiler is silent for so long on any machine that is worth testing on.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// How often it is looked whether the command has ended, or is silent.
const LOOK: Duration = Duration::from_secs(2);
/// Of what a failed test printed, so many lines are repeated at the end.
const REPEATED_LINES: usize = 60;

/// The command.
pub fn run(options: &Options) -> Outcome {
    println!("==> what the tests need");
    for sentence in machine::prepare(!options.no_install) {
        println!("    will be skipped: {sentence}");
    }
    let mut totals = Totals::default();
    let (counted, verdict) = workspace();
    totals += counted;
    totals += crate::clients::test();
    totals += crate::interop::test(!options.no_install);
    let seeds = options.seeds.to_string();
    totals += whole(cargo().args(["run", "--quiet", "--package", "scalefabric-sim", "--", "--seeds", &seeds]));
    verdict.show();
    println!("{totals}");
    if totals.failed == 0 { Ok(()) } else { Err(format!("{} tests failed: see above", totals.failed)) }
}

/// What became of tests that failed.
#[derive(Default)]
struct Verdict {
    /// They passed when they were tried again alone.
    by_chance: Vec<Failure>,
    /// They did not, or were not tried.
    failed: Vec<Failure>,
}

impl Verdict {
    /// Told last, where it is found.
    fn show(&self) {
        let kinds = [
            (
                &self.by_chance,
                "failed among the others and passed alone: a race, or a limit of time that is too narrow",
            ),
            (&self.failed, "failed"),
        ];
        for (failures, what) in kinds {
            for failure in failures {
                println!("==> {what}: {}", failure.name);
                let first = failure.said.len().saturating_sub(REPEATED_LINES);
                failure.said[first..]
                    .iter()
                    .filter(|line| !line.trim().is_empty())
                    .for_each(|line| println!("    {line}"));
            }
        }
    }
}

/// The tests of the workspace; those that fail get a second try.
fn workspace() -> (Totals, Verdict) {
    // Tests show their output so that `skipped:` lines can be counted.
    let first = harness(cargo().args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"]));
    let mut totals = first.totals;
    let names: Vec<&str> = first.failures.iter().map(|failure| failure.name.as_str()).collect();
    if names.is_empty() || names.len() > TRIED_AGAIN || first.has_died {
        return (totals, Verdict { failed: first.failures, ..Verdict::default() });
    }
    let mut again = cargo();
    again.args(["test", "--workspace", "--no-fail-fast", "--", "--show-output", "--test-threads=1", "--exact"]);
    let second = harness(again.args(&names));
    let fails = |failure: &Failure| second.has_died || second.failures.iter().any(|other| other.name == failure.name);
    let (failed, by_chance): (Vec<_>, Vec<_>) = first.failures.iter().cloned().partition(fails);
    totals.failed -= by_chance.len() as u64;
    totals.passed += by_chance.len() as u64;
    (totals, Verdict { by_chance, failed })
}

/// Runs a command that prints as Rust's test harness does, passes on what a person should see, and counts. Standard output
/// and standard error are one stream, so that it is seen which binary speaks.
fn harness(command: &mut Command) -> Harness {
    let line = shown(command);
    println!("==> {line}");
    let mut harness = Harness::default();
    let started = std::io::pipe().and_then(|(reader, writer)| {
        let child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
        // The command holds the pipe's writing ends: without this the end would never be read.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok((reader, child))
    });
    let (reader, mut child) = match started {
        Ok(started) => started,
        Err(error) => {
            println!("    `{line}` could not be started: {error}");
            harness.totals.failed = 1;
            harness.has_died = true;
            return harness;
        }
    };
    let lines = read_lines(reader);
    let mut heard = Instant::now();
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(text) => {
                heard = Instant::now();
                if harness.line(&text) {
                    println!("{text}");
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A process that a test has left behind may hold the pipe for ever.
            Err(RecvTimeoutError::Timeout) if !matches!(child.try_wait(), Ok(None)) => break,
            Err(RecvTimeoutError::Timeout) if heard.elapsed() >= SILENCE => {
                heard = Instant::now();
                watchdog::end_test_binaries(&child);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let ended_well = child.wait().is_ok_and(|status| status.success());
    if !ended_well && harness.totals.failed == 0 {
        println!("    `{line}` failed before or between its tests");
        harness.totals.failed = 1;
        harness.has_died = true;
    }
    harness
}

/// The lines of a pipe, as they come.
fn read_lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (line, lines) = channel();
    std::thread::spawn(move || {
        for text in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if line.send(String::from_utf8_lossy(&text).into_owned()).is_err() {
                return;
            }
        }
    });
    lines
}

/// Runs a command that counts as one test.
fn whole(command: &mut Command) -> Totals {
    println!("==> {}", shown(command));
    match crate::process::run(command) {
        Ok(()) => Totals { passed: 1, ..Totals::default() },
        Err(message) => {
            println!("    FAILED: {message}");
            Totals { failed: 1, ..Totals::default() }
        }
    }
}
