//! The communication manager as rdma_cm presents it: addresses that are IP's, identifiers, events. The meaning of each call is that of Linux's
//! user interface to it (`ucma`), so that a C door is a translation and nothing more; numbers are those of `rdma/rdma_user_cm.h` and `rdma_cma.h`.
//!
//! The application's part stays what it is there: it makes the QP and moves it through its states with what [`CmId::init_qp_attr`] says.
//! The messages beneath are those of chapter 12 with the addressing of annex A11.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Debug;
use core::net::SocketAddr;
use core::time::Duration;

use scalefabric_wire::{Gid, PKey, QKey, Qpn};

use crate::attribute::{AddressVector, Mtu, QpAttr, QpAttrMask};
use crate::error::VerbsError;
use crate::state::{QpState, QpType};

/// Q_Key of UD QPs that rdma_cm brings up, unless the caller chooses one.
pub const RDMA_UDP_QKEY: QKey = QKey(0x0123_4567);

/// Longest private data that a caller may hand to [`CmId::connect`] with IP addresses: 92 bytes of a REQ less 36 of the header of annex A11.
pub const MAX_CONNECT_PRIVATE_DATA: usize = 56;
/// Longest private data of [`CmId::accept`] on a connection (REP).
pub const MAX_ACCEPT_PRIVATE_DATA: usize = 196;
/// Longest private data of [`CmId::reject`] on a connection (REJ).
pub const MAX_REJECT_PRIVATE_DATA: usize = 148;
/// Longest private data of [`CmId::connect`] on a UD identifier: 216 bytes of a SIDR_REQ less 36 of the header.
pub const MAX_SIDR_REQ_PRIVATE_DATA: usize = 180;
/// Longest private data of [`CmId::accept`] and [`CmId::reject`] on a UD identifier (SIDR_REP; the last byte of 136 counts, too).
pub const MAX_SIDR_REP_PRIVATE_DATA: usize = 136;

/// Reasons of [`CmId::reject`] that a consumer may give, and those that an event's `status` may carry (table 105 of clause 12.6.7.2).
pub mod reject_reason {
    /// Invalid service ID: nobody listens.
    pub const INVALID_SERVICE_ID: u8 = 8;
    /// The connection is stale.
    pub const STALE_CONNECTION: u8 = 10;
    /// The consumer rejected it.
    pub const CONSUMER_DEFINED: u8 = 28;
    /// The vendor's option of enhanced connection establishment is not supported.
    pub const VENDOR_OPTION_NOT_SUPPORTED: u8 = 35;
}

/// Port space: `enum rdma_ucm_port_space`, bytes 4 and 5 of the service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand: UD, not spoken on RoCE.
    Ipoib = 0x0002,
    /// Connections, numbered like TCP's ports.
    Tcp = 0x0106,
    /// Datagrams, numbered like UDP's ports.
    Udp = 0x0111,
    /// Native InfiniBand: the service ID is the caller's.
    Ib = 0x013f,
}

impl PortSpace {
    /// The port space of a number of `enum rdma_ucm_port_space`.
    pub const fn from_raw(raw: u16) -> Option<Self> {
        Some(match raw {
            0x0002 => Self::Ipoib,
            0x0106 => Self::Tcp,
            0x0111 => Self::Udp,
            0x013f => Self::Ib,
            _ => return None,
        })
    }

    /// The number.
    pub const fn to_raw(self) -> u16 {
        self as u16
    }

    /// The QP type that goes with it: the caller's for [`PortSpace::Ib`], `asked` there.
    pub const fn qp_type(self, asked: QpType) -> QpType {
        match self {
            Self::Tcp => QpType::Rc,
            Self::Udp | Self::Ipoib => QpType::Ud,
            Self::Ib => asked,
        }
    }
}

