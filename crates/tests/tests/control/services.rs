//! Services by name: a node offers one at several addresses, each is in the directory for as long as somebody listens there, and who connects is not held up by an address that
//! nobody answers at.

use crate::world::{Control, Host, Node, call, runtime};
use scalefabric_control::client::AgentDirectory;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::ServiceAddress;
use scalefabric_fabric::endpoint::{Config, Fabric, Target};
use scalefabric_tests::{Folder, eventually};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Control, two nodes, and a process of the first that wants to connect. What stands first ends first.
struct Stage {
    fabric: Fabric,
    client: Arc<AgentDirectory>,
    nodes: [Node; 2],
    control: Control,
    folder: Folder,
    _runtime: Runtime,
}

impl Stage {
    fn new() -> Self {
        let (runtime, folder) = (runtime(), Folder::new("services"));
        let control = Control::start(&runtime, &folder);
        let nodes = [0, 1].map(|number| Node::start(&runtime, &folder, number, &control.address()));
        let client = nodes[0].directory(&folder.join("client"));
        let fabric = nodes[0].fabric(client.clone(), Config::default());
        Self { fabric, client, nodes, control, folder, _runtime: runtime }
    }
}

#[test]
fn a_service_is_found_at_every_address_and_only_as_long_as_somebody_listens() {
    let Stage { client, fabric, nodes, control, folder, .. } = &Stage::new();
    let target = Target::Service("store".into());

    // Nobody offers it, and control says so: no need to wait for long.
    let begun = Instant::now();
    let error = fabric.connect(&target).expect_err("nobody is there");
    assert!(error.message.contains("`store`") && error.message.contains("nobody is known"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    // Two processes of one node.
    let servers = ["first", "second"].map(|name| {
        let directory = nodes[1].directory(&folder.join(name));
        let fabric = nodes[1].fabric(directory.clone(), Config::default());
        let host = Host::new(&fabric, fabric.listen("store").expect("a service"));
        (fabric, host)
    });
    let exchanges: BTreeSet<String> = servers.iter().map(|(fabric, _)| fabric.addresses()[0].clone()).collect();
    assert_eq!(exchanges.len(), 2);
    let found = || client.resolve("store").into_iter().map(|one| one.exchange).collect::<BTreeSet<_>>();
    eventually("both addresses are known", || found() == exchanges);
    let listed = || {
        let (_, body) = call(control.http, "GET /v1/services?service=store", "");
        body.as_array().map_or(0, Vec::len)
    };
    assert_eq!(listed(), 2);
    drop(fabric.connect(&target).expect("somebody is there"));

    // One of them listens no more; its process lives on.
    let [(first, host), (second, other)] = servers;
    drop(host);
    let rest = BTreeSet::from([second.addresses()[0].clone()]);
    eventually("its address is withdrawn", || found() == rest && listed() == 1);
    // It may offer it again.
    let again = Host::new(&first, first.listen("store").expect("it is free again"));
    eventually("both are known again", || found() == exchanges);
    drop((again, other));
    eventually("nobody offers it", || listed() == 0);
}

#[test]
fn an_address_where_nobody_answers_does_not_hold_up_who_connects() {
    let Stage { client, fabric, nodes, folder, .. } = &Stage::new();
    let server_directory = nodes[1].directory(&folder.join("server"));
    let server = nodes[1].fabric(server_directory.clone(), Config::default());
    // As a process leaves it that is stopped: it takes connections and says nothing. The other is closed. Both come before the good one in the directory's order.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("an address");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("an address").local_addr().expect("its address");
    let dead = nodes[0].directory(&folder.join("dead"));
    for address in [silent.local_addr().expect("its address"), closed] {
        let (service, node, exchange) = ("store".into(), "node1".into(), format!("tcp://{address}"));
        dead.offer(ServiceAddress { service, node, exchange, paths: Vec::new() });
    }
    eventually("both are known", || client.resolve("store").len() == 2);
    let begun = Instant::now();
    let connecting = std::thread::spawn({
        let fabric = fabric.clone();
        move || fabric.connect(&Target::Service("store".into()))
    });
    // Who is there only later is heard of while the others are tried.
    std::thread::sleep(Duration::from_millis(500));
    let _host = Host::new(&server, server.listen("store").expect("a service"));
    let connection = connecting.join().expect("no panic").expect("the one that answers");
    assert!(begun.elapsed() < Duration::from_secs(8), "well before an address is given up: {:?}", begun.elapsed());
    assert_eq!(connection.record().expect("a record").service, "store");
}
