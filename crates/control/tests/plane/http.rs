//! HTTP: what is asked is answered, what is wrong is refused with a sentence, the document describes what there is, and a stranger is not heard.

use crate::certificates::Authority;
use crate::world::{World, eventually, record};
use scalefabric_control::service::Settings;
use scalefabric_control::service::access::Token;
use scalefabric_fabric::Directory;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One call. Status, and the body as JSON.
pub async fn call(address: SocketAddr, request: &str, headers: &str, body: &str) -> (u16, Value) {
    let stream = TcpStream::connect(address).await.expect("it listens");
    over(stream, request, headers, body).await
}

pub async fn over(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    request: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    // A peer of TLS may end without saying so.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_can_be_asked_and_the_document_names_every_way_to() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    process.publish(record("node1/1", 1, 0x100));
    process.publish(record("node1/1", 2, 0x101));
    let replica = world.replica();
    eventually("both are there", || replica.shared.index.size().connections == 2).await;
    let http = replica.http.expect("it has HTTP");
    let get = async |path: &str| call(http, &format!("GET {path}"), "", "").await;
    let (status, page) = get("/v1/connections?node=node1&qp_num=0x101").await;
    assert_eq!((status, &page["connections"][0]["id"]["serial"], &page["next"]), (200, &2.into(), &Value::Null));
    let (_, first) = get("/v1/connections?tenant=red&limit=1").await;
    let after = first["next"].as_str().expect("there are more").replace('%', "%25");
    let (_, second) = get(&format!("/v1/connections?tenant=red&limit=1&after={after}")).await;
    assert_ne!(first["connections"][0]["id"], second["connections"][0]["id"]);
    assert_eq!(get("/v1/nodes/node1").await.1["ports"].as_array().map(Vec::len), Some(2));
    assert_eq!(get("/v1/status").await.1["size"]["connections"], 2);
    for wrong in ["?limit=0", "?limit=10001", "?qp_num=0x1000000", "?qp_num=many", "?colour=red", "?port_num=300"] {
        let (status, problem) = get(&format!("/v1/connections{wrong}")).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(problem["detail"].is_string(), "{wrong}: {problem}");
    }
    assert_eq!(get("/v1/nodes/nobody").await.0, 404);
    assert_eq!(get("/v2").await.0, 404);
    let document = scalefabric_control::service::http::document();
    let published = get("/openapi.json").await;
    assert_eq!(published, (200, serde_json::to_value(document).expect("JSON")));
}

