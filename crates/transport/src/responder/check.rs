//! Step 8 of the walk: the checks of a request, in the order of clause 9.7.4.1, after those of
//! [`admission`](crate::admission) (service, QP state, peer, P_Key) that a response passes, too.
//!
//! Each step takes what the one before it returns and only that step can make: [`Keyed`], [`Sequenced`], [`InOrder`],
//! [`Allowed`], [`Provided`], [`Measured`], [`Granted`], and at last [`Sound`], which alone can be executed. Leaving a step
//! out, or another order, does not compile.
//!
//! Two things change here beside the answer: the resource step takes the receive WQE, because the faults found after it are
//! that WQE's, and on UC the PSN step makes the expected PSN follow the packet (clause 9.8.2.2). Nothing else does.

use scalefabric_verbs::{AccessFlags, FlushLevel, FlushPlacement, QpType, RKey, Srqn};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Operation, Position};
use scalefabric_wire::packet::{Feth, Reth};

use super::datagram::GRH_BYTES;
use super::fault::Fault;
use super::resources::LongPsn;
use super::{Message, Responder};
use crate::admission::Admitted;
use crate::context::Context;
use crate::counter::DropReason;
use crate::host::{AtomicOp, Host, RemoteAccess};

/// The longest message (C9-94): 2^31 bytes.
const MAX_MESSAGE: u32 = 1 << 31;

/// Why a request is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Silently dropped (class D), with no consequence.
    Drop(DropReason),
    /// One before this PSN was lost (class B).
    OutOfSequence(LongPsn),
    /// No receive WQE (class B; class D for UC and UD).
    NotReady,
    /// A fault that ends the message, and on a reliable QP the connection.
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The Q_Key fits (datagrams).
pub(super) struct Keyed<'a>(&'a Admitted<'a>);

/// Where the PSN stands.
pub(super) enum Sequenced<'a> {
    /// It is the expected one.
    Expected(Expected<'a>),
    /// It lies before that.
    Duplicate(Duplicate<'a>),
}

/// The PSN is the expected one.
pub(super) struct Expected<'a> {
    request: &'a Admitted<'a>,
    /// FIRST or ONLY.
    starts: bool,
    /// LAST or ONLY.
    ends: bool,
}

/// The request came before.
pub(super) struct Duplicate<'a> {
    pub(super) request: &'a Admitted<'a>,
    pub(super) psn: LongPsn,
}

/// FIRST, MIDDLE, LAST come in order.
pub(super) struct InOrder<'a>(Expected<'a>);

/// What the request asks for, with the headers it needs.
#[derive(Clone, Copy)]
enum Demand {
    Send {
        invalidate: Option<RKey>,
    },
    /// `reth` on FIRST and ONLY.
    Write {
        reth: Option<Reth>,
    },
    Read {
        reth: Reth,
    },
    Atomic {
        va: u64,
        rkey: RKey,
        op: AtomicOp,
    },
    AtomicWrite {
        reth: Reth,
    },
    Flush {
        reth: Reth,
        placement: FlushPlacement,
        level: FlushLevel,
        access: AccessFlags,
    },
}

/// The QP allows the operation.
pub(super) struct Allowed<'a>(Expected<'a>, Demand);

/// What it uses up is there: a receive WQE, or a place to remember it.
pub(super) struct Provided<'a>(Expected<'a>, Demand);

/// What is to be done, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Payload to `offset` of the receive WQE.
    Send {
        offset: u32,
        invalidate: Option<RKey>,
    },
    /// GRH and payload to the receive WQE.
    Datagram,
    /// Payload to `done` bytes after the start of `target`, which is the whole message's.
    Write {
        target: RemoteAccess,
        done: u32,
    },
    Read {
        source: RemoteAccess,
    },
    Atomic {
        target: RemoteAccess,
        op: AtomicOp,
    },
    Flush {
        target: RemoteAccess,
        placement: FlushPlacement,
        level: FlushLevel,
    },
}

/// Its lengths agree.
pub(super) struct Measured<'a>(Expected<'a>, Task);

/// It may touch the memory that it names.
pub(super) struct Granted<'a>(Expected<'a>, Task);

/// It passed every check.
pub(super) struct Sound<'a> {
    pub(super) request: &'a Admitted<'a>,
    pub(super) ends: bool,
    pub(super) task: Task,
    _checked: (),
}

