//! The 40 bytes that precede a datagram in its receive buffer (the GRH area of clause 11.4.2.1; annex A17 for RoCEv2).
//!
//! Over IPv6 they are the IPv6 header as it came. Over IPv4 they are 20 zero bytes and a valid IPv4 header with its
//! checksum, which is how `ibv_init_ah_from_wc` tells the two apart. The kernel hands a UDP socket no raw header: the fields
//! that it tells are used, and the identification, which it does not tell, is 0 with "don't fragment" set.

use core::net::IpAddr;

use crate::host::Incoming;

/// Bytes of the GRH area.
pub(super) const GRH_BYTES: u32 = 40;

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const BTH_AND_DETH: usize = 12 + 8;
const IMM: usize = 4;
const ICRC: usize = 4;

/// The GRH area of a datagram.
pub(super) fn grh(packet: &Incoming<'_>) -> [u8; GRH_BYTES as usize] {
    let mut out = [0; GRH_BYTES as usize];
    let imm = if packet.headers.imm.is_some() { IMM } else { 0 };
    let padded = packet.payload.len().next_multiple_of(4);
    // A datagram fits an IP packet, so this fits 16 bits; a made-up one may not, and then the low bits must do.
    let udp_len = (UDP_HEADER + BTH_AND_DETH + imm + padded + ICRC) as u16;
    match (packet.src.to_ip(), packet.dst.to_ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut out[20..];
            ip[0] = 0x45;
            ip[1] = packet.traffic_class;
            ip[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            ip[6] = 0x40;
            ip[8] = packet.hop_limit;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            let word = 6 << 28 | u32::from(packet.traffic_class) << 20 | packet.flow_label & 0x000f_ffff;
            out[..4].copy_from_slice(&word.to_be_bytes());
            out[4..6].copy_from_slice(&udp_len.to_be_bytes());
            out[6] = UDP;
            out[7] = packet.hop_limit;
            out[8..24].copy_from_slice(&packet.src.0);
            out[24..40].copy_from_slice(&packet.dst.0);
        }
    }
    out
}

/// What a completion's `sl` says of a datagram. RoCE has no service level, and NICs of NVIDIA say here which header stands
/// in the GRH area: bit 3 for one with UDP behind it, then 2 for IPv4 and 1 for IPv6. UCX relies on it.
pub(super) fn header_kind(packet: &Incoming<'_>) -> u8 {
    match (packet.src.to_ip(), packet.dst.to_ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => 8 | 2,
        _ => 8 | 1,
    }
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks_exact(2).map(|c| u32::from(u16::from_be_bytes([c[0], c[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use scalefabric_wire::opcode::Opcode;
    use scalefabric_wire::packet::Headers;
    use scalefabric_wire::{Gid, PKey, Psn, Qpn};

    use super::*;

    fn datagram(src: IpAddr, dst: IpAddr, payload: &[u8], imm: Option<u32>) -> [u8; 40] {
        let mut headers = Headers::new(Opcode::from_byte(0x64).unwrap(), PKey::DEFAULT, Qpn::new(5), Psn::new(0));
        headers.imm = imm;
        grh(&Incoming {
            reads_telemetry: false,
            trailer: None,
            headers: &headers,
            payload,
            port_num: 1,
            src: Gid::from_ip(src),
            dst: Gid::from_ip(dst),
            src_port: 0xc000,
            traffic_class: 0x68,
            hop_limit: 63,
            flow_label: 0xa_bcde,
        })
    }

    #[test]
    fn ipv4_header_stands_in_the_last_20_bytes_with_a_checksum_that_verifies() {
        let grh = datagram([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &[7; 5], None);
        assert_eq!(&grh[..20], &[0; 20]);
        assert_eq!(&grh[20..30], &[0x45, 0x68, 0, 20 + 8 + 12 + 8 + 8 + 4, 0, 0, 0x40, 0, 63, 17]);
        assert_eq!(&grh[32..], &[10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(checksum(&grh[20..]), 0, "the sum over a header with its checksum is all ones");
    }

    #[test]
    fn ipv6_header_stands_as_it_came() {
        let (src, dst) = (Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));
        let grh = datagram(src.into(), dst.into(), &[7; 4], Some(1));
        assert_eq!(&grh[..8], &[0x66, 0x8a, 0xbc, 0xde, 0, 8 + 12 + 8 + 4 + 4 + 4, 17, 63]);
        assert_eq!(grh[8..24], src.octets());
        assert_eq!(grh[24..], dst.octets());
    }
}
