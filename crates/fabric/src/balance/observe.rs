//! Takes what is believed into the history: who is hot, who is down, what was carried out and what failed. It decides no move.

use super::history::{ConnectionMemory, Heat, History, PortMemory};
use super::judge::{ConnectionFact, Facts};
use super::policy::Policy;
use super::sample::{ConnectionKey, PortKey, Route, RouteKey};
use std::collections::BTreeSet;

/// A connection that nobody has spoken of for so long is forgotten, ms; it is new when it comes back.
const FORGET_MS: u64 = 60_000;

/// Takes the facts of a round in.
pub(super) fn observe(history: &mut History, facts: &Facts<'_>, now_ms: u64, policy: &Policy) {
    history.last_ms = now_ms;
    history.recent.retain(|&ordered_ms| now_ms < ordered_ms.saturating_add(1_000));
    note_links(history, facts, now_ms);
    let mut touched = BTreeSet::new();
    for fact in &facts.connections {
        observe_connection(history, fact, facts, now_ms, policy, &mut touched);
    }
    history.connections.retain(|_, memory| now_ms.saturating_sub(memory.seen_ms) <= FORGET_MS);
    for port in touched {
        if let Some(memory) = history.ports.get_mut(&port) {
            memory.touched_ms = Some(now_ms);
        }
    }
    note_heat(history, facts, policy);
}

/// Which ports are up, and since when.
fn note_links(history: &mut History, facts: &Facts<'_>, now_ms: u64) {
    for (&port, fact) in &facts.ports {
        let memory = history.ports.entry(port).or_insert(PortMemory {
            taken_ms: 0,
            since_ms: None,
            up: fact.up,
            heat: [Heat::default(); 2],
            touched_ms: None,
        });
        if memory.up != fact.up {
            (memory.up, memory.since_ms, memory.heat) = (fact.up, Some(now_ms), [Heat::default(); 2]);
        }
    }
}

/// Which are hot. A port of which nothing sensible was said breaks its row of samples.
fn note_heat(history: &mut History, facts: &Facts<'_>, policy: &Policy) {
    for (port, memory) in &mut history.ports {
        let Some(fact) = facts.ports.get(port) else {
            memory.heat.iter_mut().for_each(Heat::interrupt);
            continue;
        };
        if !fact.is_new {
            continue;
        }
        memory.taken_ms = fact.taken_ms;
        let shows = fact.up && memory.is_settled(fact.taken_ms, policy);
        for (direction, heat) in memory.heat.iter_mut().enumerate() {
            if shows { heat.observe(fact.permille(direction), policy) } else { heat.interrupt() }
        }
    }
}

fn observe_connection(
    history: &mut History,
    fact: &ConnectionFact<'_>,
    facts: &Facts<'_>,
    now_ms: u64,
    policy: &Policy,
    touched: &mut BTreeSet<PortKey>,
) {
    let sample = fact.sample;
    let is_up = |port: PortKey| match facts.ports.get(&port) {
        Some(fact) => fact.up,
        None => history.ports.get(&port).is_none_or(|memory| memory.up),
    };
    let all_up = fact.route.ports().all(is_up);
    let find = |key: RouteKey| sample.routes.iter().find(|route| route.key == key);
    let left_down = |key: RouteKey| find(key).is_some_and(|route| !route.ports().all(is_up));
    let memory = history.connections.entry(fact.key()).or_insert_with(|| ConnectionMemory::new(sample.route, now_ms));
    memory.seen_ms = now_ms;
    memory.suspects.retain(|&(_, until)| now_ms < until);
    if memory.route != sample.route {
        touch(touched, find(memory.route));
        touch(touched, Some(fact.route));
        let fled = left_down(memory.route);
        arrive(memory, sample.route, fled, now_ms);
    }
    if find(memory.home).is_none() {
        (memory.home, memory.away) = (sample.route, false);
    }
    if let Some(pending) = memory.pending {
        touch(touched, Some(fact.route));
        touch(touched, find(pending.to));
        if now_ms >= pending.ordered_ms.saturating_add(policy.order_ms) {
            memory.fail(now_ms);
        }
    }
    if let Some(moved_ms) = sample.moved_ms {
        memory.moved_ms = memory.moved_ms.max(Some(moved_ms.min(now_ms)));
    }
    if !fact.is_new {
        return;
    }
    memory.taken_ms = sample.taken_ms;
    let Some(traffic) = fact.traffic.filter(|_| all_up) else {
        memory.lossy = 0;
        return;
    };
    [memory.tx_bps, memory.rx_bps] = traffic.load_bps;
    if traffic.retransmit_permille > policy.retransmit_permille {
        (memory.lossy, memory.lossy_ms) = (memory.lossy.saturating_add(1), now_ms);
    } else {
        memory.lossy = 0;
        if now_ms.saturating_sub(memory.lossy_ms) > policy.suspect_ms {
            memory.lossy_moves = 0;
        }
    }
}

/// It is on another route than before: because it was ordered to, because it fled from a port that is down, or because somebody else moved it.
fn arrive(memory: &mut ConnectionMemory, route: RouteKey, fled: bool, now_ms: u64) {
    let ordered = memory.pending.take().filter(|pending| pending.to == route);
    let keeps_home = match ordered {
        Some(pending) => !pending.settles,
        None => fled,
    };
    if ordered.is_some() {
        memory.failures = 0;
    }
    if keeps_home {
        memory.away = route != memory.home;
    } else {
        (memory.home, memory.away) = (route, false);
    }
    memory.route = route;
    memory.moved_ms = Some(now_ms);
    memory.lossy = 0;
}

fn touch(touched: &mut BTreeSet<PortKey>, route: Option<&Route>) {
    touched.extend(route.into_iter().flat_map(Route::ports));
}

impl History {
    /// What is remembered of a connection that was observed in this round.
    pub(super) fn connection(&self, key: ConnectionKey) -> Option<&ConnectionMemory> {
        self.connections.get(&key)
    }
}
