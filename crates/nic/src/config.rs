//! What a NIC is told when it is made: identity, limits, ports and the knobs of its engine. Plain data; nothing here acts.
//!
//! Limits are those that `query_device` reports, and the objects enforce exactly them.

use scalefabric_transport as transport;

use crate::congestion::Congestion;
use crate::personality::Rules;
use crate::polling::Polling;
use scalefabric_verbs::{
    AtomicCap, DeviceAttr, DeviceInfo, Gid, Mtu, OdpCaps, OdpFlags, OdpTransport, PKey, PortState,
};

/// One port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Name of the network interface.
    pub interface: String,
    /// Its index; 0 if there is none (a simulated wire).
    pub ifindex: u32,
    /// GIDs from index 0 on; [`Gid::ZERO`] leaves a slot empty. More come and go by `PortChange`.
    pub gids: Vec<Gid>,
    /// Slots of the GID table. Default 128, at most 256. Too few: further addresses get no index (logged by `io`).
    pub gid_table_len: u32,
    /// P_Keys. Default one: 0xFFFF. Length is the table's length.
    pub pkeys: Vec<PKey>,
    /// The largest path MTU that fits the interface. Default 4096.
    pub active_mtu: Mtu,
    /// State at the start. Default ACTIVE.
    pub state: PortState,
    /// Mb/s as the interface tells, 0 if it does not.
    pub speed_mbps: u32,
}

impl PortConfig {
    /// An active port of 4096-byte MTU with these GIDs.
    pub fn new(interface: impl Into<String>, gids: Vec<Gid>) -> Self {
        Self {
            interface: interface.into(),
            ifindex: 0,
            gids,
            gid_table_len: 128,
            pkeys: vec![PKey::DEFAULT],
            active_mtu: Mtu::Mtu4096,
            state: PortState::Active,
            speed_mbps: 0,
        }
    }
}

/// How much the engine does in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Datagrams taken from each port in a turn. Default 256. Small: more turns for the same work; large: ACKs wait.
    pub receive: usize,
    /// Ports are not asked for datagrams if they were asked less than this ago, ns. Default 0: each turn asks. Large:
    /// turns are cheaper, and what came in waits.
    pub receive_gap_ns: u64,
    /// Packets that one QP sends before the next one has its chance. Default 128, so that a whole train fits.
    pub transmit_per_qp: usize,
    /// QPs served in a turn. Default 64.
    pub qps: usize,
    /// ACKs for what this turn takes in wait for the next turn, unless much has come. Default false. True for callers that
    /// poll: they see the data first, and what they post then leaves in one train with the ACK.
    pub hold_acks: bool,
}

impl Budget {
    /// What a turn has when it runs inside `post_send`: enough for what was just posted, not enough to keep the caller. Who
    /// posts and polls in turn has just asked the ports (a system call each); who only posts still takes in ACKs, every 20 µs: some
    /// four lists of 32.
    pub const INLINE: Self =
        Self { receive: 64, receive_gap_ns: 20_000, transmit_per_qp: 128, qps: 4, hold_acks: false };
}

impl Default for Budget {
    fn default() -> Self {
        Self { receive: 256, receive_gap_ns: 0, transmit_per_qp: 128, qps: 64, hold_acks: false }
    }
}

/// A NIC.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Name, GUID and interfaces.
    pub device: DeviceInfo,
    /// Limits and identity; `phys_port_cnt` is set from `ports`.
    pub attr: DeviceAttr,
    /// Ports, the first is port 1.
    pub ports: Vec<PortConfig>,
    /// The process's slot: the upper 8 bits of its QPNs. 1 to 254; default 1.
    pub slot: u8,
    /// The transport's knobs.
    pub transport: transport::Config,
    /// Which QPs get which congestion controller. Default: none gets one.
    pub congestion: Congestion,
    /// Whether an IPv4 identification that was not predicted is solved for when the ICRC is checked. Default true: rxe and
    /// hardware send IDs that a UDP socket does not show. False: their packets are dropped as `BadIcrc`.
    pub solve_ip_ids: bool,
    /// Bytes that the requests of all QPs may have under way to one destination; the next ones wait until some come back. Default: no limit but each
    /// QP's own. Too small: idle between ACKs; too large: many QPs together overrun the receive buffer that they share.
    pub window_bytes: u64,
    /// Bytes that wait for a blocked port, at most. Default 256 KiB a port; at least one train is held.
    pub staged_bytes: usize,
    /// Budget of a turn.
    pub budget: Budget,
    /// How whoever waits passes the time.
    pub polling: Polling,
    /// What it refuses beyond its numbers. Default: nothing.
    pub rules: Rules,
    /// Completions that become visible together, as on NICs that write several CQEs at once. Default 1: each by itself.
    /// More: a program must not count on seeing a completion alone.
    pub completion_batch: u32,
    /// How long a completion waits for the rest of its batch, ns. Default 2000. Looked at when the engine turns.
    pub completion_batch_ns: u64,
    /// Seed for the first QP index, so that a new process does not reuse the numbers of the last one. Default 0.
    pub seed: u64,
}

