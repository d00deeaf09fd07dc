//! `cargo xtask interop`: tests with real peers. Not part of this version; the command exists so that it says so.

use crate::process::Outcome;

/// The command.
pub fn run() -> Outcome {
    Err("tests with live peers (Linux rxe in a virtual machine) come with a later version. Until then the captures in \
         crates/tests/golden, made by a Linux kernel, are the referee: `cargo test -p scalefabric-wire`"
        .to_owned())
}
