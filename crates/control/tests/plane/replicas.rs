//! Several replicas over one etcd: any one is killed, and the others serve.

use crate::etcd_server::Server;
use crate::world::{self, Folder, eventually, path, record};
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::{Etcd, Store, etcd};
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{FencingToken, Holdings, Order};
use std::sync::Arc;
use std::time::Duration;

async fn replica(name: &str, server: &Server) -> Replica {
    let store = Etcd::new(&etcd::Settings::new(vec![server.address()])).expect("an address");
    let store: Arc<dyn Store> = Arc::new(store);
    let replica = Replica::start(Settings::local(name), store, world::clock()).await.expect("a replica");
    replica.ready().await.expect("it serves");
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_replica_is_killed_and_the_others_serve() {
    let Some(server) = Server::start() else { return };
    let mut replicas = vec![
        replica("control1", &server).await,
        replica("control2", &server).await,
        replica("control3", &server).await,
    ];
    let folder = Folder::new();
    let addresses: Vec<String> = replicas.iter().map(|replica| format!("http://{}", replica.grpc)).collect();
    let node = world::start_agent("node1", &folder, addresses);
    eventually("the agent has joined", || node.agent.state().replica.is_some()).await;
    let process = world::process_at(&node.socket, None);
    process.publish(record("node1/1", 1, 0x100));
    for replica in &replicas {
        eventually("every replica knows", || replica.shared.index.size().connections == 1).await;
    }
    // The load that one replica hears is known to the others.
    for replica in &replicas {
        let shared = &replica.shared;
        eventually("every replica knows the load", || {
            shared.loads.snapshot(false, shared.clock.now()).get("node1").is_some_and(|load| load.ports[0].tx_bps > 0.0)
        })
        .await;
    }
    // What one replica hears of tenants the others count, too.
    process.holds("red", Holdings { qps: 3, mrs: 1, memory_bytes: 4096 });
    for replica in &replicas {
        let held = || replica.shared.holdings().get("red").is_some_and(|red| red.qps == 3);
        eventually("every replica knows what red has", held).await;
    }
    // Kill the one that the agent has joined.
    let joined = node.agent.state().replica.expect("just joined");
    let place = replicas.iter().position(|replica| replica.shared.name == joined).expect("one of them");
    drop(replicas.swap_remove(place));
    eventually("the agent has joined another", || node.agent.state().replica.is_some_and(|replica| replica != joined))
        .await;
    process.publish(record("node1/1", 2, 0x101));
    for replica in &replicas {
        eventually("the others know the news", || replica.shared.index.size().connections == 2).await;
    }
    // Somebody has the duty, with a token above the earlier ones; an order by the replica that the agent has not joined arrives.
    let elsewhere = replicas.iter().find(|one| Some(&one.shared.name) != node.agent.state().replica.as_ref());
    let shared = &elsewhere.expect("two are left").shared;
    let mut token = None;
    while token.is_none() {
        token = shared.token().await.expect("etcd lives");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let token = token.map_or(FencingToken(0), |token| token);
    let connection = world::id("node1/1", 2);
    let order = Order::Move { connection, path: path(2), token, reason: "test".into() };
    let answering = std::thread::spawn(move || {
        loop {
            if let Some((id, _)) = process.next_order() {
                process.answer(id, scalefabric_fabric::directory::OrderResult::RolledBack { reason: "no".into() });
                return process;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let answers = shared.orders.send(&[("node1".into(), order)], "test", Duration::from_secs(120)).await;
    let answers = format!("{answers:?}");
    assert!(answers.contains("RolledBack"), "{answers}");
    drop(answering.join().expect("it answered"));
}
