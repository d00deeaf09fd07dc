//! `rdma_getaddrinfo`: names to addresses, by libc's resolver. Routes are the device's affair; nobody is asked for them here.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use libc::{addrinfo, sockaddr};
use scalefabric_ibv::abi::CmAddrInfo;

use crate::device;
use crate::engine::*;
use crate::id::*;

/// `RAI_PASSIVE`: the address is for listening.
pub const PASSIVE: c_int = 1;
const NUMERIC_HOST: c_int = 2;

fn hints_for(hints: &CmAddrInfo) -> addrinfo {
    // SAFETY: zeros are a value.
    let mut ai: addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & PASSIVE != 0 {
        ai.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & NUMERIC_HOST != 0 {
        ai.ai_flags |= libc::AI_NUMERICHOST;
    }
    ai.ai_family = hints.ai_family;
    ai.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        QPT_RC | QPT_UC | QPT_XRC_SEND | QPT_XRC_RECV => libc::SOCK_STREAM,
        QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    ai.ai_protocol = match (hints.ai_port_space.cast_unsigned(), ai.ai_socktype) {
        (PS_TCP, _) => libc::IPPROTO_TCP,
        (PS_UDP | PS_IPOIB, _) => libc::IPPROTO_UDP,
        (0, _) => 0,
        (_, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (_, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    ai
}

/// A copy that `free` frees.
unsafe fn copy(address: *const sockaddr, length: u32) -> *mut sockaddr {
    // SAFETY: the caller says that so many bytes are there.
    unsafe {
        let place = libc::malloc(length as usize);
        if !place.is_null() {
            libc::memcpy(place, address.cast(), length as usize);
        }
        place.cast()
    }
}

/// Fills in what the resolver found. Of several addresses the first counts.
unsafe fn fill(info: &mut CmAddrInfo, hints: Option<&CmAddrInfo>, found: &addrinfo) {
    let asked = |field: fn(&CmAddrInfo) -> c_int| hints.map(field).filter(|&asked| asked != 0);
    info.ai_qp_type = asked(|hints| hints.ai_qp_type).unwrap_or(match found.ai_socktype {
        libc::SOCK_DGRAM => QPT_UD.cast_signed(),
        _ => QPT_RC.cast_signed(),
    });
    info.ai_port_space = asked(|hints| hints.ai_port_space).unwrap_or(match found.ai_protocol {
        libc::IPPROTO_UDP => PS_UDP.cast_signed(),
        _ => PS_TCP.cast_signed(),
    });
    info.ai_family = found.ai_family;
    // SAFETY: the resolver's address and name.
    unsafe {
        let address = copy(found.ai_addr, found.ai_addrlen);
        let name = if found.ai_canonname.is_null() { null_mut() } else { libc::strdup(found.ai_canonname) };
        if hints.is_some_and(|hints| hints.ai_flags & PASSIVE != 0) {
            info.ai_flags = PASSIVE;
            (info.ai_src_addr, info.ai_src_len, info.ai_src_canonname) = (address, found.ai_addrlen, name);
        } else {
            (info.ai_dst_addr, info.ai_dst_len, info.ai_dst_canonname) = (address, found.ai_addrlen, name);
        }
    }
}

/// 0, or what `getaddrinfo` returns.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&CmAddrInfo>,
    info: &mut CmAddrInfo,
) -> c_int {
    let wanted = hints.map(hints_for);
    let mut found: *mut addrinfo = null_mut();
    // SAFETY: the caller's strings; `wanted` lives through the call; what is found is freed here.
    unsafe {
        let result = libc::getaddrinfo(node, service, wanted.as_ref().map_or(null(), |wanted| wanted), &raw mut found);
        if result == 0 {
            fill(info, hints, &*found);
            libc::freeaddrinfo(found);
        }
        result
    }
}

/// `rdma_getaddrinfo`: 0, -1 with errno, or an error of `getaddrinfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const CmAddrInfo,
    res: *mut *mut CmAddrInfo,
) -> c_int {
    // SAFETY: null, or the caller's.
    let hints = unsafe { hints.as_ref() };
    if node.is_null() && service.is_null() && hints.is_none() {
        return status(Err(libc::EINVAL));
    }
    if let Err(errno) = device::any() {
        return status(Err(errno));
    }
    // SAFETY: zeros are a value: null pointers and numbers.
    let mut info: Box<CmAddrInfo> = unsafe { Box::new(std::mem::zeroed()) };
    let by_name = !node.is_null() || !service.is_null();
    let result = if by_name {
        // SAFETY: the caller's.
        unsafe { look_up(node, service, hints, &mut info) }
    } else {
        0
    };
    if result == 0
        && let Some(hints) = hints
    {
        // SAFETY: addresses of the hints have the lengths that stand beside them.
        unsafe {
            if !by_name {
                (info.ai_flags, info.ai_family) = (hints.ai_flags, hints.ai_family);
                (info.ai_qp_type, info.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
                if hints.ai_dst_len > 0 {
                    (info.ai_dst_addr, info.ai_dst_len) = (copy(hints.ai_dst_addr, hints.ai_dst_len), hints.ai_dst_len);
                }
            }
            if info.ai_src_len == 0 && hints.ai_src_len > 0 {
                (info.ai_src_addr, info.ai_src_len) = (copy(hints.ai_src_addr, hints.ai_src_len), hints.ai_src_len);
            }
        }
    }
    if result == 0 {
        // SAFETY: the caller's place.
        unsafe { *res = Box::into_raw(info) };
    }
    result
}

/// `rdma_freeaddrinfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut CmAddrInfo) {
    let mut next = res;
    while !next.is_null() {
        // SAFETY: made by `rdma_getaddrinfo`; what it points to is from malloc, or null.
        unsafe {
            let info = Box::from_raw(next);
            let parts: [*mut c_void; 6] = [
                info.ai_connect,
                info.ai_route,
                info.ai_src_canonname.cast(),
                info.ai_dst_canonname.cast(),
                info.ai_src_addr.cast(),
                info.ai_dst_addr.cast(),
            ];
            parts.into_iter().for_each(|part| libc::free(part));
            next = info.ai_next;
        }
    }
}
