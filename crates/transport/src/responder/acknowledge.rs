//! Step 10 of the walk: ACKs and NAKs (clause 9.7.5).
//!
//! What is owed to the peer stands in two places. Answers to READs and atomics are in [`Resources`](super::resources), in
//! the order of their PSNs. Behind the last of them there is one more thing at most, the [`Verdict`]: an ACK or a NAK. One
//! is enough, since an ACK covers everything before its PSN (coalescing, clause 9.7.5.1.2), as does a NAK, and as does an
//! answer: whenever an answer is queued, an ACK that was owed before it is forgotten. A verdict never overtakes an answer.
//!
//! PSN, MSN and credits of a verdict are those of the moment in which it leaves, not of that in which it fell due.

use scalefabric_verbs::QpType;
use scalefabric_wire::Psn;
use scalefabric_wire::aeth::credit_code;
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};
use scalefabric_wire::packet::{Aeth, NakCode, Syndrome};

use super::Responder;
use super::resources::LongPsn;
use crate::congestion::int;
use crate::context::Context;
use crate::counter::{Counter, DropReason};
use crate::host::{EmitError, Host, Payload};

/// A request that was executed and is answered by a plain ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The requester wants an ACK.
    pub ack_req: bool,
    /// It was the last packet of a message.
    pub ends_message: bool,
    /// It was a duplicate: its ACK was lost, or is on its way.
    pub duplicate: bool,
}

/// When an ACK is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckTime {
    /// With the packet.
    Now,
    /// When the batch of received packets ends.
    EndOfBatch,
    /// When a later request asks for one.
    Later,
}

/// Decides when a request is acknowledged. The rule that a policy must keep: a request with AckReq set, and a duplicate,
/// is not left for [`AckTime::Later`] (clause 9.7.5.1.2).
pub trait AckPolicy {
    /// Decides.
    fn ack_time(&self, request: &Executed) -> AckTime;
}

/// The policies there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// One ACK for all of a batch.
    #[default]
    Coalesced,
    /// An ACK for each request that asks, at once, as Linux's rxe does.
    Immediate,
}

impl AckPolicy for Acks {
    fn ack_time(&self, request: &Executed) -> AckTime {
        match self {
            _ if !request.ack_req && !request.duplicate => AckTime::Later,
            Self::Coalesced => AckTime::EndOfBatch,
            Self::Immediate => AckTime::Now,
        }
    }
}

/// What the peer is told after the last answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    #[default]
    None,
    /// Everything before the expected PSN was executed.
    Ack,
    /// The expected PSN is missing: a later one came.
    SequenceNak,
    /// No receive WQE for the request with the expected PSN.
    ReceiverNotReady,
    /// The request at this PSN ends the connection.
    Fatal(NakCode, LongPsn),
}

/// How an attempt to send went.
pub(super) enum Left {
    /// It left, or was lost as on a wire.
    Yes,
    /// The wire has no room.
    Blocked,
}

/// The opcode of an answer, found at compile time.
pub(super) const fn opcode(ctx: &Context, operation: Operation, position: Position) -> Opcode {
    const fn row(service: Service) -> [Opcode; 6] {
        const fn find(service: Service, operation: Operation, position: Position) -> Opcode {
            match Opcode::find(service, operation, position) {
                Some(opcode) => opcode,
                None => panic!("the table has every answer"),
            }
        }
        [
            find(service, Operation::Acknowledge, Position::Only),
            find(service, Operation::AtomicAcknowledge, Position::Only),
            find(service, Operation::ReadResponse, Position::First),
            find(service, Operation::ReadResponse, Position::Middle),
            find(service, Operation::ReadResponse, Position::Last),
            find(service, Operation::ReadResponse, Position::Only),
        ]
    }
    const RC: [Opcode; 6] = row(Service::Rc);
    const XRC: [Opcode; 6] = row(Service::Xrc);
    let row = if matches!(ctx.qp_type, QpType::XrcRecv) { &XRC } else { &RC };
    match (operation, position) {
        (Operation::ReadResponse, Position::First) => row[2],
        (Operation::ReadResponse, Position::Middle) => row[3],
        (Operation::ReadResponse, Position::Last) => row[4],
        (Operation::ReadResponse, Position::Only) => row[5],
        (Operation::AtomicAcknowledge, _) => row[1],
        _ => row[0],
    }
}

