//! A port that goes down under load and returns: its connections go on by the other port and come home, and the checker finds nothing lost, repeated or
//! reordered. Both ends are on one device, so both hear of it at once.

use super::load::Loads;
use scalefabric_fabric::directory::ConnectionState;
use scalefabric_fabric::endpoint::{Config, Connection};
use scalefabric_tests::fabric::{PATIENCE, Pair, provider_apart};
use std::time::{Duration, Instant};

/// Connections, each with load both ways.
const CONNECTIONS: usize = 3;

fn config(return_after: Duration) -> Config {
    let mut config = Config { depth: 32, receives: 64, receive_bytes: 64, return_after, ..Config::default() };
    config.patience.backoff_min_ns = 100_000;
    // On a machine that is busy otherwise there are losses, which would move connections, too.
    config.retransmit_permille = 1000;
    config
}

fn port_of(connection: &Connection) -> u8 {
    connection.record().unwrap().path.port_num
}

pub fn wait_until(what: &str, sides: &[&Connection], done: impl Fn() -> bool) {
    let begun = Instant::now();
    let all = || sides.iter().map(|side| (side.record(), side.statistics())).collect::<Vec<_>>();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}: {:#?}", all());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn connections_leave_a_port_that_goes_down_and_come_home_when_it_returns() {
    let rounds = std::env::var("FABRIC_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6);
    let pair = Pair::on(&provider_apart(1), &config(Duration::from_millis(100)));
    let ends: Vec<_> = (0..CONNECTIONS).map(|_| pair.connect()).collect();
    let all: Vec<&Connection> = ends.iter().flat_map(|(client, server)| [client, server]).collect();
    let all_on = |port: u8| all.iter().all(|side| port_of(side) == port);
    wait_until("connections begin on the first port", &all, || all_on(1));
    let loads: Vec<_> = ends.iter().map(|(client, server)| Loads::start(&pair, client, server)).collect();
    for round in 0..rounds {
        loads.iter().for_each(|load| load.wait_for(20));
        for load in &loads {
            load.take_longest_gap();
        }
        pair.set_port(1, false);
        loads.iter().for_each(|load| load.wait_for(50));
        let longest = loads.iter().map(Loads::take_longest_gap).max().unwrap_or_default();
        wait_until("a connection stayed on a port that is down", &all, || all_on(2));
        pair.set_port(1, true);
        wait_until("a connection did not come home", &all, || all_on(1));
        let home = loads.iter().map(Loads::take_longest_gap).max().unwrap_or_default();
        println!("round {round}: longest gap {longest:?} when the port failed, {home:?} until all were home again");
    }
    let messages: u64 = loads.into_iter().map(Loads::end).sum();
    for side in all {
        let statistics = side.statistics();
        assert!(statistics.rebuilds >= rounds && statistics.moves > 0, "{statistics:?}");
    }
    println!("{messages} messages");
}

/// It may go down again while connections rebuild, come home, or are on their way.
#[test]
fn a_port_that_flaps_at_any_moment_loses_repeats_and_reorders_nothing() {
    let pair = Pair::on(&provider_apart(2), &config(Duration::ZERO));
    let (client, server) = pair.connect();
    let loads = Loads::start(&pair, &client, &server);
    let mut pause = 7u64;
    for n in 0..60u64 {
        loads.wait_for(3);
        let port = 1 + (n / 2 % 2) as u8;
        pair.set_port(port, n % 2 == 1);
        // From at once to some milliseconds, so that every step of a rebuild is met.
        pause = (pause * 31 + 11) % 97;
        std::thread::sleep(Duration::from_micros(pause * pause));
    }
    loads.end();
    let home = |side: &Connection| {
        let record = side.record().unwrap();
        record.state == ConnectionState::Up && record.path.port_num == 1
    };
    wait_until("it did not come home to port 1", &[&client, &server], || home(&client) && home(&server));
}
