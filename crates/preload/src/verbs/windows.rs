//! Memory windows of type 1 and 2.

use std::ffi::c_int;
use std::sync::Arc;

use scalefabric_ibv::abi;
use scalefabric_verbs::{AccessFlags, BindMw, MemoryWindow, MwType, RKey, SendFlags, VerbsError};

use super::answer::{Outcome, pointer, status};
use super::memory::pd_of;
use super::object::{Object, Part, beside, next_handle, of};
use super::queue_pair::QpPart;
use super::regions::MrPart;

/// A memory window.
pub struct MwPart {
    /// The contract's.
    pub mw: Arc<dyn MemoryWindow>,
}

impl Part for MwPart {
    type C = abi::Mw;
    const MARK: u64 = u64::from_be_bytes(*b"sfMemWin");
    const NAME: &'static str = "memory window";
}

/// The operation `alloc_mw`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn alloc_mw(pd: *mut abi::Pd, mw_type: u32) -> *mut abi::Mw {
    pointer("ibv_alloc_mw", || {
        // SAFETY: a protection domain, or null.
        let domain = unsafe { pd_of(pd)? };
        let kind = match mw_type {
            1 => MwType::Type1,
            2 => MwType::Type2,
            other => return Err(VerbsError::invalid(format!("memory windows are of type 1 or 2, not {other}"))),
        };
        let mw = domain.alloc_mw(kind)?;
        // SAFETY: a live domain has a context.
        let context = unsafe { (*pd).context };
        let c = abi::Mw { context, pd, rkey: mw.rkey().0, handle: next_handle(), mw_type };
        Ok(Object::make(c, MwPart { mw }))
    })
}

/// The operation `dealloc_mw`.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn dealloc_mw(mw: *mut abi::Mw) -> c_int {
    status("ibv_dealloc_mw", || {
        // SAFETY: it is ours, since the operation is.
        unsafe {
            of::<MwPart>(mw)?.part.mw.destroy()?;
            Object::<MwPart>::bury(mw);
        }
        Ok(())
    })
}

/// What a bind says, as the contract has it.
///
/// # Safety
/// Window and region are those of the program.
pub unsafe fn bind<'a>(mw: *mut abi::Mw, rkey: u32, info: &abi::MwBindInfo) -> Outcome<BindMw<'a>> {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe {
        let region = if info.mr.is_null() { None } else { Some(beside::<MrPart>(info.mr)?) };
        (beside::<MwPart>(mw)?, region)
    };
    Ok(BindMw {
        mw: &*window.part.mw,
        rkey: RKey(rkey),
        mr: region.map(|region| &*region.part.mr),
        addr: info.addr,
        length: info.length,
        // What a region grants locally means nothing to a window; programs give it all the same, and drivers take it.
        access: AccessFlags::from_raw(info.mw_access_flags)? - AccessFlags::LOCAL_WRITE,
    })
}

/// The operation `bind_mw`: windows of type 1.
///
/// # Safety
/// As the C function.
pub unsafe extern "C" fn bind_mw(qp: *mut abi::Qp, mw: *mut abi::Mw, how: *mut abi::MwBind) -> c_int {
    status("ibv_bind_mw", || {
        // SAFETY: what the program passes.
        unsafe {
            let how = how.as_ref().ok_or_else(|| VerbsError::invalid("ibv_mw_bind is null"))?;
            let object = beside::<MwPart>(mw)?;
            let bind = bind(mw, 0, &how.bind_info)?;
            let qp = beside::<QpPart>(qp.cast())?;
            qp.part.qp.bind_mw(how.wr_id, SendFlags::from_raw(how.send_flags)?, &bind)?;
            (*object.c()).rkey = object.part.mw.rkey().0;
        }
        Ok(())
    })
}
