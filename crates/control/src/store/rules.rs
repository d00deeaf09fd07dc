//! What may be asked of any store, whichever it is: sizes and shapes, checked before anything is sent or written.

use super::{Change, Guard, StoreError};
use std::collections::HashSet;
use std::time::Duration;

/// Most guards and changes of one transaction together. etcd allows 128 operations; its store adds one of its own.
pub const MAX_TRANSACTION: usize = 120;
/// Longest key, bytes.
pub const MAX_KEY: usize = 1024;
/// Longest value, bytes. etcd refuses requests above 1.5 MiB.
pub const MAX_VALUE: usize = 1024 * 1024;
/// Longest lease. etcd's limit is 9,000,000,000 s; a day is more than any keeper needs.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Checks a key.
pub(super) fn key(key: &str) -> Result<(), StoreError> {
    let bad = |byte| byte < b' ' || byte == 0x7f;
    if key.is_empty() || key.len() > MAX_KEY || key.starts_with('~') || key.bytes().any(bad) {
        return Err(StoreError::Invalid(format!(
            "a key has 1 to {MAX_KEY} bytes, no control characters, and does not begin with `~`: {key:?}"
        )));
    }
    Ok(())
}

/// Checks a transaction.
pub(super) fn transaction(guards: &[Guard], changes: &[Change]) -> Result<(), StoreError> {
    let count = guards.len() + changes.len();
    if count > MAX_TRANSACTION || changes.is_empty() {
        return Err(StoreError::Invalid(format!(
            "a transaction of {} guards and {} changes; it has at least 1 change and at most {MAX_TRANSACTION} of both",
            guards.len(),
            changes.len()
        )));
    }
    let mut changed = HashSet::with_capacity(changes.len());
    let mut bytes = 0;
    for change in changes {
        let name = match change {
            Change::Put { key, value, .. } => {
                bytes += value.len();
                key
            }
            Change::Delete { key } => key,
        };
        key(name)?;
        if !changed.insert(name) {
            return Err(StoreError::Invalid(format!("the key `{name}` is changed twice in one transaction")));
        }
    }
    if bytes > MAX_VALUE {
        return Err(StoreError::Invalid(format!("values of {bytes} bytes in one transaction; at most {MAX_VALUE}")));
    }
    guards.iter().try_for_each(|guard| key(&guard.key))
}

/// Checks a lease's time.
pub(super) fn ttl(ttl: Duration) -> Result<(), StoreError> {
    if ttl < Duration::from_secs(1) || ttl > MAX_TTL || ttl.subsec_nanos() != 0 {
        return Err(StoreError::Invalid(format!(
            "a lease of {ttl:?}; it lasts whole seconds, from 1 to {}",
            MAX_TTL.as_secs()
        )));
    }
    Ok(())
}
