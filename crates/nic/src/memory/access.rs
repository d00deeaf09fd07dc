//! What the engine does with memory during a turn: look up, check, copy.

use std::marker::PhantomData;
use std::sync::Arc;

use scalefabric_transport::host::{AccessFault, AtomicOp, LocalFault, RemoteAccess};
use scalefabric_verbs::{AccessFlags, FlushLevel, FlushPlacement, Qpn, RKey, Sge, WcStatus};
use scalefabric_wire::icrc::Running;

use super::copy::{self, Gone};
use super::table::{Entry, MemoryTable, PdId, kind, thread_token};
use super::window::{self, Bind};
use crate::ring::atomic::{Ordering, fence, full_fence};

/// The engine's way into the table. There is one, so there is one turn at a time.
#[derive(Debug)]
pub struct Accessor {
    table: Arc<MemoryTable>,
}

impl Accessor {
    pub(super) fn new(table: Arc<MemoryTable>) -> Self {
        Self { table }
    }

    /// The table.
    pub fn table(&self) -> &Arc<MemoryTable> {
        &self.table
    }

    /// Begins a turn. Everything that is deregistered from now on waits until the [`Access`] is dropped, so drop it at
    /// the end of the turn. The thread has called [`super::guard::ensure`].
    pub fn enter(&mut self) -> Access<'_> {
        let turns = &self.table.turns;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.table.turning.store(thread_token(), Ordering::Relaxed);
        // Pairs with the fence in `quiesce`: either we see the revocation, or it sees this turn. Who has announced a hazard relies on it, too.
        full_fence();
        Access { table: &self.table }
    }
}

/// Bytes of a region that may be read as long as the turn lasts.
#[derive(Clone, Copy, Debug)]
pub struct Readable<'t> {
    from: Host,
    length: usize,
    turn: PhantomData<&'t Access<'t>>,
}

impl Readable<'_> {
    /// Fills `out` with the bytes from `at` on, which are there, and runs them through a CRC. `Gone`: the application has unmapped them.
    #[inline]
    pub fn copy_summed(&self, at: usize, out: &mut [u8], sum: Running) -> Result<Running, LocalFault> {
        assert!(at <= self.length && out.len() <= self.length - at, "{} bytes at {at} of {}", out.len(), self.length);
        // SAFETY: as in `Access::gather`, for the whole; the part lies inside it.
        unsafe { copy::copy_out_summed(self.from.wrapping_add(at), out, sum) }.map_err(|Gone| LocalFault::Gone)
    }
}

/// On whose behalf memory is touched: the local QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// PD of the QP (of the XRC SRQ for an XRC target).
    pub pd: PdId,
    /// The QP, for windows of type 2.
    pub qpn: Qpn,
}

/// Memory during one turn.
#[derive(Debug)]
pub struct Access<'t> {
    table: &'t MemoryTable,
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.table.turning.store(0, Ordering::Relaxed);
        let turns = &self.table.turns;
        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// Where bytes lie in this process. Valid until the end of the turn.
pub(super) type Host = *mut u8;

pub(super) fn host_address(entry: &Entry, offset: u64) -> Host {
    let host = entry.host.load(Ordering::Relaxed);
    std::ptr::with_exposed_provenance_mut(host.wrapping_add(offset) as usize)
}

/// The offset of a range in an entry, if the range lies inside.
pub(super) fn offset_inside(entry: &Entry, addr: u64, length: u64) -> Option<u64> {
    let offset = addr.wrapping_sub(entry.base.load(Ordering::Relaxed));
    let size = entry.length.load(Ordering::Relaxed);
    (offset <= size && length <= size - offset).then_some(offset)
}

/// Does an atomic. A host address that is not aligned (zero-based) is still one locked access.
///
/// # Safety
/// The table grants writing 8 bytes at `at`, now.
pub(super) unsafe fn perform(at: *mut u64, op: AtomicOp) -> Result<u64, Gone> {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => copy::compare_swap(at, compare, swap),
            AtomicOp::FetchAdd { add } => copy::fetch_add(at, add),
            AtomicOp::Write { value } => copy::store_u64(at, value).map(|()| 0),
        }
    }
}

