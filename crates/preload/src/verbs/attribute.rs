//! QP attributes and address vectors, between C and the contract. Only members whose bit is in the mask are read.

use scalefabric_ibv::{abi, translate};
use scalefabric_verbs::{
    AccessFlags, AddressVector, Gid, MigState, Mtu, Psn, QKey, QpAttr, QpAttrMask, QpState, Qpn, VerbsError,
};

use super::answer::Outcome;

/// A path that says nothing: for members that no bit names.
const NOWHERE: AddressVector = AddressVector {
    dgid: Gid::ZERO,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    flow_label: 0,
    sl: 0,
    static_rate: 0,
    port_num: 0,
};

/// An address vector. On Ethernet there is no address but the GRH's.
pub fn address_vector(name: &str, attr: &abi::AhAttr) -> Outcome<AddressVector> {
    if attr.is_global == 0 {
        return Err(VerbsError::invalid(format!(
            "{name}.is_global is 0: RoCE has no LIDs, give the GRH with a GID (for ibv_*_pingpong: -g)"
        )));
    }
    let av = translate::address_vector(attr);
    Ok(AddressVector { flow_label: av.flow_label & 0x000f_ffff, ..av })
}

/// The other way.
pub fn ah_attr(av: &AddressVector) -> abi::AhAttr {
    abi::AhAttr { is_global: u8::from(!av.dgid.is_zero()), ..translate::ah_attr(av) }
}

fn state(name: &str, raw: u32) -> Outcome<QpState> {
    QpState::from_raw(raw).ok_or_else(|| VerbsError::invalid(format!("{name} {raw} is no state of a QP: 0 to 6")))
}

/// Bits of the mask that the contract does not have.
pub fn mask(raw: i32) -> Outcome<QpAttrMask> {
    QpAttrMask::from_bits(raw as u32)
        .ok_or_else(|| VerbsError::invalid(format!("attr_mask {raw:#x} has bits that no attribute has")))
}

/// What `ibv_modify_qp` is told.
pub fn qp_attr(attr: &abi::QpAttr, mask: QpAttrMask) -> Outcome<QpAttr> {
    let given = |bit| mask.contains(bit);
    let mut out = QpAttr {
        qp_state: QpState::Reset,
        cur_qp_state: QpState::Reset,
        path_mtu: Mtu::Mtu1024,
        path_mig_state: MigState::Migrated,
        qkey: QKey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qp_num: Qpn::new(attr.dest_qp_num),
        qp_access_flags: AccessFlags::empty(),
        cap: translate::cap_from_c(&attr.cap),
        ah_attr: NOWHERE,
        alt_ah_attr: NOWHERE,
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: false,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: 0,
    };
    if given(QpAttrMask::STATE) {
        out.qp_state = state("qp_state", attr.qp_state)?;
    }
    if given(QpAttrMask::CUR_STATE) {
        out.cur_qp_state = state("cur_qp_state", attr.cur_qp_state)?;
    }
    if given(QpAttrMask::PATH_MTU) {
        out.path_mtu = Mtu::from_raw(attr.path_mtu)
            .ok_or_else(|| VerbsError::invalid(format!("path_mtu {} is no MTU: 1 (256) to 5 (4096)", attr.path_mtu)))?;
    }
    if given(QpAttrMask::PATH_MIG_STATE) {
        out.path_mig_state = MigState::from_raw(attr.path_mig_state).ok_or_else(|| {
            VerbsError::invalid(format!("path_mig_state {} is none: 0 MIGRATED, 1 REARM, 2 ARMED", attr.path_mig_state))
        })?;
    }
    if given(QpAttrMask::ACCESS_FLAGS) {
        out.qp_access_flags = AccessFlags::from_raw(attr.qp_access_flags)?;
    }
    if given(QpAttrMask::AV) {
        out.ah_attr = address_vector("ah_attr", &attr.ah_attr)?;
    }
    if given(QpAttrMask::ALT_PATH) {
        out.alt_ah_attr = address_vector("alt_ah_attr", &attr.alt_ah_attr)?;
    }
    if given(QpAttrMask::RATE_LIMIT) {
        out.rate_limit = attr.rate_limit;
    }
    Ok(out)
}

/// What `ibv_query_qp` tells: everything but `rate_limit`, which old programs have no room for.
///
/// # Safety
/// `into` is the program's structure, of any release: `rate_limit` is behind what it may have.
pub unsafe fn tell_qp_attr(attr: &QpAttr, into: *mut abi::QpAttr) {
    let c = abi::QpAttr {
        cur_qp_state: attr.qp_state as u32,
        ah_attr: ah_attr(&attr.ah_attr),
        alt_ah_attr: ah_attr(&attr.alt_ah_attr),
        ..translate::qp_attr_to_c(attr)
    };
    let bytes = std::mem::offset_of!(abi::QpAttr, rate_limit);
    // SAFETY: every release has these bytes.
    unsafe { into.cast::<u8>().copy_from_nonoverlapping((&raw const c).cast(), bytes) };
}
