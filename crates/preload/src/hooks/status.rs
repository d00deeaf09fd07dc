//! Hooks of the family of `stat`. Paths of ours are led into the tree. The kernel then tells of a plain file where a device
//! node should be: what stands for a node, by a path, by a folder's descriptor or by its own, is told as one.

use std::ffi::{c_char, c_int, c_uint};

use libc::stat as Stat;

use super::device::Node;
use super::next::go_on;
use super::path::{Purpose, lead};
use super::table;
use crate::tree;

/// Makes a node of a file that stands for one.
///
/// # Safety
///
/// `status` is null or was filled by the kernel.
unsafe fn as_node(result: c_int, status: *mut Stat) -> c_int {
    if result == 0 && !status.is_null() && tree::has_nodes() {
        // SAFETY: by the contract.
        let status = unsafe { &mut *status };
        if status.st_mode & libc::S_IFMT == libc::S_IFREG
            && let Some(device) = tree::node(status.st_dev, status.st_ino)
        {
            put_node(status, device);
        }
    }
    result
}

fn put_node(status: &mut Stat, device: u64) {
    status.st_mode = libc::S_IFCHR | 0o666;
    status.st_rdev = device;
    status.st_size = 0;
}

/// The node that a descriptor stands for.
fn node_of(fd: c_int) -> Option<u64> {
    match table::find(fd)?.node() {
        Node::Character(device) => Some(device),
        Node::Netlink => None,
    }
}

/// Hooks that take a path and fill a `struct stat`.
macro_rules! stats {
    ($( $name:ident($($before:ident: $before_type:ty,)* @$path:ident, $status:ident $(, $after:ident: $after_type:ty)*); )*) => { $(
        /// # Safety
        ///
        /// As the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $before_type,)* $path: *const c_char, $status: *mut Stat $(, $after: $after_type)*
        ) -> c_int {
            // SAFETY: the caller's promise.
            let led = unsafe { lead($path, Purpose::Look) };
            let $path = led.as_ref().map_or($path, |led| led.as_ptr());
            let result = go_on!($name($($before => $before_type,)* $path => *const c_char, $status => *mut Stat
                $(, $after => $after_type)*) -> c_int, -1);
            // SAFETY: filled just now.
            unsafe { as_node(result, $status) }
        }
    )* };
}

stats! {
    stat(@path, status);
    stat64(@path, status);
    lstat(@path, status);
    lstat64(@path, status);
    fstatat(folder: c_int, @path, status, flags: c_int);
    fstatat64(folder: c_int, @path, status, flags: c_int);
}

/// Hooks that take a descriptor and fill a `struct stat`.
macro_rules! descriptor_stats {
    ($( $name:ident($($before:ident: $before_type:ty,)* @$fd:ident, $status:ident); )*) => { $(
        /// # Safety
        ///
        /// As the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($before: $before_type,)* $fd: c_int, $status: *mut Stat) -> c_int {
            let result = go_on!($name($($before => $before_type,)* $fd => c_int, $status => *mut Stat) -> c_int, -1);
            match node_of($fd) {
                // SAFETY: filled just now.
                Some(device) if result == 0 => put_node(unsafe { &mut *$status }, device),
                // SAFETY: as above.
                _ => return unsafe { as_node(result, $status) },
            }
            result
        }
    )* };
}

descriptor_stats! {
    fstat(@fd, status);
    fstat64(@fd, status);
}

/// The family that programs built before glibc 2.33 call: a version of the structure comes first. libc has them for old
/// programs only, so that they are asked of the kernel here; on 64 bits all versions are one.
#[cfg_attr(test, allow(dead_code))]
mod old {
    use super::*;

