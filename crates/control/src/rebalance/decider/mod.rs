//! The decider: reports, records and answers come in, orders go out. It has no clock, no socket and no thread: whoever drives it hands in the time, of a clock that does not go
//! back. Without authority it orders nothing; what it has learnt it keeps.

mod orders;
mod samples;

use super::decision::{DecisionLog, DecisionOutcome};
use super::report::{ConnectionLoad, MAX_CONNECTIONS, MAX_PORTS, PortLoad, Refused, UtilisationReport};
use super::ways::Ways;
use crate::topology::PortName;
use scalefabric_fabric::balance::{
    ConnectionKey, Freeze, History, Policy, PortKey, Refusal, RouteKey, Snapshot, Wishes, plan,
};
use scalefabric_fabric::directory::{
    ConnectionId, ConnectionRecord, ConnectionState, FencingToken, Order, OrderResult,
};
use scalefabric_fabric::{FabricError, Path};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// How long rounds are made often after something that deserves it, ms: longer than what takes several samples to be believed.
const ATTENTION_MS: u64 = 2_000;

/// How the decider works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeciderOptions {
    /// Time between two rounds, ms. Default 100. 0: at every poll.
    pub round_ms: u64,
    /// The same while nothing is hot, lossy, changing or outstanding: a round over 100,000 connections costs some 100 ms of processor. Default 1,000; below
    /// `round_ms`: always that.
    pub quiet_round_ms: u64,
    /// Decisions that are kept. Default 1,000.
    pub keep_decisions: usize,
    /// Decide and explain, but order nothing. Default false.
    pub dry_run: bool,
}

impl Default for DeciderOptions {
    fn default() -> Self {
        Self { round_ms: 100, quiet_round_ms: 1_000, keep_decisions: 1_000, dry_run: false }
    }
}

/// What the operator wants, by name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OperatorWishes {
    /// What is stopped.
    pub freeze: Freeze,
    /// Connections that only the operator moves.
    pub pinned: BTreeSet<ConnectionId>,
    /// Ports that should be empty.
    pub drained: BTreeSet<PortName>,
    /// Connections that should go to a certain path.
    pub moves: BTreeMap<ConnectionId, Path>,
}

/// What happened in the last round, for people and metrics.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RoundSummary {
    /// When, ms.
    pub at_ms: u64,
    /// Moves that were decided.
    pub moves: usize,
    /// What could not be done.
    pub refusals: Vec<Refusal>,
    /// How many samples were not believed.
    pub doubts: usize,
}

/// Authority to give orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Authority {
    token: FencingToken,
    until_ms: u64,
    /// Until then only what cannot wait is done: orders of the leader before may still be on their way.
    quiet_until_ms: u64,
}

#[derive(Debug)]
struct NodeView {
    epoch: u64,
    serial: u64,
    taken_ms: u64,
    ports: Vec<PortLoad>,
    connections: BTreeMap<ConnectionId, ConnectionLoad>,
}

#[derive(Debug)]
struct ConnectionView {
    key: ConnectionKey,
    record: Arc<ConnectionRecord>,
    /// What the topology offers beside what the record says; shared by all connections of two nodes.
    ways: Arc<[Path]>,
}

impl ConnectionView {
    /// The path in use, those that the connection itself knows, and the ways of the topology, all with the connection's DSCP.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let own = &self.record.path;
        let fits = move |path: &&Path| path.device == own.device;
        std::iter::once(own).chain(&self.record.alternatives).chain(self.ways.iter().filter(fits))
    }

    fn route_key(&self, path: &Path) -> RouteKey {
        route_key(path, self.record.path.dscp)
    }
}

#[derive(Debug)]
struct Outstanding {
    decision: u64,
    order: Order,
    until_ms: u64,
}

/// The decider.
#[derive(Debug)]
pub struct Decider {
    options: DeciderOptions,
    policy: Policy,
    wishes: OperatorWishes,
    authority: Option<Authority>,
    nodes: BTreeMap<String, NodeView>,
    connections: BTreeMap<ConnectionId, ConnectionView>,
    port_keys: BTreeMap<PortName, PortKey>,
    port_names: Vec<PortName>,
    planes: BTreeMap<PortName, u32>,
    ways: Ways,
    next_connection: u64,
    history: History,
    outstanding: BTreeMap<ConnectionId, Outstanding>,
    log: DecisionLog,
    last_round_ms: Option<u64>,
    /// Until when rounds are made often.
    attention_until_ms: u64,
    summary: RoundSummary,
}

