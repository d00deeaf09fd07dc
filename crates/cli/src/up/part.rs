//! The processes that `sfab up` is made of, as hidden commands: a workload, a relay into a network namespace, the keeper, and a way to start any program so that it
//! ends with its parent. People do not start them.

use super::keeper;
use super::plan::Plan;
use super::relay;
use super::work;
use crate::failure::{During, Failure};
use clap::{Args, Subcommand};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// A part of `sfab up`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// The workload of a node
    Work {
        /// File of the plan
        plan: PathBuf,
        /// The node's place in it, from 0
        place: usize,
    },
    /// Takes TCP connections in this network namespace and hands them to a Unix socket
    Relay {
        /// Where to listen
        listen: SocketAddr,
        /// The socket
        to: PathBuf,
    },
    /// Waits for the end of its input and then removes what is left of those it was told of
    Keeper,
    /// Becomes a program that ends when its parent does
    Bound {
        /// Number of the parent's process
        parent: i32,
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    match &options.part {
        Part::Work { plan, place } => work::run(Plan::read(plan).map_err(Failure::usage)?, *place),
        Part::Relay { listen, to } => relay::into_socket(*listen, to),
        Part::Keeper => keeper::run(),
        Part::Bound { parent, command } => become_bound(*parent, command),
    }
}

/// A parent that ends in any way, also by SIGKILL, takes what it has started with it.
fn become_bound(parent: i32, command: &[String]) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).during(|| "ask to end with the parent")?;
    // It may have ended before it was asked.
    if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
        return Err(Failure::failed("the parent is gone"));
    }
    let [program, arguments @ ..] = command else { return Err(Failure::usage("no program is given")) };
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::failed(format!("`{program}` cannot be started: {error}")))
}
