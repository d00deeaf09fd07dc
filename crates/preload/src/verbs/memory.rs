//! What memory belongs to: protection domains, thread domains, parent domains, and device memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use scalefabric_ibv::abi;
use scalefabric_verbs::{DeviceMemory, Errno, ProtectionDomain, VerbsError};

use super::answer::{Outcome, pointer, set_errno, stale, status};
use super::behind::behind;
use super::context;
use super::object::{Object, Part, beside, is_ours, next_handle, of};

/// A protection domain.
pub struct PdPart {
    /// The contract's.
    pub pd: Arc<dyn ProtectionDomain>,
    /// Parent domains that stand on it.
    children: AtomicU32,
    /// A parent domain: the domain it stands on, and its thread domain.
    parent: Option<(*mut abi::Pd, *mut abi::Td)>,
}

impl Part for PdPart {
    type C = abi::Pd;
    const MARK: u64 = u64::from_be_bytes(*b"sfProtDm");
    const NAME: &'static str = "protection domain";
}

/// A thread domain: a promise of the program that has no use here.
pub struct TdPart {
    users: AtomicU32,
}

impl Part for TdPart {
    type C = abi::Td;
    const MARK: u64 = u64::from_be_bytes(*b"sfThrdDm");
    const NAME: &'static str = "thread domain";
}

/// Device memory.
pub struct DmPart {
    /// The contract's.
    pub dm: Arc<dyn DeviceMemory>,
}

impl Part for DmPart {
    type C = abi::Dm;
    const MARK: u64 = u64::from_be_bytes(*b"sfDevMem");
    const NAME: &'static str = "device memory";
}

/// The protection domain that a call names.
///
/// # Safety
/// `pd` is null or a `struct ibv_pd`.
pub unsafe fn pd_of<'a>(pd: *mut abi::Pd) -> Outcome<&'a Arc<dyn ProtectionDomain>> {
    // SAFETY: the caller's promise.
    Ok(unsafe { &beside::<PdPart>(pd)?.part.pd })
}

/// `ibv_alloc_pd`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::Context) -> *mut abi::Pd {
    type Alloc = unsafe extern "C" fn(*mut abi::Context) -> *mut abi::Pd;
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        return behind!(ibv_alloc_pd as Alloc, (context), else std::ptr::null_mut());
    }
    pointer("ibv_alloc_pd", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        // SAFETY: it is ours.
        let open = unsafe { context::open(context)? };
        let (pd, handle) = (open.verbs()?.alloc_pd()?, next_handle());
        open.shared.exports().pds.insert(handle, Arc::downgrade(&pd));
        Ok(make_pd(context, handle, pd, None))
    })
}

fn make_pd(
    context: *mut abi::Context,
    handle: u32,
    pd: Arc<dyn ProtectionDomain>,
    parent: Option<(*mut abi::Pd, *mut abi::Td)>,
) -> *mut abi::Pd {
    Object::make(abi::Pd { context, handle }, PdPart { pd, children: AtomicU32::new(0), parent })
}

/// `ibv_dealloc_pd`, of parent domains too.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut abi::Pd) -> c_int {
    type Dealloc = unsafe extern "C" fn(*mut abi::Pd) -> c_int;
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        return behind!(ibv_dealloc_pd as Dealloc, (pd), else libc::EINVAL);
    }
    status("ibv_dealloc_pd", || {
        // SAFETY: it is ours, or null.
        let object = unsafe { of::<PdPart>(pd)? };
        if object.part.children.load(Ordering::Acquire) > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                "the protection domain has parent domains: deallocate them first",
            ));
        }
        match object.part.parent {
            None => {
                object.part.pd.destroy()?;
                // SAFETY: a live object has a context.
                if let Ok(open) = unsafe { context::open((*pd).context) } {
                    // SAFETY: as above.
                    open.shared.exports().pds.remove(&unsafe { (*pd).handle });
                }
            }
            Some((below, td)) => {
                // SAFETY: both were counted when this was made, so that they live.
                unsafe {
                    if let Ok(below) = of::<PdPart>(below) {
                        below.part.children.fetch_sub(1, Ordering::AcqRel);
                    }
                    if let Ok(td) = of::<TdPart>(td) {
                        td.part.users.fetch_sub(1, Ordering::AcqRel);
                    }
                }
            }
        }
        // SAFETY: the program gives it back.
        unsafe { Object::<PdPart>::bury(pd) };
        Ok(())
    })
}

