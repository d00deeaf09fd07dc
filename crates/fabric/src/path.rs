//! A path as RoCE can express it: which port sends, from which GID to which, and the header fields that switches hash and queue by. Pure data and
//! pure functions; who knows the topology chooses.

use scalefabric_verbs::Gid;
/// Flow labels and the UDP source ports that they name.
pub use scalefabric_verbs::{flow_label_of, udp_source_port};
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
