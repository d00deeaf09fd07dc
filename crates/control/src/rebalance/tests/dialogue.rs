//! The decider step by step: one node with two ports, four connections on the first.

use super::super::*;
use crate::topology::PortName;
use scalefabric_fabric::Path;
use scalefabric_fabric::balance::{Freeze, Policy, Reason};
use scalefabric_fabric::directory::{
    ConnectionId, ConnectionRecord, ConnectionState, FencingToken, Order, OrderResult,
};
use scalefabric_verbs::Gid;

const GIGA: f64 = 1e9;

pub fn id(serial: u64) -> ConnectionId {
    ConnectionId { origin: "n1/77".into(), serial }
}

pub fn path(port_num: u8) -> Path {
    let gid = |last: u8| Gid::from_ip([10, 0, port_num, last].into());
    Path { device: "sf0".into(), port_num, sgid: gid(1), dgid: gid(2), flow_label: 0, dscp: 0 }
}

fn port(port_num: u8) -> PortName {
    PortName { node: "n1".into(), device: "sf0".into(), port_num }
}

fn record(serial: u64, port_num: u8, generation: u64) -> ConnectionRecord {
    ConnectionRecord {
        id: id(serial),
        tenant: String::new(),
        service: "kv".into(),
        qp_num: 1,
        peer_qp_num: 2,
        path: path(port_num),
        alternatives: vec![path(1), path(2)],
        state: ConnectionState::Up,
        generation,
    }
}

/// A decider with its world: where each of four connections is.
struct Scene {
    decider: Decider,
    now_ms: u64,
    serial: u64,
    at: [u8; 4],
}

impl Scene {
    fn new() -> Self {
        let mut decider = Decider::new(DeciderOptions::default(), Policy::default()).unwrap();
        (0..4).for_each(|serial| decider.handle_record(record(serial, 1, 1)));
        Self { decider, now_ms: 10_000, serial: 0, at: [1; 4] }
    }

    fn report(&self) -> UtilisationReport {
        let load = |port_num: u8| 20.0 * GIGA * self.at.iter().filter(|&&at| at == port_num).count() as f64;
        let ports = [1, 2].map(|port_num| PortLoad {
            port: port(port_num),
            up: true,
            capacity_bps: 100_000_000_000,
            tx_bps: load(port_num),
            rx_bps: 0.0,
            addresses: vec![path(port_num).sgid.to_ip()],
        });
        let connections = (0..4).map(|serial| ConnectionLoad {
            connection: id(serial),
            tx_bps: 20.0 * GIGA,
            rx_bps: 0.0,
            retransmit_ratio: 0.0,
        });
        UtilisationReport {
            node: "n1".into(),
            epoch: 1,
            serial: self.serial,
            age_ms: 5,
            ports: ports.into(),
            connections: connections.collect(),
        }
    }

    /// 100 ms pass, a report comes, a round is made.
    fn round(&mut self) -> Vec<Order> {
        self.now_ms += 100;
        self.serial += 1;
        assert_eq!(self.decider.handle_report(self.report(), self.now_ms), []);
        self.decider.poll_orders(self.now_ms)
    }

    fn rounds(&mut self, count: usize) -> Vec<Order> {
        (0..count).flat_map(|_| self.round()).collect()
    }

    fn lead(&mut self, token: u64) {
        self.decider.lead(FencingToken(token), u64::MAX, self.now_ms);
    }
}

#[test]
fn without_authority_nothing_is_ordered_and_with_it_one_move_is_after_the_quiet_time() {
    let mut scene = Scene::new();
    assert_eq!(scene.rounds(50), []);
    scene.lead(7);
    // An order of the leader before may take 2 s.
    assert_eq!(scene.rounds(19), []);
    let orders = scene.rounds(10);
    let [Order::Move { connection, path: to, token, reason }] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!((connection, to, *token), (&id(0), &path(2), FencingToken(7)));
    assert_eq!(reason, "n1/sf0/1 sends at 80.0 % of its capacity; this round's moves bring it to 60.0 %");
}

#[test]
fn authority_ends_by_its_own_clock() {
    let mut scene = Scene::new();
    scene.decider.lead(FencingToken(7), scene.now_ms + 1_000, scene.now_ms);
    assert_eq!(scene.decider.leads(scene.now_ms + 999), Some(FencingToken(7)));
    assert_eq!(scene.decider.leads(scene.now_ms + 1_000), None);
    assert_eq!(scene.rounds(50), []);
    // A lower token than one that was held is not taken.
    scene.lead(6);
    assert_eq!(scene.decider.leads(scene.now_ms), None);
    scene.lead(7);
    assert_eq!(scene.rounds(10).len(), 1);
}

