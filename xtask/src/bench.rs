//! `cargo xtask bench`: speed as ratios, and instructions per packet. It builds in release mode and starts the binaries;
//! all that is compared is measured in one run on one machine, in interleaved repetitions.

mod door;
mod instructions;
mod marks;
mod peers;
mod scale;

use crate::process::{self, Outcome, cargo};
use clap::Args;
use std::process::Command;

/// Options of `bench`.
#[derive(Args)]
pub struct Options {
    /// Only instructions per packet, work request and poll, beside those of docs/instructions.md; what follows goes to it, such as
    /// `--check` or `--renew`.
    #[arg(long, conflicts_with = "no_instructions")]
    instructions: bool,
    /// Leave out instructions per packet, which need valgrind and half a minute.
    #[arg(long)]
    no_instructions: bool,
    /// Only what the C door costs, and how long a program takes to its `main` under `sfab run`.
    #[arg(long)]
    door: bool,
    /// Only what it costs to have memory ready: registered each time, from the pool, from the cache.
    #[arg(long)]
    memory: bool,
    /// Only control: 512 simulated agents with 100,000 connections; what follows `--` goes to the load, such as `--agents=64`.
    #[arg(long)]
    control: bool,
    /// Only the same-host path against raw shared memory, `memcpy` and `process_vm_writev`.
    #[arg(long, conflicts_with_all = ["door", "fabric"])]
    same_host: bool,
    /// Only what the fabric library costs against raw verbs, and `Provider` against the software NIC called directly.
    #[arg(long, conflicts_with = "door")]
    fabric: bool,
    /// Only what others do, beside ours; what follows `--` goes to it, such as `--repeat 3 --only UDP --install`; `-- --help` lists it.
    #[arg(long, conflicts_with = "door")]
    peers: bool,
    /// Only how it grows with queue pairs, regions, threads and processes; what follows goes to it, such as `--only pollers` or `--page`.
    #[arg(long, conflicts_with = "door")]
    scale: bool,
    /// What `sfab bench` (with `--memory`: `memory_cost`, with `--fabric`: `fabric_bench`, with `--same-host`: `same_host`) takes, such as `--repeat 9` or `--json`; with `--door`, words of
    /// the kinds to compare, such as `wr-`. `sim` and names of cases: only the fabric simulator.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    // `cargo xtask bench sim [CASE…]`: the fabric simulator alone.
    if let Some(cases) = options.arguments.strip_prefix(&["sim".to_owned()]) {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-sim", "--bin", "sfab-lab", "--", "bench"];
        process::run(cargo().args(build).args(cases))?;
        println!();
        // Its own program: the allocator counts there.
        let test = ["test", "--quiet", "--package", "scalefabric-sim", "--test", "no_allocation"];
        return process::run(cargo().args(test).args(["--", "--nocapture"]));
    }
    if options.peers {
        return peers::run(&options.arguments);
    }
    if options.scale {
        return scale::run(&options.arguments);
    }
    if options.instructions {
        return instructions::run(&options.arguments);
    }
    if options.door {
        return door::run(&options.arguments);
    }
    if options.memory {
        return memory(&options.arguments);
    }
    if options.fabric {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-tests", "--bin", "fabric_bench", "--"];
        // Both ends are in one process; what the fabric costs above verbs is told by packets, unless who measures says otherwise.
        let path = std::env::var_os("SCALEFABRIC_PATH").unwrap_or_else(|| "wire".into());
        return process::run(cargo().env("SCALEFABRIC_PATH", path).args(build).args(&options.arguments));
    }
    if options.same_host {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-nic", "--example", "same_host", "--"];
        return process::run(cargo().args(build).args(&options.arguments));
    }
    if options.control {
        let load =
            ["run", "--release", "--quiet", "--package", "scalefabric-control", "--example", "control_load", "--"];
        return process::run(cargo().args(load).args(&options.arguments));
    }
    let build = ["run", "--release", "--quiet", "--package", "scalefabric-cli", "--", "bench"];
    process::run(cargo().args(build).args(&options.arguments))?;
    if options.no_instructions {
        return Ok(());
    }
    println!();
    instructions::run(&[])?;
    println!();
    door::run(&[])
}

/// On the software NIC. With `--backend ibv` the binary measures a device of libibverbs.
fn memory(arguments: &[String]) -> Outcome {
    let build = ["run", "--release", "--quiet", "--package", "scalefabric-tests", "--bin", "memory_cost", "--"];
    process::run(cargo().args(build).args(arguments))
}

/// Whether callgrind is there; says so if not.
fn callgrind() -> bool {
    let is_there = Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: counting instructions: `valgrind` is missing; install the package valgrind");
    }
    is_there
}
