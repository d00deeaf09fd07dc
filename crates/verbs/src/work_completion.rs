//! Work completions: what a queue says about a WR. All 24 statuses of `ibv_wc_status`, each with its cause and remedy.

use bitflags::bitflags;
use scalefabric_wire::{Qpn, RKey};

/// Status of a completion. Values are those of `enum ibv_wc_status`.
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

/// What was completed. Values are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
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
}
