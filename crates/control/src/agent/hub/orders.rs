//! Orders at the hub: whose each is, which were answered, and what the answers of several processes make together.

use super::{Inner, KEPT_ANSWERS, ProcessKey, Waiting};
use crate::local::ToProcess;
use crate::message::Answer;
use scalefabric_fabric::directory::{ConnectionId, Order, OrderResult};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

impl Inner {
    /// Carries an order out, or says why not.
    pub(super) fn order(&mut self, id: &str, order: &Order, until: Duration) {
        if let Some((_, answer)) = self.answers.iter().find(|(known, _)| known == id) {
            let answer = answer.clone();
            self.to_tell.push((id.to_owned(), answer));
            return;
        }
        if self.waiting.contains_key(id) {
            return;
        }
        if let Err(highest) = self.memory.token.admit(crate::client::token(order)) {
            self.settle(id.to_owned(), Answer::Answered { outcome: OrderResult::Fenced { highest } });
            return;
        }
        self.remember = true;
        let processes = self.meant(order);
        if processes.is_empty() && matches!(order, Order::RotateKeys { .. }) {
            // A node without processes lends nothing.
            let outcome = OrderResult::Rotated { keys: 0, peers: 0, late: 0 };
            self.settle(id.to_owned(), Answer::Answered { outcome });
            return;
        }
        if processes.is_empty() {
            self.settle(id.to_owned(), Answer::NotHere { reason: "no process of this node has it".into() });
            return;
        }
        let message = Arc::new(ToProcess::Order { id: id.to_owned(), order: order.clone() });
        let mut reached = BTreeSet::new();
        for key in processes {
            if self.processes.get_mut(&key).is_some_and(|process| process.tell(&message)) {
                reached.insert(key);
            }
        }
        if reached.is_empty() {
            self.settle(id.to_owned(), Answer::NotHere { reason: "its process takes no messages".into() });
            return;
        }
        self.waiting.insert(id.to_owned(), Waiting { processes: reached, worst: None, until });
    }

    /// Whose order it is. If both ends are on this node, a move is for the end that can take the path.
    fn meant(&self, order: &Order) -> Vec<ProcessKey> {
        let having = |id: &ConnectionId| {
            let mut keys: Vec<ProcessKey> =
                self.processes.iter().filter(|(_, one)| one.records.contains_key(id)).map(|(key, _)| *key).collect();
            keys.sort_unstable();
            keys
        };
        match order {
            Order::RotateKeys { .. } => self.processes.keys().copied().collect(),
            Order::Close { connection, .. } => having(connection),
            Order::Move { connection, path, .. } => {
                let ends = having(connection);
                let can = |key: &&ProcessKey| {
                    let record = self.processes.get(key).and_then(|process| process.records.get(connection));
                    record
                        .is_some_and(|(record, _)| record.alternatives.contains(path) || record.path.dgid == path.dgid)
                };
                let chosen = ends.iter().find(can).or(ends.first()).copied();
                chosen.into_iter().collect()
            }
        }
    }

    pub(super) fn answered(&mut self, key: ProcessKey, id: &str, outcome: OrderResult) {
        let Some(waiting) = self.waiting.get_mut(id) else { return };
        if !waiting.processes.remove(&key) {
            return;
        }
        // Of several answers the one that is least done counts.
        let rank = |outcome: &OrderResult| match outcome {
            OrderResult::Done { .. } | OrderResult::Rotated { .. } => 0,
            OrderResult::Fenced { .. } => 1,
            OrderResult::RolledBack { .. } => 2,
        };
        if let (
            Some(OrderResult::Rotated { keys, peers, late }),
            OrderResult::Rotated { keys: more_keys, peers: more_peers, late: more_late },
        ) = (&mut waiting.worst, &outcome)
        {
            (*keys, *peers, *late) = (*keys + more_keys, *peers + more_peers, *late + more_late);
        } else if waiting.worst.as_ref().is_none_or(|worst| rank(worst) < rank(&outcome)) {
            waiting.worst = Some(outcome);
        }
        if waiting.processes.is_empty()
            && let Some(Waiting { worst: Some(outcome), .. }) = self.waiting.remove(id)
        {
            self.settle(id.to_owned(), Answer::Answered { outcome });
        }
    }

    pub(super) fn settle(&mut self, id: String, answer: Answer) {
        if self.answers.len() >= KEPT_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back((id.clone(), answer.clone()));
        self.to_tell.push((id, answer));
    }
}
