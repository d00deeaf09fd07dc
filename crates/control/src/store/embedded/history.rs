//! What happened lately, for watches: in memory, bounded, forgotten from the front. A reader that falls behind the front is told so and never
//! sees a gap.

use super::super::{Event, Pending, Revision, StoreError, Watch};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Bytes of keys and values that are kept.
const KEPT_BYTES: usize = 32 * 1024 * 1024;
/// Events that one call of [`Watch::next`] gives at least when there are so many; a revision is never cut.
const ENOUGH: usize = 1000;

/// One revision.
struct Happened {
    revision: Revision,
    events: Vec<Event>,
    bytes: usize,
}

#[derive(Default)]
struct Kept {
    happened: VecDeque<Happened>,
    /// All up to here is forgotten.
    forgotten: Revision,
    bytes: usize,
}

/// The history.
pub struct History {
    kept: Mutex<Kept>,
    latest: watch::Sender<Revision>,
}

impl History {
    /// One that knows nothing before a revision.
    pub fn beginning_at(revision: Revision) -> Self {
        let kept = Kept { forgotten: revision, ..Kept::default() };
        Self { kept: Mutex::new(kept), latest: watch::Sender::new(revision) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what is now on the disk.
    pub fn add(&self, all: Vec<(Revision, Vec<Event>)>) {
        let Some(&(latest, _)) = all.last() else { return };
        let mut kept = self.kept();
        for (revision, events) in all {
            let bytes = events.iter().map(size).sum();
            kept.bytes += bytes;
            kept.happened.push_back(Happened { revision, events, bytes });
        }
        while kept.bytes > KEPT_BYTES {
            kept.forget_first();
        }
        drop(kept);
        self.latest.send_replace(latest);
    }

    /// Forgets all up to a revision.
    pub fn forget(&self, up_to: Revision) {
        let mut kept = self.kept();
        while kept.happened.front().is_some_and(|first| first.revision <= up_to) {
            kept.forget_first();
        }
    }
}

impl Kept {
    fn forget_first(&mut self) {
        if let Some(first) = self.happened.pop_front() {
            self.bytes -= first.bytes;
            self.forgotten = first.revision;
        }
    }
}

fn size(event: &Event) -> usize {
    match event {
        Event::Put(entry) => 64 + entry.key.len() + entry.value.len(),
        Event::Delete { key, .. } => 64 + key.len(),
    }
}

/// A watch.
pub struct Reader {
    history: Arc<History>,
    prefix: String,
    after: Revision,
    latest: watch::Receiver<Revision>,
}

impl Reader {
    /// Of a prefix, from the change after `after`.
    pub fn new(history: Arc<History>, prefix: &str, after: Revision) -> Self {
        let latest = history.latest.subscribe();
        Self { history, prefix: prefix.to_owned(), after, latest }
    }

    fn take(&mut self) -> Result<Vec<Event>, StoreError> {
        let kept = self.history.kept();
        if self.after < kept.forgotten {
            return Err(StoreError::Compacted(kept.forgotten));
        }
        let mut found = Vec::new();
        let begin = kept.happened.partition_point(|happened| happened.revision <= self.after);
        for happened in kept.happened.range(begin..) {
            let ours = |event: &&Event| match event {
                Event::Put(entry) => entry.key.starts_with(&self.prefix),
                Event::Delete { key, .. } => key.starts_with(&self.prefix),
            };
            found.extend(happened.events.iter().filter(ours).cloned());
            self.after = happened.revision;
            if found.len() >= ENOUGH {
                break;
            }
        }
        Ok(found)
    }
}

impl Watch for Reader {
    fn next(&mut self) -> Pending<'_, Vec<Event>> {
        Box::pin(async move {
            loop {
                self.latest.borrow_and_update();
                let found = self.take()?;
                if !found.is_empty() {
                    return Ok(found);
                }
                let gone = |_| StoreError::NotDone("the store has been closed".into());
                self.latest.changed().await.map_err(gone)?;
            }
        })
    }
}
