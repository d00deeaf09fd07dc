//! IP addressing (annex A11): the 36 bytes with which `rdma_cm` begins the private data of a REQ or SIDR_REQ, and the
//! service IDs that stand for port spaces.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ServiceId;
use crate::field::{array, be16, put};
use crate::invalid::InvalidPacket;

/// Bytes.
pub const LEN: usize = 36;

/// The bytes in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Major version (upper four bits) and minor version.
    pub fn version(&self) -> u8 {
        self.0[0]
    }

    /// IP version: 4 or 6.
    pub fn ip_version(&self) -> u8 {
        self.0[1] >> 4
    }

    /// Source port.
    pub fn src_port(&self) -> u16 {
        be16(self.0, 2)
    }

    /// The 16 bytes of the source address; IPv4 is in the last four.
    pub fn src(&self) -> [u8; 16] {
        array(self.0, 4)
    }

    /// The 16 bytes of the destination address; IPv4 is in the last four.
    pub fn dst(&self) -> [u8; 16] {
        array(self.0, 20)
    }
}

/// Who calls whom, in the words of IP. Both addresses are of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpAddressing {
    /// The caller's port.
    pub src_port: u16,
    /// The caller.
    pub src: IpAddr,
    /// The called.
    pub dst: IpAddr,
}

impl IpAddressing {
    /// Reads the header at the start of private data. Versions other than 0.0, and other IPs than 4 and 6, are refused.
    pub fn parse(private_data: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(private_data)?;
        if view.version() != 0 {
            return Err(InvalidPacket::Malformed("version of the IP addressing header is not 0"));
        }
        let address = |bytes: [u8; 16]| match view.ip_version() {
            4 => Ok(IpAddr::V4(Ipv4Addr::from_octets(array(&bytes, 12)))),
            6 => Ok(IpAddr::V6(Ipv6Addr::from_octets(bytes))),
            _ => Err(InvalidPacket::Malformed("IP version of the IP addressing header is neither 4 nor 6")),
        };
        Ok(Self { src_port: view.src_port(), src: address(view.src())?, dst: address(view.dst())? })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        let octets = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => {
                let mut bytes = [0; 16];
                put(&mut bytes, 12, ip.octets());
                bytes
            }
            IpAddr::V6(ip) => ip.octets(),
        };
        put(out, 0, [0, if self.src.is_ipv4() { 0x40 } else { 0x60 }]);
        put(out, 2, self.src_port.to_be_bytes());
        put(out, 4, octets(self.src));
        put(out, 20, octets(self.dst));
    }
}

impl ServiceId {
    /// Port space of TCP (reliable connections): `RDMA_PS_TCP`.
    pub const TCP: u16 = 0x0106;
    /// Port space of UDP (datagrams): `RDMA_PS_UDP`.
    pub const UDP: u16 = 0x0111;
    /// Port space `RDMA_PS_IB`.
    pub const IB: u16 = 0x013f;

    /// The service ID of a port of a port space.
    pub const fn of_port(space: u16, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Port space and port, if the ID is one of annex A11: 0x01, IP protocol, port in the low 32 bits.
    pub const fn port(self) -> Option<(u16, u16)> {
        if self.0 >> 24 == 1 { Some(((self.0 >> 16) as u16, self.0 as u16)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        IpAddressing,
        known: [
            0, 0x40, 0x9c, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77,
            0, 2,
        ],
        means: IpAddressing {
            src_port: 40_000, src: Ipv4Addr::new(10, 77, 0, 1).into(), dst: Ipv4Addr::new(10, 77, 0, 2).into(),
        },
        illegal: [
            (0, 0x10) => InvalidPacket::Malformed("version of the IP addressing header is not 0"),
            (1, 0x50) => InvalidPacket::Malformed("IP version of the IP addressing header is neither 4 nor 6"),
        ],
        any: (any::<u16>(), any::<bool>(), any::<u128>(), any::<u128>()).prop_map(|(src_port, v6, src, dst)| {
            if v6 {
                IpAddressing { src_port, src: Ipv6Addr::from(src).into(), dst: Ipv6Addr::from(dst).into() }
            } else {
                let v4 = |ip: u128| Ipv4Addr::from(ip as u32).into();
                IpAddressing { src_port, src: v4(src), dst: v4(dst) }
            }
        }),
    }

    #[test]
    fn service_ids_hold_port_space_and_port() {
        let id = ServiceId::of_port(ServiceId::TCP, 7174);
        assert_eq!(id, ServiceId(0x0106_1c06));
        assert_eq!(id.port(), Some((ServiceId::TCP, 7174)));
        assert_eq!(ServiceId(0x1000_0000_0106_1c06).port(), None);
        assert_eq!(ServiceId(7174).port(), None);
    }
}
