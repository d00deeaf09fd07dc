//! `cargo xtask check`: everything that can be judged without running the product. All steps run, so that one call shows
//! all that is wrong.

use crate::process::{self, Outcome, cargo, step};
use crate::{arrows, invariants, links};
use clap::Args;

/// Options of `check`.
#[derive(Args)]
pub struct Options {
    /// Only what needs no compiler: format, arrows, invariants, links.
    #[arg(long)]
    quick: bool,
}

/// Runs all steps and tells how many failed.
fn steps(options: &Options) -> Vec<(&'static str, Outcome)> {
    let mut done = Vec::new();
    let mut go = |name: &'static str, work: &dyn Fn() -> Outcome| done.push((name, step(name, work)));
    go("format (cargo fmt)", &|| process::run(cargo().args(["fmt", "--all", "--check"])));
    go("arrows between crates", &arrows::check);
    go("invariants in the source", &invariants::check);
    go("links between the pages", &links::check);
    if !options.quick {
        go("lints (cargo clippy)", &|| {
            process::run(cargo().args(["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]))
        });
        go("documentation (cargo doc)", &|| {
            process::run(
                cargo()
                    .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])
                    // Private items are documented, too, so that their links are checked.
                    .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"),
            )
        });
    }
    done
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    let done = steps(options);
    let failed: Vec<&str> = done.iter().filter(|(_, outcome)| outcome.is_err()).map(|(name, _)| *name).collect();
    if failed.is_empty() {
        println!("check: {} steps, all well", done.len());
        return Ok(());
    }
    Err(format!("check: {} of {} steps failed: {}", failed.len(), done.len(), failed.join("; ")))
}
