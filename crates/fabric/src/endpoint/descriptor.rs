//! The system calls on descriptors that waiting needs: an eventfd of one's own, sleeping on two descriptors, and giving a device's descriptor to tokio. All
//! unsafe code of endpoints is here.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A new eventfd; `None` if the process has no descriptor left.
pub(crate) fn eventfd() -> Option<OwnedFd> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    // SAFETY: checked to be a descriptor, which the call above made for us alone.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an eventfd. One that is closed by now is nobody's loss.
pub(crate) fn signal(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes are read from `one`; a number that is no eventfd any more is the caller's to prevent, and at worst an error.
    unsafe { libc::write(fd, std::ptr::from_ref(&one).cast(), 8) };
}

/// Sets an eventfd to zero.
pub(crate) fn quiet(fd: RawFd) {
    let mut count = 0u64;
    // SAFETY: eight bytes are written to `count`.
    unsafe { libc::read(fd, std::ptr::from_mut(&mut count).cast(), 8) };
}

/// Sleeps until one of two descriptors can be read, or `left` has passed, rounded up to a millisecond; which can be read. A negative number is not looked at.
pub(crate) fn sleep_on<const N: usize>(fds: [RawFd; N], left: Duration) -> [bool; N] {
    let mut polled = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: `N` entries of our own, of which the kernel writes `revents` only.
    unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, ms) };
    polled.map(|fd| fd.revents != 0)
}

/// Watches a descriptor that belongs to a device object, by a duplicate of it, so that its number may be closed and used again. `None` if that cannot be.
pub(crate) fn watch(fd: RawFd) -> Option<AsyncFd<OwnedFd>> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the device object lives during this call, and its descriptor with it; a number that is none makes the duplication fail.
    let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()?;
    // SAFETY: an OwnedFd keeps its descriptor open as long as it lives, and always gives the same number.
    unsafe { AsyncFd::register_with_interest(own, Interest::READABLE) }.ok()
}

/// The number of an eventfd, or -1.
pub(crate) fn number(fd: Option<&OwnedFd>) -> RawFd {
    fd.map_or(-1, AsRawFd::as_raw_fd)
}
