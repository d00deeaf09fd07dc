//! Properties of the balancing rule over random worlds. What is checked is computed here anew, from the measurements and the moves alone.

use super::super::*;
use super::world::{World, WorldConnection, WorldPort};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Ports of 1,000 units, each a tenth of a gigabit, and connections of some units.
const UNIT: u64 = 100_000_000;

fn a_world(most_ports: u32, most_connections: usize) -> impl Strategy<Value = World> {
    let port = (any::<bool>(), 0_u64..300).prop_map(|(quiet, load)| if quiet { 0 } else { load });
    let connection = (0_u64..250, 0_u64..100, any::<u32>(), any::<u32>(), any::<bool>());
    (prop::collection::vec(port, 2..=most_ports as usize), prop::collection::vec(connection, 0..=most_connections))
        .prop_map(|(ports, connections)| {
            let mut world = World::with_ports(ports.len() as u32);
            for (background, port) in ports.iter().zip(world.ports.values_mut()) {
                *port = WorldPort { background_bps: [background * UNIT, 0], ..*port };
            }
            let count = ports.len() as u32;
            for (n, (tx, rx, here, there, two_sided)) in connections.into_iter().enumerate() {
                let remote = |local: u32| two_sided.then_some(PortKey((local + 1 + there % (count - 1)) % count));
                let routes = (0..count)
                    .map(|local| Route {
                        remote: remote(local),
                        ..Route::from_port(RouteKey(u64::from(local)), PortKey(local))
                    })
                    .collect();
                let route = (here % count) as usize;
                let load_bps = [tx * UNIT, rx * UNIT];
                let connection = WorldConnection { load_bps, routes, route, retransmit_ratio: 0.0 };
                world.connections.insert(ConnectionKey(n as u64), connection);
            }
            world
        })
}

/// A small instance for brute force: one or two hot ports, two or three others, few connections.
fn a_small_world() -> impl Strategy<Value = World> {
    (2_u32..=4, prop::collection::vec((20_u64..400, 0_u32..2), 1..=8), prop::collection::vec(0_u64..600, 4)).prop_map(
        |(ports, connections, background)| {
            let mut world = World::with_ports(ports);
            for (tx, port) in connections {
                world.connect(port, tx);
            }
            for (n, background) in background.into_iter().enumerate().skip(2) {
                if let Some(port) = world.ports.get_mut(&PortKey(n as u32)) {
                    port.background_bps[0] = background * UNIT;
                }
            }
            world.policy.rest_ms = 0;
            world
        },
    )
}

/// The fewest moves that bring all ports that are above `hot` to `goal` and no other above `fill`; `None` if there are none. Tries everything.
fn brute_force(world: &World, goal: u64, sources: &BTreeSet<PortKey>) -> Option<usize> {
    let Policy { hot_permille, fill_permille, .. } = world.policy;
    assert!(hot_permille > fill_permille);
    let keys: Vec<ConnectionKey> = world
        .connections
        .iter()
        .filter(|(_, connection)| sources.contains(&connection.routes[connection.route].local))
        .map(|(&key, _)| key)
        .collect();
    let ports: Vec<PortKey> = world.ports.keys().copied().collect();
    let mut best = None;
    let mut choice = vec![0_usize; keys.len()];
    loop {
        // Each digit: 0 stays, n goes to port n - 1.
        let mut after: BTreeMap<PortKey, u64> = ports.iter().map(|&port| (port, world.load(port)[0])).collect();
        let mut entered = BTreeSet::new();
        let mut moves = 0;
        let mut is_legal = true;
        for (key, &digit) in keys.iter().zip(&choice) {
            let connection = &world.connections[key];
            let from = connection.routes[connection.route].local;
            if digit > 0 {
                let to = ports[digit - 1];
                is_legal &= to != from && !sources.contains(&to);
                *after.get_mut(&from).unwrap() -= connection.load_bps[0];
                *after.get_mut(&to).unwrap() += connection.load_bps[0];
                entered.insert(to);
                moves += 1;
            }
        }
        let fits = |permille: u64, load: u64| load * 1000 <= permille * super::world::GIGA100;
        is_legal &= entered.iter().all(|port| fits(u64::from(fill_permille), after[port]));
        is_legal &= sources.iter().all(|port| fits(goal, after[port]));
        if is_legal && best.is_none_or(|best| moves < best) {
            best = Some(moves);
        }
        let Some(n) = choice.iter().position(|&digit| digit < ports.len()) else { return best };
        choice[..n].fill(0);
        choice[n] += 1;
    }
}

