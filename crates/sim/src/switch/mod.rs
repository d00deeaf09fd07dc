//! Software switches: routers that forward IP packets between hosts, choose among links of equal cost by a hash, and count what passes each link. [`Network`] is pure: a
//! packet goes in at a host and comes out at another. [`body`] gives it hosts that are network interfaces, so that the live NIC sends through it.
//!
//! It knows nothing of topologies and of who chooses ways: routes are found here anew, from the links, so that a wrong choice elsewhere shows.

pub mod body;
mod packet;
pub mod queue;
pub mod tun;

use scalefabric_fabric::ecmp::{EcmpHash, Flow};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// A switch, by its place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SwitchId(pub usize);

/// A host, by its place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// A port of a switch.
pub type End = (SwitchId, u16);

/// What passed a link in one direction, counted where it left a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Packets.
    pub packets: u64,
    /// Bytes, IP header included.
    pub bytes: u64,
}

/// Why a packet went nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lost {
    /// It is no IP packet, or a broken one.
    NotIp,
    /// Nobody has its destination, or no link leads there.
    NoRoute,
    /// Its time to live was over.
    TimeToLive,
    /// The host has no link.
    Unplugged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neighbour {
    Switch(End),
    Host(HostId),
}

#[derive(Debug, Default)]
struct Switch {
    hash: EcmpHash,
    neighbours: BTreeMap<u16, Neighbour>,
    /// Ports of equal cost towards each address, in order.
    routes: BTreeMap<IpAddr, Vec<u16>>,
    counters: BTreeMap<u16, LinkCounters>,
}

#[derive(Debug, Default)]
struct Host {
    addresses: Vec<IpAddr>,
    at: Option<End>,
}

/// Switches, links and hosts.
#[derive(Debug, Default)]
pub struct Network {
    switches: Vec<Switch>,
    hosts: Vec<Host>,
    lost: BTreeMap<Lost, u64>,
}

impl Network {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Another switch.
    pub fn add_switch(&mut self, hash: EcmpHash) -> SwitchId {
        self.switches.push(Switch { hash, ..Switch::default() });
        SwitchId(self.switches.len() - 1)
    }

    /// A link between two switches. Whatever was in the two ports is pulled out.
    pub fn link(&mut self, a: End, b: End) {
        self.unlink(a);
        self.unlink(b);
        self.switches[a.0.0].neighbours.insert(a.1, Neighbour::Switch(b));
        self.switches[b.0.0].neighbours.insert(b.1, Neighbour::Switch(a));
        self.find_routes();
    }

    /// Pulls out what is in a port, at both ends.
    pub fn unlink(&mut self, end: End) {
        match self.switches[end.0.0].neighbours.remove(&end.1) {
            Some(Neighbour::Switch(other)) => {
                self.switches[other.0.0].neighbours.remove(&other.1);
            }
            Some(Neighbour::Host(host)) => self.hosts[host.0].at = None,
            None => {}
        }
        self.find_routes();
    }

    /// A host with its addresses, in a port of a switch.
    pub fn attach(&mut self, end: End, addresses: &[IpAddr]) -> HostId {
        self.unlink(end);
        self.hosts.push(Host { addresses: addresses.to_vec(), at: Some(end) });
        let host = HostId(self.hosts.len() - 1);
        self.switches[end.0.0].neighbours.insert(end.1, Neighbour::Host(host));
        self.find_routes();
        host
    }

    /// A host has sent a packet: to whom it comes. The packet is changed as routers change it.
    pub fn forward(&mut self, from: HostId, bytes: &mut [u8]) -> Result<HostId, Lost> {
        let result = self.walk(from, bytes);
        if let Err(lost) = result {
            *self.lost.entry(lost).or_default() += 1;
        }
        result
    }

    /// What left a switch by a port.
    pub fn counters(&self, end: End) -> LinkCounters {
        self.switches[end.0.0].counters.get(&end.1).copied().unwrap_or_default()
    }

    /// Counts from nothing again.
    pub fn reset_counters(&mut self) {
        self.switches.iter_mut().for_each(|switch| switch.counters.clear());
        self.lost.clear();
    }

    /// How many packets were lost, by reason.
    pub fn lost(&self) -> &BTreeMap<Lost, u64> {
        &self.lost
    }

    fn walk(&mut self, from: HostId, bytes: &mut [u8]) -> Result<HostId, Lost> {
        let flow = packet::flow(bytes).ok_or(Lost::NotIp)?;
        let (mut at, _) = self.hosts[from.0].at.ok_or(Lost::Unplugged)?;
        loop {
            if !packet::take_hop(bytes) {
                return Err(Lost::TimeToLive);
            }
            let switch = &mut self.switches[at.0];
            let port = choose(switch, &flow).ok_or(Lost::NoRoute)?;
            let counters = switch.counters.entry(port).or_default();
            counters.packets += 1;
            counters.bytes += bytes.len() as u64;
            match switch.neighbours.get(&port).ok_or(Lost::NoRoute)? {
                Neighbour::Host(host) => return Ok(*host),
                Neighbour::Switch((next, _)) => at = *next,
            }
        }
    }