impl Default for Decider {
    /// Without authority, knowing nothing, by the default rules.
    fn default() -> Self {
        let options = DeciderOptions::default();
        let log = DecisionLog::new(options.keep_decisions);
        Self {
            options,
            policy: Policy::default(),
            wishes: OperatorWishes::default(),
            authority: None,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            port_keys: BTreeMap::new(),
            port_names: Vec::new(),
            planes: BTreeMap::new(),
            ways: Ways::default(),
            next_connection: 0,
            history: History::default(),
            outstanding: BTreeMap::new(),
            log,
            last_round_ms: None,
            attention_until_ms: 0,
            summary: RoundSummary::default(),
        }
    }
}

impl Decider {
    /// A decider without authority that knows nothing.
    pub fn new(options: DeciderOptions, policy: Policy) -> Result<Self, FabricError> {
        policy.check()?;
        let log = DecisionLog::new(options.keep_decisions);
        Ok(Self { options, policy, log, ..Self::default() })
    }

    /// It leads with this token until `until_ms`, unless told so again. A token that is not higher than one that it has lost is not taken. A new token begins quietly: for as long
    /// as an order may take, only what cannot wait is done.
    pub fn lead(&mut self, token: FencingToken, until_ms: u64, now_ms: u64) {
        let quiet_until_ms = match self.authority {
            Some(old) if old.token == token => old.quiet_until_ms,
            Some(old) if old.token > token => return,
            _ => {
                self.history = History::default();
                self.abandon();
                now_ms.saturating_add(self.policy.order_ms)
            }
        };
        self.authority = Some(Authority { token, until_ms, quiet_until_ms });
    }

    /// It no longer leads: another does, or it is not known.
    pub fn step_down(&mut self) {
        if let Some(authority) = &mut self.authority {
            authority.until_ms = 0;
        }
        self.abandon();
    }

    /// Whether it may give orders now.
    pub fn leads(&self, now_ms: u64) -> Option<FencingToken> {
        self.authority.filter(|authority| now_ms < authority.until_ms).map(|authority| authority.token)
    }

    /// Other rules. A policy that refuses itself is not taken.
    pub fn set_policy(&mut self, policy: Policy) -> Result<(), FabricError> {
        policy.check()?;
        self.policy = policy;
        Ok(())
    }

    /// Other wishes.
    pub fn set_wishes(&mut self, wishes: OperatorWishes) {
        self.wishes = wishes;
        self.last_round_ms = None;
    }

    /// Decide only, or order as well.
    pub fn set_dry_run(&mut self, dry_run: bool) {
        self.options.dry_run = dry_run;
    }

    /// Another topology: which ports are on which plane, and by which ways connections could go. A port of which it knows no cable reaches all planes.
    pub fn set_ways(&mut self, ways: Ways) {
        (self.planes, self.ways) = (ways.planes(), ways);
        for (id, view) in &mut self.connections {
            view.ways = self.ways.of(node_of(id), &view.record);
        }
    }

    /// The topology that it decides by.
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// A report of an agent. What it says of others than its own node is left out and told.
    pub fn handle_report(&mut self, report: UtilisationReport, now_ms: u64) -> Vec<Refused> {
        if report.ports.len() > MAX_PORTS || report.connections.len() > MAX_CONNECTIONS {
            return vec![Refused::TooLarge];
        }
        if let Some(last) = self.nodes.get(&report.node)
            && (report.epoch, report.serial) <= (last.epoch, last.serial)
        {
            return vec![Refused::OutOfOrder];
        }
        let UtilisationReport { node, epoch, serial, age_ms, ports, connections } = report;
        let mut refused = Vec::new();
        let (own, foreign): (Vec<_>, Vec<_>) = ports.into_iter().partition(|load| load.port.node == node);
        refused.extend(foreign.into_iter().map(|load| Refused::ForeignPort { port: load.port }));
        let made_here = |load: &ConnectionLoad| node_of(&load.connection) == node;
        let (mine, foreign): (Vec<_>, Vec<_>) = connections.into_iter().partition(made_here);
        refused.extend(foreign.into_iter().map(|load| Refused::ForeignConnection { connection: load.connection }));
        for load in &own {
            self.port_key(&load.port);
        }
        if self.deserves_attention(&node, &own, &mine) {
            self.attention_until_ms = now_ms.saturating_add(ATTENTION_MS);
        }
        let connections = mine.into_iter().map(|load| (load.connection.clone(), load)).collect();
        // Whether that is too old, or older than what was seen before, the balancing rule judges.
        let taken_ms = now_ms.saturating_sub(age_ms);
        self.nodes.insert(node, NodeView { epoch, serial, taken_ms, ports: own, connections });
        refused
    }

