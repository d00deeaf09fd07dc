//! Leases of etcd. The number is chosen here, so that asking again for a lease that was granted is recognised.

use super::super::{LeaseId, StoreError, rules};
use super::{Etcd, Failed};
use std::time::Duration;

/// Grants one.
pub async fn grant(store: &Etcd, ttl: Duration) -> Result<LeaseId, StoreError> {
    rules::ttl(ttl)?;
    let id = super::transaction::random().cast_signed() & i64::MAX;
    let seconds = ttl.as_secs().cast_signed();
    let mut attempt = store.members.attempt();
    let mut again = false;
    loop {
        match attempt.bounded(attempt.member().grant(seconds, id)).await {
            Ok(_) => return Ok(LeaseId(id)),
            Err(Failed::LeaseThere) if again => return Ok(LeaseId(id)),
            // A lease that was granted in vain ends by itself.
            Err(failed) => attempt.again(failed.surely_not_done()).await?,
        }
        again = true;
    }
}

/// Its whole time again.
pub async fn keep_alive(store: &Etcd, lease: LeaseId) -> Result<(), StoreError> {
    let mut attempt = store.members.attempt();
    loop {
        let failed = match attempt.bounded(attempt.member().keep_alive(lease.0)).await {
            Ok(true) => return Ok(()),
            Ok(false) | Err(Failed::NoLease) => return Err(StoreError::LeaseEnded(lease)),
            Err(failed) => failed,
        };
        attempt.again(failed.surely_not_done()).await?;
    }
}

/// Ends it.
pub async fn revoke(store: &Etcd, lease: LeaseId) -> Result<(), StoreError> {
    let mut attempt = store.members.attempt();
    let mut in_doubt = false;
    loop {
        match attempt.bounded(attempt.member().revoke(lease.0)).await {
            Ok(_) => return Ok(()),
            Err(Failed::NoLease) if in_doubt => return Ok(()),
            Err(Failed::NoLease) => return Err(StoreError::LeaseEnded(lease)),
            Err(failed) => {
                in_doubt |= matches!(failed, Failed::InDoubt(_));
                attempt.again(if in_doubt { failed } else { failed.surely_not_done() }).await?;
            }
        }
    }
}
