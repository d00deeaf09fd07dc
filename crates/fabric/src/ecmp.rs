//! How a switch chooses among links of equal cost, and how a sender chooses back: a model of the hash over a packet's addresses and ports, and the
//! search for a UDP source port that leads through the wanted link of each switch on the way. Pure; the software switch runs the same model.

use scalefabric_verbs::flow_label_of;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The UDP port of RoCEv2 (annex A17).
const ROCE_PORT: u16 = 4791;

/// What a switch hashes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
}

impl Flow {
    /// A flow of RoCEv2.
    pub fn roce(src: IpAddr, dst: IpAddr, source_port: u16) -> Self {
        Self { src, dst, source_port, destination_port: ROCE_PORT }
    }
}

/// How the bytes of a flow become a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// CRC-32 (IEEE 802.3) of the fields, stirred with the seed (the finaliser of MurmurHash3): switches with different seeds decide independently.
    #[default]
    Stirred,
    /// CRC-32 of the seed and the fields, as many chips do. It is linear: two switches in a row whose numbers of links are powers of two decide alike, whatever their seeds.
    Crc32,
    /// All 16-bit words together by exclusive or, as simple switches do.
    Xor16,
}

/// Which fields a switch hashes. Without ports a flow label changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fields {
    /// Addresses, protocol and both UDP ports.
    #[default]
    Ports,
    /// Addresses and protocol only.
    Addresses,
}

/// The hash of a switch: seed and the chosen fields in the order source address, destination address, protocol, source port,
/// destination port, each with its first byte first. The link is the hash modulo the number of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EcmpHash {
    /// How it mixes.
    pub mix: Mix,
    /// What it mixes.
    pub fields: Fields,
    /// Told apart by it: switches in a row need different ones, or the second sees only what the first has sorted to it.
    pub seed: u32,
}

impl EcmpHash {
    /// The hash of a flow.
    pub fn hash(&self, flow: &Flow) -> u32 {
        const UDP: u8 = 17;
        let mut bytes = [0_u8; 4 + 16 + 16 + 1 + 2 + 2];
        let mut length = 0;
        let mut push = |part: &[u8]| {
            bytes[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        };
        push(&self.seed.to_be_bytes());
        for address in [flow.src, flow.dst] {
            match address {
                IpAddr::V4(v4) => push(&v4.octets()),
                IpAddr::V6(v6) => push(&v6.octets()),
            }
        }
        push(&[UDP]);
        if self.fields == Fields::Ports {
            push(&flow.source_port.to_be_bytes());
            push(&flow.destination_port.to_be_bytes());
        }
        let bytes = &bytes[..length];
        match self.mix {
            Mix::Stirred => stir(crc32fast::hash(&bytes[4..]) ^ self.seed),
            Mix::Crc32 => crc32fast::hash(bytes),
            Mix::Xor16 => {
                let word = |pair: &[u8]| u16::from(pair[0]) << 8 | u16::from(pair.get(1).copied().unwrap_or(0));
                bytes.chunks(2).map(word).fold(0, |sum, word| u32::from(sum as u16 ^ word))
            }
        }
    }

    /// Which of `links` links of equal cost a flow takes, from 0; `None` if there are none.
    pub fn choose(&self, flow: &Flow, links: usize) -> Option<usize> {
        let links = u32::try_from(links).ok().filter(|&links| links > 0)?;
        Some((self.hash(flow) % links) as usize)
    }
}

/// Every bit of the result depends on every bit of the number.
const fn stir(mut number: u32) -> u32 {
    number ^= number >> 16;
    number = number.wrapping_mul(0x85eb_ca6b);
    number ^= number >> 13;
    number = number.wrapping_mul(0xc2b2_ae35);
    number ^ number >> 16
}

/// A choice that a packet meets on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fork {
    /// The switch's hash.
    pub hash: EcmpHash,
    /// How many links of equal cost it has towards the destination.
    pub links: usize,
    /// Which one should be taken, from 0.
    pub wanted: usize,
}

