//! The table itself: slots, keys, and how an entry comes and goes while the engine reads it without a lock.
//!
//! **Readers** are the engine, between [`Accessor::enter`](super::Accessor::enter) and the end of its turn. A lookup
//! unscrambles the key to a slot, and compares the whole key; all fields are atomics, no lock is taken.
//!
//! **Writers** hold the `control` lock. They publish an entry by storing its key last, and revoke it by storing key 0
//! first. After a revocation they wait until the engine is outside a turn or in a later one, and until no application
//! thread copies through a [`Region`] handle ([`MemoryTable::quiesce`]); only then may the memory go, or the fields
//! change, or the slot be used again. So fields behind a key that matched stay true until the turn ends. The engine
//! itself (bind, invalidate) changes entries of windows at once: it is the only reader in a turn.
//!
//! Other processes of the device that touch memory themselves (D3) are readers, too: the entries lie in the process's file, and
//! whoever revokes waits for their hazards ([`Accessors`]) at the same place. What the engine changes in a window's entry they must not
//! see half done, so it goes without a key meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use scalefabric_verbs::{AccessFlags, Errno, MwType, Qpn, VerbsError};

use super::access::Accessor;
use super::allocation::{Allocation, Allocator};
use super::file::OwnFile;
use super::key::{KeySpace, KnownKeys, MAX_SLOTS};
use super::region::{Region, Registration};
use super::shared::SharedPages;
use super::window::Window;
use super::{guard, probe};
use crate::process::Home;
use crate::resources::MrResource;
use crate::ring::atomic::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence, lock};
use crate::ring::pause;

/// Names a protection domain inside this process. Unique while the PD lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Secret from which keys are made. From the OS in life, from the run's seed in a simulation.
#[derive(Clone, Copy)]
pub struct Seed(pub [u64; 4]);

