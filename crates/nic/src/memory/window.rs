//! Memory windows (clause 10.6.6.2): made on any thread, bound and invalidated by the engine.
//!
//! A window of type 1 belongs to a PD; binding gives it a key of the NIC's choice, and it may be bound anew at any time. A window
//! of type 2 is bound by a WR that names the new key's low 8 bits, belongs from then on to that QP as well (2B), and must be
//! invalidated before it can be bound again.

use std::sync::Arc;

use scalefabric_verbs::{AccessFlags, LKey, MwType, RKey, VerbsError, WcStatus};

use super::access::{Access, Peer};
use super::table::{Entry, MemoryTable, PdId, kind};
use crate::ring::atomic::{AtomicBool, AtomicU32, Ordering};
use scalefabric_transport::host::AccessFault;

/// A window, as its owner holds it. Dropping it frees it.
pub struct Window {
    table: Arc<MemoryTable>,
    slot: u32,
    mw_type: MwType,
    pd: PdId,
    rkey: AtomicU32,
    freed: AtomicBool,
}

/// Without its key.
impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("slot", &self.slot).field("mw_type", &self.mw_type).finish_non_exhaustive()
    }
}

impl Window {
    pub(super) fn new(table: Arc<MemoryTable>, slot: u32, mw_type: MwType, pd: PdId, key: u32) -> Self {
        Self { table, slot, mw_type, pd, rkey: AtomicU32::new(key), freed: AtomicBool::new(false) }
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Its present rkey, as the consumer knows it.
    pub fn rkey(&self) -> RKey {
        RKey(self.rkey.load(Ordering::Acquire))
    }

    /// Type 1, at posting time: the rkey that the next bind shall give it. Once the bind is posted, remember it with
    /// [`Window::set_rkey`], as `ibv_bind_mw` does; the old one stays valid until the bind is executed.
    pub fn prepare_rkey(&self) -> RKey {
        RKey(self.table.next_key(self.slot))
    }

    /// After posting a bind: remembers the rkey that it will have (type 2: that the consumer chose).
    pub fn set_rkey(&self, rkey: RKey) {
        self.rkey.store(rkey.0, Ordering::Release);
    }

    /// Frees it, bound or not (clause 11.2.8.12). Waits for the engine's turn as deregistration does. `EINVAL` the
    /// second time.
    pub fn deallocate(&self) -> Result<(), VerbsError> {
        if self.freed.swap(true, Ordering::AcqRel) {
            return Err(VerbsError::invalid("the window is deallocated already"));
        }
        let entry = self.table.entry(self.slot);
        let mut control = self.table.control();
        self.table.unbind(&mut control, entry);
        self.table.revoke(self.slot);
        drop(control);
        // One who is stopped in the middle reaches the region, whose own end waits again.
        let _ = self.table.quiesce(self.slot);
        self.table.free_slot(self.slot);
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.table.home.is_here() {
            return;
        }
        // An error says that it is deallocated already.
        let _ = self.deallocate();
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
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// Remote rights, and ZERO_BASED.
    pub access: AccessFlags,
}

/// Rights that a window can give.
const WINDOW_RIGHTS: AccessFlags = AccessFlags::REMOTE.union(AccessFlags::ZERO_BASED);

/// Executes a bind during a turn (clauses 10.6.7.2.1 for type 1, 10.6.7.2.2 for type 2).
pub(super) fn bind(access: &Access<'_>, peer: Peer, bind: &Bind) -> Result<(), WcStatus> {
    let table = access.table();
    let mut control = table.control();
    let window = table.candidate(bind.rkey.0).ok_or(WcStatus::MwBindErr)?;
    // A revoked entry is a window that is being deallocated.
    if window.key.load(Ordering::Relaxed) == 0 || bind.rkey.0 == 0 || window.pd() != peer.pd {
        return Err(WcStatus::MwBindErr);
    }
    let bound_kind = match (bind.mw_type, window.kind.load(Ordering::Relaxed)) {
        (MwType::Type1, kind::TYPE1_FREE | kind::TYPE1_BOUND) => kind::TYPE1_BOUND,
        // A bound window of type 2 must be invalidated first.
        (MwType::Type2, kind::TYPE2_FREE) => kind::TYPE2_BOUND,
        _ => return Err(WcStatus::MwBindErr),
    };
    let target = match (bind.length, bind.mw_type) {
        (0, MwType::Type1) => None,
        // Only invalidation ends the binding of a window of type 2.
        (0, MwType::Type2) => return Err(WcStatus::MwBindErr),
        _ => Some(bindable(table, peer, bind)?),
    };
    // Other processes read the entry, too: it has no key while it changes.
    let slot = table.slot_of(bind.rkey.0);
    window.key.store(0, Ordering::Release);
    table.unbind(&mut control, window);
    let _ = table.quiesce_others(slot);
    if let Some((region, host)) = target {
        let zero_based = bind.access.contains(AccessFlags::ZERO_BASED);
        window.base.store(if zero_based { 0 } else { bind.addr }, Ordering::Relaxed);
        window.length.store(bind.length, Ordering::Relaxed);
        window.host.store(host, Ordering::Relaxed);
        window.access.store(bind.access.bits(), Ordering::Relaxed);
        window.qpn.store(peer.qpn.get(), Ordering::Relaxed);
        window.link.store(table.slot_of(bind.mr.0), Ordering::Relaxed);
        window.region_key.store(bind.mr.0, Ordering::Relaxed);
        window.kind.store(bound_kind, Ordering::Relaxed);
        window.generation.fetch_add(1, Ordering::Relaxed);
        region.link.fetch_add(1, Ordering::Relaxed);
        control.bound_type2 += u32::from(bound_kind == kind::TYPE2_BOUND);
    }
    window.key.store(bind.rkey.0, Ordering::Release);
    Ok(())
}

/// The region that a bind names, if it allows the bind, and the host address of the window's first byte.
fn bindable<'t>(table: &'t MemoryTable, peer: Peer, bind: &Bind) -> Result<(&'t Entry, u64), WcStatus> {
    let optional = AccessFlags::from_bits_retain(AccessFlags::OPTIONAL_RANGE);
    let zero_based_type1 = bind.mw_type == MwType::Type1 && bind.access.contains(AccessFlags::ZERO_BASED);
    let region = table.find(bind.mr.0).ok_or(WcStatus::MwBindErr)?;
    let rights = region.access();
    // Remote writes through a window need local writes in the region, and flushes need the region's own right.
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let flushes = bind.access & (AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT);
    let allowed = region.kind.load(Ordering::Relaxed) == kind::REGION
        && region.pd() == peer.pd
        && rights.contains(AccessFlags::MW_BIND)
        && (WINDOW_RIGHTS | optional).contains(bind.access)
        && !zero_based_type1
        && (!bind.access.intersects(writes) || rights.contains(AccessFlags::LOCAL_WRITE))
        && rights.contains(flushes);
    let offset = bind.addr.wrapping_sub(region.base.load(Ordering::Relaxed));
    let size = region.length.load(Ordering::Relaxed);
    if !allowed || offset > size || bind.length > size - offset {
        return Err(WcStatus::MwBindErr);
    }
    Ok((region, region.host.load(Ordering::Relaxed) + offset))
}

/// Ends the binding of a window of type 2, for LOCAL_INV and SEND with invalidate (clause 10.6.7.2.6). Other keys cannot be
/// invalidated: a window of type 1 and a region of user space are `NoRight`.
pub(super) fn invalidate(access: &Access<'_>, peer: Peer, rkey: RKey) -> Result<(), AccessFault> {
    let table = access.table();
    let mut control = table.control();
    let entry = table.find(rkey.0).ok_or(AccessFault::BadKey)?;
    if entry.pd() != peer.pd {
        return Err(AccessFault::WrongPd);
    }
    match entry.kind.load(Ordering::Relaxed) {
        kind::TYPE2_BOUND if entry.qpn.load(Ordering::Relaxed) != peer.qpn.get() => Err(AccessFault::WrongQp),
        kind::TYPE2_BOUND => {
            table.unbind(&mut control, entry);
            let _ = table.quiesce_others(table.slot_of(rkey.0));
            Ok(())
        }
        // A free window has nothing that could be invalidated: its key is as bad as a stale one.
        kind::TYPE2_FREE => Err(AccessFault::BadKey),
        _ => Err(AccessFault::NoRight),
    }
}