/// The SRQ that an XRC request names; an RC packet has none.
pub(super) fn srqn(ctx: &Context, request: &Admitted<'_>) -> Option<Srqn> {
    if ctx.qp_type == QpType::XrcRecv { request.packet.headers.xrceth } else { None }
}

/// Q_Key: that of the QP (clause 10.2.5). The port counts violations as drops for `BadQKey`.
pub(super) fn q_key<'a>(ctx: &Context, request: &'a Admitted<'a>) -> Result<Keyed<'a>, Stop> {
    if ctx.qp_type == QpType::Ud {
        match request.packet.headers.deth {
            Some(deth) if deth.qkey == ctx.attr.qkey => {}
            Some(_) => return Err(Stop::Drop(DropReason::BadQKey)),
            None => return Err(Stop::Drop(DropReason::Malformed)),
        }
    }
    Ok(Keyed(request))
}

/// PSN: expected, before it (a duplicate) or beyond it (clause 9.7.4.1.1). UC has no duplicates: any other PSN means that
/// something was lost, the message that was coming in is given up, and the next FIRST or ONLY starts afresh.
pub(super) fn psn<'a>(r: &mut Responder, ctx: &Context, keyed: Keyed<'a>) -> Result<Sequenced<'a>, Stop> {
    let Keyed(request) = keyed;
    let position = request.info.position;
    let expected = Expected {
        request,
        starts: matches!(position, Position::First | Position::Only),
        ends: matches!(position, Position::Last | Position::Only),
    };
    if ctx.qp_type == QpType::Ud {
        return Ok(Sequenced::Expected(expected));
    }
    let distance = i64::from(request.packet.headers.bth.psn.since(Psn::new(r.expected as u32)));
    let psn = r.expected.wrapping_add_signed(distance);
    if ctx.is_reliable() {
        return match distance {
            0 => Ok(Sequenced::Expected(expected)),
            1.. => Err(Stop::OutOfSequence(psn)),
            _ => Ok(Sequenced::Duplicate(Duplicate { request, psn })),
        };
    }
    if distance != 0 {
        r.expected = psn;
        r.message = None;
        r.discarding.get_or_insert(DropReason::OutOfSequence);
    }
    if let Some(reason) = r.discarding {
        if !expected.starts {
            r.expected = r.expected.wrapping_add(1);
            return Err(Stop::Drop(reason));
        }
        r.discarding = None;
    }
    Ok(Sequenced::Expected(expected))
}

/// Opcode sequence (clause 9.7.4.1.2): MIDDLE and LAST continue a message of their kind, and nothing else comes between.
/// On UC a new message may start anywhere: the old one lost its LAST and is given up (class D1).
pub(super) fn opcode_sequence<'a>(
    r: &mut Responder,
    ctx: &Context,
    expected: Expected<'a>,
) -> Result<InOrder<'a>, Stop> {
    let srqn = srqn(ctx, expected.request);
    let fits = match (&r.message, expected.request.info.operation) {
        (None, _) => expected.starts,
        (Some(Message::Send { srqn: of, .. }), Operation::Send | Operation::SendWithImm | Operation::SendWithInv) => {
            !expected.starts && *of == srqn
        }
        (Some(Message::Write { target, .. }), Operation::Write | Operation::WriteWithImm) => {
            !expected.starts && target.xrc_srqn == srqn
        }
        _ => false,
    };
    if !fits {
        if ctx.is_reliable() || !expected.starts {
            return Err(Fault::OpcodeSequence.into());
        }
        r.message = None;
    }
    Ok(InOrder(expected))
}

