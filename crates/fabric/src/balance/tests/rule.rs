//! Each rule of the balancing rule as a dialogue, with its edge and the twin one step beyond.

use super::super::*;
use super::world::World;

/// A world with one port as full as said, in pieces of 10 thousandths and one that makes up the rest, and an empty one.
fn loaded(permille: u64) -> World {
    let mut world = World::with_ports(2);
    for _ in 0..permille / 10 {
        world.connect(0, 10);
    }
    if !permille.is_multiple_of(10) {
        world.connect(0, permille % 10);
    }
    world
}

#[test]
fn at_the_threshold_nothing_moves_and_above_it_as_little_as_cools() {
    assert_eq!(loaded(700).rounds(100), []);
    let mut world = loaded(701);
    let moves = world.rounds(100);
    // From 701 to 600 are eleven pieces of ten.
    assert_eq!(moves.len(), 11);
    assert!(moves.iter().all(|one| matches!(
        one.reason,
        Reason::PortHot { port: PortKey(0), direction: Direction::Transmit, permille: 701, .. }
    )));
    assert!(world.load(PortKey(0))[0] <= 60_000_000_000);
}

#[test]
fn a_port_is_hot_after_three_samples_in_a_row_and_not_after_two() {
    let mut world = loaded(800);
    assert_eq!(world.rounds(2), []);
    let spared = std::mem::take(&mut world.connections);
    assert_eq!(world.rounds(1), []);
    world.connections = spared;
    assert_eq!(world.rounds(2), []);
    assert_eq!(world.rounds(1).len(), 20);
}

#[test]
fn a_hot_port_takes_nobody_in_until_it_is_cool() {
    // Port 0 gets hot with one connection that cannot be moved, and falls to 650: not hot enough to lose, not cool enough to receive.
    let mut world = World::with_ports(2);
    let big = world.connect(0, 750);
    world.wishes.pinned.insert(big);
    world.rounds(5);
    assert!(world.history.is_hot(PortKey(0)));
    world.connections.get_mut(&big).unwrap().load_bps[0] = 61_000_000_000;
    world.policy.fill_permille = 690;
    for _ in 0..75 {
        world.connect(1, 10);
    }
    assert_eq!(world.rounds(50), []);
    // At 600 it is cool after three samples. There is not room for all that should go to cool port 1, but for what brings it below the threshold.
    world.connections.get_mut(&big).unwrap().load_bps[0] = 60_000_000_000;
    assert_eq!(world.rounds(2), []);
    assert!(!world.rounds(10).is_empty());
    assert_eq!(world.load(PortKey(0))[0], 65_000_000_000);
}

#[test]
fn one_large_connection_is_moved_rather_than_many_small_ones() {
    let mut world = loaded(300);
    let large = world.connect(0, 500);
    let moves = world.rounds(20);
    assert_eq!(moves.iter().map(|one| one.connection).collect::<Vec<_>>(), [large]);
}

#[test]
fn a_connection_that_fits_nowhere_stays_and_it_is_said() {
    let mut world = World::with_ports(2);
    world.connect(0, 900);
    let mut said = Vec::new();
    for _ in 0..20 {
        let plan = world.round();
        assert_eq!(plan.moves, []);
        said.extend(plan.refusals);
    }
    let stays = Refusal::StaysHot { port: PortKey(0), direction: Direction::Transmit, permille: 900 };
    assert!(said.contains(&stays));
}

#[test]
fn everything_that_can_leaves_a_port_that_is_down_even_beyond_the_rate_limit() {
    let mut world = loaded(400);
    (world.policy.moves_per_round, world.policy.moves_per_second) = (1, 1);
    let pinned = ConnectionKey(7);
    world.wishes.pinned.insert(pinned);
    world.rounds(5);
    world.ports.get_mut(&PortKey(0)).unwrap().up = false;
    let moves = world.rounds(1);
    assert_eq!(moves.len(), 39);
    assert!(moves.iter().all(|one| one.reason == Reason::PortDown { port: PortKey(0) } && one.connection != pinned));
}

#[test]
fn what_has_nowhere_to_go_is_said() {
    let mut world = World::with_ports(1);
    let alone = world.connect(0, 100);
    world.rounds(3);
    world.ports.get_mut(&PortKey(0)).unwrap().up = false;
    let plan = world.round();
    assert_eq!((plan.moves, plan.refusals), (vec![], vec![Refusal::NowhereToGo { connection: alone }]));
}