/// What must hold of each round, computed from the samples and the moves.
fn check_round(world: &World, plan: &Plan, hot_before: &BTreeSet<PortKey>) {
    let mut after: BTreeMap<PortKey, [i128; 2]> =
        world.ports.keys().map(|&port| (port, world.load(port).map(i128::from))).collect();
    let mut seen = BTreeSet::new();
    for one in &plan.moves {
        assert!(seen.insert(one.connection), "{one:?}: moved twice in a round");
        let connection = &world.connections[&one.connection];
        let find = |key| connection.routes.iter().find(|route| route.key == key).unwrap();
        let (from, to) = (find(one.from), find(one.to));
        let entered: Vec<PortKey> = to.ports().filter(|port| !from.ports().any(|other| other == *port)).collect();
        for port in to.ports() {
            assert!(world.ports[&port].up, "{one:?}: to a port that is down");
        }
        for port in &entered {
            assert!(!hot_before.contains(port), "{one:?}: to a hot port");
        }
        // What leaves is not counted: it may fail to.
        let [tx, rx] = connection.load_bps.map(i128::from);
        for port in entered {
            let after = after.get_mut(&port).unwrap();
            *after = if port == to.local { [after[0] + tx, after[1] + rx] } else { [after[0] + rx, after[1] + tx] };
        }
    }
    for one in &plan.moves {
        let connection = &world.connections[&one.connection];
        let find = |key| connection.routes.iter().find(|route| route.key == key).unwrap();
        let (from, to) = (find(one.from), find(one.to));
        for port in to.ports().filter(|port| !from.ports().any(|other| other == *port)) {
            let most = i128::from(world.ports[&port].capacity_bps) * i128::from(world.policy.fill_permille) / 1000;
            let before = world.load(port).map(i128::from);
            for (after, before) in after[&port].into_iter().zip(before) {
                assert!(after <= most.max(before), "{one:?}: fills {port:?} to {after}");
            }
        }
    }
}

proptest! {
    // Each case is hundreds of rounds.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn constant_load_comes_to_rest_and_nobody_is_moved_twice(mut world in a_world(6, 40)) {
        world.policy.rest_ms = 0;
        world.policy.moves_per_round = 8;
        let mut moved = BTreeSet::new();
        for _ in 0..400 {
            let hot: BTreeSet<PortKey> = world.ports.keys().copied().filter(|&port| world.history.is_hot(port)).collect();
            let mut before = world.clone();
            before.now_ms += 100;
            let plan = world.round();
            // A port may cool down in this very round: it may be entered then.
            let hot = hot.into_iter().filter(|&port| world.history.is_hot(port)).collect();
            check_round(&before, &plan, &hot);
            for one in plan.moves {
                prop_assert!(moved.insert(one.connection), "{one:?} moves again");
            }
        }
        prop_assert_eq!(world.rounds(50), vec![]);
    }
}

