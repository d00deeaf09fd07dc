//! `cargo xtask validate`: does the fabric simulator agree with closed forms, with the runs of a reference simulator and with published curves? It builds in
//! release mode and starts the laboratory's binary, which prints expected, got and tolerance of each check and ends with 1 if one disagrees.

use crate::process::{self, Outcome, cargo};
use clap::Args;

/// Options of `validate`.
#[derive(Args)]
pub struct Options {
    /// Also what takes minutes: published curves on a fat tree of 320 hosts.
    #[arg(long)]
    long: bool,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    let build = ["run", "--release", "--quiet", "--package", "scalefabric-sim", "--bin", "sfab-lab", "--", "validate"];
    process::run(cargo().args(build).args(options.long.then_some("--long")))
}