impl NicConfig {
    /// A device with default limits.
    pub fn new(name: impl Into<String>, ports: Vec<PortConfig>) -> Self {
        let name = name.into();
        let interfaces = ports.iter().map(|p| p.interface.clone()).collect();
        // Locally administered EUI-64 from the name: stable, and different for each device of a host.
        let guid = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        let guid = (guid & 0x00ff_ffff_ffff_ffff) | 0x0200_0000_0000_0000;
        Self {
            attr: default_attr(guid, ports.len() as u8),
            device: DeviceInfo { name, node_guid: guid, index: 0, interfaces },
            ports,
            slot: 1,
            transport: transport::Config::default(),
            congestion: Congestion::default(),
            solve_ip_ids: true,
            window_bytes: u64::MAX,
            staged_bytes: 256 << 10,
            budget: Budget::default(),
            polling: Polling::default(),
            rules: Rules::default(),
            completion_batch: 1,
            completion_batch_ns: 2_000,
            seed: 0,
        }
    }
}

/// `enum ibv_device_cap_flags`: BAD_PKEY_CNTR, BAD_QKEY_CNTR, AUTO_PATH_MIG, CURR_QP_STATE_MOD, PORT_ACTIVE_EVENT,
/// SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, MEM_WINDOW, XRC, MEM_MGT_EXTENSIONS (LOCAL_INV and SEND with invalidate),
/// MEM_WINDOW_TYPE_2B, and UD_AV_PORT_ENFORCE. Not claimed: RESIZE_MAX_WR.
const CAPABILITIES: u32 = {
    let bits = [1, 2, 4, 6, 7, 10, 11, 12, 13, 17, 20, 21, 24];
    let (mut flags, mut i) = (0, 0);
    while i < bits.len() {
        flags |= 1 << bits[i];
        i += 1;
    }
    flags
};

/// Memory is never pinned, so every operation works on what is mapped at that moment.
const ON_DEMAND: OdpCaps = {
    use OdpTransport as T;
    let datagram = T::SEND.union(T::RECV).union(T::SRQ_RECV);
    let unreliable = datagram.union(T::WRITE);
    let reliable = unreliable.union(T::READ).union(T::ATOMIC).union(T::FLUSH).union(T::ATOMIC_WRITE);
    OdpCaps {
        general: OdpFlags::SUPPORT.union(OdpFlags::SUPPORT_IMPLICIT),
        rc: reliable,
        uc: unreliable,
        ud: datagram,
        xrc: reliable,
    }
};

/// The limits of a device that nobody configured. Large and truthful: queues grow with use, not with these numbers.
pub fn default_attr(guid: u64, ports: u8) -> DeviceAttr {
    DeviceAttr {
        fw_ver: env!("CARGO_PKG_VERSION").into(),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: 1 << 47,
        page_size_cap: 0xffff_f000,
        // The vendor part is chosen so that no client takes us for hardware whose private interface it knows.
        vendor_id: 0x00ff_ffff,
        vendor_part_id: 4096,
        hw_ver: 1,
        max_qp: 32_768,
        max_qp_wr: 32_768,
        device_cap_flags: CAPABILITIES,
        max_sge: 32,
        max_sge_rd: 32,
        max_cq: 65_536,
        max_cqe: 1 << 20,
        max_mr: 1 << 20,
        max_pd: 65_536,
        max_qp_rd_atom: 128,
        max_ee_rd_atom: 0,
        max_res_rd_atom: 128 * 32_768,
        max_qp_init_rd_atom: 128,
        max_ee_init_rd_atom: 0,
        atomic_cap: AtomicCap::Glob,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 1 << 20,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 8_192,
        max_mcast_qp_attach: 256,
        max_total_mcast_qp_attach: 8_192 * 256,
        max_ah: 1 << 20,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 32_768,
        max_srq_wr: 1 << 18,
        max_srq_sge: 32,
        max_pkeys: 128,
        local_ca_ack_delay: 15,
        phys_port_cnt: ports,
        max_inline_data: 1024,
        num_comp_vectors: 8,
        max_dm_size: 256 << 20,
        odp: ON_DEMAND,
        // The raw clock is CLOCK_MONOTONIC in ns.
        hca_core_clock: 1_000_000,
        completion_timestamp_mask: u64::MAX,
        max_cq_count: u16::MAX,
        max_cq_period: u16::MAX,
        // What the pacer can express: kb/s, and the MTU's time at 1 kb/s is still a time.
        rate_limit_min: 1,
        rate_limit_max: u32::MAX,
    }
}
