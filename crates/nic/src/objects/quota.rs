//! Limits of the device that no table keeps: each object of a limited kind holds a token, and there are no more tokens
//! than `query_device` says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use scalefabric_verbs::{DeviceAttr, Errno, VerbsError};

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

/// What all contexts of a NIC share: numbers must not mean two things, and limits are the device's.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) pds: Arc<Quota>,
    pub(crate) mrs: Arc<Quota>,
    pub(crate) mws: Arc<Quota>,
    pub(crate) ahs: Arc<Quota>,
    next_pd: AtomicU32,
    next_xrcd: AtomicU32,
}

impl Registry {
    pub(crate) fn new(attr: &DeviceAttr) -> Self {
        Self {
            pds: Quota::new("protection domains", attr.max_pd),
            mrs: Quota::new("memory regions", attr.max_mr),
            mws: Quota::new("memory windows", attr.max_mw),
            ahs: Quota::new("address handles", attr.max_ah),
            next_pd: AtomicU32::new(1),
            next_xrcd: AtomicU32::new(1),
        }
    }

    /// A number for a new PD.
    pub(crate) fn pd_number(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a new XRC domain.
    pub(crate) fn xrcd_number(&self) -> u32 {
        self.next_xrcd.fetch_add(1, Ordering::Relaxed)
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
