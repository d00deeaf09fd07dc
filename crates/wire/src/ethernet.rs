//! Ethernet header, 14 bytes, and the IEEE 802.1Q tags that may follow it. Captures need it, and ports that
//! send by AF_XDP. Any EtherType parses; a length (below 0x600) is refused, as no IP packet follows one.

use crate::field::{array, be16, put};
use crate::invalid::InvalidPacket;

/// Bytes of the header without tags.
pub const LEN: usize = 14;
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherTypes of the 802.1Q and the 802.1ad tag.
pub const VLAN: [u16; 2] = [0x8100, 0x88a8];

/// An Ethernet header in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Destination address.
    pub fn dst(&self) -> [u8; 6] {
        array(self.0, 0)
    }

    /// Source address.
    pub fn src(&self) -> [u8; 6] {
        array(self.0, 6)
    }

    /// EtherType.
    pub fn ethertype(&self) -> u16 {
        be16(self.0, 12)
    }
}

/// Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// What follows: 0x600 and above.
    pub ethertype: u16,
}

impl Ethernet {
    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        if view.ethertype() < 0x600 {
            return Err(InvalidPacket::Malformed("an Ethernet length where an EtherType belongs"));
        }
        Ok(Self { dst: view.dst(), src: view.src(), ethertype: view.ethertype() })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put(out, 0, self.dst);
        put(out, 6, self.src);
        put(out, 12, self.ethertype.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Ethernet,
        known: [0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 8, 0],
        means: Ethernet { dst: [0x52, 0x54, 0, 0, 0, 2], src: [0x52, 0x54, 0, 0, 0, 1], ethertype: IPV4 },
        illegal: [
            (12, 0) => InvalidPacket::Malformed("an Ethernet length where an EtherType belongs"),
            (12, 5) => InvalidPacket::Malformed("an Ethernet length where an EtherType belongs"),
        ],
        any: (any::<[u8; 6]>(), any::<[u8; 6]>(), 0x600u16..)
            .prop_map(|(dst, src, ethertype)| Ethernet { dst, src, ethertype }),
    }
}
