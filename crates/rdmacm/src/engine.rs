//! The functions beneath, which the linker finds in `libscalefabric-preload.so`; inline functions of `infiniband/verbs.h`; errno.

use std::ffi::{c_int, c_void};

use scalefabric_ibv::abi::{self, Context, Cq, Device, Gid, Pd, Qp, Srq};

/// A number of errno.
pub type Errno = c_int;

unsafe extern "C" {
    /// Opens the connection manager device.
    pub fn sfab_ucma_open(flags: c_int) -> c_int;
    /// Writes a command to it.
    pub fn sfab_ucma_write(fd: c_int, bytes: *const c_void, length: usize) -> isize;
    /// Closes it.
    pub fn sfab_ucma_close(fd: c_int) -> c_int;

    pub fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut Device;
    pub fn ibv_free_device_list(list: *mut *mut Device);
    pub fn ibv_get_device_guid(device: *mut Device) -> u64;
    pub fn ibv_get_device_index(device: *mut Device) -> c_int;
    pub fn ibv_open_device(device: *mut Device) -> *mut Context;
    pub fn ibv_query_device(context: *mut Context, attr: *mut abi::DeviceAttr) -> c_int;
    pub fn ibv_alloc_pd(context: *mut Context) -> *mut Pd;
    pub fn ibv_dealloc_pd(pd: *mut Pd) -> c_int;
    pub fn ibv_create_comp_channel(context: *mut Context) -> *mut abi::CompChannel;
    pub fn ibv_destroy_comp_channel(channel: *mut abi::CompChannel) -> c_int;
    pub fn ibv_create_cq(
        context: *mut Context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut abi::CompChannel,
        comp_vector: c_int,
    ) -> *mut Cq;
    pub fn ibv_destroy_cq(cq: *mut Cq) -> c_int;
    pub fn ibv_create_srq(pd: *mut Pd, init: *mut abi::SrqInitAttr) -> *mut Srq;
    pub fn ibv_destroy_srq(srq: *mut Srq) -> c_int;
    pub fn ibv_create_qp(pd: *mut Pd, init: *mut abi::QpInitAttr) -> *mut Qp;
    pub fn ibv_modify_qp(qp: *mut Qp, attr: *mut abi::QpAttr, mask: c_int) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut Qp) -> c_int;
    pub fn ibv_attach_mcast(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int;
    pub fn ibv_detach_mcast(qp: *mut Qp, gid: *const Gid, lid: u16) -> c_int;
    pub fn ibv_query_ece(qp: *mut Qp, ece: *mut abi::Ece) -> c_int;
    pub fn ibv_set_ece(qp: *mut Qp, ece: *mut abi::Ece) -> c_int;
}

/// The thread's errno; `EIO` if nobody set it.
pub fn errno() -> Errno {
    // SAFETY: the thread's own errno.
    match unsafe { *libc::__errno_location() } {
        0 => libc::EIO,
        errno => errno,
    }
}

/// What most functions return: 0, or -1 with errno.
pub fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the thread's own errno.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// A function of libibverbs that returns a number of errno, or -1 with errno.
pub fn done(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        -1 => Err(errno()),
        errno => Err(errno.abs()),
    }
}

/// A function that returns an object, or null with errno.
pub fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(errno()) } else { Ok(object) }
}

/// An operation of `verbs_context`, as the inline functions of `infiniband/verbs.h` find it: `EOPNOTSUPP` if the context does not have it.
macro_rules! operation {
    ($context:expr, $member:ident) => {{
        let context: *mut ::scalefabric_ibv::abi::Context = $context;
        let offset = ::std::mem::offset_of!(::scalefabric_ibv::abi::VerbsContext, $member);
        let table = $crate::engine::extended(context, offset);
        #[allow(unused_unsafe)]
        // SAFETY: the table reaches down to this member, which is an optional function.
        let found = table.and_then(|table| unsafe { (*table).$member });
        found.ok_or(::libc::EOPNOTSUPP)
    }};
}
pub(crate) use operation;

/// The table that a context is the tail of, if it reaches down to a member.
pub fn extended(context: *mut Context, offset: usize) -> Option<*mut abi::VerbsContext> {
    let tail = std::mem::offset_of!(abi::VerbsContext, context);
    // SAFETY: the context is a device's, open; before one with this mark stands the rest of the table, whose size is `sz`.
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            return None;
        }
        let table = context.byte_sub(tail).cast::<abi::VerbsContext>();
        abi::has_operation((&raw const (*table).sz).read(), offset).then_some(table)
    }
}
