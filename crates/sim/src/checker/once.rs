//! Exactly once: an atomic takes effect once however often it is repeated, a message uses one receive, a WR makes one
//! completion.

use std::collections::{HashMap, HashSet};

use scalefabric_verbs::WcStatus;

use super::{Checker, Event, Remains, Violation};
use crate::ledger::{Kind, Ledger};
use crate::pattern::Fault;
use crate::wire::Tally;

/// The checker.
#[derive(Debug, Default)]
pub struct Once {
    receives: HashSet<(usize, u64)>,
    /// Messages of unreliable flows that came.
    messages: HashMap<(usize, usize), u64>,
}

fn wrong(what: String) -> Violation {
    Violation { checker: "exactly once", what }
}

impl Checker for Once {
    fn see(&mut self, ledger: &Ledger, tally: &Tally, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Completed { flow, op: index, wc, brought, .. } if wc.status == WcStatus::Success => {
                let flow = &ledger.flows[flow];
                let op = &flow.ops[index];
                if !matches!(op.kind, Kind::CompareSwap | Kind::FetchAdd) {
                    return Ok(());
                }
                let old = u64::from_ne_bytes(brought.try_into().unwrap_or_default());
                if old != op.words[2] {
                    return Err(wrong(format!(
                        "flow {} {:?} {index} found {old:#x} where the operations before it leave {:#x}",
                        flow.id, op.kind, op.words[2]
                    )));
                }
            }
            Event::Received { flow, receive, wc, message, .. } => {
                if !self.receives.insert(receive) {
                    return Err(wrong(format!("receive {} of queue {} completed twice", receive.1, receive.0)));
                }
                let flow = &ledger.flows[flow];
                if wc.status == WcStatus::Success
                    && !flow.is_reliable()
                    && let Some(index) = flow.message(message)
                {
                    // Nobody filters what the wire itself repeats; without that, once is enough.
                    let count = self.messages.entry((flow.id, index)).or_default();
                    *count += 1;
                    if *count > 1 + tally.faults[Fault::Duplicate as usize] {
                        return Err(wrong(format!("flow {}: message {index} came {count} times", flow.id)));
                    }
                }
                if wc.status == WcStatus::Success && flow.is_reliable() && flow.expect_receive().is_none() {
                    return Err(wrong(format!("flow {}: a message that was never sent, or came before", flow.id)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, ledger: &Ledger, _tally: &Tally, remains: &Remains) -> Result<(), Violation> {
        for (nic, &value) in remains.shared.iter().enumerate() {
            let (adds, unknown) = (ledger.shared_adds[nic], ledger.shared_unknown[nic]);
            if value > adds || value + unknown < adds {
                return Err(wrong(format!(
                    "NIC {nic}: {adds} times 1 was added, {unknown} unknown, and the sum is {value}"
                )));
            }
            let mut seen = HashSet::new();
            for &old in &ledger.shared_olds[nic] {
                if old >= value || !seen.insert(old) {
                    return Err(wrong(format!(
                        "NIC {nic}: two additions found {old}, or it is beyond the sum {value}"
                    )));
                }
            }
        }
        Ok(())
    }
}
