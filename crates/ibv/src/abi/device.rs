//! Devices, ports and what is asked of them.

use core::ffi::{c_char, c_int, c_uint, c_void};

use super::{Context, layout};

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
    Device 664;
    DeviceAttr 232;
    DeviceAttrEx 400 { odp_caps 240, phys_port_cnt_ex 396 };
    OdpCaps 24;
    PortAttr 56 { flags 47, active_speed_ex 52 };
    GidEntry 32;
    ValuesEx 24;
    AsyncEvent 16;
    Ece 12;
}