/// `ibv_import_pd`: another handle of a protection domain of a context with the same `cmd_fd`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut abi::Context, handle: u32) -> *mut abi::Pd {
    type Import = unsafe extern "C" fn(*mut abi::Context, u32) -> *mut abi::Pd;
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        return behind!(ibv_import_pd as Import, (context, handle), else std::ptr::null_mut());
    }
    pointer("ibv_import_pd", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        // SAFETY: it is ours.
        let open = unsafe { context::open(context)? };
        let pd = open.shared.exports().pds.get(&handle).and_then(std::sync::Weak::upgrade);
        Ok(make_pd(context, handle, pd.ok_or_else(|| not_there("protection domain", handle))?, None))
    })
}

/// The error of an import whose handle leads nowhere.
pub fn not_there(what: &str, handle: u32) -> VerbsError {
    VerbsError::misuse(Errno::ENOENT, format!("no {what} of this device has handle {handle}"))
}

/// `ibv_unimport_pd`: the handle goes, the protection domain stays.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut abi::Pd) {
    // SAFETY: a protection domain, or null.
    if !unsafe { is_ours(pd) } {
        return behind!(ibv_unimport_pd as unsafe extern "C" fn(*mut abi::Pd), (pd), else ());
    }
    // SAFETY: the program gives it back.
    unsafe { Object::<PdPart>::bury(pd) };
}

/// The operation `alloc_td`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn alloc_td(context: *mut abi::Context, attr: *mut abi::TdInitAttr) -> *mut abi::Td {
    pointer("ibv_alloc_td", || {
        // SAFETY: the context is ours, since the operation is; the program's structure, or null.
        let attr = unsafe {
            context::open(context)?;
            attr.as_ref()
        };
        if attr.is_none_or(|attr| attr.comp_mask != 0) {
            return Err(VerbsError::invalid("ibv_td_init_attr: comp_mask must be 0"));
        }
        Ok(Object::make(abi::Td { context }, TdPart { users: AtomicU32::new(0) }))
    })
}

/// The operation `dealloc_td`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn dealloc_td(td: *mut abi::Td) -> c_int {
    status("ibv_dealloc_td", || {
        // SAFETY: it is ours, since the operation is.
        if unsafe { of::<TdPart>(td)? }.part.users.load(Ordering::Acquire) > 0 {
            return Err(VerbsError::misuse(
                Errno::EBUSY,
                "a parent domain uses the thread domain: deallocate it first",
            ));
        }
        // SAFETY: the program gives it back.
        unsafe { Object::<TdPart>::bury(td) };
        Ok(())
    })
}

/// The operation `alloc_parent_domain`. Allocators are accepted and never called: what they would allocate, queues and
/// doorbell records, lies in the device.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut abi::Context,
    attr: *mut abi::ParentDomainInitAttr,
) -> *mut abi::Pd {
    const ALLOCATORS: u32 = 1;
    const PD_CONTEXT: u32 = 2;
    pointer("ibv_alloc_parent_domain", || {
        // SAFETY: the context is ours, since the operation is; the program's structure, or null.
        let attr = unsafe {
            context::open(context)?;
            attr.as_ref()
        };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_parent_domain_init_attr is null"))?;
        if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
            return Err(VerbsError::invalid(format!("comp_mask {:#x} has unknown bits", attr.comp_mask)));
        }
        if attr.comp_mask & ALLOCATORS != 0 && (attr.alloc.is_none() || attr.free.is_none()) {
            return Err(VerbsError::invalid("ALLOCATORS wants both alloc and free"));
        }
        // SAFETY: what the program passes as domains.
        let (below, td) = unsafe {
            let td = if attr.td.is_null() { None } else { Some(beside::<TdPart>(attr.td)?) };
            (beside::<PdPart>(attr.pd)?, td)
        };
        below.part.children.fetch_add(1, Ordering::AcqRel);
        if let Some(td) = td {
            td.part.users.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: a live object's structure.
        let handle = unsafe { (*below.c()).handle };
        Ok(make_pd(context, handle, below.part.pd.clone(), Some((attr.pd, attr.td))))
    })
}

/// The operation `alloc_dm`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn alloc_dm(context: *mut abi::Context, attr: *mut abi::AllocDmAttr) -> *mut abi::Dm {
    pointer("ibv_alloc_dm", || {
        // SAFETY: the context is ours, since the operation is; the program's structure, or null.
        let (open, attr) = unsafe { (context::open(context)?, attr.as_ref()) };
        let attr = attr.ok_or_else(|| VerbsError::invalid("ibv_alloc_dm_attr is null"))?;
        if attr.comp_mask != 0 {
            return Err(VerbsError::invalid(format!("comp_mask {:#x} has unknown bits", attr.comp_mask)));
        }
        let dm = open.verbs()?.alloc_dm(attr.length as u64, attr.log_align_req)?;
        let handle = next_handle();
        open.shared.exports().dms.insert(handle, Arc::downgrade(&dm));
        Ok(make_dm(context, handle, dm))
    })
}

