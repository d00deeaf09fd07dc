//! Memory that the NIC itself allocates for `alloc_mr`: zeroed pages of a memfd, so that a neighbour process on this host
//! can map them (D3).
//!
//! It lies in the process's one file ([`super::file`]), or in memfds where there is none or no room in it. Pieces below 32 MiB share
//! arenas of 64 MiB, since mappings and descriptors are scarce and 100,000 regions are not rare; larger ones have their own.
//! Pages come when they are touched; a freed piece is punched out of its file, which frees its pages and makes it read as
//! zeros again.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scalefabric_verbs::{Errno, VerbsError, Word};

use super::copy::{self, Gone};
use super::file::OwnFile;
use super::guard;
use super::ranges::Ranges;
use crate::process::{Descriptor, Home};
use crate::ring::atomic::{Mutex, lock};

const PAGE: usize = 4096;
const ARENA: usize = 64 << 20;
/// From this size on a piece has a file of its own.
const OWN_FILE: usize = 32 << 20;

/// Gives out page-aligned zeroed memory.
#[derive(Debug, Default)]
pub struct Allocator {
    shared: Mutex<Vec<Arc<Arena>>>,
    /// The process's file, if others shall be able to reach what is allocated.
    file: Option<Arc<OwnFile>>,
}

/// What an arena's pages are.
#[derive(Debug)]
enum Backing {
    /// A part of the process's file, from that byte of its heap on.
    File(Arc<OwnFile>, usize),
    /// A memfd of its own.
    Memfd(Descriptor),
}

/// Memory that is mapped whole.
#[derive(Debug)]
struct Arena {
    backing: Backing,
    base: *mut u8,
    size: usize,
    free: Mutex<Ranges>,
}

// SAFETY: `base` is only an address; whoever copies there goes through the table.
unsafe impl Send for Arena {}
// SAFETY: as above; `free` has its lock.
unsafe impl Sync for Arena {}

impl Arena {
    fn new(size: usize, file: Option<&Arc<OwnFile>>) -> Result<Self, VerbsError> {
        let mapped = file.and_then(|file| file.map(size).map(|(offset, base)| (file.clone(), offset, base)));
        let (backing, base) = match mapped {
            Some((file, offset, base)) => (Backing::File(file, offset), base),
            None => Self::memfd(size)?,
        };
        Ok(Self { backing, base, size, free: Mutex::new(Ranges::new(size)) })
    }

    fn memfd(size: usize) -> Result<(Backing, *mut u8), VerbsError> {
        let refuse = |what: &str| {
            let error = io::Error::last_os_error();
            VerbsError::environment(
                Errno::ENOMEM,
                format!("no {size} bytes for a region: {what}: {error}; check free memory, ulimit -v and ulimit -n"),
            )
        };
        // SAFETY: a C string.
        let made = Descriptor::make(|| unsafe { libc::memfd_create(c"scalefabric-mr".as_ptr(), libc::MFD_CLOEXEC) });
        let Ok(fd) = made else { return Err(refuse("memfd_create")) };
        // SAFETY: no pointers are passed.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) } != 0 {
            return Err(refuse("ftruncate"));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping wherever the kernel likes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(refuse("mmap"));
        }
        Ok((Backing::Memfd(fd), base.cast()))
    }

    /// First fit.
    fn take(&self, length: usize) -> Option<usize> {
        lock(&self.free).take(length)
    }

    /// Zeroes a piece and takes it back. False if it could not be zeroed: it is lost then.
    fn give_back(&self, offset: usize, length: usize) -> bool {
        let punched = match &self.backing {
            Backing::File(file, start) => file.punch(start + offset, length),
            Backing::Memfd(fd) => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: no pointers are passed. Nobody uses these pages any more.
                unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset as libc::off_t, length as libc::off_t) == 0 }
            }
        };
        if punched {
            lock(&self.free).give_back(offset, length);
        }
        punched
    }

    fn is_unused(&self) -> bool {
        lock(&self.free).is_whole()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        match &self.backing {
            Backing::File(file, offset) => file.unmap(*offset, self.size),
            // SAFETY: our own mapping; the last piece of it is gone.
            Backing::Memfd(_) => _ = unsafe { libc::munmap(self.base.cast(), self.size) },
        }
    }
}

