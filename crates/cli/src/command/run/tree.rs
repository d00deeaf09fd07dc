//! The folder in which the program and its children will see the RDMA devices' files. Here it gets its name only; the
//! library makes it when a program looks for one of those files, and the program removes it at its end. Folders of programs
//! that were killed are removed here.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What every such folder's name begins with; user and process follow.
const PREFIX: &str = "scalefabric-";

/// A name for this process, which becomes the program: in memory if there is a place, and where only this user can write.
pub fn announce() -> Option<PathBuf> {
    let user = fs::metadata("/proc/self").ok()?.uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime =
        runtime.filter(|path| path.is_absolute() && fs::metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == user));
    let shared = Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir());
    let base = runtime.or(shared).unwrap_or_else(std::env::temp_dir);
    sweep(&base, user);
    Some(base.join(format!("{PREFIX}{user}-{}", std::process::id())))
}

/// Removes what programs left that are gone.
fn sweep(base: &Path, user: u32) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if process(&name, user).is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
            && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user)
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that a folder of this user belongs to.
fn process(name: &OsStr, user: u32) -> Option<u32> {
    let (owner, process) = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?;
    let process = process.parse().ok()?;
    (owner.parse() == Ok(user)).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_programs_that_are_gone_are_removed_and_others_stay() {
        let base = std::env::temp_dir().join(format!("sfab-tree-{}", std::process::id()));
        let user = fs::metadata("/proc/self").unwrap().uid();
        let gone = base.join(format!("{PREFIX}{user}-{}", u32::MAX));
        let living = base.join(format!("{PREFIX}{user}-{}", std::process::id()));
        let other = base.join("scalefabric-notes");
        for folder in [&gone, &living, &other] {
            fs::create_dir_all(folder.join("sys")).unwrap();
        }
        sweep(&base, user);
        let there = [&gone, &living, &other].map(|folder| folder.exists());
        fs::remove_dir_all(&base).unwrap();
        assert_eq!(there, [false, true, true]);
    }
}
