//! Work completions: what a queue says about a WR. All 24 statuses of `ibv_wc_status`, each with its cause and remedy.

use core::fmt;

use bitflags::bitflags;
use scalefabric_wire::{Qpn, RKey};

/// Status of a completion. Values are those of `enum ibv_wc_status`. What each means stands in [`STATUSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
    TmErr = 22,
    TmRndvIncomplete = 23,
}

/// Whether a status can come out of this transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Produced {
    /// It can; a dialogue shows how.
    Yes,
    /// It cannot, for this reason.
    No(&'static str),
}

/// What is known about a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusInfo {
    /// The status.
    pub status: WcStatus,
    /// Its name in `enum ibv_wc_status`, without the prefix `IBV_WC_`.
    pub name: &'static str,
    /// Text of `ibv_wc_status_str`.
    pub text: &'static str,
    /// How it comes about.
    pub cause: &'static str,
    /// What to look at.
    pub look_at: &'static str,
    /// Whether this transport can produce it.
    pub produced: Produced,
}

macro_rules! statuses {
    ($( $status:ident $name:literal $text:literal $cause:literal $look:literal $produced:expr; )*) => {
        /// All 24 statuses, in the order of their numbers (clause 11.6.2 for those of the standard).
        pub const STATUSES: &[StatusInfo] = &[ $( StatusInfo {
            status: WcStatus::$status, name: $name, text: $text, cause: $cause, look_at: $look, produced: $produced,
        }, )* ];
    };
}

const NO_RD: Produced = Produced::No("Reliable datagram is not part of RoCE: no NIC offers it.");
const NO_TM: Produced = Produced::No("Tag matching is an mlx5 extension that this contract does not have.");

