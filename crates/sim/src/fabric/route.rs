//! Ways: for each switch and destination the ports that lead there by the fewest hops. Hosts on one switch share an entry. Computed from the
//! topology and the links that are up; it chooses nothing.

use super::topology::Topology;

/// No way.
const NOWHERE: u32 = 0;

/// The table of all switches.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    hosts: u32,
    /// For each host: its switch, as an index among the switches, and the port there that leads to it.
    homes: Vec<(u32, u32)>,
    switches: u32,
    /// For each switch and each destination switch: which set of ports.
    sets: Vec<u32>,
    /// Where each set begins in `members`; set 0 is empty.
    starts: Vec<u32>,
    members: Vec<u32>,
}

impl Routes {
    /// Of the links for which `is_up` says so. A link i has the ports 2i (at its end a) and 2i+1 (at b).
    pub fn new(topology: &Topology, is_up: impl Fn(u32) -> bool) -> Self {
        let (hosts, switches) = (topology.hosts, topology.switches);
        // For each switch: other switches, and by which port of its own.
        let mut edges: Vec<Vec<(u32, u32)>> = vec![Vec::new(); switches as usize];
        let mut homes = vec![(u32::MAX, u32::MAX); hosts as usize];
        for (index, link) in (0_u32..).zip(&topology.links) {
            for (from, to, port) in [(link.a, link.b, 2 * index), (link.b, link.a, 2 * index + 1)] {
                if from < hosts {
                    continue;
                }
                if to < hosts {
                    homes[to as usize] = (from - hosts, port);
                } else if is_up(index) {
                    edges[(from - hosts) as usize].push((to - hosts, port));
                }
            }
        }
        let mut routes = Self {
            hosts,
            homes,
            switches,
            sets: vec![NOWHERE; (switches as usize) * (switches as usize)],
            starts: vec![0, 0],
            members: Vec::new(),
        };
        let mut known: std::collections::BTreeMap<Vec<u32>, u32> = std::collections::BTreeMap::new();
        let mut is_home = vec![false; switches as usize];
        routes.homes.iter().filter(|home| home.0 != u32::MAX).for_each(|home| is_home[home.0 as usize] = true);
        let mut distance = vec![u32::MAX; switches as usize];
        for target in (0..switches).filter(|switch| is_home[*switch as usize]) {
            distance.fill(u32::MAX);
            distance[target as usize] = 0;
            let mut front = vec![target];
            let mut order = Vec::new();
            while !front.is_empty() {
                let mut next = Vec::new();
                for &switch in &front {
                    for &(other, _) in &edges[switch as usize] {
                        if distance[other as usize] == u32::MAX {
                            distance[other as usize] = distance[switch as usize] + 1;
                            next.push(other);
                        }
                    }
                }
                order.extend(next.iter().copied());
                front = next;
            }
            for switch in order {
                let nearer = distance[switch as usize] - 1;
                let ports: Vec<u32> = edges[switch as usize]
                    .iter()
                    .filter(|(other, _)| distance[*other as usize] == nearer)
                    .map(|(_, port)| *port)
                    .collect();
                let set = *known.entry(ports).or_insert_with_key(|ports| {
                    routes.members.extend(ports);
                    routes.starts.push(routes.members.len() as u32);
                    routes.starts.len() as u32 - 2
                });
                routes.sets[(switch * switches + target) as usize] = set;
            }
        }
        routes
    }

    /// The ports of `switch` (an index among the switches) that lead to a host; empty if none does.
    #[inline]
    pub fn ports(&self, switch: u32, host: u32) -> &[u32] {
        let (home, port) = &self.homes[host as usize];
        if *home == switch {
            return std::slice::from_ref(port);
        }
        let set = self.sets[(switch * self.switches + *home) as usize] as usize;
        &self.members[self.starts[set] as usize..self.starts[set + 1] as usize]
    }

    /// The switch of a host, as an index among the switches.
    pub fn home(&self, host: u32) -> u32 {
        self.homes[host as usize].0
    }

    /// One host of each switch that has some.
    pub fn representatives(&self) -> Vec<u32> {
        let mut seen = vec![false; self.switches as usize];
        (0..self.hosts)
            .filter(|host| match self.homes[*host as usize].0 {
                u32::MAX => false,
                home => !std::mem::replace(&mut seen[home as usize], true),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::time::Ps;
    use super::super::topology::Wire;
    use super::*;

    const WIRE: Wire = Wire { bps: 100_000_000_000, delay: Ps(1_000_000) };

    #[test]
    fn a_fat_tree_has_the_ways_it_should() {
        let tree = Topology::fat_tree(4, WIRE, WIRE);
        let routes = Routes::new(&tree, |_| true);
        // From leaf 0: host 0 by one port, host 2 (same pod) by two, host 15 by two; from an aggregation switch to another pod by two.
        assert_eq!([0, 2, 15].map(|host| routes.ports(0, host).len()), [1, 2, 2]);
        assert_eq!((routes.ports(8, 15).len(), routes.ports(8, 0).len()), (2, 1));
        assert_eq!(routes.representatives().len(), 8);
    }

    #[test]
    fn a_link_that_is_down_is_avoided() {
        let topology = Topology::leaf_spine(2, 1, 2, WIRE, WIRE);
        // Links 0 and 1 lead to hosts; 2 is leaf 0 - spine 0.
        let routes = Routes::new(&topology, |link| link != 2);
        assert_eq!(routes.ports(0, 1), [2 * 3]);
        assert!(Routes::new(&topology, |link| link < 2).ports(0, 1).is_empty());
    }
}
