//! Step 7 of the walk, the part that needs the QP: the checks that every packet passes, request or response, before the
//! responder or the completer sees it (clause 9.6.1: service, QP state, P_Key, source).
//!
//! Each check is a step that returns what the next one needs; [`Admitted`] can only be made by the last one.

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{AddressVector, MigState, QpState, QpType};
use scalefabric_wire::opcode::{OpcodeInfo, Operation, Service};

use crate::context::Context;
use crate::counter::DropReason;
use crate::host::{Host, Incoming};

/// Which part of a QP a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// A request: the responder.
    Responder,
    /// ACK, NAK, READ response or ATOMIC acknowledge: the completer.
    Completer,
    /// A CNP: the congestion controller.
    Controller,
}

/// A packet that passed every check that does not depend on what it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Admitted<'a> {
    /// The packet.
    pub packet: &'a Incoming<'a>,
    /// Its opcode's row.
    pub info: &'static OpcodeInfo,
    /// Whom it is for.
    pub receiver: Receiver,
    /// It came by the alternate path and asks us to migrate; `QueuePair` does that before it hands the packet on.
    pub(crate) migrate: bool,
    _checked: (),
}

struct ServiceChecked<'a>(&'a Incoming<'a>, &'static OpcodeInfo, Receiver);
struct StateChecked<'a>(ServiceChecked<'a>);
struct SourceChecked<'a>(StateChecked<'a>, bool);

/// Passes `packet` through all checks; counts the reason and returns `None` if it is dropped.
pub fn admit<'a, H: Host>(ctx: &mut Context, host: &mut H, packet: &'a Incoming<'a>) -> Option<Admitted<'a>> {
    let admitted = check_service(ctx, packet)
        .and_then(|p| check_state(ctx, p))
        .and_then(|p| check_source(ctx, host, p))
        .and_then(|p| check_pkey(ctx, host, p));
    match admitted {
        Ok(admitted) => Some(admitted),
        Err(reason) => {
            host.drop_packet(reason);
            None
        }
    }
}

fn check_service<'a>(ctx: &Context, packet: &'a Incoming<'a>) -> Result<ServiceChecked<'a>, DropReason> {
    let info = packet.headers.bth.opcode.info();
    let receiver = match info.operation {
        Operation::Cnp => Receiver::Controller,
        Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse => Receiver::Completer,
        _ => Receiver::Responder,
    };
    // A CNP has an opcode of its own and goes to QPs of every service.
    if info.service != Service::Cnp && info.service != ctx.service() {
        return Err(DropReason::WrongTransport);
    }
    // An XRC initiator has no responder, an XRC target no requester (annex A14).
    match (ctx.qp_type, receiver) {
        (QpType::XrcSend, Receiver::Responder) | (QpType::XrcRecv, Receiver::Completer) => {
            Err(DropReason::WrongTransport)
        }
        _ => Ok(ServiceChecked(packet, info, receiver)),
    }
}

fn check_state<'a>(ctx: &Context, p: ServiceChecked<'a>) -> Result<StateChecked<'a>, DropReason> {
    let takes = match p.2 {
        Receiver::Responder => matches!(ctx.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe),
        Receiver::Completer => matches!(ctx.state, QpState::Rts | QpState::Sqd),
        Receiver::Controller => matches!(ctx.state, QpState::Rts | QpState::Sqd | QpState::Sqe),
    };
    if takes { Ok(StateChecked(p)) } else { Err(DropReason::QpState) }
}

/// A connected QP hears its peer only: by the right port, from the right address, to the right address (the LIDs of
/// clause 9.6.1.5 are IP addresses here). In ARMED a packet with MigReq set is a wish to migrate, and then it is the
/// alternate path that must match (clause 17.2.8.1.3).
fn check_source<'a, H: Host>(
    ctx: &mut Context,
    host: &mut H,
    p: StateChecked<'a>,
) -> Result<SourceChecked<'a>, DropReason> {
    let packet = p.0.0;
    if ctx.qp_type == QpType::Ud {
        // Anybody may send to a UD QP, but it has one port (clause 10.2.4), whose P_Keys count.
        let ours = packet.port_num == ctx.attr.port_num;
        return if ours { Ok(SourceChecked(p, false)) } else { Err(DropReason::WrongPeer) };
    }
    let comes_by = |host: &mut H, path: &AddressVector, port_num: u8| {
        packet.port_num == port_num && packet.src == path.dgid && packet.dst == host.gid(port_num, path.sgid_index)
    };
    let primary = comes_by(host, &ctx.attr.ah_attr, ctx.attr.port_num);
    if ctx.attr.path_mig_state != MigState::Armed || !packet.headers.bth.mig_req || p.0.2 == Receiver::Controller {
        return if primary { Ok(SourceChecked(p, false)) } else { Err(DropReason::WrongPeer) };
    }
    if comes_by(host, &ctx.attr.alt_ah_attr, ctx.attr.alt_port_num) {
        return Ok(SourceChecked(p, true));
    }
    // By the primary path it can only be a packet from before the peer armed itself. By another it is a migration to a
    // path that we do not know.
    if !primary && !ctx.migration_error_raised {
        ctx.migration_error_raised = true;
        host.event(EventType::PathMigErr);
    }
    Err(DropReason::WrongPeer)
}

fn check_pkey<'a, H: Host>(ctx: &Context, host: &mut H, p: SourceChecked<'a>) -> Result<Admitted<'a>, DropReason> {
    let SourceChecked(StateChecked(ServiceChecked(packet, info, receiver)), migrate) = p;
    let (port_num, index) = match (ctx.qp_type, migrate) {
        (_, true) => (ctx.attr.alt_port_num, ctx.attr.alt_pkey_index),
        _ => (ctx.attr.port_num, ctx.attr.pkey_index),
    };
    match host.pkey(port_num, index) {
        Some(ours) if ours.matches(packet.headers.bth.pkey) => {
            Ok(Admitted { packet, info, receiver, migrate, _checked: () })
        }
        _ => Err(DropReason::BadPKey),
    }
}
