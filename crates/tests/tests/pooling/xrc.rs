//! Processes of two hosts that all speak with one another: connections of their own, and over XRC. The devices' own lists say how many QPs that takes.

use crate::{Device, PATIENCE, connect};
use scalefabric_fabric::directory::{
    ConnectionRecord, ConnectionState, Directory, FencingToken, Order, OrderId, OrderResult, ServiceAddress,
};
use scalefabric_fabric::endpoint::{Config, Fabric, Injected, Operation, Piece, Remote, XrcPool};
use scalefabric_fabric::exchange::{Exchange, Tcp};
use scalefabric_fabric::{self as fabric, FabricError, Fault, Local, Outcome};
use scalefabric_nic::PortChange;
use scalefabric_nic::provider::SoftwareContext;
use scalefabric_nic::resources::QpResource;
use scalefabric_tests::eventually;
use scalefabric_tests::fabric::{buffer, piece, pool};
use scalefabric_verbs::{Gid, PKey, QpState, QpType, WcStatus};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Processes here and there.
const N: usize = 6;
const M: usize = 4;

fn config() -> Config {
    Config { depth: 32, receives: 64, receive_bytes: 64, ..Config::default() }
}

fn tcp() -> Arc<dyn Exchange> {
    Arc::new(Tcp::new())
}

/// A domain's file, which goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("sfab-xrc-{}-{name}", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A process in its host's domain, and where it is reached.
fn processes(device: &Device, count: usize, host: &str, file: &File) -> Vec<(XrcPool, String)> {
    let process = |number| {
        let fabric = device.fabric(&format!("{host}{number}"), &config());
        let pool = XrcPool::new(&fabric, &file.0).unwrap();
        let address = pool.listen(&tcp(), "127.0.0.1:0").unwrap();
        (pool, address)
    };
    (0..count).map(process).collect()
}

#[test]
fn n_processes_that_speak_with_m_need_n_plus_m_qps_on_each_host_where_connections_need_n_times_m() {
    let (a, b) = (Device::new(5), Device::new(6));
    // Connections of their own.
    let servers: Vec<Fabric> = (0..M).map(|number| b.fabric(&format!("b{number}"), &config())).collect();
    let clients: Vec<Fabric> = (0..N).map(|number| a.fabric(&format!("a{number}"), &config())).collect();
    let mut connections = Vec::new();
    for server in &servers {
        let listener = server.listen("service").unwrap();
        connections.extend(clients.iter().map(|client| connect(client, server, &listener)));
    }
    let own = (a.qps_of(QpType::Rc), b.qps_of(QpType::Rc));
    assert_eq!(own, (N * M, N * M));
    drop((connections, clients, servers));

    // The same over XRC, both ways.
    let (files, hosts) = ([File::new("a"), File::new("b")], [(&a, N, "a"), (&b, M, "b")]);
    let [here, there] = [0, 1].map(|n| processes(hosts[n].0, hosts[n].1, hosts[n].2, &files[n]));
    let mut peers = Vec::new();
    for (from, to) in [(&here, &there), (&there, &here)] {
        for (process, _) in from {
            for (_, address) in to {
                peers.push(process.connect(&tcp(), address).unwrap());
            }
        }
    }
    assert_eq!(peers.len(), 2 * N * M);
    let count = |device: &Device| (device.qps_of(QpType::XrcSend), device.qps_of(QpType::XrcRecv));
    assert_eq!((count(&a), count(&b)), ((N, M), (M, N)));
    println!(
        "{N} processes on one host, {M} on another, all speak with all: connections take {} QPs on each host, XRC takes {} and {}",
        N * M,
        a.qps_of(QpType::XrcSend) + a.qps_of(QpType::XrcRecv),
        b.qps_of(QpType::XrcSend) + b.qps_of(QpType::XrcRecv),
    );
    // Each reaches the one that it means, and that one knows who it was.
    for peer in &peers {
        assert!(peer.execute(Operation::send(peer.name().as_bytes())).unwrap().is_done());
    }
    for (receivers, senders) in [(&here, M), (&there, N)] {
        for (process, _) in receivers {
            let mut from = Vec::new();
            for _ in 0..senders {
                let message = process.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                let text = String::from_utf8(message.received().to_vec().unwrap()).unwrap();
                from.push(message.from().to_owned());
                assert_eq!(text, name(process));
            }
            from.sort();
            from.dedup();
            assert_eq!(from.len(), senders, "{from:?}");
            assert!(process.try_receive().unwrap().is_none());
        }
    }
    // Who goes takes only its own with it.
    drop(peers);
    drop((here, there));
    for device in [&a, &b] {
        let left = device.provider.survey(&device.name).map_or(0, |survey| survey.all(|all| &all.qps).count());
        assert_eq!(left, 0);
    }
}

