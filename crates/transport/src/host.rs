//! What one queue pair sees of the world around it: its queues, memory, and the wire.
//!
//! The NIC implements [`Host`] over rings, the memory table and its egress; tests implement it over plain vectors. The
//! transport never sees a pointer: memory is named by keys and addresses, and bytes are copied by the host.

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{
    AccessFlags, AddressVector, FlushLevel, FlushPlacement, Mtu, QKey, QpAttr, Qpn, RKey, SendFlags, Srqn, WcStatus,
    WorkCompletion,
};
use scalefabric_wire::Gid;
use scalefabric_wire::packet::Headers;

use crate::congestion::int::{self, Trailer};
use crate::counter::{Counter, DropReason};
use crate::time::Time;

/// The operation of a send WQE, as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WqeOp {
    Send,
    SendWithImm {
        imm: u32,
    },
    SendWithInv {
        invalidate_rkey: RKey,
    },
    Write {
        remote_addr: u64,
        rkey: RKey,
    },
    WriteWithImm {
        remote_addr: u64,
        rkey: RKey,
        imm: u32,
    },
    Read {
        remote_addr: u64,
        rkey: RKey,
    },
    CompareSwap {
        remote_addr: u64,
        rkey: RKey,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote_addr: u64,
        rkey: RKey,
        add: u64,
    },
    LocalInv {
        rkey: RKey,
    },
    /// The host knows the rest by the WQE's index.
    BindMw,
    Flush {
        remote_addr: u64,
        rkey: RKey,
        length: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    },
    AtomicWrite {
        remote_addr: u64,
        rkey: RKey,
    },
}

/// The fixed part of a send WQE. Its SGEs or inline bytes stay with the host and are named by `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// Position in the send queue: a counter that starts at 0 in RESET, wraps at 2^32 and is never reduced modulo the
    /// ring.
    pub index: u32,
    /// From the WR.
    pub wr_id: u64,
    /// Operation.
    pub op: WqeOp,
    /// Flags; SIGNALED is set by the host for `sq_sig_all`.
    pub flags: SendFlags,
    /// Bytes of its SGL or inline data: the message length (READ: bytes to read).
    pub length: u32,
    /// UD: where it goes.
    pub ud: Option<(AddressVector, Qpn, QKey)>,
    /// XRC: the peer's SRQ.
    pub xrc_srqn: Option<Srqn>,
}

/// What the packets of [`Host::emit_run`] carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The WQE.
    pub index: u32,
    /// Where the first one's bytes begin in it.
    pub offset: u32,
    /// Bytes of each, a multiple of 4.
    pub length: u32,
    /// How many, at most [`Run::MOST`].
    pub count: u32,
    /// Whether the one of that number asks for an ACK, a bit each.
    pub asks: u32,
}

impl Run {
    /// Packets in one go, at most.
    pub const MOST: usize = 32;

    /// Whether packet `number` asks for an ACK.
    #[inline]
    pub const fn asks(&self, number: u32) -> bool {
        self.asks >> number & 1 != 0
    }
}

/// A send WQE that is a plain WRITE: what sending and retiring it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainWrite {
    /// From the WR.
    pub remote_addr: u64,
    /// From the WR.
    pub rkey: RKey,
    /// As in [`SendWqe`].
    pub flags: SendFlags,
    /// As in [`SendWqe`].
    pub length: u32,
}

impl SendWqe {
    /// It as a plain WRITE, if it is one.
    pub const fn plain_write(&self) -> Option<PlainWrite> {
        match *self {
            Self { op: WqeOp::Write { remote_addr, rkey }, flags, length, xrc_srqn: None, .. } => {
                Some(PlainWrite { remote_addr, rkey, flags, length })
            }
            _ => None,
        }
    }
}

/// A receive WQE that was taken from the RQ or an SRQ. Its SGEs stay with the host and are named by `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// For the host.
    pub slot: u32,
    /// From the WR.
    pub wr_id: u64,
    /// Bytes of its SGL.
    pub length: u32,
    /// The SRQ it came from (XRC: which of them), if any.
    pub srq: Option<Srqn>,
}

