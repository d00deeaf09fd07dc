//! What processes and the agent of their node say to one another over its Unix socket: one JSON object a line, at most [`MAX_LINE`] bytes. Neither
//! side trusts the other to be well: who sends what makes no sense is cut off.

pub use scalefabric_fabric::directory::Carried;
use scalefabric_fabric::directory::{ConnectionRecord, Holdings, Order, OrderResult, ServiceAddress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Version of what is said here.
pub const PROTOCOL: u32 = 1;
/// Longest line, bytes.
pub const MAX_LINE: usize = 1024 * 1024;

/// Where the socket is, unless the configuration or `SCALEFABRIC_AGENT` says otherwise.
pub fn default_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("SCALEFABRIC_AGENT").filter(|path| !path.is_empty()) {
        return path.into();
    }
    PathBuf::from("/run/scalefabric/agent.sock")
}

/// The tenants' policy: the values of `tenants/…` by name.
pub type Policy = BTreeMap<String, serde_json::Value>;

/// Most connections of one [`FromProcess::Carried`]: an agent tells control of no more.
pub const MAX_CARRIED: usize = 64;

/// From a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum FromProcess {
    /// First of all.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Process ID as the process sees it, for people.
        pid: u32,
    },
    /// A connection is new, changed, or closed.
    Publish {
        /// Its record.
        record: ConnectionRecord,
    },
    /// A service can be reached here.
    Offer {
        /// How.
        address: ServiceAddress,
    },
    /// A service can no longer be reached here.
    Withdraw {
        /// Its name.
        service: String,
        /// The exchange of its offer.
        exchange: String,
    },
    /// Addresses of this service are wanted from now on.
    Want {
        /// Its name.
        service: String,
    },
    /// How an order ended.
    Answer {
        /// Name of the order.
        id: String,
        /// How.
        outcome: OrderResult,
    },
    /// What connections carried in an interval.
    Carried {
        /// Its length, microseconds.
        interval_us: u32,
        /// Those that carried the most, at most [`MAX_CARRIED`].
        connections: Vec<Carried>,
    },
    /// What a tenant has in this process.
    Hold {
        /// Its name.
        tenant: String,
        /// What.
        holdings: Holdings,
    },
}

/// To a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum ToProcess {
    /// First of all.
    Welcome {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Name of the node.
        node: String,
    },
    /// All addresses of a service that are known.
    Services {
        /// Its name.
        service: String,
        /// None: nobody offers it.
        addresses: Vec<ServiceAddress>,
    },
    /// The policy, whole.
    Policy {
        /// By tenant.
        tenants: Policy,
    },
    /// What tenants have outside this process, on all nodes together.
    Elsewhere {
        /// By tenant; who is not among them has nothing.
        tenants: BTreeMap<String, Holdings>,
    },
    /// Do this and answer.
    Order {
        /// Name of the order.
        id: String,
        /// What.
        order: Order,
    },
}

/// A message as a line.
pub fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
