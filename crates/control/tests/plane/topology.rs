//! The topology from end to end: what LLDP has learnt on a node, through its agent and control, and what the operator's file adds, become cables, findings, and ways between nodes
//! on which connections are moved. LLDP is played by a program that prints what `lldpctl` prints.

use crate::http::call;
use crate::world::{self, Counting, Folder, Node, World, agent_settings, eventually, start_agent_with};
use scalefabric_control::agent::ports::{PortCounters, PortSource};
use scalefabric_control::directory::PortRecord;
use scalefabric_control::service::Settings;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::Order;
use scalefabric_verbs::Gid;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Two leaves and two spines: a connection between the leaves has two ways. The cable of node2's second port stands in the file only, and that of node1's first port is another
/// than LLDP sees.
const FILE: &str = r#"
    switch = [{ name = "leaf1" }, { name = "leaf2" }, { name = "spine1" }, { name = "spine2" }]
    link = [{ between = ["leaf1:49", "spine1:1"] }, { between = ["leaf1:50", "spine2:1"] },
            { between = ["leaf2:49", "spine1:2"] }, { between = ["leaf2:50", "spine2:2"] }]
    port = [{ node = "node1", device = "sf0", port = 1, switch = "leaf1:9" }, { node = "node2", device = "sf0", port = 2, switch = "leaf2:8" }]
"#;

/// Ports of a node with addresses of their own, on the interfaces `rail1` and `rail2`.
struct Wired(u8);

impl PortSource for Wired {
    fn ports(&mut self) -> Vec<PortRecord> {
        let mut ports = Counting::default().ports();
        for port in &mut ports {
            port.gids = vec![address(self.0, port.port_num).to_ipv6_mapped()];
        }
        ports
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        vec![PortCounters::default(); 2]
    }

    fn interfaces(&mut self) -> Vec<String> {
        vec!["rail1".into(), "rail2".into()]
    }
}

fn address(node: u8, port_num: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, port_num, 0, node)
}

fn gid(node: u8, port_num: u8) -> Gid {
    Gid::from_ip(address(node, port_num).into())
}

/// What a switch says of itself on a cable, as `lldpctl -f json0` prints it.
fn heard(interface: &str, switch: &str, port: &str) -> Value {
    json!({
        "name": interface, "via": "LLDP", "rid": "1", "age": "0 day, 00:01:02",
        "chassis": [{ "id": [{ "type": "mac", "value": "ae:2e:f5:f9:a1:7a" }], "name": [{ "value": switch }] }],
        "port": [{ "id": [{ "type": "ifname", "value": port }], "descr": [{ "value": "to a node" }] }],
    })
}

/// A program that prints what LLDP has learnt. Another process writes it: a program that any process of ours has open for writing could not be started.
fn lldpctl(folder: &Folder, node: &str, heard: &[Value]) -> PathBuf {
    let (path, text) = (folder.file(&format!("{node}-lldpctl")), folder.file(&format!("{node}-lldp.json")));
    let answer = json!({ "lldp": [{ "interface": heard }] });
    std::fs::write(&text, answer.to_string()).expect("written");
    let script =
        "printf '#!/bin/sh\\n[ \"$*\" = \"-f json0\" ] && exec cat \"%s\"\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let made = Command::new("sh").args(["-c", script, "sh"]).arg(&text).arg(&path).status();
    assert!(made.expect("sh").success());
    path
}

fn wired(world: &World, node: u8, cables: &[Value]) -> Node {
    let name = format!("node{node}");
    let program = lldpctl(&world.folder, &name, cables);
    let settings = agent_settings(&name, &world.folder, world.address());
    start_agent_with(scalefabric_control::agent::Settings { lldpctl: Some(program), ..settings }, Box::new(Wired(node)))
}

