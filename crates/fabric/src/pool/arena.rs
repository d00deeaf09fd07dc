//! An arena: one mapping of huge pages where there are any, registered with every protection domain of its pool. The only place of the pool with
//! unsafe code: it maps, registers and copies. Peers may write the memory at any moment, so bytes are copied in and out by instructions that the
//! compiler does not look into, and never become a reference.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use scalefabric_verbs::{AccessFlags, LKey, MemoryRegion, ProtectionDomain, RKey};

use super::config::{ArenaReport, MIB2, PageKind, PoolConfig};
use super::pages;
use crate::error::FabricError;
use crate::fork::Home;

/// Memory of this process, and nobody else's.
#[derive(Debug)]
struct Mapping {
    at: usize,
    length: usize,
    home: Home,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a child the range is not ours: arenas are not inherited, and something else may lie there.
        if self.home.is_here() {
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
        let (mapping, report) = map(length, config, home)?;
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

/// Maps memory in the best pages that are to be had.
fn map(length: usize, config: &PoolConfig, home: Home) -> Result<(Mapping, ArenaReport), FabricError> {
    let mut refused = Vec::new();
    let kinds = PageKind::ALL.into_iter().filter(|kind| (config.best_pages..=config.least_pages).contains(kind));
    for kind in kinds {
        match map_in(kind, length, config, home) {
            Ok((mapping, huge_bytes, node)) => {
                let report = ArenaReport { bytes: mapping.length, pages: kind, refused, huge_bytes, node };
                return Ok((mapping, report));
            }
            Err(why) => refused.push((kind, why)),
        }
    }
    let reasons: Vec<String> = refused.iter().map(|(kind, why)| format!("no {kind}: {why}")).collect();
    let mut error = FabricError::environment(format!(
        "no memory for an arena of {} MiB: {}",
        length >> 20,
        if reasons.is_empty() { "least_pages is better than best_pages".into() } else { reasons.join("; ") }
    ));
    error.errno = Some(scalefabric_verbs::Errno::ENOMEM);
    Err(error)
}

type Mapped = (Mapping, usize, Result<u32, String>);

fn map_in(kind: PageKind, length: usize, config: &PoolConfig, home: Home) -> Result<Mapped, String> {
    let length = match kind {
        PageKind::Huge1G if !length.is_multiple_of(kind.unit()) => {
            return Err(format!("an arena of {} MiB is no multiple of them", length >> 20));
        }
        _ => length.next_multiple_of(kind.unit()),
    };
    if kind == PageKind::Transparent
        && let Some(why) = pages::why_no_transparent_pages()
    {
        return Err(why);
    }
    let huge = match kind {
        PageKind::Huge1G => libc::MAP_HUGETLB | (30 << libc::MAP_HUGE_SHIFT),
        PageKind::Huge2M => libc::MAP_HUGETLB | (21 << libc::MAP_HUGE_SHIFT),
        PageKind::Transparent | PageKind::Plain => 0,
    };
    let reason = |error: std::io::Error| match kind {
        PageKind::Huge1G | PageKind::Huge2M => format!("{} ({error})", pages::why_no_huge_pages(kind, length)),
        _ => error.to_string(),
    };
    let mapping = map_aligned(length, huge, if huge == 0 { kind.unit() } else { 0 }, home).map_err(reason)?;
    let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(mapping.at);
    let advise = |advice| {
        // SAFETY: the whole of our new mapping, which holds nothing yet.
        match unsafe { libc::madvise(at, length, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // A child that inherited the arena would make the parent copy each page it writes, away from the pages that hardware has pinned.
    advise(libc::MADV_DONTFORK).map_err(|error| error.to_string())?;
    if kind == PageKind::Transparent {
        advise(libc::MADV_HUGEPAGE).map_err(|error| error.to_string())?;
    }
    let node = bind(mapping.at, length, config.numa_node);
    // Reserved pages that a cgroup or a node does not have after all would be a SIGBUS later: ask now.
    advise(libc::MADV_POPULATE_WRITE).map_err(reason)?;
    let huge_bytes = if huge != 0 { length } else { pages::huge_bytes(mapping.at).unwrap_or(0) };
    if kind == PageKind::Transparent && huge_bytes == 0 {
        return Err("the kernel found no free 2 MiB: memory is in pieces, or the limit of a cgroup is near".into());
    }
    Ok((mapping, huge_bytes, node))
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
    Ok(Mapping { at, length, home })
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
    const MPOL_PREFERRED: libc::c_ulong = 1;
    let bits = usize::BITS;
    let mut mask = vec![0_usize; (node / bits) as usize + 1];
    mask[(node / bits) as usize] = 1 << (node % bits);
    // The kernel counts one bit less than it is told.
    let max_node = mask.len() * bits as usize + 1;
    // SAFETY: the range is ours; the mask has `max_node` bits less one, which the kernel only reads.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, at, length, MPOL_PREFERRED, mask.as_ptr(), max_node as libc::c_ulong, 0_u32)
    };
    if result == 0 { Ok(node) } else { Err(format!("node {node} refused: {}", std::io::Error::last_os_error())) }
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
