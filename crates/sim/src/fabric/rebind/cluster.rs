//! The fabric of the rebinding table, and who is connected to whom over it: Facebook's fabric of 2014 (racks with four 40G uplinks, pods with four fabric switches, planes of
//! spines), a part of each pod of four racks of eight nodes, nodes with two ports of 10 Gb/s. It measures and moves nothing.

use super::super::model::Model;
use super::super::time::{Ps, Rate};
use super::super::topology::{Topology, Wire};
use super::super::workload::all_reduce::Way;
use super::super::world::World;
use super::{Setup, StaticPath, StaticPort};
use crate::random::{Random, mix};
use scalefabric_fabric::balance::{PortKey, Route, RouteKey};
use scalefabric_transport::congestion::Profile;

/// Ports of a node.
pub const PORTS: u32 = 2;
/// Nodes of a rack.
const RACK: u32 = 8;
/// Racks of a pod that the job has.
const RACKS: u32 = 4;
/// Planes: fabric switches of a pod.
const PLANES: u32 = 4;
/// A node's port.
const NIC: Wire = Wire { bps: 10_000_000_000, delay: Ps(500_000) };
/// A link between switches.
const UP: Wire = Wire { bps: 40_000_000_000, delay: Ps(500_000) };
/// The source port that QPs have under [`StaticPath::Shared`].
const SHARED: u16 = 0xc000;
/// Source ports that are tried for ways that differ.
const TRIED: u16 = 32;

/// A QP of a ring: from a node to its neighbour.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The way that it has if nobody moves it.
    pub first: RouteKey,
    /// All ways that it may take, the first among them.
    pub routes: Vec<Route>,
    /// For each route: the ports that its packets leave by, from the NIC's to the last switch's.
    pub ports: Vec<Vec<u32>>,
    /// Sending and receiving node.
    pub nodes: [u32; 2],
}

impl Connection {
    /// The index of a route.
    pub fn index(&self, key: RouteKey) -> usize {
        self.routes.iter().position(|route| route.key == key).unwrap_or(0)
    }

    /// A route as a ring takes it.
    pub fn way(&self, key: RouteKey, lane: u32) -> Way {
        let (port, source_port) = ((key.0 >> 16) as u32, (key.0 & 0xffff) as u16);
        let [from, to] = self.nodes.map(|node| node * PORTS + port);
        Way { from, to, source_port, lane }
    }
}

/// The fabric with its connections.
pub struct Cluster {
    /// The members of the ring, in its order.
    pub order: Vec<u32>,
    /// Channel x nodes + place in the ring.
    pub connections: Vec<Connection>,
    /// Ports of NICs: index among the ports of the world.
    pub nics: Vec<u32>,
    /// Rates of all ports.
    pub rates: Vec<u64>,
    /// Payload over what is on the wire.
    pub payload_part: f64,
    setup: Setup,
}

impl Cluster {
    /// Of a setup that was checked.
    pub fn new(setup: &Setup) -> Result<Self, String> {
        setup.check()?;
        let world = world(setup)?;
        let mut random = Random::new(setup.seed, 0x0b1d);
        let mut order: Vec<u32> = (0..setup.nodes).collect();
        if setup.shuffled {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        let mut connections = Vec::with_capacity(setup.qps as usize * order.len());
        for channel in 0..setup.qps {
            for (place, &node) in order.iter().enumerate() {
                let nodes = [node, order[(place + 1) % order.len()]];
                connections.push(connection(setup, &world, channel, nodes));
            }
        }
        let hosts = setup.nodes * PORTS;
        let host = &world.model().host;
        Ok(Self {
            order,
            connections,
            nics: (0..hosts).map(|host| world.last_port(host) ^ 1).collect(),
            rates: world.ports().iter().map(|port| port.rate.bps).collect(),
            payload_part: f64::from(host.mtu) / f64::from(host.mtu + host.header_bytes),
            setup: setup.clone(),
        })
    }

    /// What it was made from.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }
}

/// The fabric at rest.
pub fn world(setup: &Setup) -> Result<World, String> {
    let racks = setup.nodes.div_ceil(RACK);
    let pods = racks.div_ceil(RACKS);
    let topology = Topology::pods(pods, racks.min(RACKS), RACK * PORTS, PLANES, setup.spines, NIC, UP);
    let profile = Profile::named(&setup.algorithm, NIC.bps).map_err(|error| error.to_string())?;
    let mut model = Model::roce();
    let wire =
        u128::from(setup.qp_bps) * u128::from(model.host.mtu + model.host.header_bytes) / u128::from(model.host.mtu);
    model.host.qp_rate = Some(Rate::new(wire as u64, false));
    let world = World::new(topology, model, profile, setup.seed)?;
    world.check_profile()?;
    Ok(world)
}

fn connection(setup: &Setup, world: &World, channel: u32, nodes: [u32; 2]) -> Connection {
    let qp = mix(mix(setup.seed ^ 0x9b17) ^ (u64::from(nodes[0]) << 32 | u64::from(channel)));
    let port = match setup.port {
        StaticPort::Hashed => qp >> 63,
        StaticPort::InTurn => u64::from(channel % PORTS),
    };
    let source_port = match setup.path {
        StaticPath::Shared => SHARED,
        StaticPath::Own => SHARED | (qp & 0x3fff) as u16,
    };
    let first = RouteKey(port << 16 | u64::from(source_port));
    let mut connection = Connection { first, routes: Vec::new(), ports: Vec::new(), nodes };
    for port in 0..u64::from(PORTS) {
        let own = (port == first.0 >> 16).then_some(source_port);
        for source_port in own.into_iter().chain(SHARED + 1..=SHARED + TRIED) {
            let key = RouteKey(port << 16 | u64::from(source_port));
            if connection.routes.iter().any(|route| route.key == key) {
                continue;
            }
            let way = connection.way(key, 0);
            let ports: Vec<u32> = world.hashed_way(way.from, way.to, source_port).collect();
            if key != first && connection.ports.contains(&ports) {
                continue;
            }
            let [local, .., last] = ports.as_slice() else { continue };
            let (local, remote) = (PortKey(*local), Some(PortKey(*last ^ 1)));
            let via = if setup.sees_switches { &ports[1..ports.len() - 1] } else { &[] };
            let via = via.iter().map(|port| PortKey(*port)).collect();
            connection.routes.push(Route { key, local, remote, via });
            connection.ports.push(ports);
        }
    }
    connection
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_differ_and_lead_to_the_same_port_number() {
        let cluster = Cluster::new(&Setup::new(128, 1)).unwrap();
        assert_eq!((cluster.connections.len(), cluster.nics.len()), (1024, 256));
        let far = |connection: &&Connection| connection.nodes[0] / 32 != connection.nodes[1] / 32;
        let far: Vec<&Connection> = cluster.connections.iter().filter(far).collect();
        // Three quarters of the neighbours are in another pod: four planes with two spines each, by both ports.
        assert!((700..840).contains(&far.len()), "{}", far.len());
        for connection in far {
            assert!(connection.routes.len() >= 12, "{}", connection.routes.len());
            assert!(connection.ports.iter().all(|ports| ports.len() == 6));
            for (n, ports) in connection.ports.iter().enumerate() {
                assert!(!connection.ports[..n].contains(ports));
            }
        }
    }
}
