//! The parent of a demo: starts the two processes, shows how far they are, collects what they say, and leaves nothing
//! behind, whichever way it ends.

use crate::demo::Options;
use crate::demo::event::{Event, Measured};
use crate::demo::namespace::Namespaces;
use crate::demo::report::Report;
use crate::failure::{During, Failure};
use crate::terminal::Progress;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A child that says nothing for so long has stopped.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Target,
    Initiator,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Initiator => "initiator",
        }
    }
}

/// What the parent hears.
enum Heard {
    Event(Side, Event),
    /// A line that is no event: passed on as it is.
    Line(Side, String),
    End(Side),
    Interrupt,
}

/// A child process that ends with its handle.
struct Running {
    side: Side,
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a whole demo.
pub fn run(options: &Options) -> Result<(), Failure> {
    let (speak, hear) = channel();
    let interrupt = speak.clone();
    ctrlc::set_handler(move || {
        let _ = interrupt.send(Heard::Interrupt);
    })
    .during(|| "handle Ctrl-C")?;
    // Dropped last, after the processes inside.
    let namespaces = if options.netns { Some(Namespaces::new(options.netns_mtu)?) } else { None };
    let address = if options.netns { Namespaces::address(0) } else { "127.0.0.1" };
    let mut processes = Vec::new();
    let target = ["--listen".to_owned(), format!("{address}:0")];
    processes.push(start(Side::Target, options, namespaces.as_ref(), &target, speak.clone())?);
    let mut report = Report::new(options);
    let mut progress = Progress::new(0);
    let (mut finished, mut ended) = ([false; 2], [false; 2]);
    while ended != [true; 2] {
        match next(&hear)? {
            Heard::Event(Side::Target, Event::Listening { address }) => {
                let initiator = ["--connect".to_owned(), address];
                processes.push(start(Side::Initiator, options, namespaces.as_ref(), &initiator, speak.clone())?);
            }
            Heard::Event(side, Event::Failed { message, is_usage }) => {
                return Err(blamed(side, &message, is_usage, &hear));
            }
            Heard::Event(side, Event::Done) => finished[side as usize] = true,
            Heard::Event(side, event) => take(side, event, options, &mut report, &mut progress),
            Heard::Line(side, line) => eprintln!("{}: {line}", side.name()),
            Heard::End(side) if finished[side as usize] => ended[side as usize] = true,
            Heard::End(side) => return Err(ended_early(side, &mut processes)),
            Heard::Interrupt => {
                progress.clear();
                return Err(Failure::interrupted());
            }
        }
    }
    progress.clear();
    drop(processes);
    report.print();
    Ok(())
}

fn next(hear: &Receiver<Heard>) -> Result<Heard, Failure> {
    hear.recv_timeout(SILENCE_LIMIT).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            Failure::failed(format!("both processes are silent for {} s: they were ended", SILENCE_LIMIT.as_secs()))
        }
        RecvTimeoutError::Disconnected => Failure::failed("both processes are gone"),
    })
}

fn take(side: Side, event: Event, options: &Options, report: &mut Report, progress: &mut Progress) {
    match event {
        Event::Port { device, gid, path_mtu } => report.port(side.name(), &device, &gid, path_mtu),
        Event::Plan { rows } => *progress = Progress::new(rows),
        Event::Begin { name } => progress.next(&name),
        Event::Result(measured) => report_row(measured, options, report, progress),
        // On one host the two processes share a device and with it its counters.
        Event::Counters { values } if side == Side::Initiator || options.netns => report.counters(side.name(), values),
        _ => {}
    }
}

fn report_row(measured: Measured, options: &Options, report: &mut Report, progress: &Progress) {
    if !options.json {
        progress.clear();
        report.stream(&measured);
    }
    report.row(measured);
}

/// One side failed. Often that is because of the other one, which may say so a moment later.
fn blamed(side: Side, message: &str, is_usage: bool, hear: &Receiver<Heard>) -> Failure {
    let mut text = format!("{}: {message}", side.name());
    while let Ok(heard) = hear.recv_timeout(Duration::from_millis(300)) {
        if let Heard::Event(other, Event::Failed { message, .. }) = heard
            && other != side
            && !text.contains(&message)
        {
            text += &format!("\n  {}: {message}", other.name());
        }
    }
    if is_usage { Failure::usage(text) } else { Failure::failed(text) }
}

fn ended_early(side: Side, processes: &mut [Running]) -> Failure {
    let running = processes.iter_mut().find(|running| running.side == side);
    let status = running.and_then(|running| running.child.wait().ok());
    let how = status.map_or_else(|| "ended".to_owned(), |status| format!("ended with {status}"));
    Failure::failed(format!("the {} process {how} before the demo was over: was it killed?", side.name()))
}

/// Starts one side and a thread that reads what it says.
fn start(
    side: Side,
    options: &Options,
    namespaces: Option<&Namespaces>,
    role: &[String],
    speak: Sender<Heard>,
) -> Result<Running, Failure> {
    let program = std::env::current_exe().during(|| "find the own program")?;
    let mut command = match namespaces {
        Some(namespaces) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespaces.name(side as usize)]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.arg("demo").args(role).arg("--events").args(options.for_child(side == Side::Initiator));
    if namespaces.is_some() && options.device.is_none() {
        command.args(["--interface", Namespaces::INTERFACE]);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .during(|| format!("start the {} process", side.name()))?;
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let heard = match serde_json::from_str(&line) {
                    Ok(event) => Heard::Event(side, event),
                    Err(_) => Heard::Line(side, line),
                };
                if speak.send(heard).is_err() {
                    return;
                }
            }
            let _ = speak.send(Heard::End(side));
        });
    }
    Ok(Running { side, child })
}
