//! Steps 8 and 9 of the walk for a WRITE whose packet is like the one before it: from the same peer by the same way, with the same
//! first eight bytes of BTH. What those decide was decided then, and here is the short way through what is left: PSN, place in the message,
//! length, rights, memory.
//!
//! It does only what succeeds. Whatever a request can be refused for, or is out of order, goes the long way (`walk`), which says why;
//! nothing has happened then. The two ways are twins: `tests/alike.rs` lets them take the same packets.

use scalefabric_verbs::{AccessFlags, MigState, QpType};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Operation, Position};
use scalefabric_wire::packet::Reth;

use super::{Message, Responder};
use crate::admission::{Admitted, Receiver};
use crate::context::Context;
use crate::counter::Counter;
use crate::host::{Host, RemoteAccess};

/// What differs between a packet and the one before it.
#[derive(Clone, Copy, Debug)]
pub struct Alike<'a> {
    /// PSN.
    pub psn: Psn,
    /// AckReq.
    pub ack_req: bool,
    /// RETH, if the opcode has one.
    pub reth: Option<Reth>,
    /// Payload without pad.
    pub payload: &'a [u8],
}

impl Responder {
    /// The place in a message of packets like this one, if they may take the short way.
    pub(crate) fn place_of_alike(ctx: &Context, admitted: &Admitted<'_>) -> Option<Position> {
        let plain = ctx.qp_type == QpType::Rc
            // In another state a packet may change the path.
            && ctx.attr.path_mig_state == MigState::Migrated
            && admitted.receiver == Receiver::Responder
            && admitted.info.operation == Operation::Write
            && matches!(admitted.info.position, Position::Only | Position::Middle)
            && admitted.packet.trailer.is_none()
            && !admitted.packet.is_ce();
        plain.then_some(admitted.info.position)
    }

    /// Takes a WRITE; false if it has to go the long way.
    #[inline]
    pub(crate) fn receive_alike<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        position: Position,
        packet: &Alike<'_>,
    ) -> bool {
        let in_order = packet.psn == self.expected_psn() && self.established;
        if !in_order || !ctx.attr.qp_access_flags.contains(AccessFlags::REMOTE_WRITE) {
            return false;
        }
        let (length, pmtu) = (packet.payload.len() as u64, u64::from(ctx.pmtu()));
        let (target, done) = match (position, &self.message, packet.reth) {
            (Position::Only, None, Some(reth)) if length == u64::from(reth.dma_len) && length <= pmtu => {
                let access = AccessFlags::REMOTE_WRITE;
                (RemoteAccess { rkey: reth.rkey, va: reth.va, length, access, xrc_srqn: None }, 0)
            }
            (Position::Middle, Some(Message::Write { target, done }), _) if length == pmtu => {
                if u64::from(*done) + length >= target.length {
                    return false;
                }
                (*target, *done)
            }
            _ => return false,
        };
        if length > 0 {
            let piece = RemoteAccess { va: target.va.wrapping_add(u64::from(done)), length, ..target };
            if host.write_remote(&piece, packet.payload).is_err() {
                return false;
            }
        }
        let ends = position == Position::Only;
        if ends {
            host.count(Counter::WriteRequests, 1);
        } else {
            self.message = Some(Message::Write { target, done: done + length as u32 });
        }
        self.executed(ctx, host, packet.ack_req, ends);
        true
    }
}
