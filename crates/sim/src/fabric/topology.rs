//! Which hosts, switches and links there are: the built-in kinds, and tables from CSV. A topology is checked before anything runs on it: whoever
//! cannot be reached and links without rate are refused by name.

use super::time::Ps;

/// Rate of a link at most, in bits a second.
pub const MOST_BPS: u64 = 3_200_000_000_000;

/// Time on the wire of a link at most.
pub const MOST_DELAY: Ps = Ps(1_000_000_000_000);

/// Why a topology cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Index of the link that is wrong, or that leads to the host that is.
    pub link: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl From<Wrong> for String {
    fn from(wrong: Wrong) -> Self {
        wrong.message
    }
}

/// A link between two nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// One end.
    pub a: u32,
    /// The other end.
    pub b: u32,
    /// Bits a second, in each direction.
    pub bps: u64,
    /// Time on the wire.
    pub delay: Ps,
    /// Packets in ten million that get lost on it.
    pub loss_e7: u32,
}

/// Nodes and links. Hosts are numbered from 0, switches follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// How many hosts.
    pub hosts: u32,
    /// How many switches.
    pub switches: u32,
    /// All links.
    pub links: Vec<Link>,
    /// Hosts that belong together, as the NICs of one server do: host divided by this. 1: each host by itself.
    pub rails: u32,
    /// Layer of each switch, from the hosts up: 0 leaf, 1 spine or aggregation, 2 core.
    pub layers: Vec<u8>,
}

/// Rate and delay of a kind of links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// Bits a second.
    pub bps: u64,
    /// Time on the wire.
    pub delay: Ps,
}

impl Topology {
    fn new(hosts: u32) -> Self {
        Self { hosts, rails: 1, ..Self::default() }
    }

    fn switch(&mut self, layer: u8) -> u32 {
        self.switches += 1;
        self.layers.push(layer);
        self.hosts + self.switches - 1
    }

    fn link(&mut self, a: u32, b: u32, wire: Wire) {
        self.links.push(Link { a, b, bps: wire.bps, delay: wire.delay, loss_e7: 0 });
    }

    /// All hosts on one switch.
    pub fn star(hosts: u32, wire: Wire) -> Self {
        let mut topology = Self::new(hosts);
        let switch = topology.switch(0);
        for host in 0..hosts {
            topology.link(host, switch, wire);
        }
        topology
    }

    /// Half of the hosts on each of two switches with one link between them.
    pub fn dumbbell(hosts: u32, wire: Wire, middle: Wire) -> Self {
        let mut topology = Self::new(hosts);
        let (left, right) = (topology.switch(0), topology.switch(0));
        for host in 0..hosts {
            topology.link(host, if host < hosts / 2 { left } else { right }, wire);
        }
        topology.link(left, right, middle);
        topology
    }

    /// `leaves` switches with `hosts_per_leaf` hosts each, every one linked to every one of `spines` switches.
    pub fn leaf_spine(leaves: u32, hosts_per_leaf: u32, spines: u32, wire: Wire, up: Wire) -> Self {
        let mut topology = Self::new(leaves * hosts_per_leaf);
        let leaf: Vec<u32> = (0..leaves).map(|_| topology.switch(0)).collect();
        let spine: Vec<u32> = (0..spines).map(|_| topology.switch(1)).collect();
        for host in 0..topology.hosts {
            topology.link(host, leaf[(host / hosts_per_leaf) as usize], wire);
        }
        for &a in &leaf {
            for &b in &spine {
                topology.link(a, b, up);
            }
        }
        topology
    }

    /// The fat tree of switches with `k` ports, k even: k pods of k/2 leaves and k/2 aggregation switches, k²/4 cores, k³/4 hosts.
    pub fn fat_tree(k: u32, wire: Wire, up: Wire) -> Self {
        let half = k / 2;
        let mut topology = Self::new(k * half * half);
        let leaf: Vec<u32> = (0..k * half).map(|_| topology.switch(0)).collect();
        let aggregation: Vec<u32> = (0..k * half).map(|_| topology.switch(1)).collect();
        let core: Vec<u32> = (0..half * half).map(|_| topology.switch(2)).collect();
        for host in 0..topology.hosts {
            topology.link(host, leaf[(host / half) as usize], wire);
        }
        for pod in 0..k {
            for a in 0..half {
                for b in 0..half {
                    topology.link(leaf[(pod * half + a) as usize], aggregation[(pod * half + b) as usize], up);
                }
            }
            for a in 0..half {
                for c in 0..half {
                    topology.link(aggregation[(pod * half + a) as usize], core[(a * half + c) as usize], up);
                }
            }
        }
        topology
    }

