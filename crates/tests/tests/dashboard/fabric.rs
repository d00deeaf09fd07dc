//! A fabric that is played: nodes with two ports of 100 Gb/s behind leaf switches, connections between them with loads that rise and fall, told to a real replica through
//! its store and its table of loads. Orders are carried out as agents do: the record changes, and the order is answered.

use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::directory::feed::Told;
use scalefabric_control::directory::{NeighbourRecord, NodeRecord, PortRecord};
use scalefabric_control::keys;
use scalefabric_control::message::Answer;
use scalefabric_control::order::OrderRecord;
use scalefabric_control::proto::control as proto;
use scalefabric_control::rebalance::node_of;
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::{Change, Embedded, Event, MAX_TRANSACTION, Store};
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, ConnectionState, Holdings, Order, OrderResult};
use scalefabric_verbs::Gid;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::broadcast::error::RecvError;

/// Speed of each port, Mb/s.
const RATE_MBPS: u64 = 100_000;
/// Nodes of a leaf.
const OF_A_LEAF: usize = 32;

/// What is played.
pub struct Plan {
    pub nodes: usize,
    /// Connections that each node makes.
    pub each: usize,
    /// With a token, calls need it.
    pub access: scalefabric_control::service::access::Access,
}

/// The fabric, until it is dropped.
pub struct Fabric {
    runtime: Option<Runtime>,
    replica: Option<Replica>,
    world: Arc<World>,
    folder: PathBuf,
    pub http: SocketAddr,
}

struct World {
    nodes: Vec<Mutex<NodeRecord>>,
    links: Mutex<Vec<Link>>,
}

/// A connection with both its ends.
#[derive(Clone)]
struct Link {
    from: usize,
    to: usize,
    serial: u64,
    /// Ports in use, from 0.
    port: usize,
    /// Gb/s at its mean, and where in its wave it begins.
    gbps: f64,
    phase: f64,
    generation: u64,
}

fn name(node: usize) -> String {
    format!("node{}", node + 1)
}

fn address(node: usize, port: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1 + port as u8, (node / 250) as u8, (node % 250) as u8 + 1)
}

fn gid(node: usize, port: usize) -> Gid {
    Gid(address(node, port).to_ipv6_mapped().octets())
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("JSON")
}

fn put<T: Serialize>(key: String, value: &T) -> Change {
    Change::Put { key, value: json(value), lease: None }
}

fn record(node: usize) -> NodeRecord {
    let port = |port| PortRecord {
        device: "sf0".into(),
        port_num: port as u8 + 1,
        gids: vec![address(node, port).to_ipv6_mapped()],
        rate_mbps: RATE_MBPS,
        numa_node: Some(port as u16),
        active: true,
    };
    // Two rails: port 1 on the odd leaf of the row, port 2 on the even one.
    let neighbour = |port: usize| NeighbourRecord {
        port: port as u32,
        chassis: format!("leaf{}", node / OF_A_LEAF * 2 + port + 1),
        port_id: format!("Ethernet{}", node % OF_A_LEAF + 1),
    };
    NodeRecord {
        node: name(node),
        version: env!("CARGO_PKG_VERSION").into(),
        incarnation: 1,
        replica: "control1".into(),
        ports: vec![port(0), port(1)],
        neighbours: vec![neighbour(0), neighbour(1)],
    }
}

impl World {
    /// What tenants have on a node: a QP for each end, and a region of 2 MiB for each QP.
    fn holdings(&self, node: usize) -> Change {
        let mut held: BTreeMap<String, Holdings> = BTreeMap::new();
        for link in self.links.lock().expect("lock").iter().filter(|link| link.from == node || link.to == node) {
            let of_tenant = held.entry(link.record(true).tenant).or_default();
            let more = Holdings { qps: 1, mrs: 1, memory_bytes: 2 << 20 };
            *of_tenant = Holdings {
                qps: of_tenant.qps + more.qps,
                mrs: of_tenant.mrs + more.mrs,
                memory_bytes: of_tenant.memory_bytes + more.memory_bytes,
            };
        }
        put(keys::holdings(&name(node)), &held)
    }
}

impl Link {
    fn id(&self) -> ConnectionId {
        ConnectionId { origin: format!("{}/{}", name(self.from), 4_000 + self.from), serial: self.serial }
    }

