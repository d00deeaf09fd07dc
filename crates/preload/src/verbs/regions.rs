//! Memory regions.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Weak};

use scalefabric_ibv::abi;
use scalefabric_verbs::{AccessFlags, Errno, LKey, MemoryRegion, MrAdvice, Sge, VerbsError};

use super::answer::{Outcome, pointer, status, tell, unsupported};
use super::behind::behind;
use super::context;
use super::lock::{Lock, Locked};
use super::memory::{DmPart, not_there, pd_of};
use super::object::{Object, Part, beside, is_ours, next_handle, of};

/// A memory region.
pub struct MrPart {
    /// The contract's.
    pub mr: Arc<dyn MemoryRegion>,
    /// Of program memory, so that `ibv_rereg_mr` may change it.
    plain: bool,
}

impl Part for MrPart {
    type C = abi::Mr;
    const MARK: u64 = u64::from_be_bytes(*b"sfMemReg");
    const NAME: &'static str = "memory region";
}

fn make(
    pd: *mut abi::Pd,
    mr: Arc<dyn MemoryRegion>,
    addr: *mut c_void,
    length: usize,
    plain: bool,
) -> Outcome<*mut abi::Mr> {
    // SAFETY: the domain was looked at by the caller: it is ours and alive.
    let context = unsafe { (*pd).context };
    let handle = next_handle();
    // SAFETY: a context of ours.
    let open = unsafe { context::open(context)? };
    open.shared.exports().mrs.insert(handle, (Arc::downgrade(&mr), addr as usize, length));
    let c = abi::Mr { context, pd, addr, length, handle, lkey: mr.lkey().0, rkey: mr.rkey().0 };
    Ok(Object::make(c, MrPart { mr, plain }))
}

unsafe fn register(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> Outcome<*mut abi::Mr> {
    // SAFETY: a protection domain, or null.
    let domain = unsafe { pd_of(pd)? };
    let access = AccessFlags::from_raw(access)?;
    // SAFETY: the program registers its memory; what libibverbs asks of it is what the contract asks.
    let mr = unsafe { domain.reg_mr(addr.cast(), length, iova, access)? };
    make(pd, mr, addr, length, true)
}

/// `ibv_reg_mr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut abi::Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut abi::Mr {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Reg = unsafe extern "C" fn(*mut abi::Pd, *mut c_void, usize, c_int) -> *mut abi::Mr;
        return behind!(ibv_reg_mr as Reg, (pd, addr, length, access), else std::ptr::null_mut());
    }
    // SAFETY: as the C function.
    pointer("ibv_reg_mr", || unsafe { register(pd, addr, length, addr as u64, access as c_uint) })
}

/// `ibv_reg_mr_iova`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Reg = unsafe extern "C" fn(*mut abi::Pd, *mut c_void, usize, u64, c_int) -> *mut abi::Mr;
        return behind!(ibv_reg_mr_iova as Reg, (pd, addr, length, iova, access), else std::ptr::null_mut());
    }
    // SAFETY: as the C function.
    pointer("ibv_reg_mr_iova", || unsafe { register(pd, addr, length, iova, access as c_uint) })
}

/// `ibv_reg_mr_iova2`: what the macro `ibv_reg_mr` calls when the access is not a constant.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::Mr {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Reg = unsafe extern "C" fn(*mut abi::Pd, *mut c_void, usize, u64, c_uint) -> *mut abi::Mr;
        return behind!(ibv_reg_mr_iova2 as Reg, (pd, addr, length, iova, access), else std::ptr::null_mut());
    }
    // SAFETY: as the C function.
    pointer("ibv_reg_mr", || unsafe { register(pd, addr, length, iova, access) })
}

/// `ibv_reg_dmabuf_mr`: there is no other device whose memory we could reach.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut abi::Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Reg = unsafe extern "C" fn(*mut abi::Pd, u64, usize, u64, c_int, c_int) -> *mut abi::Mr;
        return behind!(ibv_reg_dmabuf_mr as Reg, (pd, offset, length, iova, fd, access), else std::ptr::null_mut());
    }
    pointer("ibv_reg_dmabuf_mr", || Err(unsupported("a software NIC reaches program memory only, not a dma-buf")))
}

