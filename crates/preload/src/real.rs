//! The libraries that stand behind us: libc, whose functions ours hide, and the distribution's libibverbs.

use std::ffi::{CStr, c_void};

/// The next definition of a symbol after this object, in the program's search order; null if there is none.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: dlsym reads the name; RTLD_NEXT is resolved from this object, which the call stands in.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}
