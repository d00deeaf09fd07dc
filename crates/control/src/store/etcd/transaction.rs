//! Transactions that are carried out exactly once although answers get lost.
//!
//! Each transaction also puts a receipt, a key that nobody else writes, under the guard that the receipt is as it was before. So of all copies of
//! a transaction that were ever sent only one can take effect, however late it arrives, and the copy that is refused reads the receipt and
//! finds out whether an earlier one did. A receipt is used by one transaction at a time.

use super::super::{Change, Guard, Revision, StoreError};
use super::members::Attempt;
use super::{Etcd, Failed, revision};
use scalefabric_fabric::exchange::etcd_api::{
    Compare, DeleteRangeRequest, KeyValue, Operation, Outcome, PutRequest, RangeRequest, RequestOp, TxnRequest,
    TxnResponse,
};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

/// Receipts begin with this, below the root. No key of a caller does.
pub const PREFIX: &str = "~receipt/";

/// A receipt and the revision at which it was last seen.
#[derive(Debug)]
struct Receipt {
    key: String,
    seen: i64,
}

#[derive(Debug, Default)]
struct Free {
    receipts: Vec<Receipt>,
    made: u64,
    serial: u64,
}

/// The receipts of this process.
#[derive(Debug)]
pub struct Receipts {
    name: String,
    free: Mutex<Free>,
}

impl Receipts {
    /// None yet; each is made when all others are in use.
    pub fn new(root: &str) -> Self {
        Self { name: format!("{root}{PREFIX}{:016x}{:016x}", random(), random()), free: Mutex::default() }
    }

    fn take(&self) -> (Receipt, Vec<u8>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.serial += 1;
        let text = free.serial.to_string().into_bytes();
        let receipt = free.receipts.pop().unwrap_or_else(|| {
            free.made += 1;
            Receipt { key: format!("{}/{}", self.name, free.made), seen: 0 }
        });
        (receipt, text)
    }

    fn give_back(&self, receipt: Receipt) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).receipts.push(receipt);
    }
}

/// A number that nobody else has.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Carries it out.
pub async fn run(store: &Etcd, guards: &[Guard], changes: &[Change]) -> Result<Option<Revision>, StoreError> {
    let (mut receipt, text) = store.receipts.take();
    let leases = changes.iter().find_map(|change| match change {
        Change::Put { lease, .. } => *lease,
        Change::Delete { .. } => None,
    });
    let mut attempt = store.members.attempt();
    let mut in_doubt = false;
    loop {
        let request = transaction(store, guards, changes, &receipt, &text);
        let failed = match send(&attempt, request).await {
            Ok(answer) => match settle(&answer, &mut receipt, &text) {
                Settled::Done(revision) => {
                    store.receipts.give_back(receipt);
                    return Ok(Some(revision));
                }
                // An earlier copy may still be on its way, and its guards may hold when it arrives: it is shut out first.
                Settled::Refused if in_doubt => match shut_out(&attempt, &mut receipt).await {
                    Ok(()) => {
                        in_doubt = false;
                        continue;
                    }
                    Err(failed) => failed,
                },
                Settled::Refused => {
                    store.receipts.give_back(receipt);
                    return Ok(None);
                }
                Settled::ReceiptChanged => continue,
            },
            Err(Failed::NoLease) => {
                if !in_doubt {
                    store.receipts.give_back(receipt);
                }
                return Err(Failed::NoLease.error(leases));
            }
            Err(failed) => failed,
        };
        in_doubt |= matches!(failed, Failed::InDoubt(_));
        let failed = match failed {
            Failed::NotDone(why) if in_doubt => Failed::InDoubt(why),
            other => other,
        };
        // A receipt that is in doubt at the end is not given back.
        attempt.again(failed).await?;
    }
}

enum Settled {
    Done(Revision),
    /// A guard of the caller did not hold.
    Refused,
    /// Somebody swept the receipt away; it is known anew.
    ReceiptChanged,
}

fn settle(answer: &TxnResponse, receipt: &mut Receipt, text: &[u8]) -> Settled {
    if answer.succeeded {
        let at = answer.header.map_or(0, |header| header.revision);
        receipt.seen = at;
        return Settled::Done(revision(at));
    }
    let found = answer.responses.iter().find_map(|one| match &one.response {
        Some(Outcome::Range(range)) => range.kvs.first(),
        _ => None,
    });
    let at = found.map_or(0, |pair: &KeyValue| pair.mod_revision);
    if found.is_some_and(|pair| pair.value == text) {
        receipt.seen = at;
        return Settled::Done(revision(at));
    }
    if at == receipt.seen {
        return Settled::Refused;
    }
    receipt.seen = at;
    Settled::ReceiptChanged
}

async fn send(attempt: &Attempt<'_>, request: TxnRequest) -> Result<TxnResponse, Failed> {
    attempt.bounded(attempt.member().txn(request)).await
}

/// Changes the receipt, so that no copy sent before can take effect. Whether it or a copy came first, the next copy finds out.
async fn shut_out(attempt: &Attempt<'_>, receipt: &mut Receipt) -> Result<(), Failed> {
    let request = TxnRequest {
        compare: vec![Compare::unchanged(receipt.key.as_bytes(), receipt.seen)],
        success: vec![put(receipt.key.as_bytes(), b"shut out", 0)],
        failure: Vec::new(),
    };
    let answer = send(attempt, request).await?;
    if answer.succeeded {
        receipt.seen = answer.header.map_or(0, |header| header.revision);
    }
    Ok(())
}

fn transaction(store: &Etcd, guards: &[Guard], changes: &[Change], receipt: &Receipt, text: &[u8]) -> TxnRequest {
    let key = receipt.key.as_bytes();
    let mut compare = vec![Compare::unchanged(key, receipt.seen)];
    compare
        .extend(guards.iter().map(|guard| Compare::unchanged(store.full(&guard.key), guard.revision.0.cast_signed())));
    let mut success = vec![put(key, text, 0)];
    success.extend(changes.iter().map(|change| match change {
        Change::Put { key, value, lease } => put(&store.full(key), value, lease.map_or(0, |lease| lease.0)),
        Change::Delete { key } => delete(store.full(key)),
    }));
    TxnRequest { compare, success, failure: vec![Operation::Range(RangeRequest::of(key)).into()] }
}

fn put(key: &[u8], value: &[u8], lease: i64) -> RequestOp {
    Operation::Put(PutRequest { key: key.to_vec(), value: value.to_vec(), lease }).into()
}

fn delete(key: Vec<u8>) -> RequestOp {
    Operation::Delete(DeleteRangeRequest { key, range_end: Vec::new() }).into()
}

/// Sweeps away receipts that nobody has written since a revision: their processes are gone. Who still has one finds it changed and goes on.
pub async fn forget(store: &Etcd, up_to: Revision) -> Result<(), StoreError> {
    let all = RangeRequest::prefixed(store.full(PREFIX));
    let request = RangeRequest { limit: super::PAGE, keys_only: true, ..all };
    let found = store.range(request).await?;
    let old = |pair: &&KeyValue| revision(pair.mod_revision) <= up_to;
    for pair in found.kvs.iter().filter(old) {
        let request = TxnRequest {
            compare: vec![Compare::unchanged(pair.key.as_slice(), pair.mod_revision)],
            success: vec![delete(pair.key.clone())],
            failure: Vec::new(),
        };
        // If it fails, the next sweep finds it again.
        let _ = send(&store.members.attempt(), request).await;
    }
    Ok(())
}
