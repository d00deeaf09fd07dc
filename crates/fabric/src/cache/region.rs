//! A region of the cache: registered bytes of the application, held while the handle lives; and the call that finds or makes one. Unsafe code stands here
//! because registering memory that somebody else owns cannot be safe: the caller vouches for it.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use scalefabric_verbs::{MemoryRegion, Sge};

use super::Cache;
use super::core::{Core, Found, Mark, Source};
use super::entry::{Entry, Registered};
use super::watch;
use crate::buffer::{Local, RemoteRange};
use crate::error::FabricError;

const PAGE: usize = 4096;
/// Registrations that a thread remembers, so that finding them again takes no lock.
const REMEMBERED: usize = 8;

/// Registered bytes of the application. While the handle lives the registration does.
///
/// Whoever posts it keeps it until the operation has completed.
#[derive(Debug)]
pub struct Region {
    entry: Arc<Entry>,
    addr: usize,
    length: usize,
}

thread_local! {
    static MEMORIES: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// What a thread remembers of one cache.
struct Memory {
    cache: u64,
    mark: Arc<Mark>,
    known: [Option<Known>; REMEMBERED],
    next: usize,
}

struct Known {
    start: usize,
    end: usize,
    entry: Arc<Entry>,
}

impl Cache {
    /// Registers `length` bytes at `addr`, or finds them registered. Errors: those of registration (`EFAULT`: not mapped or not writable; `ENOMEM`:
    /// limits); `EPERM` in a forked child.
    ///
    /// What is kept is registered in whole pages, together with neighbours that this cache was asked for before: where peers have rights, the key opens
    /// all of that. Who may not lend a page's other bytes takes memory of the pool, or a cache with [`super::Watching::Never`], which registers exactly
    /// what it is asked for.
    ///
    /// # Safety
    /// Until the region is dropped, and as long as the cache keeps it afterwards, peers and devices read and write those pages as the cache's access says:
    /// nobody may hold Rust references to bytes that they may write. Memory that is unmapped meanwhile is an error for who uses it, never a signal.
    // Inlined without asking the compiler: behind a system call the processor has forgotten where functions return to, and each return costs 100 ns, five times
    // all the rest of a hit.
    #[inline(always)]
    pub unsafe fn region(&self, addr: *mut u8, length: usize) -> Result<Region, FabricError> {
        let core = self.core();
        let at = addr.expose_provenance();
        if core.home.is_here()
            && let Some(end) = at.checked_add(length)
            && let Some(entry) = remembered(core, at, end)
        {
            return Ok(Region { entry, addr: at, length });
        }
        // SAFETY: the caller's promise.
        unsafe { self.region_anew(addr, length) }
    }

    /// # Safety
    /// As [`Cache::region`].
    #[cold]
    #[inline(never)]
    unsafe fn region_anew(&self, addr: *mut u8, length: usize) -> Result<Region, FabricError> {
        let core = self.core();
        core.home.check("this cache")?;
        let at = addr.addr();
        let Some(end) = at.checked_add(length).filter(|end| end.checked_next_multiple_of(PAGE).is_some()) else {
            return Err(FabricError::misuse(format!("{length} bytes at {addr:p} pass the end of the address space")));
        };
        // SAFETY: the caller's promise.
        let entry = unsafe { find_or_make(core, at, end) }?;
        Ok(Region { entry, addr: at, length })
    }

    /// As [`Cache::region`], of all pieces that a list of work requests names: what this thread knows of is found by one question to the kernel instead of one
    /// for each. The regions are put behind what is in `into`, in the order of the pieces. On error none of them is.
    ///
    /// # Safety
    /// As [`Cache::region`], of each piece.
    pub unsafe fn regions(&self, pieces: &[(*mut u8, usize)], into: &mut Vec<Region>) -> Result<(), FabricError> {
        let core = self.core();
        core.home.check("this cache")?;
        let begun = into.len();
        let mut rest = pieces;
        while !rest.is_empty() {
            let from = into.len();
            hold_remembered(core, rest, into);
            let held = into.len() - from;
            // All were held before the kernel is asked, and each one's mark is looked at after that.
            let good = held > 0 && core.settled() && into[from..].iter().all(|region| region.entry.is_live());
            if good {
                rest = &rest[held..];
                continue;
            }
            into.drain(from..).for_each(|region| region.entry.take_back_find());
            // One by one, as far as it was not as remembered, and the first in any case.
            let (some, more) = rest.split_at(held.max(1));
            for (addr, length) in some {
                // SAFETY: the caller's promise.
                match unsafe { self.region(*addr, *length) } {
                    Ok(region) => into.push(region),
                    Err(error) => {
                        into.truncate(begun);
                        return Err(error);
                    }
                }
            }
            rest = more;
        }
        Ok(())
    }
}

/// Holds what this thread remembers of the pieces, up to the first of which it knows nothing. Nobody has looked whether it is still good.
fn hold_remembered(core: &Core, pieces: &[(*mut u8, usize)], into: &mut Vec<Region>) {
    let _ = MEMORIES.try_with(|memories| {
        let memories = memories.borrow();
        let Some(memory) = memories.iter().find(|memory| memory.cache == core.id) else { return };
        core.mark(&memory.mark);
        for (addr, length) in pieces {
            let addr = addr.expose_provenance();
            let Some(end) = addr.checked_add(*length) else { return };
            let is_it = |known: &&Known| known.start <= addr && known.end >= end;
            let Some(known) = memory.known.iter().flatten().find(is_it) else { return };
            known.entry.hold(core.now());
            into.push(Region { entry: Arc::clone(&known.entry), addr, length: *length });
        }
    });
}

/// What this thread remembers of a range, if that is still good.
#[inline(always)]
fn remembered(core: &Core, start: usize, end: usize) -> Option<Arc<Entry>> {
    let found = MEMORIES.try_with(|memories| {
        let memories = memories.borrow();
        let memory = memories.iter().find(|memory| memory.cache == core.id)?;
        core.mark(&memory.mark);
        let known = memory.known.iter().flatten().find(|known| known.start <= start && known.end >= end)?;
        known.entry.hold(core.now());
        Some(Arc::clone(&known.entry))
    });
    let entry = found.ok().flatten()?;
    if core.confirm(&entry) {
        return Some(entry);
    }
    forget(core, entry);
    None
}

/// What this thread remembers is not what is there any more.
#[cold]
#[inline(never)]
fn forget(core: &Core, entry: Arc<Entry>) {
    entry.take_back_find();
    let _ = MEMORIES.try_with(|memories| {
        for memory in memories.borrow_mut().iter_mut().filter(|memory| memory.cache == core.id) {
            for place in &mut memory.known {
                if place.as_ref().is_some_and(|known| Arc::ptr_eq(&known.entry, &entry)) {
                    *place = None;
                }
            }
        }
    });
    drop_handle(entry);
}

fn remember(core: &Core, entry: &Arc<Entry>) {
    let _ = MEMORIES.try_with(|memories| {
        let mut memories = memories.borrow_mut();
        let index = memories.iter().position(|memory| memory.cache == core.id).unwrap_or_else(|| {
            memories.retain(|memory| memory.known.iter().flatten().any(|known| known.entry.core().is_some()));
            let mark = Arc::new(Mark { thread: watch::thread_id(), serial: AtomicU64::new(0) });
            core.marks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&mark));
            memories.push(Memory { cache: core.id, mark, known: [const { None }; REMEMBERED], next: 0 });
            memories.len() - 1
        });
        let memory = &mut memories[index];
        let known = Known { start: entry.start, end: entry.end, entry: Arc::clone(entry) };
        memory.known[memory.next] = Some(known);
        memory.next = (memory.next + 1) % REMEMBERED;
    });
}

