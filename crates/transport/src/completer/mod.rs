//! Step 11 of the walk: the completer takes ACKs, NAKs and responses, and retires WQEs (clauses 9.7.5.1, 9.7.6, 9.7.7).
//!
//! It works on the requester's state: it moves the `acked` cursor and, after a loss, sets the requester back. An ACK
//! retires everything before it, but READs, atomics, FLUSH and ATOMIC WRITE are retired by their own response only: an
//! ACK beyond one of them implies that its response was lost.

mod nak;
mod read;

use scalefabric_verbs::{SendFlags, WcStatus};
use scalefabric_wire::Psn;
use scalefabric_wire::aeth;
use scalefabric_wire::opcode::Operation;
use scalefabric_wire::packet::Syndrome;

use crate::admission::Admitted;
use crate::congestion::int::Trailer;
use crate::congestion::{Event, Loss};
use crate::context::Context;
use crate::counter::{Counter, DropReason};
use crate::host::Host;
use crate::migration;
use crate::requester::segment::{self, Kind};
use crate::requester::{Requester, Stop};

/// A response whose PSN belongs to something that was sent and is not complete.
struct Expected<'a> {
    response: &'a Admitted<'a>,
    psn: Psn,
}

/// Whether everything up to a PSN could be retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Covered {
    /// Yes.
    All,
    /// No: a request before it still waits for a response of its own.
    Blocked,
}

impl Requester {
    /// Takes a response. `Err`: the WQE at fault is complete and the QP goes to ERR.
    pub(crate) fn receive<H: Host>(
        &mut self,
        ctx: &mut Context,
        host: &mut H,
        response: &Admitted<'_>,
    ) -> Result<(), Stop> {
        let Some(expected) = self.check_psn(host, response) else { return Ok(()) };
        if let Some(control) = &mut self.control {
            control.hear(None);
        }
        if let Some(trailer) = response.packet.trailer {
            self.hear_trailer(host, response.info.operation, trailer);
        }
        match response.info.operation {
            Operation::ReadResponse => self.receive_read(ctx, host, &expected),
            Operation::AtomicAcknowledge => self.receive_atomic(ctx, host, &expected),
            _ => self.receive_ack(ctx, host, &expected),
        }
    }

    /// An ACK brings back what switches wrote on a request; on a READ response they wrote about its own way.
    #[cold]
    fn hear_trailer<H: Host>(&mut self, host: &mut H, operation: Operation, trailer: &Trailer) {
        let wanting = self.control.as_deref_mut().filter(|control| control.wants_telemetry());
        match (wanting, operation, trailer) {
            (Some(control), Operation::ReadResponse, Trailer::Request(records))
            | (Some(control), Operation::Acknowledge, Trailer::Echo(records)) => control.hear(Some(records)),
            _ => host.count(Counter::IgnoredTrailers, 1),
        }
    }

    fn check_psn<'a, H: Host>(&mut self, host: &mut H, response: &'a Admitted<'a>) -> Option<Expected<'a>> {
        let psn = response.packet.headers.bth.psn;
        if psn.is_before(self.acked.psn) {
            // The newest ACK once more may bring new credits (clause 9.7.7.2.4); anything else is old.
            let again = psn.next() == self.acked.psn && response.info.operation == Operation::Acknowledge;
            match response.packet.headers.aeth.map(|a| a.syndrome) {
                Some(Syndrome::Ack(code)) if again => self.take_credits(code),
                _ => host.drop_packet(DropReason::StaleResponse),
            }
            return None;
        }
        if !psn.is_before(self.max_psn) {
            host.drop_packet(DropReason::UnexpectedResponse);
            return None;
        }
        Some(Expected { response, psn })
    }

