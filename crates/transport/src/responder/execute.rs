//! Step 9 of the walk: a request that passed every check is done (clauses 9.4.1 to 9.4.5, 9.4.8 and annex A19).
//!
//! A fault that only shows now (memory that went away, a bad SGE of the receive WQE, an R_Key that cannot be invalidated)
//! leaves the expected PSN and the MSN where they were.

use scalefabric_verbs::{QpType, Qpn, RKey, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use scalefabric_wire::opcode::Operation;

use super::acknowledge::{Executed, Verdict};
use super::check::{Sound, Stop, Task, srqn};
use super::datagram::{GRH_BYTES, grh, header_kind};
use super::fault::Fault;
use super::read::response_packets;
use super::resources::Answer;
use super::{Message, Responder};
use crate::admission::Admitted;
use crate::context::Context;
use crate::counter::{Counter, DropReason};
use crate::host::{AtomicOp, Host, RemoteAccess};

impl Responder {
    /// Does what the request asks for, completes what it completes, and notes what is owed to the peer.
    pub(super) fn execute<H: Host>(&mut self, ctx: &Context, host: &mut H, sound: Sound<'_>) -> Result<(), Stop> {
        let Sound { request, ends, task, .. } = sound;
        let payload = request.packet.payload;
        match task {
            Task::Send { offset, invalidate } => {
                self.scatter(host, offset, payload)?;
                let received = offset + payload.len() as u32;
                self.message = Some(Message::Send { received, srqn: srqn(ctx, request) });
                if ends {
                    if let Some(rkey) = invalidate {
                        host.invalidate_remote(rkey, srqn(ctx, request)).map_err(Fault::Invalidate)?;
                    }
                    self.complete(ctx, host, request, WcOpcode::Recv, received);
                }
                self.executed(ctx, host, request.packet.headers.bth.ack_req, ends);
            }
            Task::Datagram => {
                self.scatter(host, 0, &grh(request.packet))?;
                self.scatter(host, GRH_BYTES, payload)?;
                self.complete(ctx, host, request, WcOpcode::Recv, GRH_BYTES + payload.len() as u32);
            }
            Task::Write { target, done } => {
                let va = target.va.wrapping_add(u64::from(done));
                let piece = RemoteAccess { va, length: payload.len() as u64, ..target };
                if !payload.is_empty() {
                    host.write_remote(&piece, payload).map_err(Fault::RemoteAccess)?;
                }
                let done = done + payload.len() as u32;
                self.message = Some(Message::Write { target, done });
                if ends {
                    host.count(Counter::WriteRequests, 1);
                    if request.info.operation == Operation::WriteWithImm {
                        self.complete(ctx, host, request, WcOpcode::RecvRdmaWithImm, done);
                    }
                }
                self.executed(ctx, host, request.packet.headers.bth.ack_req, ends);
            }
            Task::Read { source } => {
                host.count(Counter::ReadRequests, 1);
                let packets = response_packets(source.length as u32, ctx.pmtu());
                self.answer(Answer::Read(source), packets);
            }
            Task::Atomic { target, op } => {
                let value = host.atomic_remote(&target, op).map_err(Fault::RemoteAccess)?;
                host.count(Counter::AtomicRequests, 1);
                let value = if matches!(op, AtomicOp::Write { .. }) { 0 } else { value };
                self.answer(stored(request, &target, value), 1);
            }
            Task::Flush { target, placement, level } => {
                host.flush_remote(&target, placement, level).map_err(Fault::RemoteAccess)?;
                self.answer(stored(request, &target, 0), 1);
            }
        }
        Ok(())
    }

    fn scatter<H: Host>(&mut self, host: &mut H, offset: u32, data: &[u8]) -> Result<(), Stop> {
        match &self.recv {
            Some(wqe) if !data.is_empty() => {
                host.scatter_recv(wqe, offset, data).map_err(|fault| Fault::LocalProtection(fault).into())
            }
            _ => Ok(()),
        }
    }

    /// A packet of a SEND or WRITE is done: the next PSN, at the end of a message the next MSN, and an ACK.
    #[inline]
    pub(super) fn executed<H: Host>(&mut self, ctx: &Context, host: &mut H, ack_req: bool, ends: bool) {
        if ends {
            self.message = None;
            self.count_message();
        }
        self.advance(1);
        if ctx.is_reliable() {
            self.owe_ack(ctx, host, &Executed { ack_req, ends_message: ends, duplicate: false });
        }
    }

    /// A request with an answer of its own is done (for a READ: accepted, C9-148).
    fn answer(&mut self, answer: Answer, packets: u32) {
        self.count_message();
        self.queue_answer(answer, packets);
        self.advance(packets);
        self.answer_covers_ack();
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0x00ff_ffff;
    }

    /// The expected PSN moves. Who was told to come back has.
    fn advance(&mut self, packets: u32) {
        self.expected = self.expected.wrapping_add(u64::from(packets));
        match self.verdict {
            // The NAK has not left yet. What it was about is still missing, only later; or it came meanwhile.
            Verdict::SequenceNak if self.expected <= self.furthest_dropped => {}
            Verdict::SequenceNak => {
                self.verdict = Verdict::Ack;
                self.awaiting_retry = false;
            }
            Verdict::ReceiverNotReady => {
                self.verdict = Verdict::None;
                self.awaiting_retry = false;
            }
            Verdict::None | Verdict::Ack | Verdict::Fatal(..) => self.awaiting_retry = false,
        }
    }

    /// Completes the receive WQE with success.
    fn complete<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        request: &Admitted<'_>,
        opcode: WcOpcode,
        byte_len: u32,
    ) {
        let Some(wqe) = self.recv.take() else { return };
        let headers = request.packet.headers;
        let mut wc = receive_completion(ctx, wqe.wr_id, WcStatus::Success);
        wc.opcode = opcode;
        wc.byte_len = byte_len;
        if let Some(imm) = headers.imm {
            wc.imm = imm;
            wc.flags |= WcFlags::WITH_IMM;
        }
        if let Some(rkey) = headers.ieth {
            wc.invalidated_rkey = rkey;
            wc.flags |= WcFlags::WITH_INV;
        }
        if let (QpType::Ud, Some(deth)) = (ctx.qp_type, headers.deth) {
            wc.src_qp = deth.src_qp;
            wc.flags |= WcFlags::GRH;
            wc.sl = header_kind(request.packet);
            wc.pkey_index = ctx.attr.pkey_index;
        }
        host.complete_recv(&wqe, &wc, headers.bth.solicited);
    }

    /// Completes the receive WQE in use, if there is one, with an error. Returns whether there was one.
    pub(super) fn complete_in_error<H: Host>(&mut self, ctx: &Context, host: &mut H, status: WcStatus) -> bool {
        self.message = None;
        let Some(wqe) = self.recv.take() else { return false };
        let counter = match status {
            WcStatus::WrFlushErr => Counter::RespondedCqeFlushErrors,
            _ => Counter::RespondedCqeErrors,
        };
        host.count(counter, 1);
        // An event that waits for solicited completions wakes for failed ones, too (clause 11.4.2.2).
        host.complete_recv(&wqe, &receive_completion(ctx, wqe.wr_id, status), true);
        true
    }

    /// A request that is not done: what follows for the QP (clause 9.9.3).
    pub(super) fn refuse<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        psn: super::resources::LongPsn,
        fault: Fault,
    ) -> Result<(), crate::context::Fatal> {
        let row = fault.row();
        host.drop_packet(row.drop);
        if fault == Fault::Length {
            host.count(Counter::LocalLengthErrors, 1);
        }
        if !ctx.is_reliable() && !matches!(fault, Fault::LocalProtection(_)) {
            self.give_up_message(ctx, host, row.status, row.drop);
            return Ok(());
        }
        if ctx.is_reliable() {
            if row.nak == scalefabric_wire::packet::NakCode::RemoteAccessError {
                host.count(Counter::RespondedAccessErrors, 1);
            }
            self.verdict = Verdict::Fatal(row.nak, psn);
            self.parting = true;
        }
        let told = self.complete_in_error(ctx, host, row.status);
        Err(crate::context::Fatal { event: if told { None } else { Some(row.event) } })
    }

    /// UC and UD: the message is lost and nobody hears of it (class D), but a WQE that came from an SRQ cannot go back there,
    /// and the owner of a datagram's buffer that is too small shall know: those complete in error (class E). The QP goes on.
    fn give_up_message<H: Host>(&mut self, ctx: &Context, host: &mut H, status: WcStatus, reason: DropReason) {
        self.message = None;
        let from_srq = self.recv.is_some_and(|wqe| wqe.srq.is_some());
        if ctx.qp_type == QpType::Ud || from_srq {
            self.complete_in_error(ctx, host, status);
        }
        if ctx.qp_type == QpType::Uc {
            self.expected = self.expected.wrapping_add(1);
            self.discarding = Some(reason);
        }
    }

    /// As [`Responder::refuse`] for want of a receive WQE on UC and UD.
    pub(super) fn lose_message(&mut self, ctx: &Context, reason: DropReason) {
        if ctx.qp_type == QpType::Uc {
            self.message = None;
            self.expected = self.expected.wrapping_add(1);
            self.discarding = Some(reason);
        }
    }
}

/// A receive completion with nothing but its identity.
fn receive_completion(ctx: &Context, wr_id: u64, status: WcStatus) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        vendor_err: 0,
        byte_len: 0,
        imm: 0,
        invalidated_rkey: RKey(0),
        qp_num: ctx.qpn,
        src_qp: Qpn::new(0),
        flags: WcFlags::empty(),
        pkey_index: 0,
        sl: 0,
        timestamp_ns: 0,
    }
}

fn stored(request: &Admitted<'_>, target: &RemoteAccess, value: u64) -> Answer {
    Answer::Stored { operation: request.info.operation, va: target.va, rkey: target.rkey, value }
}
