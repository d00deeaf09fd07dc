//! A watch of etcd that survives its connection: it is opened again from where it was, at another member if need be, without a gap.

use super::super::{Event, Pending, Revision, StoreError, Watch};
use super::members::Members;
use super::{Failed, after_prefix, entry, revision, transaction};
use crate::proto::etcd::event::EventType;
use crate::proto::etcd::{WatchCreateRequest, WatchRequest, WatchResponse, watch_request};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// The watch.
pub struct Reader {
    members: Members,
    root: String,
    prefix: Vec<u8>,
    after: Revision,
    open: Option<Open>,
    /// Of an answer that came in fragments.
    pieces: Vec<Event>,
}

struct Open {
    answers: Streaming<WatchResponse>,
    /// etcd ends the watch when this is dropped.
    _requests: mpsc::Sender<WatchRequest>,
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

    async fn try_open(&self, attempt: &super::members::Attempt<'_>) -> Result<Open, Failed> {
        let create = WatchCreateRequest {
            key: self.prefix.clone(),
            range_end: after_prefix(&self.prefix),
            start_revision: self.after.0.cast_signed() + 1,
            fragment: true,
        };
        let (requests, queue) = mpsc::channel(1);
        let create = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
        requests.try_send(create).map_err(|error| Failed::NotDone(error.to_string()))?;
        let mut client = attempt.watch();
        let call = client.watch(attempt.request(ReceiverStream::new(queue)));
        let answers = attempt.bounded(call).await?;
        Ok(Open { answers, _requests: requests })
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
            let is_put = event.r#type() == EventType::Put;
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
                match open.answers.message().await {
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
