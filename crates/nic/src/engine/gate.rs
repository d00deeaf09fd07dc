//! The engine's lock and the doorbells that are rung while it is taken: the rule by which no posted work is forgotten.
//!
//! Nobody on the data path waits. A poster rings and calls [`Gate::serve`]; whoever gave the lock back calls it, too.
//!
//! **No work is forgotten.** Take a poster P that rings and does not get the lock, and H, the last holder that P's attempt
//! could see. P: push the bell, fence, look at the lock. H: give the lock back, fence, look at the bells. The two fences
//! (in [`Gate::serve`]) are ordered in the single order of all such fences. If P's comes first, H's look sees the bell,
//! and H goes in again, or finds another holder inside, for whom the same holds. If H's comes first, P's look at the lock
//! sees it as H left it or as a later holder took it; the first is not so, since P did not get it, and for the later
//! holder the argument starts again. Holders are finite in number while P looks, so one of them sees the bell. The same
//! with `waiting`: a poster that leaves the lock to a waiter read `waiting` before the waiter, already inside, took itself
//! off, hence before the waiter's fence. Loom looks at every interleaving of this file and of `doorbell` (see the tests).

use super::doorbell::Doorbells;
use crate::ring::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, fence, lock};

/// What the lock protects, the lock, and the bells.
#[derive(Debug)]
pub struct Gate<T> {
    inside: Mutex<T>,
    /// Threads that wait for the lock: those that only try leave it to them, or a thread that polls without pause would
    /// never let a verb in.
    waiting: AtomicU32,
    bells: Doorbells,
}

impl<T> Gate<T> {
    /// An open gate with bells for QP indexes below `len`.
    pub fn new(inside: T, len: usize) -> Self {
        Self { inside: Mutex::new(inside), waiting: AtomicU32::new(0), bells: Doorbells::new(len) }
    }

    /// The bells.
    pub fn bells(&self) -> &Doorbells {
        &self.bells
    }

    /// Waits for the lock.
    pub fn wait(&self) -> MutexGuard<'_, T> {
        if let Ok(guard) = self.inside.try_lock() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = lock(&self.inside);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// The lock, or `None` when `give_up` says so: for a thread that may have been interrupted while it held the lock itself.
    pub fn wait_unless(&self, mut give_up: impl FnMut() -> bool) -> Option<MutexGuard<'_, T>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = loop {
            match self.inside.try_lock() {
                Ok(guard) => break Some(guard),
                #[cfg(not(loom))]
                Err(std::sync::TryLockError::Poisoned(poisoned)) => break Some(poisoned.into_inner()),
                Err(_) if give_up() => break None,
                Err(_) => core::hint::spin_loop(),
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// The lock, if it is free and nobody waits for it.
    #[inline]
    pub fn try_enter(&self) -> Option<MutexGuard<'_, T>> {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        match self.inside.try_lock() {
            Ok(guard) => Some(guard),
            #[cfg(not(loom))]
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(_) => None,
        }
    }

    /// Goes in, at most `rounds` times, for as long as bells wait and the lock is free. `turn` takes the bells, and gives
    /// the lock back. To be called after each ring and after each time the lock was given back. False if the rounds were
    /// not enough: then somebody else must be told.
    #[inline]
    #[must_use]
    pub fn serve<'g>(&'g self, rounds: usize, mut turn: impl FnMut(MutexGuard<'g, T>)) -> bool {
        for _ in 0..rounds {
            fence(Ordering::SeqCst);
            if self.bells.is_empty() {
                return true;
            }
            match self.try_enter() {
                Some(guard) => turn(guard),
                None => return true,
            }
        }
        fence(Ordering::SeqCst);
        self.bells.is_empty()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What was posted to each of two QPs, and what the engine saw of it.
    struct World {
        gate: Gate<[u32; 2]>,
        posted: [AtomicU32; 2],
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self { gate: Gate::new([0; 2], 2), posted: [AtomicU32::new(0), AtomicU32::new(0)] })
        }

        fn turn(&self, mut guard: MutexGuard<'_, [u32; 2]>) {
            self.gate.bells().take(|qp| guard[usize::from(qp)] = self.posted[usize::from(qp)].load(Ordering::Relaxed));
        }

        fn post(&self, qp: u16) {
            self.posted[usize::from(qp)].fetch_add(1, Ordering::Relaxed);
            self.gate.bells().ring(qp);
            assert!(self.gate.serve(8, |guard| self.turn(guard)));
        }

        fn all_seen(&self, want: [u32; 2]) {
            assert_eq!(*self.gate.wait(), want, "posted and never seen, though nobody is inside");
        }
    }

    fn model(f: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(f);
    }

    #[test]
    fn loom_two_posters_of_one_qp_lose_nothing() {
        model(|| {
            let world = World::new();
            let other = world.clone();
            let thread = thread::spawn(move || other.post(0));
            world.post(0);
            thread.join().unwrap();
            world.all_seen([2, 0]);
        });
    }

    #[test]
    fn loom_posters_of_two_qps_lose_nothing() {
        model(|| {
            let world = World::new();
            let other = world.clone();
            let thread = thread::spawn(move || other.post(1));
            world.post(0);
            thread.join().unwrap();
            world.all_seen([1, 1]);
        });
    }

    #[test]
    fn loom_a_verb_that_holds_the_lock_sees_what_was_rung_meanwhile() {
        model(|| {
            let world = World::new();
            let other = world.clone();
            let thread = thread::spawn(move || other.post(0));
            drop(world.gate.wait());
            assert!(world.gate.serve(8, |guard| world.turn(guard)));
            thread.join().unwrap();
            world.all_seen([1, 0]);
        });
    }
}
