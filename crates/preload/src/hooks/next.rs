//! How a hook goes on: to the next definition of the same function, in another interposed library or in libc.

/// The next function of this name behind this object, found once for each place that asks. `None` if libc has none.
macro_rules! next {
    ($name:ident, $type:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let mut found = NEXT.load(std::sync::atomic::Ordering::Relaxed);
        if found.is_null() {
            const NAME: &std::ffi::CStr =
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                };
            found = $crate::real::libc(NAME);
            NEXT.store(found, std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: the symbol of that name in libc has this type; a null pointer is `None`.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<$type>>(found) }
    }};
}

/// Calls the next function; without one it fails as a kernel that does not know the call.
macro_rules! go_on {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty, $failed:expr) => {
        match $crate::hooks::next::next!($name, unsafe extern "C" fn($($type),*) -> $result) {
            // SAFETY: the arguments are the caller's, unchanged or led elsewhere.
            Some(next) => unsafe { next($($argument),*) },
            None => {
                $crate::hooks::set_errno(libc::ENOSYS);
                $failed
            }
        }
    };
}

pub(crate) use {go_on, next};