fn make_dm(context: *mut abi::Context, handle: u32, dm: Arc<dyn DeviceMemory>) -> *mut abi::Dm {
    // Bit 0 of `comp_mask`: `handle` is there.
    let c = abi::Dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 1,
        handle,
    };
    Object::make(c, DmPart { dm })
}

/// The operation `free_dm`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn free_dm(dm: *mut abi::Dm) -> c_int {
    status("ibv_free_dm", || {
        // SAFETY: it is ours, since the operation is.
        unsafe {
            of::<DmPart>(dm)?.part.dm.destroy()?;
            if let Ok(open) = context::open((*dm).context) {
                open.shared.exports().dms.remove(&(*dm).handle);
            }
            Object::<DmPart>::bury(dm);
        }
        Ok(())
    })
}

/// `ibv_import_dm`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(context: *mut abi::Context, handle: u32) -> *mut abi::Dm {
    type Import = unsafe extern "C" fn(*mut abi::Context, u32) -> *mut abi::Dm;
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        return behind!(ibv_import_dm as Import, (context, handle), else std::ptr::null_mut());
    }
    pointer("ibv_import_dm", || {
        if context.is_null() {
            return Err(stale("open device"));
        }
        // SAFETY: it is ours.
        let open = unsafe { context::open(context)? };
        let dm = open.shared.exports().dms.get(&handle).and_then(std::sync::Weak::upgrade);
        Ok(make_dm(context, handle, dm.ok_or_else(|| not_there("device memory", handle))?))
    })
}

/// `ibv_unimport_dm`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut abi::Dm) {
    // SAFETY: device memory, or null.
    if !unsafe { is_ours(dm) } {
        return behind!(ibv_unimport_dm as unsafe extern "C" fn(*mut abi::Dm), (dm), else ());
    }
    // SAFETY: the program gives it back.
    unsafe { Object::<DmPart>::bury(dm) };
}

/// `ibv_dm_export_dmabuf_fd`: ours is no memory of the kernel.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut abi::Dm) -> c_int {
    // SAFETY: device memory, or null.
    if !dm.is_null() && !unsafe { is_ours(dm) } {
        type Export = unsafe extern "C" fn(*mut abi::Dm) -> c_int;
        return behind!(ibv_dm_export_dmabuf_fd as Export, (dm), else -1);
    }
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// Device memory is copied by whole words, as with the NICs that have some: a program that works here works there.
fn check_words(offset: u64, length: usize) -> Outcome {
    if !offset.is_multiple_of(4) || !length.is_multiple_of(4) {
        return Err(VerbsError::invalid(format!(
            "{length} bytes at offset {offset} of device memory: both must be multiples of 4"
        )));
    }
    Ok(())
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut abi::Dm, offset: u64, host: *const c_void, length: usize) -> c_int {
    status("ibv_memcpy_to_dm", || {
        // SAFETY: it is ours, since the operation is; the program's bytes.
        unsafe {
            let dm = of::<DmPart>(dm)?;
            check_words(offset, length)?;
            let bytes = if length == 0 { &[] } else { std::slice::from_raw_parts(host.cast::<u8>(), length) };
            dm.part.dm.write(offset, bytes)
        }
    })
}

unsafe extern "C" fn memcpy_from_dm(host: *mut c_void, dm: *mut abi::Dm, offset: u64, length: usize) -> c_int {
    status("ibv_memcpy_from_dm", || {
        // SAFETY: it is ours, since the operation is; the program's bytes.
        unsafe {
            let dm = of::<DmPart>(dm)?;
            check_words(offset, length)?;
            let bytes = if length == 0 { &mut [] } else { std::slice::from_raw_parts_mut(host.cast::<u8>(), length) };
            dm.part.dm.read(offset, bytes)
        }
    })
}

/// `ibv_alloc_dmah`: no processing hints here.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_dmah(context: *mut abi::Context, attr: *mut c_void) -> *mut c_void {
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        type Alloc = unsafe extern "C" fn(*mut abi::Context, *mut c_void) -> *mut c_void;
        return behind!(ibv_alloc_dmah as Alloc, (context, attr), else std::ptr::null_mut());
    }
    set_errno(libc::EOPNOTSUPP);
    std::ptr::null_mut()
}

/// `ibv_dealloc_dmah`: only the real library makes them.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_dmah(dmah: *mut c_void) -> c_int {
    if dmah.is_null() {
        return libc::EINVAL;
    }
    behind!(ibv_dealloc_dmah as unsafe extern "C" fn(*mut c_void) -> c_int, (dmah), else libc::EOPNOTSUPP)
}
