//! A replica of the control plane: gRPC for agents, HTTP for people and scripts, the directory in memory, the store behind. All that must outlive
//! the replica is in the store, so with etcd any number of replicas serve side by side, and any one may be killed.

pub mod access;
mod dispatch;
mod grpc;
mod holdings;
pub mod http;
mod listen;
mod session;

use crate::clock::Clock;
use crate::directory::Index;
use crate::directory::feed::{Feed, Health};
use crate::leader::Candidate;
use crate::load::LoadTable;
use crate::message;
use crate::order::{Orders, json};
use crate::proto::control::{self as proto, to_agent};
use crate::rebalance::driver::{self, Rebalancing};
use crate::store::{LeaseId, Revision, Store, StoreError};
use crate::{keys, load};
use access::Access;
use holdings::AllHoldings;
use scalefabric_fabric::directory::{FencingToken, Holdings};
use serde::{Deserialize, Serialize};
use session::Note;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

/// The duty whose token orders carry.
const REBALANCE: &str = "rebalance";

/// How a replica serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name, different from that of every other replica: 1 to 63 of a-z, 0-9, `.`, `-`.
    pub name: String,
    /// Where agents find it; port 0: any. Plain text only on loopback.
    pub grpc: SocketAddr,
    /// Where people and scripts find it; port 0: any. Plain text only on loopback.
    pub http: Option<SocketAddr>,
    /// What agents are told as its address, if it is not what it listens on.
    pub advertise: Option<String>,
    /// Certificates and tokens.
    pub access: Access,
    /// How long what an agent told stays when nothing is heard of it. Default 15 s, at least 3 s. Short: a busy node seems gone; long: one that is
    /// gone seems there.
    pub lease_ttl: Duration,
    /// How often agents tell loads. Default 100 ms, at least 10 ms.
    pub load_interval: Duration,
    /// A topology file, TOML: it takes the place of the one in the store. `None`: that one stays.
    pub topology: Option<String>,
}

impl Settings {
    /// On loopback, with ports that the system chooses.
    pub fn local(name: &str) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            name: name.into(),
            grpc: any,
            http: Some(any),
            advertise: None,
            access: Access::default(),
            lease_ttl: Duration::from_secs(15),
            load_interval: Duration::from_millis(100),
            topology: None,
        }
    }

    /// Refuses what cannot be served, before anything is opened.
    pub fn check(&self) -> Result<(), StoreError> {
        message::node_name(&self.name).map_err(|error| StoreError::Invalid(format!("the replica's name: {error}")))?;
        for address in [Some(self.grpc), self.http].into_iter().flatten() {
            if self.access.tls.is_none() && !address.ip().is_loopback() {
                return Err(StoreError::Invalid(format!(
                    "{address} is not a loopback address, and no certificate is given: give `tls` with certificate, key and client_ca, or listen on 127.0.0.1"
                )));
            }
        }
        if self.lease_ttl < Duration::from_secs(3) || self.lease_ttl.subsec_nanos() != 0 {
            return Err(StoreError::Invalid(format!("lease_ttl is {:?}; whole seconds, at least 3", self.lease_ttl)));
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(60)).contains(&self.load_interval) {
            return Err(StoreError::Invalid(format!("load_interval is {:?}; 10 ms to 60 s", self.load_interval)));
        }
        if let Some(text) = &self.topology {
            crate::topology::TopologyFile::parse(text).map_err(StoreError::Invalid)?;
        }
        self.access.check()
    }
}

/// A replica as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReplicaRecord {
    /// Name.
    pub name: String,
    /// Address for agents, such as `https://10.0.0.1:7480`.
    pub agents: String,
    /// Address for people and scripts, if it has one.
    pub http: Option<String>,
    /// Version of the software.
    pub version: String,
}

/// What all parts of a replica share.
#[derive(Debug)]
pub struct Shared {
    /// The replica's name.
    pub name: String,
    /// The store.
    pub store: Arc<dyn Store>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The directory.
    pub index: Arc<Index>,
    /// News of the store.
    pub feed: Arc<Feed>,
    /// Loads.
    pub loads: LoadTable,
    /// Gives orders.
    pub orders: Orders,
    /// Stands for the duty to rebalance; its token is that of all orders.
    pub rebalance: Candidate,
    /// What is decided by whoever has that duty.
    pub rebalancing: Rebalancing,
    lease_ttl: Duration,
    load_interval: Duration,
    sessions: Mutex<HashMap<String, Registered>>,
    replicas: Mutex<BTreeMap<String, ReplicaRecord>>,
    tenants: Mutex<Tenants>,
    holdings: Mutex<AllHoldings>,
    holdings_changed: Notify,
}