/// `struct sockaddr_ib`, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SockaddrIb {
    /// P_Key.
    pub pkey: u16,
    /// Flow label.
    pub flow_info: u32,
    /// GID.
    pub gid: Gid,
    /// Service ID.
    pub service_id: u64,
    /// Bits of the service ID that count.
    pub service_id_mask: u64,
    /// Scope.
    pub scope_id: u64,
}

/// An address as `bind`, `resolve_addr` and `join_multicast` take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmAddr {
    /// `sockaddr_in` or `sockaddr_in6`; for IPv6 the scope is the interface of a link-local address.
    Ip(SocketAddr),
    /// `sockaddr_ib`. A backend without AF_IB answers `EADDRNOTAVAIL`, which librdmacm understands.
    Ib(SockaddrIb),
}

impl From<SocketAddr> for CmAddr {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

/// What `connect` and `accept` say (`rdma_conn_param`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ConnParam {
    /// For the peer. At most [`MAX_CONNECT_PRIVATE_DATA`] and its siblings, else `EINVAL`.
    pub private_data: Vec<u8>,
    /// READs and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding there.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries after timeouts, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7, 7 = for ever. What we demand of the peer.
    pub rnr_retry_count: u8,
    /// The QP receives from an SRQ.
    pub srq: bool,
    /// The QP. Must be given: a CM does not see the application's QPs.
    pub qp_num: Qpn,
    /// UD: Q_Key that the peer shall use; 0 takes [`RDMA_UDP_QKEY`].
    pub qkey: QKey,
}

/// What a connection event tells (`rdma_ucm_conn_param`). Depths are as the kernel hands them over: already exchanged, ours first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ConnEvent {
    /// The peer's, padded with zeros to what its message carries; empty where there is none.
    pub private_data: Vec<u8>,
    /// For the receiver of a CONNECT_REQUEST: what the peer wants to have outstanding here.
    pub responder_resources: u8,
    /// For the receiver of a CONNECT_REQUEST: what the peer allows us.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The peer's QP has an SRQ.
    pub srq: bool,
    /// The peer's QP.
    pub qp_num: Qpn,
}

/// What an event of a UD identifier tells (`rdma_ucm_ud_param`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct UdEvent {
    /// The peer's, padded with zeros to what its message carries.
    pub private_data: Vec<u8>,
    /// Way to the peer, or to the multicast group.
    pub ah_attr: AddressVector,
    /// The peer's QP; 0xffffff for a group.
    pub qp_num: Qpn,
    /// Q_Key to send with.
    pub qkey: QKey,
}

/// The parameters of an event: by the QP type of the identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventParam {
    /// All but UD.
    Conn(ConnEvent),
    /// UD.
    Ud(UdEvent),
}

/// Enhanced connection establishment (`ibv_ece`); zeros are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ece {
    /// Vendor, 24 bits.
    pub vendor_id: u32,
    /// The vendor's option.
    pub attr_mod: u32,
}

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum CmEventType {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
}

impl CmEventType {
    /// The number.
    pub const fn to_raw(self) -> u32 {
        self as u32
    }
}

/// An event, taken from a channel. It is *reported* (counts for [`CmId::destroy`]) from this moment.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// What happened.
    pub event: CmEventType,
    /// 0, a negative errno (ADDR_ERROR, ROUTE_ERROR, CONNECT_ERROR, UNREACHABLE), or the reject reason (REJECTED).
    pub status: i32,
    /// The consumer's number for the identifier: the listener's for a CONNECT_REQUEST, the join's for MULTICAST_*.
    pub uid: u64,
    /// The identifier it happened to: the *new* one for a CONNECT_REQUEST, the join's number for MULTICAST_*.
    pub id: u32,
    /// The listener of a CONNECT_REQUEST.
    pub listen_id: Option<u32>,
    /// The new identifier of a CONNECT_REQUEST, whose uid is 0 until `accept` or `set_uid`. Who drops it without `destroy` has not rejected.
    pub request: Option<Arc<dyn CmId>>,
    /// Parameters.
    pub param: EventParam,
    /// The peer's ECE option.
    pub ece: Ece,
}

