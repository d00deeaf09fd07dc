//! `sockaddr`s: between their bytes and the contract's addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use scalefabric_ibv::abi::ucma::{self as abi, Plain};
use scalefabric_verbs::{CmAddr, Gid, PortSpace, SockaddrIb};

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;

/// Bytes of a `sockaddr` by its family; 0 for families that rdma_cm does not take.
fn length(bytes: &[u8]) -> usize {
    match family(bytes) {
        AF_INET => 16,
        AF_INET6 => 28,
        abi::AF_IB => size_of::<abi::SockaddrIb>(),
        _ => 0,
    }
}

fn family(bytes: &[u8]) -> u16 {
    u16::from_ne_bytes([bytes[0], bytes[1]])
}

/// The address in a buffer of 28 or 128 bytes; none for other families and for AF_IB in a buffer that is too small.
pub fn parse(bytes: &[u8]) -> Option<CmAddr> {
    if length(bytes) == 0 || bytes.len() < length(bytes) {
        return None;
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    Some(match family(bytes) {
        AF_INET => {
            let octets: [u8; 4] = bytes[4..8].try_into().ok()?;
            CmAddr::Ip(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
        }
        AF_INET6 => {
            let octets: [u8; 16] = bytes[8..24].try_into().ok()?;
            let flow_info = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
            let scope_id = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
            CmAddr::Ip(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow_info, scope_id)))
        }
        _ => {
            let raw = abi::SockaddrIb::read(bytes)?;
            CmAddr::Ib(SockaddrIb {
                pkey: u16::from_be(raw.pkey_be),
                flow_info: u32::from_be(raw.flow_info_be),
                gid: Gid(raw.gid),
                service_id: u64::from_be(raw.sid_be),
                service_id_mask: u64::from_be(raw.sid_mask_be),
                scope_id: raw.scope_id,
            })
        }
    })
}

/// As [`parse`], where the caller says how long the address is: it must be what the family says.
pub fn parse_sized(bytes: &[u8], size: u16) -> Option<CmAddr> {
    if usize::from(size) == length(bytes) { parse(bytes) } else { None }
}

/// The bytes of an address and how many of them count. No address is all zeros and 0.
pub fn emit(address: Option<CmAddr>) -> ([u8; 128], u16) {
    let mut bytes = [0; 128];
    let length = match address {
        None => 0,
        Some(CmAddr::Ip(SocketAddr::V4(v4))) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            16
        }
        Some(CmAddr::Ip(SocketAddr::V6(v6))) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            28
        }
        Some(CmAddr::Ib(ib)) => {
            let raw = abi::SockaddrIb {
                family: abi::AF_IB,
                pkey_be: ib.pkey.to_be(),
                flow_info_be: ib.flow_info.to_be(),
                gid: ib.gid.0,
                sid_be: ib.service_id.to_be(),
                sid_mask_be: ib.service_id_mask.to_be(),
                scope_id: ib.scope_id,
            };
            bytes[..48].copy_from_slice(raw.bytes());
            48
        }
    };
    (bytes, length)
}

/// As [`emit`], in the 28 bytes of `sockaddr_in6`. An address of AF_IB does not fit and is none.
pub fn emit_ip(address: Option<CmAddr>) -> [u8; 28] {
    let address = address.filter(|address| matches!(address, CmAddr::Ip(_)));
    let mut bytes = [0; 28];
    bytes.copy_from_slice(&emit(address).0[..28]);
    bytes
}

/// An identifier's end as an address of AF_IB: its GID, and the service ID that its port space and port make (annex A11).
pub fn as_ib(address: Option<CmAddr>, gid: Gid, pkey: u16, space: PortSpace) -> CmAddr {
    match address {
        Some(CmAddr::Ib(ib)) => CmAddr::Ib(ib),
        _ => {
            let port = match address {
                Some(CmAddr::Ip(ip)) => ip.port(),
                _ => 0,
            };
            let service_id = u64::from(space.to_raw()) << 16 | u64::from(port);
            CmAddr::Ib(SockaddrIb { pkey, gid, service_id, ..SockaddrIb::default() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_again(text: &str) {
        let address = CmAddr::Ip(text.parse().unwrap());
        let (bytes, length) = emit(Some(address));
        assert_eq!(parse_sized(&bytes, length), Some(address), "{text}");
        assert_eq!(parse(&emit_ip(Some(address))), Some(address), "{text}");
        assert_eq!(parse_sized(&bytes, length + 1), None, "the size must be that of the family");
    }

    #[test]
    fn addresses_keep_their_port_and_scope() {
        parsed_again("127.0.0.9:4711");
        parsed_again("[fe80::1%3]:9");
        parsed_again("[::]:0");
    }

    #[test]
    fn an_ib_address_does_not_fit_where_ip_is_meant() {
        let gid = Gid([7; 16]);
        let address = as_ib(Some(CmAddr::Ip("10.0.0.1:18515".parse().unwrap())), gid, 0xffff, PortSpace::Tcp);
        let (bytes, length) = emit(Some(address));
        assert_eq!(length, 48);
        assert_eq!(bytes[24..32], 0x0106_4853_u64.to_be_bytes(), "service ID: TCP's port space and the port");
        assert_eq!(parse(&bytes), Some(address));
        assert_eq!(parse(&bytes[..28]), None);
        assert_eq!(emit_ip(Some(address)), [0; 28]);
    }

    #[test]
    fn an_unknown_family_is_no_address() {
        assert_eq!(parse(&[0; 128]), None);
        assert_eq!(parse(&[1; 28]), None);
    }
}
