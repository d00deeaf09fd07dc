//! A ring that is shared with the kernel: one side produces, the other consumes, by two indexes that only grow (linux/if_xdp.h). It is
//! mapped from an AF_XDP socket; who uses it keeps the socket and has the ring for itself.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::Own;

/// Memory that was mapped. It is unmapped in the process that mapped it: a forked child does not have it at all.
#[derive(Debug)]
pub(super) struct Mapping(Own<Mapped>);

#[derive(Debug)]
struct Mapped {
    at: NonNull<u8>,
    bytes: usize,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length by `Mapping::new`, and whoever had a pointer into it is gone or going.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

impl Mapping {
    /// Maps a part of a socket, or fresh memory if there is none.
    pub(super) fn new(bytes: usize, socket: Option<(RawFd, libc::off_t)>) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (flags, fd, offset) = match socket {
            Some((fd, offset)) => (libc::MAP_SHARED | libc::MAP_POPULATE, fd, offset),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        // SAFETY: a new mapping disturbs nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        let at = match NonNull::new(at.cast::<u8>()) {
            Some(mapped) if at != libc::MAP_FAILED => mapped,
            _ => return Err(io::Error::last_os_error()),
        };
        let mapped = Mapped { at, bytes };
        // The kernel holds these very pages: a fork must neither copy them nor leave the copy to the parent.
        // SAFETY: the range was just mapped.
        if unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_DONTFORK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(Own::new(mapped)))
    }

    pub(super) fn at(&self) -> NonNull<u8> {
        self.0.at
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes
    }
}

/// Which of a socket's rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which {
    /// The socket option that sets its size.
    pub(super) option: libc::c_int,
    /// Where it is mapped.
    pub(super) page: libc::off_t,
}

/// One ring. `at` is the index of the side that is ours.
#[derive(Debug)]
pub(super) struct Ring<T> {
    _mapping: Mapping,
    entries: NonNull<T>,
    mask: u32,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    at: u32,
}

// SAFETY: the pointers lead into the mapping, which moves with the ring and is not bound to a thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two, which the socket has been told.
    pub(super) fn map(
        socket: &impl AsRawFd,
        which: Which,
        size: u32,
        offsets: &libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let mapping = Mapping::new(bytes, Some((socket.as_raw_fd(), which.page)))?;
        let inside = |offset: u64, bytes_there: usize| {
            let fits = (offset as usize).checked_add(bytes_there).is_some_and(|end| end <= bytes);
            // SAFETY: within the mapping.
            fits.then(|| unsafe { mapping.at().add(offset as usize) }).ok_or(io::ErrorKind::InvalidData)
        };
        Ok(Self {
            entries: inside(offsets.desc, size as usize * size_of::<T>())?.cast(),
            producer: inside(offsets.producer, 4)?.cast(),
            consumer: inside(offsets.consumer, 4)?.cast(),
            flags: inside(offsets.flags, 4)?.cast(),
            mask: size - 1,
            at: 0,
            _mapping: mapping,
        })
    }

    fn index(&self, pointer: NonNull<AtomicU32>) -> &AtomicU32 {
        // SAFETY: it was found to lie within the mapping, which lives as long as `self`; the kernel keeps it aligned and changes it atomically.
        unsafe { &*pointer.as_ptr() }
    }

    /// As consumer: entries that wait.
    pub(super) fn waiting(&self) -> u32 {
        self.index(self.producer).load(Ordering::Acquire).wrapping_sub(self.at)
    }

    /// As consumer: takes the next entry. There must be one that waits; its place is the producer's again after [`Ring::release`].
    pub(super) fn take(&mut self) -> T {
        // SAFETY: masked, so within the entries. The producer does not write to it before `release`.
        let entry = unsafe { self.entries.add((self.at & self.mask) as usize).read_volatile() };
        self.at = self.at.wrapping_add(1);
        entry
    }

    /// As consumer: gives back the places of all that was taken.
    pub(super) fn release(&self) {
        self.index(self.consumer).store(self.at, Ordering::Release);
    }

    /// As producer: places that are free.
    pub(super) fn room(&self) -> u32 {
        self.mask + 1 - self.unseen()
    }

    /// As producer: entries that the consumer has not taken.
    pub(super) fn unseen(&self) -> u32 {
        self.at.wrapping_sub(self.index(self.consumer).load(Ordering::Acquire))
    }

    /// As producer: puts an entry, for which there must be room. The consumer sees it after [`Ring::publish`].
    pub(super) fn put(&mut self, entry: T) {
        // SAFETY: masked, so within the entries. The consumer does not read it before `publish`.
        unsafe { self.entries.add((self.at & self.mask) as usize).write_volatile(entry) };
        self.at = self.at.wrapping_add(1);
    }

    /// As producer: shows all that was put.
    pub(super) fn publish(&self) {
        self.index(self.producer).store(self.at, Ordering::Release);
    }

    /// Whether the kernel sleeps on it and must be called.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.index(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}
