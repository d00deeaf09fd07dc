//! Ways through the fabric: the shortest ones between two ports, all of equal cost, and the best pairs of ports for two nodes. A way becomes a
//! [`Path`], what RoCE can express: ports, GIDs, and a flow label whose UDP source port makes each switch on the way choose the wanted link. It looks only
//! at the topology that it is given; who is hot is the balancing rule's business.

use super::graph::{Joint, Topology, Vertex};
use super::report::{PortName, PortReport, SwitchPort};
use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;
use scalefabric_fabric::Path;
use scalefabric_fabric::ecmp::{Fork, flow_label_through};
use scalefabric_verbs::Gid;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Most ways between two ports that are given. More would be more than anybody balances over.
pub const MAX_WAYS: usize = 256;

/// A way from a port to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Where it begins.
    pub from: PortName,
    /// Where it ends.
    pub to: PortName,
    /// The switch ports by which it leaves each switch, in order; the last one leads to the destination. Empty: no cable of it is known.
    pub exits: Vec<SwitchPort>,
    /// The choices that switches on the way must make.
    pub forks: Vec<Fork>,
    /// Speed of its slowest cable, Mb/s.
    pub speed_mbps: u32,
}

/// What a connection wants of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Wish {
    /// NUMA node of the threads and the memory here.
    pub numa_node: Option<u32>,
    /// NUMA node of those over there.
    pub peer_numa_node: Option<u32>,
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// Only addresses of this family; nothing: whichever both have, in the order of the port here.
    pub ipv6: Option<bool>,
}

/// A way with its path, as [`Topology::paths`] gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// What verbs are told.
    pub path: Path,
}

/// Is given a way's exits, its forks and its slowest link, Mb/s; says whether it wants more ways.
type Found<'a> = dyn FnMut(&[SwitchPort], &[Fork], u32) -> bool + 'a;

impl Topology {
    /// All shortest ways between two ports, in the order in which switches number their links. If a cable of them is not known there is one way without
    /// exits: IP will find it or not. None if they are on different planes, down or unknown.
    pub fn ways(&self, from: &PortName, to: &PortName) -> Vec<Way> {
        let (Some(&start), Some(&end)) = (self.ports.get(from), self.ports.get(to)) else { return Vec::new() };
        let (Some(here), Some(there)) = (self.port(start), self.port(end)) else { return Vec::new() };
        if from == to || !here.up || !there.up {
            return Vec::new();
        }
        let slowest = here.speed_mbps.min(there.speed_mbps);
        let whole = |exits, forks, speed_mbps| Way { from: from.clone(), to: to.clone(), exits, forks, speed_mbps };
        let (Some((first, _, near)), Some((last, exit, far))) = (self.uplink(start), self.uplink(end)) else {
            return vec![whole(Vec::new(), Vec::new(), slowest)];
        };
        let distances = self.distances(last);
        let mut ways = Vec::new();
        self.follow(first, &distances, &mut Vec::new(), &mut |exits, forks, speed_mbps| {
            let exits = exits.iter().cloned().chain([exit.clone()]).collect();
            ways.push(whole(exits, forks.to_vec(), speed_mbps.min(near).min(far)));
            ways.len() < MAX_WAYS
        });
        ways
    }

    /// The ways between two nodes as paths, the best first: on one rail, near the wished NUMA nodes, over few switches, fast. A way whose switches cannot be
    /// led there by any flow label is left out.
    pub fn paths(&self, from_node: &str, to_node: &str, wish: &Wish) -> Vec<Choice> {
        let of = |node: &str| -> Vec<&PortName> { self.ports.keys().filter(|name| name.node == node).collect() };
        let mut choices = Vec::new();
        for from in of(from_node) {
            for to in of(to_node) {
                for way in self.ways(from, to) {
                    if let Some(path) = self.path(&way, wish) {
                        choices.push((self.rank(&way, wish), Choice { way, path }));
                    }
                }
            }
        }
        choices.sort_by(|(a, _), (b, _)| a.cmp(b));
        choices.into_iter().map(|(_, choice)| choice).collect()
    }

    /// What verbs must be told so that packets take a way; `None` if the ports have no addresses of one family, or no flow label leads there.
    pub fn path(&self, way: &Way, wish: &Wish) -> Option<Path> {
        let (here, there) = (self.port_of(&way.from)?, self.port_of(&way.to)?);
        let pairs = here.addresses.iter().flat_map(|&a| there.addresses.iter().map(move |&b| (a, b)));
        let fits = |&(a, b): &(IpAddr, IpAddr)| {
            a.is_ipv6() == b.is_ipv6() && wish.ipv6.is_none_or(|v6| v6 == a.is_ipv6()) && is_local(a) == is_local(b)
        };
        let (src, dst) = pairs.filter(fits).min_by_key(|&(a, _)| is_local(a))?;
        let flow_label = if way.forks.is_empty() { 0 } else { flow_label_through(src, dst, &way.forks)? };
        Some(Path {
            device: way.from.device.clone(),
            port_num: way.from.port_num,
            sgid: Gid::from_ip(src),
            dgid: Gid::from_ip(dst),
            flow_label,
            dscp: wish.dscp,
        })
    }

