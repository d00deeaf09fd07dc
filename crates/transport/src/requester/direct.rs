//! One-sided requests that the host executes by itself, because the peer is a QP on the same host (D3).
//!
//! They take no PSNs and leave no trace in the protocol: a request goes this way only while nothing of the QP is under way, so
//! both ends agree on what the next packet is before and after. What the PSNs would have been is only counted, for `query`.

use scalefabric_verbs::{QpAttr, QpState, QpType, WcStatus};

use super::segment::{self, Kind};
use super::{Requester, Stop, pacing};
use crate::context::{Context, Fatal};
use crate::counter::Counter;
use crate::host::{Direct, Host, SendWqe, WqeOp};

/// What every RC QP may do: nothing is left to be asked of the table.
#[inline]
fn is_plain(wqe: &SendWqe) -> bool {
    matches!(wqe.op, WqeOp::Write { .. }) && wqe.length <= segment::MAX_MESSAGE
}

/// What of a turn's budget a part of a long message takes, in packets: others must have their turn, too.
const PART: usize = 64;

/// Work that is worth letting the wire run dry for, bytes. To wait for one answer takes about as long as a peer on the same host needs for so many
/// bytes by packets. Less, and a program that sends a message behind each WRITE would wait with each WRITE for the message before.
const WORTH: u32 = 64 << 10;

/// What a message counts for at least: a packet costs as much as a few thousand bytes.
const LEAST: u32 = 4 << 10;

/// Requests that need nothing of the peer's engine.
#[inline]
fn is_one_sided(op: &WqeOp) -> bool {
    matches!(
        op,
        WqeOp::Write { .. }
            | WqeOp::Read { .. }
            | WqeOp::CompareSwap { .. }
            | WqeOp::FetchAdd { .. }
            | WqeOp::AtomicWrite { .. }
            | WqeOp::Flush { .. }
    )
}

/// What a request counts for.
#[inline]
fn weight(wqe: &SendWqe) -> u32 {
    wqe.length.max(LEAST)
}

/// How far a request came.
pub(super) enum Passed {
    /// It is executed and complete.
    Whole,
    /// The rest needs another turn.
    Part,
    /// It has to go as packets.
    Not,
}

/// What packets would have moved: what a port's counters see of a request that none carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets of the request.
    pub request_packets: u32,
    /// Their bytes, BTH to ICRC.
    pub request_bytes: u64,
    /// Packets of the answer, one ACK for each message.
    pub answer_packets: u32,
    /// Their bytes.
    pub answer_bytes: u64,
}

/// BTH and ICRC.
const FRAME: u64 = 12 + 4;
const RETH: u64 = 16;
const AETH: u64 = 4;

impl Traffic {
    /// Of one request of `psns` PSNs.
    #[inline]
    pub fn of(wqe: &SendWqe, psns: u32) -> Self {
        let payload = u64::from(wqe.length.next_multiple_of(4));
        if let WqeOp::Write { .. } = wqe.op {
            return Self::of_writes(1, psns, payload);
        }
        let packets = u64::from(psns);
        let (request_packets, request_bytes, answer_packets, answer_bytes) = match wqe.op {
            // The first and the last of the answer have an AETH.
            WqeOp::Read { .. } => (1, FRAME + RETH, psns, packets * FRAME + packets.min(2) * AETH + payload),
            WqeOp::CompareSwap { .. } | WqeOp::FetchAdd { .. } => (1, FRAME + 28, 1, FRAME + AETH + 8),
            WqeOp::AtomicWrite { .. } => (1, FRAME + RETH + 8, 1, FRAME + AETH),
            WqeOp::Flush { .. } => (1, FRAME + 4 + RETH, 1, FRAME + AETH),
            _ => (0, 0, 0, 0),
        };
        Self { request_packets, request_bytes, answer_packets, answer_bytes }
    }

