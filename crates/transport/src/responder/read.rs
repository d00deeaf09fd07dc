//! Answers: READ responses, streamed from memory packet by packet, and the stored results of atomics, ATOMIC WRITE and
//! FLUSH (clauses 9.7.5.1.1, 9.7.5.1.5; annex A19 answers the last two with an empty READ response ONLY).
//!
//! The memory of a READ is checked again at each packet: a region that went away in the middle ends the READ, and the
//! connection, with a NAK at the PSN that could not be answered.

use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Operation, Position};

use super::Responder;
use super::acknowledge::{Left, opcode};
use super::fault::Fault;
use super::resources::{Answer, LongPsn, Remembered, Unsent};
use crate::congestion::int;
use crate::context::Context;
use crate::counter::DropReason;
use crate::host::{EmitError, Host, Payload, RemoteAccess};

/// Packets that answer a READ of `length` bytes: one even for none.
pub(super) fn response_packets(length: u32, pmtu: u32) -> u32 {
    length.div_ceil(pmtu).max(1)
}

impl Responder {
    /// Sends the next packet of the oldest answer that has one. The error is the READ's: its PSN and what is wrong. `alike` says whether the
    /// packet before it, sent in the same call, was a MIDDLE: the next MIDDLE differs from it in PSN and payload only.
    pub(super) fn emit_answer<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        at: usize,
        alike: &mut bool,
    ) -> Result<Left, (Fault, LongPsn)> {
        let request = *self.resources.get(at);
        let Some(unsent) = request.unsent else { return Ok(Left::Yes) };
        let Some(pkey) = ctx.pkey(host) else {
            // Our P_Key was taken out of the table: nothing of ours reaches the peer any more.
            host.drop_packet(DropReason::BadPKey);
            self.resources.sent(at, None);
            return Ok(Left::Yes);
        };
        let (operation, position, payload, rest) = match request.answer {
            Answer::Read(source) => {
                let (position, length, rest) = next_piece(&unsent, ctx.pmtu());
                let piece = RemoteAccess { va: unsent.va, length: u64::from(length), ..source };
                let payload = if length == 0 { Payload::None } else { Payload::Remote(piece) };
                (Operation::ReadResponse, position, payload, rest)
            }
            Answer::Stored { operation: Operation::CompareSwap | Operation::FetchAdd, .. } => {
                (Operation::AtomicAcknowledge, Position::Only, Payload::None, None)
            }
            Answer::Stored { .. } => (Operation::ReadResponse, Position::Only, Payload::None, None),
        };
        let mut packet = ctx.packet(opcode(ctx, operation, position), pkey, Psn::new(unsent.psn as u32));
        if position != Position::Middle {
            packet.headers.aeth = Some(self.ack_aeth(ctx, host, request.msn));
        }
        if let (Operation::AtomicAcknowledge, Answer::Stored { value, .. }) = (operation, request.answer) {
            packet.headers.atomic_ack_eth = Some(value);
        }
        let is_middle = position == Position::Middle && !request.has_room;
        let emitted = if request.has_room && operation == Operation::ReadResponse {
            host.emit_trailed(&packet, payload, &int::ROOM)
        } else if is_middle && *alike {
            host.emit_alike(&packet, payload)
        } else {
            host.emit(&packet, payload)
        };
        *alike = is_middle && emitted.is_ok();
        match emitted {
            // A status is for send WQEs: an answer that gets one is lost on the way.
            Ok(()) | Err(EmitError::Status(_)) => {
                self.resources.sent(at, rest);
                Ok(Left::Yes)
            }
            Err(EmitError::Blocked) => Ok(Left::Blocked),
            Err(EmitError::Access(fault)) => Err((Fault::RemoteAccess(fault), unsent.psn)),
            Err(EmitError::Local(fault)) => Err((Fault::LocalProtection(fault), unsent.psn)),
        }
    }

    /// Queues the first answer to a request that takes up the PSNs from the expected one.
    pub(super) fn queue_answer(&mut self, answer: Answer, packets: u32) {
        let first = self.expected;
        let (va, left) = match answer {
            Answer::Read(source) => (source.va, source.length as u32),
            Answer::Stored { .. } => (0, 0),
        };
        self.resources.remember(Remembered {
            first,
            last: first + u64::from(packets) - 1,
            msn: self.msn,
            answer,
            answered: false,
            has_room: self.answers_have_room,
            unsent: Some(Unsent { psn: first, va, left, started: false }),
        });
    }
}

/// Place and length of the next packet of a READ response, and what is left after it.
fn next_piece(unsent: &Unsent, pmtu: u32) -> (Position, u32, Option<Unsent>) {
    let length = unsent.left.min(pmtu);
    let left = unsent.left - length;
    let position = match (unsent.started, left) {
        (false, 0) => Position::Only,
        (false, _) => Position::First,
        (true, 0) => Position::Last,
        (true, _) => Position::Middle,
    };
    let rest = Unsent { psn: unsent.psn + 1, va: unsent.va.wrapping_add(u64::from(length)), left, started: true };
    (position, length, (left > 0).then_some(rest))
}
