//! `cargo xtask capabilities`: the generated pages. `docs/capabilities.md` comes from the crate `tests`, which knows the
//! dialogues and the engine tests that prove each capability; `docs/counters.md` from the table that the code counts by.
//! Tests of those crates fail while a page differs from what would be generated.

use crate::process::{self, Outcome, cargo, root};

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
pub fn run() -> Outcome {
    for (page, generator, arguments) in PAGES {
        if root().join(generator).exists() {
            let text = process::output(cargo().args(*arguments))?;
            std::fs::write(root().join(page), text).map_err(|e| format!("{page} could not be written: {e}"))?;
            println!("{page} written");
        }
    }
    Ok(())
}
