//! Ways through the fabric: which links a flow takes, how long a round trip is without queues, and how long a message would take alone.

use super::super::time::{Ps, span};
use super::World;
use crate::random::mix;
use scalefabric_transport::congestion::Route;

/// Links of a way at most.
const LONGEST: usize = 32;

/// What switches hash of a QP: addresses and source port.
pub(in crate::fabric) fn entropy(from: u32, to: u32, source_port: u64) -> u32 {
    let addresses = (u64::from(from) << 32) | u64::from(to);
    mix(addresses ^ mix(source_port.wrapping_add(0x9e37))) as u32
}

/// What a message takes on an idle way: a round trip, and its bytes through the slowest link.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone {
    base: Ps,
    slowest_bps: u64,
    /// Bytes on the wire, and bytes of payload, of a full packet.
    packet: [f64; 2],
}

impl Alone {
    /// What a message of so many bytes takes.
    pub fn time(&self, bytes: u64) -> Ps {
        self.base + span((bytes as f64 * self.packet[0] / self.packet[1]).ceil() as u64, self.slowest_bps)
    }
}

impl World {
    /// The port of a switch that leads to a host.
    pub fn last_port(&self, host: u32) -> u32 {
        self.hosts[host as usize].port ^ 1
    }

    /// The links from one host to another, as ports. `choose` says by which of its ways each switch sends.
    fn walk(&self, from: u32, to: u32, choose: impl Fn(u32, &[u32]) -> Option<u32>) -> impl Iterator<Item = u32> {
        let follow = move |port: &u32| {
            let node = self.ports[*port as usize].peer;
            let is_on_the_way = node != to && node >= self.topology.hosts;
            is_on_the_way.then(|| choose(node, self.routes.ports(node - self.topology.hosts, to))).flatten()
        };
        std::iter::successors(Some(self.hosts[from as usize].port), follow).take(LONGEST)
    }

    /// The links from one host to another, by the first way of each switch, as ports.
    pub fn way(&self, from: u32, to: u32) -> impl Iterator<Item = u32> {
        self.walk(from, to, |_, ways| ways.first().copied())
    }

    /// The links by which a QP with this source port goes from one host to another, as ports, where switches choose by a hash.
    pub fn hashed_way(&self, from: u32, to: u32, source_port: u16) -> impl Iterator<Item = u32> {
        let entropy = entropy(from, to, u64::from(source_port));
        self.walk(from, to, move |node, ways| ways.get(self.hashed(node, entropy, ways.len())).copied())
    }

    /// Which of `count` ways of equal length a switch takes for a flow.
    #[inline]
    pub(in crate::fabric) fn hashed(&self, node: u32, entropy: u32, count: usize) -> usize {
        let hash = mix(u64::from(entropy) << 32 | u64::from(self.hash_seeds[node as usize])) >> 32;
        ((hash * count as u64) >> 32) as usize
    }

    /// Round trip of a full payload without queues, as the reference simulators count it: there and back on every wire, and the payload's time
    /// at each; and the number of switches on the way.
    pub(super) fn base_rtt(&self, from: u32, to: u32) -> (Ps, u8) {
        let (mut rtt, mut links) = (Ps::ZERO, 0_u8);
        for port in self.way(from, to) {
            let port = &self.ports[port as usize];
            rtt += port.delay + port.delay + port.rate.serialise(self.model.host.mtu);
            links += 1;
        }
        (rtt, links - 1)
    }

    pub(super) fn greatest_rtt(&self) -> (Ps, u8) {
        let mut greatest = (Ps::ZERO, 0);
        let some = self.routes.representatives();
        for &from in some.iter().take(64) {
            for &to in &some {
                if from != to {
                    greatest = greatest.max(self.base_rtt(from, to));
                }
            }
        }
        // All on one switch.
        greatest.max(self.base_rtt(0, 1))
    }

    /// How messages from one host to another travel alone.
    pub(super) fn alone(&self, from: u32, to: u32) -> Alone {
        let host = &self.model.host;
        let slowest_bps = self.way(from, to).map(|port| self.ports[port as usize].rate.bps).min().unwrap_or(1);
        let packet = [f64::from(host.mtu + host.header_bytes), f64::from(host.mtu)];
        Alone { base: self.base_rtt(from, to).0, slowest_bps, packet }
    }

    pub(super) fn route_of(&self, from: u32, to: u32) -> Route {
        let (rtt, hops) = if self.model.host.greatest_rtt { self.greatest } else { self.base_rtt(from, to) };
        let mut line = self.ports[self.hosts[from as usize].port as usize].rate.bps;
        if let Some(rate) = self.model.host.qp_rate {
            line = line.min(rate.bps);
        }
        Route { line_rate_bps: line, base_rtt_ps: rtt.0, packet_bytes: self.model.host.mtu, hops: hops.max(1) }
    }
}
