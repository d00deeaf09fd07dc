//! `cargo xtask bench --door`: what the C door costs. The same loop in C through libibverbs' functions, and in Rust through the
//! contract, over the same NIC; callgrind counts the instructions of the loop's thread. Two runs of different length are
//! subtracted, so that beginnings cancel out. Then how long a program takes from `sfab run` to its `main`.

use super::callgrind;
use crate::process::{self, Outcome, cargo, root};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Kinds of loops, as both programs name them, and what they are.
const KINDS: [(&str, &str); 17] = [
    ("poll", "poll, nothing there"),
    ("ex-poll", "start_poll, nothing there"),
    ("write8-inline", "WRITE 8 B, inline"),
    ("write8", "WRITE 8 B"),
    ("write64-inline", "WRITE 64 B, inline"),
    ("write64", "WRITE 64 B"),
    ("send8-inline", "SEND 8 B, inline, and its receive"),
    ("send8", "SEND 8 B and its receive"),
    ("wr-write8-inline", "ibv_wr_*: WRITE 8 B, inline"),
    ("wr-write8", "ibv_wr_*: WRITE 8 B"),
    ("wr-send8", "ibv_wr_*: SEND 8 B and its receive"),
    ("ex-write8-inline", "start_poll: WRITE 8 B, inline"),
    ("wr-ex-send8", "ibv_wr_*, start_poll: SEND 8 B, receive"),
    ("chain8-inline", "WRITE 8 B, inline, 32 a doorbell"),
    ("chain64", "WRITE 64 B, 32 a doorbell"),
    ("wr-chain8-inline", "ibv_wr_*: WRITE 8 B, inline, 32 a doorbell"),
    ("ex-chain8-inline", "next_poll: WRITE 8 B, inline, 32, all told"),
];

/// Operations of the two runs.
const COUNTS: [u64; 2] = [640, 3200];

/// What the door may cost, and how long a program may take to begin.
const LIMIT_PERCENT: f64 = 5.0;
const LIMIT_START: Duration = Duration::from_millis(50);

/// Starts of a program of which the median is told.
const STARTS: usize = 21;

/// How it is started: what is told, and the options of `sfab run`; without any, by itself.
const WAYS: [(&str, Option<&[&str]>); 5] = [
    ("the program alone", None),
    ("sfab run", Some(&[])),
    ("sfab run --mode preload", Some(&["--mode", "preload"])),
    ("sfab run --mode dropin", Some(&["--mode", "dropin"])),
    ("sfab run --mode audit", Some(&["--mode", "audit"])),
];

/// A loop's run.
#[derive(Clone, Copy)]
struct Run {
    instructions: u64,
    polls: u64,
    allocations: u64,
}

/// What one operation costs, and the allocations of the whole longer run.
struct Each {
    instructions: f64,
    polls: f64,
    allocations: u64,
}

impl Each {
    /// The smaller of two measurements.
    fn or_less(self, other: Self) -> Self {
        let allocations = self.allocations.min(other.allocations);
        let less = if other.instructions < self.instructions { other } else { self };
        Self { allocations, ..less }
    }
}

