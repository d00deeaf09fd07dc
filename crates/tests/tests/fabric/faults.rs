//! QPs that are made to fail, and moves, under load: a checker counts what came. Everything once, in order, nothing lost.

use scalefabric_fabric::directory::{FencingToken, OrderResult};
use scalefabric_fabric::endpoint::{Completion, Config, Connection, Injected, Operation, Remote};
use scalefabric_fabric::{Outcome, Path};
use scalefabric_tests::fabric::{PATIENCE, Pair, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

fn config() -> Config {
    let mut config = Config { depth: 32, receives: 64, receive_bytes: 64, ..Config::default() };
    config.patience.backoff_min_ns = 100_000;
    config
}

/// Sends numbers until it is told to stop; they must all come, in order, once.
struct Load {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Load {
    fn start(from: &Connection, to: &Connection, word: Arc<Region>, counter: Arc<Region>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let sender = {
            let (from, stop) = (from.clone(), stop.clone());
            std::thread::spawn(move || send(&from, &word, &stop))
        };
        let receiver = {
            let (to, received) = (to.clone(), received.clone());
            std::thread::spawn(move || {
                let mut next = 0u64;
                loop {
                    let message = to.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                    let bytes = message.to_vec().unwrap();
                    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    if number == u64::MAX {
                        return next;
                    }
                    assert_eq!(number, next, "lost, repeated or out of order");
                    next += 1;
                    received.store(next, Ordering::Relaxed);
                    // What was posted before a message is there when it comes.
                    assert!(counter.0.load_u64(0).unwrap() > number, "the add before message {number} is missing");
                }
            })
        };
        Self { stop, received, sender, receiver }
    }

    fn wait_for(&self, more: u64) {
        let until = self.received.load(Ordering::Relaxed) + more;
        while self.received.load(Ordering::Relaxed) < until {
            assert!(!self.sender.is_finished() && !self.receiver.is_finished(), "the load has ended");
            std::thread::yield_now();
        }
    }

    /// How many were sent.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap();
        assert_eq!(self.receiver.join().unwrap(), sent);
        sent
    }
}

fn send(from: &Connection, word: &Arc<Region>, stop: &AtomicBool) -> u64 {
    let mut number = 0u64;
    let mut done = 0u64;
    let (mut added, mut in_doubt) = (0u64, 0u64);
    let mut out = [Completion::default(); 16];
    while !stop.load(Ordering::Relaxed) {
        let bytes = number.to_le_bytes();
        let piece = word.piece(0, 8);
        let pair = [
            Operation::fetch_add(&piece, Remote::Offered { id: 1, offset: 0 }, 1).context(u64::MAX),
            Operation::send(&bytes).context(number),
        ];
        from.post(&pair[..1]).unwrap();
        from.post(&pair[1..]).unwrap();
        number += 1;
        loop {
            let count = from.poll(&mut out).unwrap();
            for completion in &out[..count] {
                if completion.context == u64::MAX {
                    added += u64::from(completion.outcome.is_done());
                    in_doubt += u64::from(matches!(completion.outcome, Outcome::InDoubt(_)));
                } else {
                    assert!(completion.outcome.is_done(), "{completion:?}");
                    assert_eq!(completion.context, done, "completions are out of order");
                    done += 1;
                }
            }
            if number - done < 12 {
                break;
            }
        }
    }
    from.post(&[Operation::send(&u64::MAX.to_le_bytes()).quiet()]).unwrap();
    assert!(from.flush(Some(PATIENCE)).unwrap());
    loop {
        let count = from.poll(&mut out).unwrap();
        if count == 0 {
            break;
        }
        for completion in &out[..count] {
            if completion.context == u64::MAX {
                added += u64::from(completion.outcome.is_done());
                in_doubt += u64::from(matches!(completion.outcome, Outcome::InDoubt(_)));
            } else {
                assert!(completion.outcome.is_done());
                done += 1;
            }
        }
    }
    assert_eq!(done, number);
    assert_eq!(added + in_doubt, number, "an add was neither done nor in doubt");
    number
}

/// Two connections' worth of load in both directions, with disturbances in between; what was counted at the end is exact.
fn storm(count: u64, disturb: impl Fn(u64, &Connection, &Connection)) -> (Connection, Connection) {
    let pair = Pair::new(&config());
    let (client, server) = pair.connect();
    let counters = [Region::new(&pair.server, 8), Region::new(&pair.client, 8)];
    server.offer(1, counters[0].range()).unwrap();
    client.offer(1, counters[1].range()).unwrap();
    for side in [&client, &server] {
        side.offered(1, Some(PATIENCE)).unwrap().unwrap();
    }
    let loads = [
        Load::start(&client, &server, Region::new(&pair.client, 8), counters[0].clone()),
        Load::start(&server, &client, Region::new(&pair.server, 8), counters[1].clone()),
    ];
    for n in 0..count {
        for load in &loads {
            load.wait_for(3);
        }
        disturb(n, &client, &server);
    }
    for (load, counter) in loads.into_iter().zip(&counters) {
        let sent = load.end();
        // Each add had its effect exactly once, those in doubt included: on this backend none is repeated.
        assert_eq!(counter.0.load_u64(0).unwrap(), sent);
    }
    (client, server)
}

#[test]
fn a_thousand_failed_qps_lose_repeat_and_reorder_nothing() {
    let (client, server) = storm(1000, |n, client, server| {
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

#[test]
fn moves_between_ports_and_source_ports_under_load_lose_repeat_and_reorder_nothing() {
    moves(200);
}

#[test]
#[ignore = "minutes: cargo test --release -p scalefabric-tests --test fabric ten_thousand -- --ignored"]
fn ten_thousand_moves_under_load_lose_repeat_and_reorder_nothing() {
    moves(10_000);
}

fn moves(count: u64) {
    let (client, _server) = storm(count, |n, client, server| {
        // The leader moves, then the follower asks to.
        let side = if n % 4 < 2 { client } else { server };
        let record = side.record().unwrap();
        let path = match n % 2 {
            0 => record.alternatives.first().cloned().unwrap(),
            _ => Path { flow_label: 1 + n as u32, ..record.path },
        };
        let result = side.move_to(path.clone(), FencingToken(n), "test").unwrap();
        assert!(matches!(result, OrderResult::Done { .. }), "move {n} to {path:?}: {result:?}");
        let now = side.record().unwrap().path;
        assert_eq!((now.port_num, now.sgid, now.flow_label), (path.port_num, path.sgid, path.flow_label));
    });
    assert_eq!(client.statistics().moves, count);
    assert_eq!(client.statistics().rebuilds, 0, "a move broke a QP");
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
