//! What the fabric library asks of a control plane, if there is one. Without one, or while it is away, everything that is connected works on and
//! new connections are made from what is remembered: no call here may be needed for data to flow.

use crate::error::FabricError;
use crate::path::Path;
use scalefabric_verbs::PKey;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::time::Duration;

/// A connection's name within the fabric: who made it, and a number that its maker never uses again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionId {
    /// Node and process that connected, such as `node3/4711`.
    pub origin: String,
    /// Counts up.
    pub serial: u64,
}

/// Who may order a change. Orders with a lower token than the highest seen are refused ([`crate::Fault::NoAuthority`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FencingToken(pub u64);

/// State of a connection as the directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// QPs are being made and exchanged.
    Connecting,
    /// Data flows.
    Up,
    /// On its way to another path; data flows.
    Moving,
    /// Its QP failed and is being made anew; operations wait.
    Rebuilding,
    /// Gone for good.
    Closed,
}

/// What a connection tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// Name.
    pub id: ConnectionId,
    /// Tenant, empty for none.
    pub tenant: String,
    /// Service it was made for, as the listener named it.
    pub service: String,
    /// Local QP number now.
    pub qp_num: u32,
    /// The peer's QP number now.
    pub peer_qp_num: u32,
    /// Path in use.
    pub path: Path,
    /// Other paths it could take.
    pub alternatives: Vec<Path>,
    /// State.
    pub state: ConnectionState,
    /// Counts every change of state, so that an old record never replaces a newer one: making a connection is two, each move or rebuild two more.
    pub generation: u64,
}

/// Names an order that a [`Directory`] gave, within that directory. It is never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId(pub u64);

/// What may be ordered of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "order")]
pub enum Order {
    /// Take this path.
    Move {
        /// Whose.
        connection: ConnectionId,
        /// Where to.
        path: Path,
        /// Authority.
        token: FencingToken,
        /// Why, for people.
        reason: String,
    },
    /// New keys for all memory that is lent to peers; old ones are refused after `overlap_ms`.
    RotateKeys {
        /// Authority.
        token: FencingToken,
        /// How long both are good at most, milliseconds.
        overlap_ms: u64,
        /// Only of processes that work for this tenant, or lend memory to it; `None`: of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
    },
    /// Close it: the tenant lost the right, or the operator wants it.
    Close {
        /// Whose.
        connection: ConnectionId,
        /// Authority.
        token: FencingToken,
        /// Why, for people.
        reason: String,
    },
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum OrderResult {
    /// Done. The new generation of the record, and how long data waited, microseconds.
    Done {
        /// Generation after it.
        generation: u64,
        /// Longest pause of data, µs.
        pause_us: u64,
    },
    /// Keys were made anew, and the old ones are withdrawn.
    Rotated {
        /// Registrations that were made anew; 0: nothing here takes part.
        keys: u64,
        /// Connections whose peers were told.
        peers: u64,
        /// Of those: peers that had not said by the end of the overlap that they use no old key any more.
        late: u64,
    },
    /// Not done, and everything is as before.
    RolledBack {
        /// Why.
        reason: String,
    },
    /// Refused: an order with a higher token was seen.
    Fenced {
        /// The token seen.
        highest: FencingToken,
    },
}

/// What a connection carried in an interval, as this end of it counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Which.
    pub id: ConnectionId,
    /// Bytes of operations that ended: sent, written, and operands of atomics.
    pub tx_bytes: u64,
    /// Bytes received and read. What the peer wrote into memory is not seen here; the peer counts it.
    pub rx_bytes: u64,
    /// Packets sent, if it is known; else 0.
    pub packets: u64,
    /// Packets of those that were sent again.
    pub retransmitted: u64,
}

/// What a tenant has in a process, or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holdings {
    /// Queue pairs.
    pub qps: u64,
    /// Memory regions.
    pub mrs: u64,
    /// Registered memory, bytes.
    pub memory_bytes: u64,
}

/// How much of something a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// At most, on all nodes together.
    pub most: u64,
    /// What it has outside this process, as far as is known.
    pub elsewhere: u64,
}

