//! What was measured, as the balancing rule takes it: ports, connections and the routes that these could take. Whoever collects it gives numbers to
//! ports, connections and routes that stay the same from round to round; names are not looked at here. Nothing in it is believed before
//! [`super::judge`] has looked at it.

use serde::{Deserialize, Serialize};

/// A port of a NIC or of a switch. The same number always means the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortKey(pub u32);

/// A connection. The same number always means the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ConnectionKey(pub u64);

/// A route of a connection. The same number always means the same route of that connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RouteKey(pub u64);

/// A direction, as the port sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// What the port sends.
    Transmit,
    /// What it receives.
    Receive,
}

/// What is said of a port.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortSample {
    /// Which.
    pub port: PortKey,
    /// Which fabric plane it is on; `None`: it reaches every plane. A route between ports of two planes is not taken.
    pub plane: Option<u32>,
    /// When it was measured, milliseconds of the clock of [`Snapshot::now_ms`].
    pub taken_ms: u64,
    /// Whether it can carry traffic.
    pub up: bool,
    /// Bits per second each way.
    pub capacity_bps: u64,
    /// Bits per second sent, mean over the sample.
    pub tx_bps: f64,
    /// Bits per second received, mean over the sample.
    pub rx_bps: f64,
}

/// A way that a connection takes or may take.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// Which.
    pub key: RouteKey,
    /// The port here: carries the connection both ways.
    pub local: PortKey,
    /// The peer's port, if it is known: carries it both ways.
    pub remote: Option<PortKey>,
    /// Switch ports that what the connection sends leaves by. How the answers return is the peer's choice and not counted here.
    pub via: Vec<PortKey>,
}

impl Route {
    /// A route of which only the port here is known.
    pub fn from_port(key: RouteKey, local: PortKey) -> Self {
        Self { key, local, remote: None, via: Vec::new() }
    }

    /// All ports that it needs.
    pub fn ports(&self) -> impl Iterator<Item = PortKey> + '_ {
        std::iter::once(self.local).chain(self.remote).chain(self.via.iter().copied())
    }
}

/// What is said of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionSample {
    /// Which.
    pub connection: ConnectionKey,
    /// When it was measured, milliseconds of the clock of [`Snapshot::now_ms`].
    pub taken_ms: u64,
    /// Bits per second sent, mean over the sample.
    pub tx_bps: f64,
    /// Bits per second received, mean over the sample.
    pub rx_bps: f64,
    /// Share of the packets sent that were sent again, 0 to 1; 0 if none was sent.
    pub retransmit_ratio: f64,
    /// The route in use.
    pub route: RouteKey,
    /// All routes that it may take, the one in use among them, best first.
    pub routes: Vec<Route>,
    /// When it last moved, for whatever reason, if that is known.
    pub moved_ms: Option<u64>,
    /// Whether it can be moved now: not while it connects, moves or rebuilds.
    pub movable: bool,
}

/// One round's measurements.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Now, milliseconds of a clock that does not go back.
    pub now_ms: u64,
    /// Ports, in any order. Of a port that is not among them nothing is known: nothing moves to it, and nothing leaves it.
    pub ports: &'a [PortSample],
    /// Connections, in any order.
    pub connections: &'a [ConnectionSample],
}