/// Why local memory (an SGE) could not be used: `LOC_PROT_ERR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LocalFault {
    /// No region has the lkey, or a stale one.
    BadKey,
    /// The region belongs to another PD.
    WrongPd,
    /// Beyond the region.
    OutOfBounds,
    /// The region does not allow local writes.
    NoLocalWrite,
    /// The memory is no longer mapped, or protected (D10).
    Gone,
}

/// Why a peer's access was refused: NAK remote access error (or remote operational error for `Gone`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AccessFault {
    BadKey,
    WrongPd,
    OutOfBounds,
    /// The region or window lacks the right.
    NoRight,
    /// A type 2 window bound through another QP.
    WrongQp,
    /// The memory is no longer mapped, or protected (D10).
    Gone,
}

/// A peer's wish to touch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAccess {
    /// Key from the packet.
    pub rkey: RKey,
    /// First byte.
    pub va: u64,
    /// Bytes. 0 is always allowed and the key is not looked at (clause 9.7.4.1.3: zero-length).
    pub length: u64,
    /// The right that is needed.
    pub access: AccessFlags,
    /// XRC target only: the SRQ that the packet named. Its PD counts, since a target QP has none of its own (annex A14).
    /// `None`: the QP's PD counts. With `Some`, a number that names no SRQ of the XRC domain is [`AccessFault::WrongPd`].
    pub xrc_srqn: Option<Srqn>,
}

/// An atomic on 8 aligned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOp {
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// ATOMIC WRITE: one 8-byte store.
    Write {
        value: u64,
    },
}

/// Which way a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The QP's primary path.
    Primary,
    /// The QP's alternate path.
    Alternate,
    /// A datagram's own.
    Datagram(AddressVector),
}

/// A packet to be sent. The host adds pad, IP, UDP and ICRC, and sets `pad_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Headers. `pad_count` is filled in by the host from the payload's length.
    pub headers: Headers,
    /// Way out.
    pub path: Path,
    /// The host sets the bit that says that this side reads telemetry trailers ([`crate::congestion::int`]).
    pub reads_telemetry: bool,
}

/// Where the payload of an outgoing packet comes from. The host copies it straight into the packet.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Payload<'a> {
    None,
    /// `length` bytes of a send WQE's SGL or inline data, from `offset`.
    Wqe {
        index: u32,
        offset: u32,
        length: u32,
    },
    /// Memory of this side that the peer reads.
    Remote(RemoteAccess),
    Bytes(&'a [u8]),
}

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// No room now: try again in the next turn. Nothing happened.
    Blocked,
    /// An SGE is bad: LOC_PROT_ERR.
    Local(LocalFault),
    /// Memory that a peer reads has become inaccessible.
    Access(AccessFault),
    /// The host lets the send WQE end with this status (an injected fault).
    Status(WcStatus),
}

/// What became of a request that the host was asked to execute by itself, on the memory of a peer that is on the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Nothing was done that packets cannot do again: they have to go. Whatever a responder would refuse is among it, so that it
    /// is the responder who refuses it.
    Wire,
    /// So many bytes of the message are done; the rest follows.
    Part(u32),
    /// It is executed.
    Done,
    /// It is executed and cannot complete (the result could not be placed): the WQE ends with this status.
    Failed(WcStatus),
}

/// A received packet that passed the checks that need no QP (ICRC, opcode, version, lengths against its own headers).
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Headers.
    pub headers: &'a Headers,
    /// Payload without pad.
    pub payload: &'a [u8],
    /// Port it came in by, from 1.
    pub port_num: u8,
    /// Source address.
    pub src: Gid,
    /// Destination address (a group for multicast).
    pub dst: Gid,
    /// Source UDP port.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class as received; ECN in the lower two bits.
    pub traffic_class: u8,
    /// TTL or hop limit as received.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 over IPv4 or if the port cannot tell. A receiver of datagrams finds it in the GRH.
    pub flow_label: u32,
    /// The peer says that it reads telemetry trailers.
    pub reads_telemetry: bool,
    /// The telemetry trailer that the host took off.
    pub trailer: Option<&'a Trailer>,
}

