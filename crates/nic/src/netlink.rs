//! What the kernel says about network interfaces: a dump of links and addresses, and a descriptor that becomes readable
//! when one of them changes (rtnetlink, RFC 3549); and, in `neighbour`, routes and neighbours. Nothing here changes an interface.
//!
//! Messages are parsed from bytes by hand, with checked lengths: the few attributes that matter here do not need a
//! library.

use crate::process::Descriptor;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

pub(crate) mod neighbour;

/// A network interface with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Index, stable while the interface exists.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware type (`ARPHRD_*`): 1 Ethernet, 772 loopback.
    pub kind: u16,
    /// `IFF_*` flags.
    pub flags: u32,
    /// Bytes of an IP packet, at most.
    pub mtu: u32,
    /// `IF_OPER_*` (RFC 2863): 6 up, 0 unknown.
    pub oper_state: u8,
    /// Hardware address if it has one of 6 bytes.
    pub mac: Option<[u8; 6]>,
    /// The bond or bridge it is enslaved to.
    pub master: Option<u32>,
    /// Addresses that can be used: neither tentative nor failed.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network.
    pub prefix_len: u8,
}

impl Address {
    /// True for an IPv6 link-local address.
    pub fn is_link_local(&self) -> bool {
        matches!(self.ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// True if `ip` lies in this address's network.
    pub fn covers(&self, ip: IpAddr) -> bool {
        match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len.min(32))).unwrap_or(0);
                a.to_bits() & mask == b.to_bits() & mask
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len.min(128))).unwrap_or(0);
                a.to_bits() & mask == b.to_bits() & mask
            }
            _ => false,
        }
    }
}

const IFF_UP: u32 = libc::IFF_UP as u32;
/// The carrier is there (`IFF_LOWER_UP` of linux/if.h).
const IFF_LOWER_UP: u32 = 1 << 16;
const IFF_LOOPBACK: u32 = libc::IFF_LOOPBACK as u32;
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
const ARPHRD_NONE: u16 = 0xfffe;

impl Interface {
    /// True for the loopback.
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }

    /// True if packets can pass: administratively up, with a carrier, and not held back by a test or by authentication. The
    /// operational state itself follows a new carrier by up to a second, so it is not waited for.
    pub fn is_up(&self) -> bool {
        const TESTING: u8 = 4;
        const DORMANT: u8 = 5;
        let needed = IFF_UP | IFF_LOWER_UP;
        self.flags & needed == needed && !matches!(self.oper_state, TESTING | DORMANT)
    }

    /// True if a RoCE device can stand on it: an Ethernet-like, tun or loopback interface that is not part of a bond or
    /// bridge.
    pub fn is_usable(&self) -> bool {
        matches!(self.kind, ARPHRD_ETHER | ARPHRD_LOOPBACK | ARPHRD_NONE) && self.master.is_none()
    }

    /// Mb/s as the driver tells; `None` if it does not (virtual interfaces).
    pub fn speed_mbps(&self) -> Option<u32> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{}/speed", self.name)).ok()?;
        text.trim().parse::<u32>().ok().filter(|&s| s != 0 && s != u32::MAX)
    }
}

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_OPTIMISTIC: u32 = 0x04;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Cuts the first netlink message off `bytes`: its type, its body, and what follows.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32_at(bytes, 0)? as usize;
    let kind = u16_at(bytes, 4)?;
    let body = bytes.get(16..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, body, rest))
}

/// Walks the attributes of a message.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u16_at(bytes, 0)? as usize;
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn parse_link(body: &[u8]) -> Option<Interface> {
    let mut link = Interface {
        index: u32_at(body, 4)?,
        name: String::new(),
        kind: u16_at(body, 2)?,
        flags: u32_at(body, 8)?,
        mtu: 0,
        oper_state: 0,
        mac: None,
        master: None,
        addresses: Vec::new(),
    };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = value.try_into().ok(),
            IFLA_IFNAME => {
                let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
                link.name = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            IFLA_MTU => link.mtu = u32_at(value, 0)?,
            IFLA_MASTER => link.master = u32_at(value, 0),
            IFLA_OPERSTATE => link.oper_state = *value.first()?,
            _ => {}
        }
    }
    Some(link)
}

