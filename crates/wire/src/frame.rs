//! A captured frame taken apart: link layer, IP, UDP, transport packet; and capture files of either kind, as one iterator.
//!
//! Written for captures, where the whole IP header is known. Everything is kept in structs, from which [`Frame::emit`]
//! makes the same bytes again.

use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use crate::ethernet::{self, Ethernet};
use crate::icrc;
use crate::ids::Gid;
use crate::invalid::{CannotEmit, InvalidPacket};
use crate::ipv4::{self, Ipv4};
use crate::ipv6::{self, Ipv6};
use crate::packet::{Packet, UDP_PORT};
use crate::pcap::{self, InvalidCapture, LinkType, Record};
use crate::pcapng;
use crate::udp::{self, Udp};

/// Reads a capture file of either kind.
#[derive(Clone, Debug)]
pub enum Capture<'a> {
    /// Classic.
    Pcap(pcap::Reader<'a>),
    /// Next generation.
    PcapNg(pcapng::Reader<'a>),
}

impl<'a> Capture<'a> {
    /// Tells the kind by the first bytes.
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidCapture> {
        if bytes.starts_with(&pcapng::SECTION_HEADER) {
            pcapng::Reader::new(bytes).map(Self::PcapNg)
        } else {
            pcap::Reader::new(bytes).map(Self::Pcap)
        }
    }
}

impl<'a> Iterator for Capture<'a> {
    type Item = Result<Record<'a>, InvalidCapture>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Pcap(reader) => reader.next(),
            Self::PcapNg(reader) => reader.next(),
        }
    }
}

/// Why a captured frame is not shown as RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRoce {
    /// A link type that is not known here.
    LinkType(LinkType),
    /// Neither IPv4 nor IPv6 follows.
    EtherType(u16),
    /// Not UDP.
    Protocol(u8),
    /// Not the first and only fragment.
    Fragment,
    /// Another destination port.
    Port(u16),
    /// The frame was cut by the capture, or lies about its length.
    Cut {
        /// Bytes the headers speak of.
        need: usize,
        /// Bytes that were kept.
        have: usize,
    },
    /// To port 4791, but not a packet.
    Invalid(InvalidPacket),
}

impl From<InvalidPacket> for NotRoce {
    fn from(invalid: InvalidPacket) -> Self {
        Self::Invalid(invalid)
    }
}

impl fmt::Display for NotRoce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkType(link) => write!(f, "link type {} is not known here", link.0),
            Self::EtherType(ethertype) => write!(f, "EtherType {ethertype:#06x}, not IP"),
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol}, not UDP"),
            Self::Fragment => f.write_str("an IP fragment"),
            Self::Port(port) => write!(f, "UDP port {port}, not 4791"),
            Self::Cut { need, have } => write!(f, "{have} bytes of {need} were captured"),
            Self::Invalid(invalid) => fmt::Display::fmt(invalid, f),
        }
    }
}

/// The link-layer header of a captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// None: the capture begins with IP.
    Raw,
    /// Ethernet.
    Ethernet(Ethernet),
    /// Ethernet with one tag: EtherType of the tag, tag, EtherType behind it.
    Vlan(Ethernet, u16, u16),
    /// Linux "cooked" capture, first form: the 16 bytes.
    LinuxSll([u8; 16]),
    /// Linux "cooked" capture, second form: the 20 bytes.
    LinuxSll2([u8; 20]),
}

impl Link {
    fn parse(link: LinkType, bytes: &[u8]) -> Result<(Self, &[u8]), NotRoce> {
        let cut = |need| NotRoce::Cut { need, have: bytes.len() };
        let (header, ethertype, rest) = match link {
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => return Ok((Self::Raw, bytes)),
            LinkType::ETHERNET => {
                let header = Ethernet::parse(bytes)?;
                let rest = &bytes[ethernet::LEN..];
                if ethernet::VLAN.contains(&header.ethertype) {
                    let (tag, rest) = rest.split_first_chunk::<4>().ok_or(cut(ethernet::LEN + 4))?;
                    let [tci, inner] = [[tag[0], tag[1]], [tag[2], tag[3]]].map(u16::from_be_bytes);
                    (Self::Vlan(header, tci, inner), inner, rest)
                } else {
                    (Self::Ethernet(header), header.ethertype, rest)
                }
            }
            LinkType::LINUX_SLL => {
                let (header, rest) = bytes.split_first_chunk::<16>().ok_or(cut(16))?;
                (Self::LinuxSll(*header), u16::from_be_bytes([header[14], header[15]]), rest)
            }
            LinkType::LINUX_SLL2 => {
                let (header, rest) = bytes.split_first_chunk::<20>().ok_or(cut(20))?;
                (Self::LinuxSll2(*header), u16::from_be_bytes([header[0], header[1]]), rest)
            }
            other => return Err(NotRoce::LinkType(other)),
        };
        if ethertype != ethernet::IPV4 && ethertype != ethernet::IPV6 {
            return Err(NotRoce::EtherType(ethertype));
        }
        Ok((header, rest))
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let mut ethernet = |header: &Ethernet| {
            let mut bytes = [0; ethernet::LEN];
            header.emit(&mut bytes);
            out.extend(bytes);
        };
        match self {
            Self::Raw => {}
            Self::Ethernet(header) => ethernet(header),
            Self::Vlan(header, tci, inner) => {
                ethernet(header);
                out.extend(tci.to_be_bytes());
                out.extend(inner.to_be_bytes());
            }
            Self::LinuxSll(header) => out.extend(header),
            Self::LinuxSll2(header) => out.extend(header),
        }
    }
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ip {
    V4(Ipv4),
    V6(Ipv6),
}

impl Ip {
    /// Source address.
    pub fn src(&self) -> IpAddr {
        match self {
            Self::V4(header) => header.src.into(),
            Self::V6(header) => header.src.into(),
        }
    }