/// Asks until an answer fits.
async fn until(http: std::net::SocketAddr, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let mut answer = Value::Null;
    for _ in 0..6000 {
        answer = call(http, &format!("GET {path}"), "", "").await.1;
        if fits(&answer) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{path} never fits: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lldp_hears_and_the_file_says_become_cables_findings_and_ways() {
    let mut world = World::new().await;
    world.stop().await;
    world.start(Settings { topology: Some(FILE.into()), ..Settings::local("control1") }).await;
    let http = world.replica().http.expect("it has HTTP");
    let one = wired(&world, 1, &[heard("rail1", "leaf1", "1"), heard("rail2", "leaf1", "2")]);
    let _two = wired(&world, 2, &[heard("rail1", "leaf2", "1")]);
    // The agent tells what LLDP says; the directory shows it as it is.
    let cables = json!([
        { "port": 0, "chassis": "leaf1", "port_id": "1" },
        { "port": 1, "chassis": "leaf1", "port_id": "2" },
    ]);
    until(http, "/v1/nodes/node1", |node| node["neighbours"] == cables).await;
    // With the file: four cables, one plane, and what does not fit is named.
    let wanted = [Some("leaf1:1"), Some("leaf1:2"), Some("leaf2:1"), Some("leaf2:8")].map(|end| end.map(str::to_owned));
    let ends = |seen: &Value| -> Vec<Option<String>> {
        let end = |port: &Value| Some(format!("{}:{}", port["at"]["switch"].as_str()?, port["at"]["port"].as_str()?));
        seen["ports"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(end).collect()
    };
    let seen = until(http, "/v1/topology", |seen| ends(seen) == wanted).await;
    assert_eq!((seen["switches"].as_array().map(Vec::len), seen["links"].as_array().map(Vec::len)), (Some(4), Some(4)));
    let ports = seen["ports"].as_array().expect("ports");
    assert!(ports.iter().all(|port| port["plane"] == 0 && port["speed_mbps"] == 10_000), "{seen}");
    let findings = seen["findings"].as_array().expect("findings");
    assert_eq!((findings.len(), &findings[0]["finding"]), (1, &json!("cable-differs")), "{seen}");
    assert!(
        findings[0]["text"].as_str().is_some_and(|text| text.contains("node1/sf0/1 is plugged into leaf1:1")),
        "{seen}"
    );

    // Two ways of equal cost for each pair of ports, told apart by their flow labels.
    let ways =
        until(http, "/v1/topology/paths?from=node1&to=node2&dscp=26", |ways| ways.as_array().map(Vec::len) == Some(8))
            .await;
    let from_first = |way: &&Value| way["path"]["port_num"] == 1 && way["to"]["port_num"] == 1;
    let first: Vec<&Value> = ways.as_array().expect("ways").iter().filter(from_first).collect();
    let labels: Vec<u64> = first.iter().filter_map(|way| way["path"]["flow_label"].as_u64()).collect();
    assert!(labels.len() == 2 && labels[0] != labels[1] && first.iter().all(|way| way["path"]["dscp"] == 26), "{ways}");
    let spines: Vec<&str> = first.iter().filter_map(|way| way["exits"][1]["switch"].as_str()).collect();
    assert!(spines.contains(&"spine1") && spines.contains(&"spine2"), "{ways}");
    assert_eq!(call(http, "GET /v1/topology/paths?from=node1&to=nobody", "", "").await.0, 404);
    assert_eq!(call(http, "GET /v1/topology/paths?from=node1&to=node2&dscp=64", "", "").await.0, 400);

    // A connection that knows no other path than its own is moved on a way that only the topology knows.
    let process = world.process(&one);
    let mut own = world::record("node1/1", 1, 0x100);
    own.path.sgid = gid(1, 1);
    own.path.dgid = gid(2, 1);
    own.path.flow_label = labels[0] as u32;
    own.alternatives.clear();
    process.publish(own);
    let mut path = first[1]["path"].clone();
    path["dscp"] = json!(26);
    let wish = json!({ "moves": [{ "connection": { "origin": "node1/1", "serial": 1 }, "path": path }] });
    let shared = &world.replica().shared;
    eventually("the connection is there", || shared.index.size().connections == 1).await;
    let put = call(http, "PUT /v1/rebalance", "Content-Type: application/json\r\n", &wish.to_string()).await;
    assert_eq!(put.0, 200, "{}", put.1);
    let mut order = None;
    eventually("it is ordered", || {
        order = process.next_order();
        order.is_some()
    })
    .await;
    let Some((_, Order::Move { path: to, .. })) = order else { panic!("{order:?}") };
    assert_eq!((to.port_num, to.dgid, u64::from(to.flow_label)), (1, gid(2, 1), labels[1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cable_that_was_moved_is_seen_and_an_agent_without_lldp_tells_what_its_configuration_says() {
    let world = World::new().await;
    let http = world.replica().http.expect("it has HTTP");
    let node = wired(&world, 1, &[heard("rail1", "leaf1", "1")]);
    let at = |seen: &Value| seen["ports"][0]["at"].clone();
    until(http, "/v1/topology", |seen| at(seen) == json!({ "switch": "leaf1", "port": "1" })).await;
    // A switch that no file names cannot be led through.
    let seen = until(http, "/v1/topology", |seen| seen["findings"][0]["finding"] == "unknown-switch").await;
    assert!(seen["findings"][0]["text"].as_str().is_some_and(|text| text.contains("leaf1")), "{seen}");
    drop(node);
    let node = wired(&world, 1, &[heard("rail1", "leaf7", "Ethernet3")]);
    until(http, "/v1/topology", |seen| at(seen) == json!({ "switch": "leaf7", "port": "Ethernet3" })).await;
    drop(node);
    // Where LLDP says nothing (here: there is no such program) the configuration counts.
    let neighbour = scalefabric_control::agent::Neighbour {
        device: "sf0".into(),
        port_num: 2,
        chassis: "leaf2".into(),
        port_id: "17".into(),
    };
    let settings = scalefabric_control::agent::Settings {
        lldpctl: Some(world.folder.file("no-such-program")),
        neighbours: vec![neighbour],
        ..agent_settings("node1", &world.folder, world.address())
    };
    let _node = start_agent_with(settings, Box::new(Wired(1)));
    let both = json!([null, { "switch": "leaf2", "port": "17" }]);
    until(http, "/v1/topology", |seen| json!([seen["ports"][0]["at"], seen["ports"][1]["at"]]) == both).await;
}