    /// Pods as Facebook built them in 2014: each has `leaves` leaf switches with `hosts_per_leaf` hosts, and one fabric switch of each of `planes` planes, to which
    /// every leaf of the pod has a link. A plane has `spines` spine switches, each with a link to that plane's fabric switch of every pod.
    pub fn pods(pods: u32, leaves: u32, hosts_per_leaf: u32, planes: u32, spines: u32, wire: Wire, up: Wire) -> Self {
        let mut topology = Self::new(pods * leaves * hosts_per_leaf);
        let leaf: Vec<u32> = (0..pods * leaves).map(|_| topology.switch(0)).collect();
        let fabric: Vec<u32> = (0..pods * planes).map(|_| topology.switch(1)).collect();
        let spine: Vec<u32> = (0..planes * spines).map(|_| topology.switch(2)).collect();
        for host in 0..topology.hosts {
            topology.link(host, leaf[(host / hosts_per_leaf) as usize], wire);
        }
        for pod in 0..pods {
            for plane in 0..planes {
                let own = fabric[(pod * planes + plane) as usize];
                for a in 0..leaves {
                    topology.link(leaf[(pod * leaves + a) as usize], own, up);
                }
                for s in 0..spines {
                    topology.link(own, spine[(plane * spines + s) as usize], up);
                }
            }
        }
        topology
    }

    /// Servers with `rails` NICs each: NIC r of every server of a group of `servers_per_group` hangs on rail switch r of the group; rail
    /// switches of all groups meet at `spines` switches. Host number: server x rails + rail.
    pub fn rails(servers: u32, rails: u32, servers_per_group: u32, spines: u32, wire: Wire, up: Wire) -> Self {
        let mut topology = Self::new(servers * rails);
        topology.rails = rails;
        let groups = servers.div_ceil(servers_per_group.max(1));
        let leaf: Vec<u32> = (0..groups * rails).map(|_| topology.switch(0)).collect();
        for server in 0..servers {
            for rail in 0..rails {
                let group = server / servers_per_group.max(1);
                topology.link(server * rails + rail, leaf[(group * rails + rail) as usize], wire);
            }
        }
        let spine: Vec<u32> = (0..spines).map(|_| topology.switch(1)).collect();
        for &a in &leaf {
            for &b in &spine {
                topology.link(a, b, up);
            }
        }
        topology
    }

    /// Links of each node, with the other end.
    pub fn neighbours(&self) -> Vec<Vec<(u32, u32)>> {
        let mut all = vec![Vec::new(); (self.hosts + self.switches) as usize];
        for (index, link) in self.links.iter().enumerate() {
            all[link.a as usize].push((link.b, index as u32));
            all[link.b as usize].push((link.a, index as u32));
        }
        all
    }

    /// What a person calls a node.
    pub fn name(&self, node: u32) -> String {
        if node < self.hosts {
            return if self.rails > 1 {
                format!("server {} nic {}", node / self.rails, node % self.rails)
            } else {
                format!("host {node}")
            };
        }
        let index = (node - self.hosts) as usize;
        let layer = self.layers.get(index).copied().unwrap_or(0);
        let within = self.layers[..index.min(self.layers.len())].iter().filter(|other| **other == layer).count();
        format!("{} {within}", ["leaf", "spine", "core"].get(usize::from(layer)).unwrap_or(&"switch"))
    }

