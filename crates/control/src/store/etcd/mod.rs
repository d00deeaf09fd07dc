//! The store over etcd, version 3. It keeps nothing itself, so any number of replicas share one etcd.
//!
//! What etcd does not say, whether a change was made when the answer got lost, is found out: each transaction also writes a receipt, under a
//! guard of its own, so that sending it again is asking whether it was done (see `transaction`). Only who has waited in vain for the whole
//! [`Settings::patience`] hears [`StoreError::Unavailable`].

mod failure;
mod lease;
mod members;
mod transaction;
mod watch;

use super::{Change, Entry, Guard, LeaseId, Pending, Revision, Store, StoreError, Watch, rules};
use failure::Failed;
use members::Members;
pub use scalefabric_fabric::exchange::etcd_api::EtcdTls as Tls;
use scalefabric_fabric::exchange::etcd_api::{KeyValue, RangeRequest, RangeResponse, after_prefix};
use std::time::Duration;
use transaction::Receipts;

/// Keys that one answer of etcd holds at most while listing.
const PAGE: i64 = 2000;

/// How etcd is reached.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses of its members, such as `http://10.0.0.1:2379`; `https` with [`Settings::tls`].
    pub endpoints: Vec<String>,
    /// What all keys begin with, so that others can use the same etcd. Default `scalefabric/`.
    pub root: String,
    /// How long a call tries all members before it gives up. Default 10 s.
    pub patience: Duration,
    /// Certificates.
    pub tls: Option<Tls>,
}

impl Settings {
    /// Members, and defaults for all else.
    pub fn new(endpoints: Vec<String>) -> Self {
        Self { endpoints, root: "scalefabric/".into(), patience: Duration::from_secs(10), tls: None }
    }
}

/// The store.
#[derive(Debug)]
pub struct Etcd {
    members: Members,
    receipts: Receipts,
    root: String,
}

impl Etcd {
    /// Does not wait for etcd to be there. [`StoreError::Invalid`] for addresses and certificates that cannot be used. Must be called within a
    /// tokio runtime.
    pub fn new(settings: &Settings) -> Result<Self, StoreError> {
        if settings.root.is_empty() || !settings.root.ends_with('/') {
            return Err(StoreError::Invalid(format!("the root of the keys is `{}`; it ends with `/`", settings.root)));
        }
        Ok(Self {
            members: Members::new(settings)?,
            receipts: Receipts::new(&settings.root),
            root: settings.root.clone(),
        })
    }

    fn full(&self, key: &str) -> Vec<u8> {
        [self.root.as_bytes(), key.as_bytes()].concat()
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        let mut attempt = self.members.attempt();
        loop {
            match attempt.bounded(attempt.member().range(request.clone())).await {
                Ok(answer) => return Ok(answer),
                // Reading changes nothing, so it may always be tried again.
                Err(failed) => attempt.again(failed.surely_not_done()).await?,
            }
        }
    }
}

/// An entry from etcd's key and value; `None` for a key outside the root.
fn entry(root: &str, pair: KeyValue) -> Option<Entry> {
    let key = String::from_utf8(pair.key).ok()?.strip_prefix(root)?.to_owned();
    let lease = (pair.lease != 0).then_some(LeaseId(pair.lease));
    Some(Entry { key, value: pair.value, revision: revision(pair.mod_revision), lease })
}

fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

impl Store for Etcd {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    fn get<'a>(&'a self, key: &'a str) -> Pending<'a, Option<Entry>> {
        Box::pin(async move {
            rules::key(key)?;
            let answer = self.range(RangeRequest::of(self.full(key))).await?;
            Ok(answer.kvs.into_iter().find_map(|pair| entry(&self.root, pair)))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Pending<'a, (Vec<Entry>, Revision)> {
        Box::pin(async move {
            let range_end = after_prefix(&self.full(prefix));
            let mut next = self.full(prefix);
            let (mut found, mut at) = (Vec::new(), 0);
            loop {
                let request = RangeRequest {
                    key: next.clone(),
                    range_end: range_end.clone(),
                    limit: PAGE,
                    revision: at,
                    ..RangeRequest::default()
                };
                let answer = self.range(request).await?;
                if at == 0 {
                    at = answer.header.map_or(0, |header| header.revision);
                }
                if let Some(last) = answer.kvs.last() {
                    next = [last.key.as_slice(), &[0]].concat();
                }
                found.extend(answer.kvs.into_iter().filter_map(|pair| entry(&self.root, pair)));
                if !answer.more {
                    found.retain(|entry| !entry.key.starts_with(transaction::PREFIX));
                    return Ok((found, revision(at)));
                }
            }
        })
    }

    fn transact(&self, guards: Vec<Guard>, changes: Vec<Change>) -> Pending<'_, Option<Revision>> {
        Box::pin(async move {
            rules::transaction(&guards, &changes)?;
            transaction::run(self, &guards, &changes).await
        })
    }

    fn grant(&self, ttl: Duration) -> Pending<'_, LeaseId> {
        Box::pin(lease::grant(self, ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(lease::keep_alive(self, lease))
    }

    fn revoke(&self, lease: LeaseId) -> Pending<'_, ()> {
        Box::pin(lease::revoke(self, lease))
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> Pending<'a, Box<dyn Watch>> {
        Box::pin(async move {
            let reader = watch::Reader::open(self.members.clone(), &self.root, prefix, after).await?;
            Ok(Box::new(reader) as Box<dyn Watch>)
        })
    }

    fn compact(&self, up_to: Revision) -> Pending<'_, ()> {
        Box::pin(async move {
            transaction::forget(self, up_to).await?;
            let number = i64::try_from(up_to.0).unwrap_or(i64::MAX);
            let mut attempt = self.members.attempt();
            loop {
                match attempt.bounded(attempt.member().compact(number)).await {
                    Ok(_) | Err(Failed::Compacted | Failed::Future) => return Ok(()),
                    Err(failed) => attempt.again(failed.surely_not_done()).await?,
                }
            }
        })
    }
}