impl Seed {
    /// 32 bytes from `getrandom`: the one place where the OS is asked.
    pub fn from_os() -> Result<Self, VerbsError> {
        let mut words = [0u64; 4];
        // SAFETY: 32 writable bytes. Up to 256 bytes come whole or not at all.
        let n = unsafe { libc::getrandom(words.as_mut_ptr().cast(), size_of_val(&words), 0) };
        if n as usize != size_of_val(&words) {
            let error = std::io::Error::last_os_error();
            return Err(VerbsError::environment(Errno::EIO, format!("no random bytes for memory keys: {error}")));
        }
        Ok(Self(words))
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// What an entry is. In `Entry::kind`.
pub(super) mod kind {
    pub const REGION: u32 = 1;
    /// A window of type 1 that is bound to nothing.
    pub const TYPE1_FREE: u32 = 2;
    /// A bound window of type 1.
    pub const TYPE1_BOUND: u32 = 3;
    /// A window of type 2 that may be bound.
    pub const TYPE2_FREE: u32 = 4;
    /// A bound window of type 2: it belongs to a QP.
    pub const TYPE2_BOUND: u32 = 5;
}

/// One region or window: one cache line. Not `Debug`: it holds a key.
#[repr(C, align(64))]
pub(super) struct Entry {
    /// The key it answers to, 0 if none. Stored last and cleared first.
    pub key: AtomicU32,
    pub kind: AtomicU32,
    pub pd: AtomicU32,
    pub access: AtomicU32,
    /// A bound window of type 2: its QP.
    pub qpn: AtomicU32,
    /// Window: the slot of its region. Region: windows bound to it.
    pub link: AtomicU32,
    /// Window: the region's key at the bind, so that a window never outlives its region's life.
    pub region_key: AtomicU32,
    /// Application threads that look at it for an advice now. Those that copy through a handle are counted elsewhere ([`super::Region`]): this line is read by
    /// others for each of their requests.
    pub pins: AtomicU32,
    /// Address by which peers name the first byte.
    pub base: AtomicU64,
    pub length: AtomicU64,
    /// Address of the first byte in this process.
    pub host: AtomicU64,
    /// Number of keys the slot has had; picks the next variant.
    pub life: AtomicU32,
    pub generation: AtomicU32,
}

impl Entry {
    fn new() -> Self {
        let (word, long) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Self {
            key: word(),
            kind: word(),
            pd: word(),
            access: word(),
            qpn: word(),
            link: word(),
            region_key: word(),
            pins: word(),
            base: long(),
            length: long(),
            host: long(),
            life: word(),
            generation: word(),
        }
    }

    pub fn access(&self) -> AccessFlags {
        AccessFlags::from_bits_retain(self.access.load(Ordering::Relaxed))
    }

    pub fn pd(&self) -> PdId {
        PdId(self.pd.load(Ordering::Relaxed))
    }
}

/// Entries that come into being together.
const CHUNK: u32 = if cfg!(loom) { 2 } else { 1024 };

/// A freed slot rests until so many others were freed after it, as long as there are fresh ones.
const REST: usize = if cfg!(loom) { 0 } else { 4096 };

/// What writers share.
#[derive(Debug)]
pub(super) struct Control {
    /// The next slot that was never used.
    fresh: u32,
    /// Freed slots, oldest first.
    resting: VecDeque<u32>,
    /// Entries of each PD.
    of_pd: HashMap<PdId, usize>,
    /// Bound windows of type 2: whether a QP that goes away must look for its own.
    pub bound_type2: u32,
}

/// Other processes that touch this one's memory by themselves.
pub trait Accessors: Send + Sync + std::fmt::Debug {
    /// Waits until none of them is still inside an access that began before the call and that `concerns` the caller, who has taken away
    /// what it wants to be rid of. It is asked about places in the memory table. False if one of them is stopped in the
    /// middle, so that waiting has no end: it may touch the memory once more when it goes on.
    fn wait_entry(&self, concerns: &dyn Fn(u32) -> bool) -> bool;
}

/// All regions and windows of one device in this process.
pub struct MemoryTable {
    /// A forked child leaves its entries alone.
    pub(super) home: Home,
    keys: KeySpace,
    known: KnownKeys,
    max_entries: u32,
    /// The first entries lie there, where other processes see them.
    file: Option<Arc<OwnFile>>,
    accessors: OnceLock<Arc<dyn Accessors>>,
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    control: Mutex<Control>,
    allocator: Arc<Allocator>,
    /// Odd while the engine is in a turn; changes at each begin and end.
    pub(super) turns: AtomicU64,
    /// The thread that is in a turn (its token), for [`MemoryTable::quiesce`] called from inside.
    pub(super) turning: AtomicU64,
}

/// Without its entries: they hold keys.
impl std::fmt::Debug for MemoryTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryTable").field("max_entries", &self.max_entries).finish_non_exhaustive()
    }
}

impl MemoryTable {
    /// An empty table for at most `max_entries` regions and windows (1 to 2^20), and the engine's way in.
    pub fn new(seed: Seed, max_entries: u32) -> (Arc<Self>, Accessor) {
        Self::build(seed, max_entries, None)
    }

    /// The same in a file that other processes of the device map.
    pub fn in_file(seed: Seed, max_entries: u32, file: Arc<OwnFile>) -> (Arc<Self>, Accessor) {
        file.set_keys(seed.0);
        Self::build(seed, max_entries, Some(file))
    }

