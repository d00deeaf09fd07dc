//! A process's part of the same-host path, in one memfd of its own: the gates of its QPs, its memory table, and the memory that it
//! allocates. The others of the device map it, so that they can do what its engine would do without asking it.
//!
//! [`OwnFile`] is this process's; [`ForeignFile`] is another's, mapped here. All tables are atomics, and zero is a valid value of
//! each; the file is sealed against shrinking. Members trust one another (D1), but never borrow each other's memory: bytes are
//! copied by the routines of [`super::copy`], which survive faults.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::key::KeySpace;
use super::ranges::Ranges;
use super::table::Entry;
use crate::direct::Gate;
use crate::process::Descriptor;

/// Version of the layout.
const VERSION: u32 = 3;
const MAGIC: u64 = u64::from_le_bytes(*b"sfmember");
/// Gates, one for each QP index.
pub const GATES: usize = 65_536;
/// Entries of the memory table that others see. Regions beyond them are reached by packets.
pub const ENTRIES: usize = 1 << 17;
const PAGE: usize = 4096;
/// Bytes of a transparent huge page, by which the heap is aligned here and at its neighbours.
pub(super) const HUGE_PAGE: usize = 2 << 20;
const GATES_AT: usize = PAGE;
const ENTRIES_AT: usize = GATES_AT + GATES * size_of::<Gate>();
/// The heap begins where a transparent page may: the kernel puts one only where address and place in the file agree.
const TABLES: usize = (ENTRIES_AT + ENTRIES * size_of::<Entry>()).next_multiple_of(HUGE_PAGE);
/// Address space for memory that is allocated here, tried from the largest. Pages come when they are touched.
const HEAPS: [usize; 3] = [256 << 30, 16 << 30, 1 << 30];
/// So much of another's memory is mapped at a time.
const PIECE: usize = 64 << 20;

const _: () = assert!(TABLES.is_multiple_of(PAGE));

/// The file's first page.
#[derive(Debug)]
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    tables: AtomicU32,
    /// Address of the allocated memory in its owner.
    heap_base: AtomicU64,
    heap_bytes: AtomicU64,
    /// What keys are made from.
    keys: [AtomicU64; 4],
}

/// The mapped tables of a file.
#[derive(Debug)]
struct Tables(NonNull<u8>);

// SAFETY: the mapping stays until the value is dropped, and all of it is atomics.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    fn map(fd: &Descriptor) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a fresh mapping; the kernel chooses the place.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), TABLES, protection, flags, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and large enough; zero is valid for atomics.
        unsafe { self.0.cast().as_ref() }
    }

    #[inline]
    fn gate(&self, index: u16) -> &Gate {
        // SAFETY: there are as many gates as 16 bits can name; zero is valid for atomics.
        unsafe { self.0.byte_add(GATES_AT).cast::<Gate>().add(usize::from(index)).as_ref() }
    }

    #[inline]
    fn entry(&self, slot: u32) -> Option<&Entry> {
        // SAFETY: inside the table, as was looked at; zero is valid for atomics.
        ((slot as usize) < ENTRIES)
            .then(|| unsafe { self.0.byte_add(ENTRIES_AT).cast::<Entry>().add(slot as usize).as_ref() })
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), TABLES) };
    }
}

