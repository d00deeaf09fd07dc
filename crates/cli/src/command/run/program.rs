//! The program that `sfab run` was told: its file, found as a shell finds it, and whether libraries can be put beneath it.

use super::elf::{self, Elf, Kind};
use crate::failure::Failure;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts whose interpreter is a script, and so on: Linux follows as many.
const SCRIPTS: usize = 4;

/// A program that can be run.
#[derive(Debug)]
pub struct Program {
    /// What to execute: what was named.
    pub file: PathBuf,
    /// The ELF file the loader will load: the program, or a script's interpreter.
    pub elf_file: PathBuf,
    /// What it says.
    pub elf: Elf,
}

/// Finds the program, or says in one sentence why it cannot be run on the software NIC. `alone`: statically linked
/// programs are refused, since they cannot use the libraries.
pub fn find(name: &OsStr, alone: bool) -> Result<Program, Failure> {
    let file = locate(name).ok_or_else(|| {
        Failure::usage(if name.as_bytes().contains(&b'/') {
            format!("there is no program {}", name.display())
        } else {
            format!("program {} not found: it is in no folder of PATH", name.display())
        })
    })?;
    let mut at = file.clone();
    for _ in 0..=SCRIPTS {
        check_file(&at)?;
        let kind = elf::read(&at).map_err(|e| Failure::usage(format!("{} cannot be read: {e}", at.display())))?;
        match kind {
            Kind::Script(interpreter, argument) => at = interpreter_of(&at, &interpreter, argument.as_deref())?,
            Kind::Elf(elf) => {
                check_elf(&at, &elf, alone)?;
                return Ok(Program { file, elf_file: at, elf });
            }
            Kind::Foreign(machine) => {
                let own = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
                return Err(Failure::usage(format!(
                    "{} is a program for {machine}: the libraries of the software NIC are for {own} (64 bits)",
                    at.display()
                )));
            }
            Kind::Other => {
                return Err(Failure::usage(format!(
                    "{} is neither an ELF program nor a script with a #! line",
                    at.display()
                )));
            }
        }
    }
    Err(Failure::usage(format!("{}: too many scripts that are each other's interpreter", file.display())))
}

/// As `execvp` finds it.
fn locate(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.exists());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let candidates: Vec<PathBuf> =
        std::env::split_paths(&path).map(|folder| folder.join(name)).filter(|path| path.is_file()).collect();
    candidates.iter().find(|path| is_executable(path)).or(candidates.first()).cloned()
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.permissions().mode() & 0o111 != 0)
}

/// The interpreter of a script; `env` is looked through.
fn interpreter_of(script: &Path, interpreter: &str, argument: Option<&str>) -> Result<PathBuf, Failure> {
    let path = Path::new(interpreter);
    if !path.exists() {
        return Err(Failure::usage(format!("{}: its interpreter {interpreter} is not there", script.display())));
    }
    let through = argument.filter(|_| path.file_name() == Some(OsStr::new("env")));
    let words = through.into_iter().flat_map(str::split_whitespace);
    let named = words.into_iter().find(|word| !word.starts_with('-') && !word.contains('='));
    match named {
        Some(name) => locate(OsStr::new(name)).ok_or_else(|| {
            Failure::usage(format!("{}: its interpreter {name} is in no folder of PATH", script.display()))
        }),
        None => Ok(path.to_path_buf()),
    }
}

fn check_file(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let metadata = path.metadata().map_err(|e| Failure::usage(format!("{shown}: {e}")))?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{shown} is a folder, not a program")));
    }
    if !is_executable(path) {
        return Err(Failure::usage(format!("{shown} is not executable: chmod +x {shown}")));
    }
    let status = Identity::own().map_err(|e| Failure::failed(format!("/proc/self/status: {e}")))?;
    let changes_user = metadata.mode() & 0o4000 != 0 && metadata.uid() != status.user;
    // Without the group's execute bit, set-group-ID means something else.
    let changes_group = metadata.mode() & 0o2010 == 0o2010 && metadata.gid() != status.group;
    if changes_user || changes_group {
        let which = if changes_user { "set-user-ID" } else { "set-group-ID" };
        return Err(Failure::usage(format!(
            "{shown} is {which}: the loader lets no library be put beneath such a program; run a copy without that bit"
        )));
    }
    if status.user != 0 && has_capabilities(path) {
        return Err(Failure::usage(format!(
            "{shown} has file capabilities: the loader lets no library be put beneath such a program; run a copy without them"
        )));
    }
    Ok(())
}

/// Who we are, without unsafe code.
struct Identity {
    user: u32,
    group: u32,
}

impl Identity {
    fn own() -> io::Result<Self> {
        let text = std::fs::read_to_string("/proc/self/status")?;
        // Real, effective, saved, file system.
        let effective = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().nth(1)).and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        Ok(Self { user: effective("Uid:"), group: effective("Gid:") })
    }
}

/// True if the file has the extended attribute `security.capability`.
fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: two C strings; no buffer is given, so only the length comes back.
    let len = unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    len > 0
}

fn check_elf(path: &Path, elf: &Elf, alone: bool) -> Result<(), Failure> {
    let shown = path.display();
    let inside = if elf.has_verbs_inside { ", libibverbs included" } else { "" };
    match &elf.interpreter {
        None if alone || elf.has_verbs_inside => Err(Failure::usage(format!(
            "{shown} is statically linked{inside}: no library can be put beneath it; link it dynamically"
        ))),
        Some(_) if elf.has_verbs_inside => Err(Failure::usage(format!(
            "{shown} has libibverbs linked into it statically: it cannot be replaced; link libibverbs dynamically"
        ))),
        Some(loader) if Path::new(loader).file_name().is_some_and(|n| n.as_bytes().starts_with(b"ld-musl")) => {
            Err(Failure::usage(format!("{shown} uses musl: the libraries of the software NIC need glibc")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str) -> String {
        find(OsStr::new(name), true).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_run_is_refused_in_one_sentence() {
        assert!(refused("no-such-program-here").contains("PATH"));
        assert!(refused("/no/such/file").contains("there is no program"));
        assert!(refused("/tmp").contains("folder"));
        assert!(refused("/etc/passwd").contains("not executable"));
    }

    #[test]
    fn a_script_leads_to_the_interpreter_that_env_finds() {
        let path = std::env::temp_dir().join(format!("sfab-script-{}", std::process::id()));
        std::fs::write(&path, "#!/usr/bin/env sh\ntrue\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let program = find(path.as_os_str(), true);
        std::fs::remove_file(&path).unwrap();
        let program = program.unwrap();
        assert_eq!(program.file, path);
        assert!(program.elf_file.ends_with("sh") && program.elf.interpreter.is_some(), "{program:?}");
    }
}
