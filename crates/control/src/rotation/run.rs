//! Rotations as they run: orders to all nodes that are meant, their answers into the record; and the schedule, which the replica that gives orders follows. It
//! reads the date, since a schedule outlives replicas and their clocks.

use super::record::{RotationRecord, RotationState, Schedule, Scope, check_overlap};
use crate::keys;
use crate::order::json;
use crate::service::Shared;
use crate::store::{Change, Guard, Revision, StoreError};
use scalefabric_fabric::directory::{FencingToken, Order};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the schedule is.
const SCHEDULE: &str = "keys/schedule";
/// When the schedule was last followed, ms since 1970.
const FOLLOWED: &str = "keys/followed";
/// Where rotations are, by number with leading zeros.
const ROTATIONS: &str = "keys/rotations/";
/// Rotations that are kept.
const KEPT: usize = 64;
/// How long nodes may take beyond the overlap: what an agent waits for its processes, and more.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often it is looked whether the schedule is due.
const LOOK: Duration = Duration::from_millis(500);

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn key(serial: u64) -> String {
    format!("{ROTATIONS}{serial:020}")
}

fn read<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value)
        .map_err(|error| StoreError::Broken(format!("`{key}` cannot be read by this version of `sfab`: {error}")))
}

/// The schedule.
pub async fn schedule(shared: &Shared) -> Result<Schedule, StoreError> {
    match shared.store.get(SCHEDULE).await? {
        Some(entry) => read(SCHEDULE, &entry.value),
        None => Ok(Schedule::default()),
    }
}

/// Another schedule. It counts from now.
pub async fn set_schedule(shared: &Shared, schedule: &Schedule) -> Result<(), StoreError> {
    schedule.check()?;
    let put = |key: &str, value| Change::Put { key: key.to_owned(), value, lease: None };
    let changes = vec![put(SCHEDULE, json(schedule)?), put(FOLLOWED, json(&now_ms())?)];
    shared.store.transact(Vec::new(), changes).await.map(drop)
}

/// The last rotations, the newest first.
pub async fn recent(shared: &Shared) -> Result<Vec<RotationRecord>, StoreError> {
    let (entries, _) = shared.store.list(ROTATIONS).await?;
    entries.iter().rev().map(|entry| read(&entry.key, &entry.value)).collect()
}

/// One of them.
pub async fn look(shared: &Shared, serial: u64) -> Result<Option<RotationRecord>, StoreError> {
    let key = key(serial);
    let entry = shared.store.get(&key).await?;
    entry.map(|entry| read(&key, &entry.value)).transpose()
}

/// Begins a rotation and returns its record; it goes on by itself. `None`: nobody has the duty whose token orders carry, or nobody is meant.
pub async fn begin(
    shared: &Arc<Shared>,
    scope: Scope,
    overlap_ms: u64,
    by: &str,
    reason: &str,
) -> Result<Option<RotationRecord>, StoreError> {
    check_overlap(overlap_ms)?;
    scope.check().map_err(|error| StoreError::Invalid(error.to_string()))?;
    let Some(token) = shared.token().await? else { return Ok(None) };
    let nodes: Vec<String> = match &scope {
        Scope::Node(node) => shared.index.node(node).map(|_| node.clone()).into_iter().collect(),
        Scope::All | Scope::Tenant(_) => shared.index.nodes().iter().map(|node| node.node.clone()).collect(),
    };
    if nodes.is_empty() {
        return Ok(None);
    }
    let mut record = RotationRecord {
        serial: 0,
        scope,
        overlap_ms,
        by: by.to_owned(),
        reason: reason.to_owned(),
        begun_ms: now_ms(),
        ended_ms: None,
        state: RotationState::Running,
        nodes: nodes.into_iter().map(|node| (node, None)).collect(),
    };
    store_new(shared, &mut record).await?;
    tokio::spawn(carry_out(Arc::clone(shared), record.clone(), token));
    Ok(Some(record))
}

/// Stores a record under the next number, and lets old ones go.
async fn store_new(shared: &Shared, record: &mut RotationRecord) -> Result<(), StoreError> {
    loop {
        let (entries, _) = shared.store.list(ROTATIONS).await?;
        let last = entries.last().and_then(|entry| entry.key.strip_prefix(ROTATIONS)?.parse::<u64>().ok());
        record.serial = last.unwrap_or(0) + 1;
        let key = key(record.serial);
        let too_many = (entries.len() + 1).saturating_sub(KEPT);
        let mut changes: Vec<Change> =
            entries.iter().take(too_many).map(|entry| Change::Delete { key: entry.key.clone() }).collect();
        changes.push(Change::Put { key: key.clone(), value: json(record)?, lease: None });
        let guard = Guard { key, revision: Revision(0) };
        if shared.store.transact(vec![guard], changes).await?.is_some() {
            return Ok(());
        }
        // Another rotation took the number.
    }
}

/// Gives the orders, waits, and ends the record. Should this replica end meanwhile, the record stays as it is, and the orders are carried out.
async fn carry_out(shared: Arc<Shared>, mut record: RotationRecord, token: FencingToken) {
    let tenant = match &record.scope {
        Scope::Tenant(tenant) => Some(tenant.clone()),
        Scope::All | Scope::Node(_) => None,
    };
    let overlap_ms = record.overlap_ms;
    let order = |node: &String| (node.clone(), Order::RotateKeys { token, overlap_ms, tenant: tenant.clone() });
    let orders: Vec<(String, Order)> = record.nodes.keys().map(order).collect();
    let patience = Duration::from_millis(overlap_ms) + PATIENCE;
    // Without an answer of the store nobody knows what became of the orders: their answers are with them.
    if let Ok(answers) = shared.orders.send(&orders, &record.by, patience).await {
        for ((node, _), answer) in orders.into_iter().zip(answers) {
            record.nodes.insert(node, answer);
        }
    }
    record.end(now_ms());
    let Ok(value) = json(&record) else { return };
    for _ in 0..60 {
        match shared.store.put(&key(record.serial), value.clone(), None).await {
            Err(error) if error.is_passing() => tokio::time::sleep(LOOK).await,
            _ => return,
        }
    }
}

/// Follows the schedule while this replica has the duty to give orders; until it is dropped.
pub async fn run(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(LOOK).await;
        if shared.rebalance.held().borrow().is_some() {
            // What cannot be read or reached now is looked at again.
            let _ = follow(&shared).await;
        }
    }
}

async fn follow(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let schedule = schedule(shared).await?;
    let Some(every_s) = schedule.every_s else { return Ok(()) };
    let followed = shared.store.get(FOLLOWED).await?;
    let (last, revision) = match &followed {
        Some(entry) => (read::<u64>(FOLLOWED, &entry.value)?, entry.revision),
        None => (0, Revision(0)),
    };
    let now = now_ms();
    if now.saturating_sub(last) < every_s.saturating_mul(1000) {
        return Ok(());
    }
    // Whoever writes this has the turn, should two believe that it is theirs.
    if shared.store.compare_and_swap(FOLLOWED, revision, json(&now)?, None).await?.is_some() {
        begin(shared, Scope::All, schedule.overlap_ms, "schedule", "the schedule").await?;
    }
    Ok(())
}

const _: () = assert!(SCHEDULE.len() > keys::KEYS.len(), "everything here stands under `keys/`");
