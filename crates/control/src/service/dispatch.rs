//! One listener for the whole replica: what the store tells goes to the sessions that it is for, and to no other.

use super::holdings::AllHoldings;
use super::session::{Note, waiting_order};
use super::{Registered, ReplicaRecord, Shared, Tenants, locked};
use crate::directory::feed::Told;
use crate::keys;
use crate::load::Loads;
use crate::store::{Entry, Event, Revision};
use scalefabric_fabric::directory::Holdings;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;

/// Runs as long as the replica.
pub async fn run(shared: Arc<Shared>) {
    let mut news = shared.feed.listen();
    loop {
        match news.recv().await {
            Ok(Told::Events(events)) => handle_events(&shared, &events),
            Ok(Told::Listing(entries, revision)) => handle_listing(&shared, &entries, revision),
            Err(RecvError::Lagged(_)) => {
                if let Ok((entries, revision)) = shared.store.list("").await {
                    handle_listing(&shared, &entries, revision);
                }
            }
            Err(RecvError::Closed) => return,
        }
    }
}

fn handle_listing(shared: &Shared, entries: &[Entry], revision: Revision) {
    locked(&shared.replicas).clear();
    *locked(&shared.holdings) = AllHoldings::of(entries.iter().filter_map(holdings));
    shared.holdings_changed.notify_one();
    take_policy(shared, entries, revision);
    let mut changed = Changed { policy: true, ..Changed::default() };
    let mut there = BTreeSet::new();
    for entry in entries {
        if entry.key.starts_with(keys::NODES)
            && let Some(node) = keys::parts(&entry.key).and_then(|parts| parts.into_iter().next())
        {
            there.insert(node);
        }
        handle_put(shared, entry, &mut changed);
    }
    // Who joined after the listing cannot be in it.
    let before = |(_, one): &(&String, &Registered)| one.revision <= revision;
    let joined: Vec<String> = locked(&shared.sessions).iter().filter(before).map(|(node, _)| node.clone()).collect();
    for node in joined.iter().filter(|node| !there.contains(*node)) {
        shared.note(node, Note::NodeGone);
    }
    changed.all_services = true;
    tell(shared, &changed);
}

/// Puts the policy of a listing in the place of the one before, in one step: a part of it would let in whom the rest keeps out.
fn take_policy(shared: &Shared, entries: &[Entry], revision: Revision) {
    let mut fresh = Tenants { known: true, revision, ..Tenants::default() };
    for entry in entries.iter().filter(|entry| entry.key.starts_with(keys::TENANTS)) {
        if let Some(tenant) = keys::parts(&entry.key).and_then(|parts| parts.into_iter().next())
            && let Ok(value) = serde_json::from_slice(&entry.value)
        {
            fresh.values.insert(tenant, value);
        }
    }
    *locked(&shared.tenants) = fresh;
}

/// What tenants have on a node, if this entry says so.
fn holdings(entry: &Entry) -> Option<(String, BTreeMap<String, Holdings>)> {
    if !entry.key.starts_with(keys::HOLDINGS) {
        return None;
    }
    let node = keys::parts(&entry.key)?.into_iter().next()?;
    Some((node, serde_json::from_slice(&entry.value).ok()?))
}

/// What must be told to several sessions.
#[derive(Default)]
struct Changed {
    services: BTreeSet<String>,
    all_services: bool,
    policy: bool,
}

fn handle_events(shared: &Shared, events: &[Event]) {
    let mut changed = Changed::default();
    for event in events {
        match event {
            Event::Put(entry) => handle_put(shared, entry, &mut changed),
            Event::Delete { key, .. } => handle_delete(shared, key, &mut changed),
        }
    }
    tell(shared, &changed);
}

fn handle_put(shared: &Shared, entry: &Entry, changed: &mut Changed) {
    let key = entry.key.as_str();
    let first = || keys::parts(key).and_then(|parts| parts.into_iter().next());
    if key.starts_with(keys::CONNECTIONS) {
    } else if key.starts_with(keys::LOADS) {
        if let Ok(loads) = serde_json::from_slice::<Loads>(&entry.value)
            && first().is_some_and(|replica| replica != shared.name)
        {
            shared.loads.handle_neighbour(loads, shared.clock.now());
        }
    } else if key.starts_with(keys::ORDERS) {
        if let Some(node) = first()
            && let Some(message) = waiting_order(key, &entry.value)
        {
            shared.note(&node, Note::Message(message));
        }
    } else if key.starts_with(keys::NODES) {
        if let Some(node) = first() {
            shared.note(&node, Note::NodeRecord(entry.revision));
        }
    } else if key.starts_with(keys::HOLDINGS) {
        if let Some((node, holdings)) = holdings(entry) {
            locked(&shared.holdings).put(node, holdings);
            shared.holdings_changed.notify_one();
        }
    } else if key.starts_with(keys::SERVICES) {
        changed.services.extend(first());
    } else if key.starts_with(keys::REPLICAS) {
        if let Ok(replica) = serde_json::from_slice::<ReplicaRecord>(&entry.value) {
            locked(&shared.replicas).insert(replica.name.clone(), replica);
        }
    } else if key.starts_with(keys::TENANTS)
        && let Some(tenant) = first()
        && let Ok(value) = serde_json::from_slice(&entry.value)
    {
        let mut tenants = locked(&shared.tenants);
        tenants.values.insert(tenant, value);
        tenants.revision = tenants.revision.max(entry.revision);
        changed.policy = true;
    }
}

fn handle_delete(shared: &Shared, key: &str, changed: &mut Changed) {
    let Some(first) = keys::parts(key).and_then(|parts| parts.into_iter().next()) else { return };
    if key.starts_with(keys::HOLDINGS) {
        locked(&shared.holdings).remove(&first);
        shared.holdings_changed.notify_one();
    } else if key.starts_with(keys::SERVICES) {
        changed.services.insert(first);
    } else if key.starts_with(keys::NODES) {
        shared.note(&first, Note::NodeGone);
    } else if key.starts_with(keys::REPLICAS) {
        locked(&shared.replicas).remove(&first);
    } else if key.starts_with(keys::TENANTS) {
        locked(&shared.tenants).values.remove(&first);
        changed.policy = true;
    }
}

fn tell(shared: &Shared, changed: &Changed) {
    // Who may connect is told before where to.
    if changed.policy
        && let Some(policy) = shared.policy()
    {
        for node in shared.joined() {
            shared.note(&node, Note::Message(policy.clone()));
        }
    }
    if changed.all_services || !changed.services.is_empty() {
        let mut notes = Vec::new();
        for (node, registered) in locked(&shared.sessions).iter() {
            let wanted =
                registered.wants.iter().filter(|name| changed.all_services || changed.services.contains(*name));
            notes.extend(wanted.map(|service| (node.clone(), service.clone())));
        }
        for (node, service) in notes {
            shared.note(&node, Note::Message(shared.service_update(&service)));
        }
    }
}