    fn receive_ack<H: Host>(&mut self, ctx: &mut Context, host: &mut H, ack: &Expected<'_>) -> Result<(), Stop> {
        let headers = ack.response.packet.headers;
        let Some(aeth) = headers.aeth else {
            host.drop_packet(DropReason::Malformed);
            return Ok(());
        };
        match aeth.syndrome {
            Syndrome::Ack(code) => {
                let covered = self.retire_posted(ctx, host, ack.psn.next(), headers.bth.becn);
                if covered == Covered::All {
                    self.take_credits(code);
                }
                self.settle(ctx, host)?;
                if covered == Covered::Blocked { self.implied_nak(ctx, host) } else { Ok(()) }
            }
            Syndrome::RnrNak(code) => self.receive_rnr_nak(ctx, host, ack.psn, code),
            Syndrome::Nak(code) => self.receive_nak(ctx, host, ack.psn, code),
            Syndrome::Reserved(_) => {
                let covered = self.retire_posted(ctx, host, ack.psn, false);
                self.settle(ctx, host)?;
                match covered {
                    Covered::Blocked => self.implied_nak(ctx, host),
                    Covered::All => Err(self.fail_oldest(ctx, host, WcStatus::BadRespErr)),
                }
            }
        }
    }

    /// Credits of an AETH that covers everything before `acked`: the peer has that many receives posted for what comes
    /// next. Code 31 limits nothing.
    ///
    /// The wire's MSN is not looked at: what is complete here is complete there, and counting WQEs gives the same limit
    /// even when READs were asked for in parts. Until the peer names credits there is no limit.
    pub(crate) fn take_credits(&mut self, code: u8) {
        self.credit_limit = aeth::credits(code).map(|credits| self.acked.wqe.wrapping_add(credits));
    }

    /// Retires what an acknowledge covers: all packets before `to`, as far as no request stands in the way that only
    /// its own response retires.
    pub(crate) fn retire_posted<H: Host>(&mut self, ctx: &Context, host: &mut H, to: Psn, ecn_echo: bool) -> Covered {
        let pmtu = ctx.pmtu();
        let mut left = to.since(self.acked.psn).max(0) as u32;
        let mut bytes = 0u32;
        let mut covered = Covered::All;
        while left > 0 {
            if self.acked.packet == 0
                && let Some(plain) = host.plain_write(self.acked.wqe)
                && plain.length <= pmtu
                && !plain.flags.contains(SendFlags::SIGNALED)
            {
                bytes = bytes.saturating_add(plain.length + segment::PACKET_COST);
                self.acked.pass(1, 1);
                left -= 1;
                continue;
            }
            self.retire_local(ctx, host);
            let Some(wqe) = self.oldest(host) else { break };
            if wqe.op.completion() != Kind::Posted {
                covered = Covered::Blocked;
                break;
            }
            let total = segment::packets(&wqe, pmtu);
            let count = left.min(total - self.acked.packet);
            bytes = bytes.saturating_add(segment::cost(&wqe, self.acked.packet, self.acked.packet + count, pmtu));
            self.acked.pass(count, total);
            if self.acked.packet == 0 {
                self.complete(ctx, host, &wqe, WcStatus::Success);
            }
            left -= count;
        }
        self.retire_local(ctx, host);
        self.inflight = self.inflight.saturating_sub(bytes);
        if bytes > 0 {
            self.tell_acknowledged(ctx, host, bytes, ecn_echo, true);
            self.moved = true;
        }
        covered
    }

    /// Tells the controller, if there is one, with the round trip time if the packet whose answer is awaited was answered. `has_room`: answers
    /// of this kind bring telemetry where there is any.
    #[inline]
    fn tell_acknowledged<H: Host>(&mut self, ctx: &Context, host: &mut H, bytes: u32, ecn_echo: bool, has_room: bool) {
        let Some(control) = &mut self.control else { return };
        let now = host.now();
        let acked = self.acked.psn;
        let probe = self.rtt_probe.take_if(|(psn, _)| psn.is_before(acked));
        let rtt_ps = probe.map(|(_, at)| now.since(at).saturating_mul(1_000));
        let silence = control.is_silent(acked, ctx.telemetry, has_room);
        if control.acknowledged(now, bytes, rtt_ps, ecn_echo, silence) {
            host.count(Counter::TelemetryFallbacks, 1);
        }
    }

