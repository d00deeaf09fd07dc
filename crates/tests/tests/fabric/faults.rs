//! QPs that are made to fail, and moves, under load: a checker counts what came. Everything once, in order, nothing lost.

use super::load::Loads;
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::{Config, Connection, Injected, Operation};
use scalefabric_fabric::session::{Change, Strategy};
use scalefabric_tests::eventually;
use scalefabric_tests::fabric::{PATIENCE, Pair};
use std::time::{Duration, Instant};

fn config() -> Config {
    let mut config = Config { depth: 32, receives: 64, receive_bytes: 64, ..Config::default() };
    // On a machine that is busy otherwise there are losses, and moves on their account are not what is counted here.
    config.retransmit_permille = 1000;
    config.patience.backoff_min_ns = 100_000;
    // There a step of a move may take longer than the two seconds after which it is taken back.
    config.patience.step_ns = 30_000_000_000;
    config
}

/// Two connections' worth of load in both directions, with disturbances in between; what was counted at the end is exact.
fn storm(count: u64, mut disturb: impl FnMut(u64, &Connection, &Connection, &Loads)) -> (Connection, Connection) {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let loads = Loads::start(&pair, &client, &server);
    for n in 0..count {
        loads.wait_for(3);
        disturb(n, &client, &server, &loads);
    }
    loads.end();
    (client, server)
}

#[test]
fn a_thousand_failed_qps_lose_repeat_and_reorder_nothing() {
    let (client, server) = storm(1000, |n, client, server, _| {
        let side = if n % 2 == 0 { client } else { server };
        let before = client.statistics().rebuilds;
        side.inject(Injected::QpError).unwrap();
        while client.statistics().rebuilds == before {
            std::thread::yield_now();
        }
    });
    assert!(client.statistics().rebuilds >= 1000, "{:?}", client.statistics());
    assert!(client.statistics().repeated + server.statistics().repeated > 0);
}

/// How many moves in each way of the long test: `FABRIC_MOVES=10000 cargo test --release -p scalefabric-tests --test fabric ten_thousand`.
fn long_run() -> u64 {
    std::env::var("FABRIC_MOVES").ok().and_then(|count| count.parse().ok()).unwrap_or(2_000)
}

#[test]
fn moves_by_a_second_qp_under_load_lose_repeat_and_reorder_nothing() {
    moves(400, Some(Strategy::MakeBeforeBreak));
}

#[test]
fn moves_by_a_new_vector_under_load_lose_repeat_and_reorder_nothing() {
    moves(400, Some(Strategy::DrainedVector));
}

#[test]
fn moves_by_an_alternate_path_under_load_lose_repeat_and_reorder_nothing() {
    moves(400, Some(Strategy::AlternatePath));
}

#[test]
fn ten_thousand_moves_in_the_best_way_under_load_lose_repeat_and_reorder_nothing() {
    moves(long_run(), None);
}

/// In turn the leader and the follower order another port and another source port.
fn moves(count: u64, strategy: Option<Strategy>) {
    let count = count.next_multiple_of(4);
    let (mut pauses, begun) = (Vec::new(), Instant::now());
    let mut longest = Duration::ZERO;
    let (client, server) = storm(count, |n, client, server, loads| {
        let side = if n % 4 < 2 { client } else { server };
        let record = side.record().unwrap();
        let path = match n % 2 {
            0 => record.alternatives.first().cloned().unwrap(),
            // A flow of its own, by the sockets that are there.
            _ => Path { flow_label: 0x4002 + n as u32 % 1000, ..record.path },
        };
        let reason = "test".to_owned();
        let change = Change { path: path.clone(), peer_path: None, strategy, token: FencingToken(n), reason };
        let result = side.begin_move(change).unwrap().wait().unwrap();
        let OrderResult::Done { pause_us, .. } = result else { panic!("move {n} to {path:?}: {result:?}") };
        pauses.push(pause_us);
        let now = side.record().unwrap().path;
        assert_eq!((now.port_num, now.sgid, now.flow_label), (path.port_num, path.sgid, path.flow_label));
        longest = longest.max(loads.take_longest_gap());
    });
    pauses.sort_unstable();
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{count} moves, {strategy:?}: {:.0} moves/s, longest gap between two messages {longest:?}, pause of a move {} µs in the middle, {} µs at most",
        count as f64 / seconds,
        pauses[pauses.len() / 2],
        pauses[pauses.len() - 1]
    );
    // The side that did not order the last move hears of its end by the last word.
    let least = if matches!(strategy, Some(Strategy::MakeBeforeBreak | Strategy::AlternatePath)) { count } else { 0 };
    eventually("both sides have counted the moves", || {
        [&client, &server].iter().all(|side| side.statistics().moves >= least)
    });
    for (side, statistics) in [("client", client.statistics()), ("server", server.statistics())] {
        assert_eq!(statistics.rebuilds, 0, "{side}: a move broke a QP");
        let (moves, turned, migrated) = match strategy {
            // A second QP is one on both sides, and so is an alternate path.
            Some(Strategy::MakeBeforeBreak) => (count, 0, 0),
            Some(Strategy::AlternatePath) => (count, 0, count),
            // The peer's source port is not this side's affair.
            _ => (count / 4 * 3, count / 4 * 3, 0),
        };
        assert_eq!((statistics.moves, statistics.turned, statistics.migrated), (moves, turned, migrated), "{side}");
    }
}

#[test]
fn an_order_with_a_lower_token_is_refused_and_one_to_nowhere_is_taken_back() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let path = client.record().unwrap().path;
    let moved = client.move_to(Path { flow_label: 5, ..path.clone() }, FencingToken(7), "test").unwrap();
    assert!(matches!(moved, OrderResult::Done { .. }), "{moved:?}");
    let refused = client.move_to(path.clone(), FencingToken(6), "test").unwrap();
    assert_eq!(refused, OrderResult::Fenced { highest: FencingToken(7) });
    let nowhere = Path { sgid: scalefabric_verbs::Gid::from_ip([10, 99, 99, 99].into()), ..path };
    let back = client.move_to(nowhere, FencingToken(8), "test").unwrap();
    let OrderResult::RolledBack { reason } = back else { panic!("{back:?}") };
    assert!(reason.contains("10.99.99.99"), "{reason}");
    assert!(client.execute(Operation::send(b"as before")).unwrap().is_done());
    assert!(server.receive(Some(PATIENCE)).unwrap().is_some());
}

#[test]
fn data_flows_while_the_channel_is_away_and_it_is_dialled_again() {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    for n in 0..20u8 {
        client.inject(Injected::ChannelLost).unwrap();
        assert!(client.execute(Operation::send(&[n])).unwrap().is_done());
        assert_eq!(server.receive(Some(PATIENCE)).unwrap().unwrap().to_vec().unwrap(), [n]);
    }
    // What needs the channel works once it is back.
    client.rebuild("test").unwrap();
    assert!(client.execute(Operation::send(b"x")).unwrap().is_done());
    while client.statistics().redialled == 0 {
        std::thread::yield_now();
    }
    assert_eq!(client.statistics().in_doubt, 0);
}
