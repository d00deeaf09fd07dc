//! The connection manager device of the kernel, `/dev/infiniband/rdma_cm`: the structs of its commands and answers as
//! `rdma/rdma_user_cm.h` lays them out, version 4 (v28 to v65), without their header. Our emulation of the device reads them, and our
//! librdmacm writes them.

/// Number of the interface.
pub const ABI_VERSION: u32 = 4;

/// Address family of `sockaddr_ib`.
pub const AF_IB: u16 = 27;

/// Declares the commands with their numbers.
macro_rules! commands {
    ($( $name:ident = $number:literal )*) => {
        /// Number of a command.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Command { $( $name = $number ),* }

        impl Command {
            /// The command of a number.
            pub const fn from_raw(raw: u32) -> Option<Self> {
                match raw {
                    $( $number => Some(Self::$name), )*
                    _ => None,
                }
            }
        }
    };
}

commands! {
    CreateId = 0
    DestroyId = 1
    BindIp = 2
    ResolveIp = 3
    ResolveRoute = 4
    QueryRoute = 5
    Connect = 6
    Listen = 7
    Accept = 8
    Reject = 9
    Disconnect = 10
    InitQpAttr = 11
    GetEvent = 12
    GetOption = 13
    SetOption = 14
    Notify = 15
    JoinIpMcast = 16
    LeaveMcast = 17
    MigrateId = 18
    Query = 19
    Bind = 20
    ResolveAddr = 21
    JoinMcast = 22
    ResolveIbService = 23
    WriteCmEvent = 24
}

/// A struct of plain numbers.
///
/// # Safety
/// `repr(C)`, every bit pattern is a value, no padding.
pub unsafe trait Plain: Copy + 'static {
    /// From the first bytes of `bytes`; none if there are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: there are enough bytes, and by the trait any bytes are a value.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }

    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the trait there is no padding, so that each byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast::<u8>(), size_of::<Self>()) }
    }

    /// All zeros.
    fn zeroed() -> Self {
        // SAFETY: by the trait zeros are a value.
        unsafe { std::mem::zeroed() }
    }
}

