//! What the store keeps of rotation: the schedule, and of each rotation who was meant and what came of it. Never a key.

use crate::message::{self, Answer, Malformed};
use crate::store::StoreError;
use scalefabric_fabric::directory::OrderResult;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest overlap, ms: an hour.
const MAX_OVERLAP_MS: u64 = 3_600_000;

/// Longest time between two rotations, s: a year.
const MAX_EVERY_S: u64 = 366 * 86_400;

fn default_overlap_ms() -> u64 {
    10_000
}

/// When keys are rotated by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Seconds between two rotations, 1 to a year; absent: never, which is the default. Longer than the overlap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u64>,
    /// How long old and new keys are both good at most, ms: 0 to 3,600,000, default 10,000. Shorter than peers may be out of reach: those are refused
    /// until they have heard their new keys.
    #[serde(default = "default_overlap_ms")]
    pub overlap_ms: u64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { every_s: None, overlap_ms: default_overlap_ms() }
    }
}

impl Schedule {
    /// Looks at it before it is stored.
    pub fn check(&self) -> Result<(), StoreError> {
        check_overlap(self.overlap_ms)?;
        let Some(every_s) = self.every_s else { return Ok(()) };
        if !(1..=MAX_EVERY_S).contains(&every_s) || every_s.saturating_mul(1000) <= self.overlap_ms {
            return Err(StoreError::Invalid(format!(
                "every_s is {every_s}: 1 to {MAX_EVERY_S}, and longer than the overlap, which is {} ms",
                self.overlap_ms
            )));
        }
        Ok(())
    }
}

/// An overlap that an operator may wish.
pub(super) fn check_overlap(overlap_ms: u64) -> Result<(), StoreError> {
    if overlap_ms > MAX_OVERLAP_MS {
        return Err(StoreError::Invalid(format!("overlap_ms is {overlap_ms}; at most {MAX_OVERLAP_MS}")));
    }
    Ok(())
}

/// Whose keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Of everybody.
    All,
    /// Of all processes of a node.
    Node(String),
    /// Of processes that work for a tenant, or lend memory to it, on every node.
    Tenant(String),
}

impl Scope {
    /// Refuses names that cannot be.
    pub fn check(&self) -> Result<(), Malformed> {
        match self {
            Self::All => Ok(()),
            Self::Node(node) => message::node_name(node).map(drop),
            Self::Tenant(tenant) => message::name("tenant", tenant, false).map(drop),
        }
    }
}

/// Where a rotation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RotationState {
    /// Nodes have their orders, and not all have answered.
    Running,
    /// Every node has made its keys anew and withdrawn the old ones; a node without such memory counts as done.
    Done,
    /// Some node did not: its answer says why, and its keys are as they were.
    Incomplete,
}

/// A rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RotationRecord {
    /// Counts up.
    pub serial: u64,
    /// Whose keys.
    pub scope: Scope,
    /// How long old and new keys are both good at most, ms.
    pub overlap_ms: u64,
    /// Who wanted it: `operator`, or `schedule`.
    pub by: String,
    /// Why, for people.
    pub reason: String,
    /// When it began, ms since 1970.
    pub begun_ms: u64,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// Where it stands.
    pub state: RotationState,
    /// What nodes answered; null: nothing, and it may still be carried out.
    #[schema(value_type = Object)]
    pub nodes: BTreeMap<String, Option<Answer>>,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::All => f.write_str("all nodes"),
            Self::Node(node) => f.write_str(node),
            Self::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

impl RotationRecord {
    /// What there is to tell of it, and why: that it has begun, or how it ended.
    pub fn news(&self) -> Option<(String, Option<String>)> {
        let Self { serial, scope, by, .. } = self;
        let why = (!self.reason.is_empty()).then(|| self.reason.clone());
        match self.state {
            RotationState::Running if self.nodes.values().all(Option::is_none) => {
                Some((format!("rotation {serial}: {by} ordered new keys of {scope}"), why))
            }
            RotationState::Running => None,
            RotationState::Done => {
                let (mut registrations, mut told, mut late) = (0, 0, 0);
                for answer in self.nodes.values().flatten() {
                    if let Answer::Answered { outcome: OrderResult::Rotated { keys, peers, late: slow } } = answer {
                        (registrations, told, late) = (registrations + keys, told + peers, late + slow);
                    }
                }
                let text = format!(
                    "rotation {serial} is done: {registrations} registrations of {scope} made anew, {told} peers told, {late} of them late"
                );
                Some((text, None))
            }
            RotationState::Incomplete => {
                let is_left = |answer: Option<&Answer>| {
                    !matches!(answer, Some(Answer::Answered { outcome: OrderResult::Rotated { .. } }))
                };
                let left = self.nodes.iter().filter(|(_, answer)| is_left(answer.as_ref()));
                let left: Vec<&str> = left.map(|(node, _)| node.as_str()).collect();
                Some((format!("rotation {serial} is incomplete: keys are as they were on {}", left.join(", ")), None))
            }
        }
    }
}

impl RotationRecord {
    /// What its nodes have answered says how it ended.
    pub(super) fn end(&mut self, now_ms: u64) {
        let whole = self.nodes.values().all(|answer| {
            matches!(answer, Some(Answer::Answered { outcome: OrderResult::Rotated { .. } | OrderResult::Done { .. } }))
        });
        self.state = if whole { RotationState::Done } else { RotationState::Incomplete };
        self.ended_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_its_edges() {
        let schedule = |every_s, overlap_ms| Schedule { every_s, overlap_ms }.check();
        assert!(schedule(None, MAX_OVERLAP_MS).is_ok());
        assert!(schedule(None, MAX_OVERLAP_MS + 1).is_err());
        assert!(schedule(Some(2), 1999).is_ok());
        assert!(schedule(Some(2), 2000).is_err());
        assert!(schedule(Some(0), 0).is_err());
        assert!(schedule(Some(MAX_EVERY_S), 0).is_ok());
        assert!(schedule(Some(MAX_EVERY_S + 1), 0).is_err());
    }

    #[test]
    fn a_rotation_is_done_when_every_node_is() {
        let rotated = Some(Answer::Answered { outcome: OrderResult::Rotated { keys: 2, peers: 1, late: 0 } });
        let away = Some(Answer::NotHere { reason: "its process takes no messages".into() });
        let failed = Some(Answer::Answered { outcome: OrderResult::RolledBack { reason: "no memory".into() } });
        let record = |answers: &[&Option<Answer>]| {
            let mut record = RotationRecord {
                serial: 1,
                scope: Scope::All,
                overlap_ms: 1,
                by: "operator".into(),
                reason: "test".into(),
                begun_ms: 1,
                ended_ms: None,
                state: RotationState::Running,
                nodes: answers.iter().enumerate().map(|(n, answer)| (format!("n{n}"), (*answer).clone())).collect(),
            };
            record.end(2);
            record.state
        };
        assert_eq!(record(&[&rotated, &rotated]), RotationState::Done);
        assert_eq!(record(&[&rotated, &away]), RotationState::Incomplete);
        assert_eq!(record(&[&rotated, &failed]), RotationState::Incomplete);
        assert_eq!(record(&[&rotated, &None]), RotationState::Incomplete);
    }
}
