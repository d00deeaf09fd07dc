//! An audit library for ld.so (rtld-audit(7)). It does one thing: whoever asks for `libibverbs.so.1` or `libibverbs.so`,
//! by a dependency or by `dlopen`, with whatever RPATH, gets the drop-in that stands in the folder `dropin` beside this
//! library. It lives in a name space of its own, with a libc of its own, before the program has begun: it allocates
//! nothing and prints nothing.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_uint, c_void};

/// The path of the drop-in, or empty while it is not known.
struct Target(UnsafeCell<[u8; libc::PATH_MAX as usize]>);

// SAFETY: it is written in `la_version` only, which ld.so calls once, before any other function of this library.
unsafe impl Sync for Target {}

static TARGET: Target = Target(UnsafeCell::new([0; libc::PATH_MAX as usize]));

/// What comes after the folder of this library.
const DROPIN: &[u8] = b"dropin/libibverbs.so.1\0";

/// ld.so asks for the version of its interface that we understand; 0 sends us away.
///
/// # Safety
///
/// Called by ld.so alone, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_version(_offered: c_uint) -> c_uint {
    // SAFETY: dladdr fills `info` for an address of this library; its file name is a C string that stays.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(la_version as *const c_void, &mut info) == 0 || info.dli_fname.is_null() {
            return 0;
        }
        let own = CStr::from_ptr(info.dli_fname).to_bytes();
        let folder = own.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let target = &mut *TARGET.0.get();
        if folder + DROPIN.len() > target.len() {
            return 0;
        }
        target[..folder].copy_from_slice(&own[..folder]);
        target[folder..folder + DROPIN.len()].copy_from_slice(DROPIN);
    }
    1
}

/// ld.so asks where to look for a library: it calls this for the name as it was asked for, then for each path it tries.
///
/// # Safety
///
/// Called by ld.so alone; `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(name: *const c_char, _cookie: *mut usize, flag: c_uint) -> *const c_char {
    /// The name as it was asked for (`LA_SER_ORIG`).
    const AS_ASKED: c_uint = 1;
    // SAFETY: ld.so gives a C string; TARGET is complete since `la_version`.
    unsafe {
        let asked = CStr::from_ptr(name).to_bytes();
        if flag == AS_ASKED && (asked == b"libibverbs.so.1" || asked == b"libibverbs.so") {
            return TARGET.0.get().cast();
        }
    }
    name
}
