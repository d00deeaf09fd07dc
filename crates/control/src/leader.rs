//! Duties that one replica has at a time, such as rebalancing. Who has a duty holds a key on a lease; the revision at which the key was made is the
//! fencing token, which only grows, so that what an earlier holder still says is refused wherever the later one was heard.
//!
//! A holder that cannot reach the store gives the duty up by its own clock before the lease can have ended in the store.

use crate::clock::Clock;
use crate::keys;
use crate::store::{Change, Guard, LeaseId, Revision, Store, StoreError};
use scalefabric_fabric::directory::FencingToken;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long a duty stays with a holder that is not heard of.
pub(crate) const TTL: Duration = Duration::from_secs(5);
/// How often the holder says that it lives, and the others look.
pub(crate) const INTERVAL: Duration = Duration::from_millis(1000);
/// After so long without an answer the holder stops, one second before the lease can end.
pub(crate) const TRUSTED: Duration = Duration::from_secs(4);

/// Whether this replica has the duty.
pub type Held = Option<FencingToken>;

/// When the store was first used, milliseconds since 1970. Tokens count from there, so that those of a store that was made anew in the place of a
/// lost one are above all that agents have seen, as long as the old one made less than a thousand changes a second over its life.
async fn epoch(store: &dyn Store) -> Result<u64, StoreError> {
    loop {
        if let Some(entry) = store.get(keys::EPOCH).await? {
            let text = String::from_utf8(entry.value).unwrap_or_default();
            return text
                .parse()
                .map_err(|_| StoreError::Broken(format!("`{}` holds {text:?}, not a number", keys::EPOCH)));
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let text = now.as_millis().to_string();
        // Whoever was first, the next look shows.
        store.compare_and_swap(keys::EPOCH, Revision(0), text.into_bytes(), None).await?;
    }
}

/// The token of whoever has a duty now.
pub async fn token(store: &dyn Store, duty: &str) -> Result<Held, StoreError> {
    let holder = store.get(&format!("{}{}", keys::LEADERS, keys::part(duty))).await?;
    let Some(holder) = holder else { return Ok(None) };
    Ok(Some(FencingToken(epoch(store).await? + holder.revision.0)))
}

/// A duty that was got.
struct Got {
    lease: LeaseId,
    revision: Revision,
    token: FencingToken,
    /// When the lease was asked for: it may end so long after that.
    asked: Duration,
}

/// Stands for a duty.
#[derive(Debug)]
pub struct Candidate {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    key: String,
    name: String,
    held: watch::Sender<Held>,
    /// Where the key was made, and what it hangs on.
    place: Mutex<Option<(Revision, LeaseId)>>,
}

impl Candidate {
    /// For a duty, under the replica's name.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, duty: &str, name: &str) -> Self {
        let key = format!("{}{}", keys::LEADERS, keys::part(duty));
        Self { store, clock, key, name: name.to_owned(), held: watch::Sender::new(None), place: Mutex::default() }
    }

    /// Whether the duty is here, and each change of that.
    pub fn held(&self) -> watch::Receiver<Held> {
        self.held.subscribe()
    }

    /// Writes what is to live as long as the duty is here; false: it is not here, and nothing was written.
    pub async fn put(&self, key: &str, value: Vec<u8>) -> Result<bool, StoreError> {
        let place = *self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((revision, lease)) = place else { return Ok(false) };
        let guard = Guard { key: self.key.clone(), revision };
        let change = Change::Put { key: key.to_owned(), value, lease: Some(lease) };
        Ok(self.store.transact(vec![guard], vec![change]).await?.is_some())
    }

    /// Stands until it is dropped; then the duty goes to another when the lease ends.
    pub async fn run(&self) {
        loop {
            match self.stand().await {
                Ok(Some(Got { lease, revision, token, asked })) => {
                    *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some((revision, lease));
                    self.held.send_replace(Some(token));
                    self.serve(lease, asked).await;
                    self.held.send_replace(None);
                    *self.place.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                Ok(None) | Err(_) => tokio::time::sleep(INTERVAL).await,
            }
        }
    }

    /// Tries once.
    async fn stand(&self) -> Result<Option<Got>, StoreError> {
        if self.store.get(&self.key).await?.is_some() {
            return Ok(None);
        }
        let asked = self.clock.now();
        let lease = self.store.grant(TTL).await?;
        let name = self.name.clone().into_bytes();
        let epoch = epoch(self.store.as_ref()).await?;
        match self.store.compare_and_swap(&self.key, Revision(0), name, Some(lease)).await {
            // Whoever got it too late to be sure of it leaves it to those who will find it free.
            Ok(Some(revision)) if self.clock.now() < asked + TRUSTED => {
                Ok(Some(Got { lease, revision, token: FencingToken(epoch + revision.0), asked }))
            }
            other => {
                let _ = self.store.revoke(lease).await;
                other.map(|_| None)
            }
        }
    }

    /// Holds it for as long as it surely is held.
    async fn serve(&self, lease: LeaseId, asked: Duration) {
        let mut renewed = asked;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let asked = self.clock.now();
            let left = (renewed + TRUSTED).saturating_sub(asked);
            match tokio::time::timeout(left, self.store.keep_alive(lease)).await {
                Ok(Ok(())) => renewed = asked,
                Ok(Err(error)) if error.is_passing() && self.clock.now() < renewed + TRUSTED => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }
}
