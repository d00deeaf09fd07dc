//! What the demo with two rails shows: ports before and after, the moves, the pauses, and the verdict; as a table or as JSON.

use super::ledger::Findings;
use super::meter::RAILS;
use super::port_failure::PortFailure;
use crate::table::{Align, Table};
use crate::terminal::{self, say};
use crate::units;
use scalefabric_fabric::endpoint::Statistics;
use serde_json::json;
use std::time::Duration;

/// How it went with the hot port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rule never ordered a move.
    NeverHot,
    /// Moves were made, and a port is above the threshold all the same.
    StillHot,
    /// No port is hot any more.
    Relieved,
}

/// A round's moves.
#[derive(Clone, Debug, Default)]
pub struct Moved {
    /// Moves that were ordered.
    pub ordered: usize,
    /// No smaller set does what this one does.
    pub at_least: u32,
    /// How long each connection could not post, µs, shortest first; as many as were carried out.
    pub pauses_us: Vec<u64>,
    /// Why others were not.
    pub refused: Vec<String>,
    /// From the decision to the last answer.
    pub elapsed: Duration,
}

/// A rail as it was for a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rail {
    /// Connections on it.
    pub connections: usize,
    /// What its near port sent, thousandths of its capacity, mean.
    pub permille: f64,
}

/// The mean of some rounds.
pub fn side(rounds: &[[f64; RAILS]], connections: [usize; RAILS]) -> [Rail; RAILS] {
    std::array::from_fn(|rail| {
        let sum: f64 = rounds.iter().map(|round| round[rail]).sum();
        Rail { connections: connections[rail], permille: sum / rounds.len().max(1) as f64 }
    })
}

/// Everything that is shown.
pub struct RailReport {
    machine_bps: Option<u64>,
    capacity_bps: u64,
    message_bytes: usize,
    /// While the port was hot.
    pub before: [Rail; RAILS],
    /// After the moves.
    pub after: [Rail; RAILS],
    /// Rounds of the rule that ordered moves.
    pub rounds: Vec<Moved>,
    /// Things that the rule did not believe.
    pub doubts: usize,
    /// Longest time between two messages of a connection, before the moves.
    pub gap_before: Duration,
    /// The same, from the first move to the end.
    pub gap_after: Duration,
    /// What became of a port's connections when it failed.
    pub failure: PortFailure,
    /// What the checker found.
    pub findings: Findings,
    /// How it ended.
    pub outcome: Outcome,
    rebuilds: u64,
    connections: usize,
}

impl RailReport {
    /// An empty report.
    pub fn new(machine_bps: Option<u64>, capacity_bps: u64, message_bytes: usize) -> Self {
        Self {
            machine_bps,
            capacity_bps,
            message_bytes,
            before: Default::default(),
            after: Default::default(),
            rounds: Vec::new(),
            doubts: 0,
            gap_before: Duration::ZERO,
            gap_after: Duration::ZERO,
            failure: PortFailure::default(),
            findings: Findings::default(),
            outcome: Outcome::NeverHot,
            rebuilds: 0,
            connections: 0,
        }
    }

    /// What the connections have been through.
    pub fn set_statistics(&mut self, statistics: impl Iterator<Item = Statistics>) {
        for one in statistics {
            self.connections += 1;
            self.rebuilds += one.rebuilds;
        }
    }

    /// True if the port is relieved and nothing was lost on the way.
    pub fn is_good(&self) -> bool {
        self.outcome == Outcome::Relieved
            && self.findings.is_clean()
            && self.rounds.iter().all(|round| round.refused.is_empty())
    }

    /// Prints it.
    pub fn print(&self, as_json: bool) {
        if as_json {
            say!("{:#}", self.as_json());
        } else {
            self.print_text();
        }
    }