impl Responder {
    /// The AETH of an ACK with our credits as they are now. A message that is coming in has its WQE already: it counts as
    /// a credit, because the MSN does not count it yet.
    pub(super) fn ack_aeth<H: Host>(&self, ctx: &Context, host: &H, msn: u32) -> Aeth {
        let code = if ctx.config.advertise_credits && ctx.qp_type == QpType::Rc {
            let in_use = u32::from(self.recv.is_some());
            host.posted_recvs().map_or(Syndrome::NO_CREDITS, |n| credit_code(n.saturating_add(in_use)))
        } else {
            Syndrome::NO_CREDITS
        };
        Aeth { syndrome: Syndrome::Ack(code), msn }
    }

    /// A request that a plain ACK answers was executed, or came again.
    pub(super) fn owe_ack<H: Host>(&mut self, ctx: &Context, host: &mut H, request: &Executed) {
        let time = ctx.config.acks.ack_time(request);
        if time != AckTime::Later && self.verdict == Verdict::None {
            self.verdict = Verdict::Ack;
        }
        if time == AckTime::Now && self.resources.first_unsent().is_none() {
            // Blocked: it stays owed, and leaves in the next turn.
            let _ = self.emit_verdict(ctx, host);
        }
    }

    /// An answer was queued, which acknowledges all before it.
    pub(super) fn answer_covers_ack(&mut self) {
        if self.verdict == Verdict::Ack {
            self.verdict = Verdict::None;
        }
    }

    /// Sends the verdict. The answers have left.
    pub(super) fn emit_verdict<H: Host>(&mut self, ctx: &Context, host: &mut H) -> Left {
        let (psn, aeth) = match self.verdict {
            Verdict::None => return Left::Yes,
            Verdict::Ack => (self.expected - 1, self.ack_aeth(ctx, host, self.msn)),
            Verdict::SequenceNak => (self.expected, self.nak_aeth(NakCode::PsnSequenceError)),
            Verdict::ReceiverNotReady => {
                (self.expected, Aeth { syndrome: Syndrome::RnrNak(ctx.attr.min_rnr_timer), msn: self.msn })
            }
            Verdict::Fatal(code, psn) => (psn, self.nak_aeth(code)),
        };
        if let Some(pkey) = ctx.pkey(host) {
            let opcode = opcode(ctx, Operation::Acknowledge, Position::Only);
            let mut packet = ctx.packet(opcode, pkey, Psn::new(psn as u32));
            packet.headers.aeth = Some(aeth);
            let emitted = match &mut self.telemetry {
                Some((records, returned)) if !*returned && ctx.telemetry => {
                    let emitted = host.emit_trailed(&packet, Payload::None, &int::echo(records));
                    *returned = emitted.is_ok();
                    emitted
                }
                _ => host.emit(&packet, Payload::None),
            };
            if emitted == Err(EmitError::Blocked) {
                return Left::Blocked;
            }
        } else {
            // Our P_Key was taken out of the table: nothing of ours reaches the peer any more.
            host.drop_packet(DropReason::BadPKey);
        }
        match self.verdict {
            Verdict::ReceiverNotReady => host.count(Counter::SentRnrNaks, 1),
            Verdict::SequenceNak | Verdict::Fatal(..) => host.count(Counter::SentNaks, 1),
            Verdict::None | Verdict::Ack => {}
        }
        self.verdict = Verdict::None;
        Left::Yes
    }

    fn nak_aeth(&self, code: NakCode) -> Aeth {
        Aeth { syndrome: Syndrome::Nak(code), msn: self.msn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_asks_is_never_left_for_later() {
        for policy in [Acks::Coalesced, Acks::Immediate] {
            for (ack_req, duplicate) in [(true, false), (false, true), (true, true)] {
                let request = Executed { ack_req, ends_message: true, duplicate };
                assert_ne!(policy.ack_time(&request), AckTime::Later);
            }
            let request = Executed { ack_req: false, ends_message: true, duplicate: false };
            assert_eq!(policy.ack_time(&request), AckTime::Later);
        }
    }
}
