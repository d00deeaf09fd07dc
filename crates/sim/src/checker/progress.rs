//! Progress: everything completes, or fails with exactly the status that the retry limits promise, not before and not much
//! later than they promise it.

use scalefabric_verbs::WcStatus;

use super::{Checker, Event, Remains, Violation};
use crate::ledger::Ledger;
use crate::wire::Tally;

/// The checker.
#[derive(Debug, Default)]
pub struct Progress;

fn wrong(what: String) -> Violation {
    Violation { checker: "progress", what }
}

impl Checker for Progress {
    fn see(&mut self, ledger: &Ledger, tally: &Tally, event: &Event<'_>) -> Result<(), Violation> {
        let Event::Completed { flow, op, wc, now, .. } = *event else { return Ok(()) };
        let flow = &ledger.flows[flow];
        // Completions come in order, so a signaled one that was passed over will never come.
        if let Some(lost) = (flow.ended..op).find(|&index| flow.ops[index].signaled) {
            return Err(wrong(format!("flow {}: {lost} was signaled, and {op} completed without it", flow.id)));
        }
        if wc.status == WcStatus::Success {
            return Ok(());
        }
        if flow.failed.is_some() {
            return match wc.status {
                WcStatus::WrFlushErr => Ok(()),
                other => Err(wrong(format!("flow {}: {other} for {op} after the QP had failed", flow.id))),
            };
        }
        let limits = flow.limits;
        let heard = tally.heard(flow.from, wc.qp_num).map(|heard| heard.patience(now));
        match (wc.status, heard) {
            (WcStatus::RetryExcErr, Some(heard)) => {
                // Each repetition was brought about by a timeout, or by an answer that did not help.
                let silence = heard.silence_ns;
                // The timer counts from the sending, which was up to a round trip before the last answer.
                let round_trip = (limits.timeout_ns / 2).min(60_000);
                let tries = (silence + round_trip) / limits.timeout_ns + u64::from(heard.fruitless);
                if tries <= u64::from(limits.retry_cnt) {
                    return Err(wrong(format!(
                        "flow {}: gave up on {op} after {silence} ns and {} fruitless answers; retry_cnt {} and timeout {} \
                         ns promise more",
                        flow.id, heard.fruitless, limits.retry_cnt, limits.timeout_ns
                    )));
                }
                Ok(())
            }
            (WcStatus::RnrRetryExcErr, Some(heard)) => {
                if limits.rnr_retry == 7 || heard.rnr_naks <= u32::from(limits.rnr_retry) {
                    return Err(wrong(format!(
                        "flow {}: gave up on {op} after {} RNR NAKs; rnr_retry {} promises more",
                        flow.id, heard.rnr_naks, limits.rnr_retry
                    )));
                }
                Ok(())
            }
            (status, _) => Err(wrong(format!(
                "flow {}: operation {op} ended with {status}, for which there is no reason",
                flow.id
            ))),
        }
    }

    fn end(&mut self, ledger: &Ledger, _tally: &Tally, remains: &Remains) -> Result<(), Violation> {
        for flow in &ledger.flows {
            if flow.vanished {
                continue;
            }
            if flow.outstanding() > 0 {
                let op = &flow.ops[flow.ended];
                return Err(wrong(format!(
                    "flow {} ({} from NIC {} to {}): {} operations never ended, the first is {} {:?} of {} bytes, time {}",
                    flow.id,
                    flow.qp_type,
                    flow.from,
                    flow.to,
                    flow.outstanding(),
                    flow.ended,
                    op.kind,
                    op.length,
                    remains.now
                )));
            }
            if flow.is_reliable()
                && flow.failed.is_none()
                && flow.orphaned_ns.is_none()
                && let Some(index) = flow.expect_receive()
            {
                return Err(wrong(format!("flow {}: message {index} is complete and was never received", flow.id)));
            }
            if let (Some(orphaned), Some((_, WcStatus::RetryExcErr, failed))) = (flow.orphaned_ns, flow.failed) {
                // Four times the timeout is what the standard allows a timer to take (clause 9.7.6.1.3).
                let longest = (u64::from(flow.limits.retry_cnt) + 2) * 4 * flow.limits.timeout_ns;
                if failed > orphaned.saturating_add(longest).saturating_add(2_000_000) {
                    return Err(wrong(format!("flow {}: {} ns to notice a dead peer", flow.id, failed - orphaned)));
                }
            }
        }
        Ok(())
    }
}