    /// The record of an end.
    fn record(&self, made: bool) -> ConnectionRecord {
        let (own, peer) = if made { (self.from, self.to) } else { (self.to, self.from) };
        let path = |port: usize| Path {
            device: "sf0".into(),
            port_num: port as u8 + 1,
            sgid: gid(own, port),
            dgid: gid(peer, port),
            flow_label: 0xc000 + (self.serial as u32 & 0xff),
            dscp: 26,
        };
        let qp_num = |node: usize| {
            (0x01_0000 + (node as u32) * 0x100 + self.serial as u32 * 2 + self.generation as u32) & 0xff_ffff
        };
        ConnectionRecord {
            id: self.id(),
            tenant: ["training", "storage", "serving"][self.from % 3].into(),
            service: ["allreduce", "checkpoint", "kv-cache"][self.from % 3].into(),
            qp_num: qp_num(own),
            peer_qp_num: qp_num(peer),
            path: path(self.port),
            alternatives: vec![path(0), path(1)],
            state: ConnectionState::Up,
            generation: self.generation,
        }
    }

    fn puts(&self) -> [Change; 2] {
        [(self.from, true), (self.to, false)].map(|(node, made)| {
            put(keys::connection(&name(node), &(4_000 + node).to_string(), &self.id()), &self.record(made))
        })
    }

    fn bytes(&self, seconds: f64) -> u64 {
        let wave = 1.0 + 0.25 * (seconds / 19.0 + self.phase).sin();
        (self.gbps * wave * 1e9 / 8.0 / 10.0) as u64
    }
}