/// The flow label that leads from `src` to `dst` through the wanted link of each fork; `None` if no source port does, because a switch does not
/// hash ports, two switches in a row hash alike, or there are too many ways. Always the smallest such source port above 0xC000: a device can name few, so that
/// those who share a way should share a port.
pub fn flow_label_through(src: IpAddr, dst: IpAddr, forks: &[Fork]) -> Option<u32> {
    let leads = |&source_port: &u16| {
        let flow = Flow::roce(src, dst, source_port);
        forks.iter().all(|fork| fork.hash.choose(&flow, fork.links) == Some(fork.wanted))
    };
    (0xc001..=0xffff).find(leads).and_then(flow_label_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_verbs::udp_source_port;

    fn addresses() -> [(IpAddr, IpAddr); 2] {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        [(parse("10.0.0.1"), parse("10.0.1.2")), (parse("fd00::1"), parse("fd00:1::2"))]
    }

    #[test]
    fn each_way_through_two_switches_has_a_label_and_the_label_leads_there() {
        for (src, dst) in addresses() {
            for mix in [Mix::Stirred, Mix::Crc32, Mix::Xor16] {
                let hash = |seed| EcmpHash { mix, seed, ..EcmpHash::default() };
                for (first, second) in (0..4).flat_map(|n| (0..3).map(move |m| (n, m))) {
                    let forks = [
                        Fork { hash: hash(1), links: 4, wanted: first },
                        Fork { hash: hash(2), links: 3, wanted: second },
                    ];
                    let label = flow_label_through(src, dst, &forks).unwrap();
                    let flow = Flow::roce(src, dst, udp_source_port(label));
                    assert_eq!(forks.map(|fork| fork.hash.choose(&flow, fork.links)), [Some(first), Some(second)]);
                }
            }
        }
    }

    #[test]
    fn a_linear_hash_leaves_ways_that_no_port_leads_to_and_a_stirred_one_does_not() {
        let (src, dst) = addresses()[0];
        let reached = |mix| {
            let fork =
                |seed, links, wanted| Fork { hash: EcmpHash { mix, seed, ..EcmpHash::default() }, links, wanted };
            let ways = (0..4).flat_map(|n| (0..2).map(move |m| (n, m)));
            ways.filter(|&(n, m)| flow_label_through(src, dst, &[fork(1, 4, n), fork(3, 2, m)]).is_some()).count()
        };
        assert_eq!((reached(Mix::Stirred), reached(Mix::Crc32)), (8, 4));
    }

    #[test]
    fn where_ports_are_not_hashed_only_one_way_can_be_had() {
        let (src, dst) = addresses()[0];
        let hash = EcmpHash { fields: Fields::Addresses, ..EcmpHash::default() };
        let found = (0..4).filter(|&wanted| flow_label_through(src, dst, &[Fork { hash, links: 4, wanted }]).is_some());
        assert_eq!(found.count(), 1);
    }

    #[test]
    fn switches_in_a_row_with_the_same_hash_cannot_be_told_apart() {
        let (src, dst) = addresses()[0];
        let hash = EcmpHash::default();
        let fork = |wanted| Fork { hash, links: 4, wanted };
        assert!(flow_label_through(src, dst, &[fork(1), fork(1)]).is_some());
        assert_eq!(flow_label_through(src, dst, &[fork(1), fork(2)]), None);
    }

    #[test]
    fn flows_spread_over_all_links() {
        let (src, dst) = addresses()[0];
        let mut counts = [0; 8];
        for source_port in 0xc000..=0xffff {
            counts[EcmpHash::default().choose(&Flow::roce(src, dst, source_port), 8).unwrap()] += 1;
        }
        // 16,384 flows over 8 links.
        assert!(counts.iter().all(|&count| (1_900..2_200).contains(&count)), "{counts:?}");
    }

    #[test]
    fn without_a_fork_the_first_port_will_do_and_without_links_none() {
        let (src, dst) = addresses()[0];
        assert_eq!(flow_label_through(src, dst, &[]), Some(1));
        let fork = Fork { hash: EcmpHash::default(), links: 0, wanted: 0 };
        assert_eq!(flow_label_through(src, dst, &[fork]), None);
    }
}
