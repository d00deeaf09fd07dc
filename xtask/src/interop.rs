//! `cargo xtask interop`: the software NIC and a Linux kernel's rxe talk to one another, both ways round, in a rig of one
//! virtual machine and one network namespace (`crates/tests/rig`). Needs root and a Debian 12 host, whose packages the rig
//! installs; the rest of the tests does not need it.

use crate::dialogues;
use crate::machine;
use crate::process::{self, Outcome, cargo, root};
use clap::Args;
use std::process::Command;

/// Options of `interop`.
#[derive(Args)]
pub struct Options {
    /// Only these subjects, such as `rc-send uc contract`; default all.
    subjects: Vec<String>,
    /// The dialogue scripts instead, with Linux as one of their nodes; `subjects` are words of their names.
    #[arg(long)]
    dialogues: bool,
    /// With `--dialogues`: print every difference as the beginning of a row for `linux-differs.txt`, and excuse it.
    #[arg(long, requires = "dialogues")]
    rows: bool,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    if !machine::is_root() {
        return Err("the rig makes a tap and network namespaces: run it as root".to_owned());
    }
    let rig = root().join("crates/tests/rig");
    let folder = process::target_folder()?;
    let work = folder.join("rig");
    std::fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    process::step("the guest: a Debian kernel and a small root file system", || {
        process::run(Command::new("bash").arg(rig.join("build-image.sh")).env("RIG_WORK", &work))
    })?;
    if options.dialogues {
        return dialogues::run(&rig, &work, &folder, &options.subjects, options.rows);
    }
    process::step("the software NIC's program, and the contract's tests", || {
        process::run(cargo().args([
            "build",
            "--release",
            "--quiet",
            "--package",
            "scalefabric-tests",
            "--bin",
            "rigpeer",
            "--bin",
            "contract",
        ]))
    })?;
    process::step("conversations", || {
        process::run(
            Command::new("bash")
                .arg(rig.join("boot.sh"))
                .args(["run", "-n", "1", "-p", "1"])
                .arg(rig.join("interop.sh"))
                .env("RIG_WORK", &work)
                .env("RIG_NAME", format!("rig-{}", std::process::id()))
                .env("RIGPEER", folder.join("release/rigpeer"))
                .env("CONTRACT", folder.join("release/contract"))
                .env("GOLDEN", root().join("crates/tests/golden/rxe"))
                .env("ONLY", options.subjects.join(" ")),
        )
    })
}
