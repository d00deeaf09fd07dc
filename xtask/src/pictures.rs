//! `cargo xtask pictures`: writes the pictures of the dashboard into `docs/pictures`, from Debian's Chromium over a fabric that is played. It looks at the page for some
//! minutes, so that the time line has something to show; whoever commits a picture has looked at it.

use crate::machine;
use crate::process::{self, Outcome, cargo, root};
use clap::Args;

/// Largest picture, bytes.
const LARGEST: u64 = 100 * 1024;
/// Those that the documentation shows; the others are only to be looked at.
const KEPT: &[&str] = &["topology.png", "topology-512-dark.png"];

/// Options of `pictures`.
#[derive(Args)]
pub struct Options {
    /// How long the time line is filled, seconds.
    #[arg(long, default_value_t = 150)]
    seconds: u64,
    /// Where all of them go; default: those that the documentation shows, into docs/pictures.
    #[arg(long)]
    folder: Option<std::path::PathBuf>,
    /// Install no packages; say what is missing.
    #[arg(long)]
    no_install: bool,
}

/// The command.
pub fn run(options: &Options) -> Outcome {
    for sentence in machine::prepare(!options.no_install) {
        println!("    {sentence}");
    }
    let folder = match &options.folder {
        Some(folder) => std::path::absolute(folder).map_err(|error| format!("{}: {error}", folder.display()))?,
        None => process::target_folder()?.join("pictures"),
    };
    let failed = |path: &std::path::Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    let mut test = cargo();
    test.args([
        "test",
        "--quiet",
        "--package",
        "scalefabric-tests",
        "--test",
        "dashboard",
        "--",
        "--ignored",
        "--exact",
    ]);
    test.args(["pictures", "--nocapture"]).env("SFAB_PICTURES", &folder);
    test.env("SFAB_PICTURES_SECONDS", options.seconds.to_string());
    process::run(&mut test)?;
    if options.folder.is_some() {
        return Ok(());
    }
    for name in KEPT {
        let (from, to) = (folder.join(name), root().join("docs/pictures").join(name));
        let size = std::fs::metadata(&from).map_err(|error| failed(&from, error))?.len();
        if size > LARGEST {
            return Err(format!("{name} has {size} bytes, more than {LARGEST}: make the page of its test smaller"));
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        }
        std::fs::copy(&from, &to).map_err(|error| failed(&to, error))?;
    }
    Ok(())
}
