//! Hooks of what works on a descriptor: it goes to the device behind it, or on to libc. What the NIC itself holds is not
//! closed by a program that closes every number there is, as daemons do: it would have stayed with a NIC of hardware, which
//! holds none.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{iovec, size_t, ssize_t};

use scalefabric_nic::process;

use super::device::Node;
use super::next::go_on;
use super::{answer, set_errno, table};

/// The device behind a descriptor, if it is one that `read` and `write` go to.
fn device(fd: c_int) -> Option<table::Borrowed> {
    table::find(fd).filter(|device| matches!(device.node(), Node::Character(_)))
}

/// Bytes of the application, to be written by a device.
///
/// # Safety
///
/// `buffer` has `len` bytes, as `read(2)` asks.
unsafe fn writable<'a>(buffer: *mut c_void, len: size_t) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: by the contract; `read` says nothing of what is in it.
    unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len) }
}

/// Bytes of the application, to be read by a device.
///
/// # Safety
///
/// `buffer` has `len` bytes, as `write(2)` asks.
unsafe fn readable<'a>(buffer: *const c_void, len: size_t) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(buffer.cast(), len) }
}

/// # Safety
///
/// As `read(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    match device(fd) {
        Some(_) if buffer.is_null() => answer(Err(libc::EFAULT)),
        // SAFETY: the caller's promise.
        Some(device) => answer(device.read(unsafe { writable(buffer, len) })),
        None => go_on!(read(fd => c_int, buffer => *mut c_void, len => size_t) -> ssize_t, -1),
    }
}

/// # Safety
///
/// As `read(2)`; `room` is the size of the buffer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    match device(fd) {
        // SAFETY: the caller's promise; no more than there is room for.
        Some(device) if !buffer.is_null() => answer(device.read(unsafe { writable(buffer, len.min(room)) })),
        Some(_) => answer(Err(libc::EFAULT)),
        None => {
            go_on!(__read_chk(fd => c_int, buffer => *mut c_void, len => size_t, room => size_t) -> ssize_t, -1)
        }
    }
}

/// # Safety
///
/// As `write(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // What is written into a netlink socket goes to its device, too.
    match table::find(fd) {
        Some(_) if buffer.is_null() => answer(Err(libc::EFAULT)),
        // SAFETY: the caller's promise.
        Some(device) => answer(device.write(unsafe { readable(buffer, len) })),
        None => go_on!(write(fd => c_int, buffer => *const c_void, len => size_t) -> ssize_t, -1),
    }
}

/// # Safety
///
/// As `readv(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let Some(device) = device(fd) else {
        return go_on!(readv(fd => c_int, vector => *const iovec, count => c_int) -> ssize_t, -1);
    };
    // A device gives one thing at a time: into the first buffer that has room.
    // SAFETY: the caller's promise: `count` buffers.
    let vector = unsafe { std::slice::from_raw_parts(vector, usize::try_from(count).unwrap_or(0)) };
    match vector.iter().find(|part| part.iov_len > 0 && !part.iov_base.is_null()) {
        // SAFETY: the caller's promise.
        Some(part) => answer(device.read(unsafe { writable(part.iov_base, part.iov_len) })),
        None => 0,
    }
}

/// # Safety
///
/// As `writev(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let Some(device) = table::find(fd) else {
        return go_on!(writev(fd => c_int, vector => *const iovec, count => c_int) -> ssize_t, -1);
    };
    // SAFETY: the caller's promise: `count` buffers, each with its bytes.
    let bytes = unsafe { gathered(vector, usize::try_from(count).unwrap_or(0)) };
    answer(device.write(&bytes))
}

/// The bytes of a vector in one piece.
///
/// # Safety
///
/// As `writev(2)`.
pub(super) unsafe fn gathered(vector: *const iovec, count: usize) -> Vec<u8> {
    if vector.is_null() {
        return Vec::new();
    }
    // SAFETY: by the contract.
    let vector = unsafe { std::slice::from_raw_parts(vector, count) };
    // SAFETY: by the contract.
    vector.iter().flat_map(|part| unsafe { readable(part.iov_base, part.iov_len) }).copied().collect()
}

