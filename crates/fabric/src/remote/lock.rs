//! Locks in far memory: a row of cells, each the lock of all keys that fall on it. A lock is a word that names its holder, so that a request whose answer was lost
//! can be looked up. A holder that dies keeps its locks: where that may be, take a [`super::Lease`].

use super::{Area, CELL_BYTES, Failure};
use crate::error::{FabricError, Fault};
use std::hash::Hasher;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// A row of locks from the beginning of an area of zeroed memory.
#[derive(Debug)]
pub struct StripedLocks<A> {
    pub(super) area: A,
    stripes: u64,
    holder: u32,
    /// Of our requests: a word is never used twice.
    serial: AtomicU32,
}

impl<A: Area> StripedLocks<A> {
    /// As many stripes as the area has cells. `holder` tells us from all others who use the same locks, in other processes and in other
    /// `StripedLocks` of this one; not 0. More stripes let more keys be held at once.
    pub fn new(area: A, holder: u32) -> Result<Self, FabricError> {
        let stripes = area.length() / CELL_BYTES;
        if stripes == 0 || holder == 0 {
            return Err(FabricError::misuse(format!(
                "{stripes} stripes and holder {holder}: an area has at least {CELL_BYTES} bytes, and a holder is not 0"
            )));
        }
        Ok(Self { area, stripes, holder, serial: AtomicU32::new(0) })
    }

    /// The lock that a key falls on: the same for everybody with as many stripes.
    pub fn stripe_of(&self, key: &[u8]) -> u64 {
        let mut hasher = siphasher::sip::SipHasher13::new();
        hasher.write(key);
        hasher.finish() % self.stripes
    }

    /// Where the cell of a key's lock begins: the lock's word, and behind it what those who queue for it need.
    pub(super) fn cell_of(&self, key: &[u8]) -> u64 {
        self.stripe_of(key) * CELL_BYTES
    }

    /// Takes the lock of a key if it is free. When in doubt it finds out.
    pub fn try_lock(&self, key: &[u8]) -> Result<Option<Guard<'_, A>>, FabricError> {
        let offset = self.cell_of(key);
        let word = u64::from(self.holder) << 32 | u64::from(self.serial.fetch_add(1, Ordering::Relaxed));
        Ok(replace(&self.area, offset, 0, word)?.then(|| Guard { area: &self.area, offset, word, held: true }))
    }

    /// Takes the lock of a key, trying again until it is free; `None` when `tries` were in vain. Between tries it waits longer and longer, up to a
    /// millisecond.
    pub fn lock(&self, key: &[u8], tries: u32) -> Result<Option<Guard<'_, A>>, FabricError> {
        let mut pause = Duration::from_micros(1);
        for _ in 0..tries {
            if let Some(guard) = self.try_lock(key)? {
                return Ok(Some(guard));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(None)
    }

    /// Takes a lock from a holder that is known to be dead: frees the stripe if that holder has it. The caller answers for its death.
    pub fn break_lock_of(&self, stripe: u64, holder: u32) -> Result<bool, FabricError> {
        if stripe >= self.stripes {
            return Err(FabricError::misuse(format!("stripe {stripe} of {}", self.stripes)));
        }
        let offset = stripe * CELL_BYTES;
        let found = look(&self.area, offset)?;
        if found >> 32 != u64::from(holder) {
            return Ok(false);
        }
        replace(&self.area, offset, found, 0)
    }
}

/// What the word is now.
pub(super) fn look<A: Area>(area: &A, offset: u64) -> Result<u64, Failure> {
    loop {
        match area.fetch_add(offset, 0) {
            Err(failure) if failure.in_doubt => {}
            other => return other,
        }
    }
}

/// Replaces a word by one that nobody else writes; true if it was `compare`. When in doubt it looks: what is there now is ours, or is not.
///
/// `swap` must be a word that nobody but us writes, and that nobody replaces before this returns unless it may (then the answer is "no", which
/// is true by then).
pub(super) fn replace<A: Area>(area: &A, offset: u64, compare: u64, swap: u64) -> Result<bool, FabricError> {
    loop {
        match area.compare_swap(offset, compare, swap) {
            Ok(found) => return Ok(found == compare),
            Err(failure) if failure.in_doubt => {
                let found = look(area, offset)?;
                if found == swap {
                    return Ok(true);
                }
                if found != compare {
                    return Ok(false);
                }
                // Surely not done: what was in flight died with its QP.
            }
            Err(failure) => return Err(failure.into()),
        }
    }
}

/// A lock that is held. Dropping it gives it back; [`Guard::unlock`] tells whether that went well.
#[derive(Debug)]
#[must_use = "dropping it gives the lock back"]
pub struct Guard<'a, A: Area> {
    area: &'a A,
    offset: u64,
    word: u64,
    held: bool,
}

impl<A: Area> Guard<'_, A> {
    /// Gives it back. [`Fault::NoAuthority`] if it was not ours any more: somebody broke it.
    pub fn unlock(mut self) -> Result<(), FabricError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), FabricError> {
        self.held = false;
        loop {
            match self.area.compare_swap(self.offset, self.word, 0) {
                Ok(found) if found == self.word => return Ok(()),
                Ok(_) => {
                    return Err(FabricError::new(
                        Fault::NoAuthority,
                        "the lock was not ours any more: somebody has broken it, believing us dead",
                    ));
                }
                // Ours never comes back: if it is still there, it was not done.
                Err(failure) if failure.in_doubt => {
                    if look(self.area, self.offset)? != self.word {
                        return Ok(());
                    }
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }
}

impl<A: Area> Drop for Guard<'_, A> {
    fn drop(&mut self) {
        if self.held {
            let _ = self.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn nobody_is_inside_with_another() {
        let area = Arc::new(Stage::new(2 * 64));
        let inside = AtomicBool::new(false);
        let entered = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for holder in 1..=4 {
                let (area, inside, entered) = (area.clone(), &inside, &entered);
                scope.spawn(move || {
                    let locks = StripedLocks::new(area, holder).unwrap();
                    for _ in 0..200 {
                        let guard = locks.lock(b"the key", u32::MAX).unwrap().unwrap();
                        assert!(!inside.swap(true, Ordering::AcqRel), "two hold one lock");
                        entered.fetch_add(1, Ordering::Relaxed);
                        assert!(inside.swap(false, Ordering::AcqRel));
                        guard.unlock().unwrap();
                    }
                });
            }
        });
        assert_eq!(entered.into_inner(), 800);
    }

    #[test]
    fn a_request_in_doubt_is_looked_up() {
        for done in [true, false] {
            let area = Stage::new(64);
            let locks = StripedLocks::new(&area, 7).unwrap();
            area.doubt(done);
            let guard = locks.try_lock(b"a").unwrap().expect("it is free");
            let other = StripedLocks::new(&area, 8).unwrap();
            assert!(other.try_lock(b"a").unwrap().is_none());
            area.doubt(done);
            guard.unlock().unwrap();
            assert!(other.try_lock(b"a").unwrap().is_some());
            assert!(locks.try_lock(b"a").unwrap().is_some());
        }
    }

    #[test]
    fn only_the_dead_holders_lock_is_broken_and_it_is_told() {
        let area = Stage::new(64);
        let locks = StripedLocks::new(&area, 7).unwrap();
        let guard = locks.try_lock(b"a").unwrap().unwrap();
        let stripe = locks.stripe_of(b"a");
        assert!(!locks.break_lock_of(stripe, 8).unwrap());
        assert!(locks.break_lock_of(stripe, 7).unwrap());
        assert_eq!(guard.unlock().unwrap_err().fault, Fault::NoAuthority);
    }
}
