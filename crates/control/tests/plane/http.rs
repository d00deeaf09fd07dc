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
    let (_, document) = get("/openapi.json").await;
    let calls = [
        "connections",
        "services",
        "nodes",
        "loads",
        "status",
        "orders",
        "overview",
        "timeline",
        "tenants/use",
        "events/recent",
    ];
    for path in calls.map(|name| format!("/v1/{name}")) {
        assert!(document["paths"][&path].is_object(), "{path}");
        assert_ne!(get(&path).await.0, 404, "{path}");
    }
    // Streams do not end.
    assert!(document["paths"]["/v1/events"].is_object() && document["paths"]["/v1/changes"].is_object());
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
