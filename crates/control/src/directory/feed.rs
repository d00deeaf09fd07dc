//! From the store into memory: one listing and one watch of all keys for a whole replica. Everybody else in the replica listens here, so that all
//! see the same changes in the same order. It changes nothing.

use super::Index;
use crate::store::{Entry, Event, Revision, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};

/// Batches that a listener may be behind.
const BEHIND: usize = 4096;
/// Between two attempts when the store is away.
const PAUSE: Duration = Duration::from_millis(200);

/// What the store told.
#[derive(Clone, Debug)]
pub enum Told {
    /// All that is there. Earlier news may have been missed.
    Listing(Arc<Vec<Entry>>, Revision),
    /// Changes, in order.
    Events(Arc<Vec<Event>>),
}

/// The feed.
#[derive(Debug)]
pub struct Feed {
    told: broadcast::Sender<Told>,
    health: watch::Sender<Health>,
}

/// Whether the replica sees the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not yet.
    Starting,
    /// What is in memory is what the store has.
    InSync,
    /// The store is away: what is in memory is how it was.
    Away(String),
    /// It will not come back by itself.
    Broken(String),
}

impl Default for Feed {
    fn default() -> Self {
        Self { told: broadcast::Sender::new(BEHIND), health: watch::Sender::new(Health::Starting) }
    }
}

impl Feed {
    /// News from now on. Who lags behind (`RecvError::Lagged`) reads the store itself.
    pub fn listen(&self) -> broadcast::Receiver<Told> {
        self.told.subscribe()
    }

    /// How it is.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Feeds until the store is broken.
    pub async fn run(&self, store: &dyn Store, index: &Index) {
        loop {
            let Err(error) = self.follow(store, index).await;
            match error {
                StoreError::Compacted(_) => continue,
                error if error.is_passing() => self.health.send_replace(Health::Away(error.to_string())),
                error => {
                    self.health.send_replace(Health::Broken(error.to_string()));
                    return;
                }
            };
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self, store: &dyn Store, index: &Index) -> Result<std::convert::Infallible, StoreError> {
        let (entries, revision) = store.list("").await?;
        let mut watch = store.watch("", revision).await?;
        index.handle_listing(&entries, revision);
        let _ = self.told.send(Told::Listing(Arc::new(entries), revision));
        self.health.send_replace(Health::InSync);
        loop {
            match watch.next().await {
                Ok(events) => {
                    index.handle_events(&events);
                    self.health.send_if_modified(|health| {
                        let changed = *health != Health::InSync;
                        *health = Health::InSync;
                        changed
                    });
                    let _ = self.told.send(Told::Events(Arc::new(events)));
                }
                // The watch goes on where it was; only the time in between is lost.
                Err(error) if error.is_passing() => {
                    self.health.send_replace(Health::Away(error.to_string()));
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
