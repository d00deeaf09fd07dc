//! Another process, as the kernel lets us reach into it: who it is, whether it is still there, and its memory by
//! `process_vm_readv` and `process_vm_writev`.
//!
//! Who it is says the end of a socket pair whose other end only that process has. It is close-on-exec and a forked child lets go of it, so
//! it hangs up when the process dies *or* runs another program, and until then its number is that process's. It is looked at
//! before and after each call. **What remains**: the process may die, or run another program, between the first look and the
//! call; if another process has its number by then, that one is written to. The second look finds out, and the operation is
//! not taken for done.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::process::Descriptor;

/// The bytes could not be moved; packets find out why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached;

/// A line of the cache.
const LINE: u64 = 64;

/// Another process.
#[derive(Debug)]
pub struct Other {
    life: Arc<Descriptor>,
    /// Its number in our PID namespace; 0: it has none.
    pid: i32,
    /// The error by which the kernel has refused us for good; 0: it has not.
    refused: AtomicI32,
}

impl Other {
    /// The process at the other end of a socket.
    pub fn new(life: Arc<Descriptor>) -> Self {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&credentials) as u32;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: value and length are writable.
        let done =
            unsafe { libc::getsockopt(life.as_raw_fd(), level, name, (&raw mut credentials).cast(), &raw mut len) };
        Self { life, pid: if done < 0 { 0 } else { credentials.pid }, refused: AtomicI32::new(0) }
    }

    /// Its number, if it has one here.
    pub fn pid(&self) -> Option<u32> {
        u32::try_from(self.pid).ok().filter(|&pid| pid != 0)
    }

    /// False once it has ended or runs another program.
    pub fn is_there(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.life.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one valid pollfd. POLLHUP needs not be asked for; a descriptor that the program took is -1, which is passed over.
        poll.fd >= 0 && unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
    }

    /// True if it is stopped, by a signal or a debugger, and will not go on by itself.
    pub fn is_stopped(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = text.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        matches!(state, Some('T' | 't'))
    }

    /// Why its memory cannot be reached at all; `None` while it can.
    pub fn refusal(&self) -> Option<String> {
        match self.refused.load(Ordering::Relaxed) {
            _ if self.pid == 0 => Some("it has no number in this PID namespace".to_owned()),
            0 => None,
            errno => Some(io::Error::from_raw_os_error(errno).to_string()),
        }
    }

    /// Moves bytes; `to` and `from` are addresses here or there, as `into` says.
    ///
    /// # Safety
    /// The addresses of this process are as the table grants them for the length, now.
    unsafe fn transfer(&self, into: bool, mut there: u64, mut here: u64, mut length: usize) -> Result<(), Unreached> {
        while length > 0 {
            let local = libc::iovec { iov_base: here as usize as *mut libc::c_void, iov_len: length };
            let remote = libc::iovec { iov_base: there as usize as *mut libc::c_void, iov_len: length };
            // SAFETY: one iovec each; the kernel checks the addresses of both sides and reports a fault.
            let moved = unsafe {
                if into {
                    libc::process_vm_writev(self.pid, &raw const local, 1, &raw const remote, 1, 0)
                } else {
                    libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0)
                }
            };
            let Some(moved) = usize::try_from(moved).ok().filter(|&moved| moved > 0) else {
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
                if matches!(errno, libc::EPERM | libc::ENOSYS | libc::EACCES) {
                    self.refused.store(errno, Ordering::Relaxed);
                }
                return Err(Unreached);
            };
            there += moved as u64;
            here += moved as u64;
            length -= moved;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Unreached> {
        let may = self.pid != 0 && self.refused.load(Ordering::Relaxed) == 0;
        if may && self.is_there() { Ok(()) } else { Err(Unreached) }
    }

    /// Writes bytes of this process into it. `last`: the message ends here, and its last cache line is written last, by a call
    /// of its own, since the kernel does not promise an order within one.
    ///
    /// # Safety
    /// The table grants reading `length` bytes at `from`, now.
    pub(super) unsafe fn write(&self, to: u64, from: *const u8, length: usize, last: bool) -> Result<(), Unreached> {
        self.check()?;
        let from = from.expose_provenance() as u64;
        let tail = match (to + length as u64).saturating_sub(1) & !(LINE - 1) {
            line if last && line > to => (to + length as u64 - line) as usize,
            _ => 0,
        };
        let bulk = length - tail;
        // SAFETY: the caller's promise.
        unsafe {
            self.transfer(true, to, from, bulk)?;
            self.transfer(true, to + bulk as u64, from + bulk as u64, tail)?;
        }
        if self.is_there() { Ok(()) } else { Err(Unreached) }
    }

    /// Reads its bytes into this process.
    ///
    /// # Safety
    /// The table grants writing `length` bytes at `to`, now.
    pub(super) unsafe fn read(&self, to: *mut u8, from: u64, length: usize) -> Result<(), Unreached> {
        self.check()?;
        // SAFETY: the caller's promise.
        unsafe { self.transfer(false, from, to.expose_provenance() as u64, length)? };
        if self.is_there() { Ok(()) } else { Err(Unreached) }
    }
}
