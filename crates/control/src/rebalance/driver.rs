//! Drives the decider in a replica: hands it the time, the loads, the directory's changes and the lead, and carries its orders. It decides nothing. A replica that does not have the
//! duty to rebalance runs it as well, so that it knows everything when it gets the duty.

use super::decider::{Decider, RoundSummary, node_of};
use super::decision::Decision;
use super::report::{ConnectionLoad, PortLoad, UtilisationReport};
use super::settings::Settings;
use super::ways::{Plan, Ways, plan};
use crate::directory::{Change, NodeRecord};
use crate::keys;
use crate::load::NodeLoad;
use crate::message::Answer;
use crate::order::json;
use crate::service::Shared;
use crate::store::StoreError;
use crate::topology::{PortName, Topology, TopologyFile};
use scalefabric_fabric::balance::Freeze;
use scalefabric_fabric::directory::{ConnectionId, FencingToken, Order, OrderResult};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The lead is believed for so long after it was last seen held, ms. Who holds it stops well before the store gives it to another.
const LEAD_MS: u64 = 1_000;
/// Time between two rounds, if there is something to do.
const ROUND: Duration = Duration::from_millis(100);
/// Time between two looks at the settings.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks at who is hot.
const HOT: Duration = Duration::from_millis(250);
/// Two looks at one sample may differ by rounding, ms.
const SAME_SAMPLE_MS: u64 = 5;

/// Where the settings are in the store.
pub const SETTINGS: &str = "rebalance/settings";

/// Rebalancing in a replica: the decider and what has been handed to it.
#[derive(Debug)]
pub struct Rebalancing {
    decider: Mutex<Decider>,
    /// When each node's loads were measured that were taken last, and their serial.
    taken: Mutex<BTreeMap<String, (u64, u64)>>,
    /// What the topology was built from.
    plan: Mutex<Option<Plan>>,
}

impl Default for Rebalancing {
    /// Knows nothing yet, and follows the default rules.
    fn default() -> Self {
        Self { decider: Mutex::new(Decider::default()), taken: Mutex::default(), plan: Mutex::default() }
    }
}

impl Rebalancing {
    /// The last decisions, the newest first; with a connection only those about it: why did it move?
    pub fn decisions(&self, about: Option<&ConnectionId>, most: usize) -> Vec<Decision> {
        let decider = self.decider();
        let fits = |decision: &&Decision| about.is_none_or(|id| decision.connection == *id);
        decider.decisions().iter().filter(fits).take(most).cloned().collect()
    }

    /// What happened in the last round.
    pub fn last_round(&self) -> RoundSummary {
        self.decider().last_round().clone()
    }

    /// Ports that are judged to be hot, where that is judged.
    fn hot_ports(&self, now_ms: u64) -> Option<Vec<PortName>> {
        self.decider().hot_ports(now_ms)
    }

    fn decider(&self) -> MutexGuard<'_, Decider> {
        self.decider.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self, settings: &Settings) {
        let mut decider = self.decider();
        // They were checked when they were read.
        if decider.set_policy(settings.policy.clone()).is_ok() {
            decider.set_wishes(settings.wishes());
            decider.set_dry_run(settings.dry_run);
        }
    }

    fn learn(&self, changes: &[Change]) {
        let mut decider = self.decider();
        for change in changes {
            match change {
                // Both ends tell of a connection. It is moved by the one that made it.
                Change::Connection(one) if *one.node == *node_of(&one.record.id) => {
                    decider.handle_record(Arc::clone(&one.record));
                }
                Change::ConnectionGone { node, id, .. } if **node == *node_of(id) => decider.forget(id),
                _ => {}
            }
        }
    }

    fn start_over(&self, all: &[Change]) {
        let records = all.iter().filter_map(|change| match change {
            Change::Connection(one) if *one.node == *node_of(&one.record.id) => Some(Arc::clone(&one.record)),
            _ => None,
        });
        self.decider().handle_listing(records.collect());
    }

    /// The topology that is decided by.
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(self.decider().ways().topology())
    }

    fn follow_plan(&self, plan: Plan) {
        let mut known = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() != Some(&plan) {
            self.decider().set_ways(Ways::new(&plan));
            *known = Some(plan);
        }
    }
}

