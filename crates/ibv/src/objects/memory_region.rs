//! Memory regions and windows. Bytes of a region are shared with peers: they are copied in and out, never borrowed.
//!
//! Memory that we allocated stays mapped as long as the region's handle. Memory of the caller may be unmapped at any moment:
//! the kernel copies there (`process_vm_readv` on ourselves), which reports EFAULT where a plain access would be a signal.

use core::ffi::c_void;
use std::any::Any;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scalefabric_verbs::{
    AccessFlags, DeviceMemory, Errno, LKey, MemoryRegion, MemoryWindow, MwType, ProtectionDomain, RKey, VerbsError,
};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::device::{Device, operation};
use crate::objects::device_memory::{DeviceMemoryObject, Shared as Dm};
use crate::objects::protection_domain::{PdObject, Shared as Pd};
use crate::objects::{ours, owned, returned};

const PAGE: usize = 4096;

/// Anonymous pages, unmapped with the region's handle.
#[derive(Debug)]
struct Pages {
    at: *mut u8,
    length: usize,
}

// SAFETY: an address range that belongs to this value.
unsafe impl Send for Pages {}
// SAFETY: likewise; nothing is read or written through it but by copies.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(length: usize) -> Result<Self, VerbsError> {
        let length = length.max(1).next_multiple_of(PAGE);
        // SAFETY: a new mapping, which replaces nothing.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(explain::failed(&format!("map {length} bytes"), last_errno()));
        }
        Ok(Self { at: at.cast(), length })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; the region was deregistered before.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}

/// Where a region's bytes are.
#[derive(Debug)]
enum Bytes {
    /// Ours.
    Own { _pages: Pages },
    /// The caller's.
    Foreign,
    /// In the device, from this offset.
    Device(Use<Dm>, u64),
}

/// A memory region.
pub(crate) struct MrObject {
    pub(crate) device: Arc<Device>,
    pub(crate) handle: Handle<abi::Mr>,
    parents: Parents<Use<Pd>>,
    /// First byte in this process, first byte as keys name it, length. Changes with `rereg`.
    range: Mutex<Range>,
    lkey: AtomicU32,
    rkey: AtomicU32,
    access: Mutex<AccessFlags>,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    at: usize,
    iova: u64,
    length: usize,
}

owned!(MrObject, MwObject);

/// Without its keys.
impl std::fmt::Debug for MrObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MrObject").field("range", &*self.range()).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Without its key.
impl std::fmt::Debug for MwObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MwObject").field("mw_type", &self.mw_type).finish_non_exhaustive()
    }
}

impl MrObject {
    /// # Safety
    /// As [`ProtectionDomain::reg_mr`].
    pub(crate) unsafe fn register(
        pd: &PdObject,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the caller's promise.
        unsafe { Self::of_memory(pd, addr, length, iova, access, Bytes::Foreign) }
    }

    pub(crate) fn alloc(pd: &PdObject, length: usize, access: AccessFlags) -> Result<Arc<Self>, VerbsError> {
        let pages = Pages::map(length)?;
        let at = pages.at;
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { at as u64 };
        // SAFETY: the pages live as long as the object, and are reached by copies only.
        unsafe { Self::of_memory(pd, at, length, iova, access, Bytes::Own { _pages: pages }) }
    }

    /// # Safety
    /// As [`ProtectionDomain::reg_mr`].
    unsafe fn of_memory(
        pd: &PdObject,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
        bytes: Bytes,
    ) -> Result<Arc<Self>, VerbsError> {
        let (device, verbs) = (&pd.device, pd.device.verbs);
        let parent = pd.used();
        let inside = pd.shared.enter()?;
        let (at, flags) = (addr.cast::<c_void>(), access.bits());
        // SAFETY: a living PD; the range is the caller's promise. As the header does: a version that masks optional flags
        // where there is one, else the plain one for addresses as they are.
        let mr = unsafe {
            match (verbs.reg_mr_iova2, verbs.reg_mr_iova) {
                (Some(reg), _) => reg(inside.pointer(), at, length, iova, flags),
                (None, _) if iova == addr as u64 => {
                    let mandatory = flags & !AccessFlags::OPTIONAL_RANGE;
                    (verbs.reg_mr)(inside.pointer(), at, length, mandatory as i32)
                }
                (None, Some(reg)) => reg(inside.pointer(), at, length, iova, flags as i32),
                (None, None) => return Err(explain::unsupported("regions whose keys name other addresses (iova)")),
            }
        };
        if mr.is_null() {
            let raw = last_errno();
            return Err(explain::reg_mr(length, access, device.attr_or_none().as_ref(), raw));
        }
        drop(inside);
        Ok(Arc::new(Self::of(device, mr, parent, Range { at: addr as usize, iova, length }, access, bytes)))
    }

