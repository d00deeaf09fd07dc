//! Hooks of sockets: those of NETLINK_RDMA are ours. Below each is one of a pair of Unix sockets; what differs is said here:
//! the addresses are netlink's, and what is sent goes to the device.

use std::ffi::{c_int, c_void};

use libc::{msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::device::Node;
use super::next::go_on;
use super::{answer, set_errno, table};
use crate::netlink;

/// The device behind a netlink socket of ours.
fn device(fd: c_int) -> Option<table::Borrowed> {
    table::find(fd).filter(|device| device.node() == Node::Netlink)
}

/// After a read there is room for what waited.
fn flush(device: &table::Borrowed) {
    if let Some(socket) = device.as_any().and_then(|any| any.downcast_ref::<netlink::Socket>()) {
        socket.flush();
    }
}

/// The size of a netlink address.
const ADDRESS_BYTES: socklen_t = size_of::<libc::sockaddr_nl>() as socklen_t;

/// Writes a netlink address with this port ID: ours, or 0 for the kernel.
///
/// # Safety
///
/// As `getsockname(2)`: `len` says how many bytes `address` has.
unsafe fn put_address(address: *mut c_void, len: *mut socklen_t, port: u32) {
    if address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: all zero is a netlink address of nobody.
    let mut netlink: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    netlink.nl_family = libc::AF_NETLINK as u16;
    netlink.nl_pid = port;
    // SAFETY: by the contract; no more than there is room for.
    unsafe {
        let room = (*len).min(ADDRESS_BYTES) as usize;
        std::ptr::copy_nonoverlapping((&raw const netlink).cast::<u8>(), address.cast(), room);
        *len = ADDRESS_BYTES;
    }
}

/// # Safety
///
/// As `socket(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == netlink::PROTOCOL {
        return netlink::open(kind).unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        });
    }
    go_on!(socket(domain => c_int, kind => c_int, protocol => c_int) -> c_int, -1)
}

/// # Safety
///
/// As `bind(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    match device(fd) {
        Some(_) => 0,
        None => go_on!(bind(fd => c_int, address => *const sockaddr, len => socklen_t) -> c_int, -1),
    }
}

/// # Safety
///
/// As `connect(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    match device(fd) {
        Some(_) => 0,
        None => go_on!(connect(fd => c_int, address => *const sockaddr, len => socklen_t) -> c_int, -1),
    }
}

/// # Safety
///
/// As `getsockname(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match device(fd) {
        Some(_) => {
            // SAFETY: the caller's promise.
            unsafe { put_address(address.cast(), len, std::process::id()) };
            0
        }
        None => go_on!(getsockname(fd => c_int, address => *mut sockaddr, len => *mut socklen_t) -> c_int, -1),
    }
}

/// # Safety
///
/// As `setsockopt(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level == libc::SOL_NETLINK && device(fd).is_some() {
        // Extended acknowledgements, groups, strict checks: nothing here depends on them.
        return 0;
    }
    go_on!(setsockopt(fd => c_int, level => c_int, name => c_int, value => *const c_void, len => socklen_t) -> c_int, -1)
}

/// # Safety
///
/// As `send(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    match device(fd) {
        // SAFETY: the caller's promise.
        Some(_) => unsafe { super::descriptor::write(fd, buffer, len) },
        None => go_on!(send(fd => c_int, buffer => *const c_void, len => size_t, flags => c_int) -> ssize_t, -1),
    }
}

/// # Safety
///
/// As `sendto(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    match device(fd) {
        // SAFETY: the caller's promise.
        Some(_) => unsafe { super::descriptor::write(fd, buffer, len) },
        None => go_on!(sendto(fd => c_int, buffer => *const c_void, len => size_t, flags => c_int,
            address => *const sockaddr, address_len => socklen_t) -> ssize_t, -1),
    }
}

/// # Safety
///
/// As `sendmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    match device(fd) {
        Some(_) if message.is_null() => answer(Err(libc::EFAULT)),
        Some(device) => {
            // SAFETY: the caller's promise: a message with its buffers.
            let bytes = unsafe { super::descriptor::gathered((*message).msg_iov, (*message).msg_iovlen) };
            answer(device.write(&bytes))
        }
        None => go_on!(sendmsg(fd => c_int, message => *const msghdr, flags => c_int) -> ssize_t, -1),
    }
}

/// # Safety
///
/// As `recv(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let result = go_on!(recv(fd => c_int, buffer => *mut c_void, len => size_t, flags => c_int) -> ssize_t, -1);
    if result >= 0
        && let Some(device) = device(fd)
    {
        flush(&device);
    }
    result
}

/// # Safety
///
/// As `recvfrom(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let room = if address_len.is_null() {
        0
    } else {
        // SAFETY: the caller's promise.
        unsafe { *address_len }
    };
    let result = go_on!(recvfrom(fd => c_int, buffer => *mut c_void, len => size_t, flags => c_int,
        address => *mut sockaddr, address_len => *mut socklen_t) -> ssize_t, -1);
    if result >= 0
        && let Some(device) = device(fd)
    {
        flush(&device);
        if !address_len.is_null() {
            // SAFETY: the caller's promise; the length is what it was.
            unsafe {
                *address_len = room;
                put_address(address.cast(), address_len, 0);
            }
        }
    }
    result
}

/// # Safety
///
/// As `recvmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let device = device(fd).filter(|_| !message.is_null());
    // SAFETY: the caller's promise.
    let room = device.as_ref().map_or(0, |_| unsafe { (*message).msg_namelen });
    let result = go_on!(recvmsg(fd => c_int, message => *mut msghdr, flags => c_int) -> ssize_t, -1);
    if let Some(device) = device
        && result >= 0
    {
        flush(&device);
        // SAFETY: the caller's promise; the length is what it was.
        unsafe {
            (*message).msg_namelen = room;
            put_address((*message).msg_name, &raw mut (*message).msg_namelen, 0);
        }
    }
    result
}
