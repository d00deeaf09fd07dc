//! A small world for the balancing rule: ports that carry what their connections send, measured exactly, and moves that are made at once. It knows
//! nothing of how the rule works.

use super::super::*;
use std::collections::BTreeMap;

/// 100 Gb/s.
pub const GIGA100: u64 = 100_000_000_000;

/// A port of the world.
#[derive(Clone, Copy, Debug)]
pub struct WorldPort {
    pub capacity_bps: u64,
    pub up: bool,
    /// What others send and receive through it.
    pub background_bps: [u64; 2],
}

/// A connection of the world.
#[derive(Clone, Debug)]
pub struct WorldConnection {
    pub load_bps: [u64; 2],
    pub routes: Vec<Route>,
    pub route: usize,
    pub retransmit_ratio: f64,
}

/// The world.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub now_ms: u64,
    pub ports: BTreeMap<PortKey, WorldPort>,
    pub connections: BTreeMap<ConnectionKey, WorldConnection>,
    pub policy: Policy,
    pub wishes: Wishes,
    pub history: History,
}

impl World {
    /// Ports of 100 Gb/s, from 0 on.
    pub fn with_ports(count: u32) -> Self {
        let port = WorldPort { capacity_bps: GIGA100, up: true, background_bps: [0; 2] };
        let ports = (0..count).map(|n| (PortKey(n), port)).collect();
        Self { now_ms: 1_000, ports, ..Self::default() }
    }

    /// A connection that sends so many thousandths of 100 Gb/s, may use all ports, and is on this one. Route n leaves by port n.
    pub fn connect(&mut self, port: u32, permille: u64) -> ConnectionKey {
        let key = ConnectionKey(self.connections.len() as u64);
        let routes = self.ports.keys().map(|&port| Route::from_port(RouteKey(u64::from(port.0)), port)).collect();
        let load_bps = [permille * (GIGA100 / 1000), 0];
        let connection = WorldConnection { load_bps, routes, route: port as usize, retransmit_ratio: 0.0 };
        self.connections.insert(key, connection);
        key
    }

    /// What a port carries.
    pub fn load(&self, port: PortKey) -> [u64; 2] {
        let mut load = self.ports[&port].background_bps;
        for connection in self.connections.values() {
            let route = &connection.routes[connection.route];
            if !route.ports().all(|port| self.ports.get(&port).is_some_and(|port| port.up)) {
                continue;
            }
            let [tx, rx] = connection.load_bps;
            if route.local == port {
                load = [load[0] + tx, load[1] + rx];
            }
            if route.remote == Some(port) {
                load = [load[0] + rx, load[1] + tx];
            }
            load[0] += tx * route.via.iter().filter(|&&via| via == port).count() as u64;
        }
        let port = self.ports[&port];
        if port.up { load.map(|load| load.min(port.capacity_bps)) } else { [0; 2] }
    }

    /// Measures everything now.
    pub fn measure(&self) -> (Vec<PortSample>, Vec<ConnectionSample>) {
        let port = |(&port, is): (&PortKey, &WorldPort)| {
            let [tx, rx] = self.load(port);
            PortSample {
                port,
                plane: None,
                taken_ms: self.now_ms,
                up: is.up,
                capacity_bps: is.capacity_bps,
                tx_bps: tx as f64,
                rx_bps: rx as f64,
            }
        };
        let connection = |(&connection, is): (&ConnectionKey, &WorldConnection)| {
            let up = is.routes[is.route].ports().all(|port| self.ports.get(&port).is_some_and(|port| port.up));
            let [tx, rx] = if up { is.load_bps } else { [0; 2] };
            ConnectionSample {
                connection,
                taken_ms: self.now_ms,
                tx_bps: tx as f64,
                rx_bps: rx as f64,
                retransmit_ratio: is.retransmit_ratio,
                route: is.routes[is.route].key,
                routes: is.routes.clone(),
                moved_ms: None,
                movable: true,
            }
        };
        (self.ports.iter().map(port).collect(), self.connections.iter().map(connection).collect())
    }

    /// Plans with what is measured, and moves nothing.
    pub fn plan(&self) -> Plan {
        let (ports, connections) = self.measure();
        self.plan_with(&ports, &connections)
    }

    /// Plans with what is said.
    pub fn plan_with(&self, ports: &[PortSample], connections: &[ConnectionSample]) -> Plan {
        let snapshot = Snapshot { now_ms: self.now_ms, ports, connections };
        plan(&snapshot, &self.policy, &self.wishes, self.history.clone())
    }

    /// Makes moves.
    pub fn apply(&mut self, moves: &[Move]) {
        for one in moves {
            let connection = self.connections.get_mut(&one.connection).unwrap();
            assert_eq!(connection.routes[connection.route].key, one.from);
            connection.route = connection.routes.iter().position(|route| route.key == one.to).unwrap();
        }
    }

    /// A round: 100 ms pass, everything is measured, planned and done.
    pub fn round(&mut self) -> Plan {
        self.now_ms += 100;
        let plan = self.plan();
        self.history = plan.history.clone();
        self.apply(&plan.moves);
        plan
    }

    /// So many rounds; all moves.
    pub fn rounds(&mut self, count: usize) -> Vec<Move> {
        (0..count).flat_map(|_| self.round().moves).collect()
    }
}