    /// Refuses what cannot run.
    pub fn check(&self) -> Result<(), Wrong> {
        let wrong = |link, message| Err(Wrong { link, message });
        if self.hosts < 2 {
            return wrong(None, format!("there are {} hosts; traffic needs at least two", self.hosts));
        }
        for (index, link) in self.links.iter().enumerate() {
            let (place, ends) =
                (Some(index), || format!("the link between {} and {}", self.name(link.a), self.name(link.b)));
            if link.bps == 0 {
                return wrong(place, format!("{} has rate 0: give it one, or leave the link out", ends()));
            }
            if link.bps > MOST_BPS {
                return wrong(place, format!("{} has {} b/s; at most 3.2 Tb/s are modelled", ends(), link.bps));
            }
            if link.delay > MOST_DELAY {
                return wrong(place, format!("{} has a delay of {}; at most 1 s is modelled", ends(), link.delay));
            }
            if link.a == link.b {
                return wrong(place, format!("{} leads to where it begins", ends()));
            }
            if link.a.max(link.b) < self.hosts {
                return wrong(place, format!("{} has no switch: put one between them", ends()));
            }
        }
        let neighbours = self.neighbours();
        for host in 0..self.hosts {
            match neighbours[host as usize].as_slice() {
                [] => return wrong(None, format!("{} has no link: nobody reaches it", self.name(host))),
                [_] => {}
                [_, (_, second), ..] => {
                    return wrong(
                        Some(*second as usize),
                        format!(
                            "{} has {} links; a host has one port here: model each NIC as a host of its own (kind \"rails\")",
                            self.name(host),
                            neighbours[host as usize].len()
                        ),
                    );
                }
            }
        }
        let mut seen = vec![false; neighbours.len()];
        let mut stack = vec![0_u32];
        seen[0] = true;
        while let Some(node) = stack.pop() {
            for &(other, _) in &neighbours[node as usize] {
                // Hosts forward nothing.
                if !std::mem::replace(&mut seen[other as usize], true) && other >= self.hosts {
                    stack.push(other);
                }
            }
        }
        match (0..self.hosts).find(|host| !seen[*host as usize]) {
            Some(host) => {
                let link = neighbours[host as usize].first().map(|(_, link)| *link as usize);
                wrong(link, format!("{} cannot be reached from {}", self.name(host), self.name(0)))
            }
            None => Ok(()),
        }
    }

    /// Reads `node_a,kind_a,node_b,kind_b,gbps,delay_ns`, hosts numbered from 0 and before the switches. The error names the line and the field.
    pub fn from_csv(text: &str, name: &str) -> Result<Self, String> {
        const HEAD: &str = "node_a,kind_a,node_b,kind_b,gbps,delay_ns";
        let mut rows = super::csv::rows(text, name, HEAD)?;
        let mut topology = Self { rails: 1, ..Self::default() };
        // What each node is, and which line said so first; the line of each link.
        let mut is_host: Vec<Option<(bool, usize)>> = Vec::new();
        let mut lines = Vec::new();
        while let Some(row) = rows.next_row()? {
            let mut ends = [0_u32; 2];
            for (end, (node, kind)) in ends.iter_mut().zip([(0, 1), (2, 3)]) {
                *end = row.number(node, 0, 10_000_000)? as u32;
                let host = match row.text(kind) {
                    "host" => true,
                    "switch" => false,
                    _ => return Err(row.wrong(kind, "\"host\" or \"switch\"")),
                };
                if is_host.len() <= *end as usize {
                    is_host.resize(*end as usize + 1, None);
                }
                if is_host[*end as usize].get_or_insert((host, row.line)).0 != host {
                    return Err(row.wrong(kind, "the kind that an earlier line gave the node"));
                }
            }
            let gbps = row.real(4, 0.0, 3_200.0)?;
            if gbps <= 0.0 {
                return Err(row.wrong(4, "a rate above 0"));
            }
            let delay = Ps::from_ns(row.number(5, 0, 1_000_000_000)?);
            let bps = (gbps * 1e9).round() as u64;
            if bps < 1_000 {
                return Err(row.wrong(4, "a rate of at least 0.000001, which is 1 kb/s"));
            }
            topology.links.push(Link { a: ends[0], b: ends[1], bps, delay, loss_e7: 0 });
            lines.push(row.line);
        }
        topology.hosts = is_host.iter().take_while(|kind| matches!(kind, Some((true, _)))).count() as u32;
        for (node, kind) in is_host.iter().enumerate() {
            match kind {
                Some((true, line)) if node >= topology.hosts as usize => {
                    return Err(format!(
                        "{name}:{line}: node {node} is a host, but a lower number is no host: hosts come first, without gaps"
                    ));
                }
                None => return Err(format!("{name}: no line has node {node}: number the nodes without gaps")),
                _ => {}
            }
        }
        topology.switches = is_host.len() as u32 - topology.hosts;
        topology.find_layers();
        topology.check().map_err(|wrong| match wrong.link {
            Some(link) => {
                let end = if topology.links[link].a < topology.hosts { "node_a" } else { "node_b" };
                format!("{name}:{}: {end}: {}", lines[link], wrong.message)
            }
            None => format!("{name}: {}", wrong.message),
        })?;
        Ok(topology)
    }

