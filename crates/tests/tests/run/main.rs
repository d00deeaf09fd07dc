//! `sfab run` and the libraries it puts beneath a program: what the program keeps, what is refused, which names the
//! libraries have, and what programs that use them in unusual ways see. Programs are small, in C, and compiled here.

mod door;
mod files;
mod names;
mod newer;
mod processes;
mod program;
mod ways;

use scalefabric_tests::Folder;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles a program or a library in a folder; `options` come last.
pub fn cc(folder: &Folder, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (text, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&text, source).unwrap();
    let output = Command::new("cc").arg("-w").arg("-o").arg(&binary).arg(&text).args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    binary
}

/// `sfab`, or the reason to skip, told.
pub fn sfab() -> Option<&'static Path> {
    scalefabric_tests::products::sfab().map_err(|why| println!("skipped: {why}")).ok()
}

/// Runs a program by `sfab run` with these options.
pub fn run(sfab: &Path, options: &[&str], program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Output {
    let mut command = Command::new(sfab);
    command.arg("run").args(options).arg("--").arg(program).args(arguments).output().unwrap()
}

/// Its standard output, if it ended with 0.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// True if the program text is there to be compiled against.
pub fn has_headers() -> bool {
    let there = Path::new("/usr/include/infiniband/verbs.h").exists() && Path::new("/usr/bin/ibv_devices").exists();
    if !there {
        println!(
            "skipped: the headers of libibverbs are missing; install the packages libibverbs-dev and ibverbs-utils"
        );
    }
    there
}
