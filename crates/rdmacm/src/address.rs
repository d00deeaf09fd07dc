//! Addresses and routes: bind, resolve, and what the device knows of an identifier afterwards. AF_IB is not spoken: RoCE's addresses are
//! IP's.

use std::ffi::c_int;
use std::ptr::null_mut;

use libc::sockaddr;
use scalefabric_ibv::abi::ucma::{self, Command};
use scalefabric_ibv::abi::{self, CmId, CmRoute, Gid, SaPathRec};

use crate::command::{ask, tell};
use crate::device;
use crate::engine::*;
use crate::id::{complete, place, state};

/// A `sockaddr` in the room of the largest that commands take. `EINVAL` for families other than IPv4 and IPv6.
unsafe fn bytes(address: *const sockaddr) -> Result<[u8; 28], Errno> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: a `sockaddr` has a family.
    let length = match c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(libc::EINVAL),
    };
    let mut bytes = [0; 28];
    // SAFETY: an address of this family has so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), length) };
    Ok(bytes)
}

/// As [`bytes`], in the room of a `sockaddr_storage`, with the number of bytes that count.
pub unsafe fn storage(address: *const sockaddr) -> Result<([u8; 128], u16), Errno> {
    // SAFETY: the caller's promise.
    let short = unsafe { bytes(address)? };
    let mut long = [0; 128];
    long[..28].copy_from_slice(&short);
    let is_v4 = u16::from_ne_bytes([short[0], short[1]]) == libc::AF_INET as u16;
    Ok((long, if is_v4 { 16 } else { 28 }))
}

fn put(place: &mut libc::sockaddr_storage, bytes: &[u8; 28]) {
    // SAFETY: the room is 128 bytes of which any are a value.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(place).cast::<u8>(), bytes.len()) };
}

/// Asks the device for addresses, GIDs and paths, and binds the identifier to its device.
pub fn query(id: *mut CmId) -> Result<(), Errno> {
    let (fd, handle) = place(id);
    let answer: ucma::QueryRouteResp =
        ask(fd, Command::QueryRoute, |response| ucma::Query { response, id: handle, option: 0 })?;
    // SAFETY: a living identifier; the route is written in one place at a time, as in librdmacm.
    let route = unsafe { &mut (*id).route };
    let paths = &answer.ib_route[..(answer.num_paths as usize).min(2)];
    if !paths.is_empty() {
        free_paths(route);
        let records: Box<[SaPathRec]> = paths.iter().map(path).collect();
        route.num_paths = records.len() as c_int;
        route.path_rec = Box::into_raw(records).cast();
    }
    route.addr.ibaddr.sgid = Gid(answer.ib_route[0].sgid);
    route.addr.ibaddr.dgid = Gid(answer.ib_route[0].dgid);
    route.addr.ibaddr.pkey = answer.ib_route[0].pkey_be;
    put(&mut route.addr.src_storage, &answer.src_addr);
    put(&mut route.addr.dst_storage, &answer.dst_addr);
    if answer.node_guid_be != 0 && state(id).device.is_none() {
        let device = device::acquire(answer.node_guid_be, answer.ibdev_index)?;
        state(id).device = Some(device);
        let (verbs, pd) = device.context();
        // SAFETY: a living identifier.
        unsafe { ((*id).verbs, (*id).pd, (*id).port_num) = (verbs, pd, answer.port_num) };
    }
    Ok(())
}

fn path(raw: &ucma::UserPathRec) -> SaPathRec {
    SaPathRec {
        dgid: Gid(raw.dgid),
        sgid: Gid(raw.sgid),
        dlid: raw.dlid,
        slid: raw.slid,
        raw_traffic: raw.raw_traffic.cast_signed(),
        flow_label: raw.flow_label_be,
        hop_limit: raw.hop_limit,
        traffic_class: raw.traffic_class,
        reversible: raw.reversible.cast_signed(),
        numb_path: raw.numb_path,
        pkey: raw.pkey_be,
        sl: raw.sl,
        mtu_selector: raw.mtu_selector,
        mtu: raw.mtu as u8,
        rate_selector: raw.rate_selector,
        rate: raw.rate,
        packet_life_time_selector: raw.packet_life_time_selector,
        packet_life_time: raw.packet_life_time,
        preference: raw.preference,
    }
}

