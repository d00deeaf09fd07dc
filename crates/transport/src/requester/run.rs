//! Steps 3 to 5 of the walk for runs of packets that differ in little: WRITEs that fit one packet each, and the middle packets of
//! a longer one. What does not differ from one to the next is looked at once.
//!
//! It sends only what [`Requester::transmit`] would send now, packet for packet the same; where anything asks for a closer look
//! it leaves off, and `transmit` goes on from there. The two are twins: `tests/runs.rs` lets them send the same WQEs.

use scalefabric_verbs::{QpState, QpType, SendFlags};
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};
use scalefabric_wire::packet::Reth;
use scalefabric_wire::{PKey, Psn};

use super::ack_request::Occasion;
use super::segment::PACKET_COST;
use super::{Requester, is_tight};
use crate::context::Context;
use crate::host::{EmitError, Host, Outgoing, Payload, PlainWrite, Run};

const WRITE_ONLY: Opcode = write(Position::Only);
const WRITE_MIDDLE: Opcode = write(Position::Middle);

const fn write(position: Position) -> Opcode {
    match Opcode::find(Service::Rc, Operation::Write, position) {
        Some(opcode) => opcode,
        None => panic!("the table has every place of a WRITE"),
    }
}

impl Requester {
    /// Whether the next packet is new, and nothing shapes what leaves.
    #[inline]
    fn may_run(&self, ctx: &Context) -> bool {
        ctx.qp_type == QpType::Rc
            && ctx.state == QpState::Rts
            && self.sending.psn == self.max_psn
            && self.control.is_none()
            && ctx.attr.rate_limit | u32::from(ctx.attr.ah_attr.static_rate) == 0
            && self.retry.rnr_until.is_none()
            && self.failed.is_none()
    }

