//! What was decided and why, kept so that "why did this QP move?" has an answer with all that was known at that moment. It decides nothing and forgets the oldest first.

use crate::topology::PortName;
use scalefabric_fabric::Path;
use scalefabric_fabric::balance::{ConnectionSample, Direction, Effort, Policy, PortSample, Reason, Wishes};
use scalefabric_fabric::directory::{ConnectionId, FencingToken};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How a decision ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum DecisionOutcome {
    /// The order is on its way.
    Ordered,
    /// Nothing was ordered: a dry run.
    DryRun,
    /// Done.
    Done {
        /// Longest pause of data, µs.
        pause_us: u64,
    },
    /// Not done, and everything is as before.
    RolledBack {
        /// Why.
        reason: String,
    },
    /// Refused: somebody with a higher token leads.
    Fenced,
    /// No answer came in time. The connection shows where it is.
    NoAnswer,
}

/// What was known of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortInput {
    /// Its name.
    pub name: PortName,
    /// What its agent said.
    pub sample: PortSample,
    /// Whether it was taken to be hot.
    pub hot: bool,
}

/// A decision with all that it was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Counts up.
    pub serial: u64,
    /// When, milliseconds of the decider's clock.
    pub at_ms: u64,
    /// By what authority.
    pub token: FencingToken,
    /// Whose.
    pub connection: ConnectionId,
    /// Where it was.
    pub from: Path,
    /// Where to.
    pub to: Path,
    /// Why.
    pub reason: Reason,
    /// The same for people.
    pub text: String,
    /// What was said of the connection.
    pub sample: ConnectionSample,
    /// What was known of the ports of its routes.
    pub ports: Vec<PortInput>,
    /// All hot ports at that moment, with their load in thousandths.
    pub hot: Vec<(PortName, Direction, u32)>,
    /// How good the set of moves was.
    pub effort: Effort,
    /// The rules.
    pub policy: Policy,
    /// What the operator wanted.
    pub wishes: Wishes,
    /// How it ended.
    pub outcome: DecisionOutcome,
}

/// The last decisions.
#[derive(Clone, Debug)]
pub struct DecisionLog {
    decisions: VecDeque<Decision>,
    limit: usize,
    next: u64,
}

impl DecisionLog {
    /// Keeps so many, at least one.
    pub fn new(limit: usize) -> Self {
        Self { decisions: VecDeque::new(), limit: limit.max(1), next: 1 }
    }

    /// Notes one and gives it its number.
    pub(super) fn note(&mut self, mut decision: Decision) -> u64 {
        if self.decisions.len() == self.limit {
            self.decisions.pop_front();
        }
        decision.serial = self.next;
        self.next += 1;
        self.decisions.push_back(decision);
        self.next - 1
    }

    /// Notes how one ended, if it is still there and has not ended already.
    pub(super) fn end(&mut self, serial: u64, outcome: DecisionOutcome) {
        let found = self.decisions.binary_search_by_key(&serial, |decision| decision.serial);
        if let Ok(n) = found
            && self.decisions[n].outcome == DecisionOutcome::Ordered
        {
            self.decisions[n].outcome = outcome;
        }
    }

    /// Whether the last one about the connection was the same, of a dry run, less than `within_ms` ago.
    pub(super) fn said_already(&self, decision: &Decision, within_ms: u64) -> bool {
        let last = self.iter().find(|last| last.connection == decision.connection);
        last.is_some_and(|last| {
            last.outcome == DecisionOutcome::DryRun
                && last.to == decision.to
                && decision.at_ms.saturating_sub(last.at_ms) < within_ms
        })
    }

    /// All that are kept, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter().rev()
    }

    /// Those about one connection, the newest first.
    pub fn about(&self, connection: &ConnectionId) -> Vec<&Decision> {
        self.iter().filter(|decision| decision.connection == *connection).collect()
    }
}

/// A reason for people.
pub(super) fn explain(reason: &Reason, name: impl Fn(scalefabric_fabric::balance::PortKey) -> String) -> String {
    let percent = |permille: u32| format!("{}.{} %", permille / 10, permille % 10);
    match *reason {
        Reason::PortHot { port, direction, permille, expected_permille } => {
            let way = match direction {
                Direction::Transmit => "sends",
                Direction::Receive => "receives",
            };
            let (now, then) = (percent(permille), percent(expected_permille));
            format!("{} {way} at {now} of its capacity; this round's moves bring it to {then}", name(port))
        }
        Reason::PortDown { port } => format!("{} is down", name(port)),
        Reason::PortDrained { port } => format!("the operator wants {} empty", name(port)),
        Reason::PortReturned { port } => format!("{} is up again for long enough", name(port)),
        Reason::Retransmissions { permille } => format!("{} of its packets had to be sent again", percent(permille)),
        Reason::Operator => "the operator wants it there".into(),
    }
}
