//! `cargo xtask test`: all tests. It prepares the machine, runs the workspace's tests, real verbs programs, a few
//! conversations with a Linux kernel and the seeded simulation, and ends with one line of totals. A test that skips itself
//! prints a line `skipped: <why>`, which is counted here.

use crate::machine;
use crate::process::{Outcome, cargo, shown};
use crate::totals::{Totals, result_line};
use clap::Args;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

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

/// The command.
pub fn run(options: &Options) -> Outcome {
    println!("==> what the tests need");
    for sentence in machine::prepare(!options.no_install) {
        println!("    will be skipped: {sentence}");
    }
    let mut totals = Totals::default();
    // Tests show their output so that `skipped:` lines can be counted; only what fails or skips is passed on.
    totals += counted(cargo().args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"]));
    totals += crate::clients::test();
    totals += crate::interop::test(!options.no_install);
    let seeds = options.seeds.to_string();
    totals += whole(cargo().args(["run", "--quiet", "--package", "scalefabric-sim", "--", "--seeds", &seeds]));
    println!("{totals}");
    if totals.failed == 0 { Ok(()) } else { Err(format!("{} tests failed: see above", totals.failed)) }
}

/// Runs a command that prints the result lines of Rust's test harness, passes its output on and counts.
fn counted(command: &mut Command) -> Totals {
    let line = shown(command);
    println!("==> {line}");
    let mut totals = Totals::default();
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("    `{line}` could not be started: {error}");
            return Totals { failed: 1, ..totals };
        }
    };
    if let Some(stdout) = child.stdout.take() {
        for text in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(counted) = result_line(&text) {
                totals += counted;
            }
            if text.trim_start().starts_with("skipped:") {
                totals += Totals { skipped: 1, ..Totals::default() };
                totals.passed = totals.passed.saturating_sub(1);
            }
            println!("{text}");
        }
    }
    let ended_well = child.wait().is_ok_and(|status| status.success());
    if !ended_well && totals.failed == 0 {
        println!("    `{line}` failed before or between its tests");
        totals.failed = 1;
    }
    totals
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
