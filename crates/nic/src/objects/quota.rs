//! Limits of the device that no table keeps: each object of a limited kind holds a token, and there are no more tokens
//! than `query_device` says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use scalefabric_verbs::{DeviceAttr, Errno, VerbsError};

use super::device_memory::DeviceBytes;
use super::protection_domain::Pd;
use super::xrc_domain::XrcDirectory;
use crate::process::Own;
use crate::resources::PdResource;

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
            Err(_) if self.limit == 0 => {
                Err(VerbsError::misuse(Errno::EOPNOTSUPP, format!("this device has no {}: do without", self.what)))
            }
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
    /// PDs by number, for tools.
    live_pds: Own<Mutex<BTreeMap<u32, Weak<Pd>>>>,
    pub(crate) device_bytes: DeviceBytes,
    pub(crate) xrc: XrcDirectory,
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
            live_pds: Own::new(Mutex::new(BTreeMap::new())),
            device_bytes: DeviceBytes::new(attr.max_dm_size),
            xrc: XrcDirectory::new(),
            next_pd: AtomicU32::new(1),
            next_xrcd: AtomicU32::new(1),
        }
    }

    /// A number for a new PD.
    pub(crate) fn pd_number(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    fn pds(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<Pd>>> {
        self.live_pds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A PD was made.
    pub(crate) fn pd_is_born(&self, number: u32, pd: &Arc<Pd>) {
        self.pds().insert(number, Arc::downgrade(pd));
    }

    /// It is destroyed.
    pub(crate) fn pd_is_gone(&self, number: u32) {
        self.pds().remove(&number);
    }

    /// The PDs that there are.
    pub(crate) fn live_pds(&self) -> Vec<PdResource> {
        let all: Vec<_> = self.pds().iter().filter_map(|(number, pd)| Some((*number, pd.upgrade()?))).collect();
        // Outside the lock: the last handle may be this one.
        all.into_iter().map(|(number, pd)| pd.resource(number)).collect()
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
