//! Starting programs: one place for how a command is shown, how its failure is told, and where the repository is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What a step of a developer command gives: nothing, or a sentence that says what is wrong and what to do.
pub type Outcome = Result<(), String>;

/// The root of the repository: the folder above `xtask`.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// `cargo` as it called us, in the root of the repository, with no input.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut line = program.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

/// Runs it with our output; fails unless it exits with 0.
pub fn run(command: &mut Command) -> Outcome {
    let line = shown(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` ended with {status}")),
        Err(error) => Err(format!("`{line}` could not be started: {error}")),
    }
}

/// Runs it and gives its standard output as text.
pub fn output(command: &mut Command) -> Result<String, String> {
    let line = shown(command);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|e| format!("`{line}` could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("`{line}` ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{line}` printed bytes that are not UTF-8"))
}

/// Announces a step, runs it, says how long it took.
pub fn step(name: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    println!("==> {name}");
    let started = Instant::now();
    let outcome = work();
    let seconds = started.elapsed().as_secs_f64();
    match &outcome {
        Ok(()) => println!("    ok: {name} ({seconds:.1} s)"),
        Err(message) => println!("    FAILED: {name} ({seconds:.1} s): {message}"),
    }
    outcome
}

/// Where cargo puts what it builds.
pub fn target_folder() -> Result<PathBuf, String> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps", "--quiet"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(metadata["target_directory"].as_str().map_or_else(|| root().join("target"), PathBuf::from))
}