/// A device as an identifier knows it once bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmDevice {
    /// Name.
    pub name: String,
    /// EUI-64, as in [`DeviceInfo`](crate::DeviceInfo).
    pub node_guid: u64,
    /// Index, as in [`DeviceInfo`](crate::DeviceInfo).
    pub index: u32,
    /// Port, from 1.
    pub port_num: u8,
    /// P_Key.
    pub pkey: PKey,
}

/// What an identifier is bound and resolved to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CmAddresses {
    /// Local address with its port; none before `bind_addr` or `resolve_addr`.
    pub local: Option<CmAddr>,
    /// The peer's.
    pub peer: Option<CmAddr>,
    /// Device and port; none while bound to any address or not at all.
    pub device: Option<CmDevice>,
    /// Local and peer GID (`rdma_ucm_query` option GID); zero while unknown.
    pub gids: (Gid, Gid),
}

/// A path record (`ib_user_path_rec`), as far as RoCE has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PathRecord {
    pub dgid: Gid,
    pub sgid: Gid,
    pub flow_label: u32,
    /// Above 1 tells librdmacm that a GRH is needed.
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub pkey: PKey,
    pub sl: u8,
    /// `mtu_selector` is 2: exactly.
    pub mtu: Mtu,
    /// `enum ibv_rate`; `rate_selector` is 2.
    pub rate: u8,
    /// 4.096 µs x 2^n; selector 2.
    pub packet_life_time: u8,
    pub reversible: bool,
}

/// How to join a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum JoinFlags {
    /// Sends and receives.
    #[default]
    FullMember,
    /// Sends only.
    SendOnlyFullMember,
}

