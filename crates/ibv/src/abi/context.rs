//! The context and its tables of operations. `verbs_context` grows upwards: new operations come first, and `sz` and the
//! context stay last, so that a program's inline functions find by `sz` whether an operation is there. An operation that is not
//! offered is null.

use core::ffi::{c_int, c_uint, c_void};

use super::*;

/// `struct ibv_context_ops`: only eight slots are called by any header of v24 to v65.
#[repr(C)]
pub struct ContextOps {
    pub compat_query_device: Option<unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int>,
    pub compat_query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int>,
    pub compat_alloc_pd: Unused,
    pub compat_dealloc_pd: Unused,
    pub compat_reg_mr: Unused,
    pub compat_rereg_mr: Unused,
    pub compat_dereg_mr: Unused,
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, u32) -> *mut Mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut MwBind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    pub compat_create_cq: Unused,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    pub compat_cq_event: Unused,
    pub compat_resize_cq: Unused,
    pub compat_destroy_cq: Unused,
    pub compat_create_srq: Unused,
    pub compat_modify_srq: Unused,
    pub compat_query_srq: Unused,
    pub compat_destroy_srq: Unused,
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_create_qp: Unused,
    pub compat_query_qp: Unused,
    pub compat_modify_qp: Unused,
    pub compat_destroy_qp: Unused,
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    pub compat_create_ah: Unused,
    pub compat_destroy_ah: Unused,
    pub compat_attach_mcast: Unused,
    pub compat_detach_mcast: Unused,
    pub compat_async_event: Unused,
}

#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Mutex,
    /// All ones: the context is the tail of a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// `struct verbs_context` of v64 and v65. v28 to v58 begin at `query_port`, v59 to v61 at `reg_mr_ex`, v62 and v63 at
/// `dm_export_dmabuf_fd`: whoever reads one that another library made asks [`has_operation`] first.
#[repr(C)]
pub struct VerbsContext {
    pub free_buf: Option<unsafe extern "C" fn(*mut Buf)>,
    pub alloc_buf: Option<unsafe extern "C" fn(*mut Pd, usize, *mut *mut Buf) -> *mut c_void>,
    pub dm_export_dmabuf_fd: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    pub reg_mr_ex: Option<unsafe extern "C" fn(*mut Pd, *mut MrInitAttr) -> *mut Mr>,
    pub dealloc_dmah: Option<unsafe extern "C" fn(*mut Dmah) -> c_int>,
    pub alloc_dmah: Option<unsafe extern "C" fn(*mut Context, *mut DmahInitAttr) -> *mut Dmah>,
    pub query_port: Option<unsafe extern "C" fn(*mut Context, u8, *mut PortAttr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut Pd, u32, u32, *mut Sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut Pd) -> *mut Mr>,
    pub read_counters: Unused,
    pub attach_counters_point_flow: Unused,
    pub create_counters: Unused,
    pub destroy_counters: Unused,
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut Pd, *mut Dm, u64, usize, c_uint) -> *mut Mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut Context, *mut AllocDmAttr) -> *mut Dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut Dm) -> c_int>,
    pub modify_flow_action_esp: Unused,
    pub destroy_flow_action: Unused,
    pub create_flow_action_esp: Unused,
    pub modify_qp_rate_limit: Option<unsafe extern "C" fn(*mut Qp, *mut QpRateLimitAttr) -> c_int>,
    pub alloc_parent_domain: Option<unsafe extern "C" fn(*mut Context, *mut ParentDomainInitAttr) -> *mut Pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut Td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut Context, *mut TdInitAttr) -> *mut Td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut Cq, *mut ModifyCqAttr) -> c_int>,
    pub post_srq_ops: Option<unsafe extern "C" fn(*mut Srq, *mut OpsWr, *mut *mut OpsWr) -> c_int>,
    pub destroy_rwq_ind_table: Unused,
    pub create_rwq_ind_table: Unused,
    pub destroy_wq: Unused,
    pub modify_wq: Unused,
    pub create_wq: Option<unsafe extern "C" fn(*mut Context, *mut WqInitAttr) -> *mut Wq>,
    pub query_rt_values: Option<unsafe extern "C" fn(*mut Context, *mut ValuesEx) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut Context, *mut CqInitAttrEx) -> *mut CqEx>,
    /// The library's own; code of the real library dereferences it for public functions that are not ours.
    pub private: *mut c_void,
    pub query_device_ex:
        Option<unsafe extern "C" fn(*mut Context, *const QueryDeviceExInput, *mut DeviceAttrEx, usize) -> c_int>,
    pub destroy_flow: Option<unsafe extern "C" fn(*mut Flow) -> c_int>,
    pub placeholder2: Unused,
    pub create_flow: Option<unsafe extern "C" fn(*mut Qp, *mut c_void) -> *mut Flow>,
    pub placeholder1: Unused,
    pub open_qp: Option<unsafe extern "C" fn(*mut Context, *mut QpOpenAttr) -> *mut Qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut Context, *mut QpInitAttrEx) -> *mut Qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut Srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut Context, *mut SrqInitAttrEx) -> *mut Srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut Context, *mut XrcdInitAttr) -> *mut Xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut Xrcd) -> c_int>,
    pub placeholder3: u64,
    pub sz: usize,
    pub context: Context,
}

/// True if a `verbs_context` that says `sz` for its own size has the member at `offset` of [`VerbsContext`]: its members are
/// counted from the end, since it grows upwards.
pub const fn has_operation(sz: usize, offset: usize) -> bool {
    sz >= size_of::<VerbsContext>() - offset
}

layout! {
    ibv_context_ops = ContextOps {
        _compat_query_device = compat_query_device, _compat_query_port = compat_query_port,
        _compat_alloc_pd = compat_alloc_pd, _compat_dealloc_pd = compat_dealloc_pd, _compat_reg_mr = compat_reg_mr,
        _compat_rereg_mr = compat_rereg_mr, _compat_dereg_mr = compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
        _compat_create_cq = compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event = compat_cq_event,
        _compat_resize_cq = compat_resize_cq, _compat_destroy_cq = compat_destroy_cq,
        _compat_create_srq = compat_create_srq, _compat_modify_srq = compat_modify_srq,
        _compat_query_srq = compat_query_srq, _compat_destroy_srq = compat_destroy_srq, post_srq_recv,
        _compat_create_qp = compat_create_qp, _compat_query_qp = compat_query_qp,
        _compat_modify_qp = compat_modify_qp, _compat_destroy_qp = compat_destroy_qp, post_send, post_recv,
        _compat_create_ah = compat_create_ah, _compat_destroy_ah = compat_destroy_ah,
        _compat_attach_mcast = compat_attach_mcast, _compat_detach_mcast = compat_detach_mcast,
        _compat_async_event = compat_async_event,
    };
    ibv_context = Context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat };
    verbs_context = VerbsContext {
        free_buf, alloc_buf, dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah, alloc_dmah, query_port, advise_mr,
        alloc_null_mr, read_counters, attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr,
        alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit,
        alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
        create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, priv = private,
        query_device_ex, ibv_destroy_flow = destroy_flow, ABI_placeholder2 = placeholder2,
        ibv_create_flow = create_flow, ABI_placeholder1 = placeholder1, open_qp, create_qp_ex, get_srq_num,
        create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3 = placeholder3, sz, context,
    };
}