/// Declares structs and checks their size. That the fields' sizes add up to it shows that there is no padding.
macro_rules! structs {
    ($( $(#[$meta:meta])* $name:ident [$size:literal] { $( $field:ident: $type:ty ),* $(,)? } )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $( pub $field: $type ),* }

        const _: () = assert!(size_of::<$name>() == $size && $( size_of::<$type>() + )* 0 == $size);

        // SAFETY: numbers and arrays of numbers in C's order; the assertion shows that there is no padding.
        unsafe impl Plain for $name {}
    )* };
}

structs! {
    /// Before every command: its number, the bytes that follow, the bytes that the response may have.
    Header [8] { cmd: u32, size_in: u16, size_out: u16 }
    /// CREATE_ID.
    CreateId [24] { uid: u64, response: u64, ps: u16, qp_type: u8, reserved: [u8; 5] }
    /// DESTROY_ID and LEAVE_MCAST.
    DestroyId [16] { response: u64, id: u32, reserved: u32 }
    /// Response of CREATE_ID and JOIN_*: the new number; of DESTROY_ID, LEAVE_MCAST and MIGRATE_ID: events reported.
    Word [4] { value: u32 }
    /// BIND_IP.
    BindIp [40] { response: u64, addr: [u8; 28], id: u32 }
    /// BIND.
    Bind [136] { id: u32, addr_size: u16, reserved: u16, addr: [u8; 128] }
    /// RESOLVE_IP.
    ResolveIp [64] { src_addr: [u8; 28], dst_addr: [u8; 28], id: u32, timeout_ms: u32 }
    /// RESOLVE_ADDR.
    ResolveAddr [272] {
        id: u32, timeout_ms: u32, src_size: u16, dst_size: u16, reserved: u32, src_addr: [u8; 128], dst_addr: [u8; 128],
    }
    /// RESOLVE_ROUTE.
    ResolveRoute [8] { id: u32, timeout_ms: u32 }
    /// QUERY and QUERY_ROUTE.
    Query [16] { response: u64, id: u32, option: u32 }
    /// A path in the response of QUERY_ROUTE.
    UserPathRec [64] {
        dgid: [u8; 16], sgid: [u8; 16], dlid: u16, slid: u16, raw_traffic: u32, flow_label_be: u32, reversible: u32, mtu: u32,
        pkey_be: u16, hop_limit: u8, traffic_class: u8, numb_path: u8, sl: u8, mtu_selector: u8, rate_selector: u8, rate: u8,
        packet_life_time_selector: u8, packet_life_time: u8, preference: u8,
    }
    /// Response of QUERY_ROUTE. `ibdev_index` came later: shorter responses are legal.
    QueryRouteResp [208] {
        node_guid_be: u64, ib_route: [UserPathRec; 2], src_addr: [u8; 28], dst_addr: [u8; 28], num_paths: u32, port_num: u8,
        reserved: [u8; 3], ibdev_index: u32, reserved1: u32,
    }
    /// Response of QUERY with option ADDR or GID.
    QueryAddrResp [280] {
        node_guid_be: u64, port_num: u8, reserved: u8, pkey_be: u16, src_size: u16, dst_size: u16, src_addr: [u8; 128],
        dst_addr: [u8; 128], ibdev_index: u32, reserved1: u32,
    }
    /// Response of QUERY with option PATH; the paths follow.
    QueryPathResp [8] { num_paths: u32, reserved: u32 }
    /// A path as the subnet administrator packs it (clause 15.2.5.16), with what it is for.
    PathRecData [72] {
        flags: u32, reserved: u32, service_id_be: u64, dgid: [u8; 16], sgid: [u8; 16], dlid_be: u16, slid_be: u16,
        flow_label_hop_limit_be: u32, traffic_class: u8, reversible_numb_path: u8, pkey_be: u16, qos_class_sl_be: u16, mtu: u8,
        rate: u8, packet_life_time: u8, preference: u8, reserved1: [u8; 6],
    }
    /// Parameters of a connection, in commands and events.
    ConnParam [272] {
        qp_num: u32, qkey: u32, private_data: [u8; 256], private_data_len: u8, srq: u8, responder_resources: u8,
        initiator_depth: u8, flow_control: u8, retry_count: u8, rnr_retry_count: u8, valid: u8,
    }
    /// ECE option.
    Ece [8] { vendor_id: u32, attr_mod: u32 }
    /// CONNECT, up to what every version has; an [`Ece`] may follow.
    Connect [280] { conn_param: ConnParam, id: u32, reserved: u32 }
    /// ACCEPT, up to what every version has; an [`Ece`] may follow.
    Accept [288] { uid: u64, conn_param: ConnParam, id: u32, reserved: u32 }
    /// LISTEN.
    Listen [8] { id: u32, backlog: u32 }
    /// REJECT.
    Reject [264] { id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2], private_data: [u8; 256] }
    /// DISCONNECT.
    Disconnect [4] { id: u32 }
    /// INIT_QP_ATTR.
    InitQpAttr [16] { response: u64, id: u32, qp_state: u32 }
    /// GRH of an address vector, host order.
    GlobalRoute [24] {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8, reserved: u8,
    }
    /// Address vector.
    AhAttr [32] {
        grh: GlobalRoute, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8, reserved: u8,
    }
    /// Response of INIT_QP_ATTR.
    UserQpAttr [144] {
        qp_attr_mask: u32, qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, ah_attr: AhAttr, alt_ah_attr: AhAttr, max_send_wr: u32,
        max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32, pkey_index: u16, alt_pkey_index: u16,
        en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8,
        timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 5],
    }
    /// GET_EVENT.
    GetEvent [8] { response: u64 }
    /// Parameters of a datagram identifier, in events.
    UdParam [304] {
        qp_num: u32, qkey: u32, ah_attr: AhAttr, private_data: [u8; 256], private_data_len: u8, reserved: [u8; 7],
    }
    /// Response of GET_EVENT. `param` is a [`ConnParam`] or a [`UdParam`]; `reserved` and `ece` came later.
    EventResp [336] {
        uid: u64, id: u32, event: u32, status: u32, param: [u8; 304], reserved: u32, ece: Ece,
    }
    /// SET_OPTION.
    SetOption [24] { optval: u64, id: u32, level: u32, optname: u32, optlen: u32 }
    /// NOTIFY.
    Notify [8] { id: u32, event: u32 }
    /// JOIN_IP_MCAST.
    JoinIpMcast [48] { response: u64, uid: u64, addr: [u8; 28], id: u32 }
    /// JOIN_MCAST.
    JoinMcast [152] { response: u64, uid: u64, id: u32, addr_size: u16, join_flags: u16, addr: [u8; 128] }
    /// MIGRATE_ID.
    MigrateId [16] { response: u64, id: u32, fd: u32 }
    /// `sockaddr_ib`.
    SockaddrIb [48] {
        family: u16, pkey_be: u16, flow_info_be: u32, gid: [u8; 16], sid_be: u64, sid_mask_be: u64, scope_id: u64,
    }
}

/// Bytes of [`QueryRouteResp`] that every version has.
pub const QUERY_ROUTE_RESP_MIN: usize = std::mem::offset_of!(QueryRouteResp, ibdev_index);
/// Bytes of [`QueryAddrResp`] that every version has.
pub const QUERY_ADDR_RESP_MIN: usize = std::mem::offset_of!(QueryAddrResp, ibdev_index);
/// Bytes of [`EventResp`] that every version has.
pub const EVENT_RESP_MIN: usize = std::mem::offset_of!(EventResp, reserved);

/// Options of QUERY.
pub mod query_option {
    /// Addresses.
    pub const ADDR: u32 = 0;
    /// Path records.
    pub const PATH: u32 = 1;
    /// GIDs, as addresses of family AF_IB.
    pub const GID: u32 = 2;
}

/// Levels and names of SET_OPTION.
pub mod option {
    /// Level: of the identifier.
    pub const LEVEL_ID: u32 = 0;
    /// Level: of InfiniBand.
    pub const LEVEL_IB: u32 = 1;
    /// Type of service, one byte.
    pub const ID_TOS: u32 = 0;
    /// Reuse of addresses, an int.
    pub const ID_REUSEADDR: u32 = 1;
    /// IPv6 only, an int.
    pub const ID_AFONLY: u32 = 2;
    /// QP timeout, one byte.
    pub const ID_ACK_TIMEOUT: u32 = 3;
    /// Path records ([`PathRecData`](super::PathRecData)).
    pub const IB_PATH: u32 = 1;
}

/// Flags of the path that SET_OPTION IB_PATH takes and QUERY PATH gives: GMP, primary, bidirectional.
pub const PATH_PRIMARY_BOTH_WAYS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
