//! A port that is hot by real load is relieved: what connections carry is counted by the fabric, told by processes, judged by control and carried out while data flows. A dry
//! run and a freeze hold it back.

use crate::world::{Control, Host, Node, RATE_MBPS, Traffic, call, offered, provider, runtime};
use scalefabric_fabric::Path;
use scalefabric_fabric::endpoint::{Config, Target};
use scalefabric_tests::{Folder, eventually};
use scalefabric_verbs::Provider;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// Together they load a port to 85 % of what the agents say that it can carry: above 70 %.
const CONNECTIONS: usize = 8;
const BYTES_PER_SECOND: u64 = RATE_MBPS * 1_000_000 / 8 * 85 / 100 / CONNECTIONS as u64;

fn decisions(http: SocketAddr) -> Vec<Value> {
    let (status, page) = call(http, "GET /v1/rebalance/decisions", "");
    assert_eq!(status, 200, "{page}");
    page["decisions"].as_array().expect("a list").clone()
}

fn set(http: SocketAddr, settings: &str) {
    assert_eq!(call(http, "PUT /v1/rebalance", settings).0, 200);
}

#[test]
fn connections_leave_a_port_that_is_hot_by_load_unless_they_are_held() {
    let (runtime, folder) = (runtime(), Folder::new("control"));
    let control = Control::start(&runtime, &folder);
    let nodes = [0, 1].map(|number| Node::start(&runtime, &folder, number, &control.address()));
    let http = control.http;
    set(http, r#"{"dry_run":true}"#);
    let [client, server] = ["client", "server"].map(|name| folder.join(name));
    let server = nodes[1].fabric(nodes[1].directory(&server), Config::default());
    let client = nodes[0].fabric(nodes[0].directory(&client), Config::default());
    let host = Host::new(&server, server.listen("store").expect("a service"));
    let address = server.addresses()[0].clone();

    // All on port 1, at both ends.
    let gid = |device: &str| {
        let table = provider().open(device).and_then(|context| context.query_gid_table()).expect("a table");
        table.iter().find(|entry| entry.port_num == 1 && entry.gid.is_ipv4()).expect("an address").gid
    };
    let path = Path { device: "near".into(), port_num: 1, sgid: gid("near"), dgid: gid("far"), flow_label: 0, dscp: 0 };
    let connect = |_| {
        let target = Target::at(address.clone(), "store");
        let connection = runtime.block_on(client.connect_on(&target, Some(path.clone()))).expect("a connection");
        let remote = offered(&connection);
        (connection, remote)
    };
    let connections: Vec<_> = (0..CONNECTIONS).map(connect).collect();
    let ports = || {
        let index = &control.replica.shared.index;
        let query = scalefabric_control::directory::Query { node: Some("node1".into()), ..Default::default() };
        index.find(&query).connections.iter().map(|one| one.record.path.port_num).collect::<Vec<_>>()
    };
    eventually("all are in the directory", || ports() == [1; CONNECTIONS]);
    let traffic = Traffic::start(&client, connections, BYTES_PER_SECOND);

    eventually("it would move some", || !decisions(http).is_empty());
    let dry = decisions(http);
    assert!(dry.iter().all(|decision| decision["outcome"]["outcome"] == "dry-run"), "{dry:?}");
    assert_eq!(ports(), [1; CONNECTIONS], "a dry run moves nothing");

    set(http, r#"{"freeze":"all"}"#);
    let frozen = || {
        let round = control.replica.shared.rebalancing.last_round();
        let refusals = serde_json::to_value(&round.refusals).unwrap_or_default();
        refusals.as_array().is_some_and(|all| all.iter().any(|one| one["refused"] == "frozen"))
    };
    eventually("it is held back", frozen);
    assert_eq!(ports(), [1; CONNECTIONS], "a freeze moves nothing");

    set(http, "{}");
    eventually("connections have left the hot port", || ports().contains(&2));
    let done = |decision: &Value| decision["outcome"]["outcome"] == "done";
    eventually("the answer is noted", || decisions(http).iter().any(done));
    let all = decisions(http);
    let moved = all.iter().find(|decision| done(decision)).expect("just seen");
    assert_eq!((&moved["from"]["port_num"], &moved["to"]["port_num"]), (&1.into(), &2.into()), "{moved}");
    assert!(moved["text"].as_str().is_some_and(|text| text.contains("node1/near/1")), "{moved}");
    assert!(moved["sample"]["tx_bps"].as_f64().is_some_and(|load| load > 0.0), "{moved}");

    // Data has flowed all the time, and flows still.
    let before = traffic.done.load(Ordering::Relaxed);
    eventually("data flows", || traffic.done.load(Ordering::Relaxed) > before + 2 * CONNECTIONS as u64);
    let (connections, failures) = traffic.stop();
    assert_eq!(failures, Vec::<String>::new());
    assert!(connections.iter().map(|one| one.statistics().moves).sum::<u64>() > 0);
    drop((connections, host));
}