    fn of(
        device: &Arc<Device>,
        mr: *mut abi::Mr,
        parent: Use<Pd>,
        range: Range,
        access: AccessFlags,
        bytes: Bytes,
    ) -> Self {
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Self {
            device: device.clone(),
            handle: Handle::new(mr),
            parents: Parents::new(parent),
            range: Mutex::new(range),
            lkey: AtomicU32::new(lkey),
            rkey: AtomicU32::new(rkey),
            access: Mutex::new(access),
            bytes,
        }
    }

    pub(crate) fn of_device_memory(
        pd: &PdObject,
        dm: &Arc<dyn DeviceMemory>,
        offset: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Arc<Self>, VerbsError> {
        let device = &pd.device;
        let dm = ours::<DeviceMemoryObject>(device, dm.as_any(), "device memory")?;
        let (used, parent) = (dm.used(), pd.used());
        let (pd, piece, context) = (pd.shared.enter()?, dm.shared.enter()?, device.context());
        let register =
            operation!(context.pointer(), reg_dm_mr).ok_or_else(|| explain::unsupported("regions of device memory"))?;
        // SAFETY: a living PD and a living piece.
        let mr = unsafe { register(pd.pointer(), piece.pointer(), offset, length, access.bits()) };
        if mr.is_null() {
            let raw = last_errno();
            let end = offset.saturating_add(length as u64);
            return Err(if raw == libc::EINVAL && end > dm.length() {
                VerbsError::invalid(format!(
                    "{length} bytes at {offset} do not fit into {} bytes of device memory",
                    dm.length()
                ))
            } else if raw == libc::EINVAL && !access.contains(AccessFlags::ZERO_BASED) {
                VerbsError::invalid("a region of device memory has no address: give ZERO_BASED")
            } else {
                explain::failed("register device memory", raw)
            });
        }
        let range = Range { at: 0, iova: 0, length };
        Ok(Arc::new(Self::of(device, mr, parent, range, access, Bytes::Device(used, offset))))
    }

    fn range(&self) -> MutexGuard<'_, Range> {
        self.range.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of bytes of the region; `EINVAL` outside.
    fn place(&self, offset: usize, bytes: usize) -> Result<usize, VerbsError> {
        let range = *self.range();
        if offset.checked_add(bytes).is_none_or(|end| end > range.length) {
            return Err(VerbsError::invalid(format!(
                "{bytes} bytes at offset {offset} are outside the region, which has {} bytes",
                range.length
            )));
        }
        Ok(range.at + offset)
    }

    /// The piece of device memory behind it, and where the bytes at an offset are there.
    fn in_device(&self, offset: usize) -> Option<(&Dm, u64)> {
        match &self.bytes {
            Bytes::Device(dm, from) => Some((dm, from + offset as u64)),
            _ => None,
        }
    }

    fn word(&self, offset: usize) -> Result<*mut u64, VerbsError> {
        let at = self.place(offset, 8)?;
        if self.in_device(offset).is_some() {
            return Err(explain::unsupported("single words of device memory"));
        }
        if !at.is_multiple_of(8) {
            return Err(VerbsError::invalid(format!("offset {offset} is not that of an aligned 8-byte word")));
        }
        Ok(at as *mut u64)
    }

    /// Asks the kernel to have the page of a word there, so that reaching it is no signal.
    fn ensure(&self, at: *mut u64, write: bool) -> Result<(), VerbsError> {
        if matches!(self.bytes, Bytes::Own { .. }) {
            return Ok(());
        }
        let page = (at as usize & !(PAGE - 1)) as *mut c_void;
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: populating pages changes no byte, and a bad range is refused.
        if unsafe { libc::madvise(page, PAGE, advice) } == 0 {
            return Ok(());
        }
        // Before Linux 5.14 there is no such advice: a copy of the word shows whether it can be read.
        if last_errno() == libc::EINVAL {
            let mut byte = [0; 8];
            return copy(at as usize, Copying::Out(&mut byte));
        }
        Err(gone())
    }
}

/// A copy between a slice and memory that may be gone.
enum Copying<'a> {
    In(&'a [u8]),
    Out(&'a mut [u8]),
}

fn gone() -> VerbsError {
    VerbsError::misuse(
        Errno::EFAULT,
        "the memory behind this region is no longer mapped, or not with the rights needed: keep it mapped until the region \
         is destroyed",
    )
}

/// Copies by the kernel, which finds out about pages that are not there.
fn copy(at: usize, what: Copying<'_>) -> Result<(), VerbsError> {
    let (local, length, write) = match &what {
        Copying::In(data) => (data.as_ptr().cast_mut(), data.len(), true),
        Copying::Out(out) => (out.as_ptr().cast_mut(), out.len(), false),
    };
    let mut done = 0;
    while done < length {
        // SAFETY: `local` is a slice that is borrowed mutably where it is written to; the other side is only named.
        let moved = unsafe {
            let mine = libc::iovec { iov_base: local.add(done).cast(), iov_len: length - done };
            let other = libc::iovec { iov_base: (at + done) as *mut c_void, iov_len: length - done };
            let pid = process::id() as i32;
            if write {
                libc::process_vm_writev(pid, &mine, 1, &other, 1, 0)
            } else {
                libc::process_vm_readv(pid, &mine, 1, &other, 1, 0)
            }
        };
        match moved {
            moved if moved > 0 => done += moved as usize,
            _ => {
                return Err(match last_errno() {
                    libc::EPERM | libc::ENOSYS => VerbsError::environment(
                        Errno::EPERM,
                        "the kernel does not let this process copy its own memory (process_vm_readv is filtered): use memory \
                         of alloc_mr",
                    ),
                    _ => gone(),
                });
            }
        }
    }
    Ok(())
}

impl Drop for MrObject {
    fn drop(&mut self) {
        // SAFETY: nobody holds it any more; its PD is still there.
        let _ = self.handle.end(|mr| returned(unsafe { (self.device.verbs.dereg_mr)(mr) }));
    }
}

impl MemoryRegion for MrObject {
    fn addr(&self) -> u64 {
        self.range().iova
    }

    fn length(&self) -> usize {
        self.range().length
    }

    fn lkey(&self) -> LKey {
        LKey(self.lkey.load(Ordering::Relaxed))
    }

    fn rkey(&self) -> RKey {
        RKey(self.rkey.load(Ordering::Relaxed))
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), VerbsError> {
        let at = self.place(offset, data.len())?;
        if let Some((dm, from)) = self.in_device(offset) {
            return dm.write(from, data);
        }
        if matches!(self.bytes, Bytes::Own { .. }) {
            // SAFETY: our pages, inside; a slice cannot overlap them, since nobody can borrow them.
            unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len()) };
            return Ok(());
        }
        copy(at, Copying::In(data))
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        let at = self.place(offset, out.len())?;
        if let Some((dm, from)) = self.in_device(offset) {
            return dm.read(from, out);
        }
        if matches!(self.bytes, Bytes::Own { .. }) {
            // SAFETY: as for `write`.
            unsafe { core::ptr::copy_nonoverlapping(at as *const u8, out.as_mut_ptr(), out.len()) };
            return Ok(());
        }
        copy(at, Copying::Out(out))
    }

