//! Rebalancing end to end: what an operator wishes is ordered, carried out, and explained; frozen, nothing is; nonsense is refused and changes nothing.

use crate::http::call;
use crate::world::{Counting, World, agent_settings, eventually, path, record, start_agent_with};
use scalefabric_control::agent::ports::{PortCounters, PortSource};
use scalefabric_control::directory::PortRecord;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{Order, OrderResult};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn wish(freeze: &str) -> String {
    let connection = json!({ "origin": "node1/1", "serial": 1 });
    json!({ "freeze": freeze, "moves": [{ "connection": connection, "path": path(2) }] }).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_operator_wishes_is_ordered_carried_out_and_explained() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    let mut own = record("node1/1", 1, 0x100);
    process.publish(own.clone());
    let replica = world.replica();
    let http = replica.http.expect("it has HTTP");
    eventually("the connection is there", || replica.shared.index.size().connections == 1).await;
    let put = async |body: &str| call(http, "PUT /v1/rebalance", "Content-Type: application/json\r\n", body).await;
    // Frozen, the wish waits.
    assert_eq!(put(&wish("all")).await.0, 200);
    eventually("the wish is seen and held back", || {
        let round = replica.shared.rebalancing.last_round();
        serde_json::to_value(&round.refusals).is_ok_and(|refusals| refusals[0]["refused"] == "frozen")
    })
    .await;
    assert_eq!(process.next_order(), None);
    assert_eq!(put(&wish("no")).await.0, 200);
    let mut order = None;
    eventually("it is ordered", || {
        order = process.next_order();
        order.is_some()
    })
    .await;
    let (id, order) = order.expect("just seen");
    let Order::Move { path: to, token, reason, .. } = &order else { panic!("{order:?}") };
    assert_eq!((to, reason.as_str()), (&path(2), "the operator wants it there"));
    assert_eq!(replica.shared.token().await, Ok(Some(*token)));
    (own.path, own.alternatives, own.generation) = (path(2), vec![path(1)], 2);
    process.publish(own);
    process.answer(id, OrderResult::Done { generation: 2, pause_us: 40 });
    let explained = async || call(http, "GET /v1/rebalance/decisions?origin=node1/1&serial=1", "", "").await.1;
    let mut page = Value::Null;
    for _ in 0..3_000 {
        page = explained().await;
        if page["decisions"][0]["outcome"]["outcome"] == "done" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let decision = &page["decisions"][0];
    assert_eq!(decision["outcome"], json!({ "outcome": "done", "pause_us": 40 }), "{page}");
    assert_eq!((&decision["from"]["port_num"], &decision["to"]["port_num"]), (&json!(1), &json!(2)));
    assert_eq!(decision["ports"].as_array().map(Vec::len), Some(2));
    assert_eq!(page["decisions"].as_array().map(Vec::len), Some(1));
}

/// Two ports of 10 Gb/s, the first of which sends at a rate that can be set, thousandths of that.
struct Warm {
    permille: Arc<AtomicU64>,
    at: Instant,
    sent: f64,
}

impl PortSource for Warm {
    fn ports(&mut self) -> Vec<PortRecord> {
        Counting::default().ports()
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut self.at, now));
        self.sent += passed.as_secs_f64() * self.permille.load(Ordering::Relaxed) as f64 * 1e7 / 8.0;
        vec![PortCounters { tx_bytes: self.sent as u64, ..PortCounters::default() }, PortCounters::default()]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_hot_is_what_the_decider_judges_in_every_view() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let permille = Arc::new(AtomicU64::new(900));
    let source = Warm { permille: Arc::clone(&permille), at: Instant::now(), sent: 0.0 };
    let settings = agent_settings("node1", &world.folder, world.address());
    let _node = start_agent_with(settings, Box::new(source));
    // The first port is up (1) and hot (2), the second is up.
    let see = async |wanted: Value, hot: u64| {
        let mut overview = Value::Null;
        for _ in 0..6_000 {
            overview = call(http, "GET /v1/overview", "", "").await.1;
            if overview["second"]["flags"] == wanted {
                assert_eq!(overview["second"]["summary"]["hot"], hot);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never {wanted}: {overview}");
    };
    see(json!([3, 1]), 1).await;
    // Between the two limits what is hot stays hot: who looks at this moment only would not know.
    permille.store(650, Ordering::Relaxed);
    let mut cooler = 0;
    while cooler < 3 {
        let overview = call(http, "GET /v1/overview", "", "").await.1;
        let is_cooler = overview["second"]["tx"][0].as_i64().is_some_and(|tx| tx < 700);
        cooler = if is_cooler { cooler + 1 } else { 0 };
        assert!(!is_cooler || overview["second"]["flags"] == json!([3, 1]), "{overview}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    permille.store(100, Ordering::Relaxed);
    see(json!([1, 1]), 0).await;
    let (_, told) = call(http, "GET /v1/events/recent?kinds=port-hot,port-cool", "", "").await;
    let kinds: Vec<&str> =
        told["events"].as_array().expect("events").iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, ["port-cool", "port-hot"], "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_nonsense_are_refused_and_the_old_ones_stay() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let put = async |body: &str| call(http, "PUT /v1/rebalance", "Content-Type: application/json\r\n", body).await;
    let get = async || call(http, "GET /v1/rebalance", "", "").await.1;
    assert_eq!(get().await["policy"]["hot_permille"], 700);
    assert_eq!(put(r#"{"policy":{"hot_permille":800}}"#).await.0, 200);
    for wrong in ["{", r#"{"policy":{"fill_permille":900}}"#, r#"{"frieze":"all"}"#, r#"{"freeze":"some"}"#] {
        let (status, problem) = put(wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(problem["detail"].is_string(), "{wrong}: {problem}");
    }
    assert_eq!(get().await["policy"]["hot_permille"], 800);
    assert_eq!(call(http, "GET /v1/rebalance/decisions?origin=node1/1", "", "").await.0, 400);
}