/// `ibv_reg_mr_ex`: program memory, with or without an iova of its own.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut abi::Pd, attr: *mut abi::MrInitAttr) -> *mut abi::Mr {
    const IOVA: u64 = 1;
    const ADDR: u64 = 1 << 1;
    const FD: u64 = 1 << 2;
    const FD_OFFSET: u64 = 1 << 3;
    const DMAH: u64 = 1 << 4;
    const BUF: u64 = 1 << 5;
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Reg = unsafe extern "C" fn(*mut abi::Pd, *mut abi::MrInitAttr) -> *mut abi::Mr;
        return behind!(ibv_reg_mr_ex as Reg, (pd, attr), else std::ptr::null_mut());
    }
    pointer("ibv_reg_mr_ex", || {
        // SAFETY: the program's structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| VerbsError::invalid("ibv_mr_init_attr is null"))?;
        if attr.comp_mask & !(IOVA | ADDR | FD | FD_OFFSET | DMAH | BUF) != 0 {
            return Err(unsupported(format!("comp_mask {:#x} has unknown bits", attr.comp_mask)));
        }
        if attr.comp_mask & (FD | FD_OFFSET | DMAH) != 0 {
            return Err(unsupported("dma-bufs and processing hints do not exist here: register program memory (ADDR)"));
        }
        if attr.comp_mask & ADDR == 0 {
            return Err(VerbsError::invalid("comp_mask names no memory: give ADDR and addr"));
        }
        let iova = if attr.comp_mask & IOVA != 0 { attr.iova } else { attr.addr as u64 };
        // SAFETY: as the C function.
        unsafe { register(pd, attr.addr, attr.length, iova, attr.access as c_uint) }
    })
}

/// `ibv_alloc_buf`: plain memory of the process.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut abi::Pd, size: usize, buf: *mut *mut c_void) -> *mut c_void {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Alloc = unsafe extern "C" fn(*mut abi::Pd, usize, *mut *mut c_void) -> *mut c_void;
        return behind!(ibv_alloc_buf as Alloc, (pd, size, buf), else std::ptr::null_mut());
    }
    pointer("ibv_alloc_buf", || {
        // SAFETY: a protection domain, or null.
        unsafe { pd_of(pd)? };
        if buf.is_null() || size == 0 {
            return Err(VerbsError::invalid("a size and room for the handle are needed"));
        }
        // SAFETY: no pointers to existing memory are passed.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(VerbsError::environment(Errno::ENOMEM, format!("no {size} bytes of memory are left")));
        }
        let made: *mut c_void = Object::make(pd.cast(), BufPart { pd, memory, size }).cast();
        buffers().insert(made as usize);
        // SAFETY: the program's word for it.
        unsafe { *buf = made };
        Ok(memory)
    })
}

/// Buffers of ours: nothing in one tells from outside whose it is.
fn buffers() -> Locked<'static, BTreeSet<usize>> {
    static BUFFERS: Lock<BTreeSet<usize>> = Lock::new(BTreeSet::new());
    BUFFERS.lock()
}

/// True for a buffer of ours.
pub fn is_buffer(buf: *mut c_void) -> bool {
    buffers().contains(&(buf as usize))
}

/// A buffer: its structure is opaque, its first word the protection domain.
pub struct BufPart {
    pd: *mut abi::Pd,
    memory: *mut c_void,
    size: usize,
}

impl Part for BufPart {
    type C = *mut c_void;
    const MARK: u64 = u64::from_be_bytes(*b"sfBuffer");
    const NAME: &'static str = "buffer";
}

impl Drop for BufPart {
    fn drop(&mut self) {
        // SAFETY: mapped by `ibv_alloc_buf`, and the program gave it back.
        unsafe { libc::munmap(self.memory, self.size) };
    }
}

/// `ibv_free_buf`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut c_void) {
    if buf.is_null() {
        return;
    }
    if !buffers().remove(&(buf as usize)) {
        return behind!(ibv_free_buf as unsafe extern "C" fn(*mut c_void), (buf), else ());
    }
    // SAFETY: it is ours, and the program gives it back.
    unsafe { Object::<BufPart>::bury(buf.cast()) };
}

