//! The sockets of NETLINK_RDMA: what `rdma dev`, `rdma link`, `rdma resource` and `rdma statistic` ask the kernel.
//!
//! The application has one end of a pair of Unix sockets. What it sends is answered at once, into the other end; what does
//! not fit waits until it has read.

mod answer;
mod message;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::hooks::device::{Device, Errno, Node};
use crate::hooks::register;
use crate::tree;

/// NETLINK_RDMA.
pub const PROTOCOL: i32 = 20;

/// `socket(AF_NETLINK, kind, NETLINK_RDMA)`: a new descriptor.
pub fn open(kind: i32) -> Result<i32, Errno> {
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    if !matches!(kind & !flags, libc::SOCK_RAW | libc::SOCK_DGRAM) {
        return Err(libc::ESOCKTNOSUPPORT);
    }
    let mut pair = [-1; 2];
    // SAFETY: an array of two.
    if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) } != 0 {
        return Err(errno());
    }
    let [own, theirs] = pair;
    let size: i32 = 4 << 20;
    // SAFETY: descriptors made above; an option of 4 bytes.
    unsafe {
        libc::syscall(libc::SYS_setsockopt, own, libc::SOL_SOCKET, libc::SO_SNDBUF, &raw const size, size_of::<i32>());
        if flags & libc::SOCK_NONBLOCK != 0 {
            libc::syscall(libc::SYS_fcntl, theirs, libc::F_SETFL, libc::O_NONBLOCK);
        }
        if flags & libc::SOCK_CLOEXEC == 0 {
            libc::syscall(libc::SYS_fcntl, theirs, libc::F_SETFD, 0);
        }
    }
    let socket = Arc::new(Socket { own, waiting: Mutex::new(VecDeque::new()) });
    if let Err(errno) = register(theirs, socket) {
        // SAFETY: the descriptor made above; the socket closes the other.
        unsafe { libc::syscall(libc::SYS_close, theirs) };
        return Err(errno);
    }
    Ok(theirs)
}

fn errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A socket of NETLINK_RDMA: our end.
pub struct Socket {
    own: i32,
    /// Answers that did not fit yet.
    waiting: Mutex<VecDeque<Vec<u8>>>,
}

impl Socket {
    /// Sends what fits. The application calls it by reading.
    pub fn flush(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(datagram) = waiting.front() {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the datagram's bytes.
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    self.own,
                    datagram.as_ptr(),
                    datagram.len(),
                    flags,
                    std::ptr::null::<u8>(),
                    0,
                )
            };
            if sent < 0 && matches!(errno(), libc::EAGAIN | libc::ENOBUFS) {
                return;
            }
            waiting.pop_front();
        }
    }
}

impl Device for Socket {
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let provider = tree::state::provider().map_err(|_| libc::EIO)?;
        let answers: Vec<_> =
            message::requests(bytes).flat_map(|request| answer::answer(&provider, &request)).collect();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).extend(answers);
        self.flush();
        Ok(bytes.len())
    }

    fn node(&self) -> Node {
        Node::Netlink
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.own) };
    }
}
