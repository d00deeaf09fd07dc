//! libibverbs, loaded when it is first needed: its functions by name and version. The only file that loads anything.
//!
//! A library that is already in the process and found first (a preloaded C door) wins over the one that is loaded here, as
//! it would for a program that links libibverbs.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use scalefabric_verbs::{Errno, VerbsError};

use crate::abi;

/// A symbol of `library`, or of whoever in the process comes before it.
fn symbol(library: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: both are strings that end in 0; RTLD_DEFAULT and a handle of dlopen are both allowed.
    unsafe {
        let first = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if !first.is_null() {
            return first;
        }
        libc::dlvsym(library, name.as_ptr(), version.as_ptr())
    }
}

/// Loads a shared library for good. The error names it and says who has it.
pub(crate) fn load(name: &CStr, package: &str) -> Result<*mut c_void, VerbsError> {
    // SAFETY: the constructors of a system library run, as when it is linked. It is never unloaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: after a failed dlopen, dlerror gives a string or null.
    let reason = unsafe { libc::dlerror() };
    let reason = if reason.is_null() {
        "no reason given".to_owned()
    } else {
        // SAFETY: not null, and it ends in 0.
        unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
    };
    Err(VerbsError::environment(
        Errno::ENOENT,
        format!(
            "{} cannot be loaded: {reason}. Install {package}, or use the software NIC, which does not need it",
            name.to_string_lossy()
        ),
    ))
}

