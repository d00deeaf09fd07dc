//! What `sfab up` starts, as data: nodes with their addresses and files, connections with what they carry and how fast, and which port becomes hot. Everybody
//! who takes part computes it anew from the same few numbers. It starts nothing.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Bytes of a WRITE of a stream, unless `--block` says otherwise.
pub const BLOCK_BYTES: u32 = 1 << 20;

/// Streams that make the port hot.
const HOT_STREAMS: usize = 8;

/// What the hot port is asked to carry by those streams, thousandths of its rate. With headers and the rest of the traffic it is some 90 %.
const HOT_PERMILLE: u64 = 820;

/// What they carry before.
const WARM_PERMILLE: u64 = 60;

/// What an ordinary stream, or the READs of a node, carry.
const STREAM_PERMILLE: u64 = 50;

/// READs of this size.
pub const READ_BYTES: u32 = 64 << 10;

/// Small operations of a connection, in a second.
const SMALL_PER_SECOND: u64 = 100;

/// The service of the memory and of the calls of a node.
pub fn service(node: &str, traffic: Traffic) -> String {
    let kind = match traffic {
        Traffic::PingPong => "ping",
        Traffic::Stream => "stream",
        Traffic::Read => "read",
        Traffic::Atomic => "atomic",
        Traffic::Call => "call",
    };
    format!("{kind}.{node}")
}

/// Kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// 8 bytes by WRITE with immediate there and back.
    PingPong,
    /// Large WRITEs, some of them read back.
    Stream,
    /// READs of bytes that the other side made.
    Read,
    /// Fetch and add.
    Atomic,
    /// Calls over SEND.
    Call,
}

impl Traffic {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::PingPong, Self::Stream, Self::Read, Self::Atomic, Self::Call];

    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "8 B WRITE ping-pong",
            Self::Stream => "WRITE streams",
            Self::Read => "64 KiB READ",
            Self::Atomic => "fetch and add",
            Self::Call => "RPC over SEND",
        }
    }
}

/// A connection that a node makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it carries.
    pub traffic: Traffic,
    /// The other node, by its place.
    pub to: usize,
    /// The port that it begins on, from 1; at the other node, too.
    pub port_num: u8,
    /// Operations a second, in thousandths.
    pub rate_mhz: u64,
    /// The same once the port is made hot.
    pub hot_rate_mhz: u64,
}

/// Where ports have their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ground {
    /// On the loopback, in a part of 127.0.0.0/8 that the number chooses.
    Loopback(u32),
    /// In network namespaces, on interfaces of their own. The number names them.
    Namespaces(u32),
}

/// The plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Nodes.
    pub nodes: usize,
    /// Ports of each, 1 or 2.
    pub ports: u8,
    /// What a port is taken to carry, Mb/s.
    pub port_rate_mbps: u64,
    /// Bytes of a stream's WRITE.
    pub block_bytes: u32,
    /// Where ports have their addresses.
    pub ground: Ground,
    /// The folder that holds everything.
    pub folder: PathBuf,
}

/// The port that is made hot: of the first node, the first.
pub const HOT: (usize, u8) = (0, 1);

impl Plan {
    fn number(&self) -> u32 {
        match self.ground {
            Ground::Loopback(number) | Ground::Namespaces(number) => number,
        }
    }

    /// Name of a node.
    pub fn node(&self, place: usize) -> String {
        format!("n{}", place + 1)
    }

    /// Name of its device: processes of one user find one another by it, so no other `sfab up` has the same.
    pub fn device(&self, place: usize) -> String {
        format!("up{}-n{}", self.number(), place + 1)
    }

    /// Name of its network namespace.
    pub fn namespace(&self, place: usize) -> String {
        format!("sfab-up-{}-n{}", self.number(), place + 1)
    }

    /// Name of the interface of a port in a namespace: at most 15 bytes.
    pub fn interface(&self, place: usize, port_num: u8) -> String {
        match self.ground {
            Ground::Loopback(_) => "lo".into(),
            Ground::Namespaces(number) => format!("sf{number}-{}p{port_num}", place + 1),
        }
    }

    /// Address of a port. Ports of the same number are the nearest to one another, so that a connection that begins on one ends on its like.
    pub fn address(&self, place: usize, port_num: u8) -> IpAddr {
        let host = place as u8 + 1;
        let rail = port_num - 1;
        IpAddr::V4(match self.ground {
            Ground::Loopback(number) => {
                Ipv4Addr::new(127, 64 + ((number >> 8) % 190) as u8, number as u8, (rail << 5) | host)
            }
            Ground::Namespaces(_) => Ipv4Addr::new(10, 77, rail, host),
        })
    }

    /// The file that a node's NIC is told by.
    pub fn nic_file(&self, place: usize) -> PathBuf {
        self.folder.join(format!("{}.nic.toml", self.node(place)))
    }

    /// What stands in it.
    pub fn nic_text(&self, place: usize) -> String {
        let mut text = format!("automatic = false\n\n[[device]]\nname = \"{}\"\n", self.device(place));
        for port_num in 1..=self.ports {
            let (interface, address) = (self.interface(place, port_num), self.address(place, port_num));
            text += &format!("[[device.port]]\ninterface = \"{interface}\"\naddresses = [\"{address}\"]\n");
        }
        text
    }

    /// The socket of a node's agent.
    pub fn socket(&self, place: usize) -> PathBuf {
        self.folder.join(format!("{}.agent.sock", self.node(place)))
    }