    fn print_text(&self) {
        let mbps = |bps: u64| format!("{:.1} Mb/s", bps as f64 / 1e6);
        say!(
            "{} connections between two devices of two ports each on the loopback, messages of {}.",
            self.connections,
            units::size(self.message_bytes as u64)
        );
        match self.machine_bps {
            Some(machine) => say!(
                "A port is taken to carry {}: half of the {} that this machine moves now.",
                mbps(self.capacity_bps),
                mbps(machine)
            ),
            None => say!("A port is taken to carry {}, as --port-rate says.", mbps(self.capacity_bps)),
        }
        say!("");
        let mut table = Table::new(&[
            ("rail", Align::Left),
            ("connections before", Align::Right),
            ("after", Align::Right),
            ("utilisation before", Align::Right),
            ("after", Align::Right),
        ]);
        for rail in 0..RAILS {
            let (before, after) = (self.before[rail], self.after[rail]);
            table.row(vec![
                format!("port {}", rail + 1),
                before.connections.to_string(),
                after.connections.to_string(),
                format!("{:.1} %", before.permille / 10.0),
                format!("{:.1} %", after.permille / 10.0),
            ]);
        }
        terminal::print(format_args!("{table}"));
        say!("");
        for round in &self.rounds {
            let longest = round.pauses_us.last().copied().unwrap_or(0);
            let median = round.pauses_us.get(round.pauses_us.len() / 2).copied().unwrap_or(0);
            say!(
                "{} of {} moves done {} after the decision (at least {} were needed); a connection paused {}, at most {}.",
                round.pauses_us.len(),
                round.ordered,
                units::micros(round.elapsed),
                round.at_least,
                units::micros(Duration::from_micros(median)),
                units::micros(Duration::from_micros(longest)),
            );
            for reason in &round.refused {
                say!("  not done: {reason}");
            }
        }
        say!(
            "Longest time between two messages of a connection: {} before, {} while they moved and after.",
            units::micros(self.gap_before),
            units::micros(self.gap_after)
        );
        if self.rebuilds > 0 {
            say!("{} QPs failed while they moved and were made anew.", self.rebuilds);
        }
        let failure = self.failure;
        say!(
            "A port of {} connections went down: longest time between two messages {}; it came up, and {} later all were home, {} between two messages.",
            failure.connections,
            units::micros(failure.silence),
            units::micros(failure.home_after),
            units::micros(failure.silence_home),
        );
        let found = self.findings;
        say!(
            "{}: {}; {} messages checked: {} lost, {} duplicated, {} reordered, {} damaged, {} failed.",
            terminal::verdict(self.is_good(), if self.is_good() { "ok" } else { "failed" }),
            self.outcome_text(),
            found.in_order,
            found.lost,
            found.duplicated,
            found.reordered,
            found.damaged,
            found.failed,
        );
    }

    fn outcome_text(&self) -> &'static str {
        match self.outcome {
            Outcome::Relieved => "no port is hot any more",
            Outcome::StillHot => "a port is still hot",
            Outcome::NeverHot => "no port became hot: the machine did not carry the load; give a lower --port-rate",
        }
    }

    fn as_json(&self) -> serde_json::Value {
        let rail = |index: usize| {
            let (before, after) = (self.before[index], self.after[index]);
            json!({
                "port": index + 1,
                "connections_before": before.connections,
                "connections_after": after.connections,
                "utilisation_before": before.permille / 1000.0,
                "utilisation_after": after.permille / 1000.0,
            })
        };
        let rounds: Vec<_> = self
            .rounds
            .iter()
            .map(|round| {
                json!({
                    "ordered": round.ordered,
                    "at_least": round.at_least,
                    "done": round.pauses_us.len(),
                    "refused": round.refused,
                    "elapsed_us": round.elapsed.as_micros() as u64,
                    "pause_median_us": round.pauses_us.get(round.pauses_us.len() / 2),
                    "pause_longest_us": round.pauses_us.last(),
                })
            })
            .collect();
        json!({
            "good": self.is_good(),
            "outcome": self.outcome_text(),
            "connections": self.connections,
            "machine_bps": self.machine_bps,
            "port_capacity_bps": self.capacity_bps,
            "message_bytes": self.message_bytes,
            "rails": (0..RAILS).map(rail).collect::<Vec<_>>(),
            "rounds": rounds,
            "doubts": self.doubts,
            "longest_gap_before_us": self.gap_before.as_micros() as u64,
            "longest_gap_after_us": self.gap_after.as_micros() as u64,
            "rebuilds": self.rebuilds,
            "port_failure": {
                "connections": self.failure.connections,
                "longest_gap_us": self.failure.silence.as_micros() as u64,
                "home_after_us": self.failure.home_after.as_micros() as u64,
                "longest_gap_home_us": self.failure.silence_home.as_micros() as u64,
            },
            "checker": self.findings,
        })
    }
}
