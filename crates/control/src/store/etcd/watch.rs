//! A watch of etcd that survives its connection: it is opened again from where it was, at another member if need be, without a gap.

use super::super::{Event, Pending, Revision, StoreError, Watch};
use super::members::Members;
use super::{Failed, entry, revision, transaction};
use scalefabric_fabric::exchange::etcd_api::{EventType, WatchCreateRequest, WatchResponse};
use tonic::Streaming;

/// The watch.
pub struct Reader {
    members: Members,
    root: String,
    prefix: Vec<u8>,
    after: Revision,
    open: Option<Streaming<WatchResponse>>,
    /// Of an answer that came in fragments.
    pieces: Vec<Event>,
}

impl Reader {
    /// Opens it.
    pub async fn open(members: Members, root: &str, prefix: &str, after: Revision) -> Result<Self, StoreError> {
        let prefix = [root.as_bytes(), prefix.as_bytes()].concat();
        let mut reader = Self { members, root: root.to_owned(), prefix, after, open: None, pieces: Vec::new() };
        reader.reopen().await?;
        Ok(reader)
    }

    async fn reopen(&mut self) -> Result<(), StoreError> {
        self.pieces.clear();
        let members = self.members.clone();
        let mut attempt = members.attempt();
        loop {
            match self.try_open(&attempt).await {
                Ok(open) => {
                    self.open = Some(open);
                    return Ok(());
                }
                Err(failed) => attempt.again(failed.surely_not_done()).await?,
            }
        }
    }

    async fn try_open(&self, attempt: &super::members::Attempt<'_>) -> Result<Streaming<WatchResponse>, Failed> {
        let create = WatchCreateRequest {
            start_revision: self.after.0.cast_signed() + 1,
            fragment: true,
            ..WatchCreateRequest::prefixed(self.prefix.as_slice())
        };
        attempt.bounded(attempt.member().watch(create)).await
    }

    fn heard(&mut self, answer: WatchResponse) -> Result<Option<Vec<Event>>, StoreError> {
        if answer.canceled {
            self.open = None;
            if answer.compact_revision > 0 {
                return Err(StoreError::Compacted(revision(answer.compact_revision)));
            }
            return Ok(None);
        }
        for event in answer.events {
            let is_put = event.kind() == EventType::Put;
            let Some(entry) = event.kv.and_then(|pair| entry(&self.root, pair)) else { continue };
            if entry.key.starts_with(transaction::PREFIX) {
                continue;
            }
            self.pieces.push(if is_put {
                Event::Put(entry)
            } else {
                Event::Delete { key: entry.key, revision: entry.revision }
            });
        }
        if answer.fragment || self.pieces.is_empty() {
            return Ok(None);
        }
        let events = std::mem::take(&mut self.pieces);
        if let Some(Event::Put(super::Entry { revision, .. }) | Event::Delete { revision, .. }) = events.last() {
            self.after = *revision;
        }
        Ok(Some(events))
    }
}

impl Watch for Reader {
    fn next(&mut self) -> Pending<'_, Vec<Event>> {
        Box::pin(async move {
            loop {
                let Some(open) = &mut self.open else {
                    self.reopen().await?;
                    continue;
                };
                match open.message().await {
                    Ok(Some(answer)) => {
                        if let Some(events) = self.heard(answer)? {
                            return Ok(events);
                        }
                    }
                    Ok(None) | Err(_) => self.open = None,
                }
            }
        })
    }
}