/// Address space that nothing can touch until parts of a file are mapped there.
#[derive(Debug)]
struct Window {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: only an address; whoever copies there goes through the table.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// At a multiple of [`HUGE_PAGE`].
    fn reserve(bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping; the kernel chooses the place.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), bytes + HUGE_PAGE, libc::PROT_NONE, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = raw.addr().next_multiple_of(HUGE_PAGE) - raw.addr();
        let base = raw.wrapping_byte_add(before);
        for (from, bytes) in [(raw, before), (base.wrapping_byte_add(bytes), HUGE_PAGE - before)] {
            if bytes > 0 {
                // SAFETY: the parts of the new mapping that lie before and behind the aligned one.
                unsafe { libc::munmap(from, bytes) };
            }
        }
        Ok(Self { base: base.cast(), bytes })
    }

    /// Maps a part of the heap of a file where it belongs.
    fn fill(&self, fd: &Descriptor, offset: usize, bytes: usize) -> bool {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        let at = self.base.wrapping_add(offset).cast();
        let from = (TABLES + offset) as libc::off_t;
        // SAFETY: inside the window, which is ours, over address space in which nothing is.
        unsafe { libc::mmap(at, bytes, protection, flags | libc::MAP_FIXED, fd.as_raw_fd(), from) != libc::MAP_FAILED }
    }

    /// Takes a part away again.
    fn clear(&self, offset: usize, bytes: usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: inside the window, which is ours; nobody uses that part any more.
        unsafe { libc::mmap(self.base.wrapping_add(offset).cast(), bytes, libc::PROT_NONE, flags, -1, 0) };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nobody uses it any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// This process's file.
#[derive(Debug)]
pub struct OwnFile {
    fd: Arc<Descriptor>,
    tables: Tables,
    /// Where memory is allocated; `None` where there is no address space for it.
    heap: Option<(Window, Mutex<Heap>)>,
}

/// The heap's account.
#[derive(Debug)]
struct Heap {
    free: Ranges,
    /// Parts that a process which is stopped may still write into: nobody gets them again.
    kept: Vec<(usize, usize)>,
}

impl OwnFile {
    /// An empty one.
    pub fn new() -> io::Result<Arc<Self>> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string.
        let fd = Descriptor::make(|| unsafe { libc::memfd_create(c"scalefabric-member".as_ptr(), flags) })?;
        let (mut heap, mut size) = (None, TABLES);
        for bytes in HEAPS {
            let Ok(window) = Window::reserve(bytes) else { continue };
            // SAFETY: no pointers are passed. A limit on files (ulimit -f) refuses the larger ones.
            if unsafe { libc::ftruncate(fd.as_raw_fd(), (TABLES + bytes) as libc::off_t) } == 0 {
                size = TABLES + bytes;
                heap = Some((window, Mutex::new(Heap { free: Ranges::new(bytes), kept: Vec::new() })));
                break;
            }
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no pointers are passed.
        let done = unsafe {
            libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
        };
        if !done {
            return Err(io::Error::last_os_error());
        }
        let tables = Tables::map(&fd)?;
        let header = tables.header();
        if let Some((window, _)) = &heap {
            header.heap_base.store(window.base.expose_provenance() as u64, Ordering::Relaxed);
            header.heap_bytes.store(window.bytes as u64, Ordering::Relaxed);
        }
        header.version.store(VERSION, Ordering::Relaxed);
        header.tables.store(TABLES as u32, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(Arc::new(Self { fd: Arc::new(fd), tables, heap }))
    }

    /// The descriptor that others get.
    pub fn descriptor(&self) -> &Arc<Descriptor> {
        &self.fd
    }

    /// The gate of a QP.
    #[inline]
    pub fn gate(&self, index: u16) -> &Gate {
        self.tables.gate(index)
    }

    /// Lets the others unscramble keys.
    pub(super) fn set_keys(&self, seed: [u64; 4]) {
        for (to, from) in self.tables.header().keys.iter().zip(seed) {
            to.store(from, Ordering::Release);
        }
    }

    /// An entry of the memory table, if others can see it.
    #[inline]
    pub(super) fn entry(&self, slot: u32) -> Option<&Entry> {
        self.tables.entry(slot)
    }

    fn heap(&self) -> Option<(&Window, std::sync::MutexGuard<'_, Heap>)> {
        let (window, heap) = self.heap.as_ref()?;
        Some((window, heap.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Maps `bytes` of the heap that nobody has; its place there, and its address. A multiple of a page.
    pub(super) fn map(&self, bytes: usize) -> Option<(usize, *mut u8)> {
        let (window, mut heap) = self.heap()?;
        let offset = heap.free.take(bytes)?;
        if !window.fill(&self.fd, offset, bytes) {
            heap.free.give_back(offset, bytes);
            return None;
        }
        Some((offset, window.base.wrapping_add(offset)))
    }

    /// As [`OwnFile::map`], at a multiple of [`HUGE_PAGE`], with a page behind it in which nothing is: the kernel never joins it with a mapping beside it, so
    /// that what it says of this one is of this one.
    pub(super) fn map_apart(&self, bytes: usize) -> Option<(usize, *mut u8)> {
        let (window, mut heap) = self.heap()?;
        let offset = heap.free.take_aligned(bytes.checked_add(PAGE)?, HUGE_PAGE)?;
        if !window.fill(&self.fd, offset, bytes) {
            heap.free.give_back(offset, bytes + PAGE);
            return None;
        }
        Some((offset, window.base.wrapping_add(offset)))
    }

    /// Gives back what [`OwnFile::map_apart`] gave.
    pub(super) fn unmap_apart(&self, offset: usize, bytes: usize) {
        self.release(offset, bytes, bytes + PAGE);
    }

    /// Another process is stopped in the middle of an access to these bytes of this process, and will end it one day: if they lie in the heap, nobody else gets them.
    pub(super) fn keep(&self, addr: *mut u8, bytes: usize) {
        let Some((window, mut heap)) = self.heap() else { return };
        let offset = addr.addr().wrapping_sub(window.base.addr());
        if offset < window.bytes {
            heap.kept.push((offset, offset.saturating_add(bytes)));
        }
    }

    /// Frees the pages of a part of the heap, which reads as zeros afterwards. False if it could not be done.
    pub(super) fn punch(&self, offset: usize, bytes: usize) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let at = (TABLES + offset) as libc::off_t;
        // SAFETY: no pointers are passed. Nobody uses these pages any more.
        unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, at, bytes as libc::off_t) == 0 }
    }

    /// Gives back what [`OwnFile::map`] gave.
    pub(super) fn unmap(&self, offset: usize, bytes: usize) {
        self.release(offset, bytes, bytes);
    }

    fn release(&self, offset: usize, bytes: usize, taken: usize) {
        let punched = self.punch(offset, bytes);
        if let Some((window, mut heap)) = self.heap() {
            window.clear(offset, bytes);
            let is_kept = heap.kept.iter().any(|&(from, to)| from < offset + bytes && to > offset);
            // What could not be zeroed is not given out again, either.
            if punched && !is_kept {
                heap.free.give_back(offset, taken);
            }
        }
    }
}

/// Another process's file, mapped here.
#[derive(Debug)]
pub(super) struct ForeignFile {
    fd: Arc<Descriptor>,
    tables: Tables,
    keys: KeySpace,
    heap_base: u64,
    /// As large as the heap, which lies in it as in its owner; pieces are mapped when they are needed.
    window: Option<Window>,
    mapped: Box<[AtomicBool]>,
}

impl ForeignFile {
    /// Maps what another process has sent. It must be sealed and of this build's layout.
    pub fn join(fd: Arc<Descriptor>) -> io::Result<Self> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
        // SAFETY: plain system calls; all-zero is a valid stat.
        let (seals, size) = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &raw mut stat) < 0 {
                return Err(io::Error::last_os_error());
            }
            (libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS), stat.st_size as u64)
        };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || size < TABLES as u64 {
            return wrong("the file of a member is not sealed, or too short");
        }
        let tables = Tables::map(&fd)?;
        let header = tables.header();
        let same = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Relaxed) == VERSION
            && header.tables.load(Ordering::Relaxed) == TABLES as u32;
        if !same {
            return wrong("the file of a member has another layout");
        }
        let heap_bytes = header.heap_bytes.load(Ordering::Relaxed).min(size - TABLES as u64) as usize;
        let window = if heap_bytes == 0 { None } else { Window::reserve(heap_bytes).ok() };
        let pieces = window.as_ref().map_or(0, |w| w.bytes.div_ceil(PIECE));
        let keys = [0, 1, 2, 3].map(|i| header.keys[i].load(Ordering::Acquire));
        Ok(Self {
            heap_base: header.heap_base.load(Ordering::Relaxed),
            keys: KeySpace::new(keys),
            fd,
            tables,
            window,
            mapped: (0..pieces).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    #[inline]
    pub fn gate(&self, index: u16) -> &Gate {
        self.tables.gate(index)
    }

    #[inline]
    pub fn slot_of(&self, key: u32) -> u32 {
        self.keys.slot(key)
    }

    #[inline]
    pub fn entry(&self, slot: u32) -> Option<&Entry> {
        self.tables.entry(slot)
    }

    /// Whether what lies at `host` in its owner is part of its heap, and so can be mapped.
    #[inline]
    pub fn has(&self, host: u64) -> bool {
        self.window.as_ref().is_some_and(|window| host.wrapping_sub(self.heap_base) < window.bytes as u64)
    }

    /// Where bytes that lie at `host` in their owner lie here; `None` if they are no part of its heap, or cannot be mapped.
    #[inline]
    pub fn here(&self, host: u64, length: u64) -> Option<*mut u8> {
        let window = self.window.as_ref()?;
        let offset = host.wrapping_sub(self.heap_base);
        if offset >= window.bytes as u64 || length > window.bytes as u64 - offset {
            return None;
        }
        let (first, last) = (offset as usize / PIECE, (offset + length.max(1) - 1) as usize / PIECE);
        let is_mapped = |piece: usize| self.mapped.get(piece).is_some_and(|piece| piece.load(Ordering::Acquire));
        if (first != last || !is_mapped(first)) && !self.map_pieces(window, first, last) {
            return None;
        }
        Some(window.base.wrapping_add(offset as usize))
    }

    #[cold]
    fn map_pieces(&self, window: &Window, first: usize, last: usize) -> bool {
        (first..=last).all(|piece| self.mapped[piece].load(Ordering::Acquire) || self.map_piece(window, piece))
    }

    /// One caller at a time: the engine.
    fn map_piece(&self, window: &Window, piece: usize) -> bool {
        let offset = piece * PIECE;
        let done = window.fill(&self.fd, offset, PIECE.min(window.bytes - offset));
        self.mapped[piece].store(done, Ordering::Release);
        done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::copy;

    #[test]
    fn what_one_writes_the_other_reads_at_the_same_place() {
        let own = OwnFile::new().expect("memory");
        own.set_keys([1, 2, 3, 4]);
        let (_, first) = own.map(PIECE + PAGE).expect("room");
        let foreign = ForeignFile::join(own.descriptor().clone()).expect("the same layout");
        let last = first.wrapping_add(PIECE + PAGE - 8);
        // SAFETY: the test's own memory.
        unsafe { copy::copy_in(last, &7u64.to_ne_bytes()) }.expect("mapped");
        let there = foreign.here(last as u64, 8).expect("a part of the heap");
        assert_ne!(there, last);
        // SAFETY: mapped by `here`.
        assert_eq!(unsafe { copy::load_u64(there.cast()) }, Ok(7));
        assert_eq!(foreign.here(last as u64, HEAPS[0] as u64), None, "beyond the heap");
        assert_eq!(foreign.here(0x1000, 8), None, "other memory of its owner");
    }

    #[test]
    fn what_is_unmapped_is_gone_and_comes_back_zeroed() {
        crate::memory::guard::ensure_here();
        let own = OwnFile::new().expect("memory");
        let (offset, at) = own.map(PAGE).expect("room");
        // SAFETY: the test's own memory.
        unsafe { copy::copy_in(at, &[9; 8]) }.expect("mapped");
        own.unmap(offset, PAGE);
        // SAFETY: faults are caught.
        assert_eq!(unsafe { copy::load_u64(at.cast()) }, Err(copy::Gone));
        let (again, at) = own.map(PAGE).expect("room");
        assert_eq!(again, offset);
        // SAFETY: the test's own memory.
        assert_eq!(unsafe { copy::load_u64(at.cast()) }, Ok(0));
    }

    #[test]
    fn pages_apart_are_aligned_in_both_and_come_back_unless_they_are_kept() {
        let own = OwnFile::new().expect("memory");
        let (first, at) = own.map_apart(3 * PAGE).expect("room");
        let (second, _) = own.map_apart(HUGE_PAGE).expect("room");
        assert!(at.addr().is_multiple_of(HUGE_PAGE) && (TABLES + first).is_multiple_of(HUGE_PAGE));
        assert!(second.is_multiple_of(HUGE_PAGE) && second >= first + 4 * PAGE);
        own.unmap_apart(first, 3 * PAGE);
        let (again, at) = own.map_apart(3 * PAGE).expect("room");
        assert_eq!(again, first);
        own.keep(at.wrapping_add(PAGE), 8);
        own.unmap_apart(again, 3 * PAGE);
        let (other, _) = own.map_apart(3 * PAGE).expect("room");
        assert_ne!(other, first, "somebody may still write there");
    }
}