    /// Of so many WRITEs, which take `psns` PSNs and carry `padded` bytes, padding included.
    #[inline]
    pub fn of_writes(count: u32, psns: u32, padded: u64) -> Self {
        let (messages, packets) = (u64::from(count), u64::from(psns));
        Self {
            request_packets: psns,
            request_bytes: packets * FRAME + messages * RETH + padded,
            answer_packets: count,
            answer_bytes: messages * (FRAME + AETH),
        }
    }

    /// Adds it to the counters of a port that both ends share.
    #[inline]
    pub fn count(&self, mut add: impl FnMut(Counter, u64)) {
        let packets = u64::from(self.request_packets) + u64::from(self.answer_packets);
        let bytes = self.request_bytes + self.answer_bytes;
        add(Counter::SentPackets, packets);
        add(Counter::SentBytes, bytes);
        add(Counter::ReceivedPackets, packets);
        add(Counter::ReceivedBytes, bytes);
    }
}

impl Requester {
    /// Whether nothing is under way, nor shapes what leaves.
    #[inline]
    fn is_at_rest(&self, ctx: &Context) -> bool {
        self.sending == self.acked && self.max_psn == self.acked.psn && self.is_unshaped(ctx)
    }

    /// Whether nothing shapes what leaves.
    #[inline]
    fn is_unshaped(&self, ctx: &Context) -> bool {
        ctx.qp_type == QpType::Rc
            && self.failed.is_none()
            && self.control.is_none()
            && (ctx.attr.rate_limit | u32::from(ctx.attr.ah_attr.static_rate) == 0
                || pacing::rate_kbps(ctx.attr.rate_limit, ctx.attr.ah_attr.static_rate) == 0)
    }

    /// Whether requests may be executed that stand in no queue, where `posted` is the index that the next WQE will have.
    #[inline]
    pub(crate) fn may_execute_unqueued(&self, ctx: &Context, posted: u32) -> bool {
        ctx.state == QpState::Rts
            && posted == self.begun
            && self.acked.wqe == posted
            && self.is_at_rest(ctx)
            && self.retry.rnr_until.is_none()
    }

