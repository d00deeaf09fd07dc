//! `cargo xtask interop`: the software NIC against a Linux kernel with Soft-RoCE, in both directions.
//!
//! Boots Debian's stock kernel in a small virtual machine (QEMU without KVM) whose network card hangs on a bridge in a
//! namespace of its own, and runs `crates/tests/rig/interop.sh` there. Needs root and a Debian host; installs by itself
//! what the rig's head names. Nothing outside the namespaces is touched.

use std::process::Command;

use clap::Args;

use crate::process::{self, Outcome, cargo, root};

/// Options of `interop`.
#[derive(Args)]
pub struct Options {
    /// Subjects to run, such as `rc-send`; all of them without.
    subjects: Vec<String>,
    /// MTU of the bridge and the guest's card.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    let tests = root().join("crates/tests");
    let rig = tests.join("rig");
    let work = root().join("target/rig");
    std::fs::create_dir_all(&work).map_err(|e| format!("{} cannot be made: {e}", work.display()))?;
    process::step("the NIC's side", || {
        process::run(cargo().args(["build", "--package", "scalefabric-tests", "--bin", "rigpeer"]))
    })?;
    process::step("the guest's kernel and programs", || {
        process::run(Command::new(rig.join("build-image.sh")).env("RIG_WORK", &work))
    })?;
    process::step("both directions", || {
        process::run(
            Command::new(rig.join("boot.sh"))
                .args(["run", "-n", "1", "-p", "1", "-m", &options.mtu.to_string()])
                .arg(rig.join("interop.sh"))
                .env("RIG_WORK", &work)
                .env("RIG_NAME", format!("rig{}", std::process::id()))
                .env("RIGPEER", root().join("target/debug/rigpeer"))
                .env("GOLDEN", tests.join("golden/rxe"))
                .env("ONLY", options.subjects.join(" ")),
        )
    })
}
