//! Addresses of sockets and paths, as C has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use scalefabric_verbs::{CmAddr, Gid, Mtu, PKey, PathRecord, SockaddrIb};

use crate::abi;

/// Family of `sockaddr_ib`.
const AF_IB: u16 = 27;

/// `struct sockaddr_ib`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawIb {
    family: u16,
    pkey: u16,
    flow_info: u32,
    gid: [u8; 16],
    service_id: u64,
    service_id_mask: u64,
    scope_id: u64,
}

/// To C. Everything fits into the storage.
pub(crate) fn to_c(address: &CmAddr) -> libc::sockaddr_storage {
    // SAFETY: all members are numbers.
    let mut storage: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let place: *mut libc::sockaddr_storage = &mut storage;
    match address {
        CmAddr::Ip(SocketAddr::V4(v4)) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a storage holds an address of any family.
            unsafe { place.cast::<libc::sockaddr_in>().write(raw) };
        }
        CmAddr::Ip(SocketAddr::V6(v6)) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(raw) };
        }
        CmAddr::Ib(ib) => {
            let raw = RawIb {
                family: AF_IB,
                pkey: ib.pkey.to_be(),
                flow_info: ib.flow_info.to_be(),
                gid: ib.gid.0,
                service_id: ib.service_id.to_be(),
                service_id_mask: ib.service_id_mask.to_be(),
                scope_id: ib.scope_id,
            };
            // SAFETY: as above.
            unsafe { place.cast::<RawIb>().write(raw) };
        }
    }
    storage
}

/// From C; `None` for a family that is none of the three (0 before anything is bound).
pub(crate) fn from_c(storage: &libc::sockaddr_storage) -> Option<CmAddr> {
    let place: *const libc::sockaddr_storage = storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let raw = unsafe { place.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(CmAddr::Ip(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { place.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(CmAddr::Ip(SocketAddr::V6(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id))))
        }
        family if family == i32::from(AF_IB) => {
            // SAFETY: as above.
            let raw = unsafe { place.cast::<RawIb>().read() };
            Some(CmAddr::Ib(SockaddrIb {
                pkey: u16::from_be(raw.pkey),
                flow_info: u32::from_be(raw.flow_info),
                gid: Gid(raw.gid),
                service_id: u64::from_be(raw.service_id),
                service_id_mask: u64::from_be(raw.service_id_mask),
                scope_id: raw.scope_id,
            }))
        }
        _ => None,
    }
}

/// A path record of librdmacm.
pub(crate) fn path(raw: &abi::SaPathRec) -> PathRecord {
    PathRecord {
        dgid: Gid(raw.dgid.0),
        sgid: Gid(raw.sgid.0),
        flow_label: u32::from_be(raw.flow_label),
        hop_limit: raw.hop_limit,
        traffic_class: raw.traffic_class,
        pkey: PKey(u16::from_be(raw.pkey)),
        sl: raw.sl,
        mtu: Mtu::from_raw(raw.mtu.into()).unwrap_or(Mtu::Mtu1024),
        rate: raw.rate,
        packet_life_time: raw.packet_life_time,
        reversible: raw.reversible != 0,
    }
}

/// `struct ibv_path_data`: flags, then a path record as it goes over InfiniBand's wire.
pub(crate) fn path_data(path: &PathRecord) -> [u8; 72] {
    const EXACTLY: u8 = 2 << 6;
    let mut data = [0; 72];
    // GMP, primary, bidirectional.
    data[..4].copy_from_slice(&(1_u32 | 2 | 32).to_ne_bytes());
    let record = &mut data[8..];
    record[8..24].copy_from_slice(&path.dgid.0);
    record[24..40].copy_from_slice(&path.sgid.0);
    record[44..48].copy_from_slice(&((path.flow_label << 8) | u32::from(path.hop_limit)).to_be_bytes());
    record[48] = path.traffic_class;
    record[49] = u8::from(path.reversible) << 7 | 1;
    record[50..52].copy_from_slice(&path.pkey.0.to_be_bytes());
    record[52..54].copy_from_slice(&u16::from(path.sl & 15).to_be_bytes());
    record[54] = EXACTLY | path.mtu as u8;
    record[55] = EXACTLY | (path.rate & 63);
    record[56] = EXACTLY | (path.packet_life_time & 63);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_to_c_and_back() {
        let v6 = SocketAddrV6::new("fe80::1".parse().expect("an address"), 7471, 5, 3);
        let ib = SockaddrIb {
            pkey: 0xffff,
            flow_info: 7,
            gid: Gid([9; 16]),
            service_id: 0x0106_1234,
            service_id_mask: u64::MAX,
            scope_id: 4,
        };
        for address in
            [CmAddr::Ip("10.1.2.3:4791".parse().expect("an address")), CmAddr::Ip(SocketAddr::V6(v6)), CmAddr::Ib(ib)]
        {
            assert_eq!(from_c(&to_c(&address)), Some(address));
        }
        // SAFETY: all members are numbers.
        assert_eq!(from_c(&unsafe { core::mem::zeroed() }), None);
    }

    #[test]
    fn numbers_of_addresses_are_big_endian_in_c() {
        let storage = to_c(&CmAddr::Ip("10.1.2.3:258".parse().expect("an address")));
        // SAFETY: a storage is bytes.
        let bytes: [u8; 8] = unsafe { core::ptr::read((&raw const storage).cast()) };
        assert_eq!(bytes[2..], [1, 2, 10, 1, 2, 3]);
    }

    #[test]
    fn a_path_has_its_fields_where_infiniband_has_them() {
        let path = PathRecord {
            dgid: Gid([1; 16]),
            sgid: Gid([2; 16]),
            flow_label: 0x12345,
            hop_limit: 64,
            traffic_class: 7,
            pkey: PKey(0x8001),
            sl: 3,
            mtu: Mtu::Mtu4096,
            rate: 18,
            packet_life_time: 15,
            reversible: true,
        };
        let data = path_data(&path);
        assert_eq!(data[16..32], [1; 16]);
        assert_eq!(data[52..56], [0x01, 0x23, 0x45, 64]);
        assert_eq!(data[56..65], [7, 0x81, 0x80, 0x01, 0, 3, 0x85, 0x92, 0x8f]);
    }
}
