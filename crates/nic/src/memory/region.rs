//! A registered region, as its owner holds it.

use std::sync::Arc;

use scalefabric_verbs::{AccessFlags, Errno, LKey, RKey, VerbsError};

use super::allocation::{AllocatedWord, Allocation};
use super::copy::{self, Gone};
use super::guard;
use super::table::{self, Entry, MemoryTable, PdId};
use crate::ring::atomic::{AtomicU32, Mutex, Ordering, fence_behind_change, lock};

/// What is to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Its protection domain.
    pub pd: PdId,
    /// First byte in this process.
    pub addr: *mut u8,
    /// Bytes. 0 makes a region in which only zero-length accesses succeed. `usize::MAX` at address 0 with ON_DEMAND is
    /// the whole address space (implicit on-demand paging).
    pub length: usize,
    /// Address by which SGEs and peers name the first byte. Must have `addr`'s offset in its page, as Linux demands. Not
    /// looked at with ZERO_BASED.
    pub iova: u64,
    /// Rights. REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE.
    pub access: AccessFlags,
}

/// A region. Dropping it deregisters it, bound windows or not (they then open nothing any more).
pub struct Region {
    table: Arc<MemoryTable>,
    slot: u32,
    /// Its key; 0 after deregistration.
    key: AtomicU32,
    /// Application threads that copy through this handle now.
    pins: Pins,
    /// Held while it changes, so that reregistering and deregistering do not overlap.
    now: Mutex<Now>,
    allocation: Option<Arc<Allocation>>,
}

/// A count in a cache line of its own, and not in that of the entry: whoever polls the last byte of a message counts for each look, and peers read
/// the entry for each request.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Pins(AtomicU32);

impl Pins {
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One more, with a full fence behind it.
    #[inline]
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `quiesce`: either we see the revocation, or it sees our pin.
        fence_behind_change();
    }

    /// One less.
    #[inline]
    pub fn sub(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// What a registration said last.
#[derive(Clone, Copy, Debug)]
struct Now {
    pd: PdId,
    addr: usize,
    length: usize,
    base: u64,
    access: AccessFlags,
}

/// Without its key.
impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("slot", &self.slot).field("now", &*lock(&self.now)).finish_non_exhaustive()
    }
}

impl Region {
    pub(super) fn new(table: Arc<MemoryTable>, slot: u32, allocation: Option<Arc<Allocation>>) -> Self {
        let entry = table.entry(slot);
        let key = AtomicU32::new(entry.key.load(Ordering::Relaxed));
        let now = Now {
            pd: entry.pd(),
            addr: entry.host.load(Ordering::Relaxed) as usize,
            length: entry.length.load(Ordering::Relaxed) as usize,
            base: entry.base.load(Ordering::Relaxed),
            access: entry.access(),
        };
        Self { table, slot, key, pins: Pins::new(), now: Mutex::new(now), allocation }
    }

    fn now(&self) -> Now {
        *lock(&self.now)
    }

    /// Address of its first byte as SGEs and peers name it; 0 with ZERO_BASED.
    pub fn addr(&self) -> u64 {
        self.now().base
    }