/// `ibv_reg_buf_mr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut abi::Pd,
    buf: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut abi::Mr {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Reg = unsafe extern "C" fn(*mut abi::Pd, *mut c_void, *mut c_void, usize, c_int) -> *mut abi::Mr;
        return behind!(ibv_reg_buf_mr as Reg, (pd, buf, addr, length, access), else std::ptr::null_mut());
    }
    pointer("ibv_reg_buf_mr", || {
        if !is_buffer(buf) {
            return Err(super::answer::stale("buffer"));
        }
        // SAFETY: it is ours.
        let buffer = unsafe { of::<BufPart>(buf.cast())? };
        if buffer.part.pd != pd {
            return Err(VerbsError::invalid("the buffer was allocated for another protection domain"));
        }
        // SAFETY: as the C function.
        unsafe { register(pd, addr, length, addr as u64, access as c_uint) }
    })
}

/// Answers of `ibv_rereg_mr`.
const ERR_INPUT: c_int = -1;
const ERR_CMD: c_int = -4;

/// `ibv_rereg_mr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut abi::Mr,
    flags: c_int,
    pd: *mut abi::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const CALL: &str = "ibv_rereg_mr";
    const TRANSLATION: c_int = 1;
    const PD: c_int = 2;
    const ACCESS: c_int = 4;
    // SAFETY: a region, or null.
    if !mr.is_null() && !unsafe { is_ours(mr) } {
        type Rereg = unsafe extern "C" fn(*mut abi::Mr, c_int, *mut abi::Pd, *mut c_void, usize, c_int) -> c_int;
        return behind!(ibv_rereg_mr as Rereg, (mr, flags, pd, addr, length, access), else ERR_INPUT);
    }
    let change = || -> Result<c_int, (c_int, VerbsError)> {
        let input = |error| (ERR_INPUT, error);
        // SAFETY: it is ours, or null.
        let object = unsafe { of::<MrPart>(mr) }.map_err(input)?;
        if !object.part.plain {
            return Err(input(VerbsError::invalid("only regions of program memory can be changed")));
        }
        if flags & !(TRANSLATION | PD | ACCESS) != 0 {
            return Err(input(VerbsError::invalid(format!("flags {flags:#x} have unknown bits"))));
        }
        if flags & TRANSLATION != 0 && (addr.is_null() || length == 0) {
            return Err(input(VerbsError::invalid("CHANGE_TRANSLATION wants an address and a length")));
        }
        if access != 0 && flags & ACCESS == 0 {
            return Err(input(VerbsError::invalid("access is given without CHANGE_ACCESS")));
        }
        let command = |error| (ERR_CMD, error);
        // SAFETY: a protection domain, or null.
        let domain = if flags & PD != 0 { Some(unsafe { pd_of(pd) }.map_err(command)?) } else { None };
        let rights = match flags & ACCESS != 0 {
            true => Some(AccessFlags::from_raw(access as c_uint).map_err(command)?),
            false => None,
        };
        let range = (flags & TRANSLATION != 0).then_some((addr.cast::<u8>(), length));
        // SAFETY: as the C function.
        unsafe { object.part.mr.rereg(range, domain, rights) }.map_err(command)?;
        // SAFETY: a live object's structure.
        unsafe {
            let c = object.c();
            if flags & PD != 0 {
                (*c).pd = pd;
            }
            if flags & TRANSLATION != 0 {
                (*c).addr = addr;
                (*c).length = length;
            }
            (*c).lkey = object.part.mr.lkey().0;
            (*c).rkey = object.part.mr.rkey().0;
        }
        Ok(0)
    };
    change().unwrap_or_else(|(answer, error)| {
        tell(CALL, &error);
        answer
    })
}

/// `ibv_dereg_mr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut abi::Mr) -> c_int {
    // SAFETY: a region, or null.
    if !mr.is_null() && !unsafe { is_ours(mr) } {
        return behind!(ibv_dereg_mr as unsafe extern "C" fn(*mut abi::Mr) -> c_int, (mr), else libc::EINVAL);
    }
    status("ibv_dereg_mr", || {
        // SAFETY: it is ours, or null.
        unsafe {
            let object = of::<MrPart>(mr)?;
            object.part.mr.destroy()?;
            if let Ok(open) = context::open((*mr).context) {
                open.shared.exports().mrs.remove(&(*mr).handle);
            }
            Object::<MrPart>::bury(mr);
        }
        Ok(())
    })
}