    /// # Safety
    ///
    /// As `fstatat(2)`.
    unsafe fn from_kernel(folder: c_int, path: *const c_char, status: *mut Stat, flags: c_int) -> c_int {
        // SAFETY: the caller's promise.
        let led = unsafe { lead(path, Purpose::Look) };
        let path = led.as_ref().map_or(path, |led| led.as_ptr());
        // SAFETY: the caller's promise; the kernel checks the pointers.
        let result = unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, status, flags) } as c_int;
        // SAFETY: filled just now.
        unsafe { as_node(result, status) }
    }

    macro_rules! old_stats {
        ($( $name:ident, $flags:expr; )*) => { $(
            /// # Safety
            ///
            /// As the function of this name in libc.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(_version: c_int, path: *const c_char, status: *mut Stat) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { from_kernel(libc::AT_FDCWD, path, status, $flags) }
            }
        )* };
    }

    old_stats! {
        __xstat, 0;
        __xstat64, 0;
        __lxstat, libc::AT_SYMLINK_NOFOLLOW;
        __lxstat64, libc::AT_SYMLINK_NOFOLLOW;
    }

    /// # Safety
    ///
    /// As the function of this name in libc.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn __fxstat(_version: c_int, fd: c_int, status: *mut Stat) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { super::fstat(fd, status) }
    }

    /// # Safety
    ///
    /// As the function of this name in libc.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn __fxstat64(_version: c_int, fd: c_int, status: *mut Stat) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { super::fstat(fd, status) }
    }

    /// # Safety
    ///
    /// As the function of this name in libc.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn __fxstatat(
        _version: c_int,
        folder: c_int,
        path: *const c_char,
        status: *mut Stat,
        flags: c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { from_kernel(folder, path, status, flags) }
    }

    /// # Safety
    ///
    /// As the function of this name in libc.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn __fxstatat64(
        _version: c_int,
        folder: c_int,
        path: *const c_char,
        status: *mut Stat,
        flags: c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { from_kernel(folder, path, status, flags) }
    }
}

/// Hooks that read a folder: some look at the type that stands there, and never ask for the status.
macro_rules! readdirs {
    ($( $name:ident -> $entry:ty; )*) => { $(
        /// # Safety
        ///
        /// As the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(folder: *mut libc::DIR) -> *mut $entry {
            let entry = go_on!($name(folder => *mut libc::DIR) -> *mut $entry, std::ptr::null_mut());
            // SAFETY: libc gives an entry or null; it stays until the next call.
            if tree::has_nodes() && let Some(entry) = unsafe { entry.as_mut() } && entry.d_type == libc::DT_REG {
                // SAFETY: the folder that the entry came from.
                unsafe { type_as_node(folder, entry.d_ino, &mut entry.d_type) };
            }
            entry
        }
    )* };
}

readdirs! {
    readdir -> libc::dirent;
    readdir64 -> libc::dirent64;
}

/// # Safety
///
/// `folder` is open.
#[cold]
unsafe fn type_as_node(folder: *mut libc::DIR, inode: u64, kind: &mut u8) {
    // Few files have the number of one of ours; for those the folder tells on which device they are.
    if !tree::is_node_inode(inode) {
        return;
    }
    // SAFETY: a structure that the kernel fills.
    let mut status: Stat = unsafe { std::mem::zeroed() };
    // SAFETY: by the contract.
    let result = unsafe { libc::syscall(libc::SYS_fstat, libc::dirfd(folder), &raw mut status) };
    if result == 0 && tree::node(status.st_dev, inode).is_some() {
        *kind = libc::DT_CHR;
    }
}

/// # Safety
///
/// As `statx(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut libc::statx,
) -> c_int {
    // SAFETY: the caller's promise.
    let led = unsafe { lead(path, Purpose::Look) };
    // SAFETY: as above: an empty path with AT_EMPTY_PATH means the descriptor.
    let own = flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && unsafe { *path } == 0;
    let path = led.as_ref().map_or(path, |led| led.as_ptr());
    let result = go_on!(statx(folder => c_int, path => *const c_char, flags => c_int, mask => c_uint,
        status => *mut libc::statx) -> c_int, -1);
    if result != 0 || status.is_null() {
        return result;
    }
    // SAFETY: filled just now.
    let status = unsafe { &mut *status };
    let device = match own {
        true => node_of(folder),
        false => None,
    };
    let device = device.or_else(|| {
        let is_plain = tree::has_nodes() && u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        is_plain
            .then(|| tree::node(libc::makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino))
            .flatten()
    });
    if let Some(device) = device {
        status.stx_mode = (libc::S_IFCHR | 0o666) as u16;
        status.stx_rdev_major = libc::major(device) as u32;
        status.stx_rdev_minor = libc::minor(device) as u32;
        status.stx_size = 0;
    }
    result
}