proptest! {
    #[test]
    fn the_smallest_set_is_found(mut world in a_small_world()) {
        world.rounds(2);
        world.now_ms += 100;
        let sources: BTreeSet<PortKey> = world.ports.keys().copied().filter(|&port| {
            world.load(port)[0] * 1000 > u64::from(world.policy.hot_permille) * super::world::GIGA100
        }).collect();
        let plan = world.plan();
        // A port that carries all it can hides how much it should carry: nothing is known of the goal then.
        let is_full = |port: &PortKey| world.load(*port)[0] >= super::world::GIGA100;
        prop_assume!(!sources.iter().any(is_full));
        let cool = brute_force(&world, u64::from(world.policy.cool_permille), &sources);
        let best = cool.or_else(|| brute_force(&world, u64::from(world.policy.hot_permille), &sources));
        prop_assert!(plan.effort.at_least as usize <= plan.moves.len());
        match best {
            Some(fewest) => {
                prop_assert_eq!(plan.moves.len(), fewest);
                prop_assert_eq!(plan.effort.at_least as usize, fewest);
            }
            None => prop_assert!(
                plan.refusals.iter().any(|refusal| matches!(refusal, Refusal::StaysHot { .. })),
                "{:?}", plan
            ),
        }
    }

    #[test]
    fn the_rate_limit_holds_whatever_happens(
        mut world in a_world(5, 40),
        per_round in 0_u32..6,
        per_second in 0_u32..12,
        events in prop::collection::vec((any::<u32>(), 0_u64..400, 0_u32..20), 60),
    ) {
        (world.policy.moves_per_round, world.policy.moves_per_second) = (per_round, per_second);
        world.policy.rest_ms = 1_000;
        let mut times: Vec<u64> = Vec::new();
        let mut last: BTreeMap<ConnectionKey, u64> = BTreeMap::new();
        for (who, load, link) in events {
            let count = world.connections.len().max(1) as u64;
            if let Some(connection) = world.connections.get_mut(&ConnectionKey(u64::from(who) % count)) {
                connection.load_bps[0] = load * UNIT;
            }
            if let Some(port) = world.ports.get_mut(&PortKey(link)) {
                port.up = !port.up;
            }
            let plan = world.round();
            for one in &plan.moves {
                let is_escape = matches!(one.reason, Reason::PortDown { .. });
                if !is_escape {
                    times.push(world.now_ms);
                    let rested = last.get(&one.connection).is_none_or(|&at| world.now_ms >= at + 1_000);
                    prop_assert!(rested, "{:?} has not rested", one);
                }
                last.insert(one.connection, world.now_ms);
                let connection = &world.connections[&one.connection];
                for port in connection.routes[connection.route].ports() {
                    prop_assert!(world.ports[&port].up);
                }
            }
            let limited = plan.moves.iter().filter(|one| !matches!(one.reason, Reason::PortDown { .. })).count();
            prop_assert!(limited <= per_round as usize);
            let second = times.iter().filter(|&&at| at + 1_000 > world.now_ms).count();
            prop_assert!(second <= per_second as usize);
        }
    }

    #[test]
    fn the_same_round_again_moves_nothing_and_order_does_not_matter(mut world in a_world(5, 30)) {
        world.rounds(2);
        world.now_ms += 100;
        let (mut ports, mut connections) = world.measure();
        let first = world.plan_with(&ports, &connections);
        ports.reverse();
        connections.reverse();
        prop_assert_eq!(&world.plan_with(&ports, &connections), &first);
        world.history = first.history;
        let again = world.plan_with(&ports, &connections);
        prop_assert_eq!(again.moves, vec![]);
        prop_assert_eq!(again.history, world.history);
    }

    #[test]
    fn nonsense_never_panics_and_never_reaches_the_history(
        world in a_world(4, 10),
        loads in prop::collection::vec(prop::num::f64::ANY, 20),
        times in prop::collection::vec(any::<u64>(), 20),
        capacities in prop::collection::vec(any::<u64>(), 20),
    ) {
        let mut world = world;
        for round in 0..5_usize {
            world.now_ms += 100;
            let (mut ports, mut connections) = world.measure();
            for (n, port) in ports.iter_mut().enumerate() {
                port.tx_bps = loads[(n + round) % 20];
                port.taken_ms = if n % 2 == 0 { times[(n + round) % 20] } else { world.now_ms };
                port.capacity_bps = capacities[(n + round) % 20];
            }
            for (n, connection) in connections.iter_mut().enumerate() {
                connection.rx_bps = loads[(n + round + 7) % 20];
                connection.retransmit_ratio = loads[(n + round + 3) % 20];
                connection.moved_ms = Some(times[(n + round) % 20]);
            }
            let plan = world.plan_with(&ports, &connections);
            for (n, port) in ports.iter().enumerate() {
                let sensible = port.tx_bps >= 0.0 && port.tx_bps <= port.capacity_bps as f64 * 1.05
                    && port.capacity_bps > 0 && port.taken_ms <= world.now_ms + 250 && port.taken_ms + 1_000 >= world.now_ms;
                let about = Subject::Port(port.port);
                prop_assert!(sensible || plan.doubts.iter().any(|doubt| doubt.about == about), "{}: {:?}", n, port);
            }
            world.history = plan.history;
        }
    }
}

#[test]
fn thousands_of_connections_are_relieved_in_few_steps_with_a_bound_that_says_how_well() {
    // 8 ports of which 2 carry 4,000 connections of all sizes, 95 % in all.
    let mut world = World::with_ports(8);
    let mut seed = 1_u64;
    for port in [0, 1] {
        let mut left = 950 * UNIT;
        for _ in 0..2_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let load = (left / 500).max(1) * (1 + (seed >> 60)) / 8;
            left -= load;
            let key = world.connect(port, 0);
            world.connections.get_mut(&key).unwrap().load_bps[0] = load;
        }
    }
    (world.policy.moves_per_round, world.policy.moves_per_second) = (10_000, 10_000);
    world.rounds(2);
    let plan = world.round();
    assert!(plan.effort.steps <= world.policy.search_steps);
    assert_eq!(plan.moves.len(), plan.effort.chosen as usize);
    assert!(plan.moves.len() > 100, "{:?}", plan.effort);
    // With room everywhere, one after another the largest is what any set needs: the bound of the two ports is half of the sum.
    assert!(plan.effort.chosen <= 2 * plan.effort.at_least, "{:?}", plan.effort);
    assert!(world.load(PortKey(0))[0] <= 600 * UNIT && world.load(PortKey(1))[0] <= 600 * UNIT);
}
