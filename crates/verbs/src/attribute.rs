//! Attributes: what can be asked of or told to a device, a port, a GID and a QP.

use alloc::string::String;
use bitflags::bitflags;
use scalefabric_wire::{Gid, Psn, QKey, Qpn};

use crate::access::AccessFlags;
use crate::on_demand::OdpCaps;
use crate::state::{QpState, QpType};

bitflags! {
    /// Which fields of [`QpAttr`] are meant, bit for bit `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QpAttrMask: u32 {
        /// `qp_state`: go to this state. Without it attributes change and the state stays.
        const STATE = 1;
        /// `cur_qp_state`: fail unless the QP is in this state.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`, the primary path.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout` together: the alternate path.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`. Refused by `modify`: queue sizes are fixed when the QP is made.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`: on the way to RTS and in RTS.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Path MTU in bytes of payload (clause 9.6). Values are those of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Mtu {
    Mtu256 = 1,
    Mtu512 = 2,
    Mtu1024 = 3,
    Mtu2048 = 4,
    Mtu4096 = 5,
}

impl Mtu {
    /// All, from the smallest.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// The MTU of a number of `enum ibv_mtu`, 1 to 5.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        if raw >= 1 && raw <= 5 { Some(Self::ALL[raw as usize - 1]) } else { None }
    }

    /// The MTU of exactly so many bytes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::Mtu256),
            512 => Some(Self::Mtu512),
            1024 => Some(Self::Mtu1024),
            2048 => Some(Self::Mtu2048),
            4096 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// Bytes of payload: 256 to 4096.
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }
}

/// Path migration state (clause 10.4, 17.2.8). Values are those of `enum ibv_mig_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum MigState {
    /// Nothing is armed: the state after RESET, and after a migration.
    #[default]
    Migrated = 0,
    /// This side has loaded an alternate path and waits for its peer to do the same.
    Rearm = 1,
    /// Both sides are ready: either may migrate. Only the channel itself sets it.
    Armed = 2,
}

impl MigState {
    /// The state of a number of `enum ibv_mig_state`.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Migrated),
            1 => Some(Self::Rearm),
            2 => Some(Self::Armed),
            _ => None,
        }
    }

    /// Name as libibverbs spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Migrated => "MIGRATED",
            Self::Rearm => "REARM",
            Self::Armed => "ARMED",
        }
    }
}

/// Address vector: where packets go and what their IP header says (`ibv_ah_attr` with its GRH, always global in RoCE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// IP TTL or hop limit. Default 64; 0 is sent as 64, since IP would not survive it.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; also the seed of the UDP source port when not 0.
    pub flow_label: u32,
    /// Service level, 0 to 7 of meaning in RoCE (priority).
    pub sl: u8,
    /// Static rate limit, `enum ibv_rate`; 0 none.
    pub static_rate: u8,
    /// Local port, from 1.
    pub port_num: u8,
}

/// Sizes of a QP's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct QpCap {
    /// Outstanding send WRs.
    pub max_send_wr: u32,
    /// Outstanding receive WRs.
    pub max_recv_wr: u32,
    /// SGEs in a send WR.
    pub max_send_sge: u32,
    /// SGEs in a receive WR.
    pub max_recv_sge: u32,
    /// Bytes of inline data in a send WR.
    pub max_inline_data: u32,
}

/// All of `ibv_qp_attr`. Which fields count is said by a [`QpAttrMask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State to go to, or that it is in.
    pub qp_state: QpState,
    /// State the caller believes it is in.
    pub cur_qp_state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Migration state.
    pub path_mig_state: MigState,
    /// Q_Key of a UD QP.
    pub qkey: QKey,
    /// PSN expected of the peer's first packet.
    pub rq_psn: Psn,
    /// PSN of our first packet.
    pub sq_psn: Psn,
    /// The peer's QP.
    pub dest_qp_num: Qpn,
    /// What the peer may do through this QP.
    pub qp_access_flags: AccessFlags,
    /// Queue sizes (modifiable only where the device says so).
    pub cap: QpCap,
    /// Primary path.
    pub ah_attr: AddressVector,
    /// Alternate path.
    pub alt_ah_attr: AddressVector,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Index of the alternate path's P_Key.
    pub alt_pkey_index: u16,
    /// Raise SQ_DRAINED when drained.
    pub en_sqd_async_notify: bool,
    /// Read-only: SQD and still draining.
    pub sq_draining: bool,
    /// READs and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code we send, 0 to 31 (table 45 of clause 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// Primary port, from 1.
    pub port_num: u8,
    /// Local ACK timeout: 4.096 µs x 2^timeout, 0 to 31, 0 = infinite.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 7, 7 = for ever.
    pub rnr_retry: u8,
    /// Alternate port.
    pub alt_port_num: u8,
    /// Timeout on the alternate path.
    pub alt_timeout: u8,
    /// Egress rate limit in kb/s, 0 = none.
    pub rate_limit: u32,
}

/// What `query_qp` also tells and `create_qp` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInitInfo {
    /// Type.
    pub qp_type: QpType,
    /// Sizes.
    pub cap: QpCap,
    /// Every send WR makes a completion.
    pub sq_sig_all: bool,
}

/// State of a port. Values are those of `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum PortState {
    /// No state change: a value of requests, never of a port.
    Nop = 0,
    /// No link.
    #[default]
    Down = 1,
    /// Link, no subnet manager yet (InfiniBand).
    Init = 2,
    /// Configured, not active yet (InfiniBand).
    Armed = 3,
    /// Packets pass.
    Active = 4,
    /// Active, link lost for a moment (InfiniBand).
    ActiveDefer = 5,
}