    /// A connection is new, has changed, or is closed. An older generation never replaces a newer one.
    pub fn handle_record(&mut self, record: impl Into<Arc<ConnectionRecord>>) {
        let record: Arc<ConnectionRecord> = record.into();
        if record.state == ConnectionState::Closed {
            self.connections.remove(&record.id);
            self.outstanding.remove(&record.id);
            return;
        }
        let ways = self.ways.of(node_of(&record.id), &record);
        match self.connections.get_mut(&record.id) {
            Some(view) if view.record.generation <= record.generation => (view.record, view.ways) = (record, ways),
            Some(_) => {}
            None => {
                let key = ConnectionKey(self.next_connection);
                self.next_connection += 1;
                self.connections.insert(record.id.clone(), ConnectionView { key, record, ways });
            }
        }
    }

    /// A record is gone from the directory: its lease has ended.
    pub fn forget(&mut self, connection: &ConnectionId) {
        self.connections.remove(connection);
        self.outstanding.remove(connection);
    }

    /// The directory was read anew: these are all connections that there are.
    pub fn handle_listing(&mut self, records: Vec<Arc<ConnectionRecord>>) {
        let there: BTreeSet<ConnectionId> = records.iter().map(|record| record.id.clone()).collect();
        self.connections.retain(|id, _| there.contains(id));
        self.outstanding.retain(|id, _| there.contains(id));
        records.into_iter().for_each(|record| self.handle_record(record));
    }

    /// The answer to an order. An answer to an order that is not outstanding is left alone: it came too late, and the record will show where the connection is.
    pub fn handle_result(&mut self, order: &Order, result: OrderResult, now_ms: u64) {
        let Order::Move { connection, token, .. } = order else { return };
        if let OrderResult::Fenced { highest } = result
            && self.authority.is_some_and(|authority| highest > authority.token)
        {
            self.end(connection, order, DecisionOutcome::Fenced);
            self.step_down();
            return;
        }
        if self.authority.is_none_or(|authority| authority.token != *token) {
            return;
        }
        match result {
            OrderResult::Done { pause_us, .. } => {
                self.end(connection, order, DecisionOutcome::Done { pause_us });
            }
            // No answer to a move.
            OrderResult::Rotated { .. } => {}
            OrderResult::RolledBack { reason } => {
                if self.end(connection, order, DecisionOutcome::RolledBack { reason }) {
                    self.failed(connection, now_ms);
                }
            }
            OrderResult::Fenced { .. } => {
                if self.end(connection, order, DecisionOutcome::Fenced) {
                    self.failed(connection, now_ms);
                }
            }
        }
    }

    /// Orders that should be given now; none without authority. Each goes to the node that made the connection ([`node_of`]).
    pub fn poll_orders(&mut self, now_ms: u64) -> Vec<Order> {
        let interval_ms = self.interval_ms(now_ms);
        let due = |last: u64| now_ms >= last.saturating_add(interval_ms) || now_ms < last;
        if !self.last_round_ms.is_none_or(due) {
            return Vec::new();
        }
        self.last_round_ms = Some(now_ms);
        self.note_silence(now_ms);
        let Some(authority) = self.authority.filter(|authority| now_ms < authority.until_ms) else {
            return Vec::new();
        };
        let (ports, connections) = self.samples();
        let snapshot = Snapshot { now_ms, ports: &ports, connections: &connections };
        let mut wishes = self.keyed_wishes();
        if now_ms < authority.quiet_until_ms && wishes.freeze == Freeze::No {
            wishes.freeze = Freeze::Optional;
        }
        // A dry run's moves are thought of, and then forgotten.
        let before = self.options.dry_run.then(|| self.history.clone());
        let mut decided = plan(&snapshot, &self.policy, &wishes, std::mem::take(&mut self.history));
        self.summary = RoundSummary {
            at_ms: now_ms,
            moves: decided.moves.len(),
            refusals: decided.refusals.clone(),
            doubts: decided.doubts.len(),
        };
        let orders = self.carry_out(&decided, &snapshot, &wishes, authority.token);
        self.history = match before {
            // What would have been ordered was not: the history only learns what was measured.
            Some(before) => plan(&snapshot, &self.policy, &Wishes { freeze: Freeze::All, ..wishes }, before).history,
            None => std::mem::take(&mut decided.history),
        };
        orders
    }

