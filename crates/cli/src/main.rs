//! `sfab`, the one binary of scaleFabric. Each command is one file; this file only parses the command line.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong use or wrong input, 130 interrupted.

mod backend;
mod bench;
mod command;
mod demo;
mod failure;
mod line_link;
mod perf;
mod software;
mod table;
mod terminal;
mod units;
mod up;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// RDMA that runs anywhere: a software RDMA NIC and its tools.
#[derive(Parser)]
#[command(name = "sfab", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<command::run::Options>),
    Demo(Box<demo::Options>),
    Perf(Box<perf::Options>),
    Up(Box<up::Options>),
    Devices(command::devices::Options),
    Gids(command::gids::Options),
    Personalities(command::personalities::Options),
    Counters(command::counters::Options),
    Res(command::res::Options),
    Decode(command::decode::Options),
    Control(Box<command::control::Options>),
    Agent(Box<command::agent::Options>),
    Top(command::top::Options),
    Sim(command::sim::Options),
    #[command(hide = true)]
    Bench(bench::Options),
    #[command(hide = true)]
    UpPart(up::part::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Run(options) => command::run::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Perf(options) => perf::run(&options),
        Command::Up(options) => up::run(&options),
        Command::Devices(options) => command::devices::run(&options),
        Command::Gids(options) => command::gids::run(&options),
        Command::Personalities(options) => command::personalities::run(&options),
        Command::Counters(options) => command::counters::run(&options),
        Command::Res(options) => command::res::run(&options),
        Command::Decode(options) => command::decode::run(&options),
        Command::Control(options) => command::control::run(&options),
        Command::Agent(options) => command::agent::run(&options),
        Command::Top(options) => command::top::run(&options),
        Command::Sim(options) => command::sim::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::UpPart(options) => up::part::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if failure.is_to_be_told() {
                eprintln!("sfab: {failure}");
            }
            failure.exit_code()
        }
    }
}
