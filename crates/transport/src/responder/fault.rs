//! What a request can do wrong and what follows from it: the responder's error behaviour of clause 9.9.3 as one table.
//!
//! This file decides nothing else; finding faults is the business of `check` and `execute`, and acting on a row that of
//! the responder. Faults that are mended by a retry (class B: sequence errors, RNR) are not here: they change no state.
//!
//! Where a receive WQE is in use, the fault is told by its completion; where none is, by an affiliated asynchronous event
//! (C9-222.1.1). Both never happen for one fault.

use scalefabric_verbs::WcStatus;
use scalefabric_verbs::event::EventType;
use scalefabric_wire::packet::NakCode;

use crate::counter::DropReason;
use crate::host::{AccessFault, LocalFault};

/// What is wrong with a request, beyond repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The receive WQE's memory cannot be written (class A: "malformed WQE").
    LocalProtection(LocalFault),
    /// The QP's access flags do not allow this operation (class C).
    Unsupported,
    /// A field that says what to do has a reserved value (class C).
    ReservedValue,
    /// An atomic on an address that is not a multiple of 8 (class C).
    MisalignedAtomic,
    /// More READs and atomics than `max_dest_rd_atomic` (class C).
    TooManyReads,
    /// FIRST, MIDDLE, LAST in an impossible order (class C).
    OpcodeSequence,
    /// Payload against path MTU, RETH or receive buffer (class C).
    Length,
    /// R_Key, PD, bounds, rights (class C).
    RemoteAccess(AccessFault),
    /// XRC: the packet names no SRQ of the XRC domain (class C).
    UnknownSrq,
    /// SEND with invalidate: the R_Key cannot be invalidated. The bytes are in the buffer by then (o9-5.2.1: the
    /// invalidation comes after every other check), but the message does not complete.
    Invalidate(AccessFault),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// NAK to a reliable peer.
    pub nak: NakCode,
    /// How the receive WQE ends, if one is in use.
    pub status: WcStatus,
    /// The event if none is.
    pub event: EventType,
    /// Why the packet was dropped.
    pub drop: DropReason,
}

impl Fault {
    /// Its row.
    pub(super) const fn row(self) -> Row {
        use {DropReason as D, EventType as E, NakCode as N, WcStatus as S};
        let (nak, status, event, drop) = match self {
            Self::LocalProtection(_) => (N::RemoteOperationalError, S::LocProtErr, E::QpFatal, D::LocalProtection),
            Self::Unsupported => (N::InvalidRequest, S::RemInvReqErr, E::QpReqErr, D::RemoteAccess),
            Self::ReservedValue => (N::InvalidRequest, S::RemInvReqErr, E::QpReqErr, D::Malformed),
            Self::MisalignedAtomic => (N::InvalidRequest, S::RemInvReqErr, E::QpReqErr, D::Malformed),
            Self::TooManyReads => (N::InvalidRequest, S::RemInvReqErr, E::QpReqErr, D::NoResources),
            Self::OpcodeSequence => (N::InvalidRequest, S::RemInvReqErr, E::QpReqErr, D::OpcodeSequence),
            Self::Length => (N::InvalidRequest, S::LocLenErr, E::QpReqErr, D::BadLength),
            // Memory that went away (D10) is the responder's own trouble, not a wrong key.
            Self::RemoteAccess(AccessFault::Gone) => {
                (N::RemoteOperationalError, S::LocAccessErr, E::QpFatal, D::RemoteAccess)
            }
            Self::RemoteAccess(_) => (N::RemoteAccessError, S::LocAccessErr, E::QpAccessErr, D::RemoteAccess),
            Self::UnknownSrq => (N::InvalidRequest, S::RemInvReqErr, E::QpReqErr, D::RemoteAccess),
            // Linux's rxe ACKs such a SEND and then fails its own side (its class J); a peer that is told of success
            // while the connection dies learns nothing, so here it gets the NAK of an R_Key violation.
            Self::Invalidate(_) => (N::RemoteAccessError, S::MwBindErr, E::QpAccessErr, D::RemoteAccess),
        };
        Row { nak, status, event, drop }
    }
}
