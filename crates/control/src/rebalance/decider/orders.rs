//! A plan of the balancing rule becomes orders, each with its decision: all that it was made from.

use super::{Decider, Outstanding};
use crate::rebalance::decision::{Decision, DecisionOutcome, PortInput, explain};
use scalefabric_fabric::Path;
use scalefabric_fabric::balance::{ConnectionKey, Move, Plan, PortKey, PortSample, Route, RouteKey, Snapshot, Wishes};
use scalefabric_fabric::directory::{ConnectionId, FencingToken, Order};
use std::collections::{BTreeMap, BTreeSet};

impl Decider {
    /// Notes the decisions and makes orders of them.
    pub(super) fn carry_out(
        &mut self,
        decided: &Plan,
        snapshot: &Snapshot<'_>,
        wishes: &Wishes,
        token: FencingToken,
    ) -> Vec<Order> {
        let ids: BTreeMap<ConnectionKey, ConnectionId> = if decided.moves.is_empty() {
            BTreeMap::new()
        } else {
            self.connections.iter().map(|(id, view)| (view.key, id.clone())).collect()
        };
        let mut orders = Vec::new();
        for one in &decided.moves {
            let Some(id) = ids.get(&one.connection) else { continue };
            let Some(decision) = self.decision(one, id, decided, snapshot, wishes, token) else { continue };
            // What is not carried out is decided anew each round: as often as it could move is often enough to say so.
            if self.options.dry_run && self.log.said_already(&decision, self.policy.rest_ms) {
                continue;
            }
            let (path, reason) = (decision.to.clone(), decision.text.clone());
            let serial = self.log.note(decision);
            if self.options.dry_run {
                continue;
            }
            let order = Order::Move { connection: id.clone(), path, token, reason };
            let until_ms = snapshot.now_ms.saturating_add(self.policy.order_ms);
            self.outstanding.insert(id.clone(), Outstanding { decision: serial, order: order.clone(), until_ms });
            orders.push(order);
        }
        orders
    }

    fn decision(
        &self,
        one: &Move,
        id: &ConnectionId,
        decided: &Plan,
        snapshot: &Snapshot<'_>,
        wishes: &Wishes,
        token: FencingToken,
    ) -> Option<Decision> {
        let view = self.connections.get(id)?;
        let path = |key: RouteKey| {
            let found = view.paths().find(|path| view.route_key(path) == key)?;
            Some(Path { dscp: view.record.path.dscp, ..found.clone() })
        };
        let sample = snapshot.connections.iter().find(|sample| sample.connection == one.connection)?;
        let used: BTreeSet<PortKey> = sample.routes.iter().flat_map(Route::ports).collect();
        let name = |key: PortKey| self.port_names.get(key.0 as usize).cloned();
        let input = |sample: &PortSample| {
            let hot = decided.hot.iter().any(|&(port, ..)| port == sample.port);
            used.contains(&sample.port)
                .then(|| Some(PortInput { name: name(sample.port)?, sample: *sample, hot }))
                .flatten()
        };
        Some(Decision {
            serial: 0,
            at_ms: snapshot.now_ms,
            token,
            connection: id.clone(),
            from: path(one.from)?,
            to: path(one.to)?,
            reason: one.reason,
            text: explain(&one.reason, |key| self.port_name(key)),
            sample: sample.clone(),
            ports: snapshot.ports.iter().filter_map(input).collect(),
            hot: decided.hot.iter().filter_map(|&(port, way, load)| Some((name(port)?, way, load))).collect(),
            effort: decided.effort,
            policy: self.policy.clone(),
            wishes: wishes.clone(),
            outcome: if self.options.dry_run { DecisionOutcome::DryRun } else { DecisionOutcome::Ordered },
        })
    }
}
