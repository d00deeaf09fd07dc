//! Programs in C, compiled here against the installed headers and run on the library that preloading would give them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The static library of this crate, beside the tests' folder.
fn archive() -> Option<PathBuf> {
    let deps = std::env::current_exe().ok()?.parent()?.to_owned();
    let plain = deps.parent()?.join("libscalefabric_preload.a");
    let mut all: Vec<PathBuf> = std::fs::read_dir(&deps).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
    let named = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libscalefabric_preload") && name.ends_with(".a")
    };
    all.retain(|path| named(path));
    all.push(plain);
    all.into_iter().max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
}

fn tmp(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// The library, linked once; or why there is none.
fn library() -> &'static Result<PathBuf, String> {
    static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let archive = archive().filter(|path| path.exists()).ok_or("cargo built no static library")?;
        let library = tmp("libpreload-for-tests.so");
        let mut link = Command::new("cc");
        link.args(["-shared", "-Wl,-z,nodelete", "-Wl,--whole-archive"]).arg(&archive).arg("-Wl,--no-whole-archive");
        link.args(["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc", "-o"]).arg(&library);
        run(&mut link)?;
        Ok(library)
    })
}

fn program(name: &str) {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: {name}: the headers of libibverbs are not installed (libibverbs-dev)");
        return;
    }
    let library = library().as_ref().expect("the library links");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/verbs/{name}.c"));
    let binary = tmp(name);
    let mut compile = Command::new("cc");
    compile.args(["-g", "-Wall", "-Wno-unused-function", "-o"]).arg(&binary).arg(&source);
    run(compile.args(["-libverbs", "-lpthread"])).expect("the program compiles");
    // Between queue pairs of one host, requests wait in a queue only if they go by packets.
    for path in ["auto", "wire"] {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&binary).env("LD_PRELOAD", library).env("SCALEFABRIC_EXPLAIN", "1");
        run(command.env("SCALEFABRIC_PATH", path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

#[test]
fn the_new_way_to_post_and_the_extended_cq() {
    program("extended");
}

#[test]
fn nonsense_gets_an_errno() {
    program("mistakes");
}

#[test]
fn events_are_counted_and_waited_for() {
    program("events");
}

#[test]
fn who_closes_every_number_closes_none_of_the_nic() {
    program("descriptors");
}
