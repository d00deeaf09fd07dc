//! The balancing rule at work in the laboratory: what was measured becomes the snapshot that the control plane would make of it, and the very function that the
//! control plane runs answers. It measures nothing and moves nothing itself.

use super::cluster::Cluster;
use scalefabric_fabric::balance::{
    ConnectionKey, ConnectionSample, History, PortKey, PortSample, RouteKey, Snapshot, Wishes, plan,
};

/// Milliseconds of the rule's clock between two samples: what agents report in.
pub const SAMPLE_MS: u64 = 100;

/// The rule with its memory.
pub struct Balancer {
    now_ms: u64,
    history: History,
    ports: Vec<PortSample>,
    samples: Vec<ConnectionSample>,
    /// Moves that were ordered.
    pub moves: u64,
    /// Rounds since the last of them.
    pub quiet: u32,
}

impl Balancer {
    /// Nothing is known yet.
    pub fn new(cluster: &Cluster) -> Self {
        let hosts = cluster.nics.iter().map(|port| (*port, true));
        let is_nic =
            |port: &u32| cluster.nics.binary_search(port).is_ok() || cluster.nics.binary_search(&(port ^ 1)).is_ok();
        let switches = (0..cluster.rates.len() as u32).filter(|port| !is_nic(port)).map(|port| (port, false));
        let all = hosts.chain(switches.filter(|_| cluster.setup().sees_switches));
        let ports = all.map(|(port, _)| PortSample {
            port: PortKey(port),
            plane: None,
            taken_ms: 0,
            up: true,
            capacity_bps: cluster.rates[port as usize],
            tx_bps: 0.0,
            rx_bps: 0.0,
        });
        let samples = (0..).zip(&cluster.connections).map(|(key, connection)| ConnectionSample {
            connection: ConnectionKey(key),
            taken_ms: 0,
            tx_bps: 0.0,
            rx_bps: 0.0,
            retransmit_ratio: 0.0,
            route: connection.first,
            routes: connection.routes.clone(),
            moved_ms: None,
            movable: true,
        });
        Self {
            now_ms: 0,
            history: History::default(),
            ports: ports.collect(),
            samples: samples.collect(),
            moves: 0,
            quiet: 0,
        }
    }

    /// The route that a connection is on.
    pub fn route(&self, connection: usize) -> RouteKey {
        self.samples[connection].route
    }

    /// One round: what ports and connections sent since the last, in bits per second on the wire; which connections go where. A switch's port is spoken of for
    /// what it sends; what it receives is sent by the port at the other end.
    pub fn round(
        &mut self,
        cluster: &Cluster,
        port_bps: impl Fn(u32) -> f64,
        connection_bps: impl Fn(usize) -> f64,
    ) -> Vec<(usize, RouteKey)> {
        self.now_ms += SAMPLE_MS;
        for sample in &mut self.ports {
            let port = sample.port.0;
            let is_nic = cluster.nics.binary_search(&port).is_ok();
            sample.taken_ms = self.now_ms;
            sample.tx_bps = port_bps(port);
            sample.rx_bps = if is_nic { port_bps(port ^ 1) } else { 0.0 };
        }
        for (index, sample) in self.samples.iter_mut().enumerate() {
            sample.taken_ms = self.now_ms;
            sample.tx_bps = connection_bps(index);
        }
        let snapshot = Snapshot { now_ms: self.now_ms, ports: &self.ports, connections: &self.samples };
        let history = std::mem::take(&mut self.history);
        let plan = plan(&snapshot, &cluster.setup().policy, &Wishes::default(), history);
        self.history = plan.history;
        self.quiet = if plan.moves.is_empty() { self.quiet + 1 } else { 0 };
        self.moves += plan.moves.len() as u64;
        let moves: Vec<(usize, RouteKey)> = plan.moves.iter().map(|one| (one.connection.0 as usize, one.to)).collect();
        for &(connection, to) in &moves {
            self.samples[connection].route = to;
        }
        moves
    }
}