/// The tenants' policy as agents get it: the values of `tenants/…` by name, whole.
#[derive(Debug, Default)]
struct Tenants {
    revision: Revision,
    values: BTreeMap<String, serde_json::Value>,
    /// Whether the store has been read: until then nobody is told, for no policy lets everybody in.
    known: bool,
}

#[derive(Debug)]
struct Registered {
    revision: Revision,
    notes: mpsc::Sender<Note>,
    wants: BTreeSet<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Addresses of all replicas, for agents.
    pub fn replicas(&self) -> Vec<String> {
        locked(&self.replicas).values().map(|replica| replica.agents.clone()).collect()
    }

    /// All replicas.
    pub fn replica_records(&self) -> Vec<ReplicaRecord> {
        locked(&self.replicas).values().cloned().collect()
    }

    /// The token of orders: that of whoever has the duty to rebalance now.
    pub async fn token(&self) -> Result<Option<FencingToken>, StoreError> {
        crate::leader::token(self.store.as_ref(), REBALANCE).await
    }

    /// What tenants have on all nodes together.
    pub fn holdings(&self) -> BTreeMap<String, Holdings> {
        locked(&self.holdings).totals().clone()
    }

    /// Nodes whose agents have joined this replica.
    pub fn joined(&self) -> Vec<String> {
        let mut nodes: Vec<String> = locked(&self.sessions).keys().cloned().collect();
        nodes.sort_unstable();
        nodes
    }

    /// The policy for agents; `None` while the store has not been read.
    fn policy(&self) -> Option<to_agent::Message> {
        let tenants = locked(&self.tenants);
        if !tenants.known {
            return None;
        }
        let json = serde_json::to_vec(&tenants.values).unwrap_or_default();
        Some(to_agent::Message::Policy(proto::PolicyUpdate { revision: tenants.revision.0, json }))
    }

    fn service_update(&self, service: &str) -> to_agent::Message {
        let addresses = self.index.service(service).iter().map(|address| message::service_message(address)).collect();
        to_agent::Message::Services(proto::ServiceUpdate { service: service.to_owned(), addresses })
    }

    fn set_wants(&self, node: &str, revision: Revision, wants: &BTreeSet<String>) {
        if let Some(registered) = locked(&self.sessions).get_mut(node).filter(|one| one.revision <= revision) {
            registered.wants = wants.clone();
        }
    }

    /// The agent of a node is told. Who does not take its notes is cut off by its session's end.
    fn note(&self, node: &str, note: Note) {
        let mut sessions = locked(&self.sessions);
        if let Some(registered) = sessions.get(node)
            && registered.notes.try_send(note).is_err()
        {
            sessions.remove(node);
        }
    }
}