/// The calls of the document: method, a path with names in it, and whether it is a stream, which does not end.
fn calls() -> Vec<(String, String, bool)> {
    let document = serde_json::to_value(scalefabric_control::service::http::document()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let mut calls = Vec::new();
    for (path, item) in paths {
        let path = path.replace("{node}", "node1").replace("{serial}", "1");
        for (method, one) in item.as_object().expect("an item") {
            let is_stream = one["responses"]["200"]["content"]["text/event-stream"].is_object();
            calls.push((method.to_uppercase(), path.clone(), is_stream));
        }
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_the_document_is_served_and_refuses_a_stranger() {
    let mut world = World::new().await;
    world.stop().await;
    let authority = Authority::new();
    let mut settings = Settings::local("control1");
    settings.access.tls = Some(authority.server("localhost"));
    settings.access.token = Token::new("0123456789abcdef").ok();
    world.start(settings).await;
    let http = world.replica().http.expect("it has HTTP");
    let ask = async |request: &str, headers: &str, body: &str| {
        over(authority.connect(http, None).await, request, headers, body).await
    };
    let json = "Content-Type: application/json\r\n";
    let token = format!("Authorization: Bearer 0123456789abcdef\r\n{json}");
    let calls = calls();
    assert!(calls.len() > 20, "{calls:?}");
    for (method, path, is_stream) in calls {
        let request = format!("{method} {path}");
        let (status, problem) = ask(&request, json, "{}").await;
        assert_eq!((status, problem["status"].as_u64()), (401, Some(401)), "{request}: {problem}");
        if !is_stream {
            // Served: what it says of an empty question is its own, not that there is nothing.
            let (status, answer) = ask(&request, &token, "{}").await;
            let nothing = answer["detail"].as_str().is_some_and(|detail| detail.contains("there is nothing here"));
            assert!(status != 405 && status < 500 && !nothing || status == 503, "{request}: {status} {answer}");
        }
        let (status, problem) = ask(&format!("DELETE {path}"), &token, "").await;
        assert_eq!((status, problem["status"].as_u64()), (405, Some(405)), "{path}: {problem}");
    }
    assert_eq!(ask("GET /openapi.json", "", "").await.0, 401);
    // Who has not even a certificate to show to agents' side is not heard there at all.
    let mut stranger = authority.connect(world.replica().grpc, None).await;
    assert!(stranger.read_u8().await.is_err(), "an agent needs a certificate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_are_too_long_or_of_another_kind_are_refused_with_a_sentence() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let json = "Content-Type: application/json\r\n";
    let long = format!("{{\"reason\":\"{}\"}}", "x".repeat(256 * 1024));
    for request in
        ["PUT /v1/tenants", "PUT /v1/rebalance", "POST /v1/orders", "POST /v1/rotate", "PUT /v1/rotate/schedule"]
    {
        let (status, problem) = call(http, request, json, &long).await;
        assert_eq!(status, 413, "{request}: {problem}");
        assert!(problem["detail"].is_string(), "{request}: {problem}");
        let (status, problem) = call(http, request, json, "[]").await;
        assert_eq!(status, 400, "{request}: {problem}");
    }
    let (status, problem) = call(http, "PUT /v1/tenants", "Content-Type: text/plain\r\n", "{}").await;
    assert_eq!((status, problem["status"].as_u64()), (415, Some(415)), "{problem}");
    for wrong in [
        "/v1/connections?port_num=0",
        "/v1/events?recent=10001",
        "/v1/rebalance/decisions?limit=0",
        "/v1/rebalance/decisions?limit=1001",
        "/v1/rotate/many",
        "/v1/loads?nodes=node1",
        "/v1/services?name=kv",
        "/v1/timeline?since_ms=-1",
        "/v1/timeline/moment?at_ms=now",
        "/v1/topology/paths?from=node1",
        "/v1/topology/paths?from=No&to=node1",
    ] {
        let (status, problem) = call(http, &format!("GET {wrong}"), "", "").await;
        assert_eq!(status, 400, "{wrong}: {problem}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{wrong}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_nonsense_is_refused_before_anything_is_written() {
    let world = World::new().await;
    let _node = world.agent("node1").await;
    let replica = world.replica();
    eventually("the node is there", || replica.shared.index.size().nodes == 1).await;
    let http = replica.http.expect("it has HTTP");
    let post = async |body: &str| call(http, "POST /v1/orders", "Content-Type: application/json\r\n", body).await;
    let path = |dscp: u32| {
        format!(
            "{{\"device\":\"sf0\",\"port_num\":2,\"sgid\":\"::1\",\"dgid\":\"::2\",\"flow_label\":1,\"dscp\":{dscp}}}"
        )
    };
    let moving = |node: &str, dscp: u32| {
        let connection = "{\"origin\":\"node1/1\",\"serial\":1}";
        let path = path(dscp);
        format!(
            "{{\"node\":\"{node}\",\"reason\":\"x\",\"order\":{{\"move\":{{\"connection\":{connection},\"path\":{path}}}}}}}"
        )
    };
    let mut held = replica.shared.rebalance.held();
    held.wait_for(Option::is_some).await.expect("it runs");
    assert_eq!(post("{").await.0, 400);
    assert_eq!(post(&moving("Node_1", 0)).await.0, 400);
    assert_eq!(post(&moving("node2", 0)).await.0, 404);
    assert_eq!(post(&moving("node1", 64)).await.0, 400);
    assert!(replica.shared.store.list("orders/").await.expect("read").0.is_empty());
    let (status, answer) = post(&moving("node1", 63)).await;
    assert_eq!((status, &answer["answer"]), (200, &"not-here".into()), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_not_heard_and_who_has_the_token_or_a_certificate_is() {
    let mut world = World::new().await;
    world.stop().await;
    let authority = Authority::new();
    let mut settings = Settings::local("control1");
    settings.access.tls = Some(authority.server("localhost"));
    settings.access.token = Token::new("0123456789abcdef").ok();
    world.start(settings).await;
    let http = world.replica().http.expect("it has HTTP");
    let status = async |client: Option<&str>, headers: &str| {
        let stream = authority.connect(http, client).await;
        over(stream, "GET /v1/status", headers, "").await.0
    };
    assert_eq!(status(None, "").await, 401);
    assert_eq!(status(None, "Authorization: Bearer 0123456789abcdeX\r\n").await, 401);
    assert_eq!(status(None, "Authorization: Bearer 0123456789abcdef\r\n").await, 200);
    assert_eq!(status(Some("operator"), "").await, 200);
    let other = Authority::new();
    assert!(other.try_connect(http, Some("operator"), &authority).await.is_none(), "another authority's certificate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_is_spoken_on_loopback_only() {
    let mut settings = Settings::local("control1");
    assert!(settings.check().is_ok());
    settings.http = Some("0.0.0.0:0".parse().expect("an address"));
    let refused = settings.check().expect_err("it would be open to everybody").to_string();
    assert!(refused.contains("client_ca"), "{refused}");
    settings.access.tls = Some(Authority::new().server("localhost"));
    assert!(settings.check().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_are_set_count_in_every_process() {
    let world = World::new().await;
    let node = world.agent("node1").await;
    let process = world.process(&node);
    assert!(process.may_connect("red", "files").is_ok());
    let http = world.replica().http.expect("it has HTTP");
    let put = async |body: &str| call(http, "PUT /v1/tenants", "Content-Type: application/json\r\n", body).await.0;
    let tenant = |name: &str, pkey: u32, service: &str| {
        format!("{{\"name\":\"{name}\",\"pkey\":{pkey},\"services\":[\"{service}\"]}}")
    };
    let (red, blue) = (tenant("red", 0x8001, "files"), tenant("blue", 0x8002, "mail"));
    // Two tenants in one partition would reach one another.
    let same = tenant("blue", 0x8001, "mail");
    assert_eq!(put(&format!("{{\"tenant\":[{red},{same}]}}")).await, 400);
    assert_eq!(put(&format!("{{\"tenant\":[{red},{blue}]}}")).await, 200);
    eventually("the rules are known", || process.may_connect("blue", "files").is_err()).await;
    assert!(process.may_connect("red", "files").is_ok() && process.may_connect("nobody", "files").is_err());
    let refused = process.may_connect("blue", "files").expect_err("just seen");
    assert_eq!(refused.fault, scalefabric_fabric::Fault::NoAuthority);
}