/// What a tenant may have; `None`: as much as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Allowance {
    /// Queue pairs.
    pub qps: Option<Limit>,
    /// Memory regions.
    pub mrs: Option<Limit>,
    /// Registered memory, bytes.
    pub memory_bytes: Option<Limit>,
    /// Rate at which each of its processes may send, bits per second.
    pub rate_bps: Option<u64>,
}

/// Where a service can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAddress {
    /// Name of the service.
    pub service: String,
    /// Node that offers it.
    pub node: String,
    /// How to reach its exchange, such as `tcp://10.0.0.1:7471`.
    pub exchange: String,
    /// Paths from here to there, best first; empty if the directory knows none.
    pub paths: Vec<Path>,
}

/// Who wants to see what a tenant may have when that could have changed; false: no more.
pub type Look = Box<dyn Fn(&Allowance) -> bool + Send + Sync>;

/// A control plane as an application's process sees it: usually the agent of its node. Calls return at once and never wait for the network;
/// what they tell is sent when it can be.
pub trait Directory: Send + Sync + Debug {
    /// Tells of a connection: new, changed or closed. The last record of a generation counts.
    fn publish(&self, record: ConnectionRecord);

    /// Tells that a service can be reached here.
    fn offer(&self, address: ServiceAddress);

    /// Tells that a service can no longer be reached at an exchange that was offered. Default: nothing is told, and the offer is good for as long as the process lives.
    fn withdraw(&self, service: &str, exchange: &str) {
        let _ = (service, exchange);
    }

    /// Where a service can be reached, from what is known now, remembered addresses included; empty if nothing is known.
    fn resolve(&self, service: &str) -> Vec<ServiceAddress>;

    /// Whether an answer to what [`Directory::resolve`] asked is still to come: who connects waits a moment for it when nothing is known. Default: no.
    fn may_learn(&self, service: &str) -> bool {
        let _ = service;
        false
    }

    /// May a connection of `tenant` be made to `service`, and in which partition? From the last known policy; an error says who forbids it. Both ends ask.
    fn may_connect(&self, tenant: &str, service: &str) -> Result<PKey, FabricError>;

    /// May a process of `tenant` offer `service`, and take connections to it in? From the last known policy; an error says whose it is. Default: yes. Asked for each connection, too, since rules
    /// come and change while services are offered.
    fn may_serve(&self, tenant: &str, service: &str) -> Result<(), FabricError> {
        let _ = (tenant, service);
        Ok(())
    }

    /// Takes the next order, if there is one, with the name by which it is answered: two orders may say the same.
    fn next_order(&self) -> Option<(OrderId, Order)>;

    /// Answers an order, once. An answer to an order that is not known, or was answered, is left alone.
    fn answer(&self, order: OrderId, result: OrderResult);

    /// Whether it moves connections away from load and losses by itself: then no connection does so of its own accord.
    fn balances(&self) -> bool {
        false
    }

    /// What a tenant may have now. Default: as much as it likes.
    fn allowance(&self, tenant: &str) -> Allowance {
        let _ = tenant;
        Allowance::default()
    }

    /// Calls `look` with what a tenant may have whenever that could have changed, from a thread of the directory, until it returns false. Default: never; what a tenant may have is asked
    /// when it wants more.
    fn watch_allowance(&self, tenant: &str, look: Look) {
        let _ = (tenant, look);
    }

    /// Tells what a tenant has in this process.
    fn holds(&self, tenant: &str, holdings: Holdings) {
        let _ = (tenant, holdings);
    }

    /// How often it wants to be told what connections carry; `None`, the default: never.
    fn load_interval(&self) -> Option<Duration> {
        None
    }

    /// Tells what connections carried in the last `interval`. Those that carried nothing are left out.
    fn carried(&self, interval: Duration, connections: Vec<Carried>) {
        let _ = (interval, connections);
    }
}

/// No control plane: nothing is published, nothing is known, everything is allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDirectory;

impl Directory for NoDirectory {
    fn publish(&self, _: ConnectionRecord) {}

    fn offer(&self, _: ServiceAddress) {}

    fn resolve(&self, _: &str) -> Vec<ServiceAddress> {
        Vec::new()
    }

    fn may_connect(&self, _: &str, _: &str) -> Result<PKey, FabricError> {
        Ok(PKey::DEFAULT)
    }

    fn next_order(&self) -> Option<(OrderId, Order)> {
        None
    }

    fn answer(&self, _: OrderId, _: OrderResult) {}
}
