//! The topology as a graph: nodes, NICs, ports, switches, and the cables between them, from agents' reports and the configuration file. What LLDP saw on a cable
//! counts more than what the file says; where they differ, a finding says so. It is built anew when something changes and never changed in place.

use super::file::TopologyFile;
use super::report::{NodeReport, PortName, PortReport, SwitchPort};
use petgraph::graph::{NodeIndex, UnGraph};
use petgraph::unionfind::UnionFind;
use petgraph::visit::{EdgeRef, NodeIndexable};
use scalefabric_fabric::ecmp::EcmpHash;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Something that has a place in the fabric.
#[derive(Clone, Debug, PartialEq)]
pub enum Vertex {
    /// A node.
    Node {
        /// Name.
        name: String,
    },
    /// A NIC.
    Nic {
        /// Device.
        device: String,
        /// NUMA node.
        numa_node: Option<u32>,
    },
    /// A port of a NIC.
    Port {
        /// Name.
        name: PortName,
        /// What its agent says of it.
        report: PortReport,
        /// NUMA node of its NIC.
        numa_node: Option<u32>,
        /// Rail.
        rail: Option<u32>,
    },
    /// A switch.
    Switch {
        /// Name.
        name: String,
        /// How it chooses among links of equal cost.
        hash: EcmpHash,
    },
}

/// What joins two of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joint {
    /// One is part of the other.
    Part,
    /// A cable from a port of a NIC to a switch.
    Uplink {
        /// The switch's port.
        at: SwitchPort,
        /// Speed, Mb/s.
        speed_mbps: u32,
    },
    /// A cable between two switches.
    Trunk {
        /// Its ends.
        ends: [SwitchPort; 2],
        /// Speed, Mb/s.
        speed_mbps: u32,
    },
}

/// Something that somebody should look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "finding")]
pub enum Finding {
    /// LLDP sees another switch port than the file says. LLDP is believed.
    CableDiffers {
        /// The NIC's port.
        port: PortName,
        /// What the file says.
        file: SwitchPort,
        /// What LLDP saw.
        lldp: SwitchPort,
    },
    /// Two ports say that they are at the same switch port. Only the first is believed.
    TwoAtOnePort {
        /// The switch's port.
        at: SwitchPort,
        /// Who is believed, and who is not.
        ports: [PortName; 2],
    },
    /// A switch that LLDP saw is not in the file: how it hashes is not known, so that a flow label leads nowhere for sure.
    UnknownSwitch {
        /// Name.
        switch: String,
    },
    /// Two agents speak for one node. The first is believed.
    TwoReports {
        /// Name.
        node: String,
    },
    /// Two ports have the same address.
    AddressTwice {
        /// Who has it.
        ports: [PortName; 2],
        /// Which.
        address: std::net::IpAddr,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CableDiffers { port, file, lldp } => {
                write!(
                    f,
                    "{port} is plugged into {lldp}, the topology file says {file}: move the cable or correct the file"
                )
            }
            Self::TwoAtOnePort { at, ports: [first, second] } => {
                write!(f, "{first} and {second} both say that they are at {at}: correct the file, or look for a hub")
            }
            Self::UnknownSwitch { switch } => {
                write!(
                    f,
                    "switch {switch} is not in the topology file: add it with its hash, so that ways through it can be chosen"
                )
            }
            Self::TwoReports { node } => write!(f, "two agents call themselves {node}: give one another name"),
            Self::AddressTwice { ports: [first, second], address } => {
                write!(f, "{first} and {second} both have {address}: give one another address")
            }
        }
    }
}

/// The topology.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(super) graph: UnGraph<Vertex, Joint>,
    pub(super) ports: BTreeMap<PortName, NodeIndex>,
    pub(super) switches: BTreeMap<String, NodeIndex>,
    findings: Vec<Finding>,
    planes: Vec<u32>,
}

