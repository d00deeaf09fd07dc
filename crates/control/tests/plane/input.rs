//! Nonsense from outside, by seed: bodies, parameters, messages of agents and lines of processes that are cut, changed, too long, too deep or of another kind. Each is refused
//! with a sentence or left out, changes nothing, and harms nobody else.

use crate::http::call;
use crate::world::{World, eventually, record};
use scalefabric_control::proto::control::control_client::ControlClient;
use scalefabric_control::proto::control::{self as proto, from_agent};
use scalefabric_fabric::Directory;
use serde_json::json;
use std::io::{Read, Write};
use std::time::Duration;
use tokio_stream::wrappers::ReceiverStream;

/// What repeats a failure: it is printed with each.
const SEED: u64 = 0x5ca1_ef0b;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// A text that is wrong at one place at least: cut, with another character, or with something more.
    fn spoil(&mut self, text: &str) -> String {
        let mut all: Vec<char> = text.chars().collect();
        let at = self.below(all.len());
        match self.below(4) {
            0 => all.truncate(at),
            1 => {
                all[at] = self.pick::<str>(&["\u{0}", "}", "{", "\"", "-", "9", "ü", ","]).chars().next().unwrap_or('x')
            }
            2 => all.insert(at, char::from_u32(self.below(0x250) as u32).unwrap_or('x')),
            _ => drop(all.remove(at)),
        }
        all.into_iter().collect()
    }
}