    /// Sends as many packets as it can, at most `budget`, which it counts down. `Err`: why the one at `sending` was not sent.
    #[inline]
    pub(super) fn send_run<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        budget: &mut usize,
    ) -> Result<(), EmitError> {
        if *budget == 0 || !self.may_run(ctx) {
            return Ok(());
        }
        let is_new = self.sending.packet == 0 && self.sending.wqe == self.begun;
        // The host may execute a request without packets, and if it is only because the wire runs dry before.
        if is_new && host.may_execute_directly() {
            return Ok(());
        }
        let Some(wqe) = host.plain_write(self.sending.wqe) else { return Ok(()) };
        let (psn, before) = (self.sending.psn, self.sending.wqe);
        let result = if is_new && wqe.length <= ctx.pmtu() {
            self.send_whole(ctx, host, wqe, budget)
        } else if self.sending.packet > 0 && self.begun == before.wrapping_add(1) {
            self.send_middle(ctx, host, &wqe, budget)
        } else {
            return Ok(());
        };
        if self.sending.psn != psn {
            if is_new {
                self.begun = self.sending.wqe;
            }
            self.max_psn = self.sending.psn;
            self.retry.arm(ctx, host.now());
        }
        result
    }

    /// A packet to begin with; the others differ from it in PSN, AckReq and RETH.
    fn model<H: Host>(&self, ctx: &Context, host: &H, opcode: Opcode) -> Outgoing {
        ctx.packet(opcode, ctx.pkey(host).unwrap_or(PKey(0)), self.sending.psn)
    }

    /// Bytes that may be under way once a packet that costs so much has left; `None` if it may not.
    #[inline]
    fn room_for(&self, ctx: &Context, shared: u32, cost: u32) -> Option<u32> {
        let after = self.inflight.checked_add(cost)?;
        let is_free = (self.inflight == 0 || after <= ctx.config.max_inflight_bytes) && self.counted(ctx) < shared;
        let outstanding = self.packets_under_way();
        (is_free && outstanding + 1 < Psn::MODULUS / 2).then_some(after)
    }

    /// WRITEs of one packet. Each ends a message, so each asks for an ACK.
    fn send_whole<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        mut wqe: PlainWrite,
        budget: &mut usize,
    ) -> Result<(), EmitError> {
        let (pmtu, shared) = (ctx.pmtu(), host.window());
        let mut outgoing = self.model(ctx, host, WRITE_ONLY);
        outgoing.headers.bth.ack_req = true;
        let mut before = None;
        while *budget > 0 && wqe.length <= pmtu {
            if wqe.flags.contains(SendFlags::FENCE) && self.rd_outstanding > 0 {
                break;
            }
            let Some(inflight) = self.room_for(ctx, shared, wqe.length + PACKET_COST) else { break };
            outgoing.headers.bth.psn = self.sending.psn;
            outgoing.headers.reth = Some(Reth { va: wqe.remote_addr, rkey: wqe.rkey, dma_len: wqe.length });
            let payload = match wqe.length {
                0 => Payload::None,
                length => Payload::Wqe { index: self.sending.wqe, offset: 0, length },
            };
            if before == Some(wqe.length) {
                host.emit_alike(&outgoing, payload)?
            } else {
                host.emit(&outgoing, payload)?
            }
            before = Some(wqe.length);
            *budget -= 1;
            self.inflight = inflight;
            self.ack_request.sent(true);
            self.sending.pass(1, 1);
            match host.plain_write(self.sending.wqe) {
                Some(next) => wqe = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Packets of a WRITE that are neither its first nor its last.
    fn send_middle<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        wqe: &PlainWrite,
        budget: &mut usize,
    ) -> Result<(), EmitError> {
        let (pmtu, shared) = (ctx.pmtu(), host.window());
        let last = wqe.length.div_ceil(pmtu).saturating_sub(1);
        let mut outgoing = self.model(ctx, host, WRITE_MIDDLE);
        let mut is_first = true;
        while *budget > 0 && self.sending.packet < last {
            let most = (*budget).min((last - self.sending.packet) as usize);
            let sent = if is_first { 0 } else { self.send_middle_run(ctx, host, shared, &mut outgoing, most) };
            *budget -= sent;
            if sent > 0 {
                continue;
            }
            let Some((inflight, ack_req)) = self.next_middle(ctx, shared) else { break };
            (outgoing.headers.bth.psn, outgoing.headers.bth.ack_req) = (self.sending.psn, ack_req);
            let offset = self.sending.packet * pmtu;
            let payload = Payload::Wqe { index: self.sending.wqe, offset, length: pmtu };
            if is_first {
                host.emit(&outgoing, payload)?
            } else {
                host.emit_alike(&outgoing, payload)?
            }
            is_first = false;
            *budget -= 1;
            self.pass_middle(inflight, ack_req);
        }
        Ok(())
    }

    /// As many of them as the host takes in one go, behind one that has just left: at most `most`. Returns how many left.
    fn send_middle_run<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        shared: u32,
        outgoing: &mut Outgoing,
        most: usize,
    ) -> usize {
        let (pmtu, index) = (ctx.pmtu(), self.sending.wqe);
        let most = host.room_for_run(outgoing, index, pmtu).min(most).min(Run::MOST) as u32;
        let before = (self.sending, self.inflight, self.ack_request);
        outgoing.headers.bth.psn = self.sending.psn;
        let mut run = Run { index, offset: self.sending.packet * pmtu, length: pmtu, count: 0, asks: 0 };
        while run.count < most
            && let Some((inflight, ack_req)) = self.next_middle(ctx, shared)
        {
            self.pass_middle(inflight, ack_req);
            run.asks |= u32::from(ack_req) << run.count;
            run.count += 1;
        }
        if run.count == 0 {
            return 0;
        }
        let sent = host.emit_run(outgoing, run);
        if sent < run.count as usize {
            (self.sending, self.inflight, self.ack_request) = before;
            for number in 0..sent as u32 {
                self.pass_middle(self.inflight + pmtu + PACKET_COST, run.asks(number));
            }
        }
        sent
    }

    /// What would be under way with the next one, and whether it asks for an ACK; `None` if it may not leave.
    #[inline]
    fn next_middle(&self, ctx: &Context, shared: u32) -> Option<(u32, bool)> {
        let cost = ctx.pmtu() + PACKET_COST;
        let inflight = self.room_for(ctx, shared, cost)?;
        let ack_req = self.ack_request.decide(Occasion {
            ends_message: false,
            nothing_follows: u64::from(inflight) + u64::from(cost) > u64::from(ctx.config.max_inflight_bytes)
                || is_tight(ctx, shared)
                || inflight >= shared,
            interval: ctx.config.ack_req_interval,
        });
        Some((inflight, ack_req))
    }

    /// It leaves.
    #[inline]
    fn pass_middle(&mut self, inflight: u32, ack_req: bool) {
        self.inflight = inflight;
        self.ack_request.sent(ack_req);
        self.sending.psn = self.sending.psn.next();
        self.sending.packet += 1;
    }
}