#[test]
fn an_answer_is_noted_and_the_explanation_holds_all_that_was_known() {
    let mut scene = Scene::new();
    scene.lead(7);
    let orders = scene.rounds(25);
    scene.decider.handle_result(&orders[0], OrderResult::Done { generation: 2, pause_us: 900 }, scene.now_ms);
    scene.at[0] = 2;
    scene.decider.handle_record(record(0, 2, 2));
    assert_eq!(scene.rounds(100), []);
    let decisions = scene.decider.decisions().about(&id(0));
    assert_eq!(decisions.len(), 1);
    let decision = decisions[0];
    assert_eq!(decision.outcome, DecisionOutcome::Done { pause_us: 900 });
    assert_eq!((decision.from.port_num, decision.to.port_num, decision.token), (1, 2, FencingToken(7)));
    assert!(matches!(decision.reason, Reason::PortHot { permille: 800, expected_permille: 600, .. }));
    let inputs: Vec<_> =
        decision.ports.iter().map(|input| (input.name.clone(), input.sample.tx_bps, input.hot)).collect();
    assert_eq!(inputs, [(port(1), 80.0 * GIGA, true), (port(2), 0.0, false)]);
    assert_eq!(scene.decider.decisions().about(&id(3)).len(), 0);
    let text = serde_json::to_string(decision).unwrap();
    assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), *decision);
}

#[test]
fn what_was_rolled_back_rests_and_another_is_tried() {
    let mut scene = Scene::new();
    scene.lead(7);
    let orders = scene.rounds(25);
    let rolled_back = OrderResult::RolledBack { reason: "no room for QPs".into() };
    scene.decider.handle_result(&orders[0], rolled_back, scene.now_ms);
    let next = scene.rounds(10);
    assert!(matches!(&next[..], [Order::Move { connection, .. }] if *connection == id(1)), "{next:?}");
    let outcome = DecisionOutcome::RolledBack { reason: "no room for QPs".into() };
    assert_eq!(scene.decider.decisions().about(&id(0))[0].outcome, outcome);
}

#[test]
fn no_answer_in_time_is_an_end_and_a_late_one_changes_nothing() {
    let mut scene = Scene::new();
    scene.lead(7);
    let orders = scene.rounds(30);
    scene.rounds(25);
    let outcome = |scene: &Scene| scene.decider.decisions().about(&id(0))[0].outcome.clone();
    assert_eq!(outcome(&scene), DecisionOutcome::NoAnswer);
    scene.decider.handle_result(&orders[0], OrderResult::Done { generation: 2, pause_us: 1 }, scene.now_ms);
    assert_eq!(outcome(&scene), DecisionOutcome::NoAnswer);
}

#[test]
fn who_is_fenced_by_a_higher_token_stops_at_once() {
    let mut scene = Scene::new();
    scene.lead(7);
    let orders = scene.rounds(25);
    scene.decider.handle_result(&orders[0], OrderResult::Fenced { highest: FencingToken(8) }, scene.now_ms);
    assert_eq!(scene.decider.leads(scene.now_ms), None);
    assert_eq!(scene.rounds(50), []);
    assert_eq!(scene.decider.decisions().iter().next().unwrap().outcome, DecisionOutcome::Fenced);
}

#[test]
fn a_dry_run_decides_explains_and_orders_nothing() {
    let mut scene = Scene::new();
    scene.decider.set_dry_run(true);
    scene.lead(7);
    assert_eq!(scene.rounds(50), []);
    let first = scene.decider.decisions().iter().next().unwrap().clone();
    assert_eq!((first.connection, first.outcome), (id(0), DecisionOutcome::DryRun));
    // The same is decided in every round, and said as often as the connection could move.
    let said = scene.decider.decisions().about(&id(0)).len() as u64;
    assert!(said <= 1 + 50 * 100 / scene.decider.policy().rest_ms, "{said} times");
    // Nothing was ordered, so nothing rests: when it is meant seriously the order comes at once.
    scene.decider.set_dry_run(false);
    assert_eq!(scene.rounds(1).len(), 1);
}

#[test]
fn frozen_nothing_is_ordered() {
    let mut scene = Scene::new();
    scene.decider.set_wishes(OperatorWishes { freeze: Freeze::All, ..OperatorWishes::default() });
    scene.lead(7);
    assert_eq!(scene.rounds(50), []);
    assert!(!scene.decider.last_round().refusals.is_empty());
}

#[test]
fn an_agent_speaks_for_its_own_node_only_and_never_twice() {
    let mut scene = Scene::new();
    scene.round();
    let again = scene.report();
    assert_eq!(scene.decider.handle_report(again, scene.now_ms), [Refused::OutOfOrder]);
    scene.serial += 1;
    let mut foreign = scene.report();
    foreign.ports[0].port.node = "n2".into();
    foreign.connections[0].connection.origin = "n2/1".into();
    let refused = scene.decider.handle_report(foreign.clone(), scene.now_ms);
    let expected = [
        Refused::ForeignPort { port: foreign.ports[0].port.clone() },
        Refused::ForeignConnection { connection: foreign.connections[0].connection.clone() },
    ];
    assert_eq!(refused, expected);
    scene.serial += 1;
    let mut large = scene.report();
    large.ports = vec![large.ports[0].clone(); MAX_PORTS + 1];
    assert_eq!(scene.decider.handle_report(large, scene.now_ms), [Refused::TooLarge]);
}

#[test]
fn an_old_record_never_replaces_a_newer_one() {
    let mut scene = Scene::new();
    scene.lead(7);
    scene.decider.handle_record(record(0, 2, 5));
    scene.decider.handle_record(record(0, 1, 4));
    scene.at[0] = 2;
    assert_eq!(scene.rounds(100), []);
}
