//! `sfab sim`: the laboratory. Each of its commands is one file; what a fabric does is in the crate `sim`.

mod compare;
mod nic;
mod parameters;
mod progress;
mod rebind;
mod run;
mod validate;

use crate::failure::Failure;
use clap::{Args, Subcommand};

/// The laboratory: whole fabrics, packet by packet, in virtual time; and a timing model of real NICs.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab sim run examples/sim/slow-nic.toml
  sfab sim compare examples/sim/compare.toml
  sfab sim validate")]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Options),
    Compare(compare::Options),
    Validate(validate::Options),
    Rebind(rebind::Options),
    Nic(Box<nic::Options>),
    Parameters(parameters::Options),
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    match &options.command {
        Command::Run(options) => run::run(options),
        Command::Compare(options) => compare::run(options),
        Command::Validate(options) => validate::run(options),
        Command::Rebind(options) => rebind::run(options),
        Command::Nic(options) => nic::run(options),
        Command::Parameters(options) => parameters::run(options),
    }
}
