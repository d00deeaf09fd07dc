//! `cargo xtask bench`: speed as ratios. It builds the bench binary in release mode and starts it; all that is compared
//! is measured in one run on one machine, in interleaved repetitions.

use crate::process::{self, Outcome, cargo};
use clap::Args;

/// Options of `bench`.
#[derive(Args)]
pub struct Options {
    /// What the bench takes, such as `--repeat 5` or `--only latency`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    let build = ["run", "--release", "--quiet", "--package", "scalefabric-cli", "--", "bench"];
    process::run(cargo().args(build).args(&options.arguments))
}
