//! The distribution's libibverbs behind us: objects of real devices go to it.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the real library, looked up once.
#[derive(Debug)]
pub struct Function {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// What stands for "looked for and not there".
const NONE: *mut c_void = std::ptr::dangling_mut::<c_void>();

impl Function {
    /// The function of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address, if there is a real library and it has the function.
    pub fn address(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            found = crate::real::verbs(self.name);
            if found.is_null() {
                found = NONE;
            }
            self.found.store(found, Ordering::Release);
        }
        (found != NONE).then_some(found)
    }
}

/// Calls the real library's function of this name, or gives `else` if it has none.
macro_rules! behind {
    ($name:ident as $type:ty, ($($argument:expr),*), else $other:expr) => {{
        static FUNCTION: $crate::verbs::behind::Function =
            $crate::verbs::behind::Function::new(match ::std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => c"",
            });
        // Some callers stand in an unsafe block already.
        #[allow(unused_unsafe)]
        match FUNCTION.address() {
            Some(address) => {
                // SAFETY: the address is that of the public function of this name, whose type is fixed by its ABI; the
                // arguments are the program's own.
                let function: $type = unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, $type>(address) };
                // SAFETY: as above.
                unsafe { function($($argument),*) }
            }
            None => $other,
        }
    }};
}
pub(crate) use behind;
