//! `sfab top`: the fabric in a terminal: ports by how busy they are, connections, moves and their why, events. It asks control once a second, as the dashboard does, and
//! changes nothing but what is confirmed. However it ends, the terminal is as it was.

mod control;
mod keys;
mod model;
mod plain;
mod screen;

use crate::failure::{During, Failure};
use crate::terminal::say;
use clap::{Args, ValueEnum};
use control::Control;
use keys::{Asked, Keys};
use model::{Model, Picture};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// What is listed of a page of connections.
const CONNECTIONS: usize = 200;
/// How often keys are looked at while nothing else happens.
const BEAT: Duration = Duration::from_millis(100);

/// The fabric in a terminal: ports by load, connections, moves and why, events.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab top                                        control on this host
  sfab top --control https://control-1:7481 --ca ca.pem
  sfab top --filter leaf3 --sort connections      what is behind one switch
  sfab top --once                                 one look, as text
  sfab top --json | jq '.second.summary'          one look, for programs

Keys: 1 ports, 2 connections, 3 moves, 4 events; s sort, r reverse, / filter, Enter the connections of a port;
f freeze, t dry run, d drain a port; p pause, ? help, q quit.
A token is better given by SCALEFABRIC_TOKEN than by --token: arguments are seen by everybody of the host.")]
pub struct Options {
    /// Where control is found [default: SCALEFABRIC_CONTROL, else http://127.0.0.1:7481]
    #[arg(long, value_name = "URL")]
    control: Option<String>,
    /// Token that control asks for [default: SCALEFABRIC_TOKEN]
    #[arg(long, value_name = "TOKEN", hide_default_value = true)]
    token: Option<String>,
    /// Who signed control's certificate, PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// Only nodes, ports and switches with this in their name
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// What ports are sorted by
    #[arg(long, value_enum, default_value_t = Sort::Load)]
    sort: Sort,
    /// One look as text, and end
    #[arg(long)]
    once: bool,
    /// One look as JSON, and end: the answer of /v1/overview, with the last events
    #[arg(long, conflicts_with = "once")]
    json: bool,
}

/// What ports are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// The busier direction, the busiest first.
    Load,
    /// Bits a second sent, most first.
    Sent,
    /// Bits a second received, most first.
    Received,
    /// Ends of connections, most first.
    Connections,
    /// Name.
    Name,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let address = options.control.clone().or_else(|| set("SCALEFABRIC_CONTROL"));
    let token = options.token.clone().or_else(|| set("SCALEFABRIC_TOKEN"));
    let address = address.unwrap_or_else(|| "http://127.0.0.1:7481".into());
    let control = Control::new(&address, token, options.ca.as_deref())?;
    if options.json {
        let mut overview = control.get("/v1/overview")?;
        overview["events"] = control.get("/v1/events/recent?limit=100")?["events"].take();
        say!("{overview:#}");
        return Ok(());
    }
    if options.once {
        let mut model = Model::new(options.sort, &options.filter);
        model.take(look(&control, None)?);
        crate::terminal::print(format_args!("{}", plain::text(&model)));
        return Ok(());
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage("this is no terminal: `--once` prints one look, `--json` is for programs"));
    }
    // Before the screen is taken, so that a control that is not there is told in a sentence.
    let first = look(&control, None)?;
    watch(options, control, first)
}

/// One look: the overview, the events, and, if somebody wants them, connections.
fn look(control: &Control, connections: Option<&str>) -> Result<Picture, Failure> {
    let overview = control.read("/v1/overview")?;
    let events = control.get("/v1/events/recent?limit=500")?["events"].take();
    let events = serde_json::from_value(events).during(|| "control tells of events that this version cannot read")?;
    let connections = match connections {
        Some(query) => {
            let page = control.get(&format!("/v1/connections?limit={CONNECTIONS}&{query}"))?;
            Some(serde_json::from_value(page).during(|| "control tells of connections that this version cannot read")?)
        }
        None => None,
    };
    Ok(Picture { overview, events, connections })
}

/// What the thread that asks control is told.
enum Ask {
    /// Look now, with these connections.
    Look(Option<String>),
    /// Change the settings.
    Change(keys::Change),
}

/// What it tells.
enum Told {
    Looked(Result<Box<Picture>, String>),
    Changed(Result<String, String>),
}

/// Asks control until nobody listens.
fn ask(control: &Control, interval: Duration, asked: &Receiver<Ask>, told: &Sender<Told>) {
    let mut wanted = None;
    loop {
        let outcome = look(control, wanted.as_deref()).map(Box::new).map_err(|failure| failure.to_string());
        if told.send(Told::Looked(outcome)).is_err() {
            return;
        }
        match asked.recv_timeout(interval) {
            Ok(Ask::Look(connections)) => wanted = connections,
            Ok(Ask::Change(change)) => {
                let outcome = change.carry_out(control).map_err(|failure| failure.to_string());
                let _ = told.send(Told::Changed(outcome));
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Whether a signal came.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Shows and listens until somebody has seen enough.
fn watch(options: &Options, control: Control, first: Picture) -> Result<(), Failure> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)).during(|| "catch Ctrl-C")?;
    let look = screen::Look::of_this_terminal();
    let mut model = Model::new(options.sort, &options.filter);
    model.take(first);
    let (ask_sender, asked) = channel();
    let (told_sender, told) = channel();
    let interval = Duration::from_secs(options.interval);
    // It ends with the process: a call that waits for control holds nobody up.
    std::thread::spawn(move || ask(&control, interval, &asked, &told_sender));
    // A panic restores the terminal before it is told (ratatui's hook).
    let mut terminal = ratatui::try_init().during(|| "take the terminal")?;
    let outcome = show(&mut terminal, look, &mut model, &ask_sender, &told);
    ratatui::restore();
    outcome
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    look: screen::Look,
    model: &mut Model,
    ask: &Sender<Ask>,
    told: &Receiver<Told>,
) -> Result<(), Failure> {
    let mut keys = Keys::default();
    let mut stale = true;
    loop {
        while let Ok(news) = told.try_recv() {
            stale = true;
            match news {
                Told::Looked(Ok(picture)) if !model.paused => model.take(*picture),
                Told::Looked(Ok(_)) => model.trouble = None,
                Told::Looked(Err(why)) => model.trouble = Some(why),
                Told::Changed(outcome) => {
                    model.notice = Some(outcome.unwrap_or_else(|why| format!("not done: {why}")));
                    let _ = ask.send(Ask::Look(model.wanted()));
                }
            }
        }
        if std::mem::take(&mut stale) {
            terminal.draw(|frame| screen::draw(frame, model, &keys, look)).during(|| "draw")?;
        }
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err(Failure::interrupted());
        }
        if !event::poll(BEAT).during(|| "read the keyboard")? {
            continue;
        }
        // Another size, too, is a reason to draw.
        stale = true;
        let Event::Key(key) = event::read().during(|| "read the keyboard")? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match keys.press(key, model) {
            Asked::Nothing => {}
            Asked::Look => drop(ask.send(Ask::Look(model.wanted()))),
            Asked::Change(change) => drop(ask.send(Ask::Change(change))),
            Asked::Quit => return Ok(()),
            Asked::Interrupt => return Err(Failure::interrupted()),
        }
    }
}
