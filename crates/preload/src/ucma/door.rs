//! Opening the device: by its path, which the hooks of libc lead here, and by name for our own librdmacm, which works also where
//! nothing of libc is hooked.
//!
//! One descriptor cannot speak for the kernel's devices and for ours. Where the machine has RDMA devices that are not hidden
//! (`SCALEFABRIC_HIDE_REAL=1` hides them), `/dev/infiniband/rdma_cm` stays the kernel's; `SCALEFABRIC_RDMA_CM=software` makes it ours all the
//! same, and `SCALEFABRIC_RDMA_CM=kernel` never. Our own librdmacm always means ours.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

use scalefabric_verbs::Provider;

use super::file;
use crate::hooks::{self, device::Errno};
use crate::verbs::{answer::tell, device::provider};

/// `open("/dev/infiniband/rdma_cm", flags)`: a new descriptor, registered with [`crate::hooks::register`], or the kernel's.
pub fn open(flags: i32) -> Result<RawFd, Errno> {
    if is_kernels() { kernel_open(c"/dev/infiniband/rdma_cm", flags) } else { open_ours(flags) }
}

fn open_ours(flags: i32) -> Result<RawFd, Errno> {
    let channel = provider().and_then(|provider| provider.event_channel());
    let channel = channel.map_err(|error| tell("open /dev/infiniband/rdma_cm", &error))?;
    file::open(channel, flags)
}

/// Whether the path stays the kernel's.
fn is_kernels() -> bool {
    match std::env::var("SCALEFABRIC_RDMA_CM").as_deref() {
        Ok("software") => false,
        Ok("kernel") => true,
        _ => {
            let hidden = std::env::var_os("SCALEFABRIC_HIDE_REAL").is_some_and(|value| value == "1");
            !hidden && has_real_devices() && exists(c"/dev/infiniband/rdma_cm")
        }
    }
}

fn exists(path: &std::ffi::CStr) -> bool {
    // SAFETY: a C string; past the hooks, to the kernel's own file.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
}

fn kernel_open(path: &std::ffi::CStr, flags: i32) -> Result<RawFd, Errno> {
    // SAFETY: a C string; past the hooks, to the kernel's own file.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if fd < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(fd as RawFd) }
}

/// Whether the kernel has an RDMA device: its folder has an entry behind "." and "..".
fn has_real_devices() -> bool {
    /// Bytes of an entry for "." or "..": 19 of header, a name of up to two, zeros up to a multiple of eight.
    const DOTS: i64 = 24 + 24;
    let Ok(fd) = kernel_open(c"/sys/class/infiniband", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) else {
        return false;
    };
    let mut entries = [0_u8; 512];
    // SAFETY: so many bytes are there; the descriptor is ours.
    let length = unsafe { libc::syscall(libc::SYS_getdents64, fd, entries.as_mut_ptr(), entries.len()) };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    length > DOTS
}

/// Opens the device for our own librdmacm: a descriptor, or -1 with errno.
#[unsafe(no_mangle)]
pub extern "C" fn sfab_ucma_open(flags: c_int) -> c_int {
    open_ours(flags).unwrap_or_else(|errno| {
        hooks::set_errno(errno);
        -1
    })
}

/// Writes a command to it: as `write(2)`.
///
/// # Safety
/// So many bytes are at `bytes`, and the command's addresses are the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sfab_ucma_write(fd: c_int, bytes: *const c_void, length: usize) -> isize {
    let result = match hooks::find(fd) {
        // SAFETY: the caller's promise.
        Some(device) => device.write(unsafe { std::slice::from_raw_parts(bytes.cast(), length) }),
        None => Err(libc::EBADF),
    };
    result.map_or_else(
        |errno| {
            hooks::set_errno(errno);
            -1
        },
        |length| length as isize,
    )
}

/// Closes it.
#[unsafe(no_mangle)]
pub extern "C" fn sfab_ucma_close(fd: c_int) -> c_int {
    hooks::device::close(fd)
}
