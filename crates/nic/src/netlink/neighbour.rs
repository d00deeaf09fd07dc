//! Who is next on the way to an address, and what its MAC address is: the kernel's routes and neighbours, asked one at a time. What the
//! kernel does not know it is asked to find out; nobody waits for it.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use super::{RTM_GETLINK, RTM_NEWLINK, attributes, message, open, parse_link, receive, u32_at};
use crate::process::Descriptor;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
/// States in which the address may be used.
const NUD_VALID: u16 = NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_NOARP | NUD_PERMANENT;
/// "I use it": the kernel makes sure that it is still there.
const NTF_USE: u8 = 1;
const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const NLM_F_CREATE: u16 = libc::NLM_F_CREATE as u16;

/// A connection to the kernel's tables.
#[derive(Debug)]
pub(crate) struct Tables {
    socket: Descriptor,
    request: Vec<u8>,
    buffer: Box<[u8]>,
}

/// What the kernel says about the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// By the interface, to this MAC address.
    Neighbour([u8; 6]),
    /// By the interface, but nobody knows the address there yet.
    Unresolved,
    /// By another interface, to this host itself, or not at all.
    Elsewhere,
}

impl Tables {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: open(0)?, request: Vec::with_capacity(128), buffer: vec![0; 16 << 10].into() })
    }

    /// The way from one of our addresses to `dst`, if it leads over the interface. Asks the kernel to make sure of a neighbour that it
    /// knows; one that it does not know it looks for when a socket sends to it, and best then: it has a source address to ask from.
    pub(crate) fn hop(&mut self, ifindex: u32, src: IpAddr, dst: IpAddr) -> Hop {
        let Some((out, next)) = self.route(ifindex, src, dst) else { return Hop::Elsewhere };
        if out != ifindex {
            return Hop::Elsewhere;
        }
        let Some(known) = self.neighbour(ifindex, next) else { return Hop::Unresolved };
        self.begin(RTM_NEWNEIGH, NLM_F_REQUEST | NLM_F_CREATE, &neighbour_header(ifindex, next, NTF_USE));
        self.attribute(NDA_DST, &octets(next));
        // Without the right to it (CAP_NET_ADMIN) the entry ages until it is not known, and is looked for again.
        let _ = self.send();
        Hop::Neighbour(known)
    }

    /// Bytes of an IP packet that an interface takes.
    pub(crate) fn mtu(&mut self, ifindex: u32) -> Option<u32> {
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        self.begin(RTM_GETLINK, NLM_F_REQUEST, &header);
        self.send().ok()?;
        self.answer(RTM_NEWLINK).and_then(parse_link).map(|link| link.mtu)
    }

    /// Interface and next hop, if the destination is another host's.
    fn route(&mut self, ifindex: u32, src: IpAddr, dst: IpAddr) -> Option<(u32, IpAddr)> {
        let bits = if dst.is_ipv4() { 32 } else { 128 };
        let mut header = [0; 12];
        header[..3].copy_from_slice(&[family(dst), bits, bits]);
        self.begin(RTM_GETROUTE, NLM_F_REQUEST, &header);
        self.attribute(RTA_DST, &octets(dst));
        self.attribute(RTA_SRC, &octets(src));
        if matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            self.attribute(RTA_OIF, &ifindex.to_ne_bytes());
        }
        self.send().ok()?;
        let body = self.answer(RTM_NEWROUTE)?;
        parse_route(body, dst)
    }

    fn neighbour(&mut self, ifindex: u32, ip: IpAddr) -> Option<[u8; 6]> {
        self.begin(RTM_GETNEIGH, NLM_F_REQUEST, &neighbour_header(ifindex, ip, 0));
        self.attribute(NDA_DST, &octets(ip));
        self.send().ok()?;
        let body = self.answer(RTM_NEWNEIGH)?;
        parse_neighbour(body)
    }

    fn begin(&mut self, kind: u16, flags: u16, header: &[u8]) {
        self.request.clear();
        self.request.extend_from_slice(&[0; 4]);
        self.request.extend_from_slice(&kind.to_ne_bytes());
        self.request.extend_from_slice(&flags.to_ne_bytes());
        self.request.extend_from_slice(&[0; 8]);
        self.request.extend_from_slice(header);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.request.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.request.extend_from_slice(&kind.to_ne_bytes());
        self.request.extend_from_slice(value);
        self.request.resize(self.request.len().next_multiple_of(4), 0);
    }

    fn send(&mut self) -> io::Result<()> {
        let length = self.request.len() as u32;
        self.request[..4].copy_from_slice(&length.to_ne_bytes());
        super::send(self.socket.as_raw_fd(), &self.request)
    }

    /// The kernel has answered when the request has been sent. Answers to what nobody waited for are passed over.
    fn answer(&mut self, wanted: u16) -> Option<&[u8]> {
        let n = loop {
            let n = receive(self.socket.as_raw_fd(), &mut self.buffer, libc::MSG_DONTWAIT).ok()?;
            let (kind, _, _) = message(&self.buffer[..n])?;
            if kind == wanted {
                break n;
            }
        };
        message(&self.buffer[..n]).map(|(_, body, _)| body)
    }
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// `struct ndmsg`.
fn neighbour_header(ifindex: u32, ip: IpAddr, flags: u8) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family(ip);
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[10] = flags;
    header
}

