//! The engine's lock and the doorbells that are rung while it is taken: the rule by which no posted work is forgotten.
//!
//! Nobody on the data path waits. A poster rings and calls [`Gate::serve`]; whoever gave the lock back calls it, too.
//!
//! **No work is forgotten.** Take a poster P that rings and does not get the lock. Its try has left a mark in the lock's word, and the next
//! that gives the lock back, or comes in after it, has acquired what P did before (`ring/turnstile.rs` says why): its own look at the bells, when it is out again, sees P's
//! bell. Then it goes in again, or finds another holder inside, for whom the same holds. Holders are finite in number while they look, so one of them serves
//! the bell. Loom looks at every interleaving of this file, of the lock and of `doorbell` (see the tests).

use super::doorbell::Doorbells;
use crate::ring::{Inside, Turnstile};

/// What the lock protects, the lock, and the bells.
#[derive(Debug)]
pub struct Gate<T> {
    inside: Turnstile<T>,
    bells: Doorbells,
}

impl<T> Gate<T> {
    /// An open gate with bells for QP indexes below `len`.
    pub fn new(inside: T, len: usize) -> Self {
        Self { inside: Turnstile::new(inside), bells: Doorbells::new(len) }
    }

    /// The bells.
    pub fn bells(&self) -> &Doorbells {
        &self.bells
    }

    /// Waits for the lock.
    pub fn wait(&self) -> Inside<'_, T> {
        self.inside.enter()
    }

    /// The lock, or `None` when `give_up` says so: for a thread that may have been interrupted while it held the lock itself.
    pub fn wait_unless(&self, give_up: impl FnMut() -> bool) -> Option<Inside<'_, T>> {
        self.inside.enter_unless(give_up)
    }

    /// The lock, if it is free and nobody waits for it.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        self.inside.try_enter()
    }

    /// Goes in, at most `rounds` times, for as long as bells wait and the lock is free. `turn` takes the bells, and gives
    /// the lock back. To be called after each ring and after each time the lock was given back. False if the rounds were
    /// not enough: then somebody else must be told.
    #[inline]
    #[must_use]
    pub fn serve<'g>(&'g self, rounds: usize, mut turn: impl FnMut(Inside<'g, T>)) -> bool {
        for _ in 0..rounds {
            if self.bells.is_empty() {
                return true;
            }
            match self.try_enter() {
                Some(guard) => turn(guard),
                None => return true,
            }
        }
        self.bells.is_empty()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::ring::atomic::{AtomicU32, Ordering};

    /// What was posted to each of two QPs, and what the engine saw of it.
    struct World {
        gate: Gate<[u32; 2]>,
        posted: [AtomicU32; 2],
    }

    impl World {
        fn new() -> Arc<Self> {
            Arc::new(Self { gate: Gate::new([0; 2], 2), posted: [AtomicU32::new(0), AtomicU32::new(0)] })
        }

        fn turn(&self, mut guard: Inside<'_, [u32; 2]>) {
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