/// Operation: the QP's access flags allow it, and the fields that say what it is have legal values (clause 9.7.4.1.3).
pub(super) fn operation<'a>(ctx: &Context, in_order: InOrder<'a>) -> Result<Allowed<'a>, Stop> {
    let InOrder(expected) = in_order;
    let headers = expected.request.packet.headers;
    let malformed = Stop::Drop(DropReason::Malformed);
    let operation = expected.request.info.operation;
    let (needs, demand) = match operation {
        Operation::Send | Operation::SendWithImm | Operation::SendWithInv => {
            (AccessFlags::empty(), Demand::Send { invalidate: headers.ieth })
        }
        Operation::Write | Operation::WriteWithImm => {
            let reth = if expected.starts { Some(headers.reth.ok_or(malformed)?) } else { None };
            (AccessFlags::REMOTE_WRITE, Demand::Write { reth })
        }
        Operation::ReadRequest => (AccessFlags::REMOTE_READ, Demand::Read { reth: headers.reth.ok_or(malformed)? }),
        Operation::CompareSwap | Operation::FetchAdd => {
            let eth = headers.atomic_eth.ok_or(malformed)?;
            let op = if operation == Operation::CompareSwap {
                AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add }
            } else {
                AtomicOp::FetchAdd { add: eth.swap_or_add }
            };
            (AccessFlags::REMOTE_ATOMIC, Demand::Atomic { va: eth.va, rkey: eth.rkey, op })
        }
        Operation::AtomicWrite => {
            (AccessFlags::REMOTE_WRITE, Demand::AtomicWrite { reth: headers.reth.ok_or(malformed)? })
        }
        Operation::Flush => {
            let (feth, reth) = (headers.feth.ok_or(malformed)?, headers.reth.ok_or(malformed)?);
            let (placement, level, access) = flush_kind(feth).ok_or(Fault::ReservedValue)?;
            (access, Demand::Flush { reth, placement, level, access })
        }
        // Admission hands responses and CNPs to others.
        Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::Cnp => {
            return Err(Stop::Drop(DropReason::WrongTransport));
        }
    };
    let missing = match operation {
        Operation::SendWithImm | Operation::WriteWithImm => headers.imm.is_none(),
        Operation::SendWithInv => headers.ieth.is_none(),
        _ => false,
    };
    if missing {
        return Err(malformed);
    }
    if !ctx.attr.qp_access_flags.contains(needs) {
        return Err(Fault::Unsupported.into());
    }
    Ok(Allowed(expected, demand))
}

/// What a FLUSH reaches, and the rights it needs: placement type bit 0 global visibility, bit 1 persistence, at least one;
/// selectivity 0 range, 1 memory region (annex A19).
fn flush_kind(feth: Feth) -> Option<(FlushPlacement, FlushLevel, AccessFlags)> {
    let (placement, access) = match feth.plt {
        1 => (FlushPlacement::Global, AccessFlags::FLUSH_GLOBAL),
        2 => (FlushPlacement::Persistent, AccessFlags::FLUSH_PERSISTENT),
        3 => (FlushPlacement::GlobalAndPersistent, AccessFlags::FLUSH_GLOBAL.union(AccessFlags::FLUSH_PERSISTENT)),
        _ => return None,
    };
    let level = match feth.sel {
        0 => FlushLevel::Range,
        1 => FlushLevel::MemoryRegion,
        _ => return None,
    };
    Some((placement, level, access))
}

/// Resources (clause 9.7.4.1): a receive WQE for what needs one, which is taken; a place among the `max_dest_rd_atomic`
/// for what must be remembered.
pub(super) fn resources<'a, H: Host>(
    r: &mut Responder,
    ctx: &Context,
    host: &mut H,
    allowed: Allowed<'a>,
) -> Result<Provided<'a>, Stop> {
    let Allowed(expected, demand) = allowed;
    let needs_recv = match demand {
        Demand::Send { .. } => expected.starts,
        Demand::Write { .. } => expected.request.info.operation == Operation::WriteWithImm,
        Demand::Read { .. } | Demand::Atomic { .. } | Demand::AtomicWrite { .. } | Demand::Flush { .. } => {
            r.resources.limit(ctx.attr.max_dest_rd_atomic);
            if !r.resources.has_room() {
                return Err(Fault::TooManyReads.into());
            }
            false
        }
    };
    // UC keeps the WQE of a message that was given up.
    if needs_recv && r.recv.is_none() {
        match host.take_recv(srqn(ctx, expected.request)) {
            Ok(Some(wqe)) => r.recv = Some(wqe),
            Ok(None) => return Err(Stop::NotReady),
            Err(_) => return Err(Fault::UnknownSrq.into()),
        }
    }
    Ok(Provided(expected, demand))
}

