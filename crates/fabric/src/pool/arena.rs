//! An arena: one mapping of huge pages where there are any, registered with every protection domain of its pool. The only place of the pool with
//! unsafe code: it maps, registers and copies. Peers may write the memory at any moment, so bytes are copied in and out by instructions that the
//! compiler does not look into, and never become a reference.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_verbs::{AccessFlags, LKey, MemoryRegion, ProtectionDomain, RKey, SharedMemory};

use super::config::{ArenaReport, MIB2, PageKind, PoolConfig};
use super::pages;
use crate::error::FabricError;
use crate::fork::Home;

/// Memory in this process's address space.
#[derive(Debug)]
struct Mapping {
    at: usize,
    length: usize,
    home: Home,
    /// Whose it is; `None`: this process's own, and nobody else's.
    shared: Option<Arc<dyn SharedMemory>>,
    /// It has a node.
    bound: bool,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child the range is not ours: arenas are not inherited, and something else may lie there.
        if !self.home.is_here() {
            return;
        }
        if self.shared.is_some() {
            // It goes by itself, but what was said of its node would stay with its place in the file.
            if self.bound {
                let _ = set_policy(self.at, self.length, MPOL_DEFAULT, &[]);
            }
        } else {
            // SAFETY: mapped by `map`, and all registrations that knew it are gone (`Arena::drop`).
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.at), self.length) };
        }
    }
}

/// The key of an arena in one protection domain.
struct Keys {
    lkey: AtomicU32,
    rkey: AtomicU32,
}

/// Never the numbers.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Registrations of an arena.
#[derive(Debug, Default)]
struct Regions {
    /// One for each domain.
    now: Vec<Arc<dyn MemoryRegion>>,
    /// Those with keys of before, still good.
    old: Vec<Arc<dyn MemoryRegion>>,
}

/// One piece of registered memory.
#[derive(Debug)]
pub(super) struct Arena {
    mapping: Option<Mapping>,
    pub at: usize,
    pub length: usize,
    home: Home,
    keys: Vec<Keys>,
    regions: Mutex<Regions>,
    pub report: ArenaReport,
}

impl Arena {
    /// Maps `length` bytes, rounded up to what its pages need, and registers them everywhere.
    pub fn new(
        length: usize,
        pds: &[Arc<dyn ProtectionDomain>],
        config: &PoolConfig,
        home: Home,
    ) -> Result<Self, FabricError> {
        let (mapping, report) = map(length, pds, config, home)?;
        let (at, length) = (mapping.at, mapping.length);
        let now = register(at, length, pds, config.access)?;
        let keys = now
            .iter()
            .map(|region| Keys { lkey: AtomicU32::new(region.lkey().0), rkey: AtomicU32::new(region.rkey().0) })
            .collect();
        let regions = Mutex::new(Regions { now, old: Vec::new() });
        Ok(Self { mapping: Some(mapping), at, length, home, keys, regions, report })
    }

    pub fn lkey(&self, pd: usize) -> Option<LKey> {
        Some(LKey(self.keys.get(pd)?.lkey.load(Ordering::Acquire)))
    }

    pub fn rkey(&self, pd: usize) -> Option<RKey> {
        Some(RKey(self.keys.get(pd)?.rkey.load(Ordering::Acquire)))
    }

