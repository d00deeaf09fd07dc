//! Two nodes in this process, each with a device of two ports on the loopback, an agent and a fabric, and control in this process or in one of its own.

use scalefabric_control::agent::ports::{OpenDevices, PortCounters, PortSource};
use scalefabric_control::agent::{self, Agent};
use scalefabric_control::client::{self, AgentDirectory};
use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::directory::PortRecord;
use scalefabric_control::service::{Replica, Settings};
use scalefabric_control::store::{Embedded, Store};
use scalefabric_fabric::endpoint::{Config, Connection, Fabric, Listener, Operation, Piece};
use scalefabric_fabric::exchange::Tcp;
use scalefabric_fabric::{Outcome, RemoteRange};
use scalefabric_nic::options::{DeviceOptions, Options, PortOptions};
use scalefabric_nic::provider::SoftwareProvider;
use scalefabric_tests::Folder;
use scalefabric_tests::fabric::Region;
use scalefabric_verbs::{PKey, Provider};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The devices of the two nodes.
pub const DEVICES: [&str; 2] = ["near", "far"];
/// What the first node's agent says that a port can carry: little, so that little traffic makes it hot. The second node's can carry ten times as much.
pub const RATE_MBPS: u64 = 80;
/// After this, something has not happened and will not.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The NIC of this process: addresses of its own, so that tests of other processes do not meet it.
pub fn provider() -> Arc<SoftwareProvider> {
    static PROVIDER: OnceLock<Arc<SoftwareProvider>> = OnceLock::new();
    let make = || {
        let id = std::process::id();
        let address = |n: u8| {
            let host = [127, 60 + (id >> 13) as u8 % 30, (id >> 5) as u8, (id << 3) as u8 | n];
            IpAddr::from(Ipv4Addr::from(host))
        };
        let port = |n| PortOptions { interface: "lo".into(), addresses: vec![address(n)] };
        let device = |name: &str, first| DeviceOptions {
            name: name.into(),
            ports: vec![port(first), port(first + 1)],
            ..DeviceOptions::default()
        };
        let devices = vec![device(DEVICES[0], 1), device(DEVICES[1], 3)];
        Arc::new(SoftwareProvider::new(Options { devices, automatic: false, share: false, ..Options::default() }))
    };
    PROVIDER.get_or_init(make).clone()
}

/// The ports of one device, which the agent calls slow.
struct SlowPorts {
    device: &'static str,
    inner: OpenDevices,
}

impl PortSource for SlowPorts {
    fn ports(&mut self) -> Vec<PortRecord> {
        let ports = self.inner.ports().into_iter();
        let rate_mbps = if self.device == DEVICES[0] { RATE_MBPS } else { 10 * RATE_MBPS };
        ports.map(|port| PortRecord { rate_mbps, ..port }).collect()
    }

    fn counters(&mut self) -> Vec<PortCounters> {
        self.inner.counters()
    }

    fn set_pkeys(&mut self, pkeys: &[PKey]) -> Result<(), String> {
        provider().set_pkeys(self.device, pkeys).map(drop).map_err(|error| error.message)
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A replica in this process.
pub struct Control {
    pub replica: Replica,
    pub http: SocketAddr,
}

impl Control {
    pub fn start(runtime: &Runtime, folder: &Folder) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(Machine::default());
        let store = Embedded::open(&folder.join("store"), Arc::clone(&clock)).expect("a store");
        let store: Arc<dyn Store> = Arc::new(store);
        let replica = runtime.block_on(async {
            let replica = Replica::start(Settings::local("control1"), store, clock).await.expect("a replica");
            replica.ready().await.expect("it serves");
            replica
        });
        let http = replica.http.expect("it has HTTP");
        Self { replica, http }
    }

    pub fn address(&self) -> String {
        format!("http://{}", self.replica.grpc)
    }
}

/// A node: its agent, and what a process of it has.
pub struct Node {
    pub name: &'static str,
    pub agent: Agent,
    pub socket: PathBuf,
}

impl Node {
    /// The first or the second.
    pub fn start(runtime: &Runtime, folder: &Folder, number: usize, control: &str) -> Self {
        let (name, device) = (["node1", "node2"][number], DEVICES[number]);
        let socket = folder.join(format!("{name}.sock"));
        let settings = agent::Settings {
            node: name.into(),
            control: vec![control.into()],
            tls: None,
            socket: socket.clone(),
            any_user: false,
            memory: Some(folder.join(format!("{name}.memory"))),
            neighbours: Vec::new(),
            lldpctl: None,
        };
        let context = provider().open(device).expect("the device");
        let ports = SlowPorts { device, inner: OpenDevices::new(vec![(device.to_owned(), context)]) };
        let agent = runtime
            .block_on(async { Agent::start(settings, Box::new(ports), Arc::new(Machine::default())) })
            .expect("an agent");
        Self { name, agent, socket }
    }

