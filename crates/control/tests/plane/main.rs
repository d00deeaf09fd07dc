//! Control, agents and processes together, in one program over real sockets: what a process tells is found, orders come back answered, and whatever is
//! killed the others go on. Nothing here asserts on time; what must happen is waited for.

mod away;
mod certificates;
mod dashboard;
#[allow(dead_code)]
#[path = "../store/etcd_server.rs"]
mod etcd_server;
mod http;
mod input;
mod orders;
mod rebalance;
mod replicas;
mod rotation;
mod tenants;
mod topology;
mod world;

use scalefabric_control::directory::Query;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::ConnectionState;
use std::time::Duration;
use world::{Folder, World, eventually, record, service};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_tells_is_found_by_each_of_its_fields() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    process.publish(record("node1/1", 7, 0x123));
    let index = &world.replica().shared.index;
    let query = |query: Query| index.find(&query).connections.len();
    eventually("the connection is in the directory", || query(Query::default()) == 1).await;
    let pid = std::process::id().to_string();
    let found = index.find(&Query { node: Some("node1".into()), qp_num: Some(0x123), ..Query::default() });
    assert_eq!((found.connections.len(), &*found.connections[0].process), (1, pid.as_str()));
    assert_eq!(query(Query { tenant: Some("red".into()), ..Query::default() }), 1);
    assert_eq!(query(Query { device: Some("sf0".into()), port_num: Some(1), ..Query::default() }), 1);
    assert_eq!(query(Query { device: Some("sf0".into()), port_num: Some(2), ..Query::default() }), 0);
    // It moves.
    let mut moved = record("node1/1", 7, 0x124);
    moved.path.port_num = 2;
    moved.generation = 2;
    process.publish(moved);
    eventually("the move is in the directory", || query(Query { qp_num: Some(0x124), ..Query::default() }) == 1).await;
    assert_eq!(query(Query { qp_num: Some(0x123), ..Query::default() }), 0);
    // An old record changes nothing, a close everything.
    process.publish(record("node1/1", 7, 0x123));
    let mut closed = record("node1/1", 7, 0x124);
    closed.state = ConnectionState::Closed;
    closed.generation = 3;
    process.publish(closed);
    eventually("it is gone", || query(Query::default()) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_takes_its_connections_and_services_with_it() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let (stays, dies) = (world.process(&node), world.process(&node));
    stays.publish(record("node1/1", 1, 0x100));
    dies.publish(record("node1/2", 1, 0x200));
    dies.offer(service("files", "tcp://10.0.0.1:1"));
    let index = &world.replica().shared.index;
    let there = || (index.size().connections, index.size().services);
    eventually("both are there", || there() == (2, 1)).await;
    drop(dies);
    eventually("one is gone", || there() == (1, 0)).await;
    assert_eq!(index.find(&Query::default()).connections[0].record.qp_num, 0x100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_is_resolved_on_another_node_and_a_new_address_is_heard_of() {
    let world = World::new().await;
    let (one, two) = (world.agent("node1").await, world.agent("node2").await);
    let (server, client) = (world.process(&one), world.process(&two));
    assert!(client.resolve("files").is_empty());
    server.offer(service("files", "tcp://10.0.0.1:1"));
    let resolved = || client.resolve("files").iter().map(|address| address.exchange.clone()).collect::<Vec<_>>();
    eventually("it is resolved", || resolved() == ["tcp://10.0.0.1:1"]).await;
    assert_eq!(client.resolve("files")[0].node, "node1");
    server.offer(service("files", "tcp://10.0.0.1:2"));
    eventually("the new address is heard of", || resolved() == ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"]).await;
    server.withdraw("files", "tcp://10.0.0.1:1");
    eventually("the old one is not there any more", || resolved() == ["tcp://10.0.0.1:2"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_of_ports_and_connections_reach_control() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    process.publish(record("node1/1", 1, 0x100));
    let shared = &world.replica().shared;
    eventually("a load", || {
        process.carried(Duration::from_millis(100), vec![world::carried("node1/1", 1, 1000)]);
        let loads = shared.loads.snapshot(false, shared.clock.now());
        loads.get("node1").is_some_and(|load| {
            load.ports.len() == 2
                && load.ports[0].tx_bps > 0.0
                && load.ports[1].tx_bps == 0.0
                && load.connections.first().is_some_and(|one| one.serial == 1 && one.tx_bps > 0.0)
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_agent_of_a_node_replaces_the_first() {
    let world = World::new().await;
    let first = world.agent("node1").await;
    let folder = Folder::new();
    let second = world.agent_in("node1", &folder, world.address()).await;
    let index = &world.replica().shared.index;
    let process = world.process(&second);
    process.publish(record("node1/9", 1, 0x900));
    eventually("the second one's connection is there", || index.size().connections == 1).await;
    eventually("the first one is told", || {
        let trouble = first.agent.state().trouble;
        trouble.is_some_and(|trouble| trouble.contains("another agent") || trouble.contains("started later"))
    })
    .await;
}
