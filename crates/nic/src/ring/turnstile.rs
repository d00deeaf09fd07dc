//! A lock that remembers whom it has turned away: who tries it in vain has said so in the same word, so that whoever gives it back sees what the other did
//! before. It spares both sides the fence that a lock without that memory needs, on a path where a fence is a tenth of all.
//!
//! **What was done before a try in vain is seen by a holder.** The try writes the word with release order, whoever takes the lock or gives it back
//! changes the word with acquire order, and all changes of one word stand in one order. So the try's change is seen by the next of
//! theirs: by the holder that it met when that one gives the lock back, or, if somebody waits, by the waiter when it comes in.
//!
//! One that waits spins, then sleeps until the lock is given back. Tries leave the lock to those who wait.

use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicU32, Condvar, Mutex, Ordering, UnsafeCell, lock};

const HELD: u32 = 1;
/// Somebody was turned away.
const MARK: u32 = 2;
/// Somebody sleeps.
const SLEEPER: u32 = 4;

/// Looks at a lock that is held before one that waits for it sleeps.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 100 };

/// The lock and what is inside.
#[derive(Debug)]
pub struct Turnstile<T> {
    word: AtomicU32,
    /// Threads that wait: those that only try leave the lock to them, or a thread that polls without pause would never let a verb in.
    waiting: AtomicU32,
    sleepers: Mutex<()>,
    wake: Condvar,
    inside: UnsafeCell<T>,
}

// SAFETY: whoever holds the lock has the value for itself, so it is sent from one holder to the next and never shared.
unsafe impl<T: Send> Sync for Turnstile<T> {}

/// The lock, held.
#[derive(Debug)]
#[must_use]
pub struct Inside<'t, T>(&'t Turnstile<T>);

impl<T> Turnstile<T> {
    /// Nobody is inside.
    pub fn new(inside: T) -> Self {
        Self {
            word: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            sleepers: Mutex::new(()),
            wake: Condvar::new(),
            inside: UnsafeCell::new(inside),
        }
    }

    /// The lock, if it is free and nobody waits for it. What the caller did before is seen by whoever is turned away for, once that one gives the
    /// lock back.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        // The common case first: free, and nobody there.
        let free = self.waiting.load(Ordering::Relaxed) == 0
            && self.word.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if free { Some(Inside(self)) } else { self.try_again() }
    }

    #[cold]
    fn try_again(&self) -> Option<Inside<'_, T>> {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let may = now & HELD == 0 && self.waiting.load(Ordering::Relaxed) == 0;
            let (next, order) = if may { (now | HELD, Ordering::Acquire) } else { (now | MARK, Ordering::Release) };
            match self.word.compare_exchange_weak(now, next, order, Ordering::Relaxed) {
                Ok(_) => return may.then(|| Inside(self)),
                Err(other) => now = other,
            }
        }
    }

    /// Takes the lock if nobody holds it, whoever waits.
    fn take(&self) -> bool {
        let now = self.word.load(Ordering::Relaxed);
        now & HELD == 0 && self.word.compare_exchange(now, now | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits for the lock.
    pub fn enter(&self) -> Inside<'_, T> {
        if !self.take() {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.wait();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Inside(self)
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..LOOKS {
            if self.take() {
                return;
            }
            core::hint::spin_loop();
        }
        let mut sleepers = lock(&self.sleepers);
        loop {
            if self.take() {
                return;
            }
            let now = self.word.load(Ordering::Relaxed);
            let held = now & HELD != 0
                && self.word.compare_exchange(now, now | SLEEPER, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if held {
                // Whoever gives the lock back sees the mark, and cannot wake before this thread sleeps.
                sleepers = self.wake.wait(sleepers).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }

    /// The lock, or `None` when `give_up` says so: for a thread that may have been interrupted while it held the lock itself.
    pub fn enter_unless(&self, mut give_up: impl FnMut() -> bool) -> Option<Inside<'_, T>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let entered = loop {
            if self.take() {
                break true;
            }
            if give_up() {
                break false;
            }
            core::hint::spin_loop();
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        entered.then(|| Inside(self))
    }

    #[cold]
    fn wake_all(&self) {
        drop(lock(&self.sleepers));
        self.wake.notify_all();
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the holder, and there is one.
        unsafe { &*self.0.inside.get() }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and borrowed from the one guard there is.
        unsafe { &mut *self.0.inside.get() }
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Acquire: the tries that were turned away; release: what was done inside.
        if self.0.word.swap(0, Ordering::AcqRel) & SLEEPER != 0 {
            self.0.wake_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn one_at_a_time_however_they_come_in() {
        const EACH: u64 = 20_000;
        let world = Arc::new(Turnstile::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let world = world.clone();
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        if n % 2 == 0 {
                            *world.enter() += 1;
                        } else {
                            while world.try_enter().map(|mut inside| *inside += 1).is_none() {
                                std::thread::yield_now();
                            }
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(*world.enter(), 4 * EACH);
    }

    #[test]
    fn who_waits_comes_in_though_another_tries_without_pause() {
        let world = Arc::new(Turnstile::new(0u64));
        let stop = Arc::new(AtomicBool::new(false));
        let (trier, told) = (world.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                drop(trier.try_enter());
            }
        });
        (0..1000).for_each(|_| *world.enter() += 1);
        stop.store(true, Ordering::Relaxed);
        thread.join().expect("no panic");
        assert_eq!(*world.enter(), 1000);
        assert!(world.enter_unless(|| true).is_some(), "nobody holds it");
        let inside = world.enter();
        assert!(world.try_enter().is_none() && world.enter_unless(|| true).is_none());
        drop(inside);
    }
}