    pub fn directory(&self, memory: &Path) -> Arc<AgentDirectory> {
        let settings = client::Settings {
            socket: self.socket.clone(),
            memory: Some(memory.to_owned()),
            ..client::Settings::default()
        };
        Arc::new(AgentDirectory::new(&settings).expect("a directory"))
    }

    /// A fabric of a process of this node.
    pub fn fabric(&self, directory: Arc<AgentDirectory>, config: Config) -> Fabric {
        let device = DEVICES[usize::from(self.name == "node2")];
        Fabric::builder(provider())
            .device(device)
            .node(self.name)
            .directory(directory)
            .exchange(Arc::new(Tcp::new()))
            .listen_at("tcp://127.0.0.1:0")
            .config(config)
            .build()
            .expect("a fabric")
    }
}

/// One call over HTTP. Status, and the body as JSON.
pub fn call(address: SocketAddr, request: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// Bytes of one operation of [`Traffic`].
pub const PIECE: usize = 16 * 1024;

/// Connections that are written to at a steady rate, each by a thread, and what became of the operations.
pub struct Traffic {
    end: Arc<AtomicBool>,
    pub done: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<(Connection, Vec<String>)>>,
}

impl Traffic {
    /// Writes to what the peer of each connection offers.
    pub fn start(fabric: &Fabric, connections: Vec<(Connection, RemoteRange)>, bytes_per_second: u64) -> Self {
        let (end, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = |(connection, remote): (Connection, RemoteRange)| {
            let (end, done) = (Arc::clone(&end), Arc::clone(&done));
            let region = Region::new(fabric, PIECE);
            std::thread::spawn(move || {
                let (begun, mut sent, mut failures) = (Instant::now(), 0u64, Vec::new());
                while !end.load(Ordering::Relaxed) {
                    let due = (begun.elapsed().as_secs_f64() * bytes_per_second as f64) as u64;
                    // What could not be sent in time on a busy machine is not caught up with: that would be a burst.
                    sent = sent.max(due.saturating_sub(4 * PIECE as u64));
                    if sent > due {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    let piece: Piece = region.piece(0, PIECE);
                    match connection.execute(Operation::write(&piece, remote).idempotent()) {
                        Ok(Outcome::Done(_)) => _ = done.fetch_add(1, Ordering::Relaxed),
                        other => failures.push(format!("{other:?}")),
                    }
                    sent += PIECE as u64;
                }
                (connection, failures)
            })
        };
        let threads = connections.into_iter().map(start).collect();
        Self { end, done, threads }
    }

    /// Ends it; the connections, and each operation that failed.
    pub fn stop(self) -> (Vec<Connection>, Vec<String>) {
        self.end.store(true, Ordering::Relaxed);
        let ended = self.threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let (connections, failures): (Vec<Connection>, Vec<Vec<String>>) = ended.unzip();
        (connections, failures.concat())
    }
}

/// Takes connections in, for as long as it lives, and offers memory to each under number 1.
pub struct Host {
    _taken: std::thread::JoinHandle<()>,
    end: Arc<AtomicBool>,
}

impl Host {
    pub fn new(fabric: &Fabric, listener: Listener) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let (ending, region) = (Arc::clone(&end), Region::new(fabric, PIECE));
        let taken = std::thread::spawn(move || {
            let mut connections = Vec::new();
            while !ending.load(Ordering::Relaxed) {
                if let Ok(Some(connection)) = listener.accept(Some(Duration::from_millis(50))) {
                    connection.offer(1, region.range()).expect("memory is offered");
                    connections.push(connection);
                }
            }
        });
        Self { _taken: taken, end }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// What the peer offers.
pub fn offered(connection: &Connection) -> RemoteRange {
    connection.offered(1, Some(PATIENCE)).expect("it is open").expect("memory is offered")
}
