//! Memory windows (clause 10.6.6.2): made on any thread, bound and invalidated by the engine.

use scalefabric_verbs::{AccessFlags, LKey, MwType, RKey, VerbsError};

use super::table::PdId;

/// A window, as its owner holds it. Dropping it frees it.
#[derive(Debug)]
pub struct Window {}

impl Window {
    /// Its type.
    pub fn mw_type(&self) -> MwType {
        todo!()
    }
    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        todo!()
    }
    /// Its present rkey, as the consumer knows it.
    pub fn rkey(&self) -> RKey {
        todo!()
    }
    /// Type 1, at posting time: the rkey that the next bind shall give it. [`Window::rkey`] is that from now on, as
    /// `ibv_bind_mw` has it; the old one stays valid until the bind is executed.
    pub fn prepare_rkey(&self) -> RKey {
        todo!()
    }
    /// Type 2, after posting a bind: remembers the rkey that the consumer chose.
    pub fn set_rkey(&self, _rkey: RKey) {
        todo!()
    }
    /// Frees it, bound or not (clause 11.2.8.12). Waits for the engine's turn as deregistration does. `EINVAL` the
    /// second time.
    pub fn deallocate(&self) -> Result<(), VerbsError> {
        todo!()
    }
}

/// A bind, as it stands in a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Type that the verb or WR is for: `ibv_bind_mw` is for type 1, a BIND_MW WR for type 2.
    pub mw_type: MwType,
    /// The rkey that the window shall have. Its upper 24 bits name the window; type 2: the consumer chose the lower 8;
    /// type 1: from [`Window::prepare_rkey`].
    pub rkey: RKey,
    /// The region; not looked at when `length` is 0.
    pub mr: LKey,
    /// First byte, as the region names it.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Remote rights, and ZERO_BASED.
    pub access: AccessFlags,
}
