//! Attributes, GIDs and completions between the contract and C. Numbers are the same in both; what differs is byte order,
//! optional fields and enumerations that C may hold any number in.

use scalefabric_verbs::{
    AccessFlags, AddressVector, AtomicCap, DeviceAttr, Gid, GidType, MigState, Mtu, OdpCaps, OdpFlags, OdpTransport,
    PortAttr, PortState, Psn, QKey, QpAttr, QpCap, QpState, Qpn, RKey, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};

use crate::abi;
use crate::library::text;

pub(crate) fn gid(gid: Gid) -> abi::Gid {
    abi::Gid(gid.0)
}

fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn mtu(raw: u32) -> Mtu {
    Mtu::from_raw(raw).unwrap_or(if raw > 5 { Mtu::Mtu4096 } else { Mtu::Mtu256 })
}

/// What `query_device` gave, and what `query_device_ex` gave, where it is there.
pub(crate) fn device_attr(ex: &abi::DeviceAttrEx, num_comp_vectors: u32, max_inline_data: u32) -> DeviceAttr {
    let attr = &ex.orig_attr;
    let odp = &ex.odp_caps;
    DeviceAttr {
        fw_ver: text(&attr.fw_ver),
        node_guid: u64::from_be(attr.node_guid),
        sys_image_guid: u64::from_be(attr.sys_image_guid),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags,
        max_sge: count(attr.max_sge),
        max_sge_rd: count(attr.max_sge_rd),
        max_cq: count(attr.max_cq),
        max_cqe: count(attr.max_cqe),
        max_mr: count(attr.max_mr),
        max_pd: count(attr.max_pd),
        max_qp_rd_atom: count(attr.max_qp_rd_atom),
        max_ee_rd_atom: count(attr.max_ee_rd_atom),
        max_res_rd_atom: count(attr.max_res_rd_atom),
        max_qp_init_rd_atom: count(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: count(attr.max_ee_init_rd_atom),
        atomic_cap: match attr.atomic_cap {
            0 => AtomicCap::None,
            1 => AtomicCap::Hca,
            _ => AtomicCap::Glob,
        },
        max_ee: count(attr.max_ee),
        max_rdd: count(attr.max_rdd),
        max_mw: count(attr.max_mw),
        max_raw_ipv6_qp: count(attr.max_raw_ipv6_qp),
        max_raw_ethy_qp: count(attr.max_raw_ethy_qp),
        max_mcast_grp: count(attr.max_mcast_grp),
        max_mcast_qp_attach: count(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: count(attr.max_total_mcast_qp_attach),
        max_ah: count(attr.max_ah),
        max_fmr: count(attr.max_fmr),
        max_map_per_fmr: count(attr.max_map_per_fmr),
        max_srq: count(attr.max_srq),
        max_srq_wr: count(attr.max_srq_wr),
        max_srq_sge: count(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
        max_inline_data,
        num_comp_vectors,
        max_dm_size: ex.max_dm_size,
        odp: OdpCaps {
            general: OdpFlags::from_bits_truncate(odp.general_caps),
            rc: OdpTransport::from_bits_truncate(odp.rc_odp_caps),
            uc: OdpTransport::from_bits_truncate(odp.uc_odp_caps),
            ud: OdpTransport::from_bits_truncate(odp.ud_odp_caps),
            xrc: OdpTransport::from_bits_truncate(ex.xrc_odp_caps),
        },
        hca_core_clock: ex.hca_core_clock,
        completion_timestamp_mask: ex.completion_timestamp_mask,
        max_cq_count: ex.cq_mod_caps.max_cq_count,
        max_cq_period: ex.cq_mod_caps.max_cq_period,
        rate_limit_min: ex.packet_pacing_caps.qp_rate_limit_min,
        rate_limit_max: ex.packet_pacing_caps.qp_rate_limit_max,
    }
}

/// Mb/s of a lane by `active_speed`, times lanes by `active_width`.
fn speed(attr: &abi::PortAttr) -> u32 {
    let lane = match attr.active_speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match attr.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lane * lanes
}

pub(crate) fn port_attr(attr: &abi::PortAttr) -> PortAttr {
    PortAttr {
        state: PortState::from_raw(attr.state).unwrap_or_default(),
        max_mtu: mtu(attr.max_mtu),
        active_mtu: mtu(attr.active_mtu),
        gid_tbl_len: count(attr.gid_tbl_len),
        port_cap_flags: attr.port_cap_flags,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state,
        link_layer: attr.link_layer,
        port_cap_flags2: attr.port_cap_flags2,
        active_speed_ex: speed(attr),
    }
}

pub(crate) fn gid_type(raw: u32) -> GidType {
    match raw {
        0 => GidType::Ib,
        1 => GidType::RoceV1,
        _ => GidType::RoceV2,
    }
}

/// An address vector to C. A path is always global here.
pub fn ah_attr(av: &AddressVector) -> abi::AhAttr {
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: gid(av.dgid),
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: 0,
        sl: av.sl,
        src_path_bits: 0,
        static_rate: av.static_rate,
        is_global: 1,
        port_num: av.port_num,
    }
}

/// An address vector from C, as it stands: whether it has a GRH (`is_global`) is not looked at.
pub fn address_vector(attr: &abi::AhAttr) -> AddressVector {
    AddressVector {
        dgid: Gid(attr.grh.dgid.0),
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
        sl: attr.sl,
        static_rate: attr.static_rate,
        port_num: attr.port_num,
    }
}

/// Queue sizes to C.
pub fn cap_to_c(cap: &QpCap) -> abi::QpCap {
    abi::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Queue sizes from C.
pub fn cap_from_c(cap: &abi::QpCap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// QP attributes to C, `rate_limit`, which old programs have no room for, included.
pub fn qp_attr_to_c(attr: &QpAttr) -> abi::QpAttr {
    abi::QpAttr {
        qp_state: attr.qp_state as u32,
        cur_qp_state: attr.cur_qp_state as u32,
        path_mtu: attr.path_mtu as u32,
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qp_num.get(),
        qp_access_flags: attr.qp_access_flags.bits(),
        cap: cap_to_c(&attr.cap),
        ah_attr: ah_attr(&attr.ah_attr),
        alt_ah_attr: ah_attr(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// From C. A number that no state has is ERR: such a QP is of no use.
pub(crate) fn qp_state(raw: u32) -> QpState {
    QpState::from_raw(raw).unwrap_or(QpState::Err)
}

pub(crate) fn qp_attr_from_c(attr: &abi::QpAttr) -> QpAttr {
    QpAttr {
        qp_state: qp_state(attr.qp_state),
        cur_qp_state: qp_state(attr.cur_qp_state),
        path_mtu: mtu(attr.path_mtu),
        path_mig_state: MigState::from_raw(attr.path_mig_state).unwrap_or_default(),
        qkey: QKey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qp_num: Qpn::new(attr.dest_qp_num),
        qp_access_flags: AccessFlags::from_bits_truncate(attr.qp_access_flags),
        cap: cap_from_c(&attr.cap),
        ah_attr: address_vector(&attr.ah_attr),
        alt_ah_attr: address_vector(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// A status that the standard does not have is a general error.
pub(crate) fn wc_status(raw: u32) -> WcStatus {
    match raw {
        raw if raw < 24 => scalefabric_verbs::work_completion::STATUSES[raw as usize].status,
        _ => WcStatus::GeneralErr,
    }
}

/// From C. `opcode` of a failed completion may be anything; what is none becomes SEND or RECV by its receive bit.
pub(crate) fn completion(wc: &abi::Wc) -> WorkCompletion {
    let opcode = WcOpcode::from_raw(wc.opcode);
    let opcode = opcode.unwrap_or(if wc.opcode & 128 != 0 { WcOpcode::Recv } else { WcOpcode::Send });
    let flags = WcFlags::from_bits_truncate(wc.wc_flags);
    WorkCompletion {
        wr_id: wc.wr_id,
        status: wc_status(wc.status),
        opcode,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm: if flags.contains(WcFlags::WITH_IMM) { u32::from_be(wc.imm_data) } else { 0 },
        invalidated_rkey: RKey(if flags.contains(WcFlags::WITH_INV) { wc.imm_data } else { 0 }),
        qp_num: Qpn::new(wc.qp_num),
        src_qp: Qpn::new(wc.src_qp),
        flags,
        pkey_index: wc.pkey_index,
        sl: wc.sl,
        timestamp_ns: 0,
    }
}

/// To C, as far as an answer to a datagram needs it.
pub(crate) fn completion_to_c(wc: &WorkCompletion) -> abi::Wc {
    abi::Wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode.to_raw(),
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data: wc.imm.to_be(),
        qp_num: wc.qp_num.get(),
        src_qp: wc.src_qp.get(),
        wc_flags: wc.flags.bits(),
        pkey_index: wc.pkey_index,
        slid: 0,
        sl: wc.sl,
        dlid_path_bits: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_way_to_c_and_back() {
        let av = AddressVector {
            dgid: Gid::from_ip("10.1.2.3".parse().expect("an address")),
            sgid_index: 3,
            hop_limit: 5,
            traffic_class: 106,
            flow_label: 0xabcde,
            sl: 3,
            static_rate: 2,
            port_num: 2,
        };
        let attr = QpAttr {
            qp_state: QpState::Rts,
            cur_qp_state: QpState::Rtr,
            path_mtu: Mtu::Mtu4096,
            path_mig_state: MigState::Rearm,
            qkey: QKey(0x1234),
            rq_psn: Psn::new(7),
            sq_psn: Psn::new(8),
            dest_qp_num: Qpn::new(9),
            qp_access_flags: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
            ah_attr: av,
            alt_ah_attr: AddressVector { sgid_index: 4, ..av },
            pkey_index: 1,
            alt_pkey_index: 2,
            en_sqd_async_notify: true,
            max_rd_atomic: 11,
            max_dest_rd_atomic: 12,
            min_rnr_timer: 13,
            port_num: 2,
            timeout: 14,
            retry_cnt: 5,
            rnr_retry: 6,
            alt_port_num: 1,
            alt_timeout: 15,
            rate_limit: 16,
            ..QpAttr::default()
        };
        assert_eq!(qp_attr_from_c(&qp_attr_to_c(&attr)), attr);
    }

    #[test]
    fn immediates_change_their_byte_order_and_rkeys_do_not() {
        let mut wc = completion_to_c(&WorkCompletion::default());
        wc.imm_data = 0x0102_0304_u32.to_be();
        wc.wc_flags = WcFlags::WITH_IMM.bits();
        assert_eq!(completion(&wc).imm, 0x0102_0304);
        wc.imm_data = 0x0102_0304;
        wc.wc_flags = WcFlags::WITH_INV.bits();
        assert_eq!(completion(&wc).invalidated_rkey, RKey(0x0102_0304));
    }

    #[test]
    fn numbers_that_nobody_knows_do_not_break() {
        let mut wc = completion_to_c(&WorkCompletion::default());
        (wc.status, wc.opcode) = (99, 0xffff_ffff);
        assert_eq!((completion(&wc).status, completion(&wc).opcode), (WcStatus::GeneralErr, WcOpcode::Recv));
        assert_eq!(qp_state(77), QpState::Err);
        assert_eq!(count(-1), 0);
    }
}
