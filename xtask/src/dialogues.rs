//! `cargo xtask interop --dialogues`: the dialogue scripts with a Linux kernel as one of their nodes, and what it does otherwise
//! compared with `crates/tests/rig/linux-differs.txt`. One boot of the guest serves all plays.

use crate::process::{self, Outcome, cargo};
use std::path::Path;
use std::process::Command;

/// Builds what plays, and plays in the rig of `rig`, whose guest is in `work`. `rows`: print rows for the table.
pub fn run(rig: &Path, work: &Path, folder: &Path, only: &[String], rows: bool) -> Outcome {
    process::step("the player", || {
        process::run(cargo().args(["build", "--quiet", "--package", "scalefabric-tests", "--bin", "dialogues"]))
    })?;
    let stage = work.join("rigstage");
    process::step("the guest's program", || {
        process::run(
            Command::new("gcc").args(["-O2", "-Wall", "-o"]).arg(&stage).arg(rig.join("rigstage.c")).arg("-libverbs"),
        )
    })?;
    process::step("dialogues", || {
        process::run(
            Command::new("bash")
                .arg(rig.join("boot.sh"))
                .args(["run", "-n", "1", "-m", "4500"])
                .arg(rig.join("dialogues.sh"))
                .env("RIG_WORK", work)
                .env("RIG_NAME", format!("rig-d{}", std::process::id()))
                .env("DIALOGUES", folder.join("debug/dialogues"))
                .env("RIGSTAGE", &stage)
                .env("ROWS", if rows { "1" } else { "" })
                .env("ONLY", only.join(" ")),
        )
    })
}