    fn load_u64(&self, offset: usize) -> Result<u64, VerbsError> {
        let at = self.word(offset)?;
        self.ensure(at, false)?;
        // SAFETY: aligned, inside, and there a moment ago; who unmaps it while it is read breaks the promise of `reg_mr`.
        Ok(unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Acquire))
    }

    fn store_u64(&self, offset: usize, value: u64) -> Result<(), VerbsError> {
        let at = self.word(offset)?;
        self.ensure(at, true)?;
        // SAFETY: as for `load_u64`.
        unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Release);
        Ok(())
    }

    unsafe fn rereg(
        &self,
        range: Option<(*mut u8, usize)>,
        pd: Option<&Arc<dyn ProtectionDomain>>,
        access: Option<AccessFlags>,
    ) -> Result<(), VerbsError> {
        let rereg = self.device.verbs.rereg_mr.ok_or_else(|| explain::unsupported("registering again (rereg)"))?;
        let mr = self.handle.enter_or("memory region")?;
        let mut flags = 0;
        let (mut at, mut length) = (core::ptr::null_mut(), 0);
        if let Some((addr, bytes)) = range {
            flags |= 1;
            (at, length) = (addr.cast::<c_void>(), bytes);
        }
        let new_pd = pd.map(|pd| ours::<PdObject>(&self.device, pd.as_any(), "protection domain")).transpose()?;
        let new_use = new_pd.map(PdObject::used);
        let entered = new_pd.map(|pd| pd.shared.enter()).transpose()?;
        flags |= if entered.is_some() { 2 } else { 0 };
        flags |= if access.is_some() { 4 } else { 0 };
        let pointer = entered.as_ref().map_or(core::ptr::null_mut(), |pd| pd.pointer());
        let bits = access.unwrap_or_else(|| *self.access.lock().unwrap_or_else(PoisonError::into_inner)).bits();
        // SAFETY: a living region, a living PD if one is given, and the caller's promise for the range.
        let code = unsafe { rereg(mr.pointer(), flags, pointer, at, length, bits as i32) };
        if code != 0 {
            let raw = last_errno();
            let state = match code {
                -4 | -5 => "the region is unusable now: destroy it",
                -3 => "the region is registered anew, but fork protection of the old range remains",
                _ => "the region is as it was",
            };
            let error = if let (Some(access), libc::EINVAL) = (access, raw) {
                explain::reg_mr(length, access, None, raw)
            } else {
                explain::failed("register the region again", raw)
            };
            return Err(VerbsError { message: format!("{} ({state})", error.message), ..error });
        }
        // SAFETY: a living region; the call may have changed its keys.
        let (lkey, rkey) = unsafe { ((*mr.pointer()).lkey, (*mr.pointer()).rkey) };
        self.lkey.store(lkey, Ordering::Relaxed);
        self.rkey.store(rkey, Ordering::Relaxed);
        if range.is_some() {
            *self.range() = Range { at: at as usize, iova: at as u64, length };
        }
        if let Some(new) = access {
            *self.access.lock().unwrap_or_else(PoisonError::into_inner) = new;
        }
        if let Some(new) = new_use {
            *self.parents.lock() = Some(new);
        }
        Ok(())
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        destroy(&self.handle, &self.parents, None, "memory region", |mr| {
            // SAFETY: a living region, ended once.
            returned(unsafe { (self.device.verbs.dereg_mr)(mr) })
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A memory window.
pub(crate) struct MwObject {
    pub(crate) device: Arc<Device>,
    pub(crate) handle: Handle<abi::Mw>,
    parents: Parents<Use<Pd>>,
    mw_type: MwType,
    /// Type 2: the key of the last bind that was posted.
    pub(crate) rkey: AtomicU32,
}

impl MwObject {
    pub(crate) fn alloc(pd: &PdObject, mw_type: MwType) -> Result<Arc<Self>, VerbsError> {
        let device = &pd.device;
        let parent = pd.used();
        let (inside, context) = (pd.shared.enter()?, device.context());
        // SAFETY: an open context.
        let alloc = unsafe { (*context.pointer()).ops.alloc_mw };
        let alloc = alloc.ok_or_else(|| explain::unsupported("memory windows"))?;
        let number = match mw_type {
            MwType::Type1 => 1,
            MwType::Type2 => 2,
        };
        // SAFETY: a living PD.
        let mw = unsafe { alloc(inside.pointer(), number) };
        if mw.is_null() {
            let raw = last_errno();
            return Err(match raw {
                libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS => {
                    explain::unsupported(&format!("memory windows of type {number}"))
                }
                raw => explain::failed("make a memory window", raw),
            });
        }
        // SAFETY: just made.
        let rkey = unsafe { (*mw).rkey };
        drop(inside);
        Ok(Arc::new(Self {
            device: device.clone(),
            handle: Handle::new(mw),
            parents: Parents::new(parent),
            mw_type,
            rkey: AtomicU32::new(rkey),
        }))
    }

    fn end(&self, mw: *mut abi::Mw) -> i32 {
        let context = self.device.context();
        // SAFETY: an open context, and a window of it that is ended once.
        unsafe {
            match (*context.pointer()).ops.dealloc_mw {
                Some(dealloc) => returned(dealloc(mw)),
                None => libc::EOPNOTSUPP,
            }
        }
    }
}

impl Drop for MwObject {
    fn drop(&mut self) {
        let _ = self.handle.end(|mw| self.end(mw));
    }
}

impl MemoryWindow for MwObject {
    fn mw_type(&self) -> MwType {
        self.mw_type
    }

    fn rkey(&self) -> RKey {
        RKey(self.rkey.load(Ordering::Relaxed))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        destroy(&self.handle, &self.parents, None, "memory window", |mw| self.end(mw))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_gone_is_an_error_and_no_signal() {
        let pages = Pages::map(2 * PAGE).expect("two pages");
        let at = pages.at as usize;
        assert!(copy(at + PAGE - 4, Copying::In(b"12345678")).is_ok());
        let mut out = [0; 8];
        assert!(copy(at + PAGE - 4, Copying::Out(&mut out)).is_ok());
        assert_eq!(&out, b"12345678");
        // SAFETY: a page of ours that nobody borrows.
        assert_eq!(unsafe { libc::mprotect((at + PAGE) as *mut c_void, PAGE, libc::PROT_NONE) }, 0);
        let error = copy(at + PAGE - 4, Copying::Out(&mut out)).unwrap_err();
        assert_eq!(error.errno, Errno::EFAULT);
    }
}