fn parse_route(body: &[u8], dst: IpAddr) -> Option<(u32, IpAddr)> {
    if *body.get(7)? != RTN_UNICAST {
        return None;
    }
    let (mut out, mut next) = (0, dst);
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            RTA_OIF => out = u32_at(value, 0)?,
            RTA_GATEWAY => next = address(value)?,
            // An IPv6 router on the way to an IPv4 address: family, then address.
            RTA_VIA => next = address(value.get(2..)?)?,
            _ => {}
        }
    }
    Some((out, next))
}

fn parse_neighbour(body: &[u8]) -> Option<[u8; 6]> {
    let state = super::u16_at(body, 8)?;
    if state & NUD_VALID == 0 {
        return None;
    }
    let mut all = attributes(body.get(12..)?);
    all.find(|(kind, _)| *kind == NDA_LLADDR).and_then(|(_, value)| value.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_not_a_neighbour() {
        let ip: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(Tables::open().unwrap().hop(2, ip, ip), Hop::Elsewhere);
    }

    #[test]
    fn a_router_is_the_next_hop_and_a_local_route_is_none() {
        let dst: IpAddr = "192.0.2.7".parse().unwrap();
        let mut body = vec![0u8; 12];
        body[7] = RTN_UNICAST;
        for (kind, value) in [(RTA_OIF, [3, 0, 0, 0]), (RTA_GATEWAY, [10, 0, 0, 1])] {
            body.extend_from_slice(&8u16.to_ne_bytes());
            body.extend_from_slice(&kind.to_ne_bytes());
            body.extend_from_slice(&value);
        }
        assert_eq!(parse_route(&body[..20], dst), Some((3, dst)));
        assert_eq!(parse_route(&body, dst), Some((3, "10.0.0.1".parse().unwrap())));
        body[7] = 2;
        assert_eq!(parse_route(&body, dst), None);
    }

    #[test]
    fn an_address_that_is_being_looked_for_is_not_used() {
        let mut body = neighbour_header(3, "10.0.0.1".parse().unwrap(), 0).to_vec();
        body.extend_from_slice(&10u16.to_ne_bytes());
        body.extend_from_slice(&NDA_LLADDR.to_ne_bytes());
        body.extend_from_slice(&[2, 0, 0, 0, 0, 9, 0, 0]);
        for (state, known) in [(0x01, false), (NUD_REACHABLE, true), (NUD_STALE, true), (0x20, false)] {
            body[8..10].copy_from_slice(&state.to_ne_bytes());
            assert_eq!(parse_neighbour(&body).is_some(), known, "state {state:#x}");
        }
    }
}
