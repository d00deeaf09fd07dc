//! Descriptors that stand for a device of ours. Below each is a real descriptor of the kernel (an eventfd or a socket),
//! so that poll, epoll, select, dup, fork and `O_NONBLOCK` are the kernel's; `read`, `write` and `fstat` are answered here.

use std::any::Any;
use std::sync::Arc;

/// A number of errno, never 0.
pub type Errno = i32;

/// What `fstat` says of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A character device with this number (`makedev`).
    Character(u64),
    /// A netlink socket; below it is one of a Unix socket pair. What the application sends comes to `write`; what the
    /// device sends into the other end is what the application receives.
    Netlink,
}

/// A device of ours behind one open file description: what `dup` and `fork` made of a descriptor shares it.
///
/// A call that must wait looks at `O_NONBLOCK` of a duplicate that the device keeps: it is the open file description's.
/// Calls come from any thread, also at the same time. They may be called in a forked child.
pub trait Device: Send + Sync {
    /// `write(2)`: how many bytes were taken.
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno>;

    /// `read(2)`: how many bytes were given.
    fn read(&self, _bytes: &mut [u8]) -> Result<usize, Errno> {
        Err(libc::EINVAL)
    }

    /// `ioctl(2)` other than those of every descriptor (FIONBIO, FIOCLEX …), which go to the kernel.
    fn ioctl(&self, _request: u64, _argument: usize) -> Result<i32, Errno> {
        Err(libc::ENOTTY)
    }

    /// What `fstat` says.
    fn node(&self) -> Node;

    /// The last descriptor of this process that led here was closed. Not called at exit of the process.
    fn close(&self) {}

    /// For a device to find its own kind behind another descriptor ([`find`]).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// Makes `fd` lead to `device` from now on, until it is closed. `fd` is a real descriptor, just made by the caller, and
/// belongs to the application afterwards. `EMFILE` if its number is beyond what can be followed (about a million).
pub fn register(fd: i32, device: Arc<dyn Device>) -> Result<(), Errno> {
    if super::table::insert(fd, device) { Ok(()) } else { Err(libc::EMFILE) }
}

/// The device that `fd` leads to; none if it is not ours. The connection manager's device names another descriptor in a
/// command.
pub fn find(fd: i32) -> Option<Arc<dyn Device>> {
    super::table::find(fd).map(|borrowed| borrowed.clone())
}

/// `close(2)` of a descriptor of ours, for those who do not come by the hook of that name.
pub fn close(fd: i32) -> i32 {
    let device = super::table::remove(fd);
    // SAFETY: the descriptor is the caller's.
    let result = unsafe { libc::syscall(libc::SYS_close, fd) };
    drop(device);
    result as i32
}
