//! Every developer command. It starts binaries; it links no product crate, so that it still works when they do not
//! compile. Each command is one file; this file only parses the command line.

mod arrows;
mod bench;
mod capabilities;
mod check;
mod clients;
mod dialogues;
mod fuzz;
mod harness;
mod interop;
mod invariants;
mod links;
mod machine;
mod pictures;
mod process;
mod products;
mod sim;
mod source;
mod test;
mod totals;
mod validate;
mod watchdog;
mod wrappers;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Developer commands of scaleFabric.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// `sfab`, and the libraries that `sfab run` uses. Example: cargo xtask build --debug
    Build(products::Options),
    /// Format, lints, arrows between crates, design invariants, documentation. Changes nothing.
    Check(check::Options),
    /// All tests, and one line of totals at the end.
    Test(test::Options),
    /// Seeded simulation of the shipped engine in virtual time. Example: cargo xtask sim --seed 42
    Sim(sim::Options),
    /// Speed, as ratios within one run. Example: cargo xtask bench --repeat 5
    Bench(bench::Options),
    /// The fabric simulator against what is known: expected, got, tolerance. Example: cargo xtask validate --long
    Validate(validate::Options),
    /// Fuzz targets (needs a nightly toolchain and cargo-fuzz). Example: cargo xtask fuzz packet --seconds 60
    Fuzz(fuzz::Options),
    /// Writes docs/capabilities.md from the dialogues and tests. Example: cargo xtask capabilities
    Capabilities,
    /// Real verbs programs on the software NIC (network namespaces need root). Example: cargo xtask clients rc_pingpong
    Clients(clients::Options),
    /// Against a Linux kernel with Soft-RoCE in a virtual machine (root). Example: cargo xtask interop rc-send v6-rc
    Interop(interop::Options),
    /// The pictures of the dashboard, into docs/pictures. Example: cargo xtask pictures --seconds 60
    Pictures(pictures::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Build(options) => products::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Validate(options) => validate::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Capabilities => capabilities::run(),
        Command::Clients(options) => clients::run(&options),
        Command::Interop(options) => interop::run(&options),
        Command::Pictures(options) => pictures::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
