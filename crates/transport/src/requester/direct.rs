//! One-sided requests that the host executes by itself, because the peer is a QP on the same host (D3).
//!
//! They take no PSNs and leave no trace in the protocol: a request goes this way only while nothing of the QP is under way, so
//! both ends agree on what the next packet is before and after. What the PSNs would have been is only counted, for `query`.

use scalefabric_verbs::{QpState, QpType, WcStatus};

use super::segment::{self, Kind};
use super::{Requester, Stop, rate};
use crate::context::Context;
use crate::host::{Direct, Host, SendWqe, WqeOp};

/// What of a turn's budget a part of a long message takes, in packets: others must have their turn, too.
const PART: usize = 64;

/// How far a request came.
pub(super) enum Passed {
    /// It is executed and complete.
    Whole,
    /// The rest needs another turn.
    Part,
    /// It has to go as packets.
    Not,
}

impl Requester {
    /// Whether a WQE that was never begun may be executed by the host: nothing is under way, and nothing shapes the wire.
    #[inline]
    pub(super) fn may_go_directly(&self, ctx: &Context, wqe: &SendWqe) -> bool {
        let one_sided = matches!(
            wqe.op,
            WqeOp::Write { .. }
                | WqeOp::Read { .. }
                | WqeOp::CompareSwap { .. }
                | WqeOp::FetchAdd { .. }
                | WqeOp::AtomicWrite { .. }
                | WqeOp::Flush { .. }
        );
        ctx.qp_type == QpType::Rc
            && one_sided
            && self.sending == self.acked
            && self.max_psn == self.acked.psn
            && self.failed.is_none()
            && self.control.is_none()
            && rate(ctx, wqe) == 0
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
