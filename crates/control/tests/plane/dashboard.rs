//! What the dashboard asks: the overview, the time line, the stream of events and its files. What happens is told with its why, and a reader that comes back misses
//! nothing.

use crate::http::{call, over};
use crate::world::{World, eventually, path, record};
use scalefabric_control::service::Settings;
use scalefabric_control::service::access::Token;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{Order, OrderResult};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The stream as it comes.
struct Stream(BufReader<TcpStream>);

/// An event of it.
#[derive(Debug)]
struct Heard {
    kind: String,
    id: Option<String>,
    data: Value,
}

impl Stream {
    async fn open(address: SocketAddr, query: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let text = format!("GET /v1/events{query} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        stream.write_all(text.as_bytes()).await.expect("it reads");
        let mut stream = Self(BufReader::new(stream));
        assert!(stream.line().await.starts_with("HTTP/1.1 200"));
        while !stream.line().await.is_empty() {}
        stream
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(Duration::from_secs(120), self.0.read_line(&mut line));
        assert_ne!(read.await.expect("it speaks").expect("text"), 0, "the stream has ended");
        line.trim_end().to_owned()
    }

    /// The next event of a kind; others are passed by.
    async fn next(&mut self, kind: &str) -> Heard {
        let mut heard = Heard { kind: String::new(), id: None, data: Value::Null };
        loop {
            let line = self.line().await;
            match line.split_once(": ") {
                Some(("event", text)) => heard.kind = text.to_owned(),
                Some(("id", text)) => heard.id = Some(text.to_owned()),
                Some(("data", text)) => {
                    heard.data = serde_json::from_str(text).expect("JSON");
                    if heard.kind == kind {
                        return heard;
                    }
                    heard = Heard { kind: String::new(), id: None, data: Value::Null };
                }
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_is_told_with_its_why_and_a_reader_that_comes_back_misses_nothing() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let mut stream = Stream::open(http, "", "").await;
    let node = world.agent("node1").await;
    let joined = stream.next("node-joined").await;
    assert_eq!(joined.data["text"], "node1 has joined control1 with 2 ports");
    let place = joined.id.expect("a place");
    let process = world.process(&node);
    let mut own = record("node1/1", 1, 0x100);
    process.publish(own.clone());
    let shared = &world.replica().shared;
    eventually("the connection is there", || shared.index.size().connections == 1).await;
    let wish = json!({ "moves": [{ "connection": { "origin": "node1/1", "serial": 1 }, "path": path(2) }] });
    let json_body = "Content-Type: application/json\r\n";
    assert_eq!(call(http, "PUT /v1/rebalance", json_body, &wish.to_string()).await.0, 200);
    assert_eq!(stream.next("settings-changed").await.data["text"], "1 moves wished");
    let given = stream.next("order-given").await;
    assert_eq!(given.data["text"], "control1 ordered node1/1 1 to node1/sf0/2");
    let mut order = None;
    eventually("it is ordered", || {
        order = process.next_order();
        order.is_some()
    })
    .await;
    let (id, order) = order.expect("just seen");
    assert!(matches!(order, Order::Move { .. }));
    (own.path, own.alternatives, own.generation) = (path(2), vec![path(1)], 2);
    process.publish(own);
    process.answer(id, OrderResult::Done { generation: 2, pause_us: 40 });
    // What the process tells and what it answers travel apart: either may be first. The log has both.
    let mut again = Stream::open(http, "", &format!("Last-Event-ID: {place}\r\n")).await;
    let moved = again.next("connection-moved").await;
    assert_eq!(moved.data["text"], "node1/1 1 moved from node1/sf0/1 to sf0/2");
    assert_eq!(moved.data["why"], "the operator wants it there");
    let mut recent = Value::Null;
    for _ in 0..6_000 {
        recent = call(http, "GET /v1/events/recent?origin=node1/1&serial=1", "", "").await.1;
        if recent["events"].as_array().is_some_and(|events| events.len() == 3) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut kinds: Vec<&str> =
        recent["events"].as_array().expect("events").iter().filter_map(|event| event["kind"].as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["connection-moved", "order-done", "order-given"], "{recent}");
    // All of the past once more, by the number of the log; and a place of another run.
    let mut all = Stream::open(http, "?recent=10000", "").await;
    assert_eq!(all.next("node-joined").await.data["serial"], joined.data["serial"]);
    let mut strange = Stream::open(http, "?after=0123-7", "").await;
    assert_eq!(strange.next("gap").await.data["lost"], Value::Null);
    assert_eq!(strange.next("node-joined").await.data["node"], "node1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_overview_the_seconds_and_the_time_line_agree() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    process.publish(record("node1/1", 1, 0x100));
    let http = world.replica().http.expect("it has HTTP");
    let mut stream = Stream::open(http, "?seconds=true", "").await;
    let second = loop {
        let second = stream.next("second").await.data;
        if second["tx"][0].as_i64().is_some_and(|tx| tx > 0) && second["connections"] == json!([1, 0]) {
            break second;
        }
    };
    // The port counts 1 MB every tenth of a second: 80 Mb/s of 10 Gb/s are 8 thousandths, more or less.
    assert_eq!((&second["flags"], &second["tx"][1], &second["rx"][0]), (&json!([1, 1]), &json!(0), &json!(0)));
    let (status, overview) = call(http, "GET /v1/overview", "", "").await;
    assert_eq!(status, 200);
    assert_eq!((&overview["layout"], &overview["nodes"][0]["node"]), (&second["layout"], &json!("node1")));
    assert_eq!(overview["nodes"][0]["ports"][1]["rate_mbps"], 10_000);
    assert_eq!(overview["store"], json!({ "kind": "embedded", "health": "in-sync", "reason": null }));
    assert_eq!(overview["rebalance"]["hot_permille"], 700);
    let get = async |path: &str| call(http, &format!("GET {path}"), "", "").await;
    let (_, line) = get("/v1/timeline?node=node1").await;
    let length = line["at_ms"].as_array().map(Vec::len).expect("moments");
    assert_eq!(line["ports"][0]["tx"].as_array().map(Vec::len), Some(length));
    let at = second["at_ms"].as_u64().expect("a time");
    let (_, moment) = get(&format!("/v1/timeline/moment?at_ms={at}")).await;
    assert_eq!((&moment["tx"], &moment["at_ms"]), (&second["tx"], &second["at_ms"]));
    assert_eq!(moment["ports"], json!(["node1/sf0/1", "node1/sf0/2"]));
    let (_, tenants) = get("/v1/tenants/use").await;
    assert_eq!((&tenants["tenants"][0]["name"], &tenants["tenants"][0]["ends"]), (&json!("red"), &json!(1)));
    let (_, found) = get("/v1/connections?origin=node1/1&serial=1").await;
    assert_eq!(found["connections"][0]["qp_num"], 0x100);
    for (path, status) in [
        ("/v1/timeline?node=nobody", 404),
        ("/v1/timeline/moment", 400),
        ("/v1/events/recent?limit=0", 400),
        ("/v1/events/recent?kinds=dance", 400),
        ("/v1/events/recent?kinds=port-up,node-gone", 200),
        ("/v1/events/recent?origin=x", 400),
        ("/v1/events?colour=red", 400),
        ("/v1/connections?origin=x", 400),
    ] {
        assert_eq!(get(path).await.0, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_not_written_over_those_of_somebody_else() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let tag = async || {
        let text = whole(http, "/v1/rebalance", "").await;
        let line = text.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
        line.to_owned()
    };
    let put = async |body: &str, tag: &str| {
        let headers = format!("Content-Type: application/json\r\nIf-Match: {tag}\r\n");
        call(http, "PUT /v1/rebalance", &headers, body).await.0
    };
    let first = tag().await;
    assert_eq!(put(r#"{"dry_run":true}"#, &first).await, 200);
    assert_eq!(put(r#"{"dry_run":false}"#, &first).await, 412, "it was written since");
    assert_eq!(call(http, "GET /v1/rebalance", "", "").await.1["dry_run"], true);
    assert_eq!(put(r#"{"dry_run":false}"#, &tag().await).await, 200);
    assert_eq!(put("{}", "\"x\"").await, 400);
}

/// A whole answer, head and body.
async fn whole(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let text = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_need_no_token_and_what_they_show_does() {
    let mut world = World::new().await;
    world.stop().await;
    let mut settings = Settings::local("control1");
    settings.access.token = Token::new("0123456789abcdef").ok();
    world.start(settings).await;
    let http = world.replica().http.expect("it has HTTP");
    let root = whole(http, "/", "").await;
    assert!(root.starts_with("HTTP/1.1 307") && root.contains("location: /dashboard/"), "{root}");
    let page = whole(http, "/dashboard/", "").await;
    assert!(page.contains("content-type: text/html") && page.contains("<script type=\"module\" src=\"main.js\">"));
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{page}");
    let style = whole(http, "/dashboard/style.css", "").await;
    let tag = style.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
    let again = whole(http, "/dashboard/style.css", &format!("If-None-Match: {tag}\r\n")).await;
    assert!(again.starts_with("HTTP/1.1 304"), "{again}");
    assert!(whole(http, "/dashboard/nothing.js", "").await.starts_with("HTTP/1.1 404"));
    for path in ["/v1/overview", "/v1/events", "/v1/timeline", "/v1/tenants/use", "/v1/changes"] {
        assert_eq!(call(http, &format!("GET {path}"), "", "").await.0, 401, "{path}");
    }
    let stream = TcpStream::connect(http).await.expect("it listens");
    let headers = "Authorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(over(stream, "GET /v1/overview", headers, "").await.0, 200);
    // Streams end with the replica: stopping it does not wait for readers.
    let mut reader = Stream::open(http, "?seconds=true", headers).await;
    reader.next("second").await;
    world.stop().await;
    let mut rest = Vec::new();
    reader.0.read_to_end(&mut rest).await.expect("an end");
}
