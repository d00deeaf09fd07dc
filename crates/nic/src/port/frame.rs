//! The headers around a datagram: Ethernet, IP and UDP, as the port with AF_XDP sends and receives them, and as a capture shows them. Bytes
//! only: no socket, no table of neighbours.

use std::net::IpAddr;

use scalefabric_transport::DropReason;
use scalefabric_wire::packet::UDP_PORT;
use scalefabric_wire::{ethernet, ipv4, ipv6, udp};

use super::Datagram;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = ethernet::LEN;

/// Bytes of the headers, at most.
pub(crate) const HEADERS: usize = ethernet::LEN + ipv6::LEN + udp::LEN;

/// Ethernet addresses: of the next hop, and our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Macs {
    pub(crate) dst: [u8; 6],
    pub(crate) src: [u8; 6],
}

/// Bytes of the headers of a datagram between two addresses.
pub(crate) fn headers_len(src: IpAddr) -> usize {
    ethernet::LEN + udp::LEN + if src.is_ipv4() { ipv4::LEN } else { ipv6::LEN }
}

/// Writes the headers of a datagram and returns how many bytes they have; `None` if no such frame can be. The UDP checksum is 0 over IPv4
/// (annex A17.3.2: the ICRC does its work) and right over IPv6, where there must be one (RFC 8200, section 8.1).
pub(crate) fn write_headers(out: &mut [u8; HEADERS], macs: Macs, datagram: &Datagram<'_>) -> Option<usize> {
    let length = udp::LEN + datagram.bytes.len();
    let total_len = u16::try_from(length + ipv4::LEN).ok()?;
    let length = length as u16;
    let mut header = udp::Udp { src_port: datagram.src_port, dst_port: UDP_PORT, length, checksum: 0 };
    let ethertype = if datagram.src.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
    let (ether, rest) = out.split_first_chunk_mut::<{ ethernet::LEN }>()?;
    ethernet::Ethernet { dst: macs.dst, src: macs.src, ethertype }.emit(ether);
    let rest = match (datagram.src, datagram.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = ipv4::Ipv4 {
                traffic_class: datagram.traffic_class,
                total_len,
                id: datagram.ip_id,
                flags_and_offset: ipv4::Ipv4::DF,
                ttl: datagram.hop_limit,
                protocol: ipv4::UDP,
                checksum: 0,
                src,
                dst,
            };
            ip.checksum = ip.right_checksum();
            let (bytes, rest) = rest.split_first_chunk_mut::<{ ipv4::LEN }>()?;
            ip.emit(bytes);
            rest
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = ipv6::Ipv6 {
                traffic_class: datagram.traffic_class,
                flow_label: datagram.flow_label,
                payload_len: length,
                next_header: ipv4::UDP,
                hop_limit: datagram.hop_limit,
                src,
                dst,
            };
            header.checksum = checksum_v6(&src.octets(), &dst.octets(), &header, datagram.bytes);
            let (bytes, rest) = rest.split_first_chunk_mut::<{ ipv6::LEN }>()?;
            ip.emit(bytes);
            rest
        }
        _ => return None,
    };
    header.emit(rest.first_chunk_mut()?);
    Some(headers_len(datagram.src))
}

