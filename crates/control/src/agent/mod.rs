//! The agent of a node: it gathers what the node's processes tell of their connections, joins control, measures the ports, and carries orders to
//! the processes. It decides nothing. Processes work on without it, and it works on without control: what it knows it remembers in a file.

mod carrying;
mod door;
pub(crate) mod hub;
mod lldp;
pub mod ports;
mod uplink;

use crate::clock::Clock;
use crate::memory::Memory;
use crate::message;
use crate::tenant::Tenants;
use hub::Hub;
use ports::{PortSource, SharedSource};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often the memory is written, at most.
const REMEMBER: Duration = Duration::from_secs(1);

/// Between two messages about what tenants have elsewhere. The first of a burst is not held back.
const SPREAD: Duration = Duration::from_millis(50);
/// How often the P_Key tables of the ports are looked at.
const PARTITION: Duration = Duration::from_millis(500);

/// How an agent works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node: 1 to 63 of a-z, 0-9, `.`, `-`; with TLS the certificate's.
    pub node: String,
    /// Addresses of replicas, such as `https://10.0.0.1:7480`. The agent joins one and learns of the others.
    pub control: Vec<String>,
    /// Certificates; needed for `https`.
    pub tls: Option<Tls>,
    /// The socket for the processes of the node.
    pub socket: PathBuf,
    /// Whether processes of other users may use it. Default no: only the agent's own user and root.
    pub any_user: bool,
    /// Where it remembers; `None`: not.
    pub memory: Option<PathBuf>,
    /// What is at the other ends of links, where LLDP does not say.
    pub neighbours: Vec<Neighbour>,
    /// The program that prints what LLDP has learnt, as `lldpctl` does; `None`: nobody is asked.
    pub lldpctl: Option<PathBuf>,
}

/// The other end of a port's link, as the configuration tells it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbour {
    /// Device.
    pub device: String,
    /// Port, from 1.
    pub port_num: u8,
    /// The switch's name.
    pub chassis: String,
    /// The switch's port.
    pub port_id: String,
}

/// Certificates of an agent, PEM.
#[derive(Clone)]
pub struct Tls {
    /// Who signs the replicas' certificates.
    pub ca: String,
    /// Own certificate, for the node's name.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// What cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable(pub String);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// An agent that runs. Dropping it ends it; the processes of the node work on.
#[derive(Debug)]
pub struct Agent {
    hub: Arc<Hub>,
    socket: PathBuf,
    _tasks: JoinSet<()>,
}

/// How an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The replica that it has joined.
    pub replica: Option<String>,
    /// Why it has not.
    pub trouble: Option<String>,
    /// Processes that have it open.
    pub processes: usize,
    /// Connections that they told of.
    pub connections: usize,
}

impl Agent {
    /// Opens the socket and begins. Control that is not there is waited for.
    pub fn start(settings: Settings, ports: Box<dyn PortSource>, clock: Arc<dyn Clock>) -> Result<Self, Unusable> {
        message::node_name(&settings.node).map_err(|error| Unusable(error.to_string()))?;
        let memory = settings.memory.as_deref().map(Memory::load).unwrap_or_default();
        let hub = Arc::new(Hub::new(&settings.node, memory, Arc::clone(&clock)));
        let cables = lldp::Neighbours::default();
        let source = SharedSource::new(ports);
        let uplink = uplink::Uplink::new(&settings, Arc::clone(&hub), source.clone(), cables.clone(), clock)?;
        let listener = door::open(&settings.socket, settings.any_user)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(uplink.run());
        tasks.spawn(door::run(Arc::clone(&hub), listener, settings.any_user));
        tasks.spawn(spread_holdings(Arc::clone(&hub)));
        tasks.spawn(partition(Arc::clone(&hub), source, settings.node));
        if let Some(program) = settings.lldpctl {
            tasks.spawn(cables.run(program));
        }
        if let Some(path) = settings.memory {
            tasks.spawn(remember(Arc::clone(&hub), path));
        }
        Ok(Self { hub, socket: settings.socket, _tasks: tasks })
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.hub.state()
    }

    /// Waits for the next change of [`State::replica`] or [`State::trouble`].
    pub async fn changed(&self) {
        self.hub.changed().await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Tells processes what their tenants have elsewhere, at most twenty times a second.
async fn spread_holdings(hub: Arc<Hub>) {
    loop {
        hub.holdings.notified().await;
        hub.spread_holdings();
        tokio::time::sleep(SPREAD).await;
    }
}

/// Keeps the P_Keys of the tenants that may run here in the tables of the node's ports, whether control is there or not. Where nobody has given rules for tenants, the
/// tables are left alone.
async fn partition(hub: Arc<Hub>, source: SharedSource, node: String) {
    let mut known = None;
    let mut table = None;
    let mut trouble = String::new();
    loop {
        let policy = hub.policy();
        if policy != known {
            let rules = policy.as_ref().and_then(|policy| policy.get(crate::keys::TENANT_RULES));
            let rules = rules.and_then(|rules| serde_json::from_value::<Tenants>(rules.clone()).ok());
            // Rules that were taken away leave the default partition alone in the tables.
            table = rules.or_else(|| table.as_ref().map(|_| Tenants::default())).map(|rules| rules.pkey_table(&node));
            known = policy;
        }
        let outcome = table.as_ref().map_or(Ok(()), |table| source.lock().set_pkeys(table));
        let now = outcome.err().unwrap_or_default();
        if !now.is_empty() && now != trouble {
            eprintln!("sfab: the P_Keys of tenants cannot be set: {now}");
        }
        trouble = now;
        // A device that is opened later has tables of its own.
        let _ = tokio::time::timeout(PARTITION, hub.policy_changed.notified()).await;
    }
}

async fn remember(hub: Arc<Hub>, path: PathBuf) {
    loop {
        tokio::time::sleep(REMEMBER).await;
        if let Some(memory) = hub.take_memory() {
            let path = path.clone();
            let _ = tokio::task::spawn_blocking(move || memory.store(&path)).await;
        }
    }
}
