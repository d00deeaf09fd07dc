//! XRC domains (annex A14): what ties XRC target QPs to XRC SRQs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use scalefabric_verbs::{Errno, VerbsError, XrcDomain};

use super::Alive;
use crate::engine::drive::Core;

/// What QPs and SRQs of a domain hold.
#[derive(Debug)]
pub(crate) struct Xrcd {
    pub(crate) id: u32,
    pub(crate) users: AtomicU32,
    pub(crate) alive: Alive,
}

/// An XRC domain.
#[derive(Debug)]
pub struct XrcdObject {
    pub(crate) core: Arc<Core>,
    pub(crate) xrcd: Arc<Xrcd>,
}

impl XrcdObject {
    pub(crate) fn new(core: &Arc<Core>, id: u32) -> Self {
        let xrcd = Xrcd { id, users: AtomicU32::new(0), alive: Alive::new() };
        Self { core: core.clone(), xrcd: Arc::new(xrcd) }
    }
}

impl XrcDomain for XrcdObject {
    fn destroy(&self) -> Result<(), VerbsError> {
        if self.xrcd.alive.is_inherited() {
            return Ok(());
        }
        self.xrcd.alive.check("XRC domain")?;
        let users = self.xrcd.users.load(Ordering::Acquire);
        if users > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("the XRC domain is used by {users} SRQs or target QPs: destroy them first"),
            ));
        }
        self.xrcd.alive.end();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A use of an XRC domain, for as long as it is held.
#[derive(Debug)]
pub(crate) struct XrcdUse(pub(crate) Arc<Xrcd>);

impl XrcdUse {
    pub(crate) fn new(xrcd: &Arc<Xrcd>) -> Result<Self, VerbsError> {
        xrcd.alive.check("XRC domain")?;
        xrcd.users.fetch_add(1, Ordering::AcqRel);
        Ok(Self(xrcd.clone()))
    }
}

impl Drop for XrcdUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
