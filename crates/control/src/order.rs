//! Orders on their way: from whoever decided, through the store, to the replica that the node's agent has joined, to the process, and back. The
//! store is between them so that neither need know which replica that is, and an order outlives the replica that sent it. An order is carried
//! out at most once: agents know an order that they have seen by its name and answer it again.

use crate::clock::Clock;
use crate::directory::feed::{Feed, Told};
use crate::keys;
use crate::message::Answer;
use crate::store::{Change, Event, MAX_TRANSACTION, Revision, Store, StoreError};
use scalefabric_fabric::directory::Order;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// An order as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderRecord {
    /// What.
    pub order: Order,
    /// Who ordered: a replica's name, or an operator's.
    pub by: String,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// Gives orders.
#[derive(Debug)]
pub struct Orders {
    store: Arc<dyn Store>,
    feed: Arc<Feed>,
    clock: Arc<dyn Clock>,
    name: String,
    serial: AtomicU64,
}

impl Orders {
    /// In the name of a replica. `start` tells this run of it from others.
    pub fn new(store: Arc<dyn Store>, feed: Arc<Feed>, clock: Arc<dyn Clock>, name: &str, start: u64) -> Self {
        Self { store, feed, clock, name: format!("{name}-{start:x}"), serial: AtomicU64::new(0) }
    }

    /// Gives orders to nodes and waits for all answers, at most for `patience`. The answers are in the order of the orders; `None`: no answer in
    /// time, and it may still be carried out.
    pub async fn send(
        &self,
        orders: &[(String, Order)],
        by: &str,
        patience: Duration,
    ) -> Result<Vec<Option<Answer>>, StoreError> {
        let mut news = self.feed.listen();
        let deadline = self.clock.now() + patience;
        let mut waiting = HashMap::with_capacity(orders.len());
        let mut answers = vec![None; orders.len()];
        let mut changes = Vec::with_capacity(orders.len());
        for (index, (node, order)) in orders.iter().enumerate() {
            let id = format!("{}-{}", self.name, self.serial.fetch_add(1, Ordering::Relaxed));
            let key = keys::order(node, &id);
            let record = OrderRecord { order: order.clone(), by: by.to_owned(), answer: None };
            changes.push(Change::Put { key: key.clone(), value: json(&record)?, lease: None });
            waiting.insert(key, index);
        }
        for chunk in changes.chunks(MAX_TRANSACTION) {
            self.store.transact(Vec::new(), chunk.to_vec()).await?;
        }
        while !waiting.is_empty() {
            let left = deadline.saturating_sub(self.clock.now());
            let Ok(told) = tokio::time::timeout(left, news.recv()).await else { break };
            let entries = match told {
                Ok(Told::Events(events)) => {
                    let put = |event: &Event| match event {
                        Event::Put(entry) if waiting.contains_key(&entry.key) => Some(entry.clone()),
                        _ => None,
                    };
                    events.iter().filter_map(put).collect()
                }
                Ok(Told::Listing(entries, _)) => entries.as_ref().clone(),
                Err(RecvError::Lagged(_)) => self.store.list(keys::ORDERS).await?.0,
                Err(RecvError::Closed) => break,
            };
            for entry in entries {
                let Ok(record) = serde_json::from_slice::<OrderRecord>(&entry.value) else { continue };
                if let Some(answer) = record.answer
                    && let Some(index) = waiting.remove(&entry.key)
                {
                    answers[index] = Some(answer);
                }
            }
        }
        Ok(answers)
    }

    /// Deletes orders that were given before a revision. Their answers have been heard, or nobody waits for them any more.
    pub async fn sweep(&self, before: Revision) -> Result<usize, StoreError> {
        let (entries, _) = self.store.list(keys::ORDERS).await?;
        let old: Vec<Change> = entries
            .into_iter()
            .filter(|entry| entry.revision < before)
            .map(|entry| Change::Delete { key: entry.key })
            .collect();
        for chunk in old.chunks(MAX_TRANSACTION) {
            self.store.transact(Vec::new(), chunk.to_vec()).await?;
        }
        Ok(old.len())
    }
}

/// A value for the store.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Invalid(format!("a value has no JSON form: {error}")))
}