/// # Safety
///
/// As `close(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if process::is_ours(fd) {
        return 0;
    }
    let device = table::remove(fd);
    let result = go_on!(close(fd => c_int) -> c_int, -1);
    drop(device);
    result
}

/// # Safety
///
/// As `close_range(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    /// They are not closed now, but at exec.
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    let devices = if flags & CLOSE_RANGE_CLOEXEC == 0 { remove_range(first, last) } else { Vec::new() };
    let result = around_ours(
        first,
        last,
        |first, last| go_on!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int, -1),
    );
    drop(devices);
    result
}

/// Calls `close` for the stretches between the NIC's descriptors, until one fails. Ours have `FD_CLOEXEC` anyway.
fn around_ours(first: c_uint, last: c_uint, mut close: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    let end = c_uint::try_from(process::end_of_ours()).unwrap_or(0).min(last.saturating_add(1));
    for ours in (first..end).filter(|&fd| process::is_ours(fd as c_int)) {
        if from < ours && close(from, ours - 1) < 0 {
            return -1;
        }
        from = ours + 1;
    }
    // Nothing may be left of a range that was not empty.
    if from > last && from != first { 0 } else { close(from, last) }
}

/// # Safety
///
/// As `closefrom(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let devices = remove_range(first.max(0) as c_uint, c_uint::MAX);
    around_ours(first.max(0) as c_uint, c_uint::MAX, |first, last| {
        if last == c_uint::MAX {
            go_on!(closefrom(first as c_int => c_int) -> (), ());
        } else {
            for fd in first..=last {
                go_on!(close(fd as c_int => c_int) -> c_int, -1);
            }
        }
        0
    });
    drop(devices);
}

fn remove_range(first: c_uint, last: c_uint) -> Vec<table::Borrowed> {
    let end = c_uint::try_from(table::end()).unwrap_or(0);
    (first..end.min(last.saturating_add(1))).filter_map(|fd| table::remove(fd as c_int)).collect()
}

/// # Safety
///
/// As `dup(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    duplicated(fd, go_on!(dup(fd => c_int) -> c_int, -1))
}

/// # Safety
///
/// As `dup2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    let device = replaced(from, to);
    let result = duplicated(from, go_on!(dup2(from => c_int, to => c_int) -> c_int, -1));
    drop(device);
    result
}

/// # Safety
///
/// As `dup3(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    let device = replaced(from, to);
    let result = duplicated(from, go_on!(dup3(from => c_int, to => c_int, flags => c_int) -> c_int, -1));
    drop(device);
    result
}

fn duplicated(from: c_int, to: c_int) -> c_int {
    if to >= 0 {
        if from != to && process::is_ours(to) {
            process::taken(to);
        }
        table::duplicate(from, to);
    }
    to
}

/// The device behind a descriptor that `dup2` is about to replace.
fn replaced(from: c_int, to: c_int) -> Option<table::Borrowed> {
    if from == to || to >= table::end() {
        return None;
    }
    // SAFETY: F_GETFD takes no argument; it tells whether `from` is a descriptor at all.
    let is_open = unsafe { libc::syscall(libc::SYS_fcntl, from, libc::F_GETFD) } >= 0;
    if is_open { table::remove(to) } else { None }
}

/// # Safety
///
/// As `fcntl(2)`: a third argument if the command has one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = go_on!(fcntl(fd => c_int, command => c_int, argument => usize) -> c_int, -1);
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { duplicated(fd, result) } else { result }
}

/// # Safety
///
/// As `fcntl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = go_on!(fcntl64(fd => c_int, command => c_int, argument => usize) -> c_int, -1);
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { duplicated(fd, result) } else { result }
}

/// # Safety
///
/// As `ioctl(2)`: a third argument if the request has one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if let Some(device) = device(fd)
        && !matches!(request, libc::FIONBIO | libc::FIOCLEX | libc::FIONCLEX | libc::FIOASYNC)
    {
        return device.ioctl(request, argument).unwrap_or_else(|errno| {
            set_errno(errno);
            -1
        });
    }
    go_on!(ioctl(fd => c_int, request => c_ulong, argument => usize) -> c_int, -1)
}
