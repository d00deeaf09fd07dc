//! Which paths are ours, and where they lead. The kernel's RDMA files have fixed places; a path that begins with one leads
//! to the same path below the root of the tree ([`crate::tree`]). What comes back from libc with that root in front loses it.

use std::ffi::{CStr, CString, c_char};

use crate::tree;

/// The places, each with everything below it.
const PLACES: [&[u8]; 6] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_mad",
    b"/sys/class/misc/rdma_cm",
    b"/sys/devices/virtual/scalefabric",
    b"/dev/infiniband",
];

/// What a path of ours is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To look at it, or to list it.
    Look,
    /// To read it: its content must be of now.
    Read,
}

/// Where a path leads, if it is ours. Others cost a few comparisons of bytes.
///
/// # Safety
///
/// `path` is null or a C string.
#[inline]
pub unsafe fn lead(path: *const c_char, purpose: Purpose) -> Option<CString> {
    if path.is_null() {
        return None;
    }
    // SAFETY: by the contract; each byte is read only if the one before it is not the last.
    let byte = |at: usize| unsafe { *path.add(at) as u8 };
    let may_be_ours = byte(0) == b'/'
        && (byte(1) == b's' && byte(2) == b'y' && byte(3) == b's' && byte(4) == b'/'
            || byte(1) == b'd' && byte(2) == b'e' && byte(3) == b'v' && byte(4) == b'/' && byte(5) == b'i');
    if !may_be_ours {
        return None;
    }
    // SAFETY: by the contract.
    let path = unsafe { CStr::from_ptr(path) };
    place(path.to_bytes()).and_then(|path| tree::ready(&path, purpose))
}

/// The path without detours, if it is in one of the places.
#[cold]
pub fn place(path: &[u8]) -> Option<Vec<u8>> {
    let mut plain: Vec<u8> = Vec::with_capacity(path.len());
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => plain.truncate(plain.iter().rposition(|&byte| byte == b'/').unwrap_or(0)),
            part => {
                plain.push(b'/');
                plain.extend_from_slice(part);
            }
        }
    }
    let is_ours = PLACES
        .iter()
        .any(|place| plain.strip_prefix(*place).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")));
    is_ours.then_some(plain)
}

/// Takes the root of the tree off a path in a buffer.
///
/// # Safety
///
/// `path` is null or a C string that may be written.
pub unsafe fn take_root_off(path: *mut c_char) {
    let Some(root) = tree::root() else { return };
    if path.is_null() {
        return;
    }
    // SAFETY: by the contract: the string with its end moves to the front of its own buffer.
    unsafe {
        let bytes = CStr::from_ptr(path).to_bytes_with_nul();
        if let Some(rest) = bytes.strip_prefix(root)
            && rest.starts_with(b"/")
        {
            std::ptr::copy(rest.as_ptr(), path.cast(), rest.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_ours_whatever_its_detours_and_its_neighbours_are_not() {
        for ours in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/sf0/ports/1/state",
            "/sys/class//infiniband/./sf0",
            "/sys/class/infiniband/../infiniband_verbs/uverbs0",
            "/dev/infiniband/uverbs0",
        ] {
            assert!(place(ours.as_bytes()).is_some(), "{ours}");
        }
        for other in ["/sys/class/infiniband_srp", "/sys/class/net", "/dev/infinibandx", "/sys/class/infiniband/../net"]
        {
            assert!(place(other.as_bytes()).is_none(), "{other}");
        }
        assert_eq!(
            place(b"/sys/class/infiniband/../../devices/virtual/scalefabric/sf0").unwrap(),
            b"/sys/devices/virtual/scalefabric/sf0"
        );
    }
}
