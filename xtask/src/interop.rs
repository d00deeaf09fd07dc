//! `cargo xtask interop`: the software NIC and a Linux kernel's rxe talk to one another, both ways round, in a rig of one
//! virtual machine and one network namespace (`crates/tests/rig`): first with a program that says exactly what is asked of
//! it, then with the programs of Debian on both ends, ours under `sfab run`. Needs root and a Debian 12 host, whose packages
//! the rig installs; the rest of the tests does not need it.

use crate::dialogues;
use crate::machine;
use crate::process::{self, Outcome, cargo, root};
use clap::Args;
use std::path::Path;
use std::process::Command;

/// Options of `interop`.
#[derive(Args)]
pub struct Options {
    /// Only these, such as `rc-send v6-rc contract` or (beginnings of) programs, `rping ib_write_bw-loss`; default all.
    names: Vec<String>,
    /// A few of each kind: what every change must pass.
    #[arg(long)]
    short: bool,
    /// The dialogue scripts instead, with Linux as one of their nodes; `names` are words of their names.
    #[arg(long)]
    dialogues: bool,
    /// With `--dialogues`: print every difference as the beginning of a row for `linux-differs.txt`, and excuse it.
    #[arg(long, requires = "dialogues")]
    rows: bool,
}

/// Subjects of the short part.
const SHORT: &str = "rc-send rc-write-imm rc-read rc-atomic rc-psn-wrap rc-nak-access uc v6-ud";

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
        return dialogues::run(&rig, &work, &folder, &options.names, options.rows);
    }
    process::step("the software NIC's programs, and the contract's tests", || {
        let mut build = cargo();
        build.args(["build", "--release", "--quiet", "--package", "scalefabric-tests"]);
        build.args(["--bin", "rigpeer", "--bin", "contract"]);
        process::run(&mut build)?;
        crate::products::build(false)
    })?;
    let conversations = |mtu: &str| process::run(&mut rigged(&rig, &work, &folder, mtu, options));
    process::step("conversations", || conversations("1500"))?;
    if !options.short {
        process::step("conversations with large packets", || conversations("9000"))?;
    }
    Ok(())
}

/// The rig with a cable of that MTU, and what is said over it.
fn rigged(rig: &Path, work: &Path, folder: &Path, mtu: &str, options: &Options) -> Command {
    let mut command = Command::new("bash");
    command.arg(rig.join("boot.sh")).args(["run", "-n", "1", "-p", "1", "-m", mtu]).arg(rig.join("conversations.sh"));
    command.env("RIG_WORK", work).env("RIG_NAME", format!("rig-{}", std::process::id()));
    command.env("RIGPEER", folder.join("release/rigpeer")).env("SFAB", folder.join("release/sfab"));
    command.env("CONTRACT", folder.join("release/contract"));
    command.env("GOLDEN", root().join("crates/tests/golden/rxe")).env("MTU", mtu);
    let all = options.names.join(" ");
    let subjects = if options.short && all.is_empty() { SHORT } else { &all };
    command.env("SUBJECTS", subjects).env("PROGRAMS", &all).env("SHORT", if options.short { "1" } else { "" });
    command
}