/// What a process is called by its peers: asked of it over a connection to itself.
fn name(process: &XrcPool) -> String {
    let address = process.listen(&tcp(), "127.0.0.1:0").unwrap();
    process.connect(&tcp(), &address).unwrap().name().to_owned()
}

#[test]
fn one_sided_operations_and_many_at_once_reach_the_memory_of_the_process_that_is_meant() {
    let (a, b) = (Device::new(7), Device::new(8));
    let files = [File::new("c"), File::new("d")];
    let here = processes(&a, 1, "a", &files[0]).pop().unwrap().0;
    let there = processes(&b, 2, "b", &files[1]);
    let ours = pool(here.fabric());
    let local = Arc::new(ours.alloc_aligned(4096, 4096).unwrap());
    let piece = |offset, length| Piece::new(local.clone() as Arc<dyn Local>, offset, length);
    let memory: Vec<_> = there
        .iter()
        .map(|(process, _)| {
            let pool = pool(process.fabric());
            let buffer = Arc::new(pool.alloc_aligned(4096, 4096).unwrap());
            (pool, buffer)
        })
        .collect();
    let peers: Vec<_> = there.iter().map(|(_, address)| here.connect(&tcp(), address).unwrap()).collect();
    assert_eq!(peers[0].qp_num(), peers[1].qp_num());
    for (number, (peer, (_, buffer))) in peers.iter().zip(&memory).enumerate() {
        let range = buffer.remote(0, 4096).unwrap();
        local.write(0, &[number as u8 + 1; 600]).unwrap();
        assert!(peer.execute(Operation::write(&piece(0, 600), range.part(64, 600).unwrap())).unwrap().is_done());
        let (old, word) = (piece(1024, 8), range.part(0, 8).unwrap());
        // More than the depth, and more than may be outstanding.
        let adds: Vec<_> = (0..100).map(|_| Operation::fetch_add(&old, word, 1)).collect();
        assert!(peer.execute_all(&adds).unwrap().iter().all(Outcome::is_done));
        assert!(peer.execute(Operation::read(&piece(2048, 600), range.part(64, 600).unwrap())).unwrap().is_done());
        let mut bytes = [0; 600];
        local.read(2048, &mut bytes).unwrap();
        assert_eq!(bytes, [number as u8 + 1; 600]);
        assert_eq!(buffer.load_u64(0).unwrap(), 100);
    }
    assert!(peers[1].execute(Operation::send_with_imm(b"x", 9)).unwrap().is_done());
    assert_eq!(there[1].0.receive(Some(PATIENCE)).unwrap().unwrap().received().imm(), Some(9));
    let offered = peers[0].execute(Operation::write(b"x", Remote::Offered { id: 1, offset: 0 })).unwrap_err();
    assert_eq!(offered.fault, Fault::Misuse);

    // The key of one process does not open through another's SRQ; the QP that was refused is made anew, and the others go on.
    let (foreign, before) = (memory[1].1.remote(0, 8).unwrap(), peers[0].qp_num());
    let outcome = peers[0].execute(Operation::write(&[1; 8], foreign)).unwrap();
    assert!(matches!(outcome, Outcome::NotDone(WcStatus::RemAccessErr)), "{outcome:?}");
    assert!(peers[1].execute(Operation::send(b"again")).unwrap().is_done());
    assert_eq!(there[1].0.receive(Some(PATIENCE)).unwrap().unwrap().received().to_vec().unwrap(), b"again");
    assert_ne!(peers[0].qp_num(), before);
    assert_eq!((here.count().initiators, here.count().rebuilds), (1, 1));
    let again = here.connect(&tcp(), &there[1].1).unwrap();
    assert_eq!(again.qp_num(), peers[0].qp_num());
}

