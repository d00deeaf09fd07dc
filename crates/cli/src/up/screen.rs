//! What `sfab up` shows: on a terminal a table that is rewritten in place, else a line for what happens; as JSON lines with `--json`. It asks nobody.

use super::event::Tallies;
use super::plan::{HOT, Plan};
use super::watch::{HOT_PERMILLE, Moved, View};
use crate::table::{Align, Table};
use crate::terminal::{self, say};
use crate::units;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

/// Moves that the table shows: the last ones.
const MOVES_SHOWN: usize = 6;

/// Without a terminal and without JSON, ports are told this often.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heat {
    /// No port was made hot.
    None,
    /// One is, and control has yet to relieve it.
    Hot,
    /// After so long.
    Relieved(Duration),
}

/// What is told at the end.
pub struct Ending<'a> {
    /// Nothing failed, nothing is damaged, and what was made hot is relieved.
    pub good: bool,
    /// By kind of traffic.
    pub tallies: &'a Tallies,
    /// What became of the hot port.
    pub heat: Heat,
    /// QPs that failed and were made anew.
    pub rebuilds: u64,
    /// Moves, by the connections' own account.
    pub moves: u64,
    /// Processor time by wall time; 1: a whole core.
    pub cores: f64,
}

/// The screen.
pub struct Screen {
    json: bool,
    quiet: bool,
    in_place: bool,
    /// Lines of the table that stands there.
    drawn: usize,
    told: BTreeMap<u64, String>,
    last: Option<Duration>,
}

impl Screen {
    /// As the options and the terminal want it.
    pub fn new(json: bool, quiet: bool) -> Self {
        let in_place = !json && !quiet && std::io::stdout().is_terminal();
        Self { json, quiet, in_place, drawn: 0, told: BTreeMap::new(), last: None }
    }

    /// Something that happened once: for people, and for programs.
    pub fn event(&mut self, sentence: &str, event: &Value) {
        if self.json {
            say!("{event}");
        } else if !self.quiet && !sentence.is_empty() {
            self.erase();
            say!("{sentence}");
        }
    }

    /// What must be seen also with `--quiet`.
    pub fn address(&mut self, sentence: &str, event: &Value) {
        if self.json {
            say!("{event}");
        } else {
            say!("{sentence}");
        }
    }

    /// The state of everything.
    pub fn show(&mut self, plan: &Plan, view: &View, heat: Heat, cores: f64, after: Duration) {
        if self.json {
            self.tell_moves(plan, view);
            say!("{}", ports_json(plan, view, cores, after));
        } else if self.in_place {
            self.erase();
            let text = picture(plan, view, heat, cores, width());
            self.drawn = text.lines().count();
            terminal::print(format_args!("{text}"));
        } else if !self.quiet {
            self.tell_moves(plan, view);
            if self.last.is_none_or(|last| after.saturating_sub(last) >= LINES_EVERY) {
                self.last = Some(after);
                say!("{}", line(plan, view, cores));
            }
        }
    }

    /// Moves that are new, or have ended since.
    fn tell_moves(&mut self, plan: &Plan, view: &View) {
        for (serial, moved) in &view.moves {
            if self.told.insert(*serial, moved.outcome.clone()).as_ref() == Some(&moved.outcome) {
                continue;
            }
            if self.json {
                say!("{}", move_json(moved));
            } else {
                say!("{}", move_text(plan, moved));
            }
        }
    }

    fn erase(&mut self) {
        if self.drawn > 0 {
            terminal::print(format_args!("\x1b[{}A\x1b[J", self.drawn));
            self.drawn = 0;
        }
    }

    /// The end.
    pub fn end(&mut self, ending: &Ending<'_>) {
        if self.json {
            say!("{}", ending_json(ending));
            return;
        }
        say!("");
        let mut table = Table::new(&[
            ("traffic", Align::Left),
            ("operations", Align::Right),
            ("moved", Align::Right),
            ("slowest", Align::Right),
            ("failed", Align::Right),
            ("damaged", Align::Right),
        ]);
        for (traffic, tally) in ending.tallies {
            table.row(vec![
                traffic.name().to_owned(),
                tally.operations.to_string(),
                format!("{:.1} MB", tally.bytes as f64 / 1e6),
                units::micros(Duration::from_micros(tally.slowest_us)),
                tally.failed.to_string(),
                tally.damaged.to_string(),
            ]);
        }
        terminal::print(format_args!("{table}"));
        let heat = match ending.heat {
            Heat::None => "no port was made hot".to_owned(),
            Heat::Hot => "a port is still hot".to_owned(),
            Heat::Relieved(after) => format!("control relieved the hot port in {:.1} s", after.as_secs_f64()),
        };
        say!(
            "{}: {heat}; {} moves, {} QPs made anew; {:.0} % of a core.",
            terminal::verdict(ending.good, if ending.good { "ok" } else { "failed" }),
            ending.moves,
            ending.rebuilds,
            ending.cores * 100.0,
        );
    }
}

fn percent(permille: f64) -> String {
    format!("{:.1} %", permille / 10.0)
}

/// Columns of the terminal.
fn width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col).max(40))
}

