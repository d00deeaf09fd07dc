//! A whole transport packet: BTH, extended headers, payload, pad, ICRC.
//!
//! [`Headers`] is the plain struct that the transport reads and writes; each header's own bytes live in a module of its own.

use crate::ids::{PKey, Psn, QKey, Qpn, RKey, Srqn};
use crate::opcode::Opcode;

/// Base transport header, 12 bytes (clause 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// MigReq: true in state MIGRATED (clause 17.2.8).
    pub mig_req: bool,
    /// Bytes of pad, 0 to 3.
    pub pad_count: u8,
    /// Transport header version; 0 is the only legal one.
    pub tver: u8,
    /// P_Key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification: set in CNPs.
    pub becn: bool,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// The responder must acknowledge.
    pub ack_req: bool,
    /// PSN.
    pub psn: Psn,
}

/// RDMA extended transport header, 16 bytes (clause 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Reth {
    pub va: u64,
    pub rkey: RKey,
    pub dma_len: u32,
}

/// Atomic extended transport header, 28 bytes (clause 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AtomicEth {
    pub va: u64,
    pub rkey: RKey,
    /// Swap value, or the value to add.
    pub swap_or_add: u64,
    pub compare: u64,
}

/// Datagram extended transport header, 8 bytes (clause 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Deth {
    pub qkey: QKey,
    pub src_qp: Qpn,
}

/// FLUSH extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type: bit 0 global visibility, bit 1 persistence.
    pub plt: u8,
    /// Selectivity level: 0 range, 1 memory region.
    pub sel: u8,
}

/// ACK extended transport header, 4 bytes (clause 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is said.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages completed by the responder.
    pub msn: u32,
}

/// The AETH syndrome, 8 bits (tables 45 to 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK with a credit code, 0 to 31; 31 means that no credits are given.
    Ack(u8),
    /// RNR NAK with a timer code, 0 to 31.
    RnrNak(u8),
    /// NAK.
    Nak(NakCode),
    /// A reserved value: the whole byte.
    Reserved(u8),
}

/// NAK codes (table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum NakCode {
    PsnSequenceError = 0,
    InvalidRequest = 1,
    RemoteAccessError = 2,
    RemoteOperationalError = 3,
    InvalidRdRequest = 4,
}

/// BTH and those extended headers that its opcode calls for. On emit, exactly the opcode's headers are written and a
/// missing one is an error; on parse exactly those are `Some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Headers {
    pub bth: Bth,
    pub xrceth: Option<Srqn>,
    pub deth: Option<Deth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic_eth: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    /// Original value at the responder.
    pub atomic_ack_eth: Option<u64>,
    /// Immediate data, host order.
    pub imm: Option<u32>,
    /// R_Key to invalidate.
    pub ieth: Option<RKey>,
}

impl Headers {
    /// BTH alone, with the flags of a plain request and no extended headers.
    pub const fn new(opcode: Opcode, pkey: PKey, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            bth: Bth {
                opcode,
                solicited: false,
                mig_req: true,
                pad_count: 0,
                tver: 0,
                pkey,
                fecn: false,
                becn: false,
                dest_qp,
                ack_req: false,
                psn,
            },
            xrceth: None,
            deth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm: None,
            ieth: None,
        }
    }
}
