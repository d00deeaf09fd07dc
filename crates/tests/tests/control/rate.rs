//! A tenant's rate: the NIC keeps it for all connections of the tenant together, another tenant beside it is not slowed, and a higher one counts when it is given. That it is kept is
//! seen by how long bytes took: a busy machine takes longer, never shorter.

use crate::world::{Control, Host, Node, PIECE, call, offered, runtime};
use scalefabric_control::client::AgentDirectory;
use scalefabric_fabric::Directory;
use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Operation, Target};
use scalefabric_tests::fabric::Region;
use scalefabric_tests::{Folder, eventually};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Little, so that it takes long beside what a busy machine takes anyway.
const RATE_BPS: u64 = 8_000_000;
/// What is sent in each measurement, bytes: two seconds at that rate.
const BYTES: usize = 2 << 20;

fn rules(rate_bps: u64) -> String {
    format!(
        r#"{{"tenant":[{{"name":"red","pkey":"0x8011","services":["kv"],"quota":{{"rate_bps":{rate_bps}}}}},
            {{"name":"blue","pkey":"0x8012","services":["cache"]}}]}}"#
    )
}

fn of(tenant: &str) -> Config {
    Config { tenant: tenant.into(), receives: 16, ..Config::default() }
}

/// Writes that much over connections at the same time, the same over each; how long it took.
fn send(fabric: &Fabric, connections: &[Connection]) -> Duration {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for connection in connections {
            scope.spawn(|| {
                let (region, remote) = (Region::new(fabric, PIECE), offered(connection));
                for _ in 0..BYTES / PIECE / connections.len() {
                    let outcome = connection.execute(Operation::write(&region.piece(0, PIECE), remote).idempotent());
                    assert!(outcome.expect("it is open").is_done());
                }
            });
        }
    });
    begun.elapsed()
}

/// The least that the bytes may take at a rate, with a quarter for what a pace may be ahead.
fn least(rate_bps: u64) -> Duration {
    Duration::from_secs_f64(BYTES as f64 * 8.0 / rate_bps as f64 / 1.25)
}

#[test]
fn a_tenant_sends_at_its_rate_with_all_its_connections_and_another_is_not_slowed() {
    let (runtime, folder) = (runtime(), Folder::new("control"));
    let control = Control::start(&runtime, &folder);
    let nodes = [0, 1].map(|number| Node::start(&runtime, &folder, number, &control.address()));
    let directory = |node: usize, name: &str| nodes[node].directory(&folder.join(name));
    let [client, server]: [Arc<AgentDirectory>; 2] = [directory(0, "client"), directory(1, "server")];
    assert_eq!(call(control.http, "PUT /v1/tenants", &rules(RATE_BPS)).0, 200);
    let rate = |directory: &AgentDirectory| directory.allowance("red").rate_bps;
    eventually("the rate is known", || [&client, &server].iter().all(|one| rate(one) == Some(RATE_BPS)));
    let servers = [("red", "kv"), ("blue", "cache")].map(|(tenant, service)| {
        let fabric = nodes[1].fabric(server.clone(), of(tenant));
        let host = Host::new(&fabric, fabric.listen(service).expect("a service"));
        (fabric, host)
    });
    // Partitions are in the NIC's tables a moment after the rules are known.
    let connect = |fabric: &Fabric, server: &Fabric, service: &str| {
        let target = Target::at(server.addresses()[0].clone(), service);
        let mut made = None;
        eventually("it connects", || {
            made = fabric.connect(&target).ok();
            made.is_some()
        });
        made.expect("just made")
    };
    let red = nodes[0].fabric(client.clone(), of("red"));
    let blue = nodes[0].fabric(client.clone(), of("blue"));
    let mut reds = vec![connect(&red, &servers[0].0, "kv")];
    let blues = vec![connect(&blue, &servers[1].0, "cache")];

    let alone = send(&red, &reds);
    assert!(alone >= least(RATE_BPS), "{BYTES} bytes in {alone:?}");
    let free = send(&blue, &blues);
    assert!(free < alone, "blue has no rate, and took {free:?}; red took {alone:?}");
    // Two share it.
    reds.push(connect(&red, &servers[0].0, "kv"));
    let together = send(&red, &reds);
    assert!(together >= least(RATE_BPS), "{BYTES} bytes over two connections in {together:?}");
    // A higher rate is divided anew among those that there are.
    let more = 16 * RATE_BPS;
    assert_eq!(call(control.http, "PUT /v1/tenants", &rules(more)).0, 200);
    eventually("the new rate is known", || rate(&client) == Some(more));
    let faster = send(&red, &reds);
    assert!(faster >= least(more) && faster < together, "{BYTES} bytes in {faster:?}; before in {together:?}");
    // And among more, and fewer.
    reds.push(connect(&red, &servers[0].0, "kv"));
    let three = send(&red, &reds);
    assert!(three >= least(more) && three < together, "{BYTES} bytes over three connections in {three:?}");
    reds.truncate(1);
    eventually("QPs of two are given back", || client.held("red").qps == 1);
    let one = send(&red, &reds);
    assert!(one >= least(more) && one < together, "{BYTES} bytes over one connection in {one:?}");
    // A lower one, too, and none.
    assert_eq!(call(control.http, "PUT /v1/tenants", &rules(RATE_BPS)).0, 200);
    eventually("the old rate is known", || rate(&client) == Some(RATE_BPS));
    let slower = send(&red, &reds);
    assert!(slower >= least(RATE_BPS), "{BYTES} bytes in {slower:?}");
    let none = rules(RATE_BPS).replace(&format!(",\"quota\":{{\"rate_bps\":{RATE_BPS}}}"), "");
    assert_eq!(call(control.http, "PUT /v1/tenants", &none).0, 200);
    eventually("there is no rate", || rate(&client).is_none());
    let unbounded = send(&red, &reds);
    assert!(unbounded < slower, "{BYTES} bytes in {unbounded:?} without a rate");
    drop((reds, blues, servers));
}
