//! Device memory.

use core::ffi::c_void;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use scalefabric_verbs::{DeviceMemory, VerbsError};

use crate::abi;
use crate::explain;
use crate::handle::{Handle, Inside, Parent, Parents, Use, destroy};
use crate::library::last_errno;
use crate::objects::device::{Device, operation};
use crate::objects::{owned, returned};

/// A piece of device memory.
#[derive(Debug)]
pub(crate) struct DeviceMemoryObject {
    pub(crate) device: Arc<Device>,
    pub(crate) shared: Arc<Shared>,
}

/// The piece itself.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Arc<Device>,
    handle: Handle<abi::Dm>,
    length: u64,
    parents: Parents<()>,
    uses: AtomicUsize,
}

owned!(DeviceMemoryObject);

impl Parent for Shared {
    fn uses(&self) -> &AtomicUsize {
        &self.uses
    }
}

fn free(device: &Device, dm: *mut abi::Dm) -> i32 {
    let context = device.context();
    match operation!(context.pointer(), free_dm) {
        // SAFETY: a living piece that no region uses.
        Some(free) => returned(unsafe { free(dm) }),
        None => libc::EOPNOTSUPP,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.handle.end(|dm| free(&self.device, dm));
    }
}

impl Shared {
    pub(crate) fn enter(&self) -> Result<Inside<'_, abi::Dm>, VerbsError> {
        self.handle.enter_or("device memory")
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        self.check(offset, data.len())?;
        let dm = self.enter()?;
        // SAFETY: a living piece.
        let copy =
            unsafe { (*dm.pointer()).memcpy_to_dm }.ok_or_else(|| explain::unsupported("copies to device memory"))?;
        // SAFETY: the bytes of a slice, and a range inside the piece.
        match unsafe { copy(dm.pointer(), offset, data.as_ptr().cast::<c_void>(), data.len()) } {
            0 => Ok(()),
            code => Err(explain::failed("write to device memory", returned(code))),
        }
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError> {
        self.check(offset, out.len())?;
        let dm = self.enter()?;
        // SAFETY: a living piece.
        let copy = unsafe { (*dm.pointer()).memcpy_from_dm }
            .ok_or_else(|| explain::unsupported("copies from device memory"))?;
        // SAFETY: room for the bytes, and a range inside the piece.
        match unsafe { copy(out.as_mut_ptr().cast::<c_void>(), dm.pointer(), offset, out.len()) } {
            0 => Ok(()),
            code => Err(explain::failed("read device memory", returned(code))),
        }
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), VerbsError> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.length) {
            return Err(VerbsError::invalid(format!(
                "{bytes} bytes at {offset} do not fit into {} bytes of device memory",
                self.length
            )));
        }
        Ok(())
    }
}

impl DeviceMemoryObject {
    pub(crate) fn alloc(device: &Arc<Device>, length: u64, log_align: u32) -> Result<Arc<Self>, VerbsError> {
        let context = device.context();
        let alloc = operation!(context.pointer(), alloc_dm).ok_or_else(|| explain::unsupported("device memory"))?;
        let mut attr = abi::AllocDmAttr { length: length as usize, log_align_req: log_align, comp_mask: 0 };
        // SAFETY: an open context, and attributes that are read only.
        let dm = unsafe { alloc(context.pointer(), &mut attr) };
        if dm.is_null() {
            let raw = last_errno();
            let most = device.attr_or_none().map_or(0, |attr| attr.max_dm_size);
            return Err(match raw {
                libc::EOPNOTSUPP | libc::ENOSYS => explain::unsupported("device memory"),
                libc::EINVAL if length == 0 || length > most => VerbsError::invalid(format!(
                    "{length} bytes of device memory: the device has 1 to {most} (`max_dm_size`)"
                )),
                raw => explain::failed(&format!("allocate {length} bytes of device memory"), raw),
            });
        }
        let shared = Arc::new(Shared {
            device: device.clone(),
            handle: Handle::new(dm),
            length,
            parents: Parents::new(()),
            uses: AtomicUsize::new(0),
        });
        Ok(Arc::new(Self { device: device.clone(), shared }))
    }

    pub(crate) fn used(&self) -> Use<Shared> {
        Use::of(&self.shared)
    }
}

impl DeviceMemory for DeviceMemoryObject {
    fn length(&self) -> u64 {
        self.shared.length
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        self.shared.write(offset, data)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VerbsError> {
        self.shared.read(offset, out)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        let shared = &self.shared;
        destroy(&shared.handle, &shared.parents, Some(&shared.uses), "device memory", |dm| free(&self.device, dm))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
