//! Functions of libc that lead to files and descriptors of ours. Each asks one question (is this path, is this
//! descriptor ours?) and else goes on to libc, with nothing changed.
//!
//! What this crate itself, or Rust's library in it, calls of libc comes by here, too, like anybody's call. That is sound:
//! a hook acts on paths of the kernel's RDMA files and on registered descriptors only, and the tree behind those paths
//! stands elsewhere.

pub mod descriptor;
pub mod device;
pub mod files;
mod next;
pub mod path;
pub mod socket;
pub mod status;
mod table;

pub use device::{Device, Node, find, register};

/// Sets the thread's errno.
pub(crate) fn set_errno(errno: i32) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// What a function that transfers bytes returns.
fn answer(result: Result<usize, device::Errno>) -> isize {
    match result {
        Ok(len) => len as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
