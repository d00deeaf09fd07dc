//! `cargo xtask sim`: the seeded simulation. It builds and starts the runner of the crate `sim`; the runner's last line
//! repeats a failing seed.

use crate::process::{self, Outcome, cargo};
use clap::Args;

/// Options of `sim`.
#[derive(Args)]
pub struct Options {
    /// What the runner takes, such as `--seed 42`, `--seeds 2000`, `--pattern loss`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    process::run(cargo().args(["run", "--quiet", "--package", "scalefabric-sim", "--"]).args(&options.arguments))
}
