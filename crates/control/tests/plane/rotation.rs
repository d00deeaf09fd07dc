//! New keys by order: from HTTP through the replica, the agents and the processes and back; for a tenant, for a node, on schedule.

use crate::http::call;
use crate::world::{World, eventually};
use scalefabric_control::client::AgentDirectory;
use scalefabric_control::rotation::{self, Schedule};
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{Order, OrderResult};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Answers orders as a fabric with keys does, and remembers them.
struct Process {
    seen: Arc<Mutex<Vec<Order>>>,
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    fn new(directory: AgentDirectory, answer: OrderResult) -> Self {
        let (seen, end) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (saw, ended): (Arc<Mutex<Vec<Order>>>, _) = (Arc::clone(&seen), Arc::clone(&end));
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                while let Some((id, order)) = directory.next_order() {
                    saw.lock().unwrap().push(order.clone());
                    directory.answer(id, answer.clone());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { seen, end, thread: Some(thread) }
    }

    fn seen(&self) -> Vec<Order> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn rotated(keys: u64, peers: u64, late: u64) -> OrderResult {
    OrderResult::Rotated { keys, peers, late }
}

async fn ended(http: std::net::SocketAddr, begun: &Value) -> Value {
    let serial = begun["serial"].as_u64().expect("a number");
    for _ in 0..6000 {
        let (status, record) = call(http, &format!("GET /v1/rotate/{serial}"), "", "").await;
        assert_eq!(status, 200, "{record}");
        if record["state"] != "running" {
            return record;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never ended: {begun}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_by_order_and_what_came_of_it_is_shown() {
    let world = World::new().await;
    let (one, two) = (world.agent("node1").await, world.agent("node2").await);
    let _three = world.agent("node3").await;
    let processes = [
        Process::new(world.process(&one), rotated(2, 3, 0)),
        Process::new(world.process(&one), rotated(1, 1, 1)),
        Process::new(world.process(&two), rotated(0, 0, 0)),
    ];
    let shared = &world.replica().shared;
    let mut held = shared.rebalance.held();
    held.wait_for(Option::is_some).await.expect("it runs");
    eventually("the nodes are there", || shared.index.size().nodes == 3).await;
    eventually("the processes are there", || one.agent.state().processes == 2 && two.agent.state().processes == 1)
        .await;
    let http = world.replica().http.expect("it has HTTP");
    let post = async |body: Value| {
        call(http, "POST /v1/rotate", "Content-Type: application/json\r\n", &body.to_string()).await
    };

    let (status, begun) = post(json!({ "scope": "all", "overlap_ms": 50, "reason": "a key was seen" })).await;
    assert_eq!((status, begun["state"].as_str()), (202, Some("running")), "{begun}");
    let record = ended(http, &begun).await;
    assert_eq!(record["state"], "done", "{record}");
    // Two processes of a node together; a node without processes lends nothing.
    let outcome = |node: &str| record["nodes"][node]["outcome"].clone();
    assert_eq!(outcome("node1"), json!({ "result": "rotated", "keys": 3, "peers": 4, "late": 1 }));
    assert_eq!(outcome("node2"), json!({ "result": "rotated", "keys": 0, "peers": 0, "late": 0 }));
    assert_eq!(outcome("node3"), outcome("node2"));

    let rules = r#"{"tenant":[{"name":"red","pkey":"0x8011","services":[]}]}"#;
    assert_eq!(call(http, "PUT /v1/tenants", "Content-Type: application/json\r\n", rules).await.0, 200);
    let (_, begun) = post(json!({ "scope": { "tenant": "red" } })).await;
    assert_eq!(ended(http, &begun).await["overlap_ms"], 10_000);
    let tenants: Vec<_> = processes.iter().map(|process| process.seen()).collect();
    for seen in &tenants {
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(matches!(&seen[0], Order::RotateKeys { overlap_ms: 50, tenant: None, .. }), "{seen:?}");
        assert!(matches!(&seen[1], Order::RotateKeys { tenant: Some(tenant), .. } if tenant == "red"), "{seen:?}");
    }
    let (_, begun) = post(json!({ "scope": { "node": "node2" } })).await;
    let record = ended(http, &begun).await;
    assert_eq!(record["nodes"].as_object().map(serde_json::Map::len), Some(1), "{record}");
    assert_eq!((processes[0].seen().len(), processes[2].seen().len()), (2, 3));

    let (_, all) = call(http, "GET /v1/rotate", "", "").await;
    assert_eq!(all["rotations"].as_array().map(Vec::len), Some(3), "{all}");
    assert_eq!(all["rotations"][0]["serial"], begun["serial"]);
    for (wrong, expected) in [
        (json!({ "scope": { "node": "nobody" } }), 404),
        (json!({ "scope": { "tenant": "nobody" } }), 404),
        (json!({ "scope": { "node": "No Body" } }), 400),
        (json!({ "scope": "everybody" }), 400),
        (json!({ "scope": "all", "overlap_ms": 3_600_001_u64 }), 400),
        (json!({}), 400),
    ] {
        assert_eq!(post(wrong.clone()).await.0, expected, "{wrong}");
    }
    assert_eq!(call(http, "GET /v1/rotate/99", "", "").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_rotate_makes_the_rotation_incomplete() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let failing = OrderResult::RolledBack { reason: "no memory".into() };
    let _processes =
        [Process::new(world.process(&node), rotated(1, 1, 0)), Process::new(world.process(&node), failing)];
    let shared = &world.replica().shared;
    let mut held = shared.rebalance.held();
    held.wait_for(Option::is_some).await.expect("it runs");
    eventually("the processes are there", || node.agent.state().processes == 2).await;
    eventually("the node is there", || shared.index.size().nodes == 1).await;
    let http = world.replica().http.expect("it has HTTP");
    let body = json!({ "scope": "all", "overlap_ms": 0 }).to_string();
    let (_, begun) = call(http, "POST /v1/rotate", "Content-Type: application/json\r\n", &body).await;
    let record = ended(http, &begun).await;
    assert_eq!(record["state"], "incomplete");
    assert_eq!(record["nodes"]["node1"]["outcome"]["reason"], "no memory", "{record}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schedule_is_followed_by_who_gives_orders() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = Process::new(world.process(&node), rotated(1, 0, 0));
    let shared = &world.replica().shared;
    eventually("the node is there", || shared.index.size().nodes == 1).await;
    let http = world.replica().http.expect("it has HTTP");
    let put =
        async |body: &str| call(http, "PUT /v1/rotate/schedule", "Content-Type: application/json\r\n", body).await.0;
    assert_eq!(put(r#"{ "every_s": 1, "overlap_ms": 1000 }"#).await, 400);
    assert_eq!(put(r#"{ "every_s": 1, "overlap_ms": 10 }"#).await, 200);
    eventually("it was followed twice", || process.seen().len() >= 2).await;
    assert!(matches!(process.seen()[0], Order::RotateKeys { overlap_ms: 10, .. }));
    rotation::set_schedule(shared, &Schedule::default()).await.expect("the store is there");
    let all = rotation::recent(shared).await.expect("the store is there");
    assert!(all.len() >= 2 && all.iter().all(|record| record.by == "schedule"), "{all:?}");
}