/// A table of functions of a library: `needed` ones must be there, `maybe` ones came later.
macro_rules! functions {
    ( $(#[$about:meta])* $table:ident; $( $kind:ident $field:ident = $name:literal @ $version:literal : fn( $($arg:ty),* ) $( -> $ret:ty )? ; )* ) => {
        $(#[$about])*
        pub(crate) struct $table {
            $( pub(crate) $field: $crate::library::functions!(@type $kind unsafe extern "C" fn( $($arg),* ) $( -> $ret )?), )*
        }

        impl $table {
            /// Finds them all. The error names the first that is missing.
            pub(crate) fn find(library: *mut ::core::ffi::c_void, find: fn(*mut ::core::ffi::c_void, &::core::ffi::CStr, &::core::ffi::CStr) -> *mut ::core::ffi::c_void) -> Result<Self, &'static str> {
                $(
                    let found = find(library, $name, $version);
                    // SAFETY: a null pointer is None, and any other one is the function of this name, whose signature is
                    // frozen with its version node.
                    let $field = unsafe { ::core::mem::transmute::<*mut ::core::ffi::c_void, Option<unsafe extern "C" fn( $($arg),* ) $( -> $ret )?>>(found) };
                    let $field = $crate::library::functions!(@take $kind $field $name);
                )*
                Ok(Self { $( $field, )* })
            }
        }
    };
    (@type needed $t:ty) => { $t };
    (@type maybe $t:ty) => { Option<$t> };
    (@take needed $field:ident $name:literal) => { $field.ok_or(stringify!($field))? };
    (@take maybe $field:ident $name:literal) => { $field };
}
pub(crate) use functions;

functions! {
    /// The functions of libibverbs that are used here.
    Verbs;
    needed get_device_list = c"ibv_get_device_list" @ c"IBVERBS_1.1": fn(*mut c_int) -> *mut *mut abi::Device;
    needed free_device_list = c"ibv_free_device_list" @ c"IBVERBS_1.1": fn(*mut *mut abi::Device);
    needed get_device_guid = c"ibv_get_device_guid" @ c"IBVERBS_1.1": fn(*mut abi::Device) -> u64;
    maybe get_device_index = c"ibv_get_device_index" @ c"IBVERBS_1.9": fn(*mut abi::Device) -> c_int;
    needed open_device = c"ibv_open_device" @ c"IBVERBS_1.1": fn(*mut abi::Device) -> *mut abi::Context;
    needed close_device = c"ibv_close_device" @ c"IBVERBS_1.1": fn(*mut abi::Context) -> c_int;
    needed get_async_event = c"ibv_get_async_event" @ c"IBVERBS_1.1": fn(*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
    needed ack_async_event = c"ibv_ack_async_event" @ c"IBVERBS_1.1": fn(*mut abi::AsyncEvent);
    needed query_device = c"ibv_query_device" @ c"IBVERBS_1.1": fn(*mut abi::Context, *mut abi::DeviceAttr) -> c_int;
    needed query_port = c"ibv_query_port" @ c"IBVERBS_1.1": fn(*mut abi::Context, u8, *mut abi::PortAttr) -> c_int;
    needed query_gid = c"ibv_query_gid" @ c"IBVERBS_1.1": fn(*mut abi::Context, u8, c_int, *mut abi::Gid) -> c_int;
    needed query_pkey = c"ibv_query_pkey" @ c"IBVERBS_1.1": fn(*mut abi::Context, u8, c_int, *mut u16) -> c_int;
    maybe query_gid_table = c"_ibv_query_gid_table" @ c"IBVERBS_1.11": fn(*mut abi::Context, *mut abi::GidEntry, usize, u32, usize) -> isize;
    needed alloc_pd = c"ibv_alloc_pd" @ c"IBVERBS_1.1": fn(*mut abi::Context) -> *mut abi::Pd;
    needed dealloc_pd = c"ibv_dealloc_pd" @ c"IBVERBS_1.1": fn(*mut abi::Pd) -> c_int;
    needed reg_mr = c"ibv_reg_mr" @ c"IBVERBS_1.1": fn(*mut abi::Pd, *mut c_void, usize, c_int) -> *mut abi::Mr;
    maybe reg_mr_iova = c"ibv_reg_mr_iova" @ c"IBVERBS_1.7": fn(*mut abi::Pd, *mut c_void, usize, u64, c_int) -> *mut abi::Mr;
    maybe reg_mr_iova2 = c"ibv_reg_mr_iova2" @ c"IBVERBS_1.8": fn(*mut abi::Pd, *mut c_void, usize, u64, c_uint) -> *mut abi::Mr;
    maybe rereg_mr = c"ibv_rereg_mr" @ c"IBVERBS_1.1": fn(*mut abi::Mr, c_int, *mut abi::Pd, *mut c_void, usize, c_int) -> c_int;
    needed dereg_mr = c"ibv_dereg_mr" @ c"IBVERBS_1.1": fn(*mut abi::Mr) -> c_int;
    needed create_comp_channel = c"ibv_create_comp_channel" @ c"IBVERBS_1.0": fn(*mut abi::Context) -> *mut abi::CompChannel;
    needed destroy_comp_channel = c"ibv_destroy_comp_channel" @ c"IBVERBS_1.0": fn(*mut abi::CompChannel) -> c_int;
    needed create_cq = c"ibv_create_cq" @ c"IBVERBS_1.1": fn(*mut abi::Context, c_int, *mut c_void, *mut abi::CompChannel, c_int) -> *mut abi::Cq;
    needed resize_cq = c"ibv_resize_cq" @ c"IBVERBS_1.1": fn(*mut abi::Cq, c_int) -> c_int;
    needed destroy_cq = c"ibv_destroy_cq" @ c"IBVERBS_1.1": fn(*mut abi::Cq) -> c_int;
    needed get_cq_event = c"ibv_get_cq_event" @ c"IBVERBS_1.1": fn(*mut abi::CompChannel, *mut *mut abi::Cq, *mut *mut c_void) -> c_int;
    needed ack_cq_events = c"ibv_ack_cq_events" @ c"IBVERBS_1.1": fn(*mut abi::Cq, c_uint);
    needed create_srq = c"ibv_create_srq" @ c"IBVERBS_1.1": fn(*mut abi::Pd, *mut abi::SrqInitAttr) -> *mut abi::Srq;
    needed modify_srq = c"ibv_modify_srq" @ c"IBVERBS_1.1": fn(*mut abi::Srq, *mut abi::SrqAttr, c_int) -> c_int;
    needed query_srq = c"ibv_query_srq" @ c"IBVERBS_1.1": fn(*mut abi::Srq, *mut abi::SrqAttr) -> c_int;
    needed destroy_srq = c"ibv_destroy_srq" @ c"IBVERBS_1.1": fn(*mut abi::Srq) -> c_int;
    needed create_qp = c"ibv_create_qp" @ c"IBVERBS_1.1": fn(*mut abi::Pd, *mut abi::QpInitAttr) -> *mut abi::Qp;
    needed modify_qp = c"ibv_modify_qp" @ c"IBVERBS_1.1": fn(*mut abi::Qp, *mut abi::QpAttr, c_int) -> c_int;
    needed query_qp = c"ibv_query_qp" @ c"IBVERBS_1.1": fn(*mut abi::Qp, *mut abi::QpAttr, c_int, *mut abi::QpInitAttr) -> c_int;
    needed destroy_qp = c"ibv_destroy_qp" @ c"IBVERBS_1.1": fn(*mut abi::Qp) -> c_int;
    maybe query_qp_data_in_order = c"ibv_query_qp_data_in_order" @ c"IBVERBS_1.14": fn(*mut abi::Qp, u32, u32) -> c_int;
    needed create_ah = c"ibv_create_ah" @ c"IBVERBS_1.1": fn(*mut abi::Pd, *mut abi::AhAttr) -> *mut abi::Ah;
    needed init_ah_from_wc = c"ibv_init_ah_from_wc" @ c"IBVERBS_1.1": fn(*mut abi::Context, u8, *mut abi::Wc, *mut abi::Grh, *mut abi::AhAttr) -> c_int;
    needed destroy_ah = c"ibv_destroy_ah" @ c"IBVERBS_1.1": fn(*mut abi::Ah) -> c_int;
    needed attach_mcast = c"ibv_attach_mcast" @ c"IBVERBS_1.1": fn(*mut abi::Qp, *const abi::Gid, u16) -> c_int;
    needed detach_mcast = c"ibv_detach_mcast" @ c"IBVERBS_1.1": fn(*mut abi::Qp, *const abi::Gid, u16) -> c_int;
}

functions! {
    /// The functions of librdmacm that are used here.
    RdmaCm;
    needed create_event_channel = c"rdma_create_event_channel" @ c"RDMACM_1.0": fn() -> *mut abi::CmChannel;
    needed destroy_event_channel = c"rdma_destroy_event_channel" @ c"RDMACM_1.0": fn(*mut abi::CmChannel);
    needed create_id = c"rdma_create_id" @ c"RDMACM_1.0": fn(*mut abi::CmChannel, *mut *mut abi::CmId, *mut c_void, u32) -> c_int;
    needed destroy_id = c"rdma_destroy_id" @ c"RDMACM_1.0": fn(*mut abi::CmId) -> c_int;
    needed bind_addr = c"rdma_bind_addr" @ c"RDMACM_1.0": fn(*mut abi::CmId, *mut libc::sockaddr) -> c_int;
    needed resolve_addr = c"rdma_resolve_addr" @ c"RDMACM_1.0": fn(*mut abi::CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    needed resolve_route = c"rdma_resolve_route" @ c"RDMACM_1.0": fn(*mut abi::CmId, c_int) -> c_int;
    needed listen = c"rdma_listen" @ c"RDMACM_1.0": fn(*mut abi::CmId, c_int) -> c_int;
    needed connect = c"rdma_connect" @ c"RDMACM_1.0": fn(*mut abi::CmId, *mut abi::CmConnParam) -> c_int;
    maybe establish = c"rdma_establish" @ c"RDMACM_1.2": fn(*mut abi::CmId) -> c_int;
    needed accept = c"rdma_accept" @ c"RDMACM_1.0": fn(*mut abi::CmId, *mut abi::CmConnParam) -> c_int;
    needed reject = c"rdma_reject" @ c"RDMACM_1.0": fn(*mut abi::CmId, *const c_void, u8) -> c_int;
    maybe reject_ece = c"rdma_reject_ece" @ c"RDMACM_1.3": fn(*mut abi::CmId, *const c_void, u8) -> c_int;
    needed notify = c"rdma_notify" @ c"RDMACM_1.0": fn(*mut abi::CmId, u32) -> c_int;
    needed disconnect = c"rdma_disconnect" @ c"RDMACM_1.0": fn(*mut abi::CmId) -> c_int;
    maybe init_qp_attr = c"rdma_init_qp_attr" @ c"RDMACM_1.2": fn(*mut abi::CmId, *mut abi::QpAttr, *mut c_int) -> c_int;
    needed get_cm_event = c"rdma_get_cm_event" @ c"RDMACM_1.0": fn(*mut abi::CmChannel, *mut *mut abi::CmEvent) -> c_int;
    needed ack_cm_event = c"rdma_ack_cm_event" @ c"RDMACM_1.0": fn(*mut abi::CmEvent) -> c_int;
    needed set_option = c"rdma_set_option" @ c"RDMACM_1.0": fn(*mut abi::CmId, c_int, c_int, *mut c_void, usize) -> c_int;
    needed migrate_id = c"rdma_migrate_id" @ c"RDMACM_1.0": fn(*mut abi::CmId, *mut abi::CmChannel) -> c_int;
    maybe join_multicast_ex = c"rdma_join_multicast_ex" @ c"RDMACM_1.1": fn(*mut abi::CmId, *mut abi::CmJoinMcAttrEx, *mut c_void) -> c_int;
    needed leave_multicast = c"rdma_leave_multicast" @ c"RDMACM_1.0": fn(*mut abi::CmId, *mut libc::sockaddr) -> c_int;
    maybe set_local_ece = c"rdma_set_local_ece" @ c"RDMACM_1.3": fn(*mut abi::CmId, *mut abi::Ece) -> c_int;
    maybe get_remote_ece = c"rdma_get_remote_ece" @ c"RDMACM_1.3": fn(*mut abi::CmId, *mut abi::Ece) -> c_int;
}

/// The version node of v28 that everything needed is in is missing: not libibverbs, or one of another century.
fn incomplete(library: &str, function: &str) -> VerbsError {
    VerbsError::environment(
        Errno::ENOENT,
        format!(
            "{library} has no function for `{function}`: it is not the one of rdma-core v28 or later; install that"
        ),
    )
}

/// libibverbs, loaded once in a process.
pub(crate) fn verbs() -> Result<&'static Verbs, VerbsError> {
    static LOADED: OnceLock<Result<Verbs, VerbsError>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let library = load(c"libibverbs.so.1", "libibverbs (Debian, Ubuntu: libibverbs1; others: rdma-core)")?;
        Verbs::find(library, symbol).map_err(|name| incomplete("libibverbs.so.1", name))
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// librdmacm, likewise.
pub(crate) fn rdma_cm() -> Result<&'static RdmaCm, VerbsError> {
    static LOADED: OnceLock<Result<RdmaCm, VerbsError>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let library =
            load(c"librdmacm.so.1", "librdmacm (Debian, Ubuntu: librdmacm1; others: librdmacm or rdma-core)")?;
        RdmaCm::find(library, symbol).map_err(|name| incomplete("librdmacm.so.1", name))
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// The errno of the call before, as C left it.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A string inside a structure, up to its first 0.
pub(crate) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_who_has_it() {
        let error = load(c"libibverbs-of-nobody.so.1", "some package").unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT);
        assert!(error.message.contains("libibverbs-of-nobody.so.1 cannot be loaded: "), "{error}");
        assert!(error.message.contains("Install some package, or use the software NIC"), "{error}");
    }

    #[test]
    fn a_library_that_is_not_libibverbs_is_named_with_what_it_lacks() {
        let library = load(c"libc.so.6", "a C library").expect("there is one");
        // Only the library itself is asked: the process may have a preloaded libibverbs.
        fn of_it(library: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
            // SAFETY: as in `symbol`.
            unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) }
        }
        let missing = Verbs::find(library, of_it).err().expect("libc has no verbs");
        assert_eq!(missing, "get_device_list");
        let error = incomplete("libc.so.6", missing);
        assert!(error.message.contains("v28 or later"), "{error}");
    }

    #[test]
    fn strings_end_at_their_first_zero() {
        assert_eq!(text(&[b'r' as c_char, b'x' as c_char, 0, b'e' as c_char]), "rx");
    }
}
