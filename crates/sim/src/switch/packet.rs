//! What a router looks at in an IP packet, and what it changes. It reads nothing beyond the UDP ports.

use scalefabric_fabric::ecmp::Flow;
use scalefabric_transport::congestion::{Hop, int};
use scalefabric_wire::{ipv4, ipv6, udp};
use std::net::IpAddr;

/// The UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;

/// Addresses and UDP ports; ports are 0 for what is not UDP, or not the first piece of it. `None`: no IP packet.
pub fn flow(bytes: &[u8]) -> Option<Flow> {
    match bytes.first()? >> 4 {
        4 => {
            let view = ipv4::View::new(bytes).ok()?;
            let header = usize::from(view.ihl()) * 4;
            let is_whole = header >= ipv4::LEN && usize::from(view.total_len()) <= bytes.len();
            let is_first = view.flags_and_offset() & 0x1fff == 0;
            let ports = ports(bytes.get(header..)?, view.protocol() == ipv4::UDP && is_first);
            is_whole.then(|| of(view.src().into(), view.dst().into(), ports))
        }
        6 => {
            let view = ipv6::View::new(bytes).ok()?;
            let ports = ports(bytes.get(ipv6::LEN..)?, view.next_header() == ipv4::UDP);
            Some(of(view.src().into(), view.dst().into(), ports))
        }
        _ => None,
    }
}

fn of(src: IpAddr, dst: IpAddr, (source_port, destination_port): (u16, u16)) -> Flow {
    Flow { src, dst, source_port, destination_port }
}

fn ports(payload: &[u8], is_udp: bool) -> (u16, u16) {
    match udp::View::new(payload) {
        Ok(view) if is_udp => (view.src_port(), view.dst_port()),
        _ => (0, 0),
    }
}

/// Takes one from the time to live, and mends the checksum (RFC 1624). False: there was none left.
pub fn take_hop(bytes: &mut [u8]) -> bool {
    let place = if bytes[0] >> 4 == 4 { 8 } else { 7 };
    if bytes[place] <= 1 {
        return false;
    }
    bytes[place] -= 1;
    if place == 8 {
        // The word with the time to live fell by 0x0100, so its complement's sum rises by as much.
        let sum = u32::from(u16::from_be_bytes([bytes[10], bytes[11]])) + 0x0100;
        let sum = (sum & 0xffff) + (sum >> 16);
        bytes[10..12].copy_from_slice(&(sum as u16).to_be_bytes());
    }
    true
}

/// Writes a record on a RoCEv2 packet that has a telemetry trailer with room, and mends the UDP checksum. False: it has none.
pub fn stamp(bytes: &mut [u8], hop: &Hop) -> bool {
    let header = match bytes.first().map(|byte| byte >> 4) {
        Some(4) if bytes.get(9) == Some(&ipv4::UDP) => usize::from(bytes[0] & 0xf) * 4,
        Some(6) if bytes.get(6) == Some(&ipv4::UDP) => ipv6::LEN,
        _ => return false,
    };
    let Some((ip, rest)) = bytes.split_at_mut_checked(header) else { return false };
    let Some((udp, payload)) = rest.split_at_mut_checked(udp::LEN) else { return false };
    if udp[2..4] != ROCE_PORT.to_be_bytes() || !int::stamp(payload, hop) {
        return false;
    }
    udp[6..8].fill(0);
    // Over IPv4 none is as good as one; over IPv6 there must be one (RFC 8200, 8.1).
    if ip[0] >> 4 == 6 {
        let words = |bytes: &[u8]| -> u64 {
            bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0))).sum()
        };
        let length = (udp.len() + payload.len()) as u64;
        let mut sum = words(&ip[8..40]) + length + u64::from(ipv4::UDP) + words(udp) + words(payload);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let checksum = if sum == 0xffff { 0xffff } else { !(sum as u16) };
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    true
}

/// Marks a packet Congestion Experienced, and mends the checksum. False: it does not say that it can be marked.
pub fn mark(bytes: &mut [u8]) -> bool {
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) if bytes.len() > 12 && bytes[1] & 3 != 0 => {
            let rises = 3 - (bytes[1] & 3);
            bytes[1] |= 3;
            // The word with the TOS rose, so its complement's sum falls by as much: adding the complement (RFC 1624).
            let sum = u32::from(u16::from_be_bytes([bytes[10], bytes[11]])) + u32::from(!u16::from(rises));
            let sum = (sum & 0xffff) + (sum >> 16);
            bytes[10..12].copy_from_slice(&(sum as u16).to_be_bytes());
            true
        }
        // The traffic class lies across the first two bytes.
        Some(6) if bytes.len() > 12 && (bytes[1] >> 4) & 3 != 0 => {
            bytes[1] |= 0x30;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_keeps_the_checksum_right() {
        for tos in [0x6a, 0x69, 0x02, 0x6b] {
            let mut bytes = vec![0x45, tos, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
            let sum = |bytes: &[u8]| {
                let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
                (sum & 0xffff) + (sum >> 16)
            };
            let right = (!sum(&bytes) as u16).to_be_bytes();
            bytes[10..12].copy_from_slice(&right);
            assert!(mark(&mut bytes));
            assert_eq!((bytes[1] & 3, bytes[1] & !3, sum(&bytes)), (3, tos & !3, 0xffff), "{tos:#x}");
        }
        let mut six = [0x60, 0x20, 0, 0, 0, 0, 17, 64, 0, 0, 0, 0, 0];
        assert!(mark(&mut six));
        assert_eq!(six[..2], [0x60, 0x30]);
        assert!(!mark(&mut [0x45, 0x68, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10]), "not capable");
        assert!(!mark(&mut []));
    }
}
