//! Another process, as the kernel lets us reach into it: who it is, whether it is still there, and its memory by
//! `process_vm_readv` and `process_vm_writev`.
//!
//! Who it is says the end of a socket pair whose other end only that process has. It is close-on-exec and a forked child lets go of it, so
//! it hangs up when the process dies *or* runs another program, and until then its number is that process's. It is looked at
//! before and after each message, or part of a long one; where messages follow each other closely, the look behind the one is the look before the
//! next ([`RECENT_NS`]). **What remains**: the process may die, or run another program, between the first look and the
//! call, [`RECENT_NS`] at most; if another process has its number by then, that one is written to. The second look finds out, and the operation is
//! not taken for done.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::clock;
use crate::process::Descriptor;

/// The bytes could not be moved; packets find out why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached;

/// A line of the cache.
const LINE: u64 = 64;

/// Whether two parts of one call are seen in their order; else each has its own.
const ONE_CALL: bool = cfg!(target_arch = "x86_64");

/// A look is as good as a new one for so long, ns: as long as some calls take. A number is not given away so soon: that takes the processes of
/// a whole turn through all numbers.
const RECENT_NS: u64 = 20_000;

/// Another process.
#[derive(Debug)]
pub struct Other {
    life: Arc<Descriptor>,
    /// Its number in our PID namespace; 0: it has none.
    pid: i32,
    /// The error by which the kernel has refused us for good; 0: it has not.
    refused: AtomicI32,
    /// It was there then, ns; 0: nobody has looked.
    seen_ns: AtomicU64,
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
        Self {
            life,
            pid: if done < 0 { 0 } else { credentials.pid },
            refused: AtomicI32::new(0),
            seen_ns: AtomicU64::new(0),
        }
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

    /// Whether its memory cannot be reached at all, as far as is known.
    pub fn is_refused(&self) -> bool {
        self.pid == 0 || self.refused.load(Ordering::Relaxed) != 0
    }

    /// Asks the kernel whether it lets us, by reading a byte that no process has: it looks at the permission first.
    pub fn ask(&self) {
        let mut byte = 0u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        // SAFETY: one iovec of each; the byte here is writable, and the kernel reports a fault at the other's address.
        let moved = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        if self.pid != 0 && moved < 0 {
            self.note_refusal(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
    }

    /// What refuses once refuses for good.
    fn note_refusal(&self, errno: i32) {
        if matches!(errno, libc::EPERM | libc::ENOSYS | libc::EACCES) {
            self.refused.store(errno, Ordering::Relaxed);
        }
    }

    /// Moves bytes; `to` and `from` are addresses here or there, as `into` says. The last `tail` bytes are moved last.
    ///
    /// # Safety
    /// The addresses of this process are as the table grants them for the length, now.
    unsafe fn transfer(
        &self,
        into: bool,
        mut there: u64,
        mut here: u64,
        mut length: usize,
        tail: usize,
    ) -> Result<(), Unreached> {
        let part = |at: u64, length| libc::iovec { iov_base: at as usize as *mut libc::c_void, iov_len: length };
        while length > 0 {
            let bulk = length.saturating_sub(tail);
            // Parts of one call come in the order of the list (process_vm_writev(2)), and x86 shows stores in the order in which they are made. Elsewhere
            // a call of its own, which orders more than that, is the fence.
            let first = if bulk > 0 { bulk } else { length };
            let now = if ONE_CALL { length } else { first };
            let local = part(here, now);
            let remote = [part(there, first), part(there + first as u64, now - first)];
            let parts = if now > first { 2 } else { 1 };
            // SAFETY: as many iovecs as are said; the kernel checks the addresses of both sides and reports a fault.
            let moved = unsafe {
                if into {
                    libc::process_vm_writev(self.pid, &raw const local, 1, remote.as_ptr(), parts, 0)
                } else {
                    libc::process_vm_readv(self.pid, &raw const local, 1, remote.as_ptr(), parts, 0)
                }
            };
            let Some(moved) = usize::try_from(moved).ok().filter(|&moved| moved > 0) else {
                self.note_refusal(io::Error::last_os_error().raw_os_error().unwrap_or(0));
                return Err(Unreached);
            };
            there += moved as u64;
            here += moved as u64;
            length -= moved;
        }
        Ok(())
    }

    /// Runs calls that reach into it, and looks before and behind them whether it is still the same process.
    fn reach(&self, calls: impl FnOnce() -> Result<(), Unreached>) -> Result<(), Unreached> {
        if self.is_refused() {
            return Err(Unreached);
        }
        let begun = clock::now().0;
        if begun.wrapping_sub(self.seen_ns.load(Ordering::Relaxed)) > RECENT_NS && !self.is_there() {
            return Err(Unreached);
        }
        calls()?;
        if !self.is_there() {
            return Err(Unreached);
        }
        self.seen_ns.store(begun, Ordering::Relaxed);
        Ok(())
    }

    /// Writes bytes of this process into it. `last`: the message ends here, and its last cache line is written last.
    ///
    /// # Safety
    /// The table grants reading `length` bytes at `from`, now.
    pub(super) unsafe fn write(&self, to: u64, from: *const u8, length: usize, last: bool) -> Result<(), Unreached> {
        let from = from.expose_provenance() as u64;
        let tail = match (to + length as u64).saturating_sub(1) & !(LINE - 1) {
            line if last && line > to => (to + length as u64 - line) as usize,
            _ => 0,
        };
        // SAFETY: the caller's promise.
        self.reach(|| unsafe { self.transfer(true, to, from, length, tail) })
    }

    /// Reads its bytes into this process.
    ///
    /// # Safety
    /// The table grants writing `length` bytes at `to`, now.
    pub(super) unsafe fn read(&self, to: *mut u8, from: u64, length: usize) -> Result<(), Unreached> {
        let to = to.expose_provenance() as u64;
        // SAFETY: the caller's promise.
        self.reach(|| unsafe { self.transfer(false, from, to, length, 0) })
    }
}
