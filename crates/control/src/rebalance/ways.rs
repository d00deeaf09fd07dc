//! The topology as rebalancing uses it: built from what agents tell of their nodes and what the operator's file says, it gives the plane of each port
//! and, for two nodes, the ways between them as paths. It measures nothing and orders nothing.

use crate::directory::NodeRecord;
use crate::topology::{NicReport, NodeReport, PortName, PortReport, SwitchPort, Topology, TopologyFile, Wish};
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::ConnectionRecord;
use scalefabric_verbs::Gid;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Most ways between two nodes that are offered to the balancing rule, the best first. Each costs a route of each connection in each round.
const MOST: usize = 16;

/// The topology, and what was asked of it.
#[derive(Debug, Default)]
pub struct Ways {
    topology: Arc<Topology>,
    /// Whose address it is. One that several ports claim is nobody's.
    owners: HashMap<IpAddr, Option<String>>,
    between: HashMap<(String, String), Arc<[Path]>>,
}

/// What the topology is built from. Whether ports are up is left out: the balancing rule knows that sooner, from loads.
pub type Plan = (TopologyFile, Vec<NodeReport>);

/// What agents told, as the topology takes it.
pub fn plan(file: TopologyFile, nodes: &[Arc<NodeRecord>]) -> Plan {
    (file, nodes.iter().map(|node| report(node)).collect())
}

fn report(node: &NodeRecord) -> NodeReport {
    let mut nics: BTreeMap<&str, NicReport> = BTreeMap::new();
    for (place, port) in node.ports.iter().enumerate() {
        let neighbour = node.neighbours.iter().find(|one| usize::try_from(one.port).is_ok_and(|port| port == place));
        let numa_node = port.numa_node.map(u32::from);
        let nic = nics.entry(&port.device).or_insert_with(|| NicReport {
            device: port.device.clone(),
            numa_node,
            ports: Vec::new(),
        });
        nic.ports.push(PortReport {
            port_num: port.port_num,
            up: true,
            speed_mbps: u32::try_from(port.rate_mbps).unwrap_or(u32::MAX),
            addresses: port.gids.iter().map(|gid| Gid(gid.octets()).to_ip()).collect(),
            interface: String::new(),
            neighbour: neighbour.map(|one| SwitchPort { switch: one.chassis.clone(), port: one.port_id.clone() }),
        });
    }
    NodeReport { node: node.node.clone(), nics: nics.into_values().collect() }
}

impl Ways {
    /// Of a plan.
    pub fn new((file, reports): &Plan) -> Self {
        let topology = Topology::build(file, reports);
        let mut owners: HashMap<IpAddr, Option<String>> = HashMap::new();
        for (name, port) in topology.ports() {
            for address in &port.addresses {
                let owner = owners.entry(*address).or_insert_with(|| Some(name.node.clone()));
                if owner.as_ref() != Some(&name.node) {
                    *owner = None;
                }
            }
        }
        Self { topology: Arc::new(topology), owners, between: HashMap::new() }
    }

    /// The topology.
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The plane of each port whose cable is known.
    pub fn planes(&self) -> BTreeMap<PortName, u32> {
        let plane = |(name, _): (&PortName, _)| Some((name.clone(), self.topology.plane(name)?));
        self.topology.ports().filter_map(plane).collect()
    }

