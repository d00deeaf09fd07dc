//! Global route header, 40 bytes (clause 8.3), and the 40 bytes that a datagram receive gets in front of its payload
//! (annex A17.9.2). In RoCEv2 the IP header plays the GRH's part on the wire; the layout is that of IPv6.

use crate::field::{array, be16, be32, put};
use crate::ids::Gid;
use crate::invalid::InvalidPacket;
use crate::ipv4::{self, Ipv4};
use crate::packet::ICRC_LEN;

/// Bytes.
pub const LEN: usize = 40;
/// Next header: a BTH follows (InfiniBand).
pub const NEXT_BTH: u8 = 0x1b;

/// A GRH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// IP version: 6.
    pub fn ip_ver(&self) -> u8 {
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
    pub fn pay_len(&self) -> u16 {
        be16(self.0, 4)
    }

    /// Next header.
    pub fn nxt_hdr(&self) -> u8 {
        self.0[6]
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.0[7]
    }

    /// Source GID.
    pub fn sgid(&self) -> Gid {
        Gid(array(self.0, 8))
    }

    /// Destination GID.
    pub fn dgid(&self) -> Gid {
        Gid(array(self.0, 24))
    }
}

/// Global route header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub pay_len: u16,
    /// Next header: [`NEXT_BTH`], or 17 (UDP) in RoCEv2.
    pub nxt_hdr: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

impl Grh {
    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        if view.ip_ver() != 6 {
            return Err(InvalidPacket::Malformed("IP version of a GRH is not 6"));
        }
        Ok(Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            pay_len: view.pay_len(),
            nxt_hdr: view.nxt_hdr(),
            hop_limit: view.hop_limit(),
            sgid: view.sgid(),
            dgid: view.dgid(),
        })
    }

    /// Writes the header; the low 20 bits of `flow_label` are used.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        put(out, 0, word.to_be_bytes());
        put(out, 4, self.pay_len.to_be_bytes());
        put(out, 6, [self.nxt_hdr, self.hop_limit]);
        put(out, 8, self.sgid.0);
        put(out, 24, self.dgid.0);
    }
}

/// What a receiver knows about a datagram's IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Source.
    pub src: Gid,
    /// Destination: one of the port's GIDs, or a group.
    pub dst: Gid,
    /// TOS or traffic class.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// Bytes from BTH to pad, without the ICRC.
    pub transport_len: u16,
}

impl Received {
    /// The 40 bytes in front of the payload: the IPv6 header, or 20 zeros and an IPv4 header with a right checksum (by
    /// which receivers tell the two apart: `ibv_init_ah_from_wc`). What a UDP socket does not show, flow label and
    /// identification, is 0.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        let udp_len = self.transport_len.saturating_add((crate::udp::LEN + ICRC_LEN) as u16);
        if let (core::net::IpAddr::V4(src), core::net::IpAddr::V4(dst)) = (self.src.to_ip(), self.dst.to_ip()) {
            let mut header = Ipv4 {
                traffic_class: self.traffic_class,
                total_len: udp_len.saturating_add(ipv4::LEN as u16),
                id: 0,
                flags_and_offset: Ipv4::DF,
                ttl: self.hop_limit,
                protocol: ipv4::UDP,
                checksum: 0,
                src,
                dst,
            };
            header.checksum = header.right_checksum();
            let mut bytes = [0; ipv4::LEN];
            header.emit(&mut bytes);
            put(out, 0, [0; LEN - ipv4::LEN]);
            put(out, LEN - ipv4::LEN, bytes);
        } else {
            let header = Grh {
                traffic_class: self.traffic_class,
                flow_label: 0,
                pay_len: udp_len,
                nxt_hdr: ipv4::UDP,
                hop_limit: self.hop_limit,
                sgid: self.src,
                dgid: self.dst,
            };
            header.emit(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    prop_compose! {
        fn any_grh()(
            traffic_class: u8, flow_label in 0u32..1 << 20, pay_len: u16, nxt_hdr: u8, hop_limit: u8, sgid: [u8; 16],
            dgid: [u8; 16],
        ) -> Grh {
            Grh { traffic_class, flow_label, pay_len, nxt_hdr, hop_limit, sgid: Gid(sgid), dgid: Gid(dgid) }
        }
    }

    crate::header_tests::header_tests! {
        Grh,
        known: [
            0x60, 0, 0, 1, 0, 24, NEXT_BTH, 64, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfe, 0x80, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        ],
        means: Grh {
            traffic_class: 0, flow_label: 1, pay_len: 24, nxt_hdr: NEXT_BTH, hop_limit: 64,
            sgid: Gid::from_ip(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into()),
            dgid: Gid::from_ip(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2).into()),
        },
        illegal: [
            (0, 0x40) => InvalidPacket::Malformed("IP version of a GRH is not 6"),
            (0, 0x00) => InvalidPacket::Malformed("IP version of a GRH is not 6"),
        ],
        any: any_grh(),
    }

    #[test]
    fn over_ipv4_a_receiver_finds_a_valid_header_in_the_last_20_bytes() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut out = [0xff; LEN];
        let received = Received {
            src: Gid::from_ip(src.into()),
            dst: Gid::from_ip(dst.into()),
            traffic_class: 0x6a,
            hop_limit: 7,
            transport_len: 64,
        };
        received.emit(&mut out);
        assert_eq!(out[..20], [0; 20]);
        let header = Ipv4::parse(&out[20..]).unwrap();
        assert_eq!(header.checksum, header.right_checksum());
        assert_eq!((header.src, header.dst, header.ttl, header.traffic_class), (src, dst, 7, 0x6a));
        assert_eq!(header.total_len, 20 + 8 + 64 + 4);
    }

    #[test]
    fn over_ipv6_a_receiver_finds_an_ipv6_header() {
        let (src, dst) = (Gid::from_ip(Ipv6Addr::LOCALHOST.into()), Gid([0xff; 16]));
        let mut out = [0; LEN];
        Received { src, dst, traffic_class: 3, hop_limit: 9, transport_len: 32 }.emit(&mut out);
        let grh = Grh::parse(&out).unwrap();
        assert_eq!((grh.sgid, grh.dgid, grh.hop_limit, grh.traffic_class, grh.nxt_hdr), (src, dst, 9, 3, 17));
        assert_eq!(grh.pay_len, 44);
    }
}
