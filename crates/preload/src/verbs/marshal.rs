//! Structures of the kernel's ABI (`rdma/ib_user_verbs.h`, `rdma/ib_user_sa.h`) into those of libibverbs and back:
//! librdmacm uses these.

use scalefabric_ibv::abi;

/// `struct ib_uverbs_ah_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_grh: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    cap: abi::QpCap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec`; LIDs, flow label and P_Key big-endian.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelPathRec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<KernelAhAttr>() == 32);
const _: () = assert!(size_of::<KernelQpAttr>() == 144);
const _: () = assert!(size_of::<KernelPathRec>() == 64);

fn ah_attr(kernel: &KernelAhAttr) -> abi::AhAttr {
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: abi::Gid(kernel.dgid),
            flow_label: kernel.flow_label,
            sgid_index: kernel.sgid_index,
            hop_limit: kernel.hop_limit,
            traffic_class: kernel.traffic_class,
        },
        dlid: kernel.dlid,
        sl: kernel.sl,
        src_path_bits: kernel.src_path_bits,
        static_rate: kernel.static_rate,
        is_global: kernel.is_global,
        port_num: kernel.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut abi::AhAttr, src: *mut KernelAhAttr) {
    // SAFETY: the caller's structures.
    unsafe { *dst = ah_attr(&*src) };
}

/// `ibv_copy_qp_attr_from_kern`: everything but the state and the rate limit.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut abi::QpAttr, src: *mut KernelQpAttr) {
    // SAFETY: the caller's structures.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    dst.cur_qp_state = src.cur_qp_state;
    dst.path_mtu = src.path_mtu;
    dst.path_mig_state = src.path_mig_state;
    dst.qkey = src.qkey;
    dst.rq_psn = src.rq_psn;
    dst.sq_psn = src.sq_psn;
    dst.dest_qp_num = src.dest_qp_num;
    dst.qp_access_flags = src.qp_access_flags;
    dst.cap = src.cap;
    dst.ah_attr = ah_attr(&src.ah_attr);
    dst.alt_ah_attr = ah_attr(&src.alt_ah_attr);
    dst.pkey_index = src.pkey_index;
    dst.alt_pkey_index = src.alt_pkey_index;
    dst.en_sqd_async_notify = src.en_sqd_async_notify;
    dst.sq_draining = src.sq_draining;
    dst.max_rd_atomic = src.max_rd_atomic;
    dst.max_dest_rd_atomic = src.max_dest_rd_atomic;
    dst.min_rnr_timer = src.min_rnr_timer;
    dst.port_num = src.port_num;
    dst.timeout = src.timeout;
    dst.retry_cnt = src.retry_cnt;
    dst.rnr_retry = src.rnr_retry;
    dst.alt_port_num = src.alt_port_num;
    dst.alt_timeout = src.alt_timeout;
}

/// `ibv_copy_path_rec_from_kern`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut abi::SaPathRec, src: *mut KernelPathRec) {
    // SAFETY: the caller's structures.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = abi::SaPathRec {
        dgid: abi::Gid(src.dgid),
        sgid: abi::Gid(src.sgid),
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic as i32,
        flow_label: src.flow_label,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        reversible: src.reversible as i32,
        numb_path: src.numb_path,
        pkey: src.pkey,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        mtu: src.mtu as u8,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}

/// `ibv_copy_path_rec_to_kern`.
///
/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut KernelPathRec, src: *mut abi::SaPathRec) {
    // SAFETY: the caller's structures.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = KernelPathRec {
        dgid: src.dgid.0,
        sgid: src.sgid.0,
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic as u32,
        flow_label: src.flow_label,
        reversible: src.reversible as u32,
        mtu: u32::from(src.mtu),
        pkey: src.pkey,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        numb_path: src.numb_path,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}