    /// From each address outward, over all links: whoever is nearer is a way.
    fn find_routes(&mut self) {
        self.switches.iter_mut().for_each(|switch| switch.routes.clear());
        for host in 0..self.hosts.len() {
            let Some((home, port)) = self.hosts[host].at else { continue };
            let mut distances = vec![usize::MAX; self.switches.len()];
            distances[home.0] = 0;
            let mut queue = VecDeque::from([home]);
            while let Some(at) = queue.pop_front() {
                for neighbour in self.switches[at.0].neighbours.values() {
                    if let Neighbour::Switch((next, _)) = neighbour
                        && distances[next.0] == usize::MAX
                    {
                        distances[next.0] = distances[at.0] + 1;
                        queue.push_back(*next);
                    }
                }
            }
            for (n, switch) in self.switches.iter_mut().enumerate() {
                let ports: Vec<u16> = if n == home.0 {
                    vec![port]
                } else {
                    let nearer = |neighbour: &Neighbour| matches!(neighbour, Neighbour::Switch((next, _)) if distances[next.0] < distances[n]);
                    switch.neighbours.iter().filter(|(_, other)| nearer(other)).map(|(&port, _)| port).collect()
                };
                for &address in &self.hosts[host].addresses {
                    switch.routes.insert(address, ports.clone());
                }
            }
        }
    }
}

fn choose(switch: &Switch, flow: &Flow) -> Option<u16> {
    let ports = switch.routes.get(&flow.dst)?;
    ports.get(switch.hash.choose(flow, ports.len())?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// A UDP packet of 30 bytes over IPv4.
    fn packet(from: u8, to: u8, source_port: u16, ttl: u8) -> Vec<u8> {
        let mut bytes = vec![0; 30];
        bytes[0] = 0x45;
        bytes[3] = 30;
        (bytes[8], bytes[9]) = (ttl, 17);
        bytes[12..16].copy_from_slice(&[10, 0, 0, from]);
        bytes[16..20].copy_from_slice(&[10, 0, 0, to]);
        bytes[20..22].copy_from_slice(&source_port.to_be_bytes());
        bytes[22..24].copy_from_slice(&4791_u16.to_be_bytes());
        bytes
    }

    /// Two leaves, joined by four links over two spines.
    fn network() -> (Network, [HostId; 2], SwitchId) {
        let mut network = Network::new();
        let switch = |network: &mut Network, seed| network.add_switch(EcmpHash { seed, ..EcmpHash::default() });
        let [left, right] = [switch(&mut network, 1), switch(&mut network, 2)];
        for n in 0..2 {
            let spine = switch(&mut network, 10 + u32::from(n));
            for lane in 0..2 {
                network.link((left, 10 + 2 * n + lane), (spine, lane));
                network.link((right, 10 + 2 * n + lane), (spine, 10 + lane));
            }
        }
        let hosts = [network.attach((left, 1), &[address(1)]), network.attach((right, 1), &[address(2)])];
        (network, hosts, left)
    }

    #[test]
    fn a_flow_keeps_its_link_and_many_flows_take_all() {
        let (mut network, [a, b], left) = network();
        for source_port in 0xc000..0xc400 {
            assert_eq!(network.forward(a, &mut packet(1, 2, source_port, 64)), Ok(b));
        }
        let counts: Vec<u64> = (10..14).map(|port| network.counters((left, port)).packets).collect();
        assert_eq!(counts.iter().sum::<u64>(), 0x400);
        assert!(counts.iter().all(|&count| count > 0xc0), "{counts:?}");
        network.reset_counters();
        for _ in 0..100 {
            network.forward(a, &mut packet(1, 2, 0xc123, 64)).unwrap();
        }
        let counts: Vec<u64> = (10..14).map(|port| network.counters((left, port)).packets).collect();
        assert_eq!(counts.iter().filter(|&&count| count > 0).collect::<Vec<_>>(), [&100]);
    }

    #[test]
    fn a_cut_link_is_gone_round_and_a_last_one_is_missed() {
        let (mut network, [a, b], left) = network();
        for port in 10..14 {
            assert_eq!(network.forward(a, &mut packet(1, 2, 0xc123, 64)), Ok(b));
            network.unlink((left, port));
        }
        assert_eq!(network.forward(a, &mut packet(1, 2, 0xc123, 64)), Err(Lost::NoRoute));
        assert_eq!(network.lost()[&Lost::NoRoute], 1);
    }

    #[test]
    fn each_switch_takes_one_from_the_time_to_live_and_the_checksum_stays_right() {
        let (mut network, [a, b], _) = network();
        let mut bytes = packet(1, 2, 0xc123, 4);
        let sum = |bytes: &[u8]| {
            let words = bytes[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
            let sum: u32 = words.sum();
            (sum & 0xffff) + (sum >> 16)
        };
        let right = (!sum(&bytes) as u16).to_be_bytes();
        bytes[10..12].copy_from_slice(&right);
        assert_eq!(network.forward(a, &mut bytes), Ok(b));
        assert_eq!((bytes[8], sum(&bytes)), (1, 0xffff));
        assert_eq!(network.forward(a, &mut packet(1, 2, 0xc123, 3)), Err(Lost::TimeToLive));
    }

    #[test]
    fn what_is_no_packet_or_for_nobody_is_lost_with_its_reason() {
        let (mut network, [a, _], _) = network();
        assert_eq!(network.forward(a, &mut [0x45, 0, 0]), Err(Lost::NotIp));
        assert_eq!(network.forward(a, &mut packet(1, 9, 0xc000, 64)), Err(Lost::NoRoute));
    }
}
