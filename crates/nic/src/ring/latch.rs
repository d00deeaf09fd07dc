//! A lock for moments, in which nothing is waited for and no system call is made.
//!
//! It is taken by one read-modify-write and given back by a plain store, half of what a lock costs that others may sleep on. Who finds it taken spins, then lets
//! others onto the processor, and sleeps a little where that does not help (its holder may have lost the processor, and have less priority).

use super::atomic::{AtomicBool, Ordering};

/// The lock.
#[derive(Debug, Default)]
pub struct Latch(AtomicBool);

/// The lock, held.
#[derive(Debug)]
#[must_use]
pub struct Held<'l>(&'l Latch);

impl Latch {
    /// Nobody holds it.
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Takes it.
    #[inline]
    pub fn hold(&self) -> Held<'_> {
        // Acquire pairs with the release of whoever held it before.
        if self.0.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Held(self)
    }

    #[cold]
    fn wait(&self) {
        let mut rounds = 0;
        loop {
            if !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Acquire) {
                return;
            }
            rounds += 1;
            pause(rounds);
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// What a thread does between its looks, of which this is the `rounds`-th, at something that another changes in a moment: it spins, then lets others onto
/// the processor, then sleeps.
#[cfg(not(loom))]
pub fn pause(rounds: u32) {
    match rounds {
        0..64 => std::hint::spin_loop(),
        64..1024 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

#[cfg(loom)]
pub fn pause(_rounds: u32) {
    loom::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn one_at_a_time() {
        const EACH: u64 = 20_000;
        let world = Arc::new((Latch::new(), AtomicU64::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let world = world.clone();
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        let _held = world.0.hold();
                        // Two steps, which another holder would come between.
                        let seen = world.1.load(Ordering::Relaxed);
                        world.1.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(world.1.load(Ordering::Relaxed), 4 * EACH);
    }
}
