//! IPv6 header, 40 bytes (RFC 8200). Extension headers are not followed: RoCEv2 has UDP right behind it.

use core::net::Ipv6Addr;

use crate::field::{array, be16, be32, put};
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 40;

/// An IPv6 header in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// IP version.
    pub fn version(&self) -> u8 {
        self.0[0] >> 4
    }

    /// Traffic class.
    pub fn traffic_class(&self) -> u8 {
        (be32(self.0, 0) >> 20) as u8
    }

    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.0, 0) & 0xf_ffff
    }

    /// Bytes after this header.
    pub fn payload_len(&self) -> u16 {
        be16(self.0, 4)
    }

    /// What follows.
    pub fn next_header(&self) -> u8 {
        self.0[6]
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// Source.
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(array(self.0, 8))
    }

    /// Destination.
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(array(self.0, 24))
    }
}

/// IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// What follows: 17 for UDP.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source.
    pub src: Ipv6Addr,
    /// Destination.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        if view.version() != 6 {
            return Err(InvalidPacket::Malformed("IP version is not 6"));
        }
        Ok(Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_len: view.payload_len(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            src: view.src(),
            dst: view.dst(),
        })
    }

    /// Writes the header; the low 20 bits of `flow_label` are used.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        put(out, 0, word.to_be_bytes());
        put(out, 4, self.payload_len.to_be_bytes());
        put(out, 6, [self.next_header, self.hop_limit]);
        put(out, 8, self.src.octets());
        put(out, 24, self.dst.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_ipv6()(
            traffic_class: u8, flow_label in 0u32..1 << 20, payload_len: u16, next_header: u8, hop_limit: u8, src: u128,
            dst: u128,
        ) -> Ipv6 {
            Ipv6 { traffic_class, flow_label, payload_len, next_header, hop_limit, src: src.into(), dst: dst.into() }
        }
    }

    crate::header_tests::header_tests! {
        Ipv6,
        known: [
            0x66, 0x81, 0x23, 0x45, 0, 28, 17, 64, 0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfd, 0x77, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        ],
        means: Ipv6 {
            traffic_class: 0x68, flow_label: 0x12345, payload_len: 28, next_header: 17, hop_limit: 64,
            src: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1), dst: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
        },
        illegal: [
            (0, 0x46) => InvalidPacket::Malformed("IP version is not 6"),
            (0, 0x76) => InvalidPacket::Malformed("IP version is not 6"),
        ],
        any: any_ipv6(),
    }
}
