//! Limits of the device that no table keeps: each object of a limited kind holds a token, and there are no more tokens
//! than `query_device` says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use scalefabric_verbs::{Errno, VerbsError};

/// Tokens of one kind.
#[derive(Debug)]
pub(crate) struct Quota {
    what: &'static str,
    limit: u32,
    used: AtomicU32,
}

impl Quota {
    pub(crate) fn new(what: &'static str, limit: u32) -> Arc<Self> {
        Arc::new(Self { what, limit, used: AtomicU32::new(0) })
    }

    /// One more object.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Token, VerbsError> {
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < self.limit).then_some(used + 1));
        match taken {
            Ok(_) => Ok(Token(self.clone())),
            Err(_) => Err(VerbsError::environment(
                Errno::ENOMEM,
                format!("the device has no more {}: {} are in use; destroy some", self.what, self.limit),
            )),
        }
    }
}

/// One object's place.
#[derive(Debug)]
pub(crate) struct Token(Arc<Quota>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_object_makes_room_for_another() {
        let quota = Quota::new("windows", 1);
        let token = quota.take().unwrap();
        assert_eq!(quota.take().unwrap_err().errno, Errno::ENOMEM);
        drop(token);
        assert!(quota.take().is_ok());
    }
}