#[test]
fn the_load_before_the_failure_decides_where_each_goes() {
    // Two ports with room for one large connection each: both together would not fit on either.
    let mut world = World::with_ports(3);
    let pair = [world.connect(0, 300), world.connect(0, 350)];
    world.rounds(5);
    world.ports.get_mut(&PortKey(0)).unwrap().up = false;
    let moves = world.rounds(1);
    assert_eq!(moves.len(), 2);
    assert_ne!(moves[0].to, moves[1].to);
    assert_eq!(moves[0].connection, pair[1]);
}

#[test]
fn connections_return_when_the_port_has_been_up_for_long_enough_and_not_before() {
    let mut world = loaded(300);
    world.rounds(5);
    world.ports.get_mut(&PortKey(0)).unwrap().up = false;
    assert_eq!(world.rounds(5).len(), 30);
    world.ports.get_mut(&PortKey(0)).unwrap().up = true;
    // 10 s: the round that sees it up is the first.
    assert_eq!(world.rounds(100), []);
    let moves = world.rounds(1);
    assert_eq!(moves.len(), 30);
    assert!(moves.iter().all(|one| one.reason == Reason::PortReturned { port: PortKey(0) }));
    assert_eq!(world.rounds(200), []);
}

#[test]
fn who_was_moved_for_load_does_not_return() {
    let mut world = loaded(800);
    let moved = world.rounds(10).len();
    assert_eq!(moved, 20);
    for connection in world.connections.values_mut() {
        connection.load_bps = [1_000_000, 0];
    }
    assert_eq!(world.rounds(300), []);
}

#[test]
fn who_fled_by_itself_returns_too() {
    let mut world = World::with_ports(2);
    let one = world.connect(0, 100);
    world.rounds(5);
    world.ports.get_mut(&PortKey(0)).unwrap().up = false;
    world.connections.get_mut(&one).unwrap().route = 1;
    assert_eq!(world.rounds(10), []);
    world.ports.get_mut(&PortKey(0)).unwrap().up = true;
    let moves = world.rounds(110);
    assert_eq!(moves.len(), 1);
    assert_eq!(moves[0].reason, Reason::PortReturned { port: PortKey(0) });
}

#[test]
fn a_lossy_connection_is_moved_and_does_not_go_back_to_where_it_lost() {
    let mut world = World::with_ports(3);
    let lossy = world.connect(0, 100);
    world.connections.get_mut(&lossy).unwrap().retransmit_ratio = 0.010;
    assert_eq!(world.rounds(50), []);
    world.connections.get_mut(&lossy).unwrap().retransmit_ratio = 0.011;
    assert_eq!(world.rounds(2), []);
    let moves = world.rounds(1);
    assert_eq!(moves.len(), 1);
    assert_eq!(moves[0].reason, Reason::Retransmissions { permille: 11 });
    // It loses everywhere: each time it rests twice as long, and after the third port there is none left for a minute.
    let moves = world.rounds(500);
    assert_eq!(moves.iter().map(|one| one.to.0).collect::<Vec<_>>(), [2]);
    // A connection that loses wherever it is moves less and less often.
    let moves = world.rounds(36_000);
    assert!(moves.len() <= 36_000 / 600, "{} moves in an hour", moves.len());
}

#[test]
fn frozen_nothing_moves_and_what_would_have_is_counted() {
    let mut world = loaded(800);
    world.wishes.freeze = Freeze::Optional;
    world.rounds(2);
    let plan = world.round();
    assert_eq!(plan.moves, []);
    assert!(plan.refusals.contains(&Refusal::Frozen { moves: 20 }));
    world.wishes.freeze = Freeze::All;
    world.ports.get_mut(&PortKey(0)).unwrap().up = false;
    assert_eq!(world.rounds(5), []);
    world.wishes.freeze = Freeze::Optional;
    assert_eq!(world.rounds(1).len(), 80);
}

#[test]
fn the_operator_has_it_his_way_and_the_rule_leaves_it_there() {
    let mut world = loaded(650);
    let one = ConnectionKey(3);
    world.wishes.moves.insert(one, RouteKey(1));
    let moves = world.rounds(1);
    let expected = Move { connection: one, from: RouteKey(0), to: RouteKey(1), reason: Reason::Operator };
    assert_eq!(moves, [expected]);
    assert_eq!(world.rounds(100), []);
    world.wishes.moves.insert(one, RouteKey(9));
    let plan = world.round();
    assert_eq!(plan.refusals, [Refusal::WishImpossible { connection: one, route: RouteKey(9) }]);
}

