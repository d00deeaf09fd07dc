//! Hooks of what takes a path: opening, listing, links, the working directory. A path of ours is led into the tree; the
//! call is made there, by libc.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use super::next::go_on;
use super::path::{self, Purpose, lead};
use super::set_errno;
use crate::{tree, ucma};

/// A hook of a function whose path is one of its arguments: the path is led, the rest goes on as it is.
macro_rules! led {
    ($( $name:ident($($before:ident: $before_type:ty,)* @$path:ident $(, $after:ident: $after_type:ty)*) -> $result:ty,
        $purpose:ident, $failed:expr; )*) => { $(
        /// # Safety
        ///
        /// As the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $before_type,)* $path: *const c_char $(, $after: $after_type)*
        ) -> $result {
            // SAFETY: the caller's promise.
            let led = unsafe { lead($path, Purpose::$purpose) };
            let $path = led.as_ref().map_or($path, |led| led.as_ptr());
            go_on!($name($($before => $before_type,)* $path => *const c_char $(, $after => $after_type)*) -> $result, $failed)
        }
    )* };
}

led! {
    fopen(@path, mode: *const c_char) -> *mut FILE, Read, std::ptr::null_mut();
    fopen64(@path, mode: *const c_char) -> *mut FILE, Read, std::ptr::null_mut();
    freopen(@path, mode: *const c_char, file: *mut FILE) -> *mut FILE, Read, std::ptr::null_mut();
    freopen64(@path, mode: *const c_char, file: *mut FILE) -> *mut FILE, Read, std::ptr::null_mut();
    access(@path, mode: c_int) -> c_int, Look, -1;
    eaccess(@path, mode: c_int) -> c_int, Look, -1;
    euidaccess(@path, mode: c_int) -> c_int, Look, -1;
    faccessat(folder: c_int, @path, mode: c_int, flags: c_int) -> c_int, Look, -1;
    opendir(@path) -> *mut DIR, Look, std::ptr::null_mut();
    scandir(@path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int, Look, -1;
    scandir64(@path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int, Look, -1;
    getxattr(@path, name: *const c_char, value: *mut c_void, len: size_t) -> ssize_t, Look, -1;
    lgetxattr(@path, name: *const c_char, value: *mut c_void, len: size_t) -> ssize_t, Look, -1;
    listxattr(@path, list: *mut c_char, len: size_t) -> ssize_t, Look, -1;
    llistxattr(@path, list: *mut c_char, len: size_t) -> ssize_t, Look, -1;
    chdir(@path) -> c_int, Look, -1;
    readlink(@path, buffer: *mut c_char, len: size_t) -> ssize_t, Look, -1;
    readlinkat(folder: c_int, @path, buffer: *mut c_char, len: size_t) -> ssize_t, Look, -1;
    __readlink_chk(@path, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t, Look, -1;
    __readlinkat_chk(folder: c_int, @path, buffer: *mut c_char, len: size_t, room: size_t) -> ssize_t, Look, -1;
}

/// A hook of a function that gives a path back: the tree's root is taken off.
macro_rules! gives_path {
    ($( $name:ident(@$path:ident $(, $after:ident: $after_type:ty)*); )*) => { $(
        /// # Safety
        ///
        /// As the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($path: *const c_char $(, $after: $after_type)*) -> *mut c_char {
            // SAFETY: the caller's promise.
            let led = unsafe { lead($path, Purpose::Look) };
            let $path = led.as_ref().map_or($path, |led| led.as_ptr());
            let found = go_on!($name($path => *const c_char $(, $after => $after_type)*) -> *mut c_char,
                std::ptr::null_mut());
            // SAFETY: what libc gives is a C string in the caller's buffer, or one that the caller will free.
            unsafe { path::take_root_off(found) };
            found
        }
    )* };
}

gives_path! {
    realpath(@path, resolved: *mut c_char);
    __realpath_chk(@path, resolved: *mut c_char, room: size_t);
    canonicalize_file_name(@path);
}

/// # Safety
///
/// As `getcwd(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getcwd(buffer: *mut c_char, len: size_t) -> *mut c_char {
    let found = go_on!(getcwd(buffer => *mut c_char, len => size_t) -> *mut c_char, std::ptr::null_mut());
    // SAFETY: a C string in the caller's buffer, or one that the caller will free.
    unsafe { path::take_root_off(found) };
    found
}

/// # Safety
///
/// As `glob(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn glob(
    pattern: *const c_char,
    flags: c_int,
    failed: *mut c_void,
    found: *mut libc::glob_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let led = unsafe { lead(pattern, Purpose::Look) };
    let pattern = led.as_ref().map_or(pattern, |led| led.as_ptr());
    let result = go_on!(glob(pattern => *const c_char, flags => c_int, failed => *mut c_void,
        found => *mut libc::glob_t) -> c_int, libc::GLOB_ABORTED);
    if led.is_some() && result == 0 {
        // SAFETY: libc filled it: C strings of its own.
        unsafe { take_roots_off(found) };
    }
    result
}

