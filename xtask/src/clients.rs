//! `cargo xtask clients`: real verbs programs on the software NIC, between two processes and between two network
//! namespaces. It builds the products and starts the binary `clients` of crate `tests`, which has the cases.

use crate::process::{self, Outcome, cargo};
use crate::totals::{Totals, clients_line};
use clap::Args;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of `clients`.
#[derive(Args)]
pub struct Options {
    /// Only cases whose `name@layout` begins with one of these; default all.
    names: Vec<String>,
    /// Print the names of the cases and end.
    #[arg(long)]
    list: bool,
    /// Print the results as JSON, a line for each case.
    #[arg(long)]
    json: bool,
    /// Write the tables of docs/clients.md and end.
    #[arg(long)]
    page: bool,
    /// Use the products of target/debug.
    #[arg(long)]
    debug: bool,
    /// Cases at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Multiplies the seconds a case may take, for a busy machine.
    #[arg(long, default_value_t = 1)]
    patience: u64,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    if !options.list && !options.page {
        build(options.debug)?;
    }
    let mut command = program(options.debug)?;
    command.args(&options.names);
    for (wanted, word) in [(options.list, "--list"), (options.json, "--json"), (options.page, "--page")] {
        if wanted {
            command.arg(word);
        }
    }
    command.args(["--jobs", &options.jobs.to_string(), "--patience", &options.patience.to_string()]);
    process::run(&mut command)
}

/// All cases, as a part of `cargo xtask test`.
pub fn test() -> Totals {
    println!("==> cargo xtask clients");
    let failed = |message: String| {
        println!("    FAILED: {message}");
        Totals { failed: 1, ..Totals::default() }
    };
    let started = build(false).and_then(|()| program(false)).and_then(|mut command| {
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("the cases could not be started: {error}"))
    });
    let mut child = match started {
        Ok(child) => child,
        Err(message) => return failed(message),
    };
    let mut totals = None;
    for text in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok))
    {
        totals = totals.or_else(|| clients_line(&text));
        println!("{text}");
    }
    match (child.wait(), totals) {
        (Ok(_), Some(totals)) => totals,
        (ended, _) => failed(format!("the cases did not come to their end: {ended:?}")),
    }
}

fn build(debug: bool) -> Outcome {
    crate::products::build(debug)?;
    provide_pyverbs(&scratch()?);
    Ok(())
}

/// The binary `clients` with where everything is.
fn program(debug: bool) -> Result<Command, String> {
    process::run(cargo().args(["build", "--quiet", "--package", "scalefabric-tests", "--bin", "clients"]))?;
    let target = process::target_folder()?;
    let mut command = Command::new(target.join("debug/clients"));
    command.arg("--sfab").arg(target.join(if debug { "debug" } else { "release" }).join("sfab"));
    command.arg("--scratch").arg(scratch()?);
    Ok(command)
}

fn scratch() -> Result<PathBuf, String> {
    Ok(process::target_folder()?.join("clients"))
}

/// Images of Debian for containers leave documents out, and the tests of python3-pyverbs are among them: then the
/// package is fetched once more and unpacked here. Without network its cases are skipped.
fn provide_pyverbs(scratch: &Path) {
    let there = |root: &Path| root.join("usr/share/doc/rdma-core/tests/run_tests.py").is_file();
    let package = scratch.join("package");
    let installed = Path::new("/usr/lib/python3/dist-packages/pyverbs").is_dir();
    if there(Path::new("/")) || there(&package) || !installed || std::fs::create_dir_all(&package).is_err() {
        return;
    }
    let line = "apt-get -qq -o APT::Sandbox::User=root download python3-pyverbs && dpkg -x python3-pyverbs_*.deb .";
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(&package).stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(message) = process::run(&mut command) {
        println!("    the tests of python3-pyverbs could not be fetched: {message}");
    }
}