    /// Address of its first byte in this process.
    pub fn host_addr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.now().addr)
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.now().length
    }

    /// Local key; 0 after deregistration.
    pub fn lkey(&self) -> LKey {
        LKey(self.key.load(Ordering::Acquire))
    }

    /// Remote key: the same number as the lkey.
    pub fn rkey(&self) -> RKey {
        RKey(self.key.load(Ordering::Acquire))
    }

    /// Its protection domain now.
    pub fn pd(&self) -> PdId {
        self.now().pd
    }

    /// Its rights now.
    pub fn access(&self) -> AccessFlags {
        self.now().access
    }

    /// The memory that the NIC allocated for it, if it did.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_deref()
    }

    fn entry(&self) -> &Entry {
        self.table.entry(self.slot)
    }

    /// Runs `copy` on the address of `length` bytes at `offset`, while deregistration waits. The address must be a
    /// multiple of `align`.
    fn with_bytes<T>(
        &self,
        offset: usize,
        length: usize,
        align: usize,
        copy: impl FnOnce(*mut u8) -> Result<T, Gone>,
    ) -> Result<T, VerbsError> {
        guard::ensure_here();
        self.pins.add();
        let result = self.host(offset, length, align).and_then(|at| {
            copy(at).map_err(|Gone| {
                let what = "are no longer mapped, or protected: deregister memory before unmapping it";
                VerbsError::misuse(Errno::EFAULT, format!("{length} bytes at {at:p} {what}"))
            })
        });
        self.pins.sub();
        result
    }

    /// The address of a range inside the region, which is pinned.
    fn host(&self, offset: usize, length: usize, align: usize) -> Result<*mut u8, VerbsError> {
        let (entry, key) = (self.entry(), self.key.load(Ordering::Acquire));
        if key == 0 || entry.key.load(Ordering::Acquire) != key {
            return Err(VerbsError::invalid("the region is deregistered, or being reregistered"));
        }
        let size = entry.length.load(Ordering::Relaxed) as usize;
        if offset > size || length > size - offset {
            let message = format!("{length} bytes at offset {offset} leave the region of {size} bytes");
            return Err(VerbsError::invalid(message));
        }
        let host = entry.host.load(Ordering::Relaxed) as usize;
        let at = std::ptr::with_exposed_provenance_mut::<u8>(host).wrapping_add(offset);
        if (at as usize).is_multiple_of(align) {
            Ok(at)
        } else {
            Err(VerbsError::invalid(format!(
                "the word at offset {offset}, address {at:p}, is not aligned to {align} bytes"
            )))
        }
    }

    /// Copies bytes in. `EINVAL` outside the region or after deregistration, `EFAULT` if the memory is gone.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        // SAFETY: `with_bytes` has checked the range and keeps it registered meanwhile.
        self.with_bytes(offset, data.len(), 1, |at| unsafe { copy::copy_in(at, data) })
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        // SAFETY: as in `write`.
        self.with_bytes(offset, out.len(), 1, |at| unsafe { copy::copy_out(at, out) })
    }

    /// Reads an aligned 8-byte word in one piece, with acquire ordering.
    pub fn load_u64(&self, offset: usize) -> Result<u64, VerbsError> {
        // SAFETY: as in `write`.
        self.with_bytes(offset, 8, 8, |at| unsafe { copy::load_u64(at.cast()) })
    }

    /// An aligned word that stays for as long as it is held; `None` in memory that the application brought.
    pub fn word(&self, offset: usize) -> Result<Option<AllocatedWord>, VerbsError> {
        self.load_u64(offset)?;
        self.allocation.as_ref().map(|allocation| allocation.word(offset)).transpose()
    }

    /// Writes an aligned 8-byte word in one piece, with release ordering.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), VerbsError> {
        // SAFETY: as in `write`.
        self.with_bytes(offset, 8, 8, |at| unsafe { copy::store_u64(at.cast(), value) })
    }

    /// Changes range, PD or rights; `None` keeps (clause 11.2.8.5). With a new range the keys change, so that a peer with the old
    /// key never reaches the new bytes; otherwise they stay, as with mlx5. A new range begins at its own address (or 0
    /// with ZERO_BASED). When it returns, nothing touches the old range any more. `EBUSY` while windows are bound, `EINVAL` for a new range of
    /// memory that the NIC allocated. On an error the region is as before.
    ///
    /// # Safety
    /// As [`MemoryTable::register`] for the new range.
    pub unsafe fn reregister(
        &self,
        range: Option<(*mut u8, usize)>,
        pd: Option<PdId>,
        access: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        let mut now = lock(&self.now);
        let key = self.key.load(Ordering::Relaxed);
        if key == 0 {
            return Err(VerbsError::invalid("the region is deregistered"));
        }
        if range.is_some() && self.allocation.is_some() {
            return Err(VerbsError::invalid(
                "the region's memory was allocated with it: allocate another region instead",
            ));
        }
        let mut next = *now;
        next.access = access.unwrap_or(now.access);
        next.pd = pd.unwrap_or(now.pd);
        if let Some((addr, length)) = range {
            (next.addr, next.length, next.base) = (addr.expose_provenance(), length, addr as u64);
        }
        // ZERO_BASED given or taken away moves the base, as a new range does.
        if next.access.contains(AccessFlags::ZERO_BASED) {
            next.base = 0;
        } else if now.access.contains(AccessFlags::ZERO_BASED) {
            next.base = next.addr as u64;
        }
        table::check_rights(next.access)?;
        if self.allocation.is_none() || next.access.contains(AccessFlags::FLUSH_PERSISTENT) {
            let addr = std::ptr::with_exposed_provenance_mut(next.addr);
            // SAFETY: the caller's promise for a new range, the registration's for the old one.
            unsafe { table::check_range(addr, next.length, next.access) }?;
        }
        let entry = self.entry();
        let mut control = self.table.control();
        self.check_windows(entry)?;
        self.table.revoke(self.slot);
        drop(control);
        if !self.table.quiesce_with(self.slot, || self.pins.any()) {
            // What is not ours to keep cannot be kept from one who is stopped in the middle (docs/decisions/same-host.md).
            self.table.keep(now.addr, now.length);
        }
        control = self.table.control();
        self.table.move_pd(&mut control, Some(now.pd), Some(next.pd));
        let addr = std::ptr::with_exposed_provenance_mut(next.addr);
        MemoryTable::fill(entry, next.pd, addr, next.length as u64, next.base, next.access);
        let moved = (next.addr, next.length, next.base) != (now.addr, now.length, now.base);
        let key = if moved { self.table.next_key(self.slot) } else { key };
        self.key.store(key, Ordering::Release);
        self.table.publish(self.slot, key);
        *now = next;
        Ok(())
    }

    fn check_windows(&self, entry: &Entry) -> Result<(), VerbsError> {
        match entry.link.load(Ordering::Relaxed) {
            0 => Ok(()),
            n => Err(VerbsError::misuse(
                Errno::EBUSY,
                format!("{n} memory windows are bound to the region: unbind, invalidate or deallocate them first"),
            )),
        }
    }

    /// Deregisters. When it returns, nothing touches the memory any more: it waits for the engine's present turn to end.
    /// `EBUSY` while windows are bound (clause 11.2.8.4 lets an HCA refuse or make them invalid; Linux refuses), `EINVAL` the
    /// second time.
    pub fn deregister(&self) -> Result<(), VerbsError> {
        let now = lock(&self.now);
        let result = self.end(&now, true);
        drop(now);
        result
    }

    fn end(&self, now: &Now, refuse_windows: bool) -> Result<(), VerbsError> {
        if self.key.load(Ordering::Relaxed) == 0 {
            return Err(VerbsError::invalid("the region is deregistered already"));
        }
        let entry = self.entry();
        let control = self.table.control();
        if refuse_windows {
            self.check_windows(entry)?;
        }
        self.key.store(0, Ordering::Release);
        self.table.revoke(self.slot);
        drop(control);
        if !self.table.quiesce_with(self.slot, || self.pins.any()) {
            // Another process is stopped in the middle of a copy, which it will end one day: nobody else gets this memory.
            match &self.allocation {
                Some(allocation) => std::mem::forget(allocation.clone()),
                None => self.table.keep(now.addr, now.length),
            }
        }
        self.table.free_slot(self.slot);
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.table.home.is_here() {
            return;
        }
        // An error says that it is deregistered already.
        let now = self.now();
        let _ = self.end(&now, false);
    }
}
