//! Memory as programs bring it: from the heap, registered afterwards (`--memory heap`), where [`super::connection`] else takes memory that
//! the device allocates. How a device reaches it may differ. The only file of `sfab perf` with unsafe code.

use crate::failure::{During, Failure};
use scalefabric_verbs::{AccessFlags, MemoryRegion, ProtectionDomain};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

/// Page-aligned heap memory and its registration.
pub struct HeapRegion {
    region: Arc<dyn MemoryRegion>,
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the pointer is used to register and, when the region is gone, to free; it is never read or written through here.
unsafe impl Send for HeapRegion {}

impl HeapRegion {
    /// Allocates and registers `length` bytes.
    pub fn new(domain: &dyn ProtectionDomain, length: usize, access: AccessFlags) -> Result<Self, Failure> {
        let layout = Layout::from_size_align(length.max(1), 4096).during(|| "lay out the memory")?;
        // SAFETY: the layout has at least one byte.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).ok_or_else(|| Failure::failed(format!("no memory for {length} bytes")))?;
        let addr = memory.as_ptr();
        // SAFETY: the range was just allocated and is freed only after the region has been destroyed; no reference to its bytes exists.
        // WHY: memory that the device allocates is the safe way, and this measures the other one.
        let registered = unsafe { domain.reg_mr(addr, length, addr as u64, access) };
        match registered.during(|| format!("register {length} bytes of the heap")) {
            Ok(region) => Ok(Self { region, memory, layout }),
            Err(failure) => {
                // SAFETY: allocated above with this layout, and not registered.
                unsafe { dealloc(addr, layout) };
                Err(failure)
            }
        }
    }

    /// The registration. Who keeps it keeps this, too.
    pub fn region(&self) -> Arc<dyn MemoryRegion> {
        Arc::clone(&self.region)
    }
}

impl Drop for HeapRegion {
    fn drop(&mut self) {
        // A region that cannot be destroyed may still be written by a peer: then its memory stays.
        if self.region.destroy().is_ok() {
            // SAFETY: allocated with this layout, and nothing touches it after `destroy`.
            unsafe { dealloc(self.memory.as_ptr(), self.layout) };
        }
    }
}