    fn port_of(&self, name: &PortName) -> Option<&PortReport> {
        self.port(*self.ports.get(name)?)
    }

    fn port(&self, at: NodeIndex) -> Option<&PortReport> {
        match &self.graph[at] {
            Vertex::Port { report, .. } => Some(report),
            _ => None,
        }
    }

    /// How many switches each switch is away from one.
    fn distances(&self, from: NodeIndex) -> BTreeMap<NodeIndex, u32> {
        let mut distances = BTreeMap::from([(from, 0)]);
        let mut queue = VecDeque::from([(from, 0)]);
        while let Some((at, distance)) = queue.pop_front() {
            for (next, ..) in self.trunks(at) {
                if let std::collections::btree_map::Entry::Vacant(entry) = distances.entry(next) {
                    entry.insert(distance + 1);
                    queue.push_back((next, distance + 1));
                }
            }
        }
        distances
    }

    /// Links from a switch to others: the neighbour, the port here, the speed. In the order of the port's number.
    fn trunks(&self, at: NodeIndex) -> Vec<(NodeIndex, &SwitchPort, u32)> {
        let Vertex::Switch { name, .. } = &self.graph[at] else { return Vec::new() };
        let mut links: Vec<_> = self
            .graph
            .edges(at)
            .filter_map(|edge| {
                let Joint::Trunk { ends, speed_mbps } = edge.weight() else { return None };
                let other = if edge.source() == at { edge.target() } else { edge.source() };
                Some((other, ends.iter().find(|end| end.switch == *name)?, *speed_mbps))
            })
            .collect();
        links.sort_by_key(|(_, end, _)| natural(&end.port));
        links
    }

    /// Walks from a switch downhill and gives each way to `found`, until it says that it has enough.
    fn follow(
        &self,
        at: NodeIndex,
        distances: &BTreeMap<NodeIndex, u32>,
        so_far: &mut Vec<(SwitchPort, Option<Fork>, u32)>,
        found: &mut Found<'_>,
    ) -> bool {
        let Some(&distance) = distances.get(&at) else { return true };
        if distance == 0 {
            let exits: Vec<SwitchPort> = so_far.iter().map(|(exit, ..)| exit.clone()).collect();
            let forks: Vec<Fork> = so_far.iter().filter_map(|(_, fork, _)| *fork).collect();
            let speed_mbps = so_far.iter().map(|&(.., speed)| speed).min().unwrap_or(u32::MAX);
            return found(&exits, &forks, speed_mbps);
        }
        let Vertex::Switch { hash, .. } = &self.graph[at] else { return true };
        let is_nearer = |next: &NodeIndex| distances.get(next).is_some_and(|&other| other + 1 == distance);
        let nearer: Vec<_> = self.trunks(at).into_iter().filter(|(next, ..)| is_nearer(next)).collect();
        for (wanted, &(next, exit, speed_mbps)) in nearer.iter().enumerate() {
            let fork = (nearer.len() > 1).then_some(Fork { hash: *hash, links: nearer.len(), wanted });
            so_far.push((exit.clone(), fork, speed_mbps));
            let wants_more = self.follow(next, distances, so_far, found);
            so_far.pop();
            if !wants_more {
                return false;
            }
        }
        true
    }

    /// The smaller the better.
    fn rank(&self, way: &Way, wish: &Wish) -> (bool, u8, usize, std::cmp::Reverse<u32>, PortName, PortName) {
        let of = |name: &PortName| match self.ports.get(name).map(|&at| &self.graph[at]) {
            Some(Vertex::Port { numa_node, rail, .. }) => (*numa_node, *rail),
            _ => (None, None),
        };
        let ((here, rail), (there, peer_rail)) = (of(&way.from), of(&way.to));
        let far = |is: Option<u32>, wished: Option<u32>| u8::from(wished.is_some() && is.is_some() && is != wished);
        let crosses = rail.is_some() && peer_rail.is_some() && rail != peer_rail;
        let distance = far(here, wish.numa_node) + far(there, wish.peer_numa_node);
        let names = (way.from.clone(), way.to.clone());
        (crosses, distance, way.exits.len(), std::cmp::Reverse(way.speed_mbps), names.0, names.1)
    }
}

/// Link-local and loopback addresses only reach their own kind.
pub(super) fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

/// Names with numbers in them in the order in which people count: `swp2` before `swp10`.
pub fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(word);
        let digits = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (number, tail) = tail.split_at(digits);
        parts.push((text.to_owned(), number.parse().unwrap_or(if number.is_empty() { 0 } else { u64::MAX })));
        rest = tail;
    }
    parts
}