    /// The file in which a node's processes remember.
    pub fn memory(&self, place: usize) -> PathBuf {
        self.folder.join(format!("{}.directory.json", self.node(place)))
    }

    /// Whether there is a port to make hot, and another to go to.
    pub fn can_heat(&self) -> bool {
        self.ports > 1
    }

    /// The connections that a node makes.
    pub fn lines(&self, place: usize) -> Vec<Line> {
        let other = |step: usize| (place + step) % self.nodes;
        let port = |number: usize| if self.ports == 1 { 1 } else { 1 + (number % 2) as u8 };
        let small = |traffic, to, port_num| {
            let rate_mhz = SMALL_PER_SECOND * 1000;
            Line { traffic, to, port_num, rate_mhz, hot_rate_mhz: rate_mhz }
        };
        let large = |traffic, to, port_num, bytes, permille, hot_permille| Line {
            traffic,
            to,
            port_num,
            rate_mhz: self.rate_mhz(bytes, permille),
            hot_rate_mhz: self.rate_mhz(bytes, hot_permille),
        };
        let stream =
            |to, port_num| large(Traffic::Stream, to, port_num, self.block_bytes, STREAM_PERMILLE, STREAM_PERMILLE);
        let mut lines = vec![
            small(Traffic::PingPong, other(1), port(place)),
            small(Traffic::Atomic, other(1), port(place + 1)),
            small(Traffic::Call, other(2), port(place)),
            large(Traffic::Read, other(2), port(place + 1), READ_BYTES, STREAM_PERMILLE, STREAM_PERMILLE),
            stream(other(1), port(0)),
            stream(other(2), port(1)),
        ];
        if place == HOT.0 && self.can_heat() {
            let each = |permille: u64| permille / HOT_STREAMS as u64;
            lines.extend((0..HOT_STREAMS).map(|number| {
                let to = 1 + number % (self.nodes - 1);
                large(Traffic::Stream, to, HOT.1, self.block_bytes, each(WARM_PERMILLE), each(HOT_PERMILLE))
            }));
        }
        lines
    }

    /// Operations of so many bytes in a second that fill so much of a port, both in thousandths.
    fn rate_mhz(&self, bytes: u32, permille: u64) -> u64 {
        let bits_per_second = self.port_rate_mbps * 1000 * permille;
        (bits_per_second * 1000 / (u64::from(bytes) * 8)).max(1)
    }

    /// Connections in all.
    pub fn connections(&self) -> usize {
        (0..self.nodes).map(|place| self.lines(place).len()).sum()
    }

    /// Where the plan is written for those who take part.
    pub fn file(&self) -> PathBuf {
        self.folder.join("plan.json")
    }

    /// Reads it.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plan(nodes: usize, ports: u8) -> Plan {
        Plan {
            nodes,
            ports,
            port_rate_mbps: 400,
            block_bytes: BLOCK_BYTES,
            ground: Ground::Loopback(4_194_303),
            folder: "/tmp/x".into(),
        }
    }

    #[test]
    fn no_two_ports_have_the_same_address_and_none_is_that_of_the_network() {
        let plan = plan(16, 2);
        let all: BTreeSet<IpAddr> =
            (0..16).flat_map(|place| [1, 2].map(|port_num| plan.address(place, port_num))).collect();
        assert_eq!(all.len(), 32);
        assert!(all.iter().all(|address| address.is_loopback()));
    }

    #[test]
    fn a_port_is_nearest_to_its_like() {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => u32::from(v4),
            IpAddr::V6(_) => unreachable!(),
        };
        for ground in [Ground::Loopback(77), Ground::Namespaces(77)] {
            let plan = Plan { ground, ..plan(16, 2) };
            for (a, b) in (0..16).flat_map(|a| (0..16).map(move |b| (a, b))).filter(|(a, b)| a != b) {
                let near = bits(plan.address(a, 1)) ^ bits(plan.address(b, 1));
                let across = bits(plan.address(a, 1)) ^ bits(plan.address(b, 2));
                assert!(near.leading_zeros() > across.leading_zeros(), "{a} {b}");
            }
        }
    }

    #[test]
    fn nobody_connects_to_himself_and_interfaces_have_names_that_the_kernel_takes() {
        for nodes in 3..=16 {
            let plan = Plan { ground: Ground::Namespaces(4_194_303), ..plan(nodes, 2) };
            for place in 0..nodes {
                assert!(plan.lines(place).iter().all(|line| line.to != place && line.to < nodes));
                assert!(plan.interface(place, 2).len() <= 15, "{}", plan.interface(place, 2));
            }
        }
    }

    #[test]
    fn before_it_is_made_hot_no_port_is_and_afterwards_one_is() {
        for nodes in [3, 4, 16] {
            let plan = plan(nodes, 2);
            let load = |rate: fn(&Line) -> u64, port_num: u8| -> u64 {
                let on = |line: &&Line| line.port_num == port_num && line.traffic == Traffic::Stream;
                let streams = plan.lines(0);
                let bits: u64 = streams.iter().filter(on).map(|line| rate(line) * u64::from(BLOCK_BYTES) * 8).sum();
                bits / (plan.port_rate_mbps * 1_000_000)
            };
            assert!((50..300).contains(&load(|line| line.rate_mhz, 1)), "{}", load(|line| line.rate_mhz, 1));
            assert!((800..900).contains(&load(|line| line.hot_rate_mhz, 1)), "{}", load(|line| line.hot_rate_mhz, 1));
            assert!(load(|line| line.hot_rate_mhz, 2) < 100);
        }
    }
}
