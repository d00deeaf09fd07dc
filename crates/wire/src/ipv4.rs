//! IPv4 header as RoCEv2 uses it, 20 bytes: without options (annex A17.3.1.2 fixes the header length at 5 words). The
//! checksum is carried, not judged: the kernel has checked it where it matters.

use core::net::Ipv4Addr;

use crate::field::{array, be16, put};
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 20;
/// Protocol number of UDP, over IPv4 and IPv6.
pub const UDP: u8 = 17;

/// An IPv4 header in place.
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

    /// Header length in words of four bytes.
    pub fn ihl(&self) -> u8 {
        self.0[0] & 0xf
    }

    /// Type of service.
    pub fn traffic_class(&self) -> u8 {
        self.0[1]
    }

    /// Bytes, header included.
    pub fn total_len(&self) -> u16 {
        be16(self.0, 2)
    }

    /// Identification.
    pub fn id(&self) -> u16 {
        be16(self.0, 4)
    }

    /// Flags and fragment offset: bit 14 "do not fragment", bit 13 "more fragments".
    pub fn flags_and_offset(&self) -> u16 {
        be16(self.0, 6)
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        self.0[8]
    }

    /// Protocol.
    pub fn protocol(&self) -> u8 {
        self.0[9]
    }

    /// Header checksum.
    pub fn checksum(&self) -> u16 {
        be16(self.0, 10)
    }

    /// Source.
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(array(self.0, 12))
    }

    /// Destination.
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(array(self.0, 16))
    }
}

/// IPv4 header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Type of service: DSCP and ECN.
    pub traffic_class: u8,
    /// Bytes, header included; at least 20.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Flags and fragment offset: bit 14 "do not fragment", bit 13 "more fragments".
    pub flags_and_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol.
    pub protocol: u8,
    /// Header checksum, as it was or is to be.
    pub checksum: u16,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// The flag "do not fragment".
    pub const DF: u16 = 0x4000;

    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        if view.version() != 4 {
            return Err(InvalidPacket::Malformed("IP version is not 4"));
        }
        if view.ihl() != 5 {
            return Err(InvalidPacket::Malformed("an IPv4 header with options"));
        }
        if usize::from(view.total_len()) < LEN {
            return Err(InvalidPacket::Malformed("IPv4 total length below 20"));
        }
        Ok(Self {
            traffic_class: view.traffic_class(),
            total_len: view.total_len(),
            id: view.id(),
            flags_and_offset: view.flags_and_offset(),
            ttl: view.ttl(),
            protocol: view.protocol(),
            checksum: view.checksum(),
            src: view.src(),
            dst: view.dst(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put(out, 0, [0x45, self.traffic_class]);
        put(out, 2, self.total_len.to_be_bytes());
        put(out, 4, self.id.to_be_bytes());
        put(out, 6, self.flags_and_offset.to_be_bytes());
        put(out, 8, [self.ttl, self.protocol]);
        put(out, 10, self.checksum.to_be_bytes());
        put(out, 12, self.src.octets());
        put(out, 16, self.dst.octets());
    }

    /// The checksum that this header should carry (RFC 791).
    pub fn right_checksum(&self) -> u16 {
        let mut bytes = [0; LEN];
        Self { checksum: 0, ..*self }.emit(&mut bytes);
        let mut sum = 0;
        for word in 0..LEN / 2 {
            sum += u32::from(be16(&bytes, word * 2));
        }
        sum = (sum >> 16) + (sum & 0xffff);
        !((sum >> 16) + sum) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_ipv4()(
            traffic_class: u8, total_len in 20u16.., id: u16, flags_and_offset: u16, ttl: u8, protocol: u8,
            checksum: u16, src: u32, dst: u32,
        ) -> Ipv4 {
            Ipv4 {
                traffic_class, total_len, id, flags_and_offset, ttl, protocol, checksum, src: src.into(),
                dst: dst.into(),
            }
        }
    }

    crate::header_tests::header_tests! {
        Ipv4,
        known: [0x45, 0x68, 0, 48, 0x12, 0x34, 0x40, 0, 64, 17, 0x13, 0xb9, 10, 77, 0, 1, 10, 77, 0, 2],
        means: Ipv4 {
            traffic_class: 0x68, total_len: 48, id: 0x1234, flags_and_offset: Ipv4::DF, ttl: 64, protocol: UDP,
            checksum: 0x13b9, src: Ipv4Addr::new(10, 77, 0, 1), dst: Ipv4Addr::new(10, 77, 0, 2),
        },
        illegal: [
            (0, 0x65) => InvalidPacket::Malformed("IP version is not 4"),
            (0, 0x44) => InvalidPacket::Malformed("an IPv4 header with options"),
            (0, 0x46) => InvalidPacket::Malformed("an IPv4 header with options"),
            (3, 19) => InvalidPacket::Malformed("IPv4 total length below 20"),
        ],
        any: any_ipv4(),
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // The example that every text on this checksum gives.
        let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(Ipv4::parse(&header).unwrap().right_checksum(), 0xb861);
    }
}