/// A memory table, this process's or another's.
pub(super) trait Lookup {
    /// Place of whatever has that key.
    fn slot_of(&self, key: u32) -> u32;
    /// The entry at `slot`, which is [`Lookup::slot_of`] the key, if it is what the key names now.
    fn named(&self, slot: u32, key: u32) -> Option<&Entry>;
    /// The entry of a slot that was handed out.
    fn at(&self, slot: u32) -> Option<&Entry>;
}

impl Lookup for MemoryTable {
    #[inline]
    fn slot_of(&self, key: u32) -> u32 {
        MemoryTable::slot_of(self, key)
    }
    #[inline]
    fn named(&self, slot: u32, key: u32) -> Option<&Entry> {
        MemoryTable::named(self, slot, key)
    }
    #[inline]
    fn at(&self, slot: u32) -> Option<&Entry> {
        Some(self.entry(slot))
    }
}

/// The entry that a peer's key opens for it, with the right: key, PD, QP of a window, rights, in this order
/// (clause 9.7.4.1.4 and 10.6.7).
#[inline]
pub(super) fn opened<L: Lookup>(table: &L, peer: Peer, rkey: RKey, right: AccessFlags) -> Result<&Entry, AccessFault> {
    opened_at(table, table.slot_of(rkey.0), peer, rkey, right)
}

/// As [`opened`], where the caller remembers the key's place.
#[inline]
pub(super) fn opened_at<L: Lookup>(
    table: &L,
    slot: u32,
    peer: Peer,
    rkey: RKey,
    right: AccessFlags,
) -> Result<&Entry, AccessFault> {
    let entry = table.named(slot, rkey.0).ok_or(AccessFault::BadKey)?;
    let kind = entry.kind.load(Ordering::Relaxed);
    if kind == kind::TYPE1_FREE || kind == kind::TYPE2_FREE {
        return Err(AccessFault::BadKey);
    }
    if entry.pd() != peer.pd {
        return Err(AccessFault::WrongPd);
    }
    if kind != kind::REGION {
        if kind == kind::TYPE2_BOUND && entry.qpn.load(Ordering::Relaxed) != peer.qpn.get() {
            return Err(AccessFault::WrongQp);
        }
        // A region that was dropped, bound windows or not, has taken its key along.
        let region = table.at(entry.link.load(Ordering::Relaxed)).ok_or(AccessFault::BadKey)?;
        if region.key.load(Ordering::Acquire) != entry.region_key.load(Ordering::Relaxed) {
            return Err(AccessFault::BadKey);
        }
    }
    if !entry.access().contains(right) {
        return Err(AccessFault::NoRight);
    }
    Ok(entry)
}

