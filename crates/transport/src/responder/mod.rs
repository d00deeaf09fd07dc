//! Steps 8 to 10 of the walk: the responder checks a request, executes it and acknowledges it (clauses 9.4, 9.7.4, 9.7.5,
//! 9.8, 9.9.3; annexes A14 for XRC, A17 for CNPs, A19 for FLUSH and ATOMIC WRITE).
//!
//! One file a step: `check` (what may be done), `alike` (the short way through it for the packets of a train), `execute` (doing it), `duplicate` (what was done before), `read` and
//! `resources` (answers that take their time, and their memory), `acknowledge` (ACK and NAK), `fault` (what follows from an
//! error), `datagram` (the GRH), `notify` (CNPs). This one holds what they share and walks a request through them.
//!
//! Nothing is allocated for a packet; the only memory is the ring of remembered requests, made at the first READ or atomic.

mod acknowledge;
mod alike;
mod check;
mod datagram;
mod duplicate;
mod execute;
mod fault;
mod notify;
mod read;
mod resources;
#[cfg(test)]
mod tests;

pub use acknowledge::{AckPolicy, AckTime, Acks, Executed};
pub use alike::Alike;
pub use notify::{CnpPolicy, Cnps};

use alloc::boxed::Box;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{QpState, QpType, Srqn, WcStatus};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::Operation;

use crate::admission::Admitted;
use crate::congestion::int::{Records, Trailer};
use crate::congestion::{Event, NotificationPoint};
use crate::context::{Context, Fatal};
use crate::counter::{Counter, DropReason};
use crate::host::{Host, RecvWqe, RemoteAccess};
use crate::queue_pair::Next;
use crate::requester::control::{Controlled, Permission};
use crate::time::Time;
use acknowledge::{Left, Verdict};
use check::{Sequenced, Stop};
use fault::Fault;
use resources::{LongPsn, Resources};

/// A message of several packets that is coming in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// SEND: bytes so far, and for XRC the SRQ.
    Send { received: u32, srqn: Option<Srqn> },
    /// WRITE: its whole range, and bytes so far.
    Write { target: RemoteAccess, done: u32 },
}

/// The responder of one QP.
#[derive(Debug)]
pub struct Responder {
    /// The PSN that the next request must have.
    expected: LongPsn,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The message that is coming in, if it has more than one packet.
    message: Option<Message>,
    /// The receive WQE in use. UC keeps that of a message which was given up.
    recv: Option<RecvWqe>,
    /// UC: what is left of a message is dropped, for the reason that its loss had.
    discarding: Option<DropReason>,
    /// A sequence NAK or RNR NAK is owed or has left, and the expected PSN has not come since: what lies beyond it is dropped
    /// without another NAK (clauses 9.7.5.2.2 and 9.7.5.2.8).
    awaiting_retry: bool,
    /// The furthest PSN that was dropped for being out of sequence.
    furthest_dropped: LongPsn,
    /// Answers to READs and atomics.
    resources: Resources,
    /// The ACK or NAK that goes behind the answers.
    verdict: Verdict,
    /// In ERR by our own fault: answers and NAK still leave, so that the peer learns which request it was.
    parting: bool,
    /// COMM_EST was raised.
    established: bool,
    /// LAST_WQE_REACHED was raised.
    last_wqe_told: bool,
    /// When marked packets are answered.
    notification: NotificationPoint,
    /// What switches wrote on the newest request, and whether it was sent back.
    telemetry: Option<(Box<Records>, bool)>,
    /// The READ that is being looked at came with a trailer.
    answers_have_room: bool,
}

/// Long PSNs start here, so that those of duplicates are positive.
const FIRST_LONG_PSN: LongPsn = Psn::MODULUS as LongPsn;

impl Default for Responder {
    fn default() -> Self {
        Self::new()
    }
}

impl Responder {
    /// As in RESET.
    pub fn new() -> Self {
        Self {
            expected: FIRST_LONG_PSN,
            msn: 0,
            message: None,
            recv: None,
            discarding: None,
            awaiting_retry: false,
            furthest_dropped: 0,
            resources: Resources::default(),
            verdict: Verdict::None,
            parting: false,
            established: false,
            last_wqe_told: false,
            notification: NotificationPoint::default(),
            telemetry: None,
            answers_have_room: false,
        }
    }

    /// Forgets everything, as the transition to RESET wants. Receive WQEs are the host's to drop, the one in use included.
    pub fn reset(&mut self) {
        let mut resources = core::mem::take(&mut self.resources);
        resources.clear();
        *self = Self { resources, ..Self::new() };
    }

