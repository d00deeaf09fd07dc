//! UDP header, 8 bytes (RFC 768). The checksum is carried, not judged; RoCEv2 over IPv4 usually leaves it 0.

use crate::field::{be16, put};
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 8;

/// The UDP source port that a flow label stands for: 0xC000 to 0xFFFF (annex A17; the fold of 20 bits into 14 is that of Linux's
/// `rdma_flow_label_to_udp_sport`).
pub const fn source_port(flow_label: u32) -> u16 {
    let low = flow_label & 0x3fff;
    let high = (flow_label & 0xf_c000) >> 14;
    ((low ^ high) | 0xc000) as u16
}

/// The smallest flow label that gives a UDP source port of 0xC000 to 0xFFFF; `None` for others, which RoCE does not use.
/// Port 0xC000 comes from label 0x4001, since label 0 means that the device chooses.
pub const fn flow_label(source_port: u16) -> Option<u32> {
    match source_port {
        0xc000 => Some(0x4001),
        0xc001..=0xffff => Some((source_port & 0x3fff) as u32),
        _ => None,
    }
}

/// The UDP source port that a flow label names: only the labels that [`flow_label`] gives name one. Others, as those that the connection
/// manager draws for each connection, only ask for a flow of their own.
pub const fn named_source_port(label: u32) -> Option<u16> {
    match label {
        0x4001 | 1..=0x3fff => Some(source_port(label)),
        _ => None,
    }
}

/// A UDP header in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Source port.
    pub fn src_port(&self) -> u16 {
        be16(self.0, 0)
    }

    /// Destination port.
    pub fn dst_port(&self) -> u16 {
        be16(self.0, 2)
    }

    /// Bytes, header included.
    pub fn length(&self) -> u16 {
        be16(self.0, 4)
    }

    /// Checksum.
    pub fn checksum(&self) -> u16 {
        be16(self.0, 6)
    }
}

/// UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port: path entropy in RoCEv2.
    pub src_port: u16,
    /// Destination port: 4791 in RoCEv2.
    pub dst_port: u16,
    /// Bytes, header included; at least 8.
    pub length: u16,
    /// Checksum; 0 means none over IPv4.
    pub checksum: u16,
}

impl Udp {
    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        if usize::from(view.length()) < LEN {
            return Err(InvalidPacket::Malformed("UDP length below 8"));
        }
        Ok(Self {
            src_port: view.src_port(),
            dst_port: view.dst_port(),
            length: view.length(),
            checksum: view.checksum(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put(out, 0, self.src_port.to_be_bytes());
        put(out, 2, self.dst_port.to_be_bytes());
        put(out, 4, self.length.to_be_bytes());
        put(out, 6, self.checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Udp,
        known: [0xd1, 0x23, 0x12, 0xb7, 0, 28, 0, 0],
        means: Udp { src_port: 0xd123, dst_port: 4791, length: 28, checksum: 0 },
        illegal: [(5, 7) => InvalidPacket::Malformed("UDP length below 8")],
        any: (any::<u16>(), any::<u16>(), 8u16.., any::<u16>())
            .prop_map(|(src_port, dst_port, length, checksum)| Udp { src_port, dst_port, length, checksum }),
    }

    #[test]
    fn every_source_port_of_roce_has_a_flow_label_that_names_it_and_no_other_port_has() {
        for port in 0..=u16::MAX {
            match flow_label(port) {
                Some(label) => {
                    assert_ne!(label, 0);
                    assert_eq!(source_port(label), port);
                    assert_eq!(named_source_port(label), Some(port));
                }
                None => assert!(port < 0xc000),
            }
        }
        let named = (0..1 << 20).filter(|&label| named_source_port(label).is_some()).count();
        assert_eq!(named, 0x4000);
    }
}