fn picture(plan: &Plan, view: &View, heat: Heat, cores: f64, width: usize) -> String {
    let mut table = Table::new(&[
        ("port", Align::Left),
        ("sends", Align::Right),
        ("receives", Align::Right),
        ("", Align::Left),
        ("connections", Align::Right),
        ("left", Align::Right),
        ("came", Align::Right),
    ]);
    for (&(place, port_num), port) in &view.ports {
        let full = (port.busiest() / 50.0).round().clamp(0.0, 20.0) as usize;
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(20 - full));
        table.row(vec![
            format!("{} port {port_num}", plan.node(place)),
            percent(port.permille[0]),
            percent(port.permille[1]),
            format!("{bar}{}", if port.busiest() > HOT_PERMILLE { " hot" } else { "" }),
            port.connections.to_string(),
            port.left.to_string(),
            port.came.to_string(),
        ]);
    }
    let mut text = format!("\n{table}\n");
    let skipped = view.moves.len().saturating_sub(MOVES_SHOWN);
    for moved in view.moves.values().skip(skipped) {
        text += &format!("{}\n", move_text(plan, moved));
    }
    text += &match heat {
        Heat::None => String::new(),
        Heat::Hot => format!("{} port {} was made hot; control decides.\n", plan.node(HOT.0), HOT.1),
        Heat::Relieved(after) => format!("Control relieved the hot port in {:.1} s.\n", after.as_secs_f64()),
    };
    text +=
        &format!("{} connections up; {:.0} % of a core. Ctrl-C ends everything.\n", view.connections, cores * 100.0);
    // A line that is broken by the terminal could not be erased.
    text.lines().map(|line| line.chars().take(width - 1).chain(['\n']).collect::<String>()).collect()
}

fn line(plan: &Plan, view: &View, cores: f64) -> String {
    let port = |(&(place, port_num), port): (&(usize, u8), &super::watch::Port)| {
        format!("{}:{port_num} {:.0} %", plan.node(place), port.busiest() / 10.0)
    };
    let ports: Vec<String> = view.ports.iter().map(port).collect();
    format!("{}; {} connections up; {:.0} % of a core", ports.join(", "), view.connections, cores * 100.0)
}

fn move_text(plan: &Plan, moved: &Moved) -> String {
    let Moved { service, node, ports: [from, to], why, outcome, pause_us, .. } = moved;
    let pause = pause_us.map(|pause| format!(", paused {}", units::micros(Duration::from_micros(pause))));
    // Control names ports by their device, which is the node's only one.
    let port =
        |place: usize| (format!("{}/{}/", plan.node(place), plan.device(place)), format!("{} port ", plan.node(place)));
    let why = (0..plan.nodes).map(port).fold(why.clone(), |why, (name, short)| why.replace(&name, &short));
    format!(
        "move {}: {node} to {service}, port {from} -> {to}, {outcome}{}: {why}",
        moved.serial,
        pause.unwrap_or_default()
    )
}

fn move_json(moved: &Moved) -> Value {
    json!({
        "event": "move", "serial": moved.serial, "connection": moved.connection, "service": moved.service, "node": moved.node,
        "from_port": moved.ports[0], "to_port": moved.ports[1], "why": moved.why, "outcome": moved.outcome, "pause_us": moved.pause_us,
    })
}

fn ports_json(plan: &Plan, view: &View, cores: f64, after: Duration) -> Value {
    let port = |(&(place, port_num), port): (&(usize, u8), &super::watch::Port)| {
        json!({
            "node": plan.node(place), "port": port_num, "sends": port.permille[0] / 1000.0, "receives": port.permille[1] / 1000.0,
            "connections": port.connections, "left": port.left, "came": port.came,
        })
    };
    json!({
        "event": "ports", "after_ms": u64::try_from(after.as_millis()).unwrap_or(u64::MAX), "nodes": view.nodes.len(),
        "connections": view.connections, "cores": cores, "ports": view.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn ending_json(ending: &Ending<'_>) -> Value {
    let (relieved, after) = match ending.heat {
        Heat::None => (None, None),
        Heat::Hot => (Some(false), None),
        Heat::Relieved(after) => (Some(true), Some(after.as_secs_f64())),
    };
    json!({
        "event": "end", "good": ending.good, "relieved": relieved, "relieved_after_s": after, "moves": ending.moves,
        "rebuilds": ending.rebuilds, "cores": ending.cores, "traffic": ending.tallies,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::up::plan::{BLOCK_BYTES, Ground};
    use crate::up::watch::Port;

    fn plan() -> Plan {
        let (ground, folder) = (Ground::Loopback(7), "/tmp/x".into());
        Plan { nodes: 3, ports: 2, port_rate_mbps: 400, block_bytes: BLOCK_BYTES, ground, folder }
    }

    #[test]
    fn the_picture_names_the_hot_port_and_why_a_connection_moved() {
        let hot = Port { permille: [904.0, 31.0], connections: 12, left: 1, came: 0 };
        let moved = Moved {
            serial: 3,
            connection: "n1/9/4".into(),
            service: "stream.n2".into(),
            node: "n1".into(),
            ports: [1, 2],
            why: "n1/up7-n1/1 sends at 90.4 % of its capacity".into(),
            outcome: "done".into(),
            pause_us: Some(80),
        };
        let view = View { ports: [((0, 1), hot)].into(), moves: [(3, moved)].into(), ..View::default() };
        let text = picture(&plan(), &view, Heat::Hot, 0.5, 200);
        for part in
            ["n1 port 1", "90.4 %", "hot", "n1 to stream.n2, port 1 -> 2, done, paused 80.0 us: n1 port 1 sends at"]
        {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        // A line that is broken by the terminal could not be erased.
        let narrow = picture(&plan(), &view, Heat::Hot, 0.5, 60);
        assert!(narrow.lines().all(|line| line.chars().count() < 60), "{narrow}");
    }
}
