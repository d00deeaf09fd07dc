//! Leases of etcd. The number is chosen here, so that asking again for a lease that was granted is recognised.

use super::super::{LeaseId, StoreError, rules};
use super::{Etcd, Failed};
use crate::proto::etcd::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest};
use std::time::Duration;

/// Grants one.
pub async fn grant(store: &Etcd, ttl: Duration) -> Result<LeaseId, StoreError> {
    rules::ttl(ttl)?;
    let id = super::transaction::random().cast_signed() & i64::MAX;
    let asked = LeaseGrantRequest { id, ttl: ttl.as_secs().cast_signed() };
    let mut attempt = store.members.attempt();
    let mut again = false;
    loop {
        let mut client = attempt.lease();
        match attempt.bounded(client.lease_grant(attempt.request(asked))).await {
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
        let failed = match once(&attempt, lease).await {
            Ok(Some(answer)) if answer.ttl > 0 => return Ok(()),
            Ok(Some(_)) => return Err(StoreError::LeaseEnded(lease)),
            Ok(None) => Failed::NotDone("etcd closed the stream of leases".into()),
            Err(Failed::NoLease) => return Err(StoreError::LeaseEnded(lease)),
            Err(failed) => failed,
        };
        attempt.again(failed.surely_not_done()).await?;
    }
}

async fn once(attempt: &super::members::Attempt<'_>, lease: LeaseId) -> Result<Option<LeaseKeepAliveResponse>, Failed> {
    let asked = tokio_stream::once(LeaseKeepAliveRequest { id: lease.0 });
    let mut client = attempt.lease();
    let mut answers = attempt.bounded(client.lease_keep_alive(attempt.request(asked))).await?;
    attempt.bounded(async { Ok(tonic::Response::new(answers.message().await?)) }).await
}

/// Ends it.
pub async fn revoke(store: &Etcd, lease: LeaseId) -> Result<(), StoreError> {
    let mut attempt = store.members.attempt();
    let mut in_doubt = false;
    loop {
        let mut client = attempt.lease();
        match attempt.bounded(client.lease_revoke(attempt.request(LeaseRevokeRequest { id: lease.0 }))).await {
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
