//! One round of the balancing rule: its rules in order of urgency. Each one sees the ports as the rules before it leave them. The rule for hot
//! ports is in [`super::relieve`].

use super::ground::{Fit, Ground};
use super::history::{ConnectionMemory, History, Pending};
use super::judge::{ConnectionFact, Facts};
use super::outcome::{Move, Plan, Reason, Refusal};
use super::policy::{Freeze, Policy, Wishes};
use super::sample::{ConnectionKey, PortKey, Route, RouteKey};
use std::collections::BTreeSet;

/// What a round works with.
pub(super) struct Round<'a> {
    pub now_ms: u64,
    pub policy: &'a Policy,
    pub wishes: &'a Wishes,
    pub facts: &'a Facts<'a>,
    pub ground: Ground,
    pub history: History,
    /// Connections that have been given a move, or cannot be given one.
    pub taken: BTreeSet<ConnectionKey>,
    /// Moves that the rate limit still allows.
    pub budget: u32,
    /// Moves that it does not, and that a freeze does not.
    late: u32,
    frozen: u32,
    pub plan: Plan,
}

impl<'a> Round<'a> {
    pub fn new(
        now_ms: u64,
        policy: &'a Policy,
        wishes: &'a Wishes,
        facts: &'a Facts<'a>,
        history: History,
        plan: Plan,
    ) -> Self {
        let ground = Ground::new(facts, &history, wishes, policy, now_ms);
        let recent = u32::try_from(history.recent.len()).unwrap_or(u32::MAX);
        let budget = policy.moves_per_round.min(policy.moves_per_second.saturating_sub(recent));
        let (taken, late, frozen) = (BTreeSet::new(), 0, 0);
        Self { now_ms, policy, wishes, facts, ground, history, taken, budget, late, frozen, plan }
    }

    /// The plan. Its history holds what was ordered.
    pub fn finish(mut self) -> Plan {
        if self.late > 0 {
            self.plan.refusals.push(Refusal::RateLimit { moves: self.late });
        }
        if self.frozen > 0 {
            self.plan.refusals.push(Refusal::Frozen { moves: self.frozen });
        }
        self.plan.history = self.history;
        self.plan
    }

    /// The operator's own moves.
    pub fn obey(&mut self) {
        for (&connection, &wish) in &self.wishes.moves {
            let Some(fact) = self.fact(connection) else { continue };
            if fact.sample.route == wish {
                continue;
            }
            let open = fact.sample.routes.iter().find(|route| route.key == wish);
            let Some(to) = open.filter(|route| self.ground.is_open(route)) else {
                self.plan.refusals.push(Refusal::WishImpossible { connection, route: wish });
                continue;
            };
            if self.can_be_told(fact) && !self.must_wait(connection) {
                self.order(fact, to, Reason::Operator);
            }
        }
    }

    /// Off ports that are down, and off those that the operator wants empty: the largest first, each to where there is most room.
    pub fn evacuate(&mut self) {
        let mut leaving: Vec<(ConnectionFact<'a>, Reason)> = Vec::new();
        for fact in &self.facts.connections {
            if !self.wishes.pinned.contains(&fact.key()) && self.can_be_told(*fact) && !self.must_wait(fact.key()) {
                leaving.extend(self.why_leave(fact.route).map(|reason| (*fact, reason)));
            }
        }
        let is_down = |reason: &Reason| matches!(reason, Reason::PortDown { .. });
        leaving.sort_by_cached_key(|(fact, reason)| {
            let size = self.load(fact.key()).iter().fold(0, |sum: u64, load| sum.saturating_add(*load));
            (!is_down(reason), std::cmp::Reverse(size), fact.key())
        });
        for (fact, reason) in leaving {
            // A port that is down carries nothing: any other one is better. One that is to be emptied can wait for a good place.
            let worst = if is_down(&reason) { Fit::Hot } else { Fit::Tight };
            match self.best(fact, worst, |_| true) {
                Some(to) => self.order(fact, to, reason),
                None => self.plan.refusals.push(Refusal::NowhereToGo { connection: fact.key() }),
            }
        }
    }

    /// Away from losses. A route that was left for them is not taken again for a while.
    pub fn flee_losses(&mut self) {
        for fact in &self.facts.connections {
            let Some(memory) = self.history.connection(fact.key()) else { continue };
            let Some(traffic) = fact.traffic else { continue };
            if memory.lossy < self.policy.samples || !self.may_choose(*fact) {
                continue;
            }
            let suspects = memory.suspects.clone();
            let other = |route: &Route| !suspects.iter().any(|&(suspect, _)| suspect == route.key);
            match self.best(*fact, Fit::Good, other) {
                Some(to) => {
                    self.order(*fact, to, Reason::Retransmissions { permille: traffic.retransmit_permille });
                }
                None => self.plan.refusals.push(Refusal::NowhereToGo { connection: fact.key() }),
            }
        }
    }

    /// Home, once the port that had been down has been up for long enough and has room.
    pub fn come_home(&mut self) {
        for fact in &self.facts.connections {
            let Some(memory) = self.history.connection(fact.key()).filter(|memory| memory.away) else { continue };
            let Some(home) = fact.sample.routes.iter().find(|route| route.key == memory.home) else { continue };
            if memory.is_suspect(home.key, self.now_ms) || !self.may_choose(*fact) {
                continue;
            }
            let load = self.load(fact.key());
            if self.ground.fit(fact.route, home, load).is_some_and(|(fit, _)| fit == Fit::Good) {
                self.order(*fact, home, Reason::PortReturned { port: returned(fact.route, home) });
            }
        }
    }

    /// A connection of which was spoken.
    fn fact(&self, connection: ConnectionKey) -> Option<ConnectionFact<'a>> {
        let facts = &self.facts.connections;
        let n = facts.binary_search_by_key(&connection, ConnectionFact::key).ok()?;
        Some(facts[n])
    }