impl Fabric {
    /// Plays.
    pub fn new(plan: Plan) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sfab-dashboard-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
        let clock: Arc<dyn Clock> = Arc::new(Machine::default());
        let store: Arc<dyn Store> =
            Arc::new(Embedded::open(&folder.join("store"), Arc::clone(&clock)).expect("a store"));
        let nodes = (0..plan.nodes).map(|node| Mutex::new(record(node))).collect();
        let mut links = Vec::new();
        for from in 0..plan.nodes {
            for n in 0..plan.each {
                let to = (from + 1 + (n * 7 + from) % (plan.nodes - 1)) % plan.nodes;
                let seed = (from * 31 + n * 17) % 97;
                links.push(Link {
                    from,
                    to,
                    serial: n as u64 + 1,
                    // Some nodes begin with nearly all on their first port.
                    port: if from % 9 == 2 { usize::from(n % 8 == 7) } else { n % 2 },
                    gbps: (if plan.nodes > 16 { 24.0 } else { 40.0 } + seed as f64) / plan.each as f64,
                    phase: seed as f64,
                    generation: 1,
                });
            }
        }
        let world = Arc::new(World { nodes, links: Mutex::new(links) });
        let settings = Settings { access: plan.access, ..Settings::local("control1") };
        let replica = runtime.block_on(async {
            let replica = Replica::start(settings, store, clock).await.expect("a replica");
            replica.ready().await.expect("it serves");
            let store = Arc::clone(&replica.shared.store);
            let nodes = world.nodes.iter().map(|node| node.lock().expect("lock").clone());
            let mut changes: Vec<Change> = nodes.map(|node| put(keys::node(&node.node), &node)).collect();
            changes.extend(world.links.lock().expect("lock").iter().flat_map(Link::puts));
            changes.extend((0..plan.nodes).map(|node| world.holdings(node)));
            for chunk in changes.chunks(MAX_TRANSACTION) {
                store.transact(Vec::new(), chunk.to_vec()).await.expect("stored");
            }
            replica
        });
        runtime.spawn(obey(Arc::clone(&world), Arc::clone(&replica.shared)));
        let http = replica.http.expect("it has HTTP");
        runtime.spawn(carry(Arc::clone(&world), Arc::clone(&replica.shared)));
        Self { runtime: Some(runtime), replica: Some(replica), world, folder, http }
    }

    /// The replica.
    pub fn replica(&self) -> &Replica {
        self.replica.as_ref().expect("it runs")
    }

    /// Address of the dashboard.
    pub fn address(&self) -> String {
        format!("http://{}/dashboard/", self.http)
    }

    /// Waits for something of the replica.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("it runs").block_on(future)
    }

    /// A port goes down or comes up again.
    pub fn set_port(&self, node: usize, port: usize, active: bool) {
        let record = {
            let mut node = self.world.nodes[node].lock().expect("lock");
            node.ports[port].active = active;
            node.clone()
        };
        let store = &self.replica().shared.store;
        self.block_on(store.put(&keys::node(&record.node), json(&record), None)).expect("stored");
    }

    /// The tenants' rules.
    pub fn set_tenants(&self, toml: &str) {
        let rules = scalefabric_control::tenant::Tenants::from_toml(toml).expect("rules");
        let key = format!("{}{}", keys::TENANTS, keys::TENANT_RULES);
        self.block_on(self.replica().shared.store.put(&key, json(&rules), None)).expect("stored");
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let (Some(runtime), Some(replica)) = (self.runtime.take(), self.replica.take()) {
            runtime.block_on(replica.stop());
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Tells loads, five times a second.
async fn carry(world: Arc<World>, shared: Arc<scalefabric_control::service::Shared>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    loop {
        ticks.tick().await;
        let now = shared.clock.now();
        let links = world.links.lock().expect("lock").clone();
        let seconds = now.as_secs_f64();
        let mut tx = vec![[0_u64; 2]; world.nodes.len()];
        let mut rx = vec![[0_u64; 2]; world.nodes.len()];
        let mut of_node: HashMap<usize, Vec<(usize, u64)>> = HashMap::new();
        for (at, link) in links.iter().enumerate() {
            let bytes = link.bytes(seconds);
            tx[link.from][link.port] += bytes;
            rx[link.to][link.port] += bytes;
            of_node.entry(link.from).or_default().push((at, bytes));
        }
        for (node, record) in world.nodes.iter().enumerate() {
            let record = record.lock().expect("lock").clone();
            let alive = |bytes: &[u64; 2]| [0, 1].map(|port| if record.ports[port].active { bytes[port] } else { 0 });
            let connections = of_node.get(&node).into_iter().flatten().take(64).map(|(at, bytes)| {
                let packets = bytes / 4_096;
                proto::ConnectionLoad {
                    handle: *at as u32,
                    tx_bytes: *bytes,
                    rx_bytes: bytes / 50,
                    packets,
                    retransmitted: 0,
                    passive: false,
                }
            });
            let load = proto::Load {
                interval_us: 100_000,
                tx_bytes: alive(&tx[node]).to_vec(),
                rx_bytes: alive(&rx[node]).to_vec(),
                connections: connections.collect(),
                ..proto::Load::default()
            };
            let id = |handle: u32| links.get(handle as usize).map(Link::id);
            assert!(shared.loads.handle_load(&record.node, &record.ports, &load, id, now), "a load that fits");
        }
    }
}

/// Carries orders out.
async fn obey(world: Arc<World>, shared: Arc<scalefabric_control::service::Shared>) {
    let mut news = shared.feed.listen();
    loop {
        let told = match news.recv().await {
            Ok(Told::Events(events)) => events,
            Ok(Told::Listing(..)) | Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        for event in told.iter() {
            let Event::Put(entry) = event else { continue };
            if !entry.key.starts_with(keys::ORDERS) {
                continue;
            }
            let Ok(mut order) = serde_json::from_slice::<OrderRecord>(&entry.value) else { continue };
            let Order::Move { connection, path, .. } = order.order.clone() else { continue };
            if order.answer.is_some() {
                continue;
            }
            let mut changes = {
                let mut links = world.links.lock().expect("lock");
                let is_it =
                    |link: &&mut Link| name(link.from) == node_of(&connection) && link.serial == connection.serial;
                let Some(link) = links.iter_mut().find(is_it) else { continue };
                link.port = usize::from(path.port_num) - 1;
                link.generation += 1;
                let outcome = OrderResult::Done { generation: link.generation, pause_us: 120 + link.serial * 7 };
                order.answer = Some(Answer::Answered { outcome });
                link.puts().to_vec()
            };
            changes.push(put(entry.key.clone(), &order));
            shared.store.transact(Vec::new(), changes).await.expect("stored");
        }
    }
}