/// What `set_option` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmOption {
    /// `RDMA_OPTION_ID_TOS`: type of service of the path.
    Tos(u8),
    /// `RDMA_OPTION_ID_REUSEADDR`.
    ReuseAddr(bool),
    /// `RDMA_OPTION_ID_AFONLY`: an IPv6 wildcard does not take IPv4.
    AfOnly(bool),
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`: QP timeout, 0 to 31, before the QP attributes are asked for.
    AckTimeout(u8),
    /// `RDMA_OPTION_IB_PATH`: the path, instead of `resolve_route`; raises ROUTE_RESOLVED.
    IbPath(PathRecord),
}

/// An event channel (`rdma_event_channel`; an open file of the kernel's `ucma`).
pub trait CmChannel: Send + Sync + Debug {
    /// Descriptor that is readable while an event waits. It is for poll and epoll only and belongs to the channel.
    fn fd(&self) -> i32;

    /// Takes the oldest event; `None` when `timeout` passes. `Some(Duration::ZERO)` does not wait, `None` waits for ever.
    fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>, VerbsError>;

    /// Makes an identifier whose events come here. `qp_type` counts for [`PortSpace::Ib`] only.
    fn create_id(&self, space: PortSpace, qp_type: QpType, uid: u64) -> Result<Arc<dyn CmId>, VerbsError>;

    /// An identifier by number: `ENOENT` if there is none, `EINVAL` if it is on another channel.
    fn find_id(&self, id: u32) -> Result<Arc<dyn CmId>, VerbsError>;

    /// Leaves a group by the number that [`CmId::join_multicast`] gave. Undelivered events of the join vanish; the number of delivered ones comes back.
    fn leave_multicast(&self, multicast_id: u32) -> Result<u32, VerbsError>;

    /// Closes: all its identifiers are destroyed and all its events vanish, as when the file is closed.
    fn close(&self);

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// A communication identifier (`rdma_cm_id`). Calls out of order are `EINVAL`, as in the kernel.
pub trait CmId: Send + Sync + Debug {
    /// Its number within the process; no other living identifier or join has it on any channel.
    fn id(&self) -> u32;
    /// Port space.
    fn port_space(&self) -> PortSpace;
    /// QP type.
    fn qp_type(&self) -> QpType;
    /// The consumer's number.
    fn uid(&self) -> u64;
    /// Sets it. Events of a passive identifier are not delivered while it is 0.
    fn set_uid(&self, uid: u64);

    /// Binds to a local address; port 0 takes a free one. `EADDRINUSE`, `EADDRNOTAVAIL`, `ENODEV` (no device has the address).
    fn bind_addr(&self, address: CmAddr) -> Result<(), VerbsError>;
    /// Finds device, source address and GIDs; ADDR_RESOLVED or ADDR_ERROR follows.
    fn resolve_addr(&self, source: Option<CmAddr>, destination: CmAddr, timeout_ms: u32) -> Result<(), VerbsError>;
    /// Finds the path; ROUTE_RESOLVED or ROUTE_ERROR follows.
    fn resolve_route(&self, timeout_ms: u32) -> Result<(), VerbsError>;
    /// Listens. Without an address, on any. `backlog` counts CONNECT_REQUESTs that no `get_event` has taken yet; 0 takes the maximum.
    fn listen(&self, backlog: u32) -> Result<(), VerbsError>;
    /// Connects, or resolves a UD service. CONNECT_RESPONSE or ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR follows.
    ///
    /// A consumer that moves its QP itself (the only way here) gets CONNECT_RESPONSE when the REP is there, brings the QP to RTS and calls
    /// [`CmId::accept`] with nothing, which sends the RTU.
    fn connect(&self, param: &ConnParam) -> Result<(), VerbsError>;
    /// Accepts: with parameters on the passive side, where ESTABLISHED follows; without on the active side, after CONNECT_RESPONSE. `ece` goes into the REP.
    fn accept(&self, param: Option<&ConnParam>, uid: Option<u64>, ece: Ece) -> Result<(), VerbsError>;
    /// Rejects: `reason` is [`reject_reason::CONSUMER_DEFINED`] or [`reject_reason::VENDOR_OPTION_NOT_SUPPORTED`], else `EINVAL`.
    fn reject(&self, private_data: &[u8], reason: u8) -> Result<(), VerbsError>;
    /// Disconnects: DISCONNECTED follows on both sides, once on each.
    fn disconnect(&self) -> Result<(), VerbsError>;
    /// Attributes that bring the QP to a state, with their mask: INIT, RTR or RTS. QPs of UD get P_Key, port and Q_Key.
    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError>;

    /// Addresses, device and GIDs.
    fn query_addr(&self) -> CmAddresses;
    /// Path records: one once the route is known, else none.
    fn query_route(&self) -> Vec<PathRecord>;

    /// Sets an option.
    fn set_option(&self, option: CmOption) -> Result<(), VerbsError>;
    /// Tells of an event that the QP saw: only COMM_EST means anything, a message that came before the RTU.
    fn notify(&self, event: crate::event::EventType) -> Result<(), VerbsError>;
    /// Joins a group: MULTICAST_JOIN or MULTICAST_ERROR with `uid` follows. Gives the join's number.
    fn join_multicast(&self, address: CmAddr, flags: JoinFlags, uid: u64) -> Result<u32, VerbsError>;
    /// Sets the ECE option that `connect` will offer.
    fn set_local_ece(&self, ece: Ece) -> Result<(), VerbsError>;
    /// The peer's ECE option: that of the REQ or REP received.
    fn remote_ece(&self) -> Ece;

    /// Moves to another channel of the same backend, with its undelivered events. Gives the number of events that have been reported for it.
    fn migrate(&self, to: &Arc<dyn CmChannel>) -> Result<u32, VerbsError>;
    /// Destroys: what is under way is rejected or disconnected, undelivered events vanish before this returns (with the new identifiers of
    /// undelivered requests). Gives the number of events that have been reported for it. `EINVAL` the second time.
    fn destroy(&self) -> Result<u32, VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