/// Both programs side by side, and the time to start one. `only`: kinds whose name has one of these words; all, if empty.
pub fn run(only: &[String]) -> Outcome {
    crate::products::build(false)?;
    let profile = process::target_folder()?.join("release");
    let c = profile.join("door-c");
    let source = root().join("crates/tests/door/door.c");
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    process::run(cc.args(["-O2", "-Wall", "-o"]).arg(&c).arg(source).arg("-libverbs"))
        .map_err(|e| format!("{e} (the headers are in the package libibverbs-dev)"))?;
    let mut failed = if callgrind() { compare(&profile, &c, only)? } else { Vec::new() };
    failed.extend(starts(&profile.join("sfab"), &c)?);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Prints a row for each kind; gives what is beyond its limit.
fn compare(profile: &Path, c: &Path, only: &[String]) -> Result<Vec<String>, String> {
    let build = ["build", "--release", "--quiet", "--package", "scalefabric-tests", "--bin", "door"];
    process::run(cargo().args(build))?;
    // A worker would help whenever the loop loses its processor, and then the loop would count polls that find nobody at home.
    let config = profile.join("door.toml");
    std::fs::write(&config, "worker = false\n").map_err(|e| format!("{}: {e}", config.display()))?;
    println!(
        "{:<42} {:>8} {:>8} {:>8} {:>6}   instructions per operation, user space; polls per operation",
        "RC, one queue pair with itself", "C", "Rust", "door", "polls"
    );
    let mut failed = Vec::new();
    for (kind, name) in KINDS.iter().filter(|(kind, _)| only.is_empty() || only.iter().any(|word| kind.contains(word)))
    {
        let mut from_c = per_operation(kind, || command(profile, Some(c)))?;
        let mut from_rust = per_operation(kind, || command(profile, None))?;
        let percent = |c: &Each, rust: &Each| (c.instructions / rust.instructions - 1.0) * 100.0;
        if percent(&from_c, &from_rust) >= LIMIT_PERCENT || from_c.allocations > 0 {
            // Something else may have happened on the machine meanwhile: an interface that came or went makes the port look again.
            from_c = from_c.or_less(per_operation(kind, || command(profile, Some(c)))?);
            from_rust = from_rust.or_less(per_operation(kind, || command(profile, None))?);
        }
        let percent = percent(&from_c, &from_rust);
        let polls = format!("{:.1}", from_c.polls);
        println!("{name:<42} {:>8.0} {:>8.0} {percent:>+7.1}% {polls:>6}", from_c.instructions, from_rust.instructions);
        if percent >= LIMIT_PERCENT {
            failed.push(format!("{name}: the C door costs {percent:.1} %, below {LIMIT_PERCENT} % are wanted"));
        }
        if from_c.allocations > 0 {
            failed.push(format!("{name}: the C door allocated {} times in steady state", from_c.allocations));
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

/// What one operation costs. Three times at most: how often a loop polls until its packet is there is the machine's affair, and
/// runs that polled as often for an operation are equal in all else.
fn per_operation(kind: &str, make: impl Fn() -> Command) -> Result<Each, String> {
    let [less, more] = COUNTS;
    let mut best: Option<Each> = None;
    for _ in 0..3 {
        let (short, long) = (collect(kind, less, make())?, collect(kind, more, make())?);
        let each = |short: u64, long: u64| long.saturating_sub(short) as f64 / (more - less) as f64;
        let instructions = each(short.instructions, long.instructions);
        if best.as_ref().is_none_or(|least| instructions < least.instructions) {
            best = Some(Each { instructions, polls: each(short.polls, long.polls), allocations: long.allocations });
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

/// Prints how long the program takes to its `main` by each way; gives what is beyond its limit. The ways take turns, so that a
/// machine that is slow for a while is so for all of them.
fn starts(sfab: &Path, program: &Path) -> Result<Vec<String>, String> {
    let mut times = WAYS.map(|_| Vec::with_capacity(STARTS));
    for _ in 0..STARTS {
        for ((_, options), times) in WAYS.iter().zip(&mut times) {
            let mut command = match options {
                None => Command::new(program),
                Some(options) => {
                    let mut command = Command::new(sfab);
                    command.arg("run").args(*options).arg("--").arg(program);
                    command
                }
            };
            times.push(to_main(command.arg("main"))?);
        }
    }
    println!(
        "\n{:<42} {:>8} {:>8} {:>8}   ms to the program's main, of {STARTS}",
        "from the start of", "median", "least", "most"
    );
    let mut failed = Vec::new();
    for ((name, _), mut times) in WAYS.iter().zip(times) {
        times.sort_unstable();
        let median = times[STARTS / 2];
        let [median_ms, least, most] = [median, times[0], times[STARTS - 1]].map(|time| time.as_secs_f64() * 1e3);
        println!("{name:<42} {median_ms:>8.1} {least:>8.1} {most:>8.1}");
        if median > LIMIT_START {
            failed.push(format!("{name}: {median_ms:.1} ms to the program's main, at most {LIMIT_START:?} are wanted"));
        }
    }
    Ok(failed)
}

/// From just before the process is made to the byte that `main` writes first.
fn to_main(command: &mut Command) -> Result<Duration, String> {
    let line = process::shown(command);
    let told = |error: std::io::Error| format!("`{line}`: {error}");
    let begin = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(told)?;
    let outcome = child.stdout.take().map_or(Ok(()), |mut pipe| pipe.read_exact(&mut [0]));
    let elapsed = begin.elapsed();
    let status = child.wait().map_err(told)?;
    outcome.map_err(|error| format!("`{line}` ended with {status} and said nothing: {error}"))?;
    Ok(elapsed)
}