/// The UDP checksum over IPv6.
fn checksum_v6(src: &[u8; 16], dst: &[u8; 16], header: &udp::Udp, payload: &[u8]) -> u16 {
    let mut bytes = [0; udp::LEN];
    udp::Udp { checksum: 0, ..*header }.emit(&mut bytes);
    let mut sum = u64::from(header.length) + u64::from(ipv4::UDP);
    for part in [&src[..], &dst[..], &bytes[..], payload] {
        // Words of 32 bits sum up to the same as words of 16, once what is above 16 bits is folded in.
        let (words, rest) = part.as_chunks::<4>();
        sum += words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum::<u64>();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_be_bytes(last));
    }
    match !fold(sum) {
        0 => 0xffff,
        sum => sum,
    }
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Takes a frame apart that carries UDP to port 4791, which who gives it has looked at. The UDP checksum is not: between two interfaces of one
/// machine the kernel leaves it unfinished, and the ICRC covers more.
pub(crate) fn parse(frame: &[u8]) -> Result<Datagram<'_>, DropReason> {
    let short = |_| DropReason::Truncated;
    let (_, rest) = frame.split_at_checked(ethernet::LEN).ok_or(DropReason::Truncated)?;
    let mut datagram = Datagram {
        src: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        src_port: 0,
        dst: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        traffic_class: 0,
        hop_limit: 0,
        flow_label: 0,
        ip_id: 0,
        bytes: &[],
    };
    let (at, total) = if rest.first().is_some_and(|byte| byte >> 4 == 4) {
        let ip = ipv4::View::new(rest).map_err(short)?;
        let words = rest[..ipv4::LEN].as_chunks::<4>().0;
        if ip.ihl() != 5 || fold(words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum()) != 0xffff {
            return Err(DropReason::Malformed);
        }
        datagram.src = ip.src().into();
        datagram.dst = ip.dst().into();
        datagram.traffic_class = ip.traffic_class();
        datagram.hop_limit = ip.ttl();
        datagram.ip_id = ip.id();
        (ipv4::LEN, usize::from(ip.total_len()))
    } else {
        let ip = ipv6::View::new(rest).map_err(short)?;
        if ip.version() != 6 {
            return Err(DropReason::Malformed);
        }
        datagram.src = ip.src().into();
        datagram.dst = ip.dst().into();
        datagram.traffic_class = ip.traffic_class();
        datagram.hop_limit = ip.hop_limit();
        datagram.flow_label = ip.flow_label();
        (ipv6::LEN, ipv6::LEN + usize::from(ip.payload_len()))
    };
    // Short frames are padded: the IP header tells where the packet ends.
    let packet = rest.get(at..total).ok_or(DropReason::Truncated)?;
    let header = udp::View::new(packet).map_err(short)?;
    datagram.src_port = header.src_port();
    datagram.bytes = packet.get(udp::LEN..usize::from(header.length())).ok_or(DropReason::Truncated)?;
    Ok(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_wire::frame::Frame;
    use scalefabric_wire::pcap::LinkType;

    const MACS: Macs = Macs { dst: [2, 0, 0, 0, 0, 1], src: [2, 0, 0, 0, 0, 2] };

    fn datagram<'a>(src: &str, dst: &str, bytes: &'a [u8]) -> Datagram<'a> {
        Datagram {
            src: src.parse().unwrap(),
            src_port: 0xc123,
            dst: dst.parse().unwrap(),
            traffic_class: 106,
            hop_limit: 63,
            flow_label: if src.contains(':') { 0x54321 } else { 0 },
            ip_id: if src.contains(':') { 0 } else { 17 },
            bytes,
        }
    }

    fn frame(datagram: &Datagram<'_>) -> Vec<u8> {
        let mut head = [0; HEADERS];
        let len = write_headers(&mut head, MACS, datagram).unwrap();
        [&head[..len], datagram.bytes].concat()
    }

    #[test]
    fn what_was_written_is_read_again_with_every_field() {
        let payload: Vec<u8> = (0..31).collect();
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let sent = datagram(src, dst, &payload);
            let mut bytes = frame(&sent);
            bytes.extend([0; 9]);
            let got = parse(&bytes).unwrap();
            assert_eq!(format!("{got:?}"), format!("{sent:?}"), "padding behind the packet is not part of it");
        }
    }

    #[test]
    fn a_cut_frame_and_a_damaged_ip_header_are_refused() {
        let good = frame(&datagram("10.0.0.1", "10.0.0.2", &[7; 40]));
        for end in 0..good.len() {
            assert_eq!(parse(&good[..end]).unwrap_err(), DropReason::Truncated, "cut at {end}");
        }
        for byte in ethernet::LEN..ethernet::LEN + ipv4::LEN {
            let mut bad = good.clone();
            bad[byte] ^= 0x10;
            assert!(parse(&bad).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn the_sum_over_ipv6_is_that_of_rfc_768_word_by_word() {
        for len in 0..9u8 {
            let payload: Vec<u8> = (0..len).map(|n| n.wrapping_mul(91) ^ 0xa5).collect();
            let bytes = frame(&datagram("fd00::1", "fd00::2", &payload));
            let ip = &bytes[ethernet::LEN..];
            // Pseudo header and datagram, the checksum included: all ones.
            let mut words = [&ip[8..40], &[0, 0], &ip[4..6], &[0, 17], &ip[40..]].concat();
            words.resize(words.len().next_multiple_of(2), 0);
            let sum: u64 = words.chunks(2).map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            assert_eq!(fold(sum), 0xffff, "{len} bytes");
        }
    }

    #[test]
    fn the_reader_of_captures_agrees() {
        // An ACK: BTH, AETH, ICRC.
        let mut packet = vec![0u8; 20];
        packet[0] = 0x11;
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let sent = datagram(src, dst, &packet);
            let bytes = frame(&sent);
            let read = Frame::parse(LinkType::ETHERNET, &bytes).unwrap();
            assert_eq!((read.ip.traffic_class(), read.ip.hop_limit(), read.bytes), (106, 63, &packet[..]));
        }
    }
}