    /// What it carries, as last believed while its ports were up.
    pub fn load(&self, connection: ConnectionKey) -> [u64; 2] {
        self.history.connection(connection).map_or([0; 2], |memory| [memory.tx_bps, memory.rx_bps])
    }

    /// Whether it can be told to move at all.
    fn can_be_told(&self, fact: ConnectionFact<'_>) -> bool {
        let key = fact.key();
        fact.sample.movable && !self.taken.contains(&key) && self.history.ordered(key).is_none()
    }

    /// Whether its last order failed a short while ago. Only this holds up those who must move.
    fn must_wait(&self, connection: ConnectionKey) -> bool {
        self.history.connection(connection).is_some_and(|memory: &ConnectionMemory| {
            let wait_ms = self.policy.settle_ms.saturating_mul(1 << memory.failures.min(6));
            memory.failures > 0 && memory.moved_ms.is_some_and(|moved| self.now_ms < moved.saturating_add(wait_ms))
        })
    }

    /// Whether the rule may move it for a reason that can wait.
    pub fn may_choose(&self, fact: ConnectionFact<'_>) -> bool {
        let key = fact.key();
        let rests = |memory: &ConnectionMemory| memory.is_resting(self.now_ms, self.policy);
        self.can_be_told(fact)
            && !self.wishes.pinned.contains(&key)
            && !self.wishes.moves.contains_key(&key)
            && !self.history.connection(key).is_none_or(rests)
    }

    /// Why a route must be left, if it must.
    fn why_leave(&self, route: &Route) -> Option<Reason> {
        let spots = || route.ports().filter_map(|port| self.ground.spot(port));
        let down = spots().find(|spot| !spot.up).map(|spot| Reason::PortDown { port: spot.port });
        let drained = || spots().find(|spot| spot.drained).map(|spot| Reason::PortDrained { port: spot.port });
        down.or_else(drained)
    }

    /// The best of its other routes that are not worse than `worst`: by fit, then by how full the fullest port gets, then in its own order.
    fn best(&self, fact: ConnectionFact<'a>, worst: Fit, allowed: impl Fn(&Route) -> bool) -> Option<&'a Route> {
        let load = self.load(fact.key());
        let mut best: Option<(bool, Fit, u32, &'a Route)> = None;
        for route in &fact.sample.routes {
            if route.key == fact.route.key || !allowed(route) {
                continue;
            }
            let Some((fit, level)) = self.ground.fit(fact.route, route, load) else { continue };
            let memory = self.history.connection(fact.key());
            let suspect = memory.is_some_and(|memory| memory.is_suspect(route.key, self.now_ms));
            let better = best.is_none_or(|(s, f, l, _)| (suspect, fit, level) < (s, f, l));
            if fit <= worst && better {
                best = Some((suspect, fit, level, route));
            }
        }
        best.map(|(.., route)| route)
    }

    /// Orders a move, if the rate limit and the operator's freeze let it pass.
    pub fn order(&mut self, fact: ConnectionFact<'a>, to: &Route, reason: Reason) {
        let key = fact.key();
        let is_escape = matches!(reason, Reason::PortDown { .. });
        let is_optional = !is_escape && !matches!(reason, Reason::PortDrained { .. } | Reason::Operator);
        self.taken.insert(key);
        match self.wishes.freeze {
            Freeze::All => return self.frozen += 1,
            Freeze::Optional if is_optional => return self.frozen += 1,
            Freeze::No | Freeze::Optional => {}
        }
        if !is_escape {
            if self.budget == 0 {
                return self.late += 1;
            }
            self.budget -= 1;
            self.history.recent.push_back(self.now_ms);
        }
        let load = self.load(key);
        self.ground.claim(fact.route, to, load);
        self.remember(key, fact.route, to, &reason);
        self.plan.moves.push(Move { connection: key, from: fact.route.key, to: to.key, reason });
    }

    fn remember(&mut self, key: ConnectionKey, from: &Route, to: &Route, reason: &Reason) {
        for port in from.ports().chain(to.ports()) {
            if let Some(memory) = self.history.ports.get_mut(&port) {
                memory.touched_ms = Some(self.now_ms);
            }
        }
        let Some(memory) = self.history.connections.get_mut(&key) else { return };
        let settles = !matches!(reason, Reason::PortDown { .. } | Reason::PortDrained { .. });
        memory.pending = Some(Pending { to: to.key, ordered_ms: self.now_ms, settles });
        memory.moved_ms = Some(self.now_ms);
        if matches!(reason, Reason::Retransmissions { .. }) {
            suspect(memory, from.key, self.now_ms.saturating_add(self.policy.suspect_ms));
        }
    }
}

/// A route is left for its losses. It is avoided for longer than the connection rests, however long that is.
fn suspect(memory: &mut ConnectionMemory, route: RouteKey, until_ms: u64) {
    memory.suspects.retain(|&(other, _)| other != route);
    memory.suspects.push((route, until_ms));
    memory.lossy_moves = memory.lossy_moves.saturating_add(1);
    memory.lossy = 0;
}

/// The port of the way home that the way it takes now does without.
fn returned(now: &Route, home: &Route) -> PortKey {
    home.ports().find(|port| !now.ports().any(|other| other == *port)).unwrap_or(home.local)
}