impl Topology {
    /// Builds it. The same arguments give the same topology, findings and numbers of planes included.
    pub fn build<'a>(file: &TopologyFile, reports: impl IntoIterator<Item = &'a NodeReport>) -> Self {
        let mut topology = Self::default();
        for switch in &file.switches {
            topology.switch(&switch.name, Some(switch.hash));
        }
        for link in &file.links {
            let [a, b] = &link.between;
            let (a, b) = (topology.switch(&a.switch, None), topology.switch(&b.switch, None));
            let speed_mbps = link.speed_gbps.saturating_mul(1000);
            topology.graph.add_edge(a, b, Joint::Trunk { ends: link.between.clone(), speed_mbps });
        }
        let mut nodes: BTreeMap<&str, &NodeReport> = BTreeMap::new();
        for report in reports {
            if nodes.contains_key(report.node.as_str()) {
                topology.findings.push(Finding::TwoReports { node: report.node.clone() });
            } else {
                nodes.insert(&report.node, report);
            }
        }
        for report in nodes.values() {
            topology.add_node(file, report);
        }
        topology.plug_in(file);
        topology.look_for_twins();
        topology.number_planes();
        topology.findings.sort();
        topology.findings.dedup();
        topology
    }

    /// What somebody should look at, in order.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// All of it, for whoever draws it.
    pub fn graph(&self) -> &UnGraph<Vertex, Joint> {
        &self.graph
    }

    /// All ports of NICs, in order of name.
    pub fn ports(&self) -> impl Iterator<Item = (&PortName, &PortReport)> {
        self.ports.iter().filter_map(|(name, &at)| match &self.graph[at] {
            Vertex::Port { report, .. } => Some((name, report)),
            _ => None,
        })
    }

    /// The switch's end of a port's cable, if it is known.
    pub fn cable(&self, port: &PortName) -> Option<&SwitchPort> {
        self.uplink(*self.ports.get(port)?).map(|(_, at, _)| at)
    }

    /// The plane of a port: ports of one plane reach one another by cables. `None` for a port that is not known, or whose cable is not known.
    pub fn plane(&self, port: &PortName) -> Option<u32> {
        let at = *self.ports.get(port)?;
        self.uplink(at)?;
        self.planes.get(at.index()).copied()
    }

    /// The switch that a port is plugged into, by which port of it, and how fast.
    pub(super) fn uplink(&self, port: NodeIndex) -> Option<(NodeIndex, &SwitchPort, u32)> {
        self.graph.edges(port).find_map(|edge| match edge.weight() {
            Joint::Uplink { at, speed_mbps } => {
                let other = if edge.source() == port { edge.target() } else { edge.source() };
                Some((other, at, *speed_mbps))
            }
            _ => None,
        })
    }

    fn switch(&mut self, name: &str, hash: Option<EcmpHash>) -> NodeIndex {
        if let Some(&at) = self.switches.get(name) {
            return at;
        }
        if hash.is_none() {
            self.findings.push(Finding::UnknownSwitch { switch: name.into() });
        }
        let at = self.graph.add_node(Vertex::Switch { name: name.into(), hash: hash.unwrap_or_default() });
        self.switches.insert(name.into(), at);
        at
    }

    fn add_node(&mut self, file: &TopologyFile, report: &NodeReport) {
        let node = self.graph.add_node(Vertex::Node { name: report.node.clone() });
        for nic in &report.nics {
            let numa_node = nic.numa_node;
            let at = self.graph.add_node(Vertex::Nic { device: nic.device.clone(), numa_node });
            self.graph.add_edge(node, at, Joint::Part);
            for port in &nic.ports {
                let name = PortName { node: report.node.clone(), device: nic.device.clone(), port_num: port.port_num };
                let rail = file.ports.iter().find(|entry| entry.name() == name).and_then(|entry| entry.rail);
                let vertex = Vertex::Port { name: name.clone(), report: port.clone(), numa_node, rail };
                let port = self.graph.add_node(vertex);
                self.graph.add_edge(at, port, Joint::Part);
                self.ports.insert(name, port);
            }
        }
    }

    /// The cables of the ports: as LLDP saw them, else as the file says.
    fn plug_in(&mut self, file: &TopologyFile) {
        let mut taken: BTreeMap<SwitchPort, PortName> = BTreeMap::new();
        let ports: Vec<(PortName, NodeIndex)> = self.ports.iter().map(|(name, &at)| (name.clone(), at)).collect();
        for (name, port) in ports {
            let Vertex::Port { report, .. } = &self.graph[port] else { continue };
            let (seen, speed_mbps) = (report.neighbour.clone(), report.speed_mbps);
            let written = file.ports.iter().find(|entry| entry.name() == name).and_then(|entry| entry.switch.clone());
            if let (Some(file), Some(lldp)) = (&written, &seen)
                && file != lldp
            {
                let (port, file, lldp) = (name.clone(), file.clone(), lldp.clone());
                self.findings.push(Finding::CableDiffers { port, file, lldp });
            }
            let Some(at) = seen.or(written) else { continue };
            if let Some(first) = taken.get(&at) {
                self.findings.push(Finding::TwoAtOnePort { at, ports: [first.clone(), name] });
                continue;
            }
            taken.insert(at.clone(), name);
            let switch = self.switch(&at.switch, None);
            self.graph.add_edge(port, switch, Joint::Uplink { at, speed_mbps });
        }
    }

    fn look_for_twins(&mut self) {
        let mut owners: BTreeMap<std::net::IpAddr, &PortName> = BTreeMap::new();
        let mut twins = Vec::new();
        for (name, report) in self.ports() {
            for &address in report.addresses.iter().filter(|&&address| !super::way::is_local(address)) {
                match owners.get(&address) {
                    Some(&first) if first != name => {
                        twins.push(Finding::AddressTwice { ports: [first.clone(), name.clone()], address });
                    }
                    _ => drop(owners.insert(address, name)),
                }
            }
        }
        self.findings.extend(twins);
    }

    /// Planes are what is joined by cables, numbered in order of their first switch's name.
    fn number_planes(&mut self) {
        let mut joined = UnionFind::new(self.graph.node_bound());
        for edge in self.graph.edge_references() {
            if *edge.weight() != Joint::Part {
                joined.union(edge.source().index(), edge.target().index());
            }
        }
        let mut numbers: BTreeMap<usize, u32> = BTreeMap::new();
        for at in self.switches.values() {
            let next = numbers.len() as u32;
            numbers.entry(joined.find(at.index())).or_insert(next);
        }
        let plane = |at: usize| numbers.get(&joined.find(at)).copied().unwrap_or(u32::MAX);
        self.planes = (0..self.graph.node_bound()).map(plane).collect();
    }
}
