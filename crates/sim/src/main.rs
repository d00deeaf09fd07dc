//! `sfab-sim`: runs seeds, several at a time, and prints one line for each that fails. Started by `cargo xtask sim`.
//!
//! Options: `--seed N` (one seed), `--seeds N` (that many, from `--from`, default 0), `--pattern NAME` (default: each seed its
//! own), `--threads N`, `--list`, `--verbose`, `--trace` (every packet). Exit code 1 if a seed failed, 2 if the options make no sense.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use scalefabric_sim::pattern::{Fault, PATTERNS, Pattern};
use scalefabric_sim::run::{Failure, run_with};
use scalefabric_sim::world::Outcome;

const DEFAULT_SEEDS: u64 = 1_000;
/// After so many failures no further seeds are run.
const ENOUGH: usize = 20;

struct Options {
    first: u64,
    count: u64,
    pattern: Option<&'static Pattern>,
    threads: usize,
    verbose: bool,
    trace: bool,
}

fn parse() -> Result<Option<Options>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { first: 0, count: DEFAULT_SEEDS, pattern: None, threads, verbose: false, trace: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{argument}: {text:?} is no number"));
        match argument.as_str() {
            "--seed" => (options.first, options.count) = (number(value()?)?, 1),
            "--seeds" => options.count = number(value()?)?,
            "--from" => options.first = number(value()?)?,
            "--threads" => options.threads = number(value()?)?.clamp(1, 256) as usize,
            "--trace" => options.trace = true,
            "--verbose" => options.verbose = true,
            "--pattern" => {
                let name = value()?;
                let names = || PATTERNS.iter().map(|pattern| pattern.name).collect::<Vec<_>>().join(", ");
                let pattern =
                    Pattern::find(&name).ok_or_else(|| format!("no pattern {name:?}; there are {}", names()))?;
                options.pattern = Some(pattern);
            }
            "--list" => {
                for pattern in PATTERNS {
                    println!("{:16} {}", pattern.name, pattern.text);
                }
                return Ok(None);
            }
            other => {
                return Err(format!(
                    "unknown option {other:?}; there are --seed N, --seeds N, --from N, --pattern NAME, --threads N, \
                     --verbose, --trace, --list"
                ));
            }
        }
    }
    Ok(Some(options))
}

/// What all runs came to together.
#[derive(Default)]
struct Sum {
    packets: u64,
    operations: u64,
    failed_flows: u64,
    faults: [u64; Fault::ALL.len()],
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.packets += outcome.packets;
        self.operations += outcome.operations;
        self.failed_flows += outcome.failed_flows;
        for (sum, count) in self.faults.iter_mut().zip(outcome.faults) {
            *sum += count;
        }
    }
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("sfab-sim: {message}");
            return ExitCode::from(2);
        }
    };
    // A panic is caught and told in its seed's line.
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(0);
    let sum = Mutex::new(Sum::default());
    let failures = Mutex::new(Vec::<Failure>::new());
    let lock = |mutex: &Mutex<Vec<Failure>>| mutex.lock().map_or(usize::MAX, |list| list.len());
    std::thread::scope(|scope| {
        for _ in 0..options.threads.min(options.count as usize) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= options.count || lock(&failures) >= ENOUGH {
                        return;
                    }
                    let seed = options.first + i;
                    let pattern = options.pattern.unwrap_or_else(|| Pattern::of_seed(seed));
                    match run_with(seed, pattern, None, options.trace) {
                        Ok(outcome) => {
                            if options.verbose {
                                println!("seed {seed}: {outcome:?}");
                            }
                            if let Ok(mut sum) = sum.lock() {
                                sum.add(&outcome);
                            }
                        }
                        Err(failure) => {
                            println!("FAILED {failure}");
                            if let Ok(mut list) = failures.lock() {
                                list.push(failure);
                            }
                        }
                    }
                }
            });
        }
    });
    let failed = lock(&failures);
    let ran = options.count.min(next.load(Ordering::Relaxed));
    if let Ok(sum) = sum.lock() {
        println!(
            "{ran} seeds, {failed} failed; {} operations, {} packets, {} flows that gave up as promised",
            sum.operations, sum.packets, sum.failed_flows
        );
        let faults = Fault::ALL.iter().zip(sum.faults).map(|(fault, count)| format!("{fault:?} {count}"));
        println!("faults: {}", faults.collect::<Vec<_>>().join(", "));
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
