//! `sfab-lab`: what developers ask the fabric simulator: does it agree with what is known (`validate`), and how fast is it (`bench`)? Started by `cargo xtask
//! validate` and `cargo xtask bench --sim`. Exit code 1 if a check disagrees, 2 for wrong use.

use scalefabric_sim::fabric::bench::{CASES, peak_memory_mib};
use scalefabric_sim::fabric::validate::{Scope, groups, table};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["validate", rest @ ..] if rest.iter().all(|word| *word == "--long") => {
            validate(Scope { long: !rest.is_empty() })
        }
        ["bench", rest @ ..] => bench(rest),
        _ => {
            let names: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
            eprintln!("sfab-lab: expected `validate [--long]` or `bench [CASE…]`; cases are {}", names.join(", "));
            ExitCode::from(2)
        }
    }
}

fn validate(scope: Scope) -> ExitCode {
    let (mut total, mut wrong) = (0, 0);
    for (name, make) in groups(scope) {
        match make() {
            Ok(checks) => {
                print!("{}", table(&checks));
                total += checks.len();
                wrong += checks.iter().filter(|check| !check.agrees()).count();
            }
            Err(error) => {
                println!("{name}: {error}");
                total += 1;
                wrong += 1;
            }
        }
    }
    println!("{total} checks, {wrong} differ");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn bench(names: &[&str]) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| !CASES.iter().any(|(other, _)| other == *name)) {
        let known: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
        eprintln!("sfab-lab: no case {unknown:?}; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    println!(
        "{:<46} {:>10} {:>10} {:>8} {:>9} {:>9} {:>7}",
        "per second of processor time, one core", "M events", "M forwards", "CPU s", "M ev/s", "k fwd/s", "x ns-3"
    );
    for (name, run) in CASES {
        // The long one only by its name.
        if (names.is_empty() && *name == "ten-thousand") || (!names.is_empty() && !names.contains(name)) {
            continue;
        }
        match run() {
            Ok(speed) => println!(
                "{:<46} {:>10.2} {:>10.2} {:>8.2} {:>9.2} {:>9.0} {:>7}",
                speed.name,
                speed.events as f64 / 1e6,
                speed.forwards as f64 / 1e6,
                speed.cpu_s,
                speed.events as f64 / speed.cpu_s.max(1e-9) / 1e6,
                speed.kfps(),
                if speed.reference_kfps > 0.0 {
                    format!("{:.1}", speed.kfps() / speed.reference_kfps)
                } else {
                    "-".to_owned()
                }
            ),
            Err(error) => println!("{name}: {error}"),
        }
    }
    println!("peak memory {} MiB", peak_memory_mib());
    ExitCode::SUCCESS
}