/// Threads that speak with two processes over one QP, which fails again and again: everything once, in order, nothing lost.
#[test]
fn a_qp_that_fails_under_load_loses_repeats_and_reorders_nothing_of_any_of_its_peers() {
    const EACH: u64 = 3000;
    let (a, b) = (Device::new(11), Device::new(12));
    let files = [File::new("f"), File::new("g")];
    let here = processes(&a, 1, "a", &files[0]).pop().unwrap().0;
    let there = processes(&b, 2, "b", &files[1]);
    let peers: Vec<_> = there.iter().map(|(_, address)| here.connect(&tcp(), address).unwrap()).collect();
    let words: Vec<_> = there.iter().map(|(process, _)| buffer(process.fabric(), 8)).collect();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let senders: Vec<_> = peers
            .iter()
            .zip(&words)
            .map(|(peer, word)| {
                let (old, range) = (buffer(here.fabric(), 8), word.remote(0, 8).unwrap());
                let done = &done;
                scope.spawn(move || {
                    let (mut added, mut in_doubt) = (0u64, 0u64);
                    for number in 0..EACH {
                        let old = piece(&old, 0, 8);
                        let bytes = number.to_le_bytes();
                        let both = [Operation::fetch_add(&old, range, 1), Operation::send(&bytes)];
                        let ends = peer.execute_all(&both).unwrap();
                        // A value that was fetched and lost is all that may be in doubt: this backend vouches for the rest.
                        added += u64::from(ends[0].is_done());
                        in_doubt += u64::from(matches!(ends[0], Outcome::InDoubt(_)));
                        assert!(ends[1].is_done(), "message {number}: {:?}", ends[1]);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    (added, in_doubt)
                })
            })
            .collect();
        for (process, _) in &there {
            scope.spawn(move || {
                for number in 0..EACH {
                    let message = process.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                    assert_eq!(
                        message.received().to_vec().unwrap(),
                        number.to_le_bytes(),
                        "lost, repeated or out of order"
                    );
                    assert!(message.from().starts_with("a0/"), "{:?}", message.from());
                }
            });
        }
        let mut failures = 0;
        while done.load(Ordering::Relaxed) < 2 * EACH && !senders.iter().any(|sender| sender.is_finished()) {
            let before = here.count().rebuilds;
            peers[failures % 2].inject(Injected::QpError).unwrap();
            failures += 1;
            while here.count().rebuilds == before && !senders.iter().any(|sender| sender.is_finished()) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for (sender, word) in senders.into_iter().zip(&words) {
            let (added, in_doubt) = sender.join().unwrap();
            assert_eq!((added + in_doubt, word.load_u64(0).unwrap()), (EACH, EACH));
        }
        println!("{failures} failures of a QP under {} messages", 2 * EACH);
    });
    assert!(here.count().rebuilds > 10, "{:?}", here.count());
    assert_eq!((here.count().initiators, b.qps_of(QpType::XrcRecv)), (1, 1));
    for (process, _) in &there {
        assert!(process.try_receive().unwrap().is_none());
    }
}

/// A control plane that gives orders, one after the other, and hears what is told.
#[derive(Debug, Default)]
struct Orders {
    given: Mutex<VecDeque<(OrderId, Order)>>,
    answers: Mutex<Vec<(OrderId, OrderResult)>>,
    records: Mutex<Vec<ConnectionRecord>>,
}

