//! All processes of `sfab up`: how they are started, what they say, and that none of them, and nothing else, is left when this is dropped. If this process is
//! killed, the kernel ends them, and the keeper removes the rest.

use super::keeper::{self, Charge};
use crate::failure::{During, Failure};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are kept of each process, for the day on which it ends early.
const LAST_LINES: usize = 12;

/// How the lines of a workload begin ([`super::event::Said`]).
const SAID: &str = "{\"say\":";

/// How long the last lines of a process that has ended are waited for.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Variables of the environment that would make a part of it something else than was planned.
const FOREIGN: [&str; 4] = ["SCALEFABRIC_CONFIG", "SCALEFABRIC_DEVICE", "SCALEFABRIC_SHARE", "SCALEFABRIC_AGENT"];

/// What is heard.
#[derive(Debug)]
pub enum Heard {
    /// A process said a line.
    Line(usize, String),
    /// A process has closed its output: it has ended.
    End(usize),
    /// Ctrl-C, or whoever started us wants the end.
    Interrupt,
}

type Lines = Arc<Mutex<VecDeque<String>>>;

fn lock(lines: &Lines) -> MutexGuard<'_, VecDeque<String>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is to be started.
#[derive(Clone, Debug)]
pub struct Start {
    /// For people: `the agent of n1`.
    pub who: String,
    /// The network namespace.
    pub namespace: Option<String>,
    /// What the NIC of the process is told by.
    pub nic: Option<PathBuf>,
    /// The program; `None`: this one.
    pub program: Option<String>,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// A process.
#[derive(Debug)]
pub struct Running {
    start: Start,
    child: Child,
    input: Option<ChildStdin>,
    last: Lines,
    /// Another was started in its place: its end is no news.
    replaced: bool,
}

impl Running {
    /// For people.
    pub fn who(&self) -> &str {
        &self.start.who
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// All of them.
#[derive(Debug)]
pub struct Crew {
    running: Vec<Running>,
    charges: Vec<Charge>,
    keeper: Child,
    speak: Sender<Heard>,
}

impl Crew {
    /// Nobody yet but the keeper.
    pub fn new(speak: Sender<Heard>) -> Result<Self, Failure> {
        let keeper = Command::new(own_program()?)
            .args(["up-part", "keeper"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C at a terminal is not for it.
            .process_group(0)
            .spawn()
            .during(|| "start the keeper")?;
        Ok(Self { running: Vec::new(), charges: Vec::new(), keeper, speak })
    }

    /// From now on this is removed at the end, whatever the end is.
    pub fn keep(&mut self, charge: Charge) -> Result<(), Failure> {
        let keeper = self.keeper.stdin.as_mut();
        keeper.map_or(Ok(()), |keeper| writeln!(keeper, "{charge}")).during(|| "tell the keeper")?;
        self.charges.push(charge);
        Ok(())
    }

    /// Starts a process; its place among the others.
    pub fn start(&mut self, start: Start) -> Result<usize, Failure> {
        let Start { who, namespace, nic, program, arguments } = &start;
        let own = own_program()?;
        let mut command = Command::new(&own);
        command.args(["up-part", "bound", &std::process::id().to_string()]);
        if let Some(namespace) = namespace {
            command.args(["ip", "netns", "exec", namespace]);
        }
        command.arg(program.as_ref().map_or(own.as_os_str(), OsStr::new)).args(arguments);
        FOREIGN.iter().for_each(|name| _ = command.env_remove(name));
        if let Some(nic) = nic {
            command.env("SCALEFABRIC_CONFIG", nic);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .during(|| format!("start {who}"))?;
        let place = self.running.len();
        let last = Lines::default();
        let input = child.stdin.take();
        if let Some(stderr) = child.stderr.take() {
            let last = last.clone();
            std::thread::spawn(move || lines(stderr, &last, |_| true));
        }
        if let Some(stdout) = child.stdout.take() {
            let (last, speak) = (last.clone(), self.speak.clone());
            std::thread::spawn(move || {
                lines(stdout, &last, |line| speak.send(Heard::Line(place, line.to_owned())).is_ok());
                let _ = speak.send(Heard::End(place));
            });
        }
        let pid = child.id();
        self.running.push(Running { start, child, input, last, replaced: false });
        self.keep(Charge::Process(pid))?;
        Ok(place)
    }

    /// Of a process.
    pub fn who(&self, place: usize) -> &str {
        self.running[place].who()
    }

    /// Starts what has ended as it was started before; its new place.
    pub fn start_again(&mut self, place: usize) -> Result<usize, Failure> {
        self.replace(place);
        self.start(self.running[place].start.clone())
    }

    /// The number of a process.
    pub fn pid(&self, place: usize) -> u32 {
        self.running[place].pid()
    }

    /// All that are meant to run.
    pub fn running(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().filter(|one| !one.replaced)
    }

    /// One that has ended is started anew: nobody waits for it any more.
    pub fn replace(&mut self, place: usize) {
        self.running[place].replaced = true;
    }

    /// Whether the end of a process is to be told.
    pub fn is_missed(&self, place: usize) -> bool {
        !self.running[place].replaced
    }

    /// Tells a process a word. One that has ended is not told, and says so by its end.
    pub fn tell(&mut self, place: usize, word: &str) {
        if let Some(input) = &mut self.running[place].input {
            let _ = writeln!(input, "{word}").and_then(|()| input.flush());
        }
    }

    /// Whether a process has ended.
    pub fn has_ended(&mut self, place: usize) -> bool {
        self.running[place].child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Why a process that should be there is not, with its last lines.
    pub fn obituary(&mut self, place: usize) -> Failure {
        let one = &mut self.running[place];
        let deadline = Instant::now() + LAST_WORDS;
        let mut status = None;
        while status.is_none() && Instant::now() < deadline {
            status = one.child.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(20));
        }
        let how =
            status.map_or_else(|| "closed its output".to_owned(), |status: ExitStatus| format!("ended with {status}"));
        let last = lock(&one.last);
        let lines: Vec<String> = last.iter().map(|line| format!("\n  {line}")).collect();
        let words = if lines.is_empty() {
            "; it had said nothing".to_owned()
        } else {
            format!("; its last lines:{}", lines.concat())
        };
        Failure::failed(format!("{} {how}{words}", one.start.who))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for one in &mut self.running {
            let _ = one.child.kill();
        }
        for one in &mut self.running {
            let _ = one.child.wait();
        }
        // The keeper sweeps now. Should it have been killed, the same is done here.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
        self.charges.iter().for_each(keeper::remove);
    }
}

fn own_program() -> Result<std::path::PathBuf, Failure> {
    std::env::current_exe().during(|| "find the own program")
}

/// Reads lines, remembers the last, and gives each on, as long as somebody wants them.
fn lines(from: impl Read, last: &Lines, mut give: impl FnMut(&str) -> bool) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        let wanted = give(&line);
        // What one part of this program tells another is nobody's last words.
        if line.starts_with(SAID) {
            if wanted { continue } else { return }
        }
        let mut last = lock(last);
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
        if !wanted {
            return;
        }
    }
}
