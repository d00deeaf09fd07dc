//! The locks of the door's own tables. None is held across a fork: a fork waits for those who are inside, so that the child
//! finds every table whole and every lock free.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use scalefabric_nic::process::DoneOnce;

/// Whoever is in a table reads it; a fork writes it.
struct Gate(UnsafeCell<libc::pthread_rwlock_t>);

// SAFETY: a lock of pthread is made for threads.
unsafe impl Sync for Gate {}

static GATE: Gate = Gate(UnsafeCell::new(libc::PTHREAD_RWLOCK_INITIALIZER));

thread_local! {
    /// How often this thread, which forks, has closed the gate: the handlers may be registered twice.
    static CLOSED: Cell<u32> = const { Cell::new(0) };
}

extern "C" fn close() {
    if CLOSED.replace(CLOSED.get() + 1) == 0 {
        // SAFETY: a static lock.
        unsafe { libc::pthread_rwlock_wrlock(GATE.0.get()) };
    }
}

/// Whether the gate is to be opened.
fn was_last() -> bool {
    CLOSED.set(CLOSED.get().saturating_sub(1));
    CLOSED.get() == 0
}

extern "C" fn open() {
    if was_last() {
        leave();
    }
}

/// The child's thread has another number than the one that closed the gate, and could not open it: it makes it anew.
extern "C" fn renew() {
    if was_last() {
        // SAFETY: the child has no other thread.
        unsafe { GATE.0.get().write(libc::PTHREAD_RWLOCK_INITIALIZER) };
    }
}

fn leave() {
    // SAFETY: held by this thread.
    unsafe { libc::pthread_rwlock_unlock(GATE.0.get()) };
}

/// When the library is loaded: a fork that had begun before the handlers were there would find a lock taken behind its back.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

extern "C" fn register() {
    static REGISTERED: DoneOnce = DoneOnce::new();
    // SAFETY: functions that only touch the gate, which nobody has for long; the library is never unloaded.
    REGISTERED.once(|| unsafe {
        libc::pthread_atfork(Some(close), Some(open), Some(renew));
    });
}

struct Inside;

impl Inside {
    fn enter() -> Self {
        // Where a linker has left the above out.
        register();
        // SAFETY: a static lock.
        unsafe { libc::pthread_rwlock_rdlock(GATE.0.get()) };
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        leave();
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