impl Orders {
    /// Gives one, and waits for its answer.
    fn carry_out(&self, number: u64, order: Order) -> OrderResult {
        self.given.lock().unwrap().push_back((OrderId(number), order));
        let mut result = None;
        eventually("the order is answered", || {
            result = self.answers.lock().unwrap().pop();
            result.is_some()
        });
        let (id, result) = result.unwrap();
        assert_eq!(id, OrderId(number));
        result
    }

    fn last(&self) -> ConnectionRecord {
        self.records.lock().unwrap().last().expect("the directory was told").clone()
    }
}

impl Directory for Orders {
    fn publish(&self, record: ConnectionRecord) {
        self.records.lock().unwrap().push(record);
    }
    fn offer(&self, _: ServiceAddress) {}
    fn resolve(&self, _: &str) -> Vec<ServiceAddress> {
        Vec::new()
    }
    fn may_connect(&self, _: &str, _: &str) -> Result<PKey, FabricError> {
        Ok(PKey::DEFAULT)
    }
    fn next_order(&self) -> Option<(OrderId, Order)> {
        self.given.lock().unwrap().pop_front()
    }
    fn answer(&self, id: OrderId, result: OrderResult) {
        self.answers.lock().unwrap().push((id, result));
    }
}

/// A control plane moves the QP by which two processes are reached, from port to port at both ends and to other source ports, while threads send by it and add to words
/// of both: everything once, in order, nothing lost and nothing in doubt. At last it closes it.
#[test]
fn a_qp_that_is_moved_by_order_under_load_loses_repeats_and_reorders_nothing_of_any_of_its_peers() {
    const MOVES: u64 = 60;
    let (a, b) = (Device::with_ports(&[14, 15]), Device::with_ports(&[16, 17]));
    let files = [File::new("i"), File::new("j")];
    let orders = Arc::new(Orders::default());
    let builder = Fabric::builder(a.provider.clone()).device(&a.name).node("a0").config(config());
    let fabric = builder.directory(orders.clone()).exchange(tcp()).build().unwrap();
    let here = XrcPool::new(&fabric, &files[0].0).unwrap();
    let there = processes(&b, 2, "b", &files[1]);
    let peers: Vec<_> = there.iter().map(|(_, address)| here.connect(&tcp(), address).unwrap()).collect();
    let words: Vec<_> = there.iter().map(|(process, _)| buffer(process.fabric(), 8)).collect();
    let first = orders.last();
    assert_eq!(
        (first.state, first.qp_num, Some(&first)),
        (ConnectionState::Up, peers[1].qp_num(), peers[0].record().as_ref())
    );
    let theirs = there[0].0.fabric().context().query_gid_table().unwrap();
    let theirs: Vec<_> = theirs.iter().filter(|entry| entry.gid.is_ipv4()).map(|entry| entry.gid).collect();
    assert_eq!((theirs.len(), first.alternatives.len()), (2, 1));
    let to = |path: fabric::Path, token: u64| Order::Move {
        connection: first.id.clone(),
        path,
        token: FencingToken(token),
        reason: "test".into(),
    };
    let over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let over = &over;
        let senders: Vec<_> = peers
            .iter()
            .zip(&words)
            .map(|(peer, word)| {
                let (old, range) = (buffer(here.fabric(), 8), word.remote(0, 8).unwrap());
                scope.spawn(move || {
                    let mut number = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        let (old, bytes) = (piece(&old, 0, 8), number.to_le_bytes());
                        let both = [Operation::fetch_add(&old, range, 1), Operation::send(&bytes)];
                        let ends = peer.execute_all(&both).unwrap();
                        assert!(ends.iter().all(Outcome::is_done), "message {number}: {ends:?}");
                        number += 1;
                    }
                    // The last one: nothing comes after it.
                    assert!(peer.execute(Operation::send(&u64::MAX.to_le_bytes())).unwrap().is_done());
                    number
                })
            })
            .collect();
        let receivers: Vec<_> = there
            .iter()
            .map(|(process, _)| {
                scope.spawn(move || {
                    for number in 0.. {
                        let message = process.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
                        let bytes = message.received().to_vec().unwrap().try_into().unwrap();
                        match u64::from_le_bytes(bytes) {
                            u64::MAX => return number,
                            came => assert_eq!(came, number, "lost, repeated or out of order"),
                        }
                    }
                    unreachable!("there are enough numbers")
                })
            })
            .collect();
        let (mut longest, mut numbers) = (0, vec![first.qp_num]);
        for n in 0..MOVES {
            let before = orders.last();
            let path = match n % 3 {
                0 => before.alternatives[0].clone(),
                1 => fabric::Path { flow_label: 0x4002 + n as u32, ..before.path.clone() },
                _ => fabric::Path { dgid: theirs[usize::from(before.path.dgid == theirs[0])], ..before.path.clone() },
            };
            match orders.carry_out(n, to(path.clone(), 5)) {
                OrderResult::Done { generation, pause_us } => {
                    assert!(generation > before.generation);
                    longest = longest.max(pause_us);
                }
                other => panic!("move {n} to {path:?}: {other:?}"),
            }
            let after = orders.last();
            assert_eq!((&after.path, after.state), (&path, ConnectionState::Up));
            numbers.push(after.qp_num);
            // Something comes through on each.
            let came = words[0].load_u64(0).unwrap();
            eventually("operations go on", || words[0].load_u64(0).unwrap() > came);
        }
        over.store(true, Ordering::Relaxed);
        numbers.sort_unstable();
        numbers.dedup();
        println!("{MOVES} moves, each a QP of its own: {}; longest pause {longest} µs", numbers.len());
        let sent: Vec<u64> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        let came: Vec<u64> = receivers.into_iter().map(|receiver| receiver.join().unwrap()).collect();
        assert_eq!(sent, came);
        sent
    });
    for (word, sent) in words.iter().zip(sent) {
        assert_eq!(word.load_u64(0).unwrap(), sent);
    }
    let count = here.count();
    assert_eq!((count.initiators, count.moves, count.rebuilds), (1, MOVES, 0));
    // Nothing of the old ones is left, at either end.
    let left = || (a.qps_of(QpType::XrcSend), b.qps_of(QpType::XrcRecv));
    eventually("the old QPs are gone", || left() == (1, 1));

    // Who has no authority any more moves nothing, and who asks for what is not there is told why.
    let present = orders.last().path;
    let fenced = orders.carry_out(100, to(present.clone(), 4));
    assert_eq!(fenced, OrderResult::Fenced { highest: FencingToken(5) });
    let nowhere = fabric::Path { port_num: 7, ..present.clone() };
    let refused = orders.carry_out(101, to(nowhere, 5));
    assert!(matches!(refused, OrderResult::RolledBack { .. }), "{refused:?}");
    let elsewhere = fabric::Path { dgid: Gid::from_ip("192.0.2.1".parse().unwrap()), ..present.clone() };
    let refused = orders.carry_out(102, to(elsewhere, 5));
    assert!(matches!(&refused, OrderResult::RolledBack { reason } if reason.contains("192.0.2.1")), "{refused:?}");
    assert!(peers[0].execute(Operation::send(b"as before")).unwrap().is_done());
    assert_eq!((orders.last().path, left()), (present, (1, 1)));
    // A QP that fails is made anew where it was moved to.
    peers[0].inject(Injected::QpError).unwrap();
    assert!(peers[1].execute(Operation::send(b"again")).unwrap().is_done());
    assert_eq!((orders.last().path.port_num, here.count().rebuilds), (first.path.port_num, 1));

    let close = Order::Close {
        connection: first.id.clone(),
        token: FencingToken(6),
        reason: "the tenant lost the right".into(),
    };
    assert!(matches!(orders.carry_out(103, close), OrderResult::Done { .. }));
    let error = peers[0].execute(Operation::send(b"no more")).unwrap_err();
    assert_eq!((error.fault, orders.last().state), (Fault::Closed, ConnectionState::Closed));
    assert!(error.message.contains("lost the right"), "{error}");
}

