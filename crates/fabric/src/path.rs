//! A path as RoCE can express it: which port sends, from which GID to which, and the header fields that switches hash and queue by. Pure data and
//! pure functions; who knows the topology chooses.

use scalefabric_verbs::Gid;
use serde::{Deserialize, Serialize};

/// One way from a local port to a peer's port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Path {
    /// Local device.
    pub device: String,
    /// Local port, from 1.
    pub port_num: u8,
    /// Source GID, by value: its index is looked up when it is used, for indexes move.
    #[serde(with = "gid_text")]
    pub sgid: Gid,
    /// Destination GID.
    #[serde(with = "gid_text")]
    pub dgid: Gid,
    /// Flow label, 20 bits, from which the UDP source port is made ([`udp_source_port`]); 0: the device chooses.
    pub flow_label: u32,
    /// DSCP, 6 bits.
    pub dscp: u8,
}

/// The UDP source port that a flow label stands for: 0xC000 to 0xFFFF (annex A17; the fold of 20 bits into 14 is that of Linux's
/// `rdma_flow_label_to_udp_sport`).
pub const fn udp_source_port(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label & 0xf_c000) >> 14;
    ((low ^ high) | 0xc000) as u16
}

/// The smallest flow label that gives a UDP source port of 0xC000 to 0xFFFF; `None` for others, which RoCE does not use.
/// Port 0xC000 comes from label 0x4001, since label 0 means that the device chooses.
pub const fn flow_label_of(udp_source_port: u16) -> Option<u32> {
    match udp_source_port {
        0xc000 => Some(0x4001),
        0xc001..=0xffff => Some((udp_source_port & 0x3fff) as u32),
        _ => None,
    }
}

/// GIDs as people write them.
mod gid_text {
    use super::Gid;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(gid: &Gid, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&std::net::Ipv6Addr::from(gid.0).to_string())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Gid, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address: std::net::Ipv6Addr =
            text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not a GID")))?;
        Ok(Gid(address.octets()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_port_of_roce_has_a_flow_label_and_no_other() {
        for port in 0..=u16::MAX {
            match flow_label_of(port) {
                Some(label) => {
                    assert_ne!(label, 0);
                    assert_eq!(udp_source_port(label), port);
                }
                None => assert!(port < 0xc000),
            }
        }
    }
}