    /// Time between two rounds as things are.
    fn interval_ms(&self, now_ms: u64) -> u64 {
        let is_busy = now_ms < self.attention_until_ms || !self.outstanding.is_empty();
        if is_busy { self.options.round_ms } else { self.options.round_ms.max(self.options.quiet_round_ms) }
    }

    /// The last decisions.
    pub fn decisions(&self) -> &DecisionLog {
        &self.log
    }

    /// What happened in the last round.
    pub fn last_round(&self) -> &RoundSummary {
        &self.summary
    }

    /// Ports that are judged to be hot, by name; `None` while it does not lead: who does not decide does not judge.
    pub fn hot_ports(&self, now_ms: u64) -> Option<Vec<PortName>> {
        self.leads(now_ms)?;
        let hot = self.port_keys.iter().filter(|(_, key)| self.history.is_hot(**key));
        Some(hot.map(|(name, _)| name.clone()).collect())
    }

    /// The rules.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether a report says anything that the next rounds should not wait for. What it says need not be true.
    fn deserves_attention(&self, node: &str, ports: &[PortLoad], connections: &[ConnectionLoad]) -> bool {
        let before = self.nodes.get(node).map(|view| view.ports.as_slice()).unwrap_or_default();
        let is_hot = |load: &PortLoad| {
            let limit = load.capacity_bps as f64 * f64::from(self.policy.hot_permille) / 1000.0;
            load.tx_bps > limit || load.rx_bps > limit
        };
        let limit = f64::from(self.policy.retransmit_permille) / 1000.0;
        let changed =
            before.len() != ports.len() || before.iter().zip(ports).any(|(a, b)| (&a.port, a.up) != (&b.port, b.up));
        changed || ports.iter().any(is_hot) || connections.iter().any(|load| load.retransmit_ratio > limit)
    }

    fn port_key(&mut self, name: &PortName) -> PortKey {
        if let Some(&key) = self.port_keys.get(name) {
            return key;
        }
        let key = PortKey(self.port_names.len() as u32);
        self.port_names.push(name.clone());
        self.port_keys.insert(name.clone(), key);
        key
    }

    fn port_name(&self, key: PortKey) -> String {
        self.port_names.get(key.0 as usize).map_or_else(|| "?".into(), ToString::to_string)
    }

    /// Orders without an answer are over when the balancing rule has given them up.
    fn note_silence(&mut self, now_ms: u64) {
        let over: Vec<ConnectionId> =
            self.outstanding.iter().filter(|(_, one)| now_ms >= one.until_ms).map(|(id, _)| id.clone()).collect();
        for id in over {
            if let Some(one) = self.outstanding.remove(&id) {
                self.log.end(one.decision, DecisionOutcome::NoAnswer);
            }
        }
    }

    fn abandon(&mut self) {
        for one in std::mem::take(&mut self.outstanding).into_values() {
            self.log.end(one.decision, DecisionOutcome::NoAnswer);
        }
    }

    /// Ends an outstanding order, if it is this one.
    fn end(&mut self, connection: &ConnectionId, order: &Order, outcome: DecisionOutcome) -> bool {
        if self.outstanding.get(connection).is_none_or(|one| one.order != *order) {
            return false;
        }
        if let Some(one) = self.outstanding.remove(connection) {
            self.log.end(one.decision, outcome);
        }
        true
    }

    fn failed(&mut self, connection: &ConnectionId, now_ms: u64) {
        if let Some(view) = self.connections.get(connection) {
            self.history.failed(view.key, now_ms);
        }
    }

    fn keyed_wishes(&self) -> Wishes {
        let key = |id: &ConnectionId| Some(self.connections.get(id)?.key);
        Wishes {
            freeze: self.wishes.freeze,
            pinned: self.wishes.pinned.iter().filter_map(key).collect(),
            drained: self.wishes.drained.iter().filter_map(|name| self.port_keys.get(name).copied()).collect(),
            moves: self
                .wishes
                .moves
                .iter()
                .filter_map(|(id, path)| Some((key(id)?, route_key(path, path.dscp))))
                .collect(),
        }
    }
}

/// The node that made a connection: the first part of its origin, such as `node3` of `node3/4711`.
pub fn node_of(id: &ConnectionId) -> &str {
    id.origin.split('/').next().unwrap_or_default()
}

/// The number of a path with this DSCP: equal paths have equal numbers within a process.
fn route_key(path: &Path, dscp: u8) -> RouteKey {
    let Path { device, port_num, sgid, dgid, flow_label, dscp: _ } = path;
    let mut hasher = DefaultHasher::new();
    (device, port_num, sgid, dgid, flow_label, dscp).hash(&mut hasher);
    RouteKey(hasher.finish())
}