/// Length (clause 9.7.4.1.6): FIRST and MIDDLE fill the path MTU, LAST has something, nobody more than that; the packets
/// together are what the RETH said, or fit the receive buffer; no message is longer than 2^31 bytes.
pub(super) fn length<'a>(r: &Responder, ctx: &Context, provided: Provided<'a>) -> Result<Measured<'a>, Stop> {
    let Provided(expected, demand) = provided;
    let payload = expected.request.packet.payload.len();
    let too_long = Stop::Fault(Fault::Length);
    // No datagram is that long; then it does not fit anything below either.
    let len = u32::try_from(payload).map_err(|_| too_long)?;
    let buffer = r.recv.map_or(0, |wqe| wqe.length);
    if ctx.qp_type == QpType::Ud {
        let fits = len.checked_add(GRH_BYTES).is_some_and(|total| total <= buffer);
        return if fits { Ok(Measured(expected, Task::Datagram)) } else { Err(too_long) };
    }
    let pmtu = ctx.pmtu();
    let srqn = srqn(ctx, expected.request);
    let full = match expected.request.info.position {
        Position::First | Position::Middle => len == pmtu,
        Position::Last => (1..=pmtu).contains(&len),
        Position::Only => len <= pmtu,
    };
    let whole = |reth: Reth, access| RemoteAccess {
        rkey: reth.rkey,
        va: reth.va,
        length: u64::from(reth.dma_len),
        access,
        xrc_srqn: srqn,
    };
    let (fits, task) = match demand {
        Demand::Send { invalidate } => {
            let offset = match r.message {
                Some(Message::Send { received, .. }) => received,
                _ => 0,
            };
            let fits = offset.checked_add(len).is_some_and(|total| total <= buffer);
            (full && fits, Task::Send { offset, invalidate })
        }
        Demand::Write { reth } => {
            let (target, done) = match (reth, r.message) {
                (Some(reth), _) => (whole(reth, AccessFlags::REMOTE_WRITE), 0),
                (None, Some(Message::Write { target, done })) => (target, done),
                // The opcode step let no MIDDLE or LAST through without its FIRST.
                (None, _) => return Err(Fault::OpcodeSequence.into()),
            };
            let after = u64::from(done) + u64::from(len);
            let fits = if expected.ends { after == target.length } else { after < target.length };
            (full && fits && target.length <= u64::from(MAX_MESSAGE), Task::Write { target, done })
        }
        Demand::Read { reth } => {
            (len == 0 && reth.dma_len <= MAX_MESSAGE, Task::Read { source: whole(reth, AccessFlags::REMOTE_READ) })
        }
        Demand::Atomic { va, rkey, op } => {
            let target = RemoteAccess { rkey, va, length: 8, access: AccessFlags::REMOTE_ATOMIC, xrc_srqn: srqn };
            (len == 0, Task::Atomic { target, op })
        }
        Demand::AtomicWrite { reth } => {
            // The eight bytes are opaque: they land as they came, in one store.
            let bytes: [u8; 8] = expected.request.packet.payload.try_into().map_err(|_| too_long)?;
            let op = AtomicOp::Write { value: u64::from_ne_bytes(bytes) };
            (reth.dma_len == 8, Task::Atomic { target: whole(reth, AccessFlags::REMOTE_WRITE), op })
        }
        Demand::Flush { reth, placement, level, access } => {
            (len == 0 && reth.dma_len <= MAX_MESSAGE, Task::Flush { target: whole(reth, access), placement, level })
        }
    };
    if fits { Ok(Measured(expected, task)) } else { Err(too_long) }
}

/// R_Key, PD, rights and bounds (clause 9.7.4.1.5): those of the whole message, at its first packet. A host looks again
/// at each access, so what is one access only (a WRITE of one packet, a FLUSH) is left to that look: it comes before the
/// first byte moves, too. Zero bytes need no key (C9-88).
pub(super) fn remote_access<'a, H: Host>(host: &mut H, measured: Measured<'a>) -> Result<Granted<'a>, Stop> {
    let Measured(expected, task) = measured;
    let ask = match &task {
        Task::Write { target, .. } if expected.starts && !expected.ends => Some(target),
        Task::Read { source } if source.length > 0 => Some(source),
        Task::Atomic { target, .. } => Some(target),
        _ => None,
    };
    if let Some(access) = ask {
        host.check_remote(access).map_err(Fault::RemoteAccess)?;
    }
    Ok(Granted(expected, task))
}

/// Atomics want an address that is a multiple of 8 (clause 9.4.5).
pub(super) fn alignment(granted: Granted<'_>) -> Result<Sound<'_>, Stop> {
    let Granted(expected, task) = granted;
    match task {
        Task::Atomic { target, .. } if !target.va.is_multiple_of(8) => Err(Fault::MisalignedAtomic.into()),
        _ => Ok(Sound { request: expected.request, ends: expected.ends, task, _checked: () }),
    }
}
