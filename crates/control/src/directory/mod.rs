//! The directory: who is where, on which ports, in which state. Each replica holds it in memory, fed by the store's watch ([`feed`]); look-ups
//! never touch the store. It decides nothing, and nothing here is the truth: that is the store.

mod change;
pub mod feed;
mod index;
mod query;

pub use change::{Change, Changes, Lagged};
pub use index::{Index, Size};
pub use query::{Found, MAX_LIMIT, Query};

use scalefabric_fabric::directory::ConnectionRecord;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A connection and the node that told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Node.
    pub node: Arc<str>,
    /// Process of the node that has this end of it.
    pub process: Arc<str>,
    /// Record.
    pub record: Arc<ConnectionRecord>,
}

/// A node, as its agent told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeRecord {
    /// Name.
    pub node: String,
    /// Version of its agent.
    pub version: String,
    /// Which start of the agent it was.
    pub incarnation: u64,
    /// The replica that the agent joined last.
    pub replica: String,
    /// Ports. Loads name them by their place here.
    pub ports: Vec<PortRecord>,
    /// What LLDP told of the other ends of links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<NeighbourRecord>,
}

/// A port of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PortRecord {
    /// Device.
    pub device: String,
    /// Port of the device, from 1.
    pub port_num: u8,
    /// GIDs, as IPv6 addresses.
    #[schema(value_type = Vec<String>)]
    pub gids: Vec<std::net::Ipv6Addr>,
    /// Megabits a second.
    pub rate_mbps: u64,
    /// NUMA node, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u16>,
    /// Whether it can carry traffic.
    pub active: bool,
}

/// The other end of a port's link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NeighbourRecord {
    /// Place of the port in [`NodeRecord::ports`].
    pub port: u32,
    /// The switch's name (LLDP's chassis ID or system name).
    pub chassis: String,
    /// The switch's port.
    pub port_id: String,
}