/// Interface index and address, if the address is one that a socket can be bound to.
fn parse_address(body: &[u8]) -> Option<(u32, Address)> {
    let (family, prefix_len) = (*body.first()?, *body.get(1)?);
    let mut flags = u32::from(*body.get(2)?);
    let index = u32_at(body, 4)?;
    let (mut local, mut address) = (None, None);
    for (kind, value) in attributes(body.get(8..)?) {
        let ip = || match i32::from(family) {
            libc::AF_INET => <[u8; 4]>::try_from(value).ok().map(|o| IpAddr::V4(Ipv4Addr::from(o))),
            libc::AF_INET6 => <[u8; 16]>::try_from(value).ok().map(|o| IpAddr::V6(Ipv6Addr::from(o))),
            _ => None,
        };
        match kind {
            IFA_LOCAL => local = ip(),
            IFA_ADDRESS => address = ip(),
            IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    let unusable = IFA_F_DADFAILED | if flags & IFA_F_OPTIMISTIC == 0 { IFA_F_TENTATIVE } else { 0 };
    // On a point-to-point link IFA_ADDRESS is the peer's and IFA_LOCAL ours; IPv6 often has only IFA_ADDRESS.
    (flags & unusable == 0).then_some(()).and(local.or(address)).map(|ip| (index, Address { ip, prefix_len }))
}

fn open(groups: u32) -> io::Result<Descriptor> {
    let (kind, protocol) = (libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
    // SAFETY: plain system call.
    let fd = Descriptor::make(|| unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
    // SAFETY: an all-zero sockaddr_nl is valid.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = groups;
    // SAFETY: the address is a valid sockaddr_nl of the given size.
    let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

fn receive(fd: RawFd, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    loop {
        // SAFETY: the buffer is writable for its length.
        let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        if n >= 0 {
            return Ok(n as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn send(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the bytes are readable for their length.
    let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks for a dump and gives each message of it to `each`.
fn dump(fd: &Descriptor, request: u16, each: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
    let mut message_bytes = [0u8; 32];
    message_bytes[0..4].copy_from_slice(&32u32.to_ne_bytes());
    message_bytes[4..6].copy_from_slice(&request.to_ne_bytes());
    message_bytes[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    send(fd.as_raw_fd(), &message_bytes)?;
    let mut buffer = vec![0u8; 32 << 10];
    loop {
        let n = receive(fd.as_raw_fd(), &mut buffer, 0)?;
        let mut rest = &buffer[..n];
        while let Some((kind, body, next)) = message(rest) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = u32_at(body, 0).unwrap_or(0) as i32;
                    return if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => each(kind, body),
            }
            rest = next;
        }
    }
}

/// All interfaces of this network namespace, in the order of their index, each with its usable addresses in the order
/// the kernel lists them.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let fd = open(0)?;
    let mut all: Vec<Interface> = Vec::new();
    dump(&fd, RTM_GETLINK, &mut |kind, body| {
        if kind == RTM_NEWLINK {
            all.extend(parse_link(body));
        }
    })?;
    dump(&fd, RTM_GETADDR, &mut |kind, body| {
        if kind == RTM_NEWADDR
            && let Some((index, address)) = parse_address(body)
            && let Some(interface) = all.iter_mut().find(|i| i.index == index)
        {
            interface.addresses.push(address);
        }
    })?;
    all.sort_by_key(|i| i.index);
    Ok(all)
}

/// Tells that something about an interface or an address has changed. It does not say what: [`interfaces`] does, and so
/// a lost notification (the kernel's ENOBUFS) cannot mislead.
#[derive(Debug)]
pub struct Monitor(Descriptor);

impl Monitor {
    /// Starts to listen.
    pub fn new() -> io::Result<Self> {
        Ok(Self(open((libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32)?))
    }

    /// Readable when there is something to take.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes all that is there; true if there was anything. Never blocks.
    pub fn take(&self) -> io::Result<bool> {
        let mut any = false;
        let mut buffer = [0u8; 8192];
        loop {
            match receive(self.fd(), &mut buffer, libc::MSG_DONTWAIT) {
                Ok(_) => any = true,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_with_its_address() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|i| i.is_loopback()).expect("every namespace has a loopback");
        assert!(lo.is_usable() && lo.mtu >= 1500, "{lo:?}");
        if lo.is_up() {
            assert!(lo.addresses.iter().any(|a| a.ip == IpAddr::V4(Ipv4Addr::LOCALHOST)), "{lo:?}");
        }
    }

    #[test]
    fn a_cut_message_is_refused_and_never_read_past() {
        let mut body = vec![0u8; 16];
        body[4] = 7;
        body.extend_from_slice(&8u16.to_ne_bytes());
        body.extend_from_slice(&IFLA_MTU.to_ne_bytes());
        body.extend_from_slice(&1500u32.to_ne_bytes());
        assert_eq!(parse_link(&body).unwrap().mtu, 1500);
        for end in 0..body.len() {
            assert!(parse_link(&body[..end]).is_none_or(|l| l.mtu == 0), "cut at {end}");
        }
    }

    #[test]
    fn attributes_with_length_below_their_header_end_the_walk() {
        assert_eq!(attributes(&[0, 0, 1, 0, 9, 9]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0, 9, 9]).count(), 0);
        assert_eq!(attributes(&[4, 0, 1, 0]).count(), 1);
    }

    #[test]
    fn tentative_addresses_are_not_offered() {
        let mut body = vec![libc::AF_INET6 as u8, 64, IFA_F_TENTATIVE as u8, 0, 2, 0, 0, 0];
        body.extend_from_slice(&20u16.to_ne_bytes());
        body.extend_from_slice(&IFA_ADDRESS.to_ne_bytes());
        body.extend_from_slice(&[0xfe; 16]);
        assert_eq!(parse_address(&body), None);
        body[2] = 0;
        assert!(parse_address(&body).is_some());
    }

    #[test]
    fn a_network_covers_its_own_addresses_only() {
        let net = Address { ip: "127.0.0.1".parse().unwrap(), prefix_len: 8 };
        assert!(net.covers("127.9.9.9".parse().unwrap()));
        assert!(!net.covers("128.0.0.1".parse().unwrap()));
        assert!(!net.covers("::1".parse().unwrap()));
        let any = Address { ip: "0.0.0.0".parse().unwrap(), prefix_len: 0 };
        assert!(any.covers("1.2.3.4".parse().unwrap()));
    }
}
