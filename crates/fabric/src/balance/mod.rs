//! The balancing rule: which connections should leave which ports, and why. A pure function of what was measured, run alike by the control plane, by the
//! simulator and by tests. It may not read a clock or remember anything outside its arguments; the same arguments give the same plan.
//!
//! The rules, the most urgent first: the operator's own moves; off ports that are down, or that the operator wants empty; off hot ports
//! ([`Policy::hot_permille`] and what follows it); away from losses; home, when a port has returned.

mod ground;
mod history;
mod judge;
mod observe;
mod outcome;
mod policy;
mod relieve;
mod round;
mod sample;
mod search;
#[cfg(test)]
mod tests;

pub use history::History;
pub use outcome::{Doubt, DoubtReason, Effort, Move, Plan, Reason, Refusal, Subject};
pub use policy::{Freeze, Policy, Wishes};
pub use sample::{ConnectionKey, ConnectionSample, Direction, PortKey, PortSample, Route, RouteKey, Snapshot};

/// One round: what was measured goes in, moves come out, and the history for the next round with them ([`Plan::history`]).
///
/// Never moves a connection to a port that is down, drained or unknown, and to a hot one only from a port that is down when there is no other.
/// No move for load brings a port above [`Policy::fill_permille`]. The same snapshot given again with the new history moves nothing again.
pub fn plan(snapshot: &Snapshot<'_>, policy: &Policy, wishes: &Wishes, mut history: History) -> Plan {
    let mut plan = Plan::default();
    if policy.check().is_err() {
        plan.refusals.push(Refusal::BadPolicy);
        plan.history = history;
        return plan;
    }
    let now_ms = snapshot.now_ms;
    if now_ms < history.last_ms {
        plan.refusals.push(Refusal::ClockWentBack { by_ms: history.last_ms - now_ms });
        history.rebase(now_ms);
        plan.history = history;
        return plan;
    }
    let (facts, doubts) = judge::judge(snapshot, policy, &history);
    plan.doubts = doubts;
    observe::observe(&mut history, &facts, now_ms, policy);
    plan.hot = hot(&facts, &history);
    let mut round = round::Round::new(now_ms, policy, wishes, &facts, history, plan);
    round.obey();
    round.evacuate();
    relieve::relieve(&mut round);
    round.flee_losses();
    round.come_home();
    round.finish()
}

/// The hot ports, with their load.
fn hot(facts: &judge::Facts<'_>, history: &History) -> Vec<(PortKey, Direction, u32)> {
    let mut hot = Vec::new();
    for (&port, fact) in &facts.ports {
        let Some(memory) = history.ports.get(&port) else { continue };
        for direction in [Direction::Transmit, Direction::Receive] {
            if memory.heat(direction).hot {
                hot.push((port, direction, fact.permille(direction as usize)));
            }
        }
    }
    hot
}
