//! A device that pins: registering takes references to the very pages that are there, as an RDMA driver does, by `io_uring`'s fixed buffers
//! (`FOLL_LONGTERM`). What the device reads through a registration are the bytes of those pages, wherever the address leads by now, so a registration
//! that outlived its memory gives itself away. It registers and reads; it has no queue pairs.

use std::any::Any;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::{IoUring, opcode, types};
use scalefabric_verbs::{
    AccessFlags, AddressHandle, AddressVector, Errno, LKey, MemoryRegion, MemoryWindow, MwType, ProtectionDomain,
    QpInit, QueuePair, RKey, SharedReceiveQueue, SrqInit, VerbsError, WorkCompletion,
};

/// Registrations that can be at once.
const REGIONS: u32 = 16_384;

/// A protection domain of the device.
#[derive(Debug)]
pub struct PinnedDomain {
    device: Arc<Device>,
}

struct Device {
    ring: Mutex<Ring>,
    registrations: AtomicUsize,
    alive: AtomicUsize,
}

struct Ring {
    ring: IoUring,
    free: Vec<u32>,
    /// Where what is read comes out again. A pipe, for it never makes the kernel hand the work to a thread.
    from_device: PipeReader,
    to_here: PipeWriter,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("registrations", &self.registrations).finish_non_exhaustive()
    }
}

impl PinnedDomain {
    /// Opens the device; the error says why there is none here (`io_uring` is forbidden, or no memory may be locked).
    pub fn open() -> io::Result<Arc<Self>> {
        let ring = IoUring::new(4)?;
        ring.submitter().register_buffers_sparse(REGIONS)?;
        let (from_device, to_here) = io::pipe()?;
        let ring = Mutex::new(Ring { ring, free: (0..REGIONS).rev().collect(), from_device, to_here });
        Ok(Arc::new(Self {
            device: Arc::new(Device { ring, registrations: AtomicUsize::new(0), alive: AtomicUsize::new(0) }),
        }))
    }

    /// What the device reads at `addr`, through the registration with this key.
    pub fn read_word(&self, lkey: LKey, addr: u64) -> io::Result<u64> {
        let mut ring = self.device.lock();
        let entry = opcode::WriteFixed::new(
            types::Fd(ring.to_here.as_raw_fd()),
            std::ptr::with_exposed_provenance(addr as usize),
            8,
            lkey.0 as u16,
        );
        // SAFETY: the kernel reads 8 bytes of a buffer that it checks to be registered.
        unsafe { ring.ring.submission().push(&entry.build()).expect("the queue is empty") };
        ring.ring.submit_and_wait(1)?;
        let result = ring.ring.completion().next().expect("it was waited for").result();
        if result != 8 {
            return Err(io::Error::from_raw_os_error(-result.min(0)));
        }
        let mut word = [0; 8];
        ring.from_device.read_exact(&mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Registrations so far, and those that are left.
    pub fn registrations(&self) -> (usize, usize) {
        (self.device.registrations.load(Ordering::Relaxed), self.device.alive.load(Ordering::Relaxed))
    }
}

impl Device {
    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn set(&self, slot: u32, addr: *mut u8, length: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: addr.cast(), iov_len: length };
        // SAFETY: a registration holds pages, not the mapping; the caller of `reg_mr` has promised what that needs.
        unsafe { self.ring.submitter().register_buffers_update(slot, &[buffer], None) }
    }
}

#[derive(Debug)]
struct PinnedRegion {
    device: Arc<Device>,
    slot: Mutex<Option<u32>>,
    key: u32,
    addr: u64,
    length: usize,
}

fn no(what: &str) -> VerbsError {
    VerbsError::misuse(Errno::EOPNOTSUPP, format!("the pinning device has no {what}"))
}

impl ProtectionDomain for PinnedDomain {
    fn pd_num(&self) -> u32 {
        1
    }

    unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        _iova: u64,
        _access: AccessFlags,
    ) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        let mut ring = self.device.lock();
        let slot = ring.free.pop().ok_or_else(|| VerbsError::environment(Errno::ENOMEM, "no registration is free"))?;
        if let Err(error) = ring.set(slot, addr, length) {
            ring.free.push(slot);
            let errno = error.raw_os_error().and_then(Errno::from_raw).unwrap_or(Errno::EIO);
            return Err(VerbsError::environment(errno, format!("pinning {length} bytes at {addr:p}: {error}")));
        }
        self.device.registrations.fetch_add(1, Ordering::Relaxed);
        self.device.alive.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(PinnedRegion {
            device: Arc::clone(&self.device),
            slot: Mutex::new(Some(slot)),
            key: slot,
            addr: addr.addr() as u64,
            length,
        }))
    }

    fn alloc_mr(&self, _: usize, _: AccessFlags) -> Result<Arc<dyn MemoryRegion>, VerbsError> {
        Err(no("memory of its own"))
    }
    fn alloc_mw(&self, _: MwType) -> Result<Arc<dyn MemoryWindow>, VerbsError> {
        Err(no("memory windows"))
    }
    fn create_qp(&self, _: &QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
        Err(no("queue pairs"))
    }
    fn create_srq(&self, _: &SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
        Err(no("queues"))
    }
    fn create_ah(&self, _: &AddressVector) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        Err(no("address handles"))
    }
    fn create_ah_from_wc(&self, _: &WorkCompletion, _: &[u8; 40], _: u8) -> Result<Arc<dyn AddressHandle>, VerbsError> {
        Err(no("address handles"))
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl MemoryRegion for PinnedRegion {
    fn addr(&self) -> u64 {
        self.addr
    }
    fn length(&self) -> usize {
        self.length
    }
    fn lkey(&self) -> LKey {
        LKey(self.key)
    }
    fn rkey(&self) -> RKey {
        RKey(self.key)
    }
    fn write(&self, _: usize, _: &[u8]) -> Result<(), VerbsError> {
        Err(no("copies"))
    }
    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), VerbsError> {
        Err(no("copies"))
    }
    fn load_u64(&self, _: usize) -> Result<u64, VerbsError> {
        Err(no("copies"))
    }
    fn store_u64(&self, _: usize, _: u64) -> Result<(), VerbsError> {
        Err(no("copies"))
    }
    unsafe fn rereg(
        &self,
        _: Option<(*mut u8, usize)>,
        _: Option<&Arc<dyn ProtectionDomain>>,
        _: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        Err(no("reregistration"))
    }
    fn destroy(&self) -> Result<(), VerbsError> {
        let Some(slot) = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        let mut ring = self.device.lock();
        ring.set(slot, std::ptr::null_mut(), 0)
            .map_err(|error| VerbsError::environment(Errno::EIO, format!("unpinning: {error}")))?;
        ring.free.push(slot);
        self.device.alive.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for PinnedRegion {
    fn drop(&mut self) {
        let _ = MemoryRegion::destroy(self);
    }
}
