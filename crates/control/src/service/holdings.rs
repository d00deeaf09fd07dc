//! What tenants have on all nodes, as the store tells, and who must hear of it: each agent is told what the tenants of its node have elsewhere. A quota is of all nodes
//! together, and is kept where objects are made.

use super::session::Note;
use super::{Shared, locked};
use crate::message;
use crate::proto::control::to_agent;
use scalefabric_fabric::directory::Holdings;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Between two rounds of telling. The first of a burst is not held back.
const INTERVAL: Duration = Duration::from_millis(50);
/// How often it is looked who has joined, of whom nothing is heard.
const LOOK: Duration = Duration::from_millis(250);

type ByTenant = BTreeMap<String, Holdings>;

/// What all have.
#[derive(Debug, Default)]
pub struct AllHoldings {
    nodes: BTreeMap<String, ByTenant>,
    totals: ByTenant,
    changed: bool,
}

impl AllHoldings {
    /// Of a listing, whole: who would be told a part of it in between would give what others have.
    pub fn of(nodes: impl IntoIterator<Item = (String, ByTenant)>) -> Self {
        let mut all = Self { changed: true, ..Self::default() };
        nodes.into_iter().for_each(|(node, holdings)| all.put(node, holdings));
        all
    }

    /// A node's tenants have this now.
    pub fn put(&mut self, node: String, holdings: ByTenant) {
        self.remove(&node);
        for (tenant, held) in &holdings {
            let total = self.totals.entry(tenant.clone()).or_default();
            total.qps = total.qps.saturating_add(held.qps);
            total.mrs = total.mrs.saturating_add(held.mrs);
            total.memory_bytes = total.memory_bytes.saturating_add(held.memory_bytes);
        }
        self.nodes.insert(node, holdings);
    }

    /// A node is gone, and what was on it.
    pub fn remove(&mut self, node: &str) {
        self.changed = true;
        for (tenant, held) in self.nodes.remove(node).unwrap_or_default() {
            let Some(total) = self.totals.get_mut(&tenant) else { continue };
            total.qps = total.qps.saturating_sub(held.qps);
            total.mrs = total.mrs.saturating_sub(held.mrs);
            total.memory_bytes = total.memory_bytes.saturating_sub(held.memory_bytes);
            if *total == Holdings::default() {
                self.totals.remove(&tenant);
            }
        }
    }

    /// What tenants have together.
    pub fn totals(&self) -> &ByTenant {
        &self.totals
    }

    /// What tenants have that are not on this node. Of a tenant that has nothing elsewhere it says nothing.
    fn elsewhere(&self, node: &str) -> ByTenant {
        let mut all = self.totals.clone();
        for (tenant, held) in self.nodes.get(node).into_iter().flatten() {
            if let Some(total) = all.get_mut(tenant) {
                total.qps = total.qps.saturating_sub(held.qps);
                total.mrs = total.mrs.saturating_sub(held.mrs);
                total.memory_bytes = total.memory_bytes.saturating_sub(held.memory_bytes);
            }
        }
        all.retain(|_, holdings| *holdings != Holdings::default());
        all
    }
}

/// Tells agents for as long as the replica lives.
pub async fn run(shared: Arc<Shared>) {
    let mut told: BTreeMap<String, (crate::store::Revision, ByTenant)> = BTreeMap::new();
    loop {
        let _ = tokio::time::timeout(LOOK, shared.holdings_changed.notified()).await;
        let joined: Vec<(String, crate::store::Revision)> =
            locked(&shared.sessions).iter().map(|(node, one)| (node.clone(), one.revision)).collect();
        let fresh = |(node, revision): &(String, _)| told.get(node).is_none_or(|(known, _)| known != revision);
        let changed = std::mem::take(&mut locked(&shared.holdings).changed);
        if !changed && !joined.iter().any(fresh) {
            continue;
        }
        told.retain(|node, _| joined.iter().any(|(other, _)| other == node));
        for (node, revision) in joined {
            let elsewhere = locked(&shared.holdings).elsewhere(&node);
            let known = told.get(&node).filter(|(known, _)| *known == revision);
            // Who has just joined believes that there is nothing.
            if !known.map_or(elsewhere.is_empty(), |(_, known)| *known == elsewhere) {
                let message = to_agent::Message::Elsewhere(message::holdings_message(&elsewhere));
                shared.note(&node, Note::Message(message));
            }
            told.insert(node, (revision, elsewhere));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_hears_what_the_others_have_and_nothing_of_its_own() {
        let mut all = AllHoldings::default();
        let of = |qps| BTreeMap::from([("red".to_owned(), Holdings { qps, ..Holdings::default() })]);
        all.put("n1".into(), of(3));
        all.put("n2".into(), of(4));
        all.put("n1".into(), of(1));
        assert_eq!(all.totals()["red"].qps, 5);
        assert_eq!((all.elsewhere("n1")["red"].qps, all.elsewhere("n2")["red"].qps), (4, 1));
        assert_eq!(all.elsewhere("n3")["red"].qps, 5);
        all.remove("n2");
        assert!(all.elsewhere("n1").is_empty());
        all.remove("n1");
        assert!(all.totals().is_empty());
    }
}