    /// Its registration in a domain.
    pub fn region(&self, pd: usize) -> Option<Arc<dyn MemoryRegion>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).now.get(pd).cloned()
    }

    /// Registers the arena anew; nothing changes until [`Self::publish`].
    pub fn register_again(
        &self,
        pds: &[Arc<dyn ProtectionDomain>],
        access: AccessFlags,
    ) -> Result<Vec<Arc<dyn MemoryRegion>>, FabricError> {
        register(self.at, self.length, pds, access)
    }

    /// Makes these registrations the present ones. The ones before stay good until [`Self::take_old`].
    pub fn publish(&self, fresh: Vec<Arc<dyn MemoryRegion>>) {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for (keys, region) in self.keys.iter().zip(&fresh) {
            keys.lkey.store(region.lkey().0, Ordering::Release);
            keys.rkey.store(region.rkey().0, Ordering::Release);
        }
        let before = std::mem::replace(&mut regions.now, fresh);
        regions.old.extend(before);
    }

    /// The registrations whose keys were replaced.
    pub fn take_old(&self) -> Vec<Arc<dyn MemoryRegion>> {
        std::mem::take(&mut self.regions.lock().unwrap_or_else(PoisonError::into_inner).old)
    }

    /// Number of registrations whose keys were replaced.
    pub fn old_registrations(&self) -> usize {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).old.len()
    }

    /// Puts back what could not be deregistered.
    pub fn put_back_old(&self, regions: Vec<Arc<dyn MemoryRegion>>) {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).old.extend(regions);
    }

    /// Copies bytes in. The caller keeps the range inside the arena; it is checked all the same.
    pub fn copy_in(&self, offset: usize, data: &[u8]) {
        assert!(offset <= self.length && data.len() <= self.length - offset, "outside the arena");
        // SAFETY: the destination lies in our mapping, which lives as long as `self`; the source is a slice. Others may write the destination
        // meanwhile: the copy is opaque to the compiler and tears at worst.
        unsafe { copy(std::ptr::with_exposed_provenance_mut(self.at + offset), data.as_ptr(), data.len()) };
    }

    /// Copies bytes out.
    pub fn copy_out(&self, offset: usize, out: &mut [u8]) {
        assert!(offset <= self.length && out.len() <= self.length - offset, "outside the arena");
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { copy(out.as_mut_ptr(), std::ptr::with_exposed_provenance(self.at + offset), out.len()) };
    }

    /// Sets bytes to zero.
    pub fn zero(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.length && bytes <= self.length - offset, "outside the arena");
        // SAFETY: as in `copy_in`.
        unsafe { zero(std::ptr::with_exposed_provenance_mut(self.at + offset), bytes) };
    }

    /// The aligned word at `offset`.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.length && self.length - offset >= 8, "no word of the arena");
        // SAFETY: aligned and inside our mapping, which lives as long as `self`. It is an atomic, so that peers may change it.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(self.at + offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let regions = std::mem::take(self.regions.get_mut().unwrap_or_else(PoisonError::into_inner));
        if !self.home.is_here() {
            // The registrations are the parent's; a backend tells its child's copies from its own.
            std::mem::forget(regions);
            return;
        }
        let all_gone = regions.now.into_iter().chain(regions.old).all(|region| region.destroy().is_ok());
        if !all_gone {
            // A memory window is bound to it, or the device is gone: peers may still reach the memory, so it has to stay.
            std::mem::forget(self.mapping.take());
        }
    }
}

fn register(
    at: usize,
    length: usize,
    pds: &[Arc<dyn ProtectionDomain>],
    access: AccessFlags,
) -> Result<Vec<Arc<dyn MemoryRegion>>, FabricError> {
    let mut regions: Vec<Arc<dyn MemoryRegion>> = Vec::with_capacity(pds.len());
    for (index, pd) in pds.iter().enumerate() {
        // SAFETY: the mapping outlives the region (`Arena::drop` destroys it first), and no Rust reference to its bytes is ever made.
        let made = unsafe { pd.reg_mr(std::ptr::with_exposed_provenance_mut(at), length, at as u64, access) };
        match made {
            Ok(region) => regions.push(region),
            Err(error) => {
                regions.iter().for_each(|region| drop(region.destroy()));
                return Err(FabricError::from(error)
                    .during(format!("registering {} MiB with protection domain {index}", length >> 20)));
            }
        }
    }
    Ok(regions)
}

/// A mapping that can be used: its pages, the bytes of it in huge ones, and its node.
type Furnished = (Mapping, PageKind, usize, Result<u32, String>);

/// Tries kinds of pages, best first, and notes why each was refused.
fn attempt(
    kinds: &[PageKind],
    config: &PoolConfig,
    refused: &mut Vec<(PageKind, String)>,
    mut make: impl FnMut(PageKind) -> Result<Mapping, String>,
) -> Option<Furnished> {
    kinds.iter().find_map(|&kind| {
        let made = make(kind).and_then(|mapping| furnish(kind, mapping, config));
        made.map_err(|why| refused.push((kind, why))).ok()
    })
}

