//! What a router looks at in an IP packet, and what it changes. It reads nothing beyond the UDP ports.

use scalefabric_fabric::ecmp::Flow;
use scalefabric_wire::{ipv4, ipv6, udp};
use std::net::IpAddr;

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
