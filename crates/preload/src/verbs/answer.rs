//! How an outcome becomes what C expects: a number of errno, a null pointer or -1, with `errno` set. A panic ends here: it
//! becomes `EIO` and never crosses into the program. (The calls of the data path have no such net: a panic there would
//! abort the process at the boundary, as `extern "C"` does.)
//!
//! libibverbs tells a number and nothing else. Ours knows a sentence: `SCALEFABRIC_EXPLAIN=1` prints it to stderr.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use scalefabric_verbs::{Errno, PostError, VerbsError};

/// What a call came to.
pub type Outcome<T = ()> = Result<T, VerbsError>;

/// Sets `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// The error of a call that hands us what is no object of ours, or not any more.
pub fn stale(what: &str) -> VerbsError {
    VerbsError::invalid(format!("this is no {what}: null, destroyed, or never one"))
}

/// A flag, type or size that this device does not have.
pub fn unsupported(what: impl Into<String>) -> VerbsError {
    VerbsError::misuse(Errno::EOPNOTSUPP, what)
}

fn explains() -> bool {
    static EXPLAINS: OnceLock<bool> = OnceLock::new();
    *EXPLAINS.get_or_init(|| std::env::var_os("SCALEFABRIC_EXPLAIN").is_some_and(|v| !v.is_empty() && v != "0"))
}

/// Sets `errno` for a failed call and returns it; explains it if the user wants that.
pub fn tell(call: &str, error: &VerbsError) -> c_int {
    // Waiting without anything there is not a mistake.
    if error.errno != Errno::EAGAIN && explains() {
        let line = format!("scalefabric: {call}: {error}\n");
        // SAFETY: a readable buffer of that length.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    }
    let errno = error.errno.to_raw();
    set_errno(errno);
    errno
}

/// As [`tell`], for a chain that was not posted whole.
#[cold]
pub fn tell_post(call: &str, error: &PostError) -> c_int {
    if explains() {
        tell(call, &VerbsError::from(*error));
    }
    let errno = error.errno.to_raw();
    set_errno(errno);
    errno
}

fn caught<T>(call: &str, body: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(VerbsError::environment(
            Errno::EIO,
            format!("{call} failed inside the software NIC: see the message above"),
        ))
    })
}

/// A call that returns 0 or a number of errno.
pub fn status(call: &str, body: impl FnOnce() -> Outcome) -> c_int {
    match caught(call, body) {
        Ok(()) => 0,
        Err(error) => tell(call, &error),
    }
}

/// A call that returns an object or null.
pub fn pointer<T>(call: &str, body: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    caught(call, body).unwrap_or_else(|error| {
        tell(call, &error);
        std::ptr::null_mut()
    })
}

/// A call that returns something from 0 on, or -1.
pub fn or_minus(call: &str, body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    caught(call, body).unwrap_or_else(|error| {
        tell(call, &error);
        -1
    })
}

/// A call that returns something from 0 on, or a negative number of errno.
pub fn or_negative(call: &str, body: impl FnOnce() -> Outcome<isize>) -> isize {
    caught(call, body).unwrap_or_else(|error| -(tell(call, &error) as isize))
}