#[test]
fn a_drained_port_is_emptied_within_the_rate_limit_and_filled_again_afterwards() {
    let mut world = loaded(300);
    world.policy.moves_per_round = 10;
    world.rounds(3);
    world.wishes.drained.insert(PortKey(0));
    for _ in 0..3 {
        let plan = world.round();
        assert_eq!(plan.moves.len(), 10);
        assert!(plan.moves.iter().all(|one| one.reason == Reason::PortDrained { port: PortKey(0) }));
    }
    assert_eq!(world.rounds(50), []);
    world.wishes.drained.clear();
    assert_eq!(world.rounds(50).len(), 30);
}

#[test]
fn the_rate_limit_holds_back_what_the_next_rounds_do() {
    let mut world = loaded(900);
    (world.policy.moves_per_round, world.policy.moves_per_second) = (8, 10);
    world.rounds(2);
    let plan = world.round();
    assert_eq!(plan.moves.len(), 8);
    assert!(plan.refusals.contains(&Refusal::RateLimit { moves: 22 }));
    // Within the second that began with those eight only two more.
    assert_eq!(world.rounds(9).len(), 2);
    // Ten more and the port is at the threshold, where nothing needs to move.
    assert_eq!(world.rounds(100).len(), 10);
}

#[test]
fn an_order_that_is_not_seen_done_counts_as_failed_and_is_given_again_later_and_later() {
    let mut world = World::with_ports(2);
    for _ in 0..2 {
        world.connect(0, 400);
    }
    let mut times = Vec::new();
    for _ in 0..1_500 {
        world.now_ms += 100;
        let plan = world.plan();
        world.history = plan.history;
        if !plan.moves.is_empty() {
            times.push(world.now_ms);
        }
    }
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Two connections take turns: when the order of one has failed, the other is asked. Then both rest, twice as long each time.
    let rests: Vec<u64> = gaps.iter().copied().skip(1).step_by(2).collect();
    assert!(rests.len() >= 3 && rests[0] > 5_000, "{gaps:?}");
    assert!(rests.windows(2).all(|pair| pair[1] >= 2 * pair[0]), "{gaps:?}");
}

#[test]
fn the_peers_port_and_the_switches_on_the_way_count_too() {
    // Both connections use different ports here, and one port of the peer, which is hot in the direction that receives.
    let mut world = World::with_ports(6);
    let route = |key, local, remote, via: u32| Route {
        key: RouteKey(key),
        local: PortKey(local),
        remote: Some(PortKey(remote)),
        via: vec![PortKey(via)],
    };
    for local in 0..2 {
        let key = world.connect(local, 400);
        let connection = world.connections.get_mut(&key).unwrap();
        connection.routes = vec![route(0, local, 2, 4), route(1, local, 3, 5)];
        connection.route = 0;
    }
    let moves = world.rounds(10);
    assert_eq!(moves.len(), 1);
    assert!(matches!(moves[0].reason, Reason::PortHot { port: PortKey(2 | 4), permille: 800, .. }));
    assert_eq!(world.load(PortKey(3)), [0, 40_000_000_000]);
    assert_eq!(world.load(PortKey(5)), [40_000_000_000, 0]);
}

#[test]
fn a_route_between_two_planes_is_not_taken() {
    let mut world = World::with_ports(3);
    let key = world.connect(0, 800);
    world.connect(0, 100);
    let connection = world.connections.get_mut(&key).unwrap();
    connection.load_bps[0] = 30_000_000_000;
    let (mut ports, mut connections) = world.measure();
    let mut plans = Vec::new();
    for planes in [[Some(1), Some(2), Some(1)], [Some(1), Some(1), Some(1)], [Some(1), None, Some(1)]] {
        let mut world = world.clone();
        for (port, plane) in ports.iter_mut().zip(planes) {
            port.plane = plane;
        }
        ports[0].tx_bps = 90e9;
        connections[0].tx_bps = 30e9;
        connections[0].routes = vec![
            Route { remote: Some(PortKey(2)), ..Route::from_port(RouteKey(0), PortKey(0)) },
            Route { remote: Some(PortKey(2)), ..Route::from_port(RouteKey(1), PortKey(1)) },
        ];
        connections[1].routes.truncate(1);
        for _ in 0..3 {
            world.now_ms += 100;
            ports.iter_mut().for_each(|port| port.taken_ms = world.now_ms);
            connections.iter_mut().for_each(|connection| connection.taken_ms = world.now_ms);
            let plan = world.plan_with(&ports, &connections);
            world.history = plan.history.clone();
            plans.push(plan.moves.len());
        }
    }
    assert_eq!(plans, [0, 0, 0, 0, 0, 1, 0, 0, 1]);
}