/// The settings as the store has them; the default ones if there are none. Settings that cannot be read stop everything that can wait: nobody knows what was meant.
pub async fn settings(shared: &Shared) -> Result<Settings, StoreError> {
    match shared.store.get(SETTINGS).await? {
        Some(entry) => Settings::from_json(&entry.value).map_err(|error| StoreError::Broken(error.message)),
        None => Ok(Settings::default()),
    }
}

/// The topology file as the store has it, an empty one if there is none.
async fn topology_file(shared: &Shared) -> Result<TopologyFile, StoreError> {
    let Some(entry) = shared.store.get(keys::TOPOLOGY_FILE).await? else { return Ok(TopologyFile::default()) };
    let text: String = serde_json::from_slice(&entry.value)
        .map_err(|error| StoreError::Broken(format!("`{}`: {error}", keys::TOPOLOGY_FILE)))?;
    TopologyFile::parse(&text).map_err(StoreError::Broken)
}

/// Runs until it is dropped.
pub async fn run(shared: Arc<Shared>) {
    let mut held = shared.rebalance.held();
    let mut ticks = tokio::time::interval(ROUND);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let (all, _, mut changes) = shared.index.snapshot(None);
        beside(&shared, move |shared| shared.rebalancing.start_over(&all)).await;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let token = *held.borrow_and_update();
                    beside(&shared, move |shared| round(shared, token)).await;
                }
                _ = looks.tick() => look(&shared).await,
                news = changes.next() => match news {
                    Some(Ok(batch)) if !batch.1.iter().any(|change| matches!(change, Change::All)) => {
                        shared.rebalancing.learn(&batch.1);
                    }
                    Some(_) => break,
                    None => return,
                }
            }
        }
    }
}

/// Tells all replicas which ports are judged to be hot, through the store, for as long as this one has the duty to judge: what people see is what moves are decided by.
pub async fn tell_hot(shared: Arc<Shared>) {
    // What stands in the store; `None`: nobody can say.
    let mut told: Option<Vec<PortName>> = Some(Vec::new());
    loop {
        tokio::time::sleep(HOT).await;
        let judging = Arc::clone(&shared);
        let judged = tokio::task::spawn_blocking(move || judging.rebalancing.hot_ports(now_ms(&judging))).await;
        let Ok(Some(hot)) = judged else {
            // What was told is gone with the lease.
            told = Some(Vec::new());
            continue;
        };
        if told.as_ref() != Some(&hot) {
            let Ok(value) = json(&hot) else { continue };
            told = matches!(shared.rebalance.put(keys::HOT, value).await, Ok(true)).then_some(hot);
        }
    }
}

/// Computes on a thread of its own: a round over many connections takes long, and look-ups must not wait for it.
async fn beside<T: Send + 'static>(shared: &Arc<Shared>, work: impl FnOnce(&Arc<Shared>) -> T + Send + 'static) {
    let shared = Arc::clone(shared);
    // A panic in it ends the round, not the replica.
    let _ = tokio::task::spawn_blocking(move || work(&shared)).await;
}

/// Looks whether the operator has changed anything, and whether nodes have. While the store is away what is known last holds.
async fn look(shared: &Arc<Shared>) {
    match settings(shared).await {
        Ok(settings) => shared.rebalancing.follow(&settings),
        Err(StoreError::Broken(_)) => {
            shared.rebalancing.follow(&Settings { freeze: Freeze::Optional, ..Settings::default() });
        }
        Err(_) => {}
    }
    if let Ok(file) = topology_file(shared).await {
        beside(shared, move |shared| shared.rebalancing.follow_plan(plan(file, &shared.index.nodes()))).await;
    }
}

fn now_ms(shared: &Shared) -> u64 {
    u64::try_from(shared.clock.now().as_millis()).unwrap_or(u64::MAX)
}

fn round(shared: &Arc<Shared>, token: Option<FencingToken>) {
    let now_ms = now_ms(shared);
    let reports = reports(shared, now_ms);
    let mut decider = shared.rebalancing.decider();
    for report in reports {
        decider.handle_report(report, now_ms);
    }
    match token {
        Some(token) => decider.lead(token, now_ms.saturating_add(LEAD_MS), now_ms),
        None => decider.step_down(),
    }
    let orders = decider.poll_orders(now_ms);
    let patience = Duration::from_millis(decider.policy().order_ms);
    drop(decider);
    if !orders.is_empty() {
        tokio::spawn(carry(Arc::clone(shared), orders, patience));
    }
}