/// A peer that takes no messages: the move is taken back in time, and what waits goes on when it does.
#[test]
fn a_move_that_cannot_drain_is_taken_back_and_a_port_that_goes_down_is_left_at_once() {
    let (a, b) = (Device::with_ports(&[18, 19]), Device::new(20));
    let files = [File::new("k"), File::new("l")];
    let few = |mut config: Config| {
        config.receives = 4;
        // Receiver not ready: for ever.
        config.patience.step_ns = 200_000_000;
        config
    };
    let fabric = a.fabric("a0", &few(config()));
    let here = XrcPool::new(&fabric, &files[0].0).unwrap();
    let far = b.fabric("b0", &few(config()));
    let member = XrcPool::new(&far, &files[1].0).unwrap();
    let address = member.listen(&tcp(), "127.0.0.1:0").unwrap();
    let peer = here.connect(&tcp(), &address).unwrap();
    let before = peer.record().unwrap();
    std::thread::scope(|scope| {
        let peer = &peer;
        let sender = scope.spawn(move || {
            let bytes: Vec<[u8; 8]> = (0..12u64).map(u64::to_le_bytes).collect();
            let all: Vec<_> = bytes.iter().map(|bytes| Operation::send(&bytes[..])).collect();
            peer.execute_all(&all).unwrap()
        });
        // The receives are used up: more is on its way, and waits.
        eventually("receives run out", || b.counter(&far, "send_rnr_err") > 0);
        let result = peer.move_to(before.alternatives[0].clone(), FencingToken(1), "test").unwrap();
        assert!(
            matches!(&result, OrderResult::RolledBack { reason } if reason.contains("takes no messages")),
            "{result:?}"
        );
        for number in 0..12u64 {
            let message = member.receive(Some(PATIENCE)).unwrap().expect("a message is missing");
            assert_eq!(message.received().to_vec().unwrap(), number.to_le_bytes());
        }
        assert!(sender.join().unwrap().iter().all(Outcome::is_done));
    });
    assert_eq!((peer.qp_num(), here.count().moves, here.count().rebuilds), (before.qp_num, 0, 0));
    let result = peer.move_to(before.alternatives[0].clone(), FencingToken(1), "test").unwrap();
    assert!(matches!(result, OrderResult::Done { .. }), "{result:?}");
    let port = peer.record().unwrap().path.port_num;
    assert_ne!(port, before.path.port_num);
    assert!(peer.execute(Operation::send(b"x")).unwrap().is_done());

    // A port that goes down is left at once, and not when the next operation has been tried again and again.
    let context = fabric.context();
    let context = context.as_any().downcast_ref::<SoftwareContext>().expect("a software device");
    context.core().change_port(port, &PortChange::Down).unwrap();
    let failed = |qp: &QpResource| qp.qp_type == QpType::XrcSend as u32 && qp.state == QpState::Err as u32;
    eventually("the QP of the port that is down is stopped", || a.qps().iter().any(failed));
    assert!(peer.execute(Operation::send(b"elsewhere")).unwrap().is_done());
    assert_eq!((peer.record().unwrap().path.port_num, here.count().rebuilds), (before.path.port_num, 1));
}