impl Allocator {
    /// An empty one.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An empty one whose memory lies in the process's file.
    pub fn in_file(file: Arc<OwnFile>) -> Arc<Self> {
        Arc::new(Self { shared: Mutex::default(), file: Some(file) })
    }

    /// `length` bytes, zeroed; at least one page, so that the address is real. `ENOMEM` with the reason.
    pub fn allocate(self: &Arc<Self>, length: usize) -> Result<Allocation, VerbsError> {
        let size = length
            .max(1)
            .checked_next_multiple_of(PAGE)
            .filter(|&s| s <= isize::MAX as usize)
            .ok_or_else(|| VerbsError::invalid(format!("{length} bytes are more than an address space holds")))?;
        let piece = |arena: Arc<Arena>, offset| Allocation {
            home: Home::here(),
            allocator: self.clone(),
            arena,
            offset,
            size,
            length,
        };
        if size >= OWN_FILE {
            let arena = Arena::new(size, self.file.as_ref())?;
            arena.take(size);
            return Ok(piece(Arc::new(arena), 0));
        }
        let mut shared = lock(&self.shared);
        // The newest first: older ones are likely to be full.
        for arena in shared.iter().rev() {
            if let Some(offset) = arena.take(size) {
                return Ok(piece(arena.clone(), offset));
            }
        }
        let arena = Arc::new(Arena::new(ARENA, self.file.as_ref())?);
        let offset = arena.take(size).unwrap_or(0);
        shared.push(arena.clone());
        Ok(piece(arena, offset))
    }
}

/// A piece of zeroed memory; freed when dropped.
pub struct Allocation {
    home: Home,
    allocator: Arc<Allocator>,
    arena: Arc<Arena>,
    offset: usize,
    size: usize,
    length: usize,
}

impl Allocation {
    /// Its first byte, at a page boundary.
    pub fn addr(&self) -> *mut u8 {
        self.arena.base.wrapping_add(self.offset)
    }

    /// Bytes as asked for.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies bytes in. `EINVAL` outside it, `EFAULT` if the machine has no page for it.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        let at = self.place(offset, data.len())?;
        // SAFETY: inside the allocation, which lives while it is borrowed; nobody has a reference there.
        unsafe { copy::copy_in(at, data) }.map_err(|Gone| no_page())
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        let at = self.place(offset, out.len())?;
        // SAFETY: as in `write`.
        unsafe { copy::copy_out(at, out) }.map_err(|Gone| no_page())
    }

    /// An aligned word of it, whose page is there from now on.
    pub fn word(self: &Arc<Self>, offset: usize) -> Result<AllocatedWord, VerbsError> {
        let at = self.place(offset, 8)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(VerbsError::invalid(format!("the word at offset {offset} is not aligned to 8 bytes")));
        }
        // SAFETY: as in `write`.
        unsafe { copy::load_u64(at) }.map_err(|Gone| no_page())?;
        Ok(AllocatedWord { at: at as usize, allocation: self.clone() })
    }

    fn place(&self, offset: usize, length: usize) -> Result<*mut u8, VerbsError> {
        guard::ensure_here();
        if offset > self.length || length > self.length - offset {
            return Err(VerbsError::invalid(format!(
                "{length} bytes at offset {offset} leave the {} bytes that were allocated",
                self.length
            )));
        }
        Ok(self.addr().wrapping_add(offset))
    }
}

/// A word of an allocation, which lives as long.
#[derive(Debug)]
pub struct AllocatedWord {
    at: usize,
    allocation: Arc<Allocation>,
}

impl Word for AllocatedWord {
    #[inline]
    fn load(&self) -> u64 {
        debug_assert!(self.at >= self.allocation.addr() as usize);
        // SAFETY: aligned, inside an allocation that is held, on a page that was touched: nobody takes pages away from it. Peers write words of it in one piece, and nobody has a reference.
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(self.at)) }.load(Ordering::Acquire)
    }
}

