//! `cargo xtask bench`: speed as ratios, and instructions per packet. It builds in release mode and starts the binaries;
//! all that is compared is measured in one run on one machine, in interleaved repetitions.

mod door;
mod peers;

use crate::process::{self, Outcome, cargo};
use clap::Args;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Options of `bench`.
#[derive(Args)]
pub struct Options {
    /// Only instructions per packet.
    #[arg(long, conflicts_with = "no_instructions")]
    only_instructions: bool,
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
    /// What `sfab bench` (with `--memory`: `memory_cost`, with `--fabric`: `fabric_bench`, with `--same-host`: `same_host`) takes, such as `--repeat 9` or `--json`; with `--door`, words of
    /// the kinds to compare, such as `wr-`. `sim` and names of cases: only the fabric simulator.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The parts of a packet's way, as the functions of the binary `instructions` are called.
const PARTS: [&str; 3] = ["requester", "responder", "completer"];

/// Message sizes and how many messages.
const RUNS: [(u32, u32); 2] = [(8, 4800), (65_536, 480)];

/// The command.
pub fn run(options: &Options) -> Outcome {
    // `cargo xtask bench sim [CASE…]`: the fabric simulator alone.
    if let Some(cases) = options.arguments.strip_prefix(&["sim".to_owned()]) {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-sim", "--bin", "sfab-lab", "--", "bench"];
        return process::run(cargo().args(build).args(cases));
    }
    if options.peers {
        return peers::run(&options.arguments);
    }
    if options.door {
        return door::run(&options.arguments);
    }
    if options.memory {
        return memory(&options.arguments);
    }
    if options.fabric {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-tests", "--bin", "fabric_bench", "--"];
        return process::run(cargo().args(build).args(&options.arguments));
    }
    if options.same_host {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-tests", "--bin", "same_host", "--"];
        return process::run(cargo().args(build).args(&options.arguments));
    }
    if options.control {
        let load =
            ["run", "--release", "--quiet", "--package", "scalefabric-control", "--example", "control_load", "--"];
        return process::run(cargo().args(load).args(&options.arguments));
    }
    if !options.only_instructions {
        let build = ["run", "--release", "--quiet", "--package", "scalefabric-cli", "--", "bench"];
        process::run(cargo().args(build).args(&options.arguments))?;
    }
    if options.no_instructions {
        return Ok(());
    }
    println!();
    instructions()?;
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

/// Runs the small binary under callgrind, collecting in one function at a time.
fn instructions() -> Outcome {
    if !callgrind() {
        return Ok(());
    }
    process::run(cargo().args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "scalefabric-tests",
        "--bin",
        "instructions",
    ]))?;
    let program = process::target_folder()?.join("release/instructions");
    println!(
        "{:<12} {:>12} {:>12} {:>12}   instructions per packet, of that part's packets",
        "RC WRITE", PARTS[0], PARTS[1], PARTS[2]
    );
    for (size, messages) in RUNS {
        let mut cells = Vec::new();
        for (index, part) in PARTS.iter().enumerate() {
            let (collected, packets) = collect(&program, part, size, messages)?;
            let packets = packets.get(index).copied().unwrap_or(0).max(1);
            cells.push(format!("{:>12}", collected / packets));
        }
        println!("{:<12} {}", format!("{size} B"), cells.join(" "));
    }
    Ok(())
}

/// Instructions in one part, and the packets of each part.
fn collect(program: &PathBuf, part: &str, size: u32, messages: u32) -> Result<(u64, Vec<u64>), String> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*measured_{part}*"))
        .arg(program)
        .args([size.to_string(), messages.to_string()])
        .stdin(Stdio::null());
    let line = process::shown(&command);
    let output = command.output().map_err(|error| format!("`{line}` could not be started: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("`{line}` ended with {}:\n{said}", output.status));
    }
    let collected = said.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    let printed = String::from_utf8_lossy(&output.stdout);
    let packets: Vec<u64> = printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match collected {
        Some(collected) if packets.len() == PARTS.len() => Ok((collected, packets)),
        _ => Err(format!("`{line}` printed nothing to count:\n{printed}{said}")),
    }
}