/// Gives orders and hands the answers back. A store that cannot be reached gives no answers: the orders end by themselves.
async fn carry(shared: Arc<Shared>, orders: Vec<Order>, patience: Duration) {
    let addressed: Vec<(String, Order)> =
        orders.into_iter().filter_map(|order| Some((addressee(&order)?, order))).collect();
    let Ok(answers) = shared.orders.send(&addressed, &shared.name, patience).await else { return };
    let hand_back = move |shared: &Arc<Shared>| {
        let now_ms = now_ms(shared);
        let mut decider = shared.rebalancing.decider();
        for ((_, order), answer) in addressed.iter().zip(answers) {
            if let Some(result) = answer.map(result_of) {
                decider.handle_result(order, result, now_ms);
            }
        }
    };
    beside(&shared, hand_back).await;
}

/// What the ends that were connected to say of the connections that a node made: bits a second sent and received.
type Passive = HashMap<ConnectionId, (f64, f64)>;

/// Loads that have not been taken yet.
fn reports(shared: &Shared, now_ms: u64) -> Vec<UtilisationReport> {
    let mut taken = shared.rebalancing.taken.lock().unwrap_or_else(PoisonError::into_inner);
    let mut reports = Vec::new();
    let loads = shared.loads.snapshot(false, shared.clock.now());
    let mut passive: HashMap<String, Passive> = HashMap::new();
    for load in loads.values().flat_map(|load| &load.connections).filter(|load| load.passive) {
        let connection = name(load);
        let of_node = passive.entry(node_of(&connection).to_owned()).or_default();
        of_node.insert(connection, (load.tx_bps, load.rx_bps));
    }
    taken.retain(|node, _| loads.contains_key(node));
    for (node, load) in loads {
        let Some((record, _)) = shared.index.node(&node) else { continue };
        let age_ms = load.ports.iter().map(|port| port.age_ms).max().unwrap_or(0);
        let at_ms = now_ms.saturating_sub(age_ms);
        // A node that was away begins above what was handed on before: serials only grow.
        let last = taken.entry(node.clone()).or_insert((0, now_ms));
        if at_ms <= last.0.saturating_add(SAME_SAMPLE_MS) {
            continue;
        }
        *last = (at_ms, last.1 + 1);
        let passive = passive.remove(&node).unwrap_or_default();
        reports.push(report(&node, &record, &load, &passive, age_ms, last.1));
    }
    reports
}

fn name(load: &crate::load::ConnectionLoad) -> ConnectionId {
    ConnectionId { origin: load.origin.clone(), serial: load.serial }
}

/// Who carries an order out.
fn addressee(order: &Order) -> Option<String> {
    match order {
        Order::Move { connection, .. } | Order::Close { connection, .. } => Some(node_of(connection).to_owned()),
        Order::RotateKeys { .. } => None,
    }
}

fn result_of(answer: Answer) -> OrderResult {
    match answer {
        Answer::Answered { outcome } => outcome,
        Answer::NotHere { reason } => OrderResult::RolledBack { reason },
    }
}