    /// INIT to RTR: the first request will carry `rq_psn`.
    pub fn start(&mut self, rq_psn: Psn) {
        self.expected = FIRST_LONG_PSN + u64::from(rq_psn.get());
    }

    /// The PSN expected next: `rq_psn` of a query.
    pub fn expected_psn(&self) -> Psn {
        Psn::new(self.expected as u32)
    }

    /// Takes a request. `Err`: the WQE at fault is completed, the NAK is remembered, and the QP goes to ERR.
    pub fn receive<H: Host>(&mut self, ctx: &Context, host: &mut H, request: &Admitted<'_>) -> Result<(), Fatal> {
        self.answers_have_room = false;
        if let Some(trailer) = request.packet.trailer {
            self.take_trailer(ctx, host, request, trailer);
        }
        let stop = match self.walk(ctx, host, request) {
            Ok(()) => return Ok(()),
            Err(stop) => stop,
        };
        match stop {
            Stop::Drop(reason) => host.drop_packet(reason),
            Stop::OutOfSequence(psn) => self.out_of_sequence(host, psn),
            Stop::NotReady => self.not_ready(ctx, host),
            Stop::Fault(fault) => return self.refuse(ctx, host, self.expected, fault),
        }
        Ok(())
    }

    /// Records of a request are sent back; a READ that has room for them asks for room on its responses.
    #[cold]
    fn take_trailer<H: Host>(&mut self, ctx: &Context, host: &mut H, request: &Admitted<'_>, trailer: &Trailer) {
        match trailer {
            Trailer::Request(_) if ctx.telemetry && request.info.operation == Operation::ReadRequest => {
                self.answers_have_room = true;
            }
            Trailer::Request(records) if ctx.telemetry => self.remember_telemetry(records),
            _ => host.count(Counter::IgnoredTrailers, 1),
        }
    }

    /// The next ACK sends it back. A place for it is made once in a QP's life.
    fn remember_telemetry(&mut self, records: &Records) {
        match &mut self.telemetry {
            Some((place, returned)) => (**place, *returned) = (*records, false),
            None => self.telemetry = Some((Box::new(*records), false)),
        }
    }

    /// The steps of a request.
    fn walk<H: Host>(&mut self, ctx: &Context, host: &mut H, request: &Admitted<'_>) -> Result<(), Stop> {
        let keyed = check::q_key(ctx, request)?;
        let expected = match check::psn(self, ctx, keyed)? {
            Sequenced::Expected(expected) => expected,
            Sequenced::Duplicate(duplicate) => return self.duplicate(ctx, host, &duplicate),
        };
        self.establish(ctx, host);
        let in_order = check::opcode_sequence(self, ctx, expected)?;
        let allowed = check::operation(ctx, in_order)?;
        let provided = check::resources(self, ctx, host, allowed)?;
        let measured = check::length(self, ctx, provided)?;
        let granted = check::remote_access(host, measured)?;
        let sound = check::alignment(granted)?;
        self.execute(ctx, host, sound)
    }

    /// Whether the first packet has come.
    pub(crate) fn is_established(&self) -> bool {
        self.established
    }

    /// The first packet of a connection that is still in RTR tells the application that its peer is there (clause 11.6.3.1).
    fn establish<H: Host>(&mut self, ctx: &Context, host: &mut H) {
        if ctx.state == QpState::Rtr && !self.established && ctx.qp_type != QpType::Ud {
            host.event(EventType::CommEst);
        }
        self.established = true;
    }

    /// Something was lost. One NAK says so; until the expected PSN has come nothing more is said (clause 9.7.5.2.2).
    fn out_of_sequence<H: Host>(&mut self, host: &mut H, psn: LongPsn) {
        host.drop_packet(DropReason::OutOfSequence);
        host.count(Counter::OutOfSequence, 1);
        self.furthest_dropped = self.furthest_dropped.max(psn);
        if !self.awaiting_retry {
            self.awaiting_retry = true;
            self.verdict = Verdict::SequenceNak;
        }
    }

    fn not_ready<H: Host>(&mut self, ctx: &Context, host: &mut H) {
        host.drop_packet(DropReason::ReceiverNotReady);
        if ctx.is_reliable() {
            self.awaiting_retry = true;
            self.verdict = Verdict::ReceiverNotReady;
        } else {
            self.lose_message(ctx, DropReason::ReceiverNotReady);
        }
    }

    /// An admitted packet (request or response, not a CNP) was marked CE: answers with a CNP, not too often.
    pub fn congestion_experienced<H: Host>(&mut self, ctx: &Context, host: &mut H, _packet: &Admitted<'_>) {
        notify::answer_mark(ctx, host, &mut self.notification);
    }

