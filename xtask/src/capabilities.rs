//! `cargo xtask capabilities`: the generated pages. `docs/capabilities.md` comes from the crate `tests`, which knows the
//! dialogues and the engine tests that prove each capability; `docs/counters.md` from the table that the code counts by.
//! A page that differs from what would be generated fails the check.

use crate::process::{self, Outcome, cargo, root};
use clap::Args;

/// Options of `capabilities`.
#[derive(Args)]
pub struct Options {
    /// Change nothing; fail if a page is not what would be generated.
    #[arg(long)]
    check: bool,
}

/// A generated page: path, the file without which there is no generator, and the arguments of cargo that print it.
const PAGES: &[(&str, &str, &[&str])] = &[
    (
        "docs/capabilities.md",
        "crates/tests/src/bin/capabilities.rs",
        &["run", "--quiet", "--package", "scalefabric-tests", "--bin", "capabilities"],
    ),
    (
        "docs/counters.md",
        "crates/cli/src/command/counters.rs",
        &["run", "--quiet", "--package", "scalefabric-cli", "--", "counters", "--page"],
    ),
];

/// The command.
pub fn run(options: &Options) -> Outcome {
    if options.check {
        return check();
    }
    for (page, generator, arguments) in PAGES {
        if root().join(generator).exists() {
            let text = process::output(cargo().args(*arguments))?;
            std::fs::write(root().join(page), text).map_err(|e| format!("{page} could not be written: {e}"))?;
            println!("{page} written");
        }
    }
    Ok(())
}

/// Fails if a page is stale.
pub fn check() -> Outcome {
    for (page, generator, arguments) in PAGES {
        if !root().join(generator).exists() {
            println!("    note: the generator of {page} is not there yet");
            continue;
        }
        let text = std::fs::read_to_string(root().join(page)).map_err(|e| format!("{page} could not be read: {e}"))?;
        if text != process::output(cargo().args(*arguments))? {
            return Err(format!("{page} is stale: run `cargo xtask capabilities`"));
        }
    }
    Ok(())
}