statuses! {
    Success "SUCCESS" "success"
        "The work request did what it should. For a send: the peer has acknowledged it (RC, XRC) or it has left \
         (UC, UD)."
        "Nothing. The buffers are yours again."
        Produced::Yes;
    LocLenErr "LOC_LEN_ERR" "local length error"
        "A message does not fit. Receive: the message was longer than the posted buffer, or its length \
         contradicts its RETH. \
         Send: it is longer than 2^31 bytes, or, on UD, than the path MTU."
        "Receive side: byte count of the posted SGL against what the sender sends (UD: 40 bytes more for the \
         GRH). Send side: \
         the SGL's sum; for UD the port's active MTU."
        Produced::Yes;
    LocQpOpErr "LOC_QP_OP_ERR" "local QP operation error"
        "The QP found the work request inconsistent when it came to execute it: an operation that its type does \
         not have, an \
         SGL that does not fit the operation, an invalidate of a key that may not be invalidated."
        "The WR against the table of operations; for LOCAL_INV: is the key a type 2 window of this QP, or a \
         region that is \
         allowed to be invalidated?"
        Produced::Yes;
    LocEecOpErr "LOC_EEC_OP_ERR" "local EE context operation error"
        "Reliable datagram only: the end-to-end context found an inconsistency."
        "Not seen here."
        NO_RD;
    LocProtErr "LOC_PROT_ERR" "local protection error"
        "An SGE of this work request names memory that it may not: unknown or stale lkey, another PD, bytes \
         beyond the region, a \
         region without LOCAL_WRITE that had to be written, or memory that is no longer mapped."
        "lkey, address and length of each SGE against its region; the PD of region and QP; whether the region was \
         deregistered \
         or its pages unmapped while the WR was outstanding."
        Produced::Yes;
    WrFlushErr "WR_FLUSH_ERR" "Work Request Flushed Error"
        "The work request was not carried out (or not to its end), because the QP was in ERR, or in SQE for sends."
        "The first completion of this QP that is not a flush tells the reason; without one, somebody moved the QP \
         to ERR, or an \
         asynchronous event tells. For sends: whether the peer carried it out is unknown."
        Produced::Yes;
    MwBindErr "MW_BIND_ERR" "memory management operation error"
        "A window could not be bound: region without MW_BIND, rights that the region lacks, bytes beyond it, \
         another PD, or a \
         key that does not belong to the window."
        "Access flags of the region (MW_BIND, and LOCAL_WRITE for remote writes and atomics), the range, the PDs, \
         and for type 2 \
         the low 8 bits of the new rkey: all other bits must be the window's own."
        Produced::Yes;
    BadRespErr "BAD_RESP_ERR" "bad response error"
        "The peer answered with something that does not fit the request: a response of an unexpected kind or \
         length, a reserved \
         syndrome, or an acknowledgement of what was never sent."
        "The peer's implementation. A capture shows the offending packet; a mismatch of path MTU between the two \
         ends is a common \
         reason for READ responses of the wrong length."
        Produced::Yes;
    LocAccessErr "LOC_ACCESS_ERR" "local access error"
        "Receive side: the peer's RDMA WRITE with immediate had an rkey, range or right that this side does not \
         grant, after a \
         receive had been taken for it; or a SEND with invalidate named a key that may not be invalidated."
        "The rkey and range that the peer was given, the region's access flags, the QP's qp_access_flags. The \
         peer sees \
         REM_ACCESS_ERR."
        Produced::Yes;
    RemInvReqErr "REM_INV_REQ_ERR" "remote invalid request error"
        "The peer answered with a NAK for an invalid request: the message does not fit its receive buffer, the \
         operation is not \
         supported or not enabled there, too many READs or atomics are outstanding, or an atomic is not aligned."
        "The peer's receive buffer size; its max_dest_rd_atomic against our max_rd_atomic; 8-byte alignment of \
         atomics; its \
         qp_access_flags."
        Produced::Yes;
    RemAccessErr "REM_ACCESS_ERR" "remote access error"
        "The peer answered with a NAK for remote access: rkey unknown or stale, address range beyond the region \
         or window, the \
         right not granted, or another PD."
        "rkey and address as exchanged (byte order!), length, the peer's access flags for region and QP, and \
         whether the region \
         was deregistered or the window rebound."
        Produced::Yes;
    RemOpErr "REM_OP_ERR" "remote operation error"
        "The peer could not complete the operation for a reason of its own: its receive buffer failed with a \
         local error, or \
         memory that it had granted went away."
        "The peer's completion queue: its receive completed with LOC_PROT_ERR or the like. Then its lkeys and \
         mappings."
        Produced::Yes;
    RetryExcErr "RETRY_EXC_ERR" "transport retry counter exceeded"
        "No acknowledgement came, or sequence errors did not end, within retry_cnt repetitions: timeout x \
         (retry_cnt + 1) passed in \
         silence."
        "Is the peer alive and its QP in RTR or RTS? Is dest_qp_num right, are GIDs, P_Keys and VLAN those of the \
         peer? Does UDP \
         port 4791 pass the firewalls? Path MTU larger than the network's? On a lossy network raise timeout and retry_cnt. The \
         peer's drop counters tell what arrived and why it was refused."
        Produced::Yes;
    RnrRetryExcErr "RNR_RETRY_EXC_ERR" "RNR retry counter exceeded"
        "The peer had no receive posted, rnr_retry times in a row."
        "Post more receives, or earlier; flow control in the application; a longer min_rnr_timer at the peer; \
         rnr_retry 7 waits \
         for ever."
        Produced::Yes;
    LocRddViolErr "LOC_RDD_VIOL_ERR" "local RDD violation error"
        "Reliable datagram only: QP and EE context are of different reliable datagram domains."
        "Not seen here."
        NO_RD;
    RemInvRdReqErr "REM_INV_RD_REQ_ERR" "remote invalid RD request"
        "Reliable datagram only: the peer found the request's Q_Key or domain wrong."
        "Not seen here."
        NO_RD;
    RemAbortErr "REM_ABORT_ERR" "aborted error"
        "Reliable datagram only: the requester gave a message up in the middle and resynchronised."
        "Not seen here: on RC a message that stops in the middle ends with the QP."
        NO_RD;
    InvEecnErr "INV_EECN_ERR" "invalid EE context number"
        "Reliable datagram only: no such end-to-end context."
        "Not seen here."
        NO_RD;
    InvEecStateErr "INV_EEC_STATE_ERR" "invalid EE context state"
        "Reliable datagram only: the end-to-end context's state does not allow the operation."
        "Not seen here."
        NO_RD;
    FatalErr "FATAL_ERR" "fatal error"
        "The device failed while the work request was outstanding: nothing more can be said about it."
        "The device's asynchronous events (DEVICE_FATAL), its interface and the log. Open the device again and \
         make everything anew."
        Produced::Yes;
    RespTimeoutErr "RESP_TIMEOUT_ERR" "response timeout error"
        "A leftover of the enumeration: no clause of the standard leads to it, and RC reports a silent peer as \
         RETRY_EXC_ERR."
        "As for RETRY_EXC_ERR."
        Produced::No("The standard has no such completion; a silent peer is RETRY_EXC_ERR.");
    GeneralErr "GENERAL_ERR" "general error"
        "Hardware drivers use it for errors that fit nowhere else."
        "vendor_err."
        Produced::No("Every error of this transport has a status that says more.");
    TmErr "TM_ERR" "TM error"
        "A tag-matching operation on an SRQ failed."
        "Not seen here."
        NO_TM;
    TmRndvIncomplete "TM_RNDV_INCOMPLETE" "TM software rendezvous"
        "A tag-matching rendezvous must be finished by software."
        "Not seen here."
        NO_TM;
}

