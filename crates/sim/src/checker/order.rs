//! Order: completions come in the order of posting, and messages in the order of sending.

use scalefabric_verbs::{QpType, WcStatus};

use super::{Checker, Event, Remains, Violation};
use crate::ledger::{Kind, Ledger};
use crate::random::fill;
use crate::wire::Tally;

/// The checker.
#[derive(Debug, Default)]
pub struct Order;

fn wrong(what: String) -> Violation {
    Violation { checker: "order", what }
}

impl Checker for Order {
    fn see(&mut self, ledger: &Ledger, _tally: &Tally, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Completed { flow, op, .. } => {
                let flow = &ledger.flows[flow];
                if op < flow.ended {
                    return Err(wrong(format!(
                        "flow {}: completion of {op} after that of {}",
                        flow.id,
                        flow.ended - 1
                    )));
                }
            }
            Event::Received { flow, wc, message, .. } if wc.status == WcStatus::Success => {
                let flow = &ledger.flows[flow];
                if flow.qp_type == QpType::Ud || !flow.is_reliable() || message.len() < 8 {
                    return Ok(());
                }
                let Some(next) = flow.expect_receive() else { return Ok(()) };
                let is = |index: usize| {
                    let op = &flow.ops[index];
                    let mut start = [0; 8];
                    fill(op.key, 0, &mut start);
                    matches!(op.kind, Kind::Send | Kind::SendImm)
                        && op.length == message.len()
                        && message.starts_with(&start)
                };
                // The next one may be a WRITE with immediate, whose bytes are elsewhere.
                if flow.ops[next].kind != Kind::WriteImm
                    && !is(next)
                    && let Some(other) = (0..flow.ops.len()).find(|&index| is(index))
                {
                    return Err(wrong(format!("flow {}: message {other} came where {next} was due", flow.id)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _ledger: &Ledger, _tally: &Tally, _remains: &Remains) -> Result<(), Violation> {
        Ok(())
    }
}