impl Incoming<'_> {
    /// True if a switch marked the packet Congestion Experienced.
    pub const fn is_ce(&self) -> bool {
        self.traffic_class & 3 == 3
    }
}

/// What a queue pair needs. All methods concern the one QP on whose behalf the host was made.
pub trait Host {
    /// The time of this turn.
    fn now(&self) -> Time;

    /// The send WQE at `index`, or `None` if it is not posted yet.
    fn send_wqe(&mut self, index: u32) -> Option<SendWqe>;
    /// The same if it is a [`WqeOp::Write`], without what only other operations need; else `None`. Always `None` is right, and slower.
    fn plain_write(&mut self, index: u32) -> Option<PlainWrite> {
        self.send_wqe(index)?.plain_write()
    }
    /// Everything before `next` is done with: its ring space may be used again.
    fn retire_sends(&mut self, next: u32);
    /// Places a completion on the send CQ.
    fn complete_send(&mut self, wc: &WorkCompletion);
    /// Copies `data` to `offset` of a send WQE's SGL (READ responses, atomic results).
    fn scatter_send(&mut self, index: u32, offset: u32, data: &[u8]) -> Result<(), LocalFault>;
    /// Performs the bind of a BIND_MW WQE; a failure is MW_BIND_ERR.
    fn bind_mw(&mut self, index: u32) -> Result<(), WcStatus>;
    /// LOCAL_INV; a failure is LOC_QP_OP_ERR or LOC_PROT_ERR.
    fn local_invalidate(&mut self, rkey: RKey) -> Result<(), WcStatus>;

    /// Takes the next receive WQE, from the RQ, the SRQ, or for XRC the named SRQ. `Ok(None)`: none posted. `Err`: no
    /// such SRQ in the XRC domain.
    fn take_recv(&mut self, xrc_srqn: Option<Srqn>) -> Result<Option<RecvWqe>, AccessFault>;
    /// Copies `data` to `offset` of a receive WQE's SGL. The caller has checked the length.
    fn scatter_recv(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), LocalFault>;
    /// Completes a receive WQE and frees its slot. `solicited`: its event is a solicited one.
    fn complete_recv(&mut self, wqe: &RecvWqe, wc: &WorkCompletion, solicited: bool);
    /// Receive WQEs now posted, for credits; `None` with an SRQ.
    fn posted_recvs(&self) -> Option<u32>;

    /// Checks a peer's access without doing it.
    fn check_remote(&mut self, access: &RemoteAccess) -> Result<(), AccessFault>;
    /// Checks and writes `data` at `access.va` (`length` is `data.len()`).
    fn write_remote(&mut self, access: &RemoteAccess, data: &[u8]) -> Result<(), AccessFault>;
    /// Checks and does an atomic; returns the old value (0 for `Write`). Alignment was checked by the responder.
    fn atomic_remote(&mut self, access: &RemoteAccess, op: AtomicOp) -> Result<u64, AccessFault>;
    /// Checks and flushes. With [`FlushLevel::MemoryRegion`] va and length are not looked at.
    fn flush_remote(
        &mut self,
        access: &RemoteAccess,
        placement: FlushPlacement,
        level: FlushLevel,
    ) -> Result<(), AccessFault>;
    /// Invalidates an rkey on a peer's wish (SEND with invalidate). `xrc_srqn`: as in [`RemoteAccess`].
    fn invalidate_remote(&mut self, rkey: RKey, xrc_srqn: Option<Srqn>) -> Result<(), AccessFault>;

