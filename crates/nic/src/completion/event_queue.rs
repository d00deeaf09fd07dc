//! A queue of events with a descriptor that is readable while there are any: completion channels and asynchronous events.
//!
//! The engine adds events during its turn without a system call; whoever drove the turn calls [`EventQueue::wake`]
//! afterwards. The descriptor is an eventfd that counts as a semaphore; only this file reads and writes it (the
//! application polls it, and may set O_NONBLOCK), so its count is known and a read here never blocks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scalefabric_verbs::{Errno, VerbsError};

use crate::process::Descriptor;
use crate::ring::atomic::{Mutex, lock};

/// Events that wait at most. An application that never reads them loses the oldest: memory must not grow for ever.
const MAX_WAITING: usize = 1 << 16;

/// The queue. The descriptor may be set to O_NONBLOCK by the application; waiting honours that.
#[derive(Debug)]
pub struct EventQueue<T> {
    fd: Descriptor,
    inner: Mutex<Inner<T>>,
    /// Something was pushed since the last wake: the cheap look of those who have nothing to tell.
    unsaid: AtomicBool,
}

#[derive(Debug)]
struct Inner<T> {
    events: VecDeque<T>,
    /// What the eventfd counts now; never more than there are events.
    count: u64,
    lost: u64,
}

impl<T> EventQueue<T> {
    /// An empty queue. `EMFILE` becomes `ENOMEM` with its reason.
    pub fn new() -> Result<Self, VerbsError> {
        // SAFETY: no pointers are passed.
        let fd = Descriptor::make(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) });
        let fd = fd.map_err(|error| {
            VerbsError::environment(
                Errno::ENOMEM,
                format!("no descriptor for events: {error}; raise the limit of open files (ulimit -n)"),
            )
        })?;
        let inner = Inner { events: VecDeque::with_capacity(64), count: 0, lost: 0 };
        Ok(Self { fd, inner: Mutex::new(inner), unsaid: AtomicBool::new(false) })
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Adds an event without a system call. [`EventQueue::wake`] must follow, after the turn.
    pub fn push(&self, event: T) {
        let mut inner = lock(&self.inner);
        if inner.events.len() == MAX_WAITING {
            inner.events.pop_front();
            inner.lost += 1;
        }
        inner.events.push_back(event);
        self.unsaid.store(true, Ordering::Release);
    }

    /// Makes the descriptor readable for what was pushed. One system call, none if there is nothing new. Whoever pushes
    /// must see to it that this is called afterwards.
    pub fn wake(&self) {
        if !self.unsaid.load(Ordering::Acquire) {
            return;
        }
        let mut inner = lock(&self.inner);
        self.unsaid.store(false, Ordering::Relaxed);
        let news = inner.events.len() as u64 - inner.count;
        if news > 0 {
            let bytes = news.to_ne_bytes();
            // SAFETY: eight readable bytes, as an eventfd wants.
            let n = unsafe { libc::write(self.fd(), bytes.as_ptr().cast(), 8) };
            // A count below 2^17 never blocks, and the descriptor is ours: only a process that closed it under us fails.
            if n == 8 {
                inner.count += news;
            }
        }
    }

    /// Takes the oldest event.
    pub fn take(&self) -> Option<T> {
        let mut inner = lock(&self.inner);
        let event = inner.events.pop_front();
        self.settle(&mut inner);
        event
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        lock(&self.inner).events.len()
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Events that nobody read in time (more than 65,536 waited).
    pub fn lost(&self) -> u64 {
        lock(&self.inner).lost
    }

    /// Takes back what the descriptor counts beyond the events that are left.
    fn settle(&self, inner: &mut Inner<T>) {
        while inner.count > inner.events.len() as u64 {
            let mut bytes = [0u8; 8];
            // SAFETY: eight writable bytes. It cannot block: `count` > 0 is what the eventfd holds.
            let n = unsafe { libc::read(self.fd(), bytes.as_mut_ptr().cast(), 8) };
            if n != 8 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            inner.count -= 1;
        }
    }

    /// True if the application has set O_NONBLOCK on the descriptor. A system call.
    pub fn is_nonblocking(&self) -> bool {
        // SAFETY: no pointers are passed.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK != 0
    }

    /// Sleeps until the descriptor is readable or `timeout` passes. False if a signal ended it.
    pub fn sleep(&self, timeout: Option<Duration>) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        let spec = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs().min(i64::MAX as u64) as libc::time_t,
            tv_nsec: t.subsec_nanos() as libc::c_long,
        });
        let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one pollfd, and a timespec that outlives the call or none.
        let ready = unsafe { libc::ppoll(&mut poll, 1, spec, std::ptr::null()) };
        ready >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted
    }

    /// Waits until there is an event and takes it; `None` when `timeout` passes. If there is none and the descriptor is
    /// O_NONBLOCK, it does not wait: `EAGAIN`. Without a timeout a signal that had a handler ends the wait, too: `None`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<T>, VerbsError> {
        if let Some(event) = self.take() {
            return Ok(Some(event));
        }
        if self.is_nonblocking() {
            return Err(VerbsError::misuse(
                Errno::EAGAIN,
                "no event is there and the descriptor is O_NONBLOCK: poll it first",
            ));
        }
        // A timeout too long for the clock is none.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            let undisturbed = self.sleep(left);
            if let Some(event) = self.take() {
                return Ok(Some(event));
            }
            if deadline.is_none() && !undisturbed || deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(None);
            }
        }
    }

    /// Removes events that `gone` picks (their object is destroyed).
    pub fn forget(&self, mut gone: impl FnMut(&T) -> bool) {
        let mut inner = lock(&self.inner);
        inner.events.retain(|event| !gone(event));
        self.settle(&mut inner);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn readable<T>(queue: &EventQueue<T>) -> bool {
        let mut poll = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let queue = EventQueue::new().expect("a descriptor");
        queue.push(1);
        assert!(!readable(&queue), "not before the wake");
        queue.wake();
        queue.push(2);
        queue.wake();
        assert!(readable(&queue));
        assert_eq!(queue.take(), Some(1));
        assert!(readable(&queue));
        assert_eq!(queue.take(), Some(2));
        assert!(!readable(&queue));
        assert_eq!(queue.take(), None);
        // Taken before it was told: nothing is left to tell.
        queue.push(3);
        assert_eq!(queue.take(), Some(3));
        queue.wake();
        assert!(!readable(&queue));
    }

    #[test]
    fn events_of_a_destroyed_object_disappear() {
        let queue = EventQueue::new().expect("a descriptor");
        for event in [7, 8, 7] {
            queue.push(event);
        }
        queue.wake();
        queue.forget(|&event| event == 7);
        assert_eq!(queue.take(), Some(8));
        assert!(!readable(&queue));
    }

    #[test]
    fn a_nonblocking_descriptor_makes_wait_return() {
        let queue = EventQueue::<u32>::new().expect("a descriptor");
        // SAFETY: no pointers are passed.
        unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.wait(None).expect_err("nothing is there").errno, Errno::EAGAIN);
        queue.push(1);
        queue.wake();
        assert_eq!(queue.wait(None), Ok(Some(1)));
    }

    #[test]
    fn a_sleeper_is_woken_and_a_timeout_is_none() {
        let queue = Arc::new(EventQueue::new().expect("a descriptor"));
        assert_eq!(queue.wait(Some(Duration::from_millis(1))), Ok(None));
        let sleeper = std::thread::spawn({
            let queue = queue.clone();
            move || queue.wait(None)
        });
        queue.push(5);
        queue.wake();
        assert_eq!(sleeper.join().expect("no panic"), Ok(Some(5)));
    }

    #[test]
    fn an_unread_queue_stops_growing() {
        let queue = EventQueue::new().expect("a descriptor");
        for i in 0..MAX_WAITING + 10 {
            queue.push(i);
        }
        queue.wake();
        assert_eq!((queue.len(), queue.lost()), (MAX_WAITING, 10));
        assert_eq!(queue.take(), Some(10));
    }
}