impl PortState {
    /// The state of a number of `enum ibv_port_state`.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Init,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDefer,
            _ => return None,
        })
    }

    /// Text of `ibv_port_state_str`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nop => "no state change (NOP)",
            Self::Down => "down",
            Self::Init => "init",
            Self::Armed => "armed",
            Self::Active => "active",
            Self::ActiveDefer => "active defer",
        }
    }
}

/// Kind of a node. Values are those of `enum ibv_node_type`; a RoCE NIC is a channel adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum NodeType {
    /// Unknown kind.
    Unknown = -1,
    /// Channel adapter: InfiniBand and RoCE NICs.
    Ca = 1,
    /// InfiniBand switch.
    Switch = 2,
    /// InfiniBand router.
    Router = 3,
    /// iWARP NIC.
    Rnic = 4,
    /// Cisco usNIC.
    Usnic = 5,
    /// Cisco usNIC over UDP.
    UsnicUdp = 6,
    /// Not one of these (EFA).
    Unspecified = 7,
}

impl NodeType {
    /// Text of `ibv_node_type_str`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ca => "InfiniBand channel adapter",
            Self::Switch => "InfiniBand switch",
            Self::Router => "InfiniBand router",
            Self::Rnic => "iWARP NIC",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC UDP",
            Self::Unspecified => "unspecified",
        }
    }
}

/// Text of a physical port state as `ibv_devinfo` prints it: 3 is disabled, 5 is link up.
pub const fn phys_state_str(phys_state: u8) -> &'static str {
    match phys_state {
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        4 => "PORT_CONFIGURATION TRAINNING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVERY",
        7 => "PHY TEST",
        _ => "invalid physical state",
    }
}

/// Text of a link layer as `ibv_devinfo` prints it: 0 is unspecified, 1 InfiniBand, 2 Ethernet.
pub const fn link_layer_str(link_layer: u8) -> &'static str {
    match link_layer {
        0 => "Unspecified",
        1 => "InfiniBand",
        2 => "Ethernet",
        _ => "Unknown",
    }
}

/// `ibv_port_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortAttr {
    pub state: PortState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub gid_tbl_len: u32,
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
    /// `IBV_LINK_LAYER_*`: 2 is Ethernet, always.
    pub link_layer: u8,
    pub port_cap_flags2: u16,
    /// Mb/s, from the interface where it tells.
    pub active_speed_ex: u32,
}

/// Type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidType {
    /// InfiniBand.
    Ib = 0,
    /// RoCE over Ethernet frames (not spoken here).
    RoceV1 = 1,
    /// RoCE over UDP.
    RoceV2 = 2,
}

impl GidType {
    /// Text as in sysfs' `gid_attrs/types`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ib | Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

/// One entry of a GID table (`ibv_gid_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index; stays while the GID exists.
    pub gid_index: u32,
    /// Port, from 1.
    pub port_num: u8,
    /// Always RoCEv2 here.
    pub gid_type: GidType,
    /// Index of the network interface.
    pub ndev_ifindex: u32,
    /// Name of the network interface.
    pub ndev_name: String,
}

/// Atomicity of atomics. Values are those of `enum ibv_atomic_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum AtomicCap {
    /// No atomics.
    #[default]
    None = 0,
    /// Atomic among the QPs of one device.
    Hca = 1,
    /// Atomic with every other access to the memory, the processor's included.
    Glob = 2,
}

impl AtomicCap {
    /// Name as `ibv_devinfo` prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "ATOMIC_NONE",
            Self::Hca => "ATOMIC_HCA",
            Self::Glob => "ATOMIC_GLOB",
        }
    }
}

impl Default for PortAttr {
    /// A RoCE port that is down: link layer Ethernet, MTU 1024, one P_Key, no GIDs.
    fn default() -> Self {
        Self {
            state: PortState::Down,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu1024,
            gid_tbl_len: 0,
            port_cap_flags: 0,
            max_msg_sz: 1 << 31,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: 1,
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width: 1,
            active_speed: 1,
            phys_state: 3,
            link_layer: 2,
            port_cap_flags2: 0,
            active_speed_ex: 0,
        }
    }
}

/// `ibv_device_attr` with the parts of `ibv_device_attr_ex` that have a meaning here. The default has all limits 0 and no
/// atomics: a backend says what it has, and what it does not mention it does not have.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct DeviceAttr {
    pub fw_ver: String,
    /// EUI-64, network order.
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ee_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub max_ee_init_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    pub max_ee: u32,
    pub max_rdd: u32,
    pub max_mw: u32,
    pub max_raw_ipv6_qp: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    pub max_fmr: u32,
    pub max_map_per_fmr: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    /// Inline bytes a QP can have.
    pub max_inline_data: u32,
    /// Completion vectors.
    pub num_comp_vectors: u32,
    /// Bytes of device memory that `alloc_dm` can give out in all; 0: it has none.
    pub max_dm_size: u64,
    /// What on-demand paging can do.
    pub odp: OdpCaps,
    /// Frequency of the raw clock in kHz; 0: completions carry no timestamps. 1,000,000 means that it counts ns.
    pub hca_core_clock: u64,
    /// Bits of a completion's timestamp that count.
    pub completion_timestamp_mask: u64,
    /// CQ moderation: completions that one event can wait for, at most. 0: `modify_moderation` is EOPNOTSUPP.
    pub max_cq_count: u16,
    /// CQ moderation: microseconds that an event can be put off, at most.
    pub max_cq_period: u16,
    /// Egress rate limits that a QP can have, kb/s; 0 and 0: none (`modify_rate_limit` is EOPNOTSUPP).
    pub rate_limit_min: u32,
    /// See `rate_limit_min`.
    pub rate_limit_max: u32,
}