impl Access<'_> {
    #[inline]
    pub(crate) fn table(&self) -> &MemoryTable {
        self.table
    }

    #[inline]
    pub(super) fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<Host, LocalFault> {
        let entry = self.table.find(sge.lkey.0).ok_or(LocalFault::BadKey)?;
        if entry.kind.load(Ordering::Relaxed) != kind::REGION {
            return Err(LocalFault::BadKey);
        }
        if entry.pd() != pd {
            return Err(LocalFault::WrongPd);
        }
        if write && !entry.access().contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::NoLocalWrite);
        }
        let offset = offset_inside(entry, sge.addr, u64::from(sge.length)).ok_or(LocalFault::OutOfBounds)?;
        Ok(host_address(entry, offset))
    }

    /// Checks that an SGE names bytes of the PD that may be read, or written if `write`. A length of 0 passes.
    pub fn check_local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<(), LocalFault> {
        if sge.length == 0 { Ok(()) } else { self.local(pd, sge, write).map(|_| ()) }
    }

    /// Runs `copy` on each piece of the SGL that covers `length` bytes from `offset`: its address, and its place in
    /// those bytes.
    pub(super) fn pieces(
        &self,
        pd: PdId,
        sges: impl Iterator<Item = Sge>,
        offset: u32,
        length: usize,
        write: bool,
        mut copy: impl FnMut(Host, std::ops::Range<usize>) -> Result<(), Gone>,
    ) -> Result<(), LocalFault> {
        let (mut skip, mut done) = (offset as usize, 0);
        for sge in sges {
            if done == length {
                break;
            }
            let here = sge.length as usize;
            if skip >= here {
                skip -= here;
                continue;
            }
            let part = (here - skip).min(length - done);
            let host = self.local(pd, &sge, write)?.wrapping_add(skip);
            copy(host, done..done + part).map_err(|Gone| LocalFault::Gone)?;
            done += part;
            skip = 0;
        }
        if done == length { Ok(()) } else { Err(LocalFault::OutOfBounds) }
    }

    /// Fills `out` with the SGL's bytes from `offset`. The SGL must be long enough; else `OutOfBounds`. Each SGE that is
    /// touched is checked as a whole.
    pub fn gather(
        &self,
        pd: PdId,
        sges: impl Iterator<Item = Sge>,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), LocalFault> {
        // SAFETY: `local` has checked the piece, and nothing is taken away during the turn.
        self.pieces(pd, sges, offset, out.len(), false, |at, range| unsafe { copy::copy_out(at, &mut out[range]) })
    }

    /// The same for an SGL of one SGE.
    #[inline]
    pub fn gather_one(&self, pd: PdId, sge: &Sge, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        if out.is_empty() {
            return Ok(());
        }
        let from = self.part(pd, sge, offset, out.len())?;
        // SAFETY: as in `gather`.
        unsafe { copy::copy_out(from, out) }.map_err(|Gone| LocalFault::Gone)
    }

    /// The same, and the bytes go through a CRC on the way.
    #[inline]
    pub fn gather_one_summed(
        &self,
        pd: PdId,
        sge: &Sge,
        offset: u32,
        out: &mut [u8],
        sum: Running,
    ) -> Result<Running, LocalFault> {
        if out.is_empty() {
            return Ok(sum);
        }
        self.readable(pd, sge, offset, out.len())?.copy_summed(0, out, sum)
    }

    /// `length` bytes of an SGE from `offset`, to be copied in pieces during this turn.
    #[inline]
    pub fn readable(&self, pd: PdId, sge: &Sge, offset: u32, length: usize) -> Result<Readable<'_>, LocalFault> {
        let from = self.part(pd, sge, offset, length)?;
        Ok(Readable { from, length, turn: PhantomData })
    }

    /// Where `length` bytes of an SGE begin, from `offset`.
    #[inline]
    fn part(&self, pd: PdId, sge: &Sge, offset: u32, length: usize) -> Result<Host, LocalFault> {
        if u64::from(offset) + length as u64 > u64::from(sge.length) {
            return Err(LocalFault::OutOfBounds);
        }
        Ok(self.local(pd, sge, false)?.wrapping_add(offset as usize))
    }

    /// Writes `data` into the SGL's bytes from `offset`, in the order of [`copy`]. As [`Access::gather`] otherwise.
    pub fn scatter(
        &self,
        pd: PdId,
        sges: impl Iterator<Item = Sge>,
        offset: u32,
        data: &[u8],
    ) -> Result<(), LocalFault> {
        // SAFETY: as in `gather`, with LOCAL_WRITE.
        self.pieces(pd, sges, offset, data.len(), true, |at, range| unsafe { copy::copy_in(at, &data[range]) })
    }

    #[inline]
    fn remote_entry(&self, peer: Peer, rkey: RKey, right: AccessFlags) -> Result<&Entry, AccessFault> {
        opened(self.table, peer, rkey, right)
    }

    /// The address of a peer's range, all checks passed.
    #[inline]
    fn remote(&self, peer: Peer, access: &RemoteAccess, length: u64) -> Result<Host, AccessFault> {
        let entry = self.remote_entry(peer, access.rkey, access.access)?;
        let offset = offset_inside(entry, access.va, length).ok_or(AccessFault::OutOfBounds)?;
        Ok(host_address(entry, offset))
    }

    /// Checks a peer's access without doing it: key, PD, window's QP, rights, bounds, in this order. Length 0 passes.
    pub fn check_remote(&self, peer: Peer, access: &RemoteAccess) -> Result<(), AccessFault> {
        if access.length == 0 { Ok(()) } else { self.remote(peer, access, access.length).map(|_| ()) }
    }

    /// Checks and writes `data` at `access.va`. Bytes become visible in the order of their addresses; aligned 8-byte
    /// words never tear. `access.length` is not looked at.
    pub fn write_remote(&self, peer: Peer, access: &RemoteAccess, data: &[u8]) -> Result<(), AccessFault> {
        if data.is_empty() {
            return Ok(());
        }
        let at = self.remote(peer, access, data.len() as u64)?;
        // SAFETY: `remote` has checked the range and the right, and nothing is taken away during the turn.
        unsafe { copy::copy_in(at, data) }.map_err(|Gone| AccessFault::Gone)
    }

    /// Checks and reads `out.len()` bytes at `access.va`. `access.length` is not looked at.
    pub fn read_remote(&self, peer: Peer, access: &RemoteAccess, out: &mut [u8]) -> Result<(), AccessFault> {
        if out.is_empty() {
            return Ok(());
        }
        let at = self.remote(peer, access, out.len() as u64)?;
        // SAFETY: as in `write_remote`.
        unsafe { copy::copy_out(at, out) }.map_err(|Gone| AccessFault::Gone)
    }

    /// The same, and the bytes go through a CRC on the way.
    pub fn read_remote_summed(
        &self,
        peer: Peer,
        access: &RemoteAccess,
        out: &mut [u8],
        sum: Running,
    ) -> Result<Running, AccessFault> {
        if out.is_empty() {
            return Ok(sum);
        }
        let at = self.remote(peer, access, out.len() as u64)?;
        // SAFETY: as in `write_remote`.
        unsafe { copy::copy_out_summed(at, out, sum) }.map_err(|Gone| AccessFault::Gone)
    }

    /// Checks and does an atomic, atomic also for this host's processors (IBV_ATOMIC_GLOB); returns the old value (0 for
    /// `Write`). Values are in host order. `access.length` is not looked at: it is 8.
    pub fn atomic_remote(&self, peer: Peer, access: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessFault> {
        let at: *mut u64 = self.remote(peer, access, 8)?.cast();
        // SAFETY: as in `write_remote`.
        let old = unsafe { perform(at, op) };
        old.map_err(|Gone| AccessFault::Gone)
    }

    /// Checks and flushes (IBTA 1.5, FLUSH). To global visibility: a fence, since all of this host's processors see the same
    /// memory. To persistence: `msync`, which writes the pages to their file; registration has made sure that there is one.
    /// That is the one system call of a turn, and it takes as long as the storage takes.
    pub fn flush_remote(
        &self,
        peer: Peer,
        access: &RemoteAccess,
        placement: FlushPlacement,
        level: FlushLevel,
    ) -> Result<(), AccessFault> {
        let right = match placement {
            FlushPlacement::Global => AccessFlags::FLUSH_GLOBAL,
            FlushPlacement::Persistent => AccessFlags::FLUSH_PERSISTENT,
            FlushPlacement::GlobalAndPersistent => AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT,
        };
        if level == FlushLevel::Range && access.length == 0 {
            return Ok(());
        }
        let entry = self.remote_entry(peer, access.rkey, access.access | right)?;
        let (offset, length) = match level {
            FlushLevel::Range => {
                let offset = offset_inside(entry, access.va, access.length).ok_or(AccessFault::OutOfBounds)?;
                (offset, access.length)
            }
            FlushLevel::MemoryRegion => (0, entry.length.load(Ordering::Relaxed)),
        };
        fence(Ordering::SeqCst);
        if placement == FlushPlacement::Global {
            return Ok(());
        }
        let start = host_address(entry, offset) as usize;
        let page_start = start & !4095;
        // SAFETY: msync changes no byte and refuses what is not mapped.
        let done = unsafe {
            libc::msync(page_start as *mut libc::c_void, length as usize + (start - page_start), libc::MS_SYNC)
        };
        if done == 0 { Ok(()) } else { Err(AccessFault::Gone) }
    }

    /// SEND with invalidate: the window's rkey stops working.
    pub fn invalidate_remote(&self, peer: Peer, rkey: RKey) -> Result<(), AccessFault> {
        window::invalidate(self, peer, rkey)
    }

    /// LOCAL_INV: `LocQpOpErr` if the key is no bound window of type 2 of this PD and QP, as Linux gives it.
    pub fn invalidate_local(&self, peer: Peer, rkey: RKey) -> Result<(), WcStatus> {
        window::invalidate(self, peer, rkey).map_err(|_| WcStatus::LocQpOpErr)
    }

    /// A QP is reset or destroyed: its windows of type 2 become free.
    pub fn forget_qp(&self, qpn: Qpn) {
        self.table.forget_qp(qpn);
    }

    /// Executes a bind: `MwBindErr` if it is not allowed. The caller has checked that the QP may bind.
    pub fn bind(&self, peer: Peer, bind: &Bind) -> Result<(), WcStatus> {
        window::bind(self, peer, bind)
    }
}
