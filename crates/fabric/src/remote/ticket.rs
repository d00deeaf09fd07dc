//! Waiting for a lock in a queue: who wants it draws a ticket, looks from time to time how far the queue is, and tries the lock only when its turn has come. So one
//! waiter at a time reaches for the lock's word, and the others add nothing but a look each, less often the farther back they stand.
//!
//! The queue orders, it does not protect: who holds the lock is said by the lock's word alone ([`super::StripedLocks`]). So a waiter that died
//! or sleeps is passed over by those behind it, and nothing worse than a lost turn comes of it; and those who spin may stand beside the queue.

use super::Area;
use super::lock::{Guard, StripedLocks, look};
use super::publish::LockStrategy;
use crate::error::FabricError;
use std::time::Duration;

/// Where in a lock's cell the next ticket is, and the ticket that is served.
const NEXT: u64 = 8;
const SERVED: u64 = 16;

/// Pause between two looks for each place in the queue, and at most.
const PAUSE: Duration = Duration::from_micros(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Looks at a queue that stands still after which the one at its head is passed over.
const PATIENCE: u32 = 200;

impl<A: Area> StripedLocks<A> {
    /// Takes the lock of a key, waiting as `strategy` says; `None` when `tries` tries or looks were in vain. [`StripedLocks::lock`] is a third way, which
    /// waits longer and longer. All three may be used on one lock at the same time.
    pub fn lock_by(&self, key: &[u8], strategy: LockStrategy, tries: u32) -> Result<Option<Guard<'_, A>>, FabricError> {
        match strategy {
            LockStrategy::Spin => self.lock_spinning(key, tries),
            LockStrategy::Queue => self.lock_in_turn(key, tries),
        }
    }

    fn lock_spinning(&self, key: &[u8], tries: u32) -> Result<Option<Guard<'_, A>>, FabricError> {
        for _ in 0..tries {
            if let Some(guard) = self.try_lock(key)? {
                return Ok(Some(guard));
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }

    fn lock_in_turn(&self, key: &[u8], tries: u32) -> Result<Option<Guard<'_, A>>, FabricError> {
        let cell = self.cell_of(key);
        let ticket = self.draw(cell)?;
        let (mut seen, mut still) = (ticket, 0);
        for _ in 0..tries {
            let served = look(&self.area, cell + SERVED)?;
            // Tickets wrap after 2^64.
            let ahead = ticket.wrapping_sub(served) as i64;
            if ahead <= 0 {
                if let Some(guard) = self.try_lock(key)? {
                    self.serve_next(cell, ticket)?;
                    return Ok(Some(guard));
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            still = if seen == served { still + 1 } else { 0 };
            seen = served;
            if still >= PATIENCE {
                // Whoever stands there is gone, or will find that its turn has passed and try at once.
                self.serve_next(cell, served)?;
                still = 0;
                continue;
            }
            let pause = PAUSE.saturating_mul(u32::try_from(ahead).unwrap_or(u32::MAX));
            std::thread::sleep(pause.min(LONGEST_PAUSE));
        }
        // Nobody shall wait for a ticket that is given up; if it is not its turn yet, those behind pass it over.
        self.serve_next(cell, ticket)?;
        Ok(None)
    }

    /// A ticket of our own. One whose drawing is in doubt is left: nobody knows its number, and it is passed over.
    fn draw(&self, cell: u64) -> Result<u64, FabricError> {
        loop {
            match self.area.fetch_add(cell + NEXT, 1) {
                Ok(ticket) => return Ok(ticket),
                Err(failure) if failure.in_doubt => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// The one behind this ticket comes next, if this one is served now. When in doubt it was done, or another look of those behind does it.
    fn serve_next(&self, cell: u64, ticket: u64) -> Result<(), FabricError> {
        match self.area.compare_swap(cell + SERVED, ticket, ticket.wrapping_add(1)) {
            Ok(_) => Ok(()),
            Err(failure) if failure.in_doubt => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    #[test]
    fn nobody_is_inside_with_another_however_they_wait() {
        let area = Arc::new(Stage::new(64));
        let (inside, entered) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for holder in 1..=6 {
                let (area, inside, entered) = (area.clone(), &inside, &entered);
                scope.spawn(move || {
                    let locks = StripedLocks::new(area, holder).unwrap();
                    for round in 0..100 {
                        let guard = match (holder + round) % 3 {
                            0 => locks.lock_by(b"k", LockStrategy::Spin, u32::MAX),
                            1 => locks.lock_by(b"k", LockStrategy::Queue, u32::MAX),
                            _ => locks.lock(b"k", u32::MAX),
                        };
                        let guard = guard.unwrap().unwrap();
                        assert!(!inside.swap(true, Ordering::AcqRel), "two hold one lock");
                        entered.fetch_add(1, Ordering::Relaxed);
                        assert!(inside.swap(false, Ordering::AcqRel));
                        guard.unlock().unwrap();
                    }
                });
            }
        });
        assert_eq!(entered.into_inner(), 600);
    }

    #[test]
    fn a_ticket_whose_owner_died_is_passed_over_and_one_that_was_given_up_too() {
        let area = Stage::new(64);
        let locks = StripedLocks::new(&area, 7).unwrap();
        // Three tickets that nobody will use.
        area.fetch_add(NEXT, 3).unwrap();
        assert!(locks.lock_by(b"a", LockStrategy::Queue, u32::MAX).unwrap().is_some());
        let guard = locks.lock_by(b"a", LockStrategy::Spin, 1).unwrap().unwrap();
        let other = StripedLocks::new(&area, 8).unwrap();
        assert!(other.lock_by(b"a", LockStrategy::Queue, 3).unwrap().is_none());
        assert!(other.lock_by(b"a", LockStrategy::Spin, 3).unwrap().is_none());
        guard.unlock().unwrap();
        assert!(other.lock_by(b"a", LockStrategy::Queue, u32::MAX).unwrap().is_some());
    }

    #[test]
    fn a_ticket_in_doubt_is_left_and_another_drawn() {
        for done in [true, false] {
            let area = Stage::new(64);
            let locks = StripedLocks::new(&area, 7).unwrap();
            area.doubt(done);
            assert!(locks.lock_by(b"a", LockStrategy::Queue, u32::MAX).unwrap().is_some());
        }
    }
}
