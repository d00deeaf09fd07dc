//! Queues and what goes through them: CQ, SRQ, QP, work requests and completions, in their old and extended forms.

use core::ffi::{c_int, c_uint, c_void};

use super::{Ah, AhAttr, CompChannel, Condition, Context, Mutex, Mw, MwBindInfo, Pd, Xrcd, layout, layouts};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate in network order, or the invalidated rkey in host order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct WrRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct WrAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct WrUd {
    pub ah: *mut Ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union WrKind {
    pub rdma: WrRdma,
    pub atomic: WrAtomic,
    pub ud: WrUd,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct WrBindMw {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: c_uint,
    /// Immediate in network order, or the rkey to invalidate in host order.
    pub imm_data: u32,
    pub wr: WrKind,
    /// XRC: the number of the remote SRQ.
    pub remote_srqn: u32,
    pub bind_mw: WrBindMw,
}

#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct DataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: Mutex,
    pub cond: Condition,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
pub struct PollCqAttr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct CqEx {
    pub base: Cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut CqEx, *mut PollCqAttr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut CqEx) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut CqEx)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut CqEx) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(*mut CqEx) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(*mut CqEx) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(*mut CqEx) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut CqEx, *mut c_void)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(*mut CqEx) -> u64>,
}

#[repr(C)]
pub struct CqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut CompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut Pd,
}

#[repr(C)]
pub struct ModifyCqAttr {
    pub attr_mask: u32,
    pub cq_count: u16,
    pub cq_period: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

#[repr(C)]
pub struct SrqInitAttrEx {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut Xrcd,
    pub cq: *mut Cq,
    pub max_num_tags: u32,
    pub max_ops: u32,
}

#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct QpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut Pd,
    pub xrcd: *mut Xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

#[repr(C)]
pub struct QpOpenAttr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut Xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct QpRateLimitAttr {
    pub rate_limit: u32,
    pub max_burst_sz: u32,
    pub typical_pkt_sz: u16,
    pub comp_mask: u32,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: Mutex,
    pub cond: Condition,
    pub events_completed: u32,
}

/// `struct ibv_qp_ex` of v45 on (344 bytes in v35, 352 in v44).
#[repr(C)]
pub struct QpEx {
    pub base: Qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u64)>,
    pub wr_bind_mw: Option<unsafe extern "C" fn(*mut QpEx, *mut Mw, u32, *const MwBindInfo)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut QpEx, *mut Ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut QpEx, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut QpEx, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const DataBuf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut QpEx, usize, *const Sge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut QpEx) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut QpEx)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, *const c_void)>,
    pub wr_flush: Option<unsafe extern "C" fn(*mut QpEx, u32, u64, usize, u8, u8)>,
}

#[repr(C)]
pub struct OpsWr {
    pub wr_id: u64,
    pub next: *mut OpsWr,
    pub opcode: u32,
    pub flags: c_int,
    pub unexpected_cnt: u32,
    pub handle: u32,
    pub recv_wr_id: u64,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub tag: u64,
    pub mask: u64,
}

#[repr(C)]
pub struct WqInitAttr {
    pub wq_context: *mut c_void,
    pub wq_type: u32,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut Pd,
    pub cq: *mut Cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}

/// Flow steering is for raw packet QPs: only its handle's shape is known here.
#[repr(C)]
pub struct Flow {
    pub comp_mask: u32,
    pub context: *mut Context,
    pub handle: u32,
}

layout! {
    ibv_wc = Wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits,
    };
    ibv_sge = Sge { addr, length, lkey };
    ibv_send_wr = SendWr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, wr.rdma.remote_addr, wr.rdma.rkey,
        wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, wr.ud.ah, wr.ud.remote_qpn,
        wr.ud.remote_qkey, qp_type = remote_srqn, qp_type.xrc.remote_srqn = remote_srqn, bind_mw, bind_mw.mw,
        bind_mw.rkey, bind_mw.bind_info,
    };
    ibv_recv_wr = RecvWr { wr_id, next, sg_list, num_sge };
    ibv_data_buf = DataBuf { addr, length };
    ibv_cq = Cq {
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
    };
    ibv_poll_cq_attr = PollCqAttr { comp_mask };
    ibv_cq_ex = CqEx {
        context = base.context, channel = base.channel, cq_context = base.cq_context, handle = base.handle,
        cqe = base.cqe, mutex = base.mutex, cond = base.cond, comp_events_completed = base.comp_events_completed,
        async_events_completed = base.async_events_completed, comp_mask, status, wr_id, start_poll, next_poll,
        end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags,
        read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
        read_completion_wallclock_ns,
    };
    ibv_cq_init_attr_ex = CqInitAttrEx {
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
    };
    ibv_modify_cq_attr = ModifyCqAttr { attr_mask, moderate.cq_count = cq_count, moderate.cq_period = cq_period };
    ibv_srq_attr = SrqAttr { max_wr, max_sge, srq_limit };
    ibv_srq_init_attr = SrqInitAttr { srq_context, attr };
    ibv_srq_init_attr_ex = SrqInitAttrEx {
        srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap.max_num_tags = max_num_tags,
        tm_cap.max_ops = max_ops,
    };
    ibv_srq = Srq { context, srq_context, pd, handle, mutex, cond, events_completed };
    ibv_qp_cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
    ibv_qp_init_attr = QpInitAttr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
    ibv_qp_init_attr_ex = QpInitAttrEx {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
        max_tso_header, rwq_ind_tbl, rx_hash_conf.rx_hash_function = rx_hash_function,
        rx_hash_conf.rx_hash_key_len = rx_hash_key_len, rx_hash_conf.rx_hash_key = rx_hash_key,
        rx_hash_conf.rx_hash_fields_mask = rx_hash_fields_mask, source_qpn, send_ops_flags,
    };
    ibv_qp_open_attr = QpOpenAttr { comp_mask, qp_num, xrcd, qp_context, qp_type };
    ibv_qp_attr = QpAttr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
        ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
        max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
        rate_limit,
    };
    ibv_qp_rate_limit_attr = QpRateLimitAttr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask };
    ibv_qp = Qp {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed,
    };
    ibv_qp_ex = QpEx {
        qp_base = base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
        wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
        wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
        wr_start, wr_complete, wr_abort, wr_atomic_write, wr_flush,
    };
    ibv_ops_wr = OpsWr {
        wr_id, next, opcode, flags, tm.unexpected_cnt = unexpected_cnt, tm.handle = handle,
        tm.add.recv_wr_id = recv_wr_id, tm.add.sg_list = sg_list, tm.add.num_sge = num_sge, tm.add.tag = tag,
        tm.add.mask = mask,
    };
    ibv_wq_init_attr = WqInitAttr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags };
    ibv_flow = Flow { comp_mask, context, handle };
}
