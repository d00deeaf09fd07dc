//! What an agent says of its node: NICs, ports, and who is at the other end of each cable, as far as LLDP tells. Plain data; nothing of it is
//! believed more than the node's own authority reaches: a report describes one node only.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// A port of a NIC, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortName {
    /// Node.
    pub node: String,
    /// Device, as verbs call it.
    pub device: String,
    /// Port, from 1.
    pub port_num: u8,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.node, self.device, self.port_num)
    }
}

/// A port of a switch, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SwitchPort {
    /// Switch.
    pub switch: String,
    /// Port, as the switch calls it.
    pub port: String,
}

impl fmt::Display for SwitchPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.switch, self.port)
    }
}

/// A port of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Port, from 1.
    pub port_num: u8,
    /// Whether it is active.
    pub up: bool,
    /// Speed, Mb/s.
    pub speed_mbps: u32,
    /// RoCEv2 addresses, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// Network interface behind it.
    pub interface: String,
    /// Who is at the other end, if LLDP told.
    pub neighbour: Option<SwitchPort>,
}

/// A NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicReport {
    /// Device, as verbs call it.
    pub device: String,
    /// NUMA node that it is attached to, if the machine says so.
    pub numa_node: Option<u32>,
    /// Ports.
    pub ports: Vec<PortReport>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name.
    pub node: String,
    /// NICs.
    pub nics: Vec<NicReport>,
}
