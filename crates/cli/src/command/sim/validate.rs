//! `sfab sim validate`: whether this build of the simulator agrees with what is known.

use crate::failure::Failure;
use crate::terminal::{print, say};
use clap::Args;
use scalefabric_sim::fabric::validate::{Scope, groups, table};

/// Compares the simulator with closed forms, with a reference simulator and with published curves.
#[derive(Args)]
#[command(after_help = "Exit code 1 if a check disagrees. Without --long it takes some seconds in a release build.")]
pub struct Options {
    /// Also what takes minutes: published curves on a fat tree of 320 hosts
    #[arg(long)]
    long: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let (mut total, mut wrong) = (0, 0);
    for (name, make) in groups(Scope { long: options.long }) {
        let checks = make().map_err(|error| Failure::failed(format!("{name}: {error}")))?;
        print(format_args!("{}", table(&checks)));
        total += checks.len();
        wrong += checks.iter().filter(|check| !check.agrees()).count();
    }
    say!("{total} checks, {wrong} differ");
    if wrong == 0 { Ok(()) } else { Err(Failure::failed(format!("{wrong} of {total} checks differ"))) }
}