    /// The ways that a connection of this node could take, on the device that it is on; none where cables are not known.
    pub fn of(&mut self, node: &str, record: &ConnectionRecord) -> Arc<[Path]> {
        let Some(Some(peer)) = self.owners.get(&record.path.dgid.to_ip()) else { return Arc::default() };
        if let Some(known) = self.between.get(&(node.to_owned(), peer.clone())) {
            return Arc::clone(known);
        }
        let choices = self.topology.paths(node, peer, &Wish::default());
        let led = choices.into_iter().filter(|choice| !choice.way.exits.is_empty()).map(|choice| choice.path);
        let ways: Arc<[Path]> = led.take(MOST).collect();
        self.between.insert((node.to_owned(), peer.clone()), Arc::clone(&ways));
        ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{NeighbourRecord, PortRecord};
    use scalefabric_fabric::directory::{ConnectionId, ConnectionState};

    fn node(name: &str, number: u8, leaves: [&str; 2]) -> Arc<NodeRecord> {
        let gid = |port_num: u8| std::net::Ipv4Addr::new(10, 0, port_num, number).to_ipv6_mapped();
        let port = |port_num| PortRecord {
            device: "sf0".into(),
            port_num,
            gids: vec![gid(port_num)],
            rate_mbps: 10_000,
            numa_node: None,
            active: false,
        };
        let neighbour = |port: u32| NeighbourRecord {
            port,
            chassis: leaves[port as usize].into(),
            port_id: format!("swp{number}"),
        };
        Arc::new(NodeRecord {
            node: name.into(),
            version: String::new(),
            incarnation: 1,
            replica: "a".into(),
            ports: vec![port(1), port(2)],
            neighbours: vec![neighbour(0), neighbour(1)],
        })
    }

    fn record() -> ConnectionRecord {
        let gid = |port_num, number| Gid(std::net::Ipv4Addr::new(10, 0, port_num, number).to_ipv6_mapped().octets());
        ConnectionRecord {
            id: ConnectionId { origin: "n1/1".into(), serial: 1 },
            tenant: String::new(),
            service: String::new(),
            qp_num: 1,
            peer_qp_num: 2,
            path: Path { device: "sf0".into(), port_num: 1, sgid: gid(1, 1), dgid: gid(1, 2), flow_label: 0, dscp: 0 },
            alternatives: Vec::new(),
            state: ConnectionState::Up,
            generation: 1,
        }
    }

    #[test]
    fn two_planes_are_two_ways_each_from_port_to_port_of_its_plane() {
        let file = "[[switch]]\nname = \"leaf1\"\n[[switch]]\nname = \"leaf2\"\n";
        let nodes = [node("n1", 1, ["leaf1", "leaf2"]), node("n2", 2, ["leaf1", "leaf2"])];
        let mut ways = Ways::new(&plan(TopologyFile::parse(file).unwrap(), &nodes));
        let planes = ways.planes();
        assert_eq!(planes.len(), 4);
        let found = ways.of("n1", &record());
        let ends: Vec<(u8, String)> = found.iter().map(|path| (path.port_num, path.dgid.to_ip().to_string())).collect();
        assert_eq!(ends, [(1, "10.0.1.2".to_owned()), (2, "10.0.2.2".to_owned())]);
        let stranger = ConnectionRecord { path: Path { dgid: Gid([9; 16]), ..record().path }, ..record() };
        assert!(ways.of("n1", &stranger).is_empty());
    }

    #[test]
    fn links_of_equal_cost_are_ways_with_flow_labels_of_their_own() {
        let file = "[[switch]]\nname = \"leaf1\"\n[[switch]]\nname = \"leaf2\"\n[[switch]]\nname = \"spine1\"\n[[switch]]\nname = \"spine2\"\n\
            [[link]]\nbetween = [\"leaf1:up1\", \"spine1:1\"]\n[[link]]\nbetween = [\"leaf1:up2\", \"spine2:1\"]\n\
            [[link]]\nbetween = [\"leaf2:up1\", \"spine1:2\"]\n[[link]]\nbetween = [\"leaf2:up2\", \"spine2:2\"]\n";
        let nodes = [node("n1", 1, ["leaf1", "leaf1x"]), node("n2", 2, ["leaf2", "leaf2x"])];
        let mut ways = Ways::new(&plan(TopologyFile::parse(file).unwrap(), &nodes));
        let found = ways.of("n1", &record());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|path| path.port_num == 1 && path.flow_label != 0));
        assert_ne!(found[0].flow_label, found[1].flow_label);
    }

    #[test]
    fn without_cables_there_is_no_more_to_say_than_connections_say_themselves() {
        let mut alone = (*node("n1", 1, ["a", "b"])).clone();
        alone.neighbours.clear();
        let mut ways = Ways::new(&plan(TopologyFile::default(), &[Arc::new(alone), node("n2", 2, ["a", "b"])]));
        assert!(ways.of("n1", &record()).is_empty());
    }
}
