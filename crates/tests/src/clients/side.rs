//! One started program. Its output goes to a file. It leads a process group of its own and is ended by that group's
//! number. It is at rest when all its threads sleep and its first one has used no processor for a while: true of every server
//! that waits, however busy the machine is, since a thread that waits for a processor does not sleep. Whether it listens is
//! seen as well.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A program, running or ended.
#[derive(Debug)]
pub struct Side {
    child: Child,
    output: PathBuf,
    status: Option<ExitStatus>,
}

const SAMPLE: Duration = Duration::from_millis(20);

impl Side {
    /// Starts a shell line.
    pub fn start(line: &str, environment: &[(String, String)], folder: &Path, output: PathBuf) -> Result<Self, String> {
        let file = File::create(&output).map_err(|error| format!("{}: {error}", output.display()))?;
        let copy = file.try_clone().map_err(|error| format!("{}: {error}", output.display()))?;
        let mut command = Command::new("sh");
        command.args(["-c", line]).envs(environment.iter().map(|(name, value)| (name, value))).current_dir(folder);
        command.stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        // SAFETY: a plain system call between fork and exec, which allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // It dies with the thread that runs its case, however that ends.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let child = command.spawn().map_err(|error| format!("`{line}` could not be started: {error}"))?;
        Ok(Self { child, output, status: None })
    }

    /// What it printed so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Waits until `program` has started and was at rest for `looks` samples; or it has ended, or `end`.
    pub fn settle(&mut self, program: &str, looks: u32, end: Instant) {
        let (mut before, mut same) = (0, 0);
        while same < looks && Instant::now() < end && self.has_ended().is_none() {
            std::thread::sleep(SAMPLE);
            let Some((name, state, used)) = self.look() else { return };
            let started = program.as_bytes().starts_with(name.as_bytes()) && !name.is_empty();
            same = if started && state == 'S' && used == before && self.all_sleep() { same + 1 } else { 0 };
            before = used;
        }
    }

    /// True if somebody listens on a TCP port, or waits for datagrams on a UDP port, in the network namespace that it is in.
    pub fn listens(&self, port: u16) -> bool {
        /// TCP_LISTEN, and TCP_CLOSE, which a UDP socket without a peer shows.
        const LISTENS: [(&str, &str); 4] = [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")];
        let port = format!(":{port:04X}");
        LISTENS.iter().any(|(table, state)| {
            let text = std::fs::read_to_string(format!("/proc/{}/net/{table}", self.child.id())).unwrap_or_default();
            text.lines().skip(1).any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let local = words.next().is_some_and(|local| local.ends_with(&port));
                local && words.nth(1) == Some(*state)
            })
        })
    }

    /// True if none of its threads waits for a processor.
    fn all_sleep(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.child.id())) else { return false };
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('S'))
        })
    }

    /// Name, state and processor time in nanoseconds of its first thread.
    fn look(&self) -> Option<(String, char, u64)> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).ok();
        let (stat, schedule) = (read("stat")?, read("schedstat")?);
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let used = schedule.split_whitespace().next()?.parse().ok()?;
        Some((name, rest.trim_start().chars().next()?, used))
    }

    /// Its status, if it has ended.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits for its end; false if it is still there at `end`.
    pub fn wait(&mut self, end: Instant) -> bool {
        while self.has_ended().is_none() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, name: &str) {
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-s", name, "--", &group]).stderr(Stdio::null()).status();
    }

    /// The way it ended, as a shell tells it: its exit code, or 128 and the signal's number.
    pub fn code(&mut self) -> Option<i32> {
        let status = self.has_ended()?;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // What it started may outlive it: the group is ended in any case.
        self.signal("KILL");
        if self.status.is_none() {
            let _ = self.child.wait();
        }
    }
}
