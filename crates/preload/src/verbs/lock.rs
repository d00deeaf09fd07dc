//! The locks of the door's own tables. None is held across a fork: a fork waits for those who are inside, so that the child
//! finds every table whole and every lock free.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Whoever is in a table reads it; a fork writes it.
struct Gate(UnsafeCell<libc::pthread_rwlock_t>);

// SAFETY: a lock of pthread is made for threads.
unsafe impl Sync for Gate {}

static GATE: Gate = Gate(UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER));

extern "C" fn close() {
    // SAFETY: a static lock.
    unsafe { libc::pthread_rwlock_wrlock(GATE.0.get()) };
}

extern "C" fn open() {
    // SAFETY: held by this thread.
    unsafe { libc::pthread_rwlock_unlock(GATE.0.get()) };
}

/// The child's thread has another number than the one that closed the gate, and could not open it: it makes it anew.
extern "C" fn renew() {
    // SAFETY: the child has no other thread.
    unsafe { GATE.0.get().write(libc::PTHREAD_RWLOCK_INITIALIZER) };
}

struct Inside;

impl Inside {
    fn enter() -> Self {
        static REGISTERED: Once = Once::new();
        // SAFETY: functions that only touch the gate, which is released below; the library is never unloaded.
        REGISTERED.call_once(|| unsafe {
            libc::pthread_atfork(Some(close), Some(open), Some(renew));
        });
        // SAFETY: a static lock.
        unsafe { libc::pthread_rwlock_rdlock(GATE.0.get()) };
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        open();
    }
}

/// A table with its lock.
#[derive(Default)]
pub struct Lock<T>(Mutex<T>);

/// The table, while it is locked. The lock goes first, then the gate.
pub struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    _inside: Inside,
}

impl<T> Lock<T> {
    /// A table.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks it. What panicked inside left it usable: no table is changed in more than one step.
    pub fn lock(&self) -> Locked<'_, T> {
        let inside = Inside::enter();
        Locked { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), _inside: inside }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn a_child_finds_the_lock_free_whenever_it_was_forked() {
        static TABLE: Lock<u64> = Lock::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        let busy = std::thread::spawn(|| {
            while !DONE.load(Ordering::Relaxed) {
                *TABLE.lock() += 1;
            }
        });
        for _ in 0..200 {
            // SAFETY: the child only takes the lock and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                *TABLE.lock() += 1;
                // SAFETY: nothing of the parent's runs in the child.
                unsafe { libc::_exit(0) };
            }
            let until = Instant::now() + Duration::from_secs(20);
            let mut status = 0;
            // SAFETY: a child of ours and room for its status.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                if Instant::now() > until {
                    // SAFETY: a child of ours.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    panic!("the child waits for a lock that nobody in it holds");
                }
                std::thread::yield_now();
            }
            assert_eq!(status, 0);
        }
        DONE.store(true, Ordering::Relaxed);
        busy.join().unwrap();
    }
}