impl WcStatus {
    /// The status of a number of `enum ibv_wc_status`; `None` beyond 23.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        if (raw as usize) < STATUSES.len() { Some(STATUSES[raw as usize].status) } else { None }
    }

    /// Its number.
    pub const fn to_raw(self) -> u32 {
        self as u32
    }

    /// Its row of [`STATUSES`].
    pub const fn info(self) -> &'static StatusInfo {
        &STATUSES[self as usize]
    }

    /// Text of `ibv_wc_status_str`.
    pub const fn as_str(self) -> &'static str {
        self.info().text
    }

    /// How it comes about.
    pub const fn cause(self) -> &'static str {
        self.info().cause
    }

    /// What to look at.
    pub const fn look_at(self) -> &'static str {
        self.info().look_at
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What was completed. Values are those of `enum ibv_wc_opcode`; 128 is the bit that marks receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// Any SEND.
    Send = 0,
    /// RDMA WRITE, with or without immediate, at its requester.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// Bind of a window.
    BindMw = 5,
    /// Local invalidate.
    LocalInv = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive that a SEND used.
    Recv = 128,
    /// A receive that an RDMA WRITE with immediate used: the buffer itself is untouched.
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Send,
        Self::RdmaWrite,
        Self::RdmaRead,
        Self::CompSwap,
        Self::FetchAdd,
        Self::BindMw,
        Self::LocalInv,
        Self::Flush,
        Self::AtomicWrite,
        Self::Recv,
        Self::RecvRdmaWithImm,
    ];

    /// The opcode of a number of `enum ibv_wc_opcode`; `None` for TSO, tag matching and driver opcodes.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        let mut index = 0;
        while index < Self::ALL.len() {
            if Self::ALL[index] as u32 == raw {
                return Some(Self::ALL[index]);
            }
            index += 1;
        }
        None
    }

    /// Its number.
    pub const fn to_raw(self) -> u32 {
        self as u32
    }

    /// True for completions of receive WRs.
    pub const fn is_receive(self) -> bool {
        self as u32 & 128 != 0
    }

    /// Name in plain words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::RdmaWrite => "rdma-write",
            Self::RdmaRead => "rdma-read",
            Self::CompSwap => "comp-swap",
            Self::FetchAdd => "fetch-add",
            Self::BindMw => "bind-mw",
            Self::LocalInv => "local-inv",
            Self::Flush => "flush",
            Self::AtomicWrite => "atomic-write",
            Self::Recv => "recv",
            Self::RecvRdmaWithImm => "recv-rdma-with-imm",
        }
    }
}

impl fmt::Display for WcOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

bitflags! {
    /// Flags of a completion, bit for bit `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer are a GRH.
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `invalidated_rkey` is valid.
        const WITH_INV = 1 << 3;
    }
}

/// One completion. On any status but `Success` only `wr_id`, `status`, `opcode`, `qp_num` and `vendor_err` mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// From the WR.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What ended.
    pub opcode: WcOpcode,
    /// Reason in our own words: index into the table of `nic`'s explanations, 0 for none.
    pub vendor_err: u32,
    /// Bytes received, read or returned. With a GRH, the 40 bytes are counted.
    pub byte_len: u32,
    /// Immediate data, host order; valid with [`WcFlags::WITH_IMM`].
    pub imm: u32,
    /// Valid with [`WcFlags::WITH_INV`].
    pub invalidated_rkey: RKey,
    /// The local QP.
    pub qp_num: Qpn,
    /// UD: the sender's QP.
    pub src_qp: Qpn,
    /// Flags.
    pub flags: WcFlags,
    /// UD on QP 0 and 1: index of the P_Key.
    pub pkey_index: u16,
    /// Service level, 0 to 15 (always 0 in RoCE).
    pub sl: u8,
    /// When it was placed, by the device's raw clock ([`crate::Context::query_rt_values`]), ns. 0 unless the CQ was made
    /// with a timestamp flag ([`crate::CqFlags`]).
    pub timestamp_ns: u64,
}

impl Default for WorkCompletion {
    /// An empty entry, for the buffer that is given to `poll`: nothing in it means anything.
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            invalidated_rkey: RKey(0),
            qp_num: Qpn::new(0),
            src_qp: Qpn::new(0),
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
            timestamp_ns: 0,
        }
    }
}
