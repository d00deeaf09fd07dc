//! A small world: a replica over an embedded store, agents with ports that count by themselves, and processes.

use scalefabric_control::agent::ports::{PortCounters, PortSource};
use scalefabric_control::agent::{self, Agent};
use scalefabric_control::client::{self, AgentDirectory};
use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::directory::PortRecord;
use scalefabric_control::local::Carried;
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::{Embedded, Store, StoreError};
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, ConnectionState, ServiceAddress};
use scalefabric_verbs::Gid;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A folder of the test's own.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sfab-plane-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node with its agent.
pub struct Node {
    pub agent: Agent,
    pub socket: PathBuf,
}

pub struct World {
    replica: Option<Replica>,
    pub folder: Folder,
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(Machine::default())
}

impl World {
    pub async fn new() -> Self {
        let folder = Folder::new();
        let mut world = Self { replica: None, folder };
        world.start(Settings::local("control1")).await;
        world
    }

    /// A replica with these settings over the world's store.
    pub async fn start(&mut self, settings: Settings) {
        let clock = clock();
        // Calls of the replica before may still hold it for a moment.
        let mut opened = None;
        eventually("the store is free", || {
            opened = match Embedded::open(&self.folder.file("store"), Arc::clone(&clock)) {
                Err(StoreError::Invalid(why)) if why.contains("another process") => None,
                other => Some(other.expect("a store")),
            };
            opened.is_some()
        })
        .await;
        let store: Arc<dyn Store> = Arc::new(opened.expect("just opened"));
        let replica = Replica::start(settings, store, clock).await.expect("a replica");
        replica.ready().await.expect("it serves");
        self.replica = Some(replica);
    }

    pub async fn stop(&mut self) {
        if let Some(replica) = self.replica.take() {
            replica.stop().await;
        }
    }

    pub fn replica(&self) -> &Replica {
        self.replica.as_ref().expect("it runs")
    }

    pub fn address(&self) -> Vec<String> {
        vec![format!("http://{}", self.replica().grpc)]
    }

    /// An agent that has joined.
    pub async fn agent(&self, node: &str) -> Node {
        self.agent_in(node, &self.folder, self.address()).await
    }

    pub async fn agent_in(&self, node: &str, folder: &Folder, control: Vec<String>) -> Node {
        let node = start_agent(node, folder, control);
        eventually("the agent has joined", || node.agent.state().replica.is_some()).await;
        node
    }

    pub fn process(&self, node: &Node) -> AgentDirectory {
        process_at(&node.socket, Some(self.folder.file("process.memory")))
    }
}

/// How an agent of a node works.
pub fn agent_settings(node: &str, folder: &Folder, control: Vec<String>) -> agent::Settings {
    agent::Settings {
        node: node.into(),
        control,
        tls: None,
        socket: folder.file(&format!("{node}.sock")),
        any_user: false,
        memory: Some(folder.file(&format!("{node}.memory"))),
        neighbours: Vec::new(),
        lldpctl: None,
    }
}

pub fn start_agent(node: &str, folder: &Folder, control: Vec<String>) -> Node {
    start_agent_with(agent_settings(node, folder, control), Box::<Counting>::default())
}

/// An agent of its own kind.
pub fn start_agent_with(settings: agent::Settings, ports: Box<dyn PortSource>) -> Node {
    let socket = settings.socket.clone();
    let agent = Agent::start(settings, ports, clock()).expect("an agent");
    Node { agent, socket }
}

pub fn process_at(socket: &std::path::Path, memory: Option<PathBuf>) -> AgentDirectory {
    let settings = client::Settings { socket: socket.to_owned(), memory, ..client::Settings::default() };
    AgentDirectory::new(&settings).expect("a directory")
}

/// Two ports, the first of which sends.
#[derive(Default)]
pub struct Counting(u64);

impl PortSource for Counting {
    fn ports(&mut self) -> Vec<PortRecord> {
        let port = |port_num| PortRecord {
            device: "sf0".into(),
            port_num,
            gids: vec![std::net::Ipv4Addr::new(10, 0, 0, port_num).to_ipv6_mapped()],
            rate_mbps: 10_000,
            numa_node: None,
            active: true,
        };
        vec![port(1), port(2)]
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        self.0 += 1_000_000;
        vec![PortCounters { tx_bytes: self.0, ..PortCounters::default() }, PortCounters::default()]
    }
}

pub fn path(port_num: u8) -> Path {
    Path { device: "sf0".into(), port_num, sgid: Gid([port_num; 16]), dgid: Gid([9; 16]), flow_label: 1, dscp: 26 }
}

pub fn id(origin: &str, serial: u64) -> ConnectionId {
    ConnectionId { origin: origin.into(), serial }
}

pub fn record(origin: &str, serial: u64, qp_num: u32) -> ConnectionRecord {
    ConnectionRecord {
        id: id(origin, serial),
        tenant: "red".into(),
        service: "files".into(),
        qp_num,
        peer_qp_num: 9,
        path: path(1),
        alternatives: vec![path(2)],
        state: ConnectionState::Up,
        generation: 1,
    }
}

pub fn service(name: &str, exchange: &str) -> ServiceAddress {
    ServiceAddress { service: name.into(), node: String::new(), exchange: exchange.into(), paths: Vec::new() }
}

pub fn carried(origin: &str, serial: u64, bytes: u64) -> Carried {
    Carried { id: id(origin, serial), tx_bytes: bytes, rx_bytes: 0, packets: 1, retransmitted: 0 }
}

/// Waits until it is so. The bound is that of a machine that is very busy; nothing is measured by it.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came: {what}");
}
