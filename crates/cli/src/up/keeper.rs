//! The keeper: a process that outlives `sfab up` by a moment. It is told of every process, namespace and folder; when its input ends, however its parent has ended, it
//! removes what is left of them. A process is held by a descriptor, so that another one of the same number is never meant.

use crate::failure::{During, Failure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long a process that was killed may take to be gone, s.
const GRACE_S: i64 = 10;

/// What a folder of ours is called, before the number of its process.
pub const FOLDER: &str = "sfab-up-";
/// What a namespace of ours is called, before the number of its process.
pub const NAMESPACE: &str = "sfab-up-";

/// What the keeper is told, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Charge {
    /// A process.
    Process(u32),
    /// A network namespace, by its name.
    Namespace(String),
    /// A folder with all that is in it.
    Folder(PathBuf),
}

impl std::fmt::Display for Charge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::Folder(path) => write!(f, "folder {}", path.display()),
        }
    }
}

impl Charge {
    /// `None`: it is nothing that this version keeps. Only what is called as ours is, is ever removed.
    fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "process" => Some(Self::Process(rest.parse().ok()?)),
            "namespace" if rest.starts_with(NAMESPACE) => Some(Self::Namespace(rest.into())),
            "folder" if is_ours(Path::new(rest)) => Some(Self::Folder(rest.into())),
            _ => None,
        }
    }
}

fn is_ours(folder: &Path) -> bool {
    folder.is_absolute()
        && folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER))
        && folder.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// Runs until its input ends, then sweeps.
pub fn run() -> Result<(), Failure> {
    let (mut processes, mut rest) = (Vec::new(), Vec::new());
    for line in std::io::stdin().lock().lines() {
        let line = line.during(|| "read what is to be kept")?;
        match Charge::parse(&line) {
            Some(Charge::Process(pid)) => processes.extend(hold(pid)),
            Some(charge) => rest.push(charge),
            None => return Err(Failure::usage(format!("`{line}` is nothing that is kept"))),
        }
    }
    end(&processes);
    rest.iter().for_each(remove);
    Ok(())
}

/// A process, as long as it is ours to end. One that has ended is nobody.
fn hold(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Ends processes, and waits until they have ended.
fn end(processes: &[OwnedFd]) {
    for process in processes {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    for process in processes {
        let limit = Timespec { tv_sec: GRACE_S, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
    }
}

/// Removes a namespace or a folder. What is gone already is gone.
pub fn remove(charge: &Charge) {
    match charge {
        Charge::Process(_) => {}
        Charge::Namespace(name) => {
            let mut command = Command::new("ip");
            let _ = command.args(["netns", "delete", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        Charge::Folder(folder) => {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Removes what earlier ones left behind that were killed together with their keepers: folders and namespaces whose process is gone.
pub fn remove_orphans(folders: &Path) {
    let orphans = |parent: &Path, prefix: &'static str| {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(move |name| {
            let rest = name.strip_prefix(prefix).unwrap_or_default();
            let pid: String = rest.chars().take_while(char::is_ascii_digit).collect();
            !pid.is_empty() && !Path::new("/proc").join(pid).exists()
        })
    };
    for name in orphans(Path::new("/run/netns"), NAMESPACE) {
        remove(&Charge::Namespace(name));
    }
    for name in orphans(folders, FOLDER) {
        let folder = folders.join(name);
        if is_ours(&folder) {
            remove(&Charge::Folder(folder));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood_and_what_is_not_ours_is_never_removed() {
        let folder = std::env::temp_dir().join(format!("{FOLDER}{}-keeper-test", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for charge in
            [Charge::Process(7), Charge::Namespace(format!("{NAMESPACE}7-n1")), Charge::Folder(folder.clone())]
        {
            assert_eq!(Charge::parse(&charge.to_string()), Some(charge));
        }
        for line in ["folder /home", "folder /", "folder sfab-up-7", "namespace prod", "process x", ""] {
            assert_eq!(Charge::parse(line), None, "{line}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_process_that_is_held_is_ended_and_waited_for() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let held = hold(child.id()).expect("it is there");
        end(&[held]);
        assert!(child.try_wait().expect("wait").is_some());
    }

    #[test]
    fn only_folders_of_processes_that_are_gone_are_orphans() {
        let parent = std::env::temp_dir().join(format!("sfab-orphans-{}", std::process::id()));
        let own = parent.join(format!("{FOLDER}{}", std::process::id()));
        // Numbers of processes end below 4194304.
        let gone = parent.join(format!("{FOLDER}99999999"));
        let other = parent.join("something");
        for folder in [&own, &gone, &other] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        remove_orphans(&parent);
        assert!(own.exists() && other.exists() && !gone.exists());
        std::fs::remove_dir_all(&parent).expect("removed");
    }
}
