//! Processes of two hosts that all speak with one another: connections of their own, and over XRC. The devices' own lists say how many QPs that takes.

use crate::{Device, PATIENCE, connect, pool};
use scalefabric_fabric::endpoint::{Config, Fabric, Operation, Piece, Remote, XrcPool};
use scalefabric_fabric::exchange::{Exchange, Tcp};
use scalefabric_fabric::{Fault, Local, Outcome};
use scalefabric_verbs::{QpType, WcStatus};
use std::path::PathBuf;
use std::sync::Arc;

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

    // The key of one process does not open through another's SRQ; the QP that was refused is nobody's any more, and a new one is made.
    let foreign = memory[1].1.remote(0, 8).unwrap();
    let outcome = peers[0].execute(Operation::write(&[1; 8], foreign)).unwrap();
    assert!(matches!(outcome, Outcome::InDoubt(WcStatus::RemAccessErr)), "{outcome:?}");
    assert_eq!(peers[1].execute(Operation::send(b"x")).unwrap_err().fault, Fault::Unreachable);
    let again = here.connect(&tcp(), &there[1].1).unwrap();
    assert_ne!(again.qp_num(), peers[1].qp_num());
    assert!(again.execute(Operation::send(b"again")).unwrap().is_done());
    assert_eq!(there[1].0.receive(Some(PATIENCE)).unwrap().unwrap().received().to_vec().unwrap(), b"again");
    assert_eq!(here.count().initiators, 1);
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