    /// Completes the WQEs at `acked` that never left the NIC and were executed.
    pub(crate) fn retire_local<H: Host>(&mut self, ctx: &Context, host: &mut H) {
        while self.acked.wqe != self.begun {
            let Some(wqe) = self.oldest(host) else { return };
            if wqe.op.completion() != Kind::Local {
                return;
            }
            self.complete(ctx, host, &wqe, WcStatus::Success);
            self.acked.pass(0, 0);
        }
    }

    /// Retires `count` packets of the request at `acked`, whose own response came.
    fn retire_answered<H: Host>(&mut self, ctx: &Context, host: &mut H, count: u32) {
        let Some(wqe) = self.oldest(host) else { return };
        let pmtu = ctx.pmtu();
        let total = segment::packets(&wqe, pmtu);
        let bytes = segment::cost(&wqe, self.acked.packet, self.acked.packet + count, pmtu);
        self.inflight = self.inflight.saturating_sub(bytes);
        let part_end = segment::read_part_end(total, self.acked.packet, self.read_stride(ctx));
        if self.acked.packet + count >= part_end {
            self.rd_outstanding = self.rd_outstanding.saturating_sub(1);
        }
        self.acked.pass(count, total);
        if self.acked.packet == 0 {
            self.complete(ctx, host, &wqe, WcStatus::Success);
        }
        self.retire_local(ctx, host);
        let has_room = wqe.op.completion() == Kind::Read;
        self.tell_acknowledged(ctx, host, bytes, false, has_room);
        self.moved = true;
    }

    /// After the `acked` cursor may have moved: ring space, timer, counters, and what waited for it.
    fn settle<H: Host>(&mut self, ctx: &Context, host: &mut H) -> Result<(), Stop> {
        if !core::mem::take(&mut self.moved) {
            return Ok(());
        }
        self.retry.progress(ctx);
        self.retry.rnr_until = None;
        self.recovering = false;
        self.nak_taken = false;
        host.retire_sends(self.acked.wqe);
        if self.sending.is_before(&self.acked) {
            // We had gone back, and what was sent before arrived after all.
            self.sending = self.acked;
            self.nothing_in_flight();
        }
        if self.sending.psn == self.acked.psn {
            self.nothing_in_flight();
        } else {
            self.retry.restart(ctx, host.now());
        }
        // A WQE that failed here ends the QP when its turn comes: then the queue is not drained but in error.
        self.check_failed(ctx, host)?;
        self.check_drained(ctx, host);
        Ok(())
    }

    /// The ACK timer and the RNR wait.
    pub(crate) fn on_timer<H: Host>(&mut self, ctx: &mut Context, host: &mut H) -> Result<(), Stop> {
        let now = host.now();
        if self.retry.rnr_until.is_some_and(|t| t <= now) {
            self.retry.rnr_until = None;
        }
        if !self.retry.take_timeout(ctx, now) {
            return Ok(());
        }
        self.losses += 1;
        host.count(Counter::AckTimeouts, 1);
        self.recovering = false;
        self.nak_taken = false;
        self.send_again(ctx, host, Loss::Timeout)
    }

    /// A loss: takes a retry and goes back. When none is left, an armed QP migrates and begins anew there; else it is over
    /// (clauses 9.7.6.1.3 and 17.2.8.1.3).
    fn send_again<H: Host>(&mut self, ctx: &mut Context, host: &mut H, loss: Loss) -> Result<(), Stop> {
        if !self.retry.take() {
            if !migration::migrate_automatically(ctx, host) {
                host.count(Counter::RetryExceeded, 1);
                return Err(self.fail_oldest(ctx, host, WcStatus::RetryExcErr));
            }
            self.retry.progress(ctx);
        }
        self.go_back();
        if let Some(control) = &mut self.control {
            control.handle(host.now(), Event::Lost(loss));
        }
        Ok(())
    }
}
