//! Devices, ports and what is asked of them.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::{Context, layout, layouts};

#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceOps {
    pub dummy1: Option<unsafe extern "C" fn(*mut Device, c_int) -> *mut Context>,
    pub dummy2: Option<unsafe extern "C" fn(*mut Context)>,
}

/// `struct ibv_device`. Provider libraries read the word behind it (`verbs_device.ops`): leave zeroed room.
#[repr(C)]
pub struct Device {
    pub ops: DeviceOps,
    pub node_type: i32,
    pub transport_type: i32,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    /// Big-endian.
    pub node_guid: u64,
    /// Big-endian.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: u32,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct OdpCaps {
    pub general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct TsoCaps {
    pub max_tso: u32,
    pub supported_qpts: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct RssCaps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct PacketPacingCaps {
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub supported_qpts: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct TmCaps {
    pub max_rndv_hdr_size: u32,
    pub max_num_tags: u32,
    pub flags: u32,
    pub max_ops: u32,
    pub max_sge: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CqModerationCaps {
    pub max_cq_count: u16,
    pub max_cq_period: u16,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct PciAtomicCaps {
    pub fetch_add: u16,
    pub swap: u16,
    pub compare_swap: u16,
}

/// `struct ibv_device_attr_ex`: the caller says how much of it there is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceAttrEx {
    pub orig_attr: DeviceAttr,
    pub comp_mask: u32,
    pub odp_caps: OdpCaps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub tso_caps: TsoCaps,
    pub rss_caps: RssCaps,
    pub max_wq_type_rq: u32,
    pub packet_pacing_caps: PacketPacingCaps,
    pub raw_packet_caps: u32,
    pub tm_caps: TmCaps,
    pub cq_mod_caps: CqModerationCaps,
    pub max_dm_size: u64,
    pub pci_atomic_caps: PciAtomicCaps,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}

#[repr(C)]
pub struct QueryDeviceExInput {
    pub comp_mask: u32,
}

/// `struct ibv_port_attr` of v49 on. The *symbol* `ibv_query_port` writes its first 48 bytes only.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

#[repr(C)]
pub struct ValuesEx {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}

#[repr(C)]
pub struct AsyncEvent {
    pub element: AsyncElement,
    pub event_type: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub union AsyncElement {
    pub object: *mut c_void,
    pub port_num: c_int,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}

layout! {
    ibv_device = Device { _ops = ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path };
    ibv_device_attr = DeviceAttr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
        max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
        max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
        max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
        max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt,
    };
    ibv_odp_caps = OdpCaps {
        general_caps, per_transport_caps.rc_odp_caps = rc_odp_caps, per_transport_caps.uc_odp_caps = uc_odp_caps,
        per_transport_caps.ud_odp_caps = ud_odp_caps,
    };
    ibv_tso_caps = TsoCaps { max_tso, supported_qpts };
    ibv_rss_caps = RssCaps {
        supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size, rx_hash_fields_mask,
        rx_hash_function,
    };
    ibv_packet_pacing_caps = PacketPacingCaps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts };
    ibv_tm_caps = TmCaps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge };
    ibv_cq_moderation_caps = CqModerationCaps { max_cq_count, max_cq_period };
    ibv_pci_atomic_caps = PciAtomicCaps { fetch_add, swap, compare_swap };
    ibv_device_attr_ex = DeviceAttrEx {
        orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps,
        rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
        pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex,
    };
    ibv_query_device_ex_input = QueryDeviceExInput { comp_mask };
    ibv_port_attr = PortAttr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
        pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
        active_speed, phys_state, link_layer, flags, port_cap_flags2, active_speed_ex,
    };
    ibv_gid_entry = GidEntry { gid, gid_index, port_num, gid_type, ndev_ifindex };
    ibv_values_ex = ValuesEx { comp_mask, raw_clock };
    ibv_async_event = AsyncEvent { element, event_type };
    ibv_ece = Ece { vendor_id, options, comp_mask };
}
