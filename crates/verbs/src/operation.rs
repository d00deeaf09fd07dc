//! The table of send operations: which QP types have them, what they need, and the names that libibverbs gives them
//! (clause 10.2.4 and table 86 of clause 11.4.1.1; FLUSH and ATOMIC WRITE: IBTA 1.5).

use crate::state::QpType;
use crate::work_completion::WcOpcode;
use crate::work_request::SendOp;

/// The kind of a [`SendOp`]. Values are those of `enum ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum OpKind {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA WRITE with immediate.
    WriteWithImm = 1,
    /// SEND.
    Send = 2,
    /// SEND with immediate.
    SendWithImm = 3,
    /// RDMA READ.
    Read = 4,
    /// Compare and swap.
    CompareSwap = 5,
    /// Fetch and add.
    FetchAdd = 6,
    /// Local invalidate.
    LocalInv = 7,
    /// Bind of a type 2 window.
    BindMw = 8,
    /// SEND with invalidate.
    SendWithInv = 9,
    /// FLUSH.
    Flush = 14,
    /// ATOMIC WRITE.
    AtomicWrite = 15,
}

/// What an operation does with its scatter/gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SglUse {
    /// It has none.
    None,
    /// The message is gathered from it.
    Gather,
    /// The answer is scattered into it: it needs LOCAL_WRITE, and INLINE makes no sense.
    Scatter,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRule {
    /// The operation.
    pub kind: OpKind,
    /// Name as `ibv_wr_opcode_str` gives it.
    pub name: &'static str,
    /// The QP types that can post it.
    pub types: &'static [QpType],
    /// What it does with its SGL.
    pub sgl: SglUse,
    /// Message length if the operation fixes it (atomics: 8 bytes).
    pub fixed_length: Option<u32>,
    /// It names memory of the peer (address and R_Key).
    pub remote: bool,
    /// It consumes a receive WQE of the peer.
    pub consumes_receive: bool,
    /// It counts against `max_rd_atomic`: the peer keeps state for it.
    pub rd_atomic: bool,
    /// It never leaves the NIC.
    pub local: bool,
    /// The opcode of its completion.
    pub completes_as: WcOpcode,
}

const RELIABLE: &[QpType] = &[QpType::Rc, QpType::XrcSend];
const CONNECTED: &[QpType] = &[QpType::Rc, QpType::Uc, QpType::XrcSend];
const EVERY: &[QpType] = &[QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];

/// Every operation.
pub const OPERATIONS: &[OpRule] = &[
    OpRule { remote: true, ..row(OpKind::Write, "rdma-write", CONNECTED, SglUse::Gather, WcOpcode::RdmaWrite) },
    OpRule {
        remote: true,
        consumes_receive: true,
        ..row(OpKind::WriteWithImm, "rdma-write-with-imm", CONNECTED, SglUse::Gather, WcOpcode::RdmaWrite)
    },
    OpRule { consumes_receive: true, ..row(OpKind::Send, "send", EVERY, SglUse::Gather, WcOpcode::Send) },
    OpRule {
        consumes_receive: true,
        ..row(OpKind::SendWithImm, "send-with-imm", EVERY, SglUse::Gather, WcOpcode::Send)
    },
    OpRule {
        remote: true,
        rd_atomic: true,
        ..row(OpKind::Read, "rdma-read", RELIABLE, SglUse::Scatter, WcOpcode::RdmaRead)
    },
    OpRule {
        remote: true,
        rd_atomic: true,
        fixed_length: Some(8),
        ..row(OpKind::CompareSwap, "atomic-cmp-and-swp", RELIABLE, SglUse::Scatter, WcOpcode::CompSwap)
    },
    OpRule {
        remote: true,
        rd_atomic: true,
        fixed_length: Some(8),
        ..row(OpKind::FetchAdd, "atomic-fetch-and-add", RELIABLE, SglUse::Scatter, WcOpcode::FetchAdd)
    },
    OpRule { local: true, ..row(OpKind::LocalInv, "local-inv", CONNECTED, SglUse::None, WcOpcode::LocalInv) },
    OpRule { local: true, ..row(OpKind::BindMw, "bind-mw", CONNECTED, SglUse::None, WcOpcode::BindMw) },
    OpRule {
        consumes_receive: true,
        ..row(OpKind::SendWithInv, "send-with-inv", RELIABLE, SglUse::Gather, WcOpcode::Send)
    },
    OpRule { remote: true, rd_atomic: true, ..row(OpKind::Flush, "flush", RELIABLE, SglUse::None, WcOpcode::Flush) },
    OpRule {
        remote: true,
        rd_atomic: true,
        fixed_length: Some(8),
        ..row(OpKind::AtomicWrite, "atomic-write", RELIABLE, SglUse::Gather, WcOpcode::AtomicWrite)
    },
];

const fn row(
    kind: OpKind,
    name: &'static str,
    types: &'static [QpType],
    sgl: SglUse,
    completes_as: WcOpcode,
) -> OpRule {
    OpRule {
        kind,
        name,
        types,
        sgl,
        fixed_length: None,
        remote: false,
        consumes_receive: false,
        rd_atomic: false,
        local: false,
        completes_as,
    }
}

impl OpKind {
    /// Its row.
    pub const fn rule(self) -> &'static OpRule {
        let index = match self {
            Self::Flush => 10,
            Self::AtomicWrite => 11,
            other => other as usize,
        };
        &OPERATIONS[index]
    }

    /// The operation of a number of `enum ibv_wr_opcode`; `None` for TSO and driver opcodes, which are not RDMA.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        let mut index = 0;
        while index < OPERATIONS.len() {
            if OPERATIONS[index].kind as u32 == raw {
                return Some(OPERATIONS[index].kind);
            }
            index += 1;
        }
        None
    }

    /// Text of `ibv_wr_opcode_str`.
    pub const fn as_str(self) -> &'static str {
        self.rule().name
    }
}

impl SendOp<'_> {
    /// Which operation it is.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::Send => OpKind::Send,
            Self::SendWithImm { .. } => OpKind::SendWithImm,
            Self::SendWithInv { .. } => OpKind::SendWithInv,
            Self::Write { .. } => OpKind::Write,
            Self::WriteWithImm { .. } => OpKind::WriteWithImm,
            Self::Read { .. } => OpKind::Read,
            Self::CompareSwap { .. } => OpKind::CompareSwap,
            Self::FetchAdd { .. } => OpKind::FetchAdd,
            Self::LocalInv { .. } => OpKind::LocalInv,
            Self::BindMw(_) => OpKind::BindMw,
            Self::Flush { .. } => OpKind::Flush,
            Self::AtomicWrite { .. } => OpKind::AtomicWrite,
        }
    }
}

/// True if a QP of this type has the operation. An XRC target has no send queue and therefore none.
pub fn op_allowed(qp_type: QpType, kind: OpKind) -> bool {
    kind.rule().types.contains(&qp_type)
}