    /// Lets `execute` do a request that stands in no queue, since the queue is empty: `posted` is the index that the next WQE will have.
    /// `execute` gets the attributes and the request's PSNs. False if it has to be queued; then nothing was done.
    #[inline(always)]
    pub(crate) fn execute_unqueued<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        posted: u32,
        wqe: &SendWqe,
        execute: impl FnOnce(&mut H, &QpAttr, u32) -> Direct,
    ) -> Result<bool, Stop> {
        let may = self.may_execute_unqueued(ctx, posted);
        if !may || !(is_plain(wqe) || segment::check(ctx, wqe, u32::MAX).is_ok()) {
            return Ok(false);
        }
        let psns = segment::packets(wqe, ctx.pmtu());
        let status = match execute(host, &ctx.attr, psns) {
            Direct::Wire | Direct::Part(_) => return Ok(false),
            Direct::Done => WcStatus::Success,
            Direct::Failed(status) => status,
        };
        self.executed_psns = self.executed_psns.wrapping_add(psns);
        Self::report(ctx, host, wqe, status);
        match status {
            WcStatus::Success => Ok(true),
            _ => Err(Stop::Error(Fatal { event: None })),
        }
    }

    /// Whether a WQE that was never begun may be executed by the host: nothing is under way, and nothing shapes the wire.
    #[inline]
    pub(super) fn may_go_directly(&self, ctx: &Context, wqe: &SendWqe) -> bool {
        is_one_sided(&wqe.op) && self.is_at_rest(ctx)
    }

    /// Whether the wire shall run dry before a WQE that was never begun, because the host would then execute it and those behind it. Otherwise who keeps
    /// the queue filled would send packets for ever, once one request went as a packet.
    ///
    /// What is under way has asked for its answers, since messages ended, and is sent again by its timer: that brings the end of the waiting, or that of
    /// the QP. What has to be a packet does not wait here, and the host is asked before, so that a peer which only packets reach does not lose its pipeline.
    #[inline]
    pub(super) fn waits_to_go_directly<H: Host>(&self, ctx: &Context, host: &mut H, wqe: &SendWqe) -> bool {
        is_one_sided(&wqe.op)
            && self.sending != self.acked
            && self.one_sided.saturating_add(weight(wqe)) >= WORTH
            && self.is_unshaped(ctx)
            && host.may_execute_directly()
            && host.could_execute_directly(wqe, &ctx.attr)
    }

    /// A WQE is begun as packets.
    #[inline]
    pub(super) fn begun_as_packets(&mut self, wqe: &SendWqe) {
        self.one_sided = if is_one_sided(&wqe.op) { self.one_sided.saturating_add(weight(wqe)) } else { 0 };
    }

    /// Lets the host execute what is posted, as far as it can without packets; at most `budget`, which it counts down. True if nothing is left.
    #[inline]
    pub(crate) fn transmit_directly<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        budget: &mut usize,
    ) -> Result<bool, Stop> {
        if self.sending.wqe != self.begun || self.retry.rnr_until.is_some() {
            return Ok(false);
        }
        loop {
            if ctx.state != QpState::Rts {
                return Ok(false);
            }
            let Some(wqe) = self.head(host) else { return Ok(true) };
            if !self.may_go_directly(ctx, &wqe) || segment::check(ctx, &wqe, u32::MAX).is_err() {
                return Ok(false);
            }
            match self.go_directly(ctx, host, &wqe, budget)? {
                Passed::Whole => {}
                Passed::Part | Passed::Not => return Ok(false),
            }
        }
    }

    /// Lets the host execute the WQE at `sending`, which is also that at `acked`.
    #[inline]
    pub(super) fn go_directly<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        wqe: &SendWqe,
        budget: &mut usize,
    ) -> Result<Passed, Stop> {
        if *budget == 0 {
            return Ok(Passed::Part);
        }
        let psns = segment::packets(wqe, ctx.pmtu());
        loop {
            let done = self.direct.filter(|(index, _)| *index == wqe.index).map_or(0, |(_, done)| done);
            match host.execute_directly(wqe, &ctx.attr, done, psns) {
                Direct::Wire => {
                    self.direct = None;
                    // It may have been waited for in vain: not again at once.
                    self.one_sided = 0;
                    return Ok(Passed::Not);
                }
                Direct::Part(bytes) => {
                    self.direct = Some((wqe.index, done.saturating_add(bytes)));
                    *budget = budget.saturating_sub(PART);
                    if *budget == 0 {
                        return Ok(Passed::Part);
                    }
                }
                Direct::Done => {
                    if host.shows() {
                        self.show(ctx, host, wqe);
                    }
                    self.executed(ctx, host, wqe, psns);
                    *budget -= 1;
                    return Ok(Passed::Whole);
                }
                Direct::Failed(status) => {
                    self.direct = None;
                    self.executed_psns = self.executed_psns.wrapping_add(psns);
                    return Err(self.fail_oldest(ctx, host, status));
                }
            }
        }
    }

    fn executed<H: Host>(&mut self, ctx: &Context, host: &mut H, wqe: &SendWqe, psns: u32) {
        self.direct = None;
        self.executed_psns = self.executed_psns.wrapping_add(psns);
        // Credits are counted in WQEs, and this one took none.
        self.credit_limit = self.credit_limit.map(|limit| limit.wrapping_add(1));
        self.begun = self.begun.wrapping_add(1);
        self.sending.pass(0, 0);
        self.acked.pass(0, 0);
        self.complete(ctx, host, wqe, WcStatus::Success);
        host.retire_sends(self.acked.wqe);
        debug_assert!(wqe.op.completion() != Kind::Local, "what never leaves is not executed by the host's peer");
    }
}
