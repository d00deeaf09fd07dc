//! Completion counters (v65), which a software NIC of CQs does not have: EOPNOTSUPP. Those of real devices go on.

use std::ffi::{c_int, c_void};

use scalefabric_ibv::abi;

use super::answer::set_errno;
use super::behind::behind;
use super::context;
use super::object::is_ours;

fn unsupported() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// `_ibv_query_comp_cntr_caps`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut abi::Context,
    caps: *mut abi::CompCntrCaps,
    size: usize,
) -> c_int {
    type Query = unsafe extern "C" fn(*mut abi::Context, *mut abi::CompCntrCaps, usize) -> c_int;
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        return behind!(_ibv_query_comp_cntr_caps as Query, (context, caps, size), else libc::EOPNOTSUPP);
    }
    unsupported()
}

/// `ibv_create_comp_cntr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut abi::Context,
    attr: *mut abi::CompCntrInitAttr,
) -> *mut abi::CompCntr {
    type Create = unsafe extern "C" fn(*mut abi::Context, *mut abi::CompCntrInitAttr) -> *mut abi::CompCntr;
    // SAFETY: a context, or null.
    if !context.is_null() && !unsafe { context::is_ours(context) } {
        return behind!(ibv_create_comp_cntr as Create, (context, attr), else std::ptr::null_mut());
    }
    unsupported();
    std::ptr::null_mut()
}

/// `ibv_qp_attach_comp_cntr`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut abi::Qp,
    counter: *mut abi::CompCntr,
    attr: *mut abi::QpAttachCompCntrAttr,
) -> c_int {
    type Attach = unsafe extern "C" fn(*mut abi::Qp, *mut abi::CompCntr, *mut abi::QpAttachCompCntrAttr) -> c_int;
    // SAFETY: a QP, or null.
    if !qp.is_null() && !unsafe { is_ours(qp) } {
        return behind!(ibv_qp_attach_comp_cntr as Attach, (qp, counter, attr), else libc::EOPNOTSUPP);
    }
    unsupported()
}

/// `ibv_export_buf_dmabuf_fd`: buffers of ours are plain memory.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut c_void, a: usize, b: usize, c: usize) -> c_int {
    type Export = unsafe extern "C" fn(*mut c_void, usize, usize, usize) -> c_int;
    if super::regions::is_buffer(buf) || buf.is_null() {
        set_errno(libc::EOPNOTSUPP);
        return -1;
    }
    behind!(ibv_export_buf_dmabuf_fd as Export, (buf, a, b, c), else -1)
}

macro_rules! of_real_counters {
    ($( $name:ident ( $($argument:ident : $type:ty)? ) )*) => { $(
        #[doc = concat!("`", stringify!($name), "`: only the real library makes counters.")]
        ///
        /// # Safety
        /// As the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(counter: *mut abi::CompCntr $(, $argument: $type)?) -> c_int {
            type Function = unsafe extern "C" fn(*mut abi::CompCntr $(, $type)?) -> c_int;
            if counter.is_null() {
                return libc::EINVAL;
            }
            behind!($name as Function, (counter $(, $argument)?), else unsupported())
        }
    )* };
}

of_real_counters! {
    ibv_destroy_comp_cntr()
    ibv_set_comp_cntr(value: u64)
    ibv_set_err_comp_cntr(value: u64)
    ibv_inc_comp_cntr(amount: u64)
    ibv_inc_err_comp_cntr(amount: u64)
    ibv_read_comp_cntr(value: *mut u64)
    ibv_read_err_comp_cntr(value: *mut u64)
}
