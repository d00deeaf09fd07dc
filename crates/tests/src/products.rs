//! The products of `cargo xtask build`, for tests that start programs with them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds them without optimisation, once in a test's process, and gives `sfab`; its libraries stand beside it. A machine
/// without a C compiler gives the reason to skip.
pub fn sfab() -> Result<&'static Path, String> {
    static SFAB: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    SFAB.get_or_init(build).as_deref().map_err(Clone::clone)
}

/// The folder of the libraries.
pub fn libraries() -> Result<PathBuf, String> {
    Ok(sfab()?.with_file_name("scalefabric"))
}

fn build() -> Result<PathBuf, String> {
    if Command::new("cc").arg("--version").output().is_err() {
        return Err("cc is missing: the products cannot be linked; install the package gcc".to_owned());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(&root)
        .args(["run", "--quiet", "--package", "scalefabric-xtask", "--", "build", "--debug"])
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "cargo xtask build: {}", String::from_utf8_lossy(&built.stderr));
    // This test stands in target/debug/deps.
    let own = std::env::current_exe().expect("a test knows its file");
    let folder = own.ancestors().find(|folder| folder.join("scalefabric").is_dir());
    Ok(folder.expect("the products stand beside the tests").join("sfab"))
}