/// Bodies that are right, by the call that takes them.
fn bodies() -> Vec<(&'static str, String)> {
    let connection = json!({ "origin": "node1/1", "serial": 1 });
    let path = json!({ "device": "sf0", "port_num": 2, "sgid": "::1", "dgid": "::2", "flow_label": 1, "dscp": 0 });
    let order =
        json!({ "node": "node1", "reason": "x", "order": { "move": { "connection": connection, "path": path } } });
    let tenants = json!({ "tenant": [{ "name": "red", "pkey": "0x8011", "services": ["kv"], "quota": { "qps": 4 } }], "allow": [] });
    let settings = json!({ "freeze": "all", "policy": { "hot_permille": 800 }, "pinned": [connection],
        "moves": [{ "connection": connection, "path": path }] });
    vec![
        ("POST /v1/orders", order.to_string()),
        ("PUT /v1/tenants", tenants.to_string()),
        ("PUT /v1/rebalance", settings.to_string()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_bodies_that_make_no_sense_are_refused_and_change_nothing() {
    let world = World::new().await;
    let replica = world.replica();
    let http = replica.http.expect("it has HTTP");
    let headers = "Content-Type: application/json\r\n";
    let mut random = Random(SEED);
    let before = call(http, "GET /v1/rebalance", "", "").await.1;
    for (request, good) in bodies() {
        let unknown = good.replacen('{', "{\"colour\":1,", 1);
        let deep = "[".repeat(20_000);
        let long = format!("{{\"x\":\"{}\"}}", "y".repeat(300 * 1024));
        let numbers = good.replace(":1", ":1e400").replace(":4", ":4e400");
        for wrong in [unknown, deep, long, numbers, String::new(), "null".into(), "[]".into(), "\u{feff}{}".into()] {
            let (status, problem) = call(http, request, headers, &wrong).await;
            let shown: String = wrong.chars().take(80).collect();
            assert!((400..500).contains(&status), "{request} {shown}: {status} {problem}");
        }
        for turn in 0..150 {
            let wrong = random.spoil(&good);
            // Where a change by chance makes sense it may be done, unless it is an order or a setting: those name what they mean.
            let (status, problem) = call(http, request, headers, &wrong).await;
            assert!(status < 500, "seed {SEED:#x} turn {turn}: {request} {wrong}: {status} {problem}");
            assert!(status == 200 || problem["detail"].is_string(), "{request} {wrong}: {status} {problem}");
            if status == 200 {
                let parsed = serde_json::from_str::<serde_json::Value>(&wrong);
                assert!(parsed.is_ok(), "{request} took what is no JSON: {wrong}");
            }
        }
    }
    // What made sense by chance is taken back; the rest has left no trace.
    assert_eq!(call(http, "PUT /v1/rebalance", headers, "{}").await.0, 200);
    assert_eq!(call(http, "GET /v1/rebalance", "", "").await.1, before);
    let orders = replica.shared.store.list("orders/").await.expect("read").0;
    assert!(orders.is_empty(), "{orders:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_and_requests_that_make_no_sense_are_answered_and_the_next_caller_is_served() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let mut random = Random(SEED);
    let calls = [
        "/v1/connections?node=node1&limit=10&qp_num=5&port_num=1",
        "/v1/rebalance/decisions?origin=n/1&serial=1&limit=3",
        "/v1/nodes/node1",
        "/v1/services?service=kv",
    ];
    for turn in 0..300 {
        let path = random.spoil(calls[turn % calls.len()]);
        let plain: String = path.chars().filter(|c| c.is_ascii_graphic()).collect();
        let (status, _) = call(http, &format!("GET /{}", plain.trim_start_matches('/')), "", "").await;
        assert!(status < 500, "seed {SEED:#x} turn {turn}: {plain}: {status}");
    }
    // No HTTP at all, and heads without an end.
    let raw = move || {
        let mut random = Random(SEED);
        for _ in 0..50 {
            let mut stream = std::net::TcpStream::connect(http).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
            let noise: Vec<u8> = (0..random.below(2000)).map(|_| random.next() as u8).collect();
            let _ = stream.write_all(&noise);
            let _ = stream.read(&mut [0; 64]);
        }
    };
    tokio::task::spawn_blocking(raw).await.expect("no panic");
    assert_eq!(call(http, "GET /v1/status", "", "").await.0, 200);
}

/// A message that an agent could send, with fields that are out of their range, missing, too many or of strangers.
fn message(random: &mut Random) -> from_agent::Message {
    let text = |random: &mut Random| {
        let long = "n".repeat(300);
        let all = ["", "node1", "node2", "a/b", "\u{0}", "Node", "node1/1", long.as_str()];
        random.pick::<str>(&all).to_owned()
    };
    let bytes = |random: &mut Random| vec![7; random.pick(&[&0_usize, &15, &16, &17]).to_owned()];
    let number =
        |random: &mut Random| random.pick(&[&0_u32, &1, &2, &63, &64, &255, &256, &0xff_ffff, &u32::MAX]).to_owned();
    let path = |random: &mut Random| proto::Path {
        device: text(random),
        port_num: number(random),
        sgid: bytes(random),
        dgid: bytes(random),
        flow_label: number(random),
        dscp: number(random),
    };
    let id = |random: &mut Random| {
        (random.below(4) != 0).then(|| proto::ConnectionId { origin: text(random), serial: random.next() })
    };
    match random.below(7) {
        0 => {
            let connection = |random: &mut Random| proto::Connection {
                id: id(random),
                tenant: text(random),
                service: text(random),
                qp_num: number(random),
                peer_qp_num: number(random),
                path: (random.below(4) != 0).then(|| path(random)),
                alternatives: (0..random.below(70)).map(|_| path(random)).collect(),
                state: random.below(9) as i32 - 1,
                generation: random.next(),
                handle: number(random),
                process: text(random),
            };
            from_agent::Message::Report(proto::Report {
                serial: random.below(3) as u64,
                whole: random.below(2) == 0,
                more: random.below(2) == 0,
                connections: (0..random.below(3)).map(|_| connection(random)).collect(),
                removed_connections: vec![proto::LocalConnectionId { id: id(random), process: text(random) }],
                services: vec![proto::Service { service: text(random), node: text(random), ..Default::default() }],
                removed_services: vec![proto::Service {
                    service: text(random),
                    node: text(random),
                    ..Default::default()
                }],
                ports: vec![proto::Port {
                    device: text(random),
                    port_num: number(random),
                    gids: vec![bytes(random)],
                    ..Default::default()
                }],
                neighbours: vec![proto::Neighbour {
                    port: number(random),
                    chassis: text(random),
                    port_id: text(random),
                }],
            })
        }
        1 => from_agent::Message::Load(proto::Load {
            interval_us: number(random),
            tx_bytes: vec![random.next(); random.below(4)],
            rx_bytes: vec![random.next(); random.below(4)],
            retransmitted: vec![number(random); random.below(4)],
            marked: vec![number(random); random.below(4)],
            connections: vec![proto::ConnectionLoad { handle: number(random), ..Default::default() }; random.below(70)],
        }),
        2 => from_agent::Message::Want(proto::Want { services: vec![text(random); random.below(5000)] }),
        3 => from_agent::Message::Answer(proto::OrderAnswer { id: text(random), result: None }),
        4 => from_agent::Message::Holdings(proto::Holdings {
            tenants: vec![
                proto::TenantHoldings { tenant: text(random), qps: random.next(), ..Default::default() };
                random.below(3)
            ],
        }),
        5 => from_agent::Message::Hello(proto::Hello { node: text(random), ..Default::default() }),
        _ => from_agent::Message::Pong(proto::Pong { nonce: random.next() }),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_talk_nonsense_are_cut_off_and_the_others_are_served() {
    let world = World::new().await;
    let node = world.agent("node9").await;
    let process = world.process(&node);
    process.publish(record("node9/1", 1, 0x900));
    let index = &world.replica().shared.index;
    eventually("the good one is there", || index.size().connections == 1).await;
    let address = world.address().remove(0);
    let mut random = Random(SEED);
    for turn in 0..200 {
        let mut client = ControlClient::connect(address.clone()).await.expect("it listens");
        let port = proto::Port { device: "sf0".into(), port_num: 1, numa_node: -1, active: true, ..Default::default() };
        let hello = proto::Hello {
            node: if random.below(4) == 0 { "Node!".into() } else { format!("bad{}", turn % 7) },
            version: "1".into(),
            incarnation: turn,
            ports: vec![port],
            neighbours: Vec::new(),
        };
        let first = if random.below(8) == 0 { message(&mut random) } else { from_agent::Message::Hello(hello) };
        let rest = (0..4).map(|_| message(&mut random)).collect::<Vec<_>>();
        let (out, queue) = tokio::sync::mpsc::channel(16);
        for message in std::iter::once(first).chain(rest) {
            out.send(proto::FromAgent { message: Some(message) }).await.expect("room");
        }
        drop(out);
        if let Ok(answers) = client.join(ReceiverStream::new(queue)).await {
            let mut answers = answers.into_inner();
            // It ends by itself: with a reason, or because the agent has gone.
            while let Ok(Some(_)) = answers.message().await {}
        }
    }
    process.publish(record("node9/1", 2, 0x901));
    eventually("the good one is still heard", || {
        let query = scalefabric_control::directory::Query { node: Some("node9".into()), ..Default::default() };
        index.find(&query).connections.len() == 2
    })
    .await;
    assert_eq!(index.size().malformed, 0, "nothing of it that cannot be read has come into the store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_talk_nonsense_are_cut_off_and_the_others_are_served() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let good = world.process(&node);
    let mut hello = serde_json::to_string(&json!({ "say": "hello", "protocol": 1, "pid": 7 })).expect("JSON");
    hello.push('\n');
    let record_text =
        serde_json::to_string(&json!({ "say": "publish", "record": record("node1/7", 1, 5) })).expect("JSON");
    let socket = node.socket.clone();
    let noise = move || {
        let mut random = Random(SEED);
        for turn in 0..200 {
            let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
            let first = if turn % 3 == 0 { random.spoil(&hello) } else { hello.clone() };
            let line = if turn == 5 { "x".repeat(2 * 1024 * 1024) } else { random.spoil(&record_text) };
            let _ = stream.write_all(first.as_bytes());
            let _ = stream.write_all(line.as_bytes());
            let _ = stream.write_all(b"\n");
            let _ = stream.read(&mut [0; 256]);
        }
    };
    tokio::task::spawn_blocking(noise).await.expect("no panic");
    good.publish(record("node1/1", 1, 0x100));
    let index = &world.replica().shared.index;
    eventually("the good one is heard, and the others are gone", || {
        let all = index.find(&scalefabric_control::directory::Query::default()).connections;
        all.len() == 1 && all[0].record.qp_num == 0x100
    })
    .await;
}