/// # Safety
///
/// As `glob(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn glob64(
    pattern: *const c_char,
    flags: c_int,
    failed: *mut c_void,
    found: *mut libc::glob_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let led = unsafe { lead(pattern, Purpose::Look) };
    let pattern = led.as_ref().map_or(pattern, |led| led.as_ptr());
    let result = go_on!(glob64(pattern => *const c_char, flags => c_int, failed => *mut c_void,
        found => *mut libc::glob_t) -> c_int, libc::GLOB_ABORTED);
    if led.is_some() && result == 0 {
        // SAFETY: as above; the two structures are one on 64 bits.
        unsafe { take_roots_off(found) };
    }
    result
}

/// # Safety
///
/// `found` was filled by `glob`.
unsafe fn take_roots_off(found: *mut libc::glob_t) {
    // SAFETY: by the contract: `gl_pathc` strings behind `gl_offs` that are not used.
    unsafe {
        let (first, count) = ((*found).gl_offs, (*found).gl_pathc);
        for index in first..first + count {
            path::take_root_off(*(*found).gl_pathv.add(index));
        }
    }
}

/// What `open` finds at a path.
enum Place {
    /// Nothing of ours.
    Theirs,
    /// A descriptor, or -1 with errno set.
    Opened(c_int),
    /// A file of the tree.
    Led(std::ffi::CString),
}

/// # Safety
///
/// `path` is null or a C string.
unsafe fn find(path: *const c_char, flags: c_int) -> Place {
    // SAFETY: by the contract.
    let Some(led) = (unsafe { lead(path, Purpose::Read) }) else { return Place::Theirs };
    // SAFETY: `lead` found a C string.
    let plain = path::place(unsafe { CStr::from_ptr(path) }.to_bytes()).unwrap_or_default();
    let opened = match plain.strip_prefix(b"/dev/infiniband/") {
        Some(b"rdma_cm") => ucma::open(flags),
        // Its commands are the provider's own: nobody but libibverbs opens it, and ours needs no such file.
        Some(name) if tree::is_device_node(name) => Err(libc::EOPNOTSUPP),
        _ => return Place::Led(led),
    };
    Place::Opened(opened.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    }))
}

/// Hooks of the family of `open`. Those with a mode take it by register, as every caller of a variadic function passes it.
macro_rules! opens {
    ($( $name:ident($($before:ident: $before_type:ty,)* @$path:ident, $flags:ident $(, $after:ident: $after_type:ty)*); )*) => { $(
        /// # Safety
        ///
        /// As the function of this name in libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $before_type,)* $path: *const c_char, $flags: c_int $(, $after: $after_type)*
        ) -> c_int {
            // SAFETY: the caller's promise.
            let led = match unsafe { find($path, $flags) } {
                Place::Opened(fd) => return fd,
                Place::Led(led) => Some(led),
                Place::Theirs => None,
            };
            let $path = led.as_ref().map_or($path, |led| led.as_ptr());
            go_on!($name($($before => $before_type,)* $path => *const c_char, $flags => c_int
                $(, $after => $after_type)*) -> c_int, -1)
        }
    )* };
}

opens! {
    open(@path, flags, mode: mode_t);
    open64(@path, flags, mode: mode_t);
    openat(folder: c_int, @path, flags, mode: mode_t);
    openat64(folder: c_int, @path, flags, mode: mode_t);
    __open_2(@path, flags);
    __open64_2(@path, flags);
    __openat_2(folder: c_int, @path, flags);
    __openat64_2(folder: c_int, @path, flags);
}

/// # Safety
///
/// As `_exit(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    tree::leave();
    // SAFETY: it does not come back.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
}

/// # Safety
///
/// As `_Exit(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the same function by another name.
    unsafe { _exit(status) }
}

/// Kept out of the way: a mode is as wide as an unsigned int.
const _: () = assert!(size_of::<mode_t>() == size_of::<c_uint>());