/// # Safety
/// As [`Cache::region`].
unsafe fn find_or_make(core: &Arc<Core>, at: usize, end: usize) -> Result<Arc<Entry>, FabricError> {
    let passing = || -> Result<Arc<Entry>, FabricError> {
        // SAFETY: the caller's promise.
        let made = unsafe { register(core, at, end) }?;
        Ok(Entry::new(core, made, false))
    };
    if at == end || !core.keeps() {
        core.lock().counts.passing.by_configuration += 1;
        return passing();
    }
    let (first, last) = (at / PAGE * PAGE, end.next_multiple_of(PAGE));
    if last - first > core.config.max_bytes {
        core.lock().counts.passing.too_large += 1;
        return passing();
    }
    let mut join = true;
    loop {
        let (id, from, to) = match core.find(first, last, join) {
            Found::Entry(entry) if core.confirm(&entry) => {
                remember(core, &entry);
                return Ok(entry);
            }
            Found::Entry(entry) => {
                let is_dead = !entry.is_live();
                entry.take_back_find();
                drop_handle(entry);
                if is_dead {
                    continue;
                }
                // The kernel does not settle, or nobody reads any more.
                core.lock().counts.passing.changed += 1;
                return passing();
            }
            Found::Quarantined => return passing(),
            Found::Make(id, from, to) => (id, from, to),
        };
        let is_exact = (from, to) == (first, last);
        if !watch_range(core, from, to) {
            core.give_up(id, |passing| passing.unwatchable += u64::from(is_exact));
            if is_exact {
                return passing();
            }
            join = false;
            continue;
        }
        // SAFETY: the caller's promise, which covers whole pages and what was asked for before.
        match unsafe { register(core, from, to) } {
            Ok(made) => {
                let entry = core.keep(id, made);
                if entry.is_live() {
                    remember(core, &entry);
                }
                return Ok(entry);
            }
            Err(error) => {
                core.give_up(id, |_| {});
                if is_exact && (at, end) == (from, to) {
                    return Err(error);
                }
                if is_exact {
                    // Perhaps the rest of the page may not be touched: what was asked for may.
                    core.lock().counts.passing.unwatchable += 1;
                    return passing();
                }
                join = false;
            }
        }
    }
}