/// Says in which partition a tenant speaks with `kv`; who has none may not.
#[derive(Debug)]
struct Partitions(&'static [(&'static str, PKey)]);

impl Directory for Partitions {
    fn publish(&self, _: ConnectionRecord) {}
    fn offer(&self, _: ServiceAddress) {}
    fn resolve(&self, _: &str) -> Vec<ServiceAddress> {
        Vec::new()
    }
    fn may_connect(&self, tenant: &str, service: &str) -> Result<PKey, FabricError> {
        let known = self.0.iter().find(|(name, _)| *name == tenant && service == "kv");
        known.map(|(_, pkey)| *pkey).ok_or_else(|| {
            FabricError::new(Fault::NoAuthority, format!("tenant `{tenant}` may not connect to `{service}`"))
        })
    }
    fn next_order(&self) -> Option<(OrderId, Order)> {
        None
    }
    fn answer(&self, _: OrderId, _: OrderResult) {}
}

#[test]
fn tenants_share_no_qp_are_refused_by_policy_and_kept_apart_by_the_partition() {
    const RED: PKey = PKey(0x8011);
    const BLUE: PKey = PKey(0x8012);
    let device = Device::new(13);
    let file = File::new("h");
    let pool = |node: &str, tenant: &str, partitions: &'static [(&'static str, PKey)]| {
        let mut config = Config { tenant: tenant.into(), timeout: 8, retry_cnt: 2, ..config() };
        config.patience.give_up_ns = 300_000_000;
        let builder = Fabric::builder(device.provider.clone()).device(&device.name).node(node).config(config);
        let fabric = builder.directory(Arc::new(Partitions(partitions))).exchange(tcp()).build().unwrap();
        // Once it is open: the table is that of the device that this process has.
        device.provider.set_pkeys(&device.name, &[PKey::DEFAULT, RED, BLUE]).unwrap();
        XrcPool::named(&fabric, &file.0, "kv").unwrap()
    };
    let honest: &[(&str, PKey)] = &[("red", RED), ("blue", BLUE)];
    let member = pool("member", "red", honest);
    let address = member.listen(&tcp(), "127.0.0.1:0").unwrap();

    let (red, blue) = (pool("r", "red", honest), pool("b", "blue", honest));
    let peers = [red.connect(&tcp(), &address).unwrap(), blue.connect(&tcp(), &address).unwrap()];
    assert_ne!(peers[0].qp_num(), peers[1].qp_num());
    for (peer, name) in peers.iter().zip(["r", "b"]) {
        assert!(peer.execute(Operation::send(name.as_bytes())).unwrap().is_done());
        let message = member.receive(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(message.received().to_vec().unwrap(), name.as_bytes());
    }
    // A failed QP is made anew in its own partition.
    peers[1].inject(Injected::QpError).unwrap();
    assert!(peers[1].execute(Operation::send(b"again")).unwrap().is_done());
    assert!(member.receive(Some(PATIENCE)).unwrap().is_some());

    // Who may not is refused by its own policy, and by the member's.
    let green = pool("g", "green", honest);
    assert_eq!(green.connect(&tcp(), &address).unwrap_err().fault, Fault::Peer);
    let knows_nothing = pool("n", "red", &[]);
    assert_eq!(knows_nothing.connect(&tcp(), &address).unwrap_err().fault, Fault::NoAuthority);

    // Whose policy says another partition is not heard, whatever it says: the NIC drops what it sends.
    let liar = pool("l", "red", &[("red", BLUE)]);
    let peer = match liar.connect(&tcp(), &address) {
        Ok(peer) => peer,
        Err(error) => panic!("{error}"),
    };
    let outcome = peer.execute(Operation::send(b"not heard"));
    assert!(!matches!(outcome, Ok(Outcome::Done(_))), "{outcome:?}");
    assert!(member.try_receive().unwrap().is_none());
    assert!(peers[0].execute(Operation::send(b"red goes on")).unwrap().is_done());
}

#[test]
fn whatever_answers_that_is_no_pool_is_told_apart() {
    let device = Device::new(9);
    let file = File::new("e");
    let process = processes(&device, 1, "a", &file).pop().unwrap().0;
    let other = device.fabric("other", &config());
    let address = other.addresses()[0].strip_prefix("tcp://").unwrap().to_owned();
    let error = process.connect(&tcp(), &address).unwrap_err();
    assert!(matches!(error.fault, Fault::Peer | Fault::Closed | Fault::Unreachable), "{error}");
    let error = process.connect(&tcp(), "127.0.0.1:1").unwrap_err();
    assert_eq!(error.fault, Fault::Unreachable);
    let missing = File::new("no/such/folder");
    assert_eq!(XrcPool::new(&other, &missing.0).unwrap_err().fault, Fault::Environment);
}