    /// Executes a one-sided request of an RC QP at once, without packets, from byte `done` of its message on. Asked only while
    /// nothing else of the QP is under way, so what is executed comes after all before it and before all behind it. `psns`: how
    /// many packets would have done it. By default packets go.
    fn execute_directly(&mut self, _wqe: &SendWqe, _attr: &QpAttr, _done: u32, _psns: u32) -> Direct {
        Direct::Wire
    }

    /// Bytes that the QP's requests may have under way, beside what those of others have to the same destination: once it has as much, its next
    /// packet waits ([`QueuePair::waits_for_window`](crate::QueuePair::waits_for_window)).
    #[inline]
    fn window(&self) -> u32 {
        u32::MAX
    }

    /// False if [`Host::execute_directly`] would only ever say [`Direct::Wire`] now, as it does by default.
    fn may_execute_directly(&self) -> bool {
        false
    }

    /// Whether [`Host::execute_directly`] would do this request if nothing else of the QP were under way, as far as can be seen without
    /// touching anything: then it is worth waiting until nothing is.
    fn could_execute_directly(&mut self, _wqe: &SendWqe, _attr: &QpAttr) -> bool {
        false
    }

    /// Whether somebody watches: then [`Host::show`] hears of each packet that a request which was executed at once would have needed.
    #[inline]
    fn shows(&self) -> bool {
        false
    }
    /// A packet that was not needed. `answer`: it would have come from the peer. The payload of an atomic's answer is where its result was written.
    fn show(&mut self, _packet: &Outgoing, _payload: Payload<'_>, _answer: bool) {}

    /// Sends a packet. A port that is down or a GID that is gone loses it silently (counted): like a wire.
    fn emit(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError>;
    /// The same for a packet that differs from the one that this QP emitted just before, in the same call, in PSN, AckReq, the RETH
    /// and what the payload says; not in the payload's length. By default it is made anew.
    fn emit_alike(&mut self, packet: &Outgoing, payload: Payload<'_>) -> Result<(), EmitError> {
        self.emit(packet, payload)
    }
    /// Packets like `packet` of `length` bytes of WQE `index` that [`Host::emit_run`] would take now. By default none: each goes by
    /// [`Host::emit_alike`].
    #[inline]
    fn room_for_run(&self, _packet: &Outgoing, _index: u32, _length: u32) -> usize {
        0
    }
    /// Packets that follow one another, each differing from the one before, and the first from the one that this QP emitted just before in the same
    /// call, in its PSN, which is one more, AckReq, and its part of the WQE, which lies behind. Returns how many left: fewer only if the memory of the next
    /// one has gone.
    fn emit_run(&mut self, _packet: &Outgoing, _run: Run) -> usize {
        0
    }
    /// The same with a telemetry trailer behind the ICRC ([`crate::congestion::int`]). A host whose packets have none sends the
    /// packet alone.
    fn emit_trailed(
        &mut self,
        packet: &Outgoing,
        payload: Payload<'_>,
        _trailer: &[u8; int::LEN],
    ) -> Result<(), EmitError> {
        self.emit(packet, payload)
    }
    /// The P_Key at `index` of the port's table now; `None` beyond it.
    fn pkey(&self, port_num: u8, index: u16) -> Option<scalefabric_wire::PKey>;
    /// The GID at `index` of the port's table now; zero if removed.
    fn gid(&self, port_num: u8, index: u8) -> Gid;

    /// The active MTU of a port: a datagram has no path MTU of its own.
    fn active_mtu(&self, port_num: u8) -> Mtu;

    /// The QP migrated: primary and alternate path have changed places. What the host remembers of
    /// [`Path::Alternate`] is that of [`Path::Primary`] from now on, and the other way round.
    fn paths_swapped(&mut self);

    /// Raises an asynchronous event of this QP.
    fn event(&mut self, event: EventType);
    /// Counts `n` more.
    fn count(&mut self, counter: Counter, n: u64);
    /// Counts a dropped packet.
    fn drop_packet(&mut self, reason: DropReason);
}
