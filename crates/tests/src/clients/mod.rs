//! Real programs on the software NIC: the cases of `crates/tests/clients/*.toml`, each a server and a client (or a
//! script) that `sfab run` starts, in one or both of two layouts. A case says what must be in the output and with what
//! the programs must end; it is data, and the page docs/clients.md is made of it. Nothing here knows a program by name.
//!
//! - `case`: what a case is, how templates become cases, placeholders.
//! - `layout`: two processes on one device, or two network namespaces and a cable.
//! - `side`: a started program: its output, when it is ready, how it is ended.
//! - `run`: one case from start to verdict.
//! - `judge`: what the outputs must show.
//! - `pyverbs`: the tests of rdma-core, and which of them may be skipped.
//! - `page`: the table in docs/clients.md.

pub mod case;
pub mod judge;
pub mod layout;
pub mod page;
pub mod pyverbs;
pub mod run;
pub mod side;

use std::path::{Path, PathBuf};

/// The folder with the cases and their scripts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}