    /// Sends what is pending in order (READ responses, ACKs, a NAK), at most `budget` packets, which it counts down.
    /// Also called in ERR, so that the NAK that explains the error leaves. [`Next::Idle`] when nothing is left.
    /// With `hold_ack` a plain ACK is kept back. A congestion controller paces READ responses as it does requests.
    pub(crate) fn transmit<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        budget: &mut usize,
        hold_ack: bool,
        mut control: Option<&mut Controlled>,
    ) -> Result<Next, Fatal> {
        if ctx.state == QpState::Err && !self.parting {
            return Ok(Next::Idle);
        }
        let mut alike = false;
        while let Some(at) = self.resources.first_unsent() {
            if *budget == 0 {
                return Ok(Next::Ready);
            }
            let wire_bytes = self.resources.get(at).next_cost(ctx.pmtu());
            if let (Some(control), Some(_)) = (&mut control, wire_bytes)
                && let Permission::NotBefore(at) = control.pace(host.now())
            {
                return Ok(Next::At(at));
            }
            match self.emit_answer(ctx, host, at, &mut alike) {
                Ok(Left::Yes) => {
                    *budget -= 1;
                    if let (Some(control), Some(wire_bytes)) = (&mut control, wire_bytes) {
                        control.handle(host.now(), Event::Sent { flight_bytes: 0, wire_bytes });
                    }
                }
                Ok(Left::Blocked) => return Ok(Next::Blocked),
                Err((fault, psn)) => self.cannot_answer(ctx, host, at, fault, psn)?,
            }
        }
        if self.verdict != Verdict::None && !(hold_ack && self.verdict == Verdict::Ack) {
            if *budget == 0 {
                return Ok(Next::Ready);
            }
            match self.emit_verdict(ctx, host) {
                Left::Yes => *budget -= 1,
                Left::Blocked => return Ok(Next::Blocked),
            }
        }
        Ok(Next::Idle)
    }

    /// The memory of a READ went away before its answer left. Was it answered before, that copy may still be on its way, and
    /// nothing is lost but the repetition.
    fn cannot_answer<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        at: usize,
        fault: Fault,
        psn: LongPsn,
    ) -> Result<(), Fatal> {
        if self.resources.get(at).answered {
            host.drop_packet(fault.row().drop);
            self.resources.sent(at, None);
            return Ok(());
        }
        self.resources.stop_sending();
        if self.parting {
            // A later request was refused already; this one comes first.
            self.verdict = Verdict::Fatal(fault.row().nak, psn);
            return Ok(());
        }
        self.refuse(ctx, host, psn, fault)
    }

    /// The batch of received packets is over: one ACK for all of it. Behind answers it waits for them, in `transmit`.
    pub fn end_of_batch<H: Host>(&mut self, ctx: &Context, host: &mut H) -> Result<(), Fatal> {
        if self.resources.first_unsent().is_none() && (ctx.state != QpState::Err || self.parting) {
            // Blocked: it stays owed, and leaves in the next turn.
            let _ = self.emit_verdict(ctx, host);
        }
        Ok(())
    }

    /// True if the peer is owed something that `transmit` has to send.
    pub fn owes(&self) -> bool {
        self.verdict != Verdict::None || self.resources.first_unsent().is_some()
    }

    /// True if the peer is owed nothing, or an ACK that the end of the batch sends.
    #[inline]
    pub fn owes_ack_at_most(&self) -> bool {
        matches!(self.verdict, Verdict::None | Verdict::Ack) && self.resources.first_unsent().is_none()
    }

    /// True if the peer is owed an ACK and nothing else.
    #[inline]
    pub fn owes_plain_ack(&self) -> bool {
        self.verdict == Verdict::Ack && self.resources.first_unsent().is_none()
    }

    /// When [`Responder::on_timer`] has something to do: never, the responder waits for packets only.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Runs what is due.
    pub fn on_timer<H: Host>(&mut self, _ctx: &Context, _host: &mut H) {}

    /// The QP is in ERR: completes the receive WQE of a message that was coming in, then everything in the RQ, with
    /// WR_FLUSH_ERR, in order. With an SRQ it raises LAST_WQE_REACHED, once. Called again when more was posted.
    pub fn flush<H: Host>(&mut self, ctx: &Context, host: &mut H) {
        self.complete_in_error(ctx, host, WcStatus::WrFlushErr);
        if matches!(ctx.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return;
        }
        if host.posted_recvs().is_none() {
            if !self.last_wqe_told {
                self.last_wqe_told = true;
                host.event(EventType::QpLastWqeReached);
            }
            return;
        }
        while let Ok(Some(wqe)) = host.take_recv(None) {
            self.recv = Some(wqe);
            self.complete_in_error(ctx, host, WcStatus::WrFlushErr);
        }
    }
}