/// Maps memory in the best pages that are to be had: reserved ones, then those that neighbours map, then others of this process's own.
fn map(
    length: usize,
    pds: &[Arc<dyn ProtectionDomain>],
    config: &PoolConfig,
    home: Home,
) -> Result<(Mapping, ArenaReport), FabricError> {
    let allowed = |kind: &PageKind| (config.best_pages..=config.least_pages).contains(kind);
    let (reserved, ordinary): (Vec<PageKind>, Vec<PageKind>) =
        PageKind::ALL.into_iter().filter(allowed).partition(|kind| kind.is_reserved());
    let (mut refused, mut refused_shared) = (Vec::new(), Vec::new());
    let private = |kind| map_private(kind, length, home);
    let mut why_private = "reserved pages are this process's own".to_owned();
    let mut found = attempt(&reserved, config, &mut refused, private);
    if found.is_none() && !ordinary.is_empty() {
        let first =
            if config.shared { map_shared(length, pds, home) } else { Err("PoolConfig::shared is false".into()) };
        match first {
            Ok(first) => {
                let mut first = Some(first);
                let shared = |kind: PageKind| match first.take().filter(|first| first.length == whole(kind, length)) {
                    Some(first) => Ok(first),
                    None => map_shared(whole(kind, length), pds, home),
                };
                found = attempt(&ordinary, config, &mut refused_shared, shared);
                why_private = told(&refused_shared);
            }
            Err(why) => why_private = why,
        }
        match found {
            Some(_) => refused.append(&mut refused_shared),
            None => found = attempt(&ordinary, config, &mut refused, private),
        }
    }
    let Some((mapping, pages, huge_bytes, node)) = found else {
        let reasons = if refused.is_empty() { "least_pages is better than best_pages".into() } else { told(&refused) };
        let message = format!("no memory for an arena of {} MiB: {reasons}", length >> 20);
        let mut error = FabricError::environment(message);
        error.errno = Some(scalefabric_verbs::Errno::ENOMEM);
        return Err(error);
    };
    let shared = if mapping.shared.is_some() { Ok(()) } else { Err(why_private) };
    let report = ArenaReport { bytes: mapping.length, pages, refused, huge_bytes, shared, node };
    Ok((mapping, report))
}

fn told(refused: &[(PageKind, String)]) -> String {
    refused.iter().map(|(kind, why)| format!("no {kind}: {why}")).collect::<Vec<_>>().join("; ")
}

/// Bytes of an arena of this kind that shall have `length`.
fn whole(kind: PageKind, length: usize) -> usize {
    length.next_multiple_of(kind.unit())
}

/// Memory that neighbours map, of the first device that has such.
fn map_shared(length: usize, pds: &[Arc<dyn ProtectionDomain>], home: Home) -> Result<Mapping, String> {
    let mut why = String::new();
    for pd in pds {
        match pd.alloc_shared(length) {
            Ok(memory) => {
                return Ok(Mapping {
                    at: memory.addr(),
                    length: memory.length(),
                    home,
                    shared: Some(memory),
                    bound: false,
                });
            }
            Err(error) => why = error.message,
        }
    }
    Err(why)
}

/// Memory of this process's own, not yet touched.
fn map_private(kind: PageKind, length: usize, home: Home) -> Result<Mapping, String> {
    if kind == PageKind::Huge1G && !length.is_multiple_of(kind.unit()) {
        return Err(format!("an arena of {} MiB is no multiple of them", length >> 20));
    }
    let huge = match kind {
        PageKind::Huge1G => libc::MAP_HUGETLB | (30 << libc::MAP_HUGE_SHIFT),
        PageKind::Huge2M => libc::MAP_HUGETLB | (21 << libc::MAP_HUGE_SHIFT),
        PageKind::Transparent | PageKind::Plain => 0,
    };
    let length = whole(kind, length);
    map_aligned(length, huge, if huge == 0 { kind.unit() } else { 0 }, home)
        .map_err(|error| reason(kind, length, &error))
}

fn reason(kind: PageKind, length: usize, error: &std::io::Error) -> String {
    if kind.is_reserved() { format!("{} ({error})", pages::why_no_huge_pages(kind, length)) } else { error.to_string() }
}