/// `ibv_import_mr`: its address is not told, as with libibverbs.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut abi::Pd, handle: u32) -> *mut abi::Mr {
    // SAFETY: a protection domain, or null.
    if !pd.is_null() && !unsafe { is_ours(pd) } {
        type Import = unsafe extern "C" fn(*mut abi::Pd, u32) -> *mut abi::Mr;
        return behind!(ibv_import_mr as Import, (pd, handle), else std::ptr::null_mut());
    }
    pointer("ibv_import_mr", || {
        // SAFETY: a protection domain, or null; a live one has a context.
        let open = unsafe {
            pd_of(pd)?;
            context::open((*pd).context)?
        };
        let found =
            open.shared.exports().mrs.get(&handle).and_then(|(mr, _, length)| Some((Weak::upgrade(mr)?, *length)));
        let (mr, length) = found.ok_or_else(|| not_there("memory region", handle))?;
        // SAFETY: as above.
        let context = unsafe { (*pd).context };
        let (lkey, rkey) = (mr.lkey().0, mr.rkey().0);
        let c = abi::Mr { context, pd, addr: std::ptr::null_mut(), length, handle, lkey, rkey };
        Ok(Object::make(c, MrPart { mr, plain: false }))
    })
}

/// `ibv_unimport_mr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut abi::Mr) {
    // SAFETY: a region, or null.
    if !unsafe { is_ours(mr) } {
        return behind!(ibv_unimport_mr as unsafe extern "C" fn(*mut abi::Mr), (mr), else ());
    }
    // SAFETY: the program gives it back.
    unsafe { Object::<MrPart>::bury(mr) };
}

/// The operation `reg_dm_mr`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut abi::Pd,
    dm: *mut abi::Dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut abi::Mr {
    pointer("ibv_reg_dm_mr", || {
        // SAFETY: what the program passes.
        let (domain, dm) = unsafe { (pd_of(pd)?, beside::<DmPart>(dm)?) };
        let mr = domain.reg_dm_mr(&dm.part.dm, offset, length, AccessFlags::from_raw(access)?)?;
        make(pd, mr, std::ptr::null_mut(), length, false)
    })
}

/// The operation `alloc_null_mr`: reads as zeros and swallows writes. Nothing here has such memory.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn alloc_null_mr(_pd: *mut abi::Pd) -> *mut abi::Mr {
    pointer("ibv_alloc_null_mr", || Err(unsupported("null memory regions do not exist here: register real memory")))
}

/// The operation `advise_mr`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn advise_mr(
    pd: *mut abi::Pd,
    advice: u32,
    flags: u32,
    sg_list: *mut abi::Sge,
    num_sge: u32,
) -> c_int {
    const FLUSH: u32 = 1;
    status("ibv_advise_mr", || {
        // SAFETY: a protection domain, or null.
        let domain = unsafe { pd_of(pd)? };
        if flags & !FLUSH != 0 {
            return Err(VerbsError::invalid(format!("flags {flags:#x}: only FLUSH 1 is known")));
        }
        if num_sge == 0 || sg_list.is_null() {
            return Err(VerbsError::invalid("advice needs at least one range"));
        }
        // SAFETY: the program's list.
        let ranges = unsafe { std::slice::from_raw_parts(sg_list, num_sge as usize) };
        let ranges: Vec<Sge> =
            ranges.iter().map(|sge| Sge { addr: sge.addr, length: sge.length, lkey: LKey(sge.lkey) }).collect();
        domain.advise_mr(MrAdvice::from_raw(advice)?, flags & FLUSH != 0, &ranges)
    })
}

/// `ibv_dontfork_range`: nothing is pinned, so a child may have all.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int {
    type Range = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    behind!(ibv_dontfork_range as Range, (base, size), else 0)
}

/// `ibv_dofork_range`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int {
    type Range = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    behind!(ibv_dofork_range as Range, (base, size), else 0)
}

/// `ibv_fork_init`. Our regions survive a fork as they are; real devices behind us want to be told.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    behind!(ibv_fork_init as unsafe extern "C" fn() -> c_int, (), else 0)
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED` unless the real library says that the program asked for more.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    const UNNEEDED: c_int = 2;
    const ENABLED: c_int = 1;
    let real = behind!(ibv_is_fork_initialized as unsafe extern "C" fn() -> c_int, (), else UNNEEDED);
    if real == ENABLED { ENABLED } else { UNNEEDED }
}
