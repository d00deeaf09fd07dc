//! A fabric on two devices: connections move from one to the other under load, go there by themselves when their own has no port that is up, and come home. The
//! checker finds nothing lost, repeated or reordered.

use super::load::Loads;
use super::ports::wait_until;
use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::{Config, Connection, Operation, Remote};
use scalefabric_fabric::session::{Change, Strategy};
use scalefabric_fabric::{Fault, Path};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::fabric::{PATIENCE, Pair, Region, buffer, piece, provider_of_two};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The devices, for one test after the other: what becomes of their ports is the affair of all who are on them.
fn devices() -> (Arc<SoftwareProvider>, MutexGuard<'static, ()>) {
    static DEVICES: OnceLock<Arc<SoftwareProvider>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (DEVICES.get_or_init(provider_of_two).clone(), turn)
}

fn config() -> Config {
    let mut config = Config { depth: 32, receives: 64, receive_bytes: 64, ..Config::default() };
    config.return_after = Duration::from_millis(50);
    config.patience.backoff_min_ns = 100_000;
    // On a machine that is busy otherwise there are losses, which would move connections, too.
    config.retransmit_permille = 1000;
    config
}

fn device_of(connection: &Connection) -> String {
    connection.record().unwrap().path.device
}

/// The way on the other device.
fn away(connection: &Connection) -> Path {
    let record = connection.record().unwrap();
    record.alternatives.into_iter().find(|path| path.device != record.path.device).expect("another device")
}

fn move_to(connection: &Connection, path: Path, strategy: Option<Strategy>, token: u64) -> OrderResult {
    let change = Change { path, peer_path: None, strategy, token: FencingToken(token), reason: "test".into() };
    connection.begin_move(change).unwrap().wait().unwrap()
}

#[test]
fn moves_between_two_devices_under_load_lose_repeat_and_reorder_nothing() {
    let (provider, _turn) = devices();
    let pair = Pair::on(&provider, &config());
    let (client, server) = pair.connect();
    assert_eq!((device_of(&client), device_of(&server)), ("rail1".to_owned(), "rail1".to_owned()));
    let loads = Loads::start(&pair, &client, &server);
    const MOVES: u64 = 200;
    for n in 0..MOVES {
        loads.wait_for(3);
        let side = if n % 4 < 2 { &client } else { &server };
        let path = away(side);
        let result = move_to(side, path.clone(), None, n);
        assert!(matches!(result, OrderResult::Done { .. }), "move {n} to {path:?}: {result:?}");
        assert_eq!(device_of(side), path.device);
    }
    loads.end();
    for side in [&client, &server] {
        let statistics = side.statistics();
        assert_eq!((statistics.moves, statistics.turned, statistics.rebuilds), (MOVES, 0, 0), "{statistics:?}");
    }
}

#[test]
fn a_connection_whose_device_has_no_port_left_goes_to_the_other_device_and_comes_home() {
    let (provider, _turn) = devices();
    let pair = Pair::on(&provider, &config());
    let (client, server) = pair.connect();
    let loads = Loads::start(&pair, &client, &server);
    let both_on = |device: &str| device_of(&client) == device && device_of(&server) == device;
    for _ in 0..4 {
        loads.wait_for(20);
        pair.set_port(1, false);
        loads.wait_for(50);
        wait_until("a connection stayed on a device that is down", &[&client, &server], || both_on("rail2"));
        pair.set_port(1, true);
        wait_until("a connection did not come home", &[&client, &server], || both_on("rail1"));
    }
    loads.end();
}

#[test]
fn memory_that_the_other_device_does_not_know_is_refused_there_and_what_it_knows_goes_on() {
    let (provider, _turn) = devices();
    let pair = Pair::on(&provider, &config());
    let (client, server) = pair.connect();
    let (known, lent) = (buffer(&pair.client, 64), buffer(&pair.server, 64));
    let unknown = Region::new(&pair.client, 64);
    server.lend(1, lent.clone(), 0, 64).unwrap();
    let first = client.offered(1, Some(PATIENCE)).unwrap().unwrap();
    let remote = Remote::Offered { id: 1, offset: 0 };
    assert!(client.execute(Operation::read(&unknown.piece(0, 64), remote)).unwrap().is_done());

    // A QP does not leave its device; another one does.
    for strategy in [Strategy::DrainedVector, Strategy::AlternatePath] {
        let result = move_to(&client, away(&client), Some(strategy), 1);
        assert!(matches!(result, OrderResult::RolledBack { .. }), "{strategy:?}: {result:?}");
    }
    let result = move_to(&client, away(&client), None, 2);
    assert!(matches!(result, OrderResult::Done { .. }), "{result:?}");
    let error = client.execute(Operation::read(&unknown.piece(0, 64), remote)).unwrap_err();
    assert_eq!(error.fault, Fault::Misuse);
    assert!(error.message.contains("not registered with the device"), "{error}");
    assert!(client.execute(Operation::read(&piece(&known, 0, 64), remote)).unwrap().is_done());

    // The peer's key is another one on its other device.
    let result = move_to(&server, away(&server), None, 3);
    assert!(matches!(result, OrderResult::Done { .. }), "{result:?}");
    wait_until("the key of the other device is not used", &[&client, &server], || {
        client.offered(1, None).unwrap().is_some_and(|range| range.addr == first.addr && range.rkey != first.rkey)
    });
    assert!(client.execute(Operation::read(&piece(&known, 0, 64), remote)).unwrap().is_done());

    let nowhere = Path { device: "rail7".into(), ..client.record().unwrap().path };
    let OrderResult::RolledBack { reason } = move_to(&client, nowhere, None, 4) else { panic!("moved to nowhere") };
    assert!(reason.contains("rail7") && reason.contains("rail1, rail2"), "{reason}");
}