fn no_page() -> VerbsError {
    VerbsError::environment(Errno::EFAULT, "the machine has no memory for a page that is touched for the first time")
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocation({:?}, {} bytes)", self.addr(), self.length)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A forked child shares the pages: what it forgets stays as it is.
        if self.size >= OWN_FILE || !self.home.is_here() {
            return;
        }
        // The lock comes first, so that nobody takes a piece of an arena that is about to be dropped from the list.
        let mut shared = lock(&self.allocator.shared);
        if self.arena.give_back(self.offset, self.size) && self.arena.is_unused() && shared.len() > 1 {
            shared.retain(|arena| !Arc::ptr_eq(arena, &self.arena));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::copy::{copy_in, copy_out};

    fn first_byte(a: &Allocation) -> u8 {
        let mut out = [0xee];
        // SAFETY: the test's own memory.
        unsafe { copy_out(a.addr(), &mut out) }.expect("mapped");
        out[0]
    }

    fn fill(a: &Allocation) {
        // SAFETY: the test's own memory.
        unsafe { copy_in(a.addr(), &vec![0xaa; a.length()]) }.expect("mapped");
    }

    #[test]
    fn a_freed_piece_comes_back_zeroed() {
        let allocator = Allocator::new();
        let _keep = allocator.allocate(1).expect("memory");
        let piece = allocator.allocate(10_000).expect("memory");
        let addr = piece.addr();
        assert_eq!(addr as usize % PAGE, 0);
        fill(&piece);
        drop(piece);
        let again = allocator.allocate(10_000).expect("memory");
        assert_eq!(again.addr(), addr);
        assert_eq!(first_byte(&again), 0);
    }

    #[test]
    fn a_word_shows_what_is_written_and_keeps_its_piece() {
        let allocator = Allocator::new();
        let _keep = allocator.allocate(1).expect("memory");
        let piece = Arc::new(allocator.allocate(100).expect("memory"));
        let word = piece.word(16).expect("inside and aligned");
        piece.write(16, &7u64.to_ne_bytes()).expect("inside");
        assert_eq!(word.load(), 7);
        for (wrong, what) in [(12, "aligned"), (96, "leave"), (usize::MAX, "leave")] {
            let error = piece.word(wrong).expect_err("outside, or not aligned");
            assert!(error.errno == Errno::EINVAL && error.message.contains(what), "{error:?}");
        }
        let addr = piece.addr();
        drop(piece);
        let other = allocator.allocate(100).expect("memory");
        assert_ne!(other.addr(), addr, "somebody looks at it");
        fill(&other);
        assert_eq!(word.load(), 7);
        drop(word);
        assert_eq!(allocator.allocate(100).expect("memory").addr(), addr);
    }

    #[test]
    fn a_hundred_thousand_pieces_need_few_descriptors_and_never_overlap() {
        let allocator = Allocator::new();
        let pieces: Vec<Allocation> = (0..100_000).map(|i| allocator.allocate(i % 5000).expect("memory")).collect();
        assert!(lock(&allocator.shared).len() < 20);
        let mut ranges: Vec<(usize, usize)> = pieces.iter().map(|p| (p.addr() as usize, p.size)).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
        // Freed in another order, everything joins again.
        let (mut even, mut odd) = (Vec::new(), Vec::new());
        for (i, piece) in pieces.into_iter().enumerate() {
            if i % 2 == 0 { even.push(piece) } else { odd.push(piece) }
        }
        drop(even);
        drop(odd);
        let shared = lock(&allocator.shared);
        assert_eq!(shared.len(), 1);
        assert!(shared[0].is_unused());
    }

    #[test]
    fn a_large_piece_has_its_own_file() {
        let allocator = Allocator::new();
        let piece = allocator.allocate(OWN_FILE + 1).expect("memory");
        assert_eq!(first_byte(&piece), 0);
        assert!(lock(&allocator.shared).is_empty());
        assert_eq!(allocator.allocate(usize::MAX).expect_err("too much").errno, Errno::EINVAL);
    }
}
