//! Protection domains, memory, address handles, domains: the objects around the queues.

use core::ffi::{c_int, c_uint, c_void};

use super::{Context, Cq, Mutex, layout, layouts};

#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

#[repr(C)]
pub struct Td {
    pub context: *mut Context,
}

#[repr(C)]
pub struct TdInitAttr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ParentDomainInitAttr {
    pub pd: *mut Pd,
    pub td: *mut Td,
    pub comp_mask: u32,
    pub alloc: Option<unsafe extern "C" fn(*mut Pd, *mut c_void, usize, usize, u64) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut Pd, *mut c_void, *mut c_void, u64)>,
    pub pd_context: *mut c_void,
}

#[repr(C)]
pub struct Xrcd {
    pub context: *mut Context,
}

#[repr(C)]
pub struct XrcdInitAttr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
pub struct MwBind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: MwBindInfo,
}

#[repr(C)]
pub struct Dm {
    pub context: *mut Context,
    pub memcpy_to_dm: Option<unsafe extern "C" fn(*mut Dm, u64, *const c_void, usize) -> c_int>,
    pub memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut Dm, u64, usize) -> c_int>,
    pub comp_mask: u32,
    pub handle: u32,
}

#[repr(C)]
pub struct AllocDmAttr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

/// `struct ibv_dmah` (v59): a hint how the device shall reach memory.
#[repr(C)]
pub struct Dmah {
    pub context: *mut Context,
}

#[repr(C)]
pub struct DmahInitAttr {
    pub comp_mask: u32,
    pub cpu_id: u32,
    pub ph: u8,
    pub tph_mem_type: u8,
}

/// `struct ibv_mr_init_attr` (v59; `buf` since v64).
#[repr(C)]
pub struct MrInitAttr {
    pub length: usize,
    pub access: c_int,
    /// Bits 0 to 5: iova, addr, fd, fd_offset, dmah, buf.
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut Dmah,
    pub buf: *mut Buf,
}

/// `struct ibv_buf` (v64): what is inside is the library's own affair.
#[repr(C)]
pub struct Buf {
    opaque: [u8; 0],
}

/// `struct ibv_comp_cntr` (v65): a counter of completions.
#[repr(C)]
pub struct CompCntr {
    pub context: *mut Context,
    pub handle: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CompCntrCaps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}

#[repr(C)]
pub struct CompCntrInitAttr {
    pub comp_mask: u32,
    pub counter_type: u32,
    pub flags: u32,
}

#[repr(C)]
pub struct QpAttachCompCntrAttr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `union ibv_gid`: aligned as its 64-bit halves are.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Grh {
    pub version_tclass_flow: u32,
    pub paylen: u16,
    pub next_hdr: u8,
    pub hop_limit: u8,
    pub sgid: Gid,
    pub dgid: Gid,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
pub struct Ah {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub handle: u32,
}

#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    /// CQs that use it: programs read it, and destroying answers EBUSY while it is not 0.
    pub refcnt: c_int,
}

#[repr(C)]
pub struct Wq {
    pub context: *mut Context,
    pub wq_context: *mut c_void,
    pub pd: *mut Pd,
    pub cq: *mut Cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: u32,
    pub wq_type: u32,
    pub post_recv: super::Unused,
    pub mutex: Mutex,
    pub cond: super::Condition,
    pub events_completed: u32,
    pub comp_mask: u32,
}

layout! {
    ibv_pd = Pd { context, handle };
    ibv_td = Td { context };
    ibv_td_init_attr = TdInitAttr { comp_mask };
    ibv_parent_domain_init_attr = ParentDomainInitAttr { pd, td, comp_mask, alloc, free, pd_context };
    ibv_xrcd = Xrcd { context };
    ibv_xrcd_init_attr = XrcdInitAttr { comp_mask, fd, oflags };
    ibv_mr = Mr { context, pd, addr, length, handle, lkey, rkey };
    ibv_mw = Mw { context, pd, rkey, handle, type = mw_type };
    ibv_mw_bind_info = MwBindInfo { mr, addr, length, mw_access_flags };
    ibv_mw_bind = MwBind { wr_id, send_flags, bind_info };
    ibv_dm = Dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle };
    ibv_alloc_dm_attr = AllocDmAttr { length, log_align_req, comp_mask };
    ibv_dmah = Dmah { context };
    ibv_dmah_init_attr = DmahInitAttr { comp_mask, cpu_id, ph, tph_mem_type };
    ibv_mr_init_attr = MrInitAttr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf };
    ibv_comp_cntr = CompCntr { context, handle };
    ibv_comp_cntr_caps = CompCntrCaps { max_value, max_counters, supported_qp_attach_ops };
    ibv_comp_cntr_init_attr = CompCntrInitAttr { comp_mask, type = counter_type, flags };
    ibv_qp_attach_comp_cntr_attr = QpAttachCompCntrAttr { comp_mask, op_mask };
    ibv_global_route = GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class };
    ibv_grh = Grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid };
    ibv_ah_attr = AhAttr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num };
    ibv_ah = Ah { context, pd, handle };
    ibv_comp_channel = CompChannel { context, fd, refcnt };
    ibv_wq = Wq {
        context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond, events_completed,
        comp_mask,
    };
}
