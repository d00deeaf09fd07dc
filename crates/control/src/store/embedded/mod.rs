//! The embedded store: one file (redb), one process. It speaks as etcd does, so that a control plane of one replica needs nothing beside it.
//!
//! What has been answered is on the disk: all transactions that wait are written together, with one `fsync`, before any of them is answered.
//! Leases are kept by a clock that is handed in; after a restart each has its whole time again, and time in which the process itself stood still
//! does not count. History for watches is held in memory only: after a restart a watch begins at the present.
//!
//! A file that is damaged, or of another format, is refused and left as it is.

mod file;
mod history;
mod lease;
mod trial;
mod writer;

use super::{Change, Entry, Guard, LeaseId, Pending, Revision, Store, StoreError, Watch, rules};
use crate::clock::Clock;
use history::History;
use lease::SharedLeases;
use redb::{Database, ReadableDatabase};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;
use writer::{Job, Work};

/// How often leases are looked at.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);

/// The embedded store.
pub struct Embedded {
    database: Arc<Database>,
    history: Arc<History>,
    leases: Arc<SharedLeases>,
    clock: Arc<dyn Clock>,
    jobs: Option<mpsc::Sender<Job>>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens the store at `path`, or makes it if there is no such file. [`StoreError::Broken`] for a file that is damaged or of another format,
    /// [`StoreError::Invalid`] if another process has it open or the folder is not there.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let (database, trial) = file::open(path)?;
        let database = Arc::new(database);
        let state = writer::State::load(&database, clock.now()).map_err(|error| file::refused(path, error))?;
        trial.accept().map_err(|error| {
            StoreError::Invalid(format!("the store `{}` cannot be written: {error}", path.display()))
        })?;
        let history = Arc::new(History::beginning_at(state.revision()));
        let (jobs, queue) = mpsc::channel();
        let leases = state.leases();
        let (theirs, told, ticking) = (Arc::clone(&database), Arc::clone(&history), Arc::clone(&clock));
        let writer = std::thread::Builder::new()
            .name("sfab-store".into())
            .spawn(move || writer::run(state, &theirs, &told, &queue, ticking.as_ref()))
            .map_err(|error| StoreError::Invalid(format!("the store's thread could not be started: {error}")))?;
        Ok(Self { database, history, leases, clock, jobs: Some(jobs), writer: Some(writer) })
    }

    /// Ends the leases whose time has passed, now: what the store does by itself ten times a second.
    pub async fn expire(&self) -> Result<(), StoreError> {
        self.ask(Work::Expire).await.map(drop)
    }

    async fn ask(&self, work: Work) -> Result<Option<u64>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.jobs.as_ref().ok_or_else(gone)?.send(Job { work, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn gone() -> StoreError {
    StoreError::Broken("the store's thread has ended: see its last message, and start again".into())
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Store for Embedded {
    fn kind(&self) -> &'static str {
        "embedded"
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>> {
        Box::pin(async move {
            rules::key(key)?;
            let reading = self.database.begin_read().map_err(file::broken)?;
            file::get(&reading, key)
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, (Vec<Entry>, Revision)> {
        let (database, prefix) = (Arc::clone(&self.database), prefix.to_owned());
        Box::pin(async move {
            let listing = move || {
                let reading = database.begin_read().map_err(file::broken)?;
                file::list(&reading, &prefix)
            };
            tokio::task::spawn_blocking(listing).await.map_err(|error| StoreError::Broken(error.to_string()))?
        })
    }

    fn transact(&self, guards: Vec<Guard>, changes: Vec<Change>) -> Pending<'_, Option<Revision>> {
        Box::pin(async move {
            rules::transaction(&guards, &changes)?;
            Ok(self.ask(Work::Transact { guards, changes }).await?.map(Revision))
        })
    }

    fn grant(&self, ttl: Duration) -> Pending<'_, LeaseId> {
        Box::pin(async move {
            rules::ttl(ttl)?;
            let id = self.ask(Work::Grant { ttl }).await?.unwrap_or_default();
            Ok(LeaseId(id.cast_signed()))
        })
    }

    fn keep_alive(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(async move {
            // It is not written, and so does not wait for what is; but a store that writes nothing more keeps nothing alive.
            if self.writer.as_ref().is_none_or(std::thread::JoinHandle::is_finished) {
                return Err(gone());
            }
            let kept = self.leases.lock().keep_alive(lease, self.clock.now());
            if kept { Ok(()) } else { Err(StoreError::LeaseEnded(lease)) }
        })
    }

    fn revoke(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(async move { self.ask(Work::Revoke { lease }).await.map(drop) })
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Pending<'a, Box<dyn Watch>> {
        let watch: Box<dyn Watch> = Box::new(history::Reader::new(Arc::clone(&self.history), prefix, after));
        Box::pin(async move { Ok(watch) })
    }

    fn compact(&self, up_to: Revision) -> Pending<'_, ()> {
        self.history.forget(up_to);
        Box::pin(async { Ok(()) })
    }
}