/// Has the kernel watch the mappings of a range, and makes sure that they are of the kind whose every change it tells. Whole mappings: one of which a
/// part is watched is two to the kernel, and could not be moved (`mremap`) any more.
fn watch_range(core: &Core, start: usize, end: usize) -> bool {
    let Source::Kernel { watch, maps } = &core.source else { return true };
    maps.all_anonymous(start, end, |mapping| watch.start(mapping.start, mapping.end).is_ok())
        // Once more now that it is watched: what changes after this is told.
        && maps.all_anonymous(start, end, |_| true)
}

/// # Safety
/// As [`Cache::region`].
unsafe fn register(core: &Core, start: usize, end: usize) -> Result<Registered, FabricError> {
    let mut regions: Vec<Arc<dyn MemoryRegion>> = Vec::with_capacity(core.pds.len());
    for pd in &core.pds {
        let addr = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the caller's promise is the one that this asks for.
        match unsafe { pd.reg_mr(addr, end - start, start as u64, core.config.access) } {
            Ok(region) => regions.push(region),
            Err(error) => {
                regions.iter().for_each(|region| drop(region.destroy()));
                return Err(error.into());
            }
        }
    }
    Ok(Registered { start, end, regions })
}

#[inline]
fn drop_handle(entry: Arc<Entry>) {
    if entry.let_go() {
        give_back(entry);
    }
}

#[cold]
#[inline(never)]
fn give_back(entry: Arc<Entry>) {
    match entry.core() {
        Some(core) => core.give_back(entry),
        // The cache is gone; dropping the last handle deregisters.
        None => drop(entry.claim().into_iter().filter(|region| region.destroy().is_err()).count()),
    }
}

impl Region {
    /// Whether its memory is still what was registered, as far as is known. A region that was never kept says no, too.
    pub fn is_kept(&self) -> bool {
        self.entry.is_live()
    }

    fn is_inside(&self, offset: usize, length: usize) -> bool {
        offset <= self.length && length <= self.length - offset
    }
}

impl Local for Region {
    fn len(&self) -> usize {
        self.length
    }

    fn sge(&self, offset: usize, length: usize) -> Option<Sge> {
        self.sge_on(0, offset, length)
    }

    fn remote(&self, offset: usize, length: usize) -> Option<RemoteRange> {
        self.remote_on(0, offset, length)
    }

    fn sge_on(&self, domain: usize, offset: usize, length: usize) -> Option<Sge> {
        let (lkey, _) = *self.entry.keys.get(domain)?;
        let length = self.is_inside(offset, length).then_some(length)?.try_into().ok()?;
        Some(Sge { addr: (self.addr + offset) as u64, length, lkey })
    }

    fn remote_on(&self, domain: usize, offset: usize, length: usize) -> Option<RemoteRange> {
        let (_, rkey) = *self.entry.keys.get(domain)?;
        (self.entry.is_lent && self.is_inside(offset, length)).then_some(RemoteRange {
            addr: (self.addr + offset) as u64,
            length: length as u64,
            rkey: rkey.0,
        })
    }
}

impl Drop for Region {
    #[inline(always)]
    fn drop(&mut self) {
        if self.entry.is_here() && self.entry.let_go() {
            give_back(Arc::clone(&self.entry));
        }
    }
}