/// A replica that runs. Dropping it ends it at once.
#[derive(Debug)]
pub struct Replica {
    /// What its parts share.
    pub shared: Arc<Shared>,
    /// Where agents find it.
    pub grpc: SocketAddr,
    /// Where people and scripts find it.
    pub http: Option<SocketAddr>,
    ending: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Replica {
    /// Listens and begins to serve. [`StoreError::Invalid`] for addresses that cannot be taken, certificates that cannot be read, and plain text
    /// off loopback.
    pub async fn start(settings: Settings, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        settings.check()?;
        let grpc = listen::bind(settings.grpc).await?;
        let http = match settings.http {
            Some(address) => Some(listen::bind(address).await?),
            None => None,
        };
        let address = |listener: &tokio::net::TcpListener| {
            listener.local_addr().map_err(|error| StoreError::Invalid(error.to_string()))
        };
        let grpc_address = address(&grpc)?;
        let http_address = http.as_ref().map(address).transpose()?;
        let scheme = if settings.access.tls.is_some() { "https" } else { "http" };
        let own = ReplicaRecord {
            name: settings.name.clone(),
            agents: settings.advertise.clone().unwrap_or_else(|| format!("{scheme}://{grpc_address}")),
            http: http_address.map(|address| format!("{scheme}://{address}")),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let feed = Arc::new(Feed::default());
        let start = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id()) & 0xffff_ffff;
        let shared = Arc::new(Shared {
            orders: Orders::new(Arc::clone(&store), Arc::clone(&feed), Arc::clone(&clock), &settings.name, start),
            rebalance: Candidate::new(Arc::clone(&store), Arc::clone(&clock), REBALANCE, &settings.name),
            rebalancing: Rebalancing::default(),
            name: settings.name.clone(),
            store,
            clock,
            index: Arc::default(),
            feed,
            loads: LoadTable::default(),
            lease_ttl: settings.lease_ttl,
            load_interval: settings.load_interval,
            sessions: Mutex::default(),
            replicas: Mutex::default(),
            tenants: Mutex::default(),
            holdings: Mutex::default(),
            holdings_changed: Notify::new(),
        });
        let (ending, ended) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(dispatch::run(Arc::clone(&shared)));
        let feeding = Arc::clone(&shared);
        tasks.spawn(async move { feeding.feed.run(feeding.store.as_ref(), &feeding.index).await });
        let leading = Arc::clone(&shared);
        tasks.spawn(async move { leading.rebalance.run().await });
        tasks.spawn(driver::run(Arc::clone(&shared)));
        tasks.spawn(driver::tell_hot(Arc::clone(&shared)));
        tasks.spawn(crate::rotation::run(Arc::clone(&shared)));
        tasks.spawn(holdings::run(Arc::clone(&shared)));
        tasks.spawn(publish(Arc::clone(&shared), own));
        tasks.spawn(keep_house(Arc::clone(&shared)));
        if let Some(text) = settings.topology.clone() {
            tasks.spawn(tell_topology(Arc::clone(&shared), text));
        }
        tasks.spawn(grpc::serve(Arc::clone(&shared), settings.access.clone(), grpc, ended.clone())?);
        if let Some(listener) = http {
            tasks.spawn(http::serve(Arc::clone(&shared), settings.access.clone(), listener, ended)?);
        }
        Ok(Self { shared, grpc: grpc_address, http: http_address, ending, tasks })
    }

    /// Waits until what is in memory is what the store has; the reason if the store is broken.
    pub async fn ready(&self) -> Result<(), StoreError> {
        let mut health = self.shared.feed.health();
        let settled = health.wait_for(|health| matches!(health, Health::InSync | Health::Broken(_))).await;
        match settled.as_deref() {
            Ok(Health::Broken(why)) => Err(StoreError::Broken(why.clone())),
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Broken("the replica has ended".into())),
        }
    }

    /// Lets calls that run end, at most for two seconds, and ends.
    pub async fn stop(mut self) {
        self.ending.send_replace(true);
        locked(&self.shared.sessions).clear();
        for _ in 0..40 {
            // Calls that run hold a share, and so does each task of ours.
            if Arc::strong_count(&self.shared) <= 1 + self.tasks.len() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.ending.send_replace(true);
        locked(&self.shared.sessions).clear();
    }
}

/// Keeps the replica's own record and its loads in the store.
async fn publish(shared: Arc<Shared>, own: ReplicaRecord) {
    const TTL: Duration = Duration::from_secs(5);
    const INTERVAL: Duration = Duration::from_millis(500);
    let record = format!("{}{}", keys::REPLICAS, keys::part(&own.name));
    let loads = format!("{}{}", keys::LOADS, keys::part(&own.name));
    let mut lease: Option<LeaseId> = None;
    let mut told = load::Loads::default();
    loop {
        let outcome = async {
            let current = match lease {
                Some(lease) => {
                    shared.store.keep_alive(lease).await?;
                    lease
                }
                None => {
                    let fresh = shared.store.grant(TTL).await?;
                    shared.store.put(&record, json(&own)?, Some(fresh)).await?;
                    fresh
                }
            };
            lease = Some(current);
            // Alone, there is nobody to tell.
            let now = shared.loads.snapshot(true, shared.clock.now());
            if locked(&shared.replicas).len() > 1 && now != told {
                shared.store.put(&loads, json(&now)?, Some(current)).await?;
                told = now;
            }
            Ok::<(), StoreError>(())
        };
        if let Err(StoreError::LeaseEnded(_)) = outcome.await {
            lease = None;
            continue;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Puts the operator's topology file into the store, for all replicas, as soon as the store can be reached.
async fn tell_topology(shared: Arc<Shared>, text: String) {
    let Ok(value) = json(&text) else { return };
    while shared.store.put(keys::TOPOLOGY_FILE, value.clone(), None).await.is_err() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Lets the store forget what nobody needs: who has the duty to rebalance does it, every five minutes, up to where the store was five minutes before.
async fn keep_house(shared: Arc<Shared>) {
    const INTERVAL: Duration = Duration::from_secs(300);
    let mut before: Option<Revision> = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        if shared.rebalance.held().borrow().is_none() {
            continue;
        }
        if let Some(before) = before {
            let _ = shared.orders.sweep(before).await;
            let _ = shared.store.compact(before).await;
        }
        before = Some(shared.index.revision());
    }
}