    /// Layers by distance from the nearest host.
    fn find_layers(&mut self) {
        let neighbours = self.neighbours();
        let mut distance = vec![u8::MAX; neighbours.len()];
        let mut front: Vec<u32> = (0..self.hosts).collect();
        front.iter().for_each(|host| distance[*host as usize] = 0);
        let mut steps = 0_u8;
        while !front.is_empty() && steps < 250 {
            steps += 1;
            let mut next = Vec::new();
            for node in front {
                for &(other, _) in &neighbours[node as usize] {
                    if distance[other as usize] == u8::MAX {
                        distance[other as usize] = steps;
                        next.push(other);
                    }
                }
            }
            front = next;
        }
        self.layers = distance[self.hosts as usize..].iter().map(|steps| steps.saturating_sub(1)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: Wire = Wire { bps: 100_000_000_000, delay: Ps(1_000_000) };

    #[test]
    fn built_in_kinds_have_the_sizes_of_the_books() {
        let tree = Topology::fat_tree(8, WIRE, WIRE);
        assert_eq!((tree.hosts, tree.switches, tree.links.len()), (128, 80, 384));
        let leaf_spine = Topology::leaf_spine(4, 16, 2, WIRE, WIRE);
        assert_eq!((leaf_spine.hosts, leaf_spine.switches, leaf_spine.links.len()), (64, 6, 72));
        let rails = Topology::rails(8, 8, 4, 4, WIRE, WIRE);
        assert_eq!((rails.hosts, rails.switches, rails.links.len()), (64, 20, 128));
        let pods = Topology::pods(4, 4, 16, 4, 2, WIRE, WIRE);
        assert_eq!((pods.hosts, pods.switches, pods.links.len()), (256, 16 + 16 + 8, 256 + 64 + 32));
        for topology in [tree, leaf_spine, rails, pods, Topology::star(17, WIRE), Topology::dumbbell(4, WIRE, WIRE)] {
            topology.check().unwrap();
        }
    }

    #[test]
    fn what_cannot_run_is_refused_by_name() {
        let mut star = Topology::star(3, WIRE);
        star.links[1].bps = 0;
        assert!(star.check().unwrap_err().message.contains("host 1 and leaf 0 has rate 0"));
        let mut star = Topology::star(3, WIRE);
        star.links.remove(2);
        assert!(star.check().unwrap_err().message.contains("host 2 has no link"));
        let apart = Topology::rails(4, 2, 2, 0, WIRE, WIRE);
        assert!(apart.check().unwrap_err().message.contains("server 0 nic 1 cannot be reached"));
        assert!(Topology::star(1, WIRE).check().unwrap_err().message.contains("at least two"));
    }

    #[test]
    fn a_table_is_read_and_its_faults_are_placed() {
        let head = "node_a,kind_a,node_b,kind_b,gbps,delay_ns\n";
        let good = format!("{head}0,host,2,switch,100,1000\n1,host,2,switch,25,500\n");
        let topology = Topology::from_csv(&good, "t.csv").unwrap();
        assert_eq!((topology.hosts, topology.switches, topology.links[1].bps), (2, 1, 25_000_000_000));
        for (line, expected) in [
            ("0,host,2,router,100,1000", "t.csv:2: kind_b"),
            ("0,host,2,switch,fast,1000", "t.csv:2: gbps"),
            ("0,host,2,switch,100", "t.csv:2: 5 fields"),
            ("0,host,2,switch,0,1000", "t.csv:2: gbps"),
        ] {
            let message = Topology::from_csv(&format!("{head}{line}\n"), "t.csv").unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        for (lines, expected) in [
            ("0,host,2,switch,100,1\n1,host,3,switch,100,1\n", "t.csv:3: node_a: host 1 cannot be reached from host 0"),
            (
                "0,host,2,switch,100,1\n2,switch,1,host,1,1\n1,host,2,switch,1,1\n",
                "t.csv:4: node_a: host 1 has 2 links",
            ),
            (
                "0,host,2,switch,100,1\n1,host,1,host,100,1\n",
                "t.csv:3: node_a: the link between host 1 and host 1 leads",
            ),
            ("0,host,1,host,100,1\n", "t.csv:2: node_a: the link between host 0 and host 1 has no switch"),
            (
                "0,host,1,switch,100,1\n2,host,1,switch,100,1\n",
                "t.csv:3: node 2 is a host, but a lower number is no host",
            ),
            ("0,host,3,switch,100,1\n1,host,3,switch,100,1\n", "t.csv: no line has node 2"),
        ] {
            let message = Topology::from_csv(&format!("{head}{lines}"), "t.csv").unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        let message = Topology::from_csv("a,b\n", "t.csv").unwrap_err();
        assert!(message.contains("t.csv:1") && message.contains("node_a"), "{message}");
    }
}
