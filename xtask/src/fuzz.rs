//! `cargo xtask fuzz`: starts a fuzz target for some seconds. The targets live in `fuzz/`, outside the workspace, since
//! they need a nightly compiler and cargo-fuzz; property tests cover the same contract on stable.

use crate::process::{self, Outcome, root};
use clap::Args;
use std::process::Command;

/// Options of `fuzz`.
#[derive(Args)]
pub struct Options {
    /// Target; without it, all targets one after the other.
    target: Option<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    let folder = root().join("fuzz");
    if !folder.is_dir() {
        return Err("there is no folder fuzz/ in this tree".to_owned());
    }
    let ready = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).output();
    if !ready.is_ok_and(|output| output.status.success()) {
        return Err("fuzzing needs a nightly compiler and cargo-fuzz: `rustup toolchain install nightly`, \
             then `cargo install cargo-fuzz`"
            .to_owned());
    }
    let list = process::output(Command::new("cargo").current_dir(&folder).args(["+nightly", "fuzz", "list"]))?;
    let targets: Vec<&str> = list.lines().filter(|name| options.target.as_deref().is_none_or(|t| t == *name)).collect();
    if targets.is_empty() {
        return Err(format!("no such target; there are: {}", list.lines().collect::<Vec<_>>().join(", ")));
    }
    for target in targets {
        let limit = format!("-max_total_time={}", options.seconds);
        let arguments = ["+nightly", "fuzz", "run", target, "--", &limit];
        process::step(target, || process::run(Command::new("cargo").current_dir(&folder).args(arguments)))?;
    }
    Ok(())
}