    fn build(seed: Seed, max_entries: u32, file: Option<Arc<OwnFile>>) -> (Arc<Self>, Accessor) {
        let max_entries = max_entries.clamp(1, 1 << 20);
        // Two slots in 2^24 have no keys; some slack makes up for them.
        let chunks = (0..(max_entries + 2).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect();
        let control = Control { fresh: 0, resting: VecDeque::new(), of_pd: HashMap::new(), bound_type2: 0 };
        let table = Arc::new(Self {
            home: Home::here(),
            keys: KeySpace::new(seed.0),
            known: KnownKeys::new(),
            max_entries,
            chunks,
            control: Mutex::new(control),
            allocator: file.as_ref().map_or_else(Allocator::new, |file| Allocator::in_file(file.clone())),
            file,
            accessors: OnceLock::new(),
            turns: AtomicU64::new(0),
            turning: AtomicU64::new(0),
        });
        let accessor = Accessor::new(table.clone());
        (table, accessor)
    }

    /// Registers memory of this process (clause 11.2.8.2).
    ///
    /// Errors: `EINVAL` for rights that do not go together or a range that wraps, `EFAULT` if the range is not mapped
    /// with the needed rights, `ENOMEM` if the table is full.
    ///
    /// # Safety
    /// Until the region is destroyed, peers read and write the range as `access` allows. No Rust reference may reach it.
    pub unsafe fn register(self: &Arc<Self>, registration: Registration) -> Result<Region, VerbsError> {
        let Registration { pd, addr, length, iova, access } = registration;
        check_rights(access)?;
        // SAFETY: the caller's promise.
        unsafe { check_range(addr, length, access) }?;
        let zero_based = access.contains(AccessFlags::ZERO_BASED);
        let base = if zero_based { 0 } else { iova };
        if !zero_based && iova % 4096 != addr as u64 % 4096 {
            return Err(VerbsError::invalid(format!(
                "iova {base:#x} and address {addr:p} must have the same offset in their page"
            )));
        }
        if base.checked_add(length as u64).is_none() {
            return Err(VerbsError::invalid(format!("iova {base:#x} + {length} bytes wraps: choose a lower iova")));
        }
        let slot = self.publish_region(pd, addr, length as u64, base, access)?;
        Ok(Region::new(self.clone(), slot, None))
    }

    /// Allocates zeroed memory and registers it; the memory lives until the region is dropped. Its iova is its address,
    /// or 0 with ZERO_BASED.
    pub fn allocate(self: &Arc<Self>, pd: PdId, length: usize, access: AccessFlags) -> Result<Region, VerbsError> {
        check_rights(access)?;
        if access.contains(AccessFlags::FLUSH_PERSISTENT) {
            return Err(not_persistent());
        }
        let allocation = self.allocator.allocate(length)?;
        let base = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { allocation.addr() as u64 };
        let slot = self.publish_region(pd, allocation.addr(), length as u64, base, access)?;
        Ok(Region::new(self.clone(), slot, Some(Arc::new(allocation))))
    }

    /// Allocates zeroed memory that belongs to no region yet.
    pub fn allocate_pages(&self, length: usize) -> Result<Allocation, VerbsError> {
        self.allocator.allocate(length)
    }

    /// Allocates zeroed memory that belongs to no region yet and that neighbours map.
    pub fn allocate_shared(&self, length: usize) -> Result<SharedPages, VerbsError> {
        SharedPages::new(self.file.as_ref(), length)
    }

    /// Another process is stopped in the middle of an access to these bytes: what of them lies in the file is given to nobody else.
    pub(super) fn keep(&self, addr: usize, length: usize) {
        if let Some(file) = &self.file {
            file.keep(std::ptr::without_provenance_mut(addr), length);
        }
    }

    /// Registers a part of memory that was allocated here, which lives as long as the region. Its iova is 0: `access` must
    /// have ZERO_BASED.
    pub fn register_piece(
        self: &Arc<Self>,
        pd: PdId,
        allocation: &Arc<Allocation>,
        offset: usize,
        length: usize,
        access: AccessFlags,
    ) -> Result<Region, VerbsError> {
        check_rights(access)?;
        if access.contains(AccessFlags::FLUSH_PERSISTENT) {
            return Err(not_persistent());
        }
        if !access.contains(AccessFlags::ZERO_BASED) {
            return Err(VerbsError::invalid("device memory has no addresses here: register it with ZERO_BASED"));
        }
        if offset > allocation.length() || length > allocation.length() - offset {
            return Err(VerbsError::invalid(format!(
                "{length} bytes at offset {offset} leave the {} bytes that were allocated",
                allocation.length()
            )));
        }
        let addr = allocation.addr().wrapping_add(offset);
        let slot = self.publish_region(pd, addr, length as u64, 0, access)?;
        Ok(Region::new(self.clone(), slot, Some(allocation.clone())))
    }

    fn publish_region(
        &self,
        pd: PdId,
        addr: *mut u8,
        length: u64,
        base: u64,
        access: AccessFlags,
    ) -> Result<u32, VerbsError> {
        let mut control = self.control();
        let slot = self.take_slot(&mut control, pd)?;
        let entry = self.entry(slot);
        entry.kind.store(kind::REGION, Ordering::Relaxed);
        entry.link.store(0, Ordering::Relaxed);
        Self::fill(entry, pd, addr, length, base, access);
        self.publish(slot, self.next_key(slot));
        Ok(slot)
    }

    /// Writes what a registration says. The entry has no key, and nobody reads it.
    pub(super) fn fill(entry: &Entry, pd: PdId, addr: *mut u8, length: u64, base: u64, access: AccessFlags) {
        entry.pd.store(pd.0, Ordering::Relaxed);
        entry.access.store(access.bits(), Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.length.store(length, Ordering::Relaxed);
        entry.host.store(addr.expose_provenance() as u64, Ordering::Relaxed);
    }

    /// Makes a window, bound to nothing (clause 11.2.8.9).
    pub fn allocate_window(self: &Arc<Self>, pd: PdId, mw_type: MwType) -> Result<Window, VerbsError> {
        let mut control = self.control();
        let slot = self.take_slot(&mut control, pd)?;
        let entry = self.entry(slot);
        let kind = if mw_type == MwType::Type1 { kind::TYPE1_FREE } else { kind::TYPE2_FREE };
        entry.kind.store(kind, Ordering::Relaxed);
        entry.pd.store(pd.0, Ordering::Relaxed);
        let key = self.next_key(slot);
        self.publish(slot, key);
        drop(control);
        Ok(Window::new(self.clone(), slot, mw_type, pd, key))
    }

    /// Type 2 windows that were bound through a QP become free: the QP is destroyed or reset, and its number may come
    /// again. Called in a turn. Looks at the whole table, but only while windows of type 2 are bound at all.
    pub(super) fn forget_qp(&self, qpn: Qpn) {
        let mut control = self.control();
        if control.bound_type2 == 0 {
            return;
        }
        for slot in 0..control.fresh {
            let entry = self.entry(slot);
            if entry.kind.load(Ordering::Relaxed) == kind::TYPE2_BOUND
                && entry.qpn.load(Ordering::Relaxed) == qpn.get()
                && entry.key.load(Ordering::Relaxed) != 0
            {
                self.unbind(&mut control, entry);
            }
        }
    }

    /// Regions and windows that use a PD: `dealloc_pd` is `EBUSY` while there are any.
    pub fn entries_of_pd(&self, pd: PdId) -> usize {
        self.control().of_pd.get(&pd).copied().unwrap_or(0)
    }

    /// The regions, for tools; their numbers are those of their slots.
    pub fn regions(&self) -> Vec<MrResource> {
        let control = self.control();
        let mut all = Vec::new();
        for slot in 0..control.fresh {
            let entry = self.entry(slot);
            let key = entry.key.load(Ordering::Acquire);
            if key != 0 && entry.kind.load(Ordering::Relaxed) == kind::REGION {
                all.push(MrResource {
                    mrn: slot,
                    pdn: entry.pd().0,
                    mrlen: entry.length.load(Ordering::Relaxed),
                    iova: entry.base.load(Ordering::Relaxed),
                    key,
                    access: entry.access().bits(),
                });
            }
        }
        all
    }

    /// Regions and windows in the table.
    pub fn len(&self) -> usize {
        let control = self.control();
        control.of_pd.values().sum()
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// From now on revocations wait for these, too. Only the first call counts.
    pub fn set_accessors(&self, accessors: Arc<dyn Accessors>) {
        let _ = self.accessors.set(accessors);
    }

    /// The entry of a slot that was handed out.
    pub(super) fn entry(&self, slot: u32) -> &Entry {
        match self.shared(slot) {
            Some(entry) => entry,
            None => &self.chunk(slot)[(slot % CHUNK) as usize],
        }
    }

    #[inline]
    fn shared(&self, slot: u32) -> Option<&Entry> {
        self.file.as_ref()?.entry(slot)
    }

    fn chunk(&self, slot: u32) -> &[Entry] {
        self.chunks[(slot / CHUNK) as usize].get_or_init(|| (0..CHUNK).map(|_| Entry::new()).collect())
    }

    /// The entry that a key might name, whether it is that key's or not: the one that shares its upper 24 bits.
    #[inline]
    pub(super) fn candidate(&self, key: u32) -> Option<&Entry> {
        self.entry_at(self.slot_of(key))
    }

    #[inline]
    fn entry_at(&self, slot: u32) -> Option<&Entry> {
        if let Some(entry) = self.shared(slot) {
            return Some(entry);
        }
        let chunk = self.chunks.get((slot / CHUNK) as usize)?.get()?;
        chunk.get((slot % CHUNK) as usize)
    }

    /// The entry that a key names now.
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<&Entry> {
        self.named(self.slot_of(key), key)
    }

    /// The entry at a key's place, if it is what the key names now.
    #[inline]
    pub(super) fn named(&self, slot: u32, key: u32) -> Option<&Entry> {
        // Acquire pairs with `publish`. Key 0 is nobody's.
        self.entry_at(slot).filter(|entry| key != 0 && entry.key.load(Ordering::Acquire) == key)
    }

    /// Place of whatever has that key.
    #[inline]
    pub(crate) fn slot_of(&self, key: u32) -> u32 {
        self.known.slot(&self.keys, key)
    }

    fn take_slot(&self, control: &mut Control, pd: PdId) -> Result<u32, VerbsError> {
        let in_use = control.fresh as usize - control.resting.len();
        if in_use >= self.max_entries as usize {
            return Err(VerbsError::environment(
                Errno::ENOMEM,
                format!("the table holds its {} regions and windows: deregister some", self.max_entries),
            ));
        }
        // Slots without keys are passed over, and count as in use for ever: there are two in 2^24.
        while control.fresh < MAX_SLOTS && self.keys.index(control.fresh).is_none() {
            control.fresh += 1;
        }
        let has_fresh = (control.fresh as usize) < self.chunks.len() * CHUNK as usize;
        let slot = if control.resting.len() > REST || !has_fresh { control.resting.pop_front() } else { None };
        let slot = slot.unwrap_or_else(|| {
            control.fresh += 1;
            control.fresh - 1
        });
        *control.of_pd.entry(pd).or_default() += 1;
        if self.shared(slot).is_none() {
            self.chunk(slot);
        }
        Ok(slot)
    }

    /// Gives back a slot that nobody reads any more.
    pub(super) fn free_slot(&self, slot: u32) {
        let mut control = self.control();
        let pd = self.entry(slot).pd();
        self.move_pd(&mut control, Some(pd), None);
        control.resting.push_back(slot);
    }

    /// Keeps account of which PD has how many entries.
    pub(super) fn move_pd(&self, control: &mut Control, from: Option<PdId>, to: Option<PdId>) {
        if let Some(from) = from
            && let Some(count) = control.of_pd.get_mut(&from)
        {
            *count -= 1;
            if *count == 0 {
                control.of_pd.remove(&from);
            }
        }
        if let Some(to) = to {
            *control.of_pd.entry(to).or_default() += 1;
        }
    }

    /// The next key of a slot.
    pub(super) fn next_key(&self, slot: u32) -> u32 {
        let life = self.entry(slot).life.fetch_add(1, Ordering::Relaxed);
        // Only slots that have an index are handed out.
        let index = self.keys.index(slot).unwrap_or(1);
        index << 8 | u32::from(self.keys.variant(slot, life))
    }

    /// Makes an entry's fields visible under a key.
    pub(super) fn publish(&self, slot: u32, key: u32) {
        let entry = self.entry(slot);
        entry.generation.fetch_add(1, Ordering::Relaxed);
        entry.key.store(key, Ordering::Release);
    }

    /// Takes the key away, under the control lock; [`MemoryTable::quiesce`] must follow, without the lock.
    pub(super) fn revoke(&self, slot: u32) {
        let entry = self.entry(slot);
        entry.key.store(0, Ordering::Release);
        entry.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a bound window free, its region's count one less. Its key stays (it opens nothing).
    pub(super) fn unbind(&self, control: &mut Control, window: &Entry) {
        let was = window.kind.load(Ordering::Relaxed);
        let free = match was {
            kind::TYPE1_BOUND => kind::TYPE1_FREE,
            kind::TYPE2_BOUND => kind::TYPE2_FREE,
            _ => return,
        };
        window.kind.store(free, Ordering::Relaxed);
        window.generation.fetch_add(1, Ordering::Relaxed);
        if was == kind::TYPE2_BOUND {
            control.bound_type2 -= 1;
        }
        let region = self.entry(window.link.load(Ordering::Relaxed));
        // A region that was dropped under its windows has another key now, or none: its count is not ours.
        if region.key.load(Ordering::Relaxed) == window.region_key.load(Ordering::Relaxed) {
            region.link.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until nobody can still be using what was just revoked: not the engine in the turn it is in, not an application thread
    /// inside a copy, not another process. A turn is short and never waits, so this is microseconds. False if another process
    /// is stopped in the middle of an access.
    #[must_use]
    pub(super) fn quiesce(&self, slot: u32) -> bool {
        self.quiesce_with(slot, || false)
    }

    /// The same, and waits while `is_pinned`: looked at behind the fence.
    #[must_use]
    pub(super) fn quiesce_with(&self, slot: u32, is_pinned: impl Fn() -> bool) -> bool {
        let entry = self.entry(slot);
        // Pairs with the fence in `Accessor::enter`: either that turn sees the revocation, or we see the turn.
        fence(Ordering::SeqCst);
        let turn = self.turns.load(Ordering::Acquire);
        // A turn that revokes something itself holds nothing between two calls: there is no pointer to wait for.
        let own = self.turning.load(Ordering::Relaxed) == thread_token();
        let mut rounds = 0;
        while (turn & 1 == 1 && !own && self.turns.load(Ordering::Acquire) == turn)
            || entry.pins.load(Ordering::Acquire) != 0
            || is_pinned()
        {
            rounds += 1;
            pause(rounds);
        }
        self.quiesce_others(slot)
    }

    /// Waits for other processes that may use an entry: through its own key, or through that of a window that lies in it.
    pub(super) fn quiesce_others(&self, slot: u32) -> bool {
        let Some(accessors) = self.accessors.get() else { return true };
        // Pairs with the fence of `Hazard::publish`.
        fence(Ordering::SeqCst);
        accessors.wait_entry(&|entry| {
            entry == slot || self.shared(entry).is_some_and(|e| e.kind.load(Ordering::Relaxed) != kind::REGION)
        })
    }
}

/// A number that no other living thread has; not 0.
#[cfg(not(loom))]
pub(super) fn thread_token() -> u64 {
    // Cheaper than a variable of the thread's own, which is a call in a shared library.
    // SAFETY: it has no conditions.
    unsafe { libc::pthread_self() as u64 }
}

#[cfg(loom)]
pub(super) fn thread_token() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    loom::thread::current().id().hash(&mut hasher);
    hasher.finish()
}

pub(super) fn check_rights(access: AccessFlags) -> Result<(), VerbsError> {
    let unknown = access.bits() & !AccessFlags::all().bits() & !AccessFlags::OPTIONAL_RANGE;
    if unknown != 0 {
        return Err(VerbsError::invalid(format!("access flags {unknown:#x} are not known")));
    }
    let needs_write = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    if access.intersects(needs_write) && !access.contains(AccessFlags::LOCAL_WRITE) {
        return Err(VerbsError::invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE as well (clause 10.6.3.1)"));
    }
    Ok(())
}

/// Checks that the range does not wrap, is mapped, and has what its rights need.
///
/// # Safety
/// With LOCAL_WRITE, the caller may write to the range.
pub(super) unsafe fn check_range(addr: *mut u8, length: usize, access: AccessFlags) -> Result<(), VerbsError> {
    if (addr as usize).checked_add(length).is_none() {
        return Err(VerbsError::invalid(format!("{length} bytes at {addr:p} wrap around the address space")));
    }
    let write = access.contains(AccessFlags::LOCAL_WRITE);
    // SAFETY: the caller's promise.
    if !access.contains(AccessFlags::ON_DEMAND) && !unsafe { probe::is_accessible(addr, length, write) } {
        let right = if write { "writable (LOCAL_WRITE)" } else { "readable" };
        return Err(VerbsError::misuse(
            Errno::EFAULT,
            format!("not all of the {length} bytes at {addr:p} are mapped and {right}"),
        ));
    }
    if access.contains(AccessFlags::FLUSH_PERSISTENT) && !probe::has_file(addr, length) {
        return Err(not_persistent());
    }
    guard::ensure_here();
    Ok(())
}

fn not_persistent() -> VerbsError {
    VerbsError::invalid(
        "FLUSH_PERSISTENT needs memory that is a shared mapping of a file: there is nothing to flush to",
    )
}