/// Frees the paths of a route.
pub fn free_paths(route: &mut CmRoute) {
    if !route.path_rec.is_null() {
        let records = std::ptr::slice_from_raw_parts_mut(route.path_rec, route.num_paths.max(0) as usize);
        // SAFETY: they were made in `query`, so many.
        drop(unsafe { Box::from_raw(records) });
        (route.path_rec, route.num_paths) = (null_mut(), 0);
    }
}

/// The device's address vector as `ibv_ah_attr`.
pub fn ah_attr(raw: &ucma::AhAttr) -> abi::AhAttr {
    abi::AhAttr {
        grh: abi::GlobalRoute {
            dgid: Gid(raw.grh.dgid),
            flow_label: raw.grh.flow_label,
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
        },
        dlid: raw.dlid,
        sl: raw.sl,
        src_path_bits: raw.src_path_bits,
        static_rate: raw.static_rate,
        is_global: raw.is_global,
        port_num: raw.port_num,
    }
}

/// Binds to a local address.
pub unsafe fn bind(id: *mut CmId, address: *const sockaddr) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let addr = unsafe { bytes(address)? };
    let (fd, handle) = place(id);
    tell(fd, Command::BindIp, &ucma::BindIp { response: 0, addr, id: handle })?;
    query(id)
}

/// Finds device and source address.
pub unsafe fn resolve(
    id: *mut CmId,
    source: *const sockaddr,
    destination: *const sockaddr,
    timeout_ms: c_int,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (src_addr, dst_addr) =
        unsafe { (if source.is_null() { [0; 28] } else { bytes(source)? }, bytes(destination)?) };
    let (fd, handle) = place(id);
    // SAFETY: a living identifier. Before the event comes: it may be taken by another thread.
    put(unsafe { &mut (*id).route.addr.dst_storage }, &dst_addr);
    let command = ucma::ResolveIp { src_addr, dst_addr, id: handle, timeout_ms: timeout_ms.cast_unsigned() };
    tell(fd, Command::ResolveIp, &command)?;
    complete(id)
}

/// Finds the path.
pub fn resolve_route(id: *mut CmId, timeout_ms: c_int) -> Result<(), Errno> {
    let (fd, handle) = place(id);
    tell(fd, Command::ResolveRoute, &ucma::ResolveRoute { id: handle, timeout_ms: timeout_ms.cast_unsigned() })?;
    complete(id)
}

/// The port of an address, big-endian as it stands there.
fn port(address: &libc::sockaddr_storage) -> u16 {
    match c_int::from(address.ss_family) {
        // SAFETY: in both families the port stands behind the family.
        libc::AF_INET | libc::AF_INET6 => unsafe {
            (*std::ptr::from_ref(address).cast::<libc::sockaddr_in>()).sin_port
        },
        _ => 0,
    }
}

/// `rdma_bind_addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut CmId, addr: *mut sockaddr) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { bind(id, addr) })
}

/// `rdma_resolve_addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut CmId,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller's.
    status(unsafe { resolve(id, src_addr, dst_addr, timeout_ms) })
}

/// `rdma_resolve_route`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut CmId, timeout_ms: c_int) -> c_int {
    status(resolve_route(id, timeout_ms))
}

/// `rdma_get_src_port`: big-endian.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut CmId) -> u16 {
    // SAFETY: a living identifier.
    port(unsafe { &(*id).route.addr.src_storage })
}

/// `rdma_get_dst_port`: big-endian.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut CmId) -> u16 {
    // SAFETY: a living identifier.
    port(unsafe { &(*id).route.addr.dst_storage })
}