/// Makes a new mapping what it shall be, with all its pages; errors say why these pages are not to be had.
fn furnish(kind: PageKind, mut mapping: Mapping, config: &PoolConfig) -> Result<Furnished, String> {
    if kind == PageKind::Transparent
        && let Some(why) = pages::why_no_transparent_pages(mapping.shared.is_some())
    {
        return Err(why);
    }
    let (at, length) = (std::ptr::with_exposed_provenance_mut::<libc::c_void>(mapping.at), mapping.length);
    let advise = |advice| {
        // SAFETY: the whole of our new mapping, which holds nothing yet.
        match unsafe { libc::madvise(at, length, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // A child that inherited the arena would make the parent copy each page it writes, away from the pages that hardware has pinned; shared pages it would write itself.
    advise(libc::MADV_DONTFORK).map_err(|error| error.to_string())?;
    if kind == PageKind::Transparent {
        advise(libc::MADV_HUGEPAGE).map_err(|error| error.to_string())?;
    }
    let node = bind(mapping.at, length, config.numa_node);
    mapping.bound = node.is_ok();
    // Reserved pages that a cgroup or a node does not have after all would be a SIGBUS later: ask now.
    advise(libc::MADV_POPULATE_WRITE).map_err(|error| reason(kind, length, &error))?;
    let huge_bytes = if kind.is_reserved() { length } else { pages::huge_bytes(mapping.at).unwrap_or(0) };
    if kind == PageKind::Transparent && huge_bytes == 0 {
        return Err("the kernel found no free 2 MiB: memory is in pieces, or the limit of a cgroup is near".into());
    }
    Ok((mapping, kind, huge_bytes, node))
}

/// A mapping at a multiple of `align` (0: as the kernel likes).
fn map_aligned(length: usize, flags: libc::c_int, align: usize, home: Home) -> std::io::Result<Mapping> {
    let slack = if align > MIB2.min(4096) { align } else { 0 };
    // SAFETY: a new mapping, which replaces nothing.
    let raw = unsafe {
        libc::mmap(
            null_mut(),
            length + slack,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if raw == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    let start = raw.expose_provenance();
    let at = if slack == 0 { start } else { start.next_multiple_of(align) };
    for (from, bytes) in [(start, at - start), (at + length, start + slack - at)] {
        if bytes > 0 {
            // SAFETY: what lies before and behind the aligned part of the mapping just made.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(from), bytes) };
        }
    }
    Ok(Mapping { at, length, home, shared: None, bound: false })
}

/// Binds a range to a NUMA node, preferring it: memory elsewhere is better than none.
fn bind(at: usize, length: usize, node: Option<u32>) -> Result<u32, String> {
    let nodes = pages::nodes();
    let Some(node) = node else {
        return Err(if nodes == 1 { "the machine has one node".into() } else { "no node was asked for".into() });
    };
    if nodes == 1 && node == 0 {
        return Err("the machine has one node".into());
    }
    let bits = usize::BITS;
    let mut mask = vec![0_usize; (node / bits) as usize + 1];
    mask[(node / bits) as usize] = 1 << (node % bits);
    let done = set_policy(at, length, MPOL_PREFERRED, &mask);
    done.map(|()| node).map_err(|error| format!("node {node} refused: {error}"))
}

const MPOL_DEFAULT: libc::c_ulong = 0;
const MPOL_PREFERRED: libc::c_ulong = 1;

fn set_policy(at: usize, length: usize, policy: libc::c_ulong, mask: &[usize]) -> std::io::Result<()> {
    // The kernel counts one bit less than it is told.
    let bits = if mask.is_empty() { 0 } else { mask.len() * usize::BITS as usize + 1 };
    let nodes = if mask.is_empty() { std::ptr::null() } else { mask.as_ptr() };
    // SAFETY: the range is ours; the mask has as many bits less one, which the kernel only reads.
    let result = unsafe { libc::syscall(libc::SYS_mbind, at, length, policy, nodes, bits as libc::c_ulong, 0_u32) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// # Safety
/// `from` and `to` are mapped for `bytes`; they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise; DF is clear by the ABI.
    // WHY: a peer may change the bytes meanwhile, which is no data race for an instruction that the compiler does not see into.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// `to` is mapped for `bytes`.
#[cfg(target_arch = "x86_64")]
unsafe fn zero(to: *mut u8, bytes: usize) {
    // SAFETY: as in `copy`.
    unsafe {
        std::arch::asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") 0_u8,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As on x86-64.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    for index in 0..bytes {
        // SAFETY: the caller's promise.
        unsafe { to.add(index).write_volatile(from.add(index).read_volatile()) };
    }
}

/// # Safety
/// As on x86-64.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn zero(to: *mut u8, bytes: usize) {
    for index in 0..bytes {
        // SAFETY: the caller's promise.
        unsafe { to.add(index).write_volatile(0) };
    }
}
