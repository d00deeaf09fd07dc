//! What an agent measures of its node, ten times a second: how loaded its ports are and what each of its connections carries. Everything in it is a claim; the
//! decider takes it only for the node's own ports and connections, and the balancing rule checks the numbers.

use crate::topology::PortName;
use scalefabric_fabric::directory::ConnectionId;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Most ports that a report may speak of.
pub const MAX_PORTS: usize = 256;

/// Most connections that a report may speak of.
pub const MAX_CONNECTIONS: usize = 100_000;

/// Load of a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortLoad {
    /// Which.
    pub port: PortName,
    /// Whether it is active.
    pub up: bool,
    /// Bits per second each way.
    pub capacity_bps: u64,
    /// Bits per second sent, mean since the last report.
    pub tx_bps: f64,
    /// Bits per second received, mean since the last report.
    pub rx_bps: f64,
    /// Its addresses, by which peers' paths are known to end here.
    pub addresses: Vec<IpAddr>,
}

/// Load of a connection that this node made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionLoad {
    /// Which.
    pub connection: ConnectionId,
    /// Bits per second sent, mean since the last report.
    pub tx_bps: f64,
    /// Bits per second received, mean since the last report.
    pub rx_bps: f64,
    /// Share of the packets sent that were sent again, 0 to 1.
    pub retransmit_ratio: f64,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UtilisationReport {
    /// Which node. The service knows who sent it and refuses another name.
    pub node: String,
    /// Which start of the agent: counts up with each.
    pub epoch: u64,
    /// Which report since then: counts up.
    pub serial: u64,
    /// How long ago it was measured when it was sent, milliseconds by the agent's clock.
    pub age_ms: u64,
    /// Ports.
    pub ports: Vec<PortLoad>,
    /// Connections.
    pub connections: Vec<ConnectionLoad>,
}

/// Why a report, or a part of it, was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "refused")]
pub enum Refused {
    /// It is not newer than the last one: repeated or overtaken.
    OutOfOrder,
    /// It has more parts than it may.
    TooLarge,
    /// It speaks of a port of another node.
    ForeignPort {
        /// Which.
        port: PortName,
    },
    /// It speaks of a connection that another node made.
    ForeignConnection {
        /// Which.
        connection: ConnectionId,
    },
}