    /// Destination address.
    pub fn dst(&self) -> IpAddr {
        match self {
            Self::V4(header) => header.dst.into(),
            Self::V6(header) => header.dst.into(),
        }
    }

    /// TOS or traffic class.
    pub fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(header) => header.traffic_class,
            Self::V6(header) => header.traffic_class,
        }
    }

    /// TTL or hop limit.
    pub fn hop_limit(&self) -> u8 {
        match self {
            Self::V4(header) => header.ttl,
            Self::V6(header) => header.hop_limit,
        }
    }

    /// Reads the header and cuts what belongs to it: header length, and the IP packet without link-layer padding.
    fn parse(bytes: &[u8]) -> Result<(Self, usize, &[u8]), NotRoce> {
        let (header, header_len, total) = match bytes.first().map(|byte| byte >> 4) {
            Some(4) => {
                let header = Ipv4::parse(bytes)?;
                if header.flags_and_offset & 0x3fff != 0 {
                    return Err(NotRoce::Fragment);
                }
                (Self::V4(header), ipv4::LEN, usize::from(header.total_len))
            }
            Some(6) => {
                let header = Ipv6::parse(bytes)?;
                (Self::V6(header), ipv6::LEN, ipv6::LEN + usize::from(header.payload_len))
            }
            Some(_) => return Err(InvalidPacket::Malformed("IP version is neither 4 nor 6").into()),
            None => return Err(NotRoce::Cut { need: ipv4::LEN, have: 0 }),
        };
        let protocol = match &header {
            Self::V4(header) => header.protocol,
            Self::V6(header) => header.next_header,
        };
        if protocol != ipv4::UDP {
            return Err(NotRoce::Protocol(protocol));
        }
        let packet = bytes.get(..total).ok_or(NotRoce::Cut { need: total, have: bytes.len() })?;
        Ok((header, header_len, packet))
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::V4(header) => {
                let mut bytes = [0; ipv4::LEN];
                header.emit(&mut bytes);
                out.extend(bytes);
            }
            Self::V6(header) => {
                let mut bytes = [0; ipv6::LEN];
                header.emit(&mut bytes);
                out.extend(bytes);
            }
        }
    }
}

/// A RoCEv2 frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Link layer.
    pub link: Link,
    /// IP header.
    pub ip: Ip,
    /// UDP header.
    pub udp: Udp,
    /// BTH to ICRC.
    pub packet: Packet<'a>,
    /// The ICRC that the packet should carry.
    pub right_icrc: u32,
    /// The UDP payload as captured: BTH to ICRC.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes a captured frame apart.
    pub fn parse(link: LinkType, frame: &'a [u8]) -> Result<Self, NotRoce> {
        let (link, rest) = Link::parse(link, frame)?;
        let (ip, ip_len, ip_packet) = Ip::parse(rest)?;
        let datagram = ip_packet.get(ip_len..).unwrap_or(&[]);
        let udp = Udp::parse(datagram)?;
        if udp.dst_port != UDP_PORT {
            return Err(NotRoce::Port(udp.dst_port));
        }
        let Some(bytes) = datagram.get(udp::LEN..usize::from(udp.length)) else {
            return Err(NotRoce::Cut { need: udp.length.into(), have: datagram.len() });
        };
        let packet = Packet::parse(bytes)?;
        let right_icrc = icrc::of_ip_packet(ip_packet).unwrap_or(!packet.icrc);
        Ok(Self { link, ip, udp, packet, right_icrc, bytes })
    }

    /// True if the ICRC is right.
    pub fn icrc_ok(&self) -> bool {
        self.packet.icrc == self.right_icrc
    }

    /// Source GID.
    pub fn src(&self) -> Gid {
        Gid::from_ip(self.ip.src())
    }

    /// Destination GID.
    pub fn dst(&self) -> Gid {
        Gid::from_ip(self.ip.dst())
    }

    /// Appends the frame, made anew from the structs. Link-layer padding is not made.
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), CannotEmit> {
        self.link.emit(out);
        self.ip.emit(out);
        let mut bytes = [0; udp::LEN];
        self.udp.emit(&mut bytes);
        out.extend(bytes);
        let start = out.len();
        out.resize(start + self.packet.len(), 0);
        self.packet.emit(&mut out[start..]).map(drop)
    }
}