#[test]
fn a_clock_that_goes_back_moves_nothing_and_heals() {
    let mut world = loaded(800);
    world.rounds(2);
    world.now_ms = 500;
    let plan = world.plan();
    assert_eq!(plan.refusals, [Refusal::ClockWentBack { by_ms: 700 }]);
    assert_eq!(plan.moves, []);
    world.history = plan.history;
    assert_eq!(world.rounds(2), []);
    assert_eq!(world.rounds(1).len(), 20);
}

#[test]
fn a_policy_that_would_swing_is_refused() {
    let policy = Policy { fill_permille: 700, ..Policy::default() };
    assert!(policy.check().is_err());
    assert!(Policy { fill_permille: 699, ..Policy::default() }.check().is_ok());
    let mut world = loaded(900);
    world.policy = policy;
    assert_eq!(world.round().refusals, [Refusal::BadPolicy]);
}

#[test]
fn each_kind_of_nonsense_is_named_and_moves_nothing() {
    type Lie = fn(&mut PortSample);
    let lies: [(Lie, DoubtReason); 9] = [
        (|port| port.tx_bps = f64::NAN, DoubtReason::NotANumber),
        (|port| port.rx_bps = f64::INFINITY, DoubtReason::NotANumber),
        (|port| port.tx_bps = -1.0, DoubtReason::Negative),
        (|port| port.tx_bps = 106e9, DoubtReason::AboveCapacity),
        (|port| port.capacity_bps = 0, DoubtReason::NoCapacity),
        (|port| port.taken_ms -= 1_001, DoubtReason::Stale),
        (|port| port.taken_ms = u64::MAX, DoubtReason::FromTheFuture),
        (|port| port.taken_ms += 251, DoubtReason::FromTheFuture),
        (|port| port.taken_ms = 1_050, DoubtReason::OutOfOrder),
    ];
    for (lie, why) in lies {
        let mut world = loaded(800);
        world.round();
        for _ in 0..9 {
            world.now_ms += 100;
            let (mut ports, connections) = world.measure();
            lie(&mut ports[0]);
            let plan = world.plan_with(&ports, &connections);
            assert_eq!(plan.moves, [], "{why:?}");
            assert!(
                plan.doubts.contains(&Doubt { about: Subject::Port(PortKey(0)), why }),
                "{why:?}: {:?}",
                plan.doubts
            );
            world.history = plan.history;
        }
    }
}

#[test]
fn connections_that_claim_more_than_their_port_carries_are_not_believed() {
    let mut world = loaded(800);
    world.round();
    let mut moves = Vec::new();
    for _ in 0..10 {
        world.now_ms += 100;
        let (ports, mut connections) = world.measure();
        connections.iter_mut().for_each(|connection| connection.tx_bps *= 1.4);
        let plan = world.plan_with(&ports, &connections);
        let why = DoubtReason::MoreThanItsPort;
        assert!(plan.doubts.contains(&Doubt { about: Subject::Connection(ConnectionKey(0)), why }));
        moves.extend(plan.moves);
        world.history = plan.history;
    }
    assert_eq!(moves, []);
}

#[test]
fn a_thing_that_is_spoken_of_twice_is_not_believed() {
    let mut world = loaded(800);
    for _ in 0..10 {
        world.now_ms += 100;
        let (mut ports, connections) = world.measure();
        ports.push(PortSample { tx_bps: 1.0, ..ports[0] });
        let plan = world.plan_with(&ports, &connections);
        assert_eq!(plan.doubts, [Doubt { about: Subject::Port(PortKey(0)), why: DoubtReason::Twice }]);
        assert_eq!(plan.moves, []);
        world.history = plan.history;
    }
}
