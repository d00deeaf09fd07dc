//! A lock that C takes by one call and gives back by another (`ibv_start_poll` and `ibv_end_poll`, `ibv_wr_start` and
//! `ibv_wr_complete`): no guard lives on a stack in between. Who gives back what nobody holds changes nothing.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock. It must not be moved while it is held; it lies in an object on the heap.
#[derive(Default)]
pub struct Hold {
    /// Of whoever holds it. Before the mutex, so that it goes first when both end.
    guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
    mutex: Mutex<()>,
}

// SAFETY: the guard is only touched by who holds the mutex.
unsafe impl Sync for Hold {}
// SAFETY: as above; the standard library's mutex on Linux does not mind which thread unlocks it.
unsafe impl Send for Hold {}

impl Hold {
    /// Waits until nobody has it.
    #[inline]
    pub fn take(&self) {
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the mutex outlives the guard, which lies beside it and is dropped first; nothing moves meanwhile. The
        // place is ours: we hold the mutex.
        unsafe { *self.guard.get() = Some(std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard)) };
    }

    /// Gives it back.
    ///
    /// # Safety
    /// The caller has taken it, or nobody has.
    #[inline]
    pub unsafe fn give(&self) {
        // SAFETY: the caller's promise.
        drop(unsafe { (*self.guard.get()).take() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_thread_at_a_time_has_it() {
        let (hold, inside, turns) = (Hold::default(), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        hold.take();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        turns.store(turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        // SAFETY: taken above.
                        unsafe { hold.give() };
                    }
                });
            }
        });
        assert_eq!(turns.into_inner(), 4000);
    }

    #[test]
    fn giving_back_what_nobody_holds_changes_nothing() {
        let hold = Hold::default();
        // SAFETY: nobody has it.
        unsafe { hold.give() };
        hold.take();
        // SAFETY: taken above; then nobody has it.
        unsafe {
            hold.give();
            hold.give();
        }
        hold.take();
    }
}
