//! `cargo xtask bench --door`: what the C door costs. The same loop in C through `ibv_post_send` and `ibv_poll_cq`, and in Rust
//! through the contract, over the same NIC; callgrind counts the instructions of the loop's thread. Two runs of different
//! length are subtracted, so that beginnings cancel out.

use super::callgrind;
use crate::process::{self, Outcome, cargo, root};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Kinds of loops, as both programs name them, and what they are.
const KINDS: [(&str, &str); 8] = [
    ("poll", "poll, nothing there"),
    ("write8-inline", "WRITE 8 B, inline"),
    ("write8", "WRITE 8 B"),
    ("write64-inline", "WRITE 64 B, inline"),
    ("write64", "WRITE 64 B"),
    ("send8", "SEND 8 B and its receive"),
    ("chain8-inline", "WRITE 8 B, inline, 32 a doorbell"),
    ("chain64", "WRITE 64 B, 32 a doorbell"),
];

/// Operations of the two runs.
const COUNTS: [u64; 2] = [640, 3200];

/// What the door may cost, and how long a program may take to begin.
const LIMIT_PERCENT: f64 = 5.0;
const LIMIT_START: Duration = Duration::from_millis(50);

/// Starts of a program of which the median is told.
const STARTS: usize = 41;

/// A loop's run.
#[derive(Clone, Copy)]
struct Run {
    instructions: u64,
    polls: u64,
    allocations: u64,
}

/// Both programs side by side, and the time to start one.
pub fn run() -> Outcome {
    crate::products::build(false)?;
    let profile = process::target_folder()?.join("release");
    let c = profile.join("door-c");
    let source = root().join("crates/tests/door/door.c");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    process::run(cc.args(["-O2", "-Wall", "-o"]).arg(&c).arg(source).arg("-libverbs"))
        .map_err(|e| format!("{e} (the headers are in the package libibverbs-dev)"))?;
    let failed = if callgrind() { compare(&profile, &c)? } else { Vec::new() };
    let median = start(&profile)?;
    println!("\nfrom `sfab run` to the end of `true`, median of {STARTS}: {:.1} ms", median.as_secs_f64() * 1e3);
    if median > LIMIT_START {
        return Err(format!("`sfab run` takes {median:?}: at most {LIMIT_START:?} are wanted"));
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Prints a row for each kind; gives what is beyond its limit.
fn compare(profile: &Path, c: &Path) -> Result<Vec<String>, String> {
    let build = ["build", "--release", "--quiet", "--package", "scalefabric-tests", "--bin", "door"];
    process::run(cargo().args(build))?;
    // A worker would help whenever the loop loses its processor, and then the loop would count polls that find nobody at home.
    let config = profile.join("door.toml");
    std::fs::write(&config, "worker = false\n").map_err(|e| format!("{}: {e}", config.display()))?;
    println!(
        "{:<34} {:>8} {:>8} {:>8}   instructions per operation, user space",
        "RC, one queue pair with itself", "C", "Rust", "door"
    );
    let mut failed = Vec::new();
    for (kind, name) in KINDS {
        let (from_c, allocations) = per_operation(kind, || command(profile, Some(c)))?;
        let (from_rust, _) = per_operation(kind, || command(profile, None))?;
        let percent = (from_c / from_rust - 1.0) * 100.0;
        println!("{name:<34} {from_c:>8.0} {from_rust:>8.0} {percent:>+7.1}%");
        if percent >= LIMIT_PERCENT {
            failed.push(format!("{name}: the C door costs {percent:.1} %, below {LIMIT_PERCENT} % are wanted"));
        }
        if allocations > 0 {
            failed.push(format!("{name}: the C door allocated {allocations} times in steady state"));
        }
    }
    Ok(failed)
}

/// The C program with our library beneath it, or the Rust one, under callgrind.
fn command(profile: &Path, c: Option<&Path>) -> Command {
    let mut command = Command::new("valgrind");
    command
        .env("SCALEFABRIC_CONFIG", profile.join("door.toml"))
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*measured_*");
    match c {
        Some(program) => {
            command.env("LD_PRELOAD", profile.join("scalefabric/libscalefabric-preload.so")).arg(program);
        }
        None => drop(command.arg(profile.join("door"))),
    }
    command.stdin(Stdio::null());
    command
}

/// Instructions of one operation, and allocations in the longer run. Three times at most: how often a loop polls until its packet
/// is there is the machine's affair, and runs that polled as often for an operation are equal in all else.
fn per_operation(kind: &str, make: impl Fn() -> Command) -> Result<(f64, u64), String> {
    let [less, more] = COUNTS;
    let mut best: Option<(f64, u64)> = None;
    for _ in 0..3 {
        let (short, long) = (collect(kind, less, make())?, collect(kind, more, make())?);
        let each = long.instructions.saturating_sub(short.instructions) as f64 / (more - less) as f64;
        if best.is_none_or(|(least, _)| each < least) {
            best = Some((each, long.allocations));
        }
        if short.polls * more == long.polls * less {
            break;
        }
    }
    best.ok_or_else(|| format!("{kind}: nothing was counted"))
}

fn collect(kind: &str, count: u64, mut command: Command) -> Result<Run, String> {
    command.args([kind, &count.to_string()]);
    let line = process::shown(&command);
    let output = command.output().map_err(|error| format!("`{line}` could not be started: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("`{line}` ended with {}:\n{said}", output.status));
    }
    let collected = said.lines().find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok());
    let printed = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match (collected, &numbers[..]) {
        (Some(instructions), [_, polls, rest @ ..]) => {
            Ok(Run { instructions, polls: *polls, allocations: rest.first().copied().unwrap_or(0) })
        }
        _ => Err(format!("`{line}` printed nothing to count:\n{printed}{said}")),
    }
}

/// How long `sfab run -- true` takes from start to end, which is longer than to the program's `main`.
fn start(profile: &Path) -> Result<Duration, String> {
    let sfab: PathBuf = profile.join("sfab");
    let mut times = Vec::with_capacity(STARTS);
    for _ in 0..STARTS {
        let begin = Instant::now();
        process::run(Command::new(&sfab).args(["run", "--", "true"]).stdin(Stdio::null()))?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    Ok(times[STARTS / 2])
}