/// A node's loads as the decider takes them. What the peer sends, this end receives: it does not see what the peer writes into its memory.
fn report(
    node: &str,
    record: &NodeRecord,
    load: &NodeLoad,
    passive: &Passive,
    age_ms: u64,
    serial: u64,
) -> UtilisationReport {
    let addresses = |device: &str, port_num: u8| -> Vec<IpAddr> {
        let port = record.ports.iter().find(|port| port.device == device && port.port_num == port_num);
        let gids = port.map(|port| port.gids.as_slice()).unwrap_or_default();
        gids.iter().map(|gid| scalefabric_verbs::Gid(gid.octets()).to_ip()).collect()
    };
    let port = |load: &crate::load::PortLoad| PortLoad {
        port: PortName { node: node.to_owned(), device: load.device.clone(), port_num: load.port_num },
        up: load.active,
        capacity_bps: load.capacity_bps,
        tx_bps: load.tx_bps,
        rx_bps: load.rx_bps,
        addresses: addresses(&load.device, load.port_num),
    };
    let connection = |load: &crate::load::ConnectionLoad| {
        let connection = name(load);
        let (sent, received) = passive.get(&connection).copied().unwrap_or_default();
        let (tx_bps, rx_bps) = (load.tx_bps.max(received), load.rx_bps.max(sent));
        ConnectionLoad { connection, tx_bps, rx_bps, retransmit_ratio: load.retransmit_ratio }
    };
    // Of an end that was connected to its own node may know more than the end that connected, if that is silent.
    let own = load.connections.iter().filter(|load| !load.passive && load.origin.split('/').next() == Some(node));
    let mut connections: Vec<ConnectionLoad> = own.map(connection).collect();
    let told: HashSet<ConnectionId> = connections.iter().map(|load| load.connection.clone()).collect();
    let silent = passive.iter().filter(|(id, _)| !told.contains(*id));
    connections.extend(silent.map(|(id, (sent, received))| ConnectionLoad {
        connection: id.clone(),
        tx_bps: *received,
        rx_bps: *sent,
        retransmit_ratio: 0.0,
    }));
    let ports = load.ports.iter().map(port).collect();
    UtilisationReport { node: node.to_owned(), epoch: 0, serial, age_ms, ports, connections }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::PortRecord;

    #[test]
    fn a_nodes_loads_become_a_report_of_its_own_connections_with_the_addresses_of_its_ports() {
        let record = NodeRecord {
            node: "n1".into(),
            version: String::new(),
            incarnation: 1,
            replica: "a".into(),
            ports: vec![PortRecord {
                device: "sf0".into(),
                port_num: 1,
                gids: vec!["::ffff:10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                rate_mbps: 10_000,
                numa_node: None,
                active: true,
            }],
            neighbours: Vec::new(),
        };
        let port = crate::load::PortLoad {
            device: "sf0".into(),
            port_num: 1,
            capacity_bps: 10_000_000_000,
            active: true,
            tx_bps: 7.5e9,
            rx_bps: 0.0,
            retransmitted_ps: 0.0,
            marked_ps: 0.0,
            age_ms: 40,
        };
        let connection = |origin: &str| crate::load::ConnectionLoad {
            origin: origin.into(),
            serial: 3,
            tx_bps: 1e9,
            rx_bps: 0.0,
            passive: false,
            retransmit_ratio: 0.01,
            age_ms: 40,
        };
        let of_peer = crate::load::ConnectionLoad { passive: true, ..connection("n1/7") };
        let load = NodeLoad { ports: vec![port], connections: vec![connection("n1/7"), of_peer, connection("n2/7")] };
        // The peers of both write into this node's memory; the second one's own end is silent.
        let passive: Passive = [("n1/7", 3), ("n1/8", 4)]
            .into_iter()
            .map(|(origin, serial)| (ConnectionId { origin: origin.into(), serial }, (5e8, 0.0)))
            .collect();
        let report = report("n1", &record, &load, &passive, 40, 9);
        assert_eq!((report.node.as_str(), report.serial, report.age_ms), ("n1", 9, 40));
        let addresses: Vec<String> = report.ports[0].addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "fd00::1"]);
        assert_eq!((report.ports[0].tx_bps, report.ports[0].capacity_bps), (7.5e9, 10_000_000_000));
        let origins: Vec<&str> = report.connections.iter().map(|load| load.connection.origin.as_str()).collect();
        assert_eq!(origins, ["n1/7", "n1/8"]);
        let loads: Vec<(f64, f64)> = report.connections.iter().map(|load| (load.tx_bps, load.rx_bps)).collect();
        assert_eq!(loads, [(1e9, 5e8), (0.0, 5e8)]);
    }

    #[test]
    fn an_order_goes_to_the_node_that_made_the_connection_and_nobody_there_is_a_roll_back() {
        let connection = ConnectionId { origin: "n1/7".into(), serial: 3 };
        let order = Order::Close { connection, token: FencingToken(1), reason: String::new() };
        assert_eq!(addressee(&order), Some("n1".into()));
        let result = result_of(Answer::NotHere { reason: "gone".into() });
        assert_eq!(result, OrderResult::RolledBack { reason: "gone".into() });
    }
}
