//! Hazards: an accessor says what it is about to touch, so that who takes it away can wait.
//!
//! Each process has one hazard, since its engine is turned by one thread at a time. It is one word, so that it is seen whole or not
//! at all, and whoever dies or stops leaves no lock behind.
//!
//! **Nothing is touched after a revocation has returned.** The accessor: publish, fence, look whether key and gate are still
//! good, touch, clear. The owner: make key or gate bad, fence, look at the hazard and wait while it concerns what was revoked. The two
//! fences are ordered. If the accessor's comes first, the owner sees the hazard and waits. If the owner's comes first, the
//! accessor sees that key or gate is bad and does not touch. `loom_tests.rs` tries all interleavings.

use crate::ring::atomic::{AtomicU64, Ordering, full_fence};

/// What an accessor touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Slot of the process whose memory it is.
    pub target: u8,
    /// Place in its memory table, 24 bits.
    pub entry: u32,
    /// Index of its QP.
    pub qp: u16,
}

/// What one process touches of others now. A cache line of its own: it changes with each operation.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Hazard {
    /// Bit 0: there is a claim. Then target (8 bits), entry (24), QP (16), and a number that grows with each claim (15), so that a
    /// claim that comes again is told from one that stays.
    word: AtomicU64,
}

const THERE: u64 = 1;
const NUMBER: u32 = 49;

impl Claim {
    fn pack(self) -> u64 {
        THERE | u64::from(self.target) << 1 | u64::from(self.entry & 0xff_ffff) << 9 | u64::from(self.qp) << 33
    }

    fn unpack(word: u64) -> Option<Self> {
        (word & THERE != 0).then_some(Self {
            target: (word >> 1) as u8,
            entry: (word >> 9) as u32 & 0xff_ffff,
            qp: (word >> 33) as u16,
        })
    }
}

impl Default for Hazard {
    fn default() -> Self {
        Self::new()
    }
}

impl Hazard {
    /// Nothing is touched.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// Publishes a claim; it stands until the result is dropped. Whatever the claim is about must be looked at again after this.
    /// One caller at a time.
    #[inline]
    pub fn publish(&self, claim: Claim) -> Published<'_> {
        let published = self.announce(claim);
        full_fence();
        published
    }

    /// As [`Hazard::publish`], for a caller that puts a full fence behind it before it looks at anything.
    #[inline]
    pub fn announce(&self, claim: Claim) -> Published<'_> {
        let number = (self.word.load(Ordering::Relaxed) >> NUMBER).wrapping_add(1);
        self.word.store(claim.pack() | number << NUMBER, Ordering::Relaxed);
        Published(self)
    }

    /// What is touched now.
    pub fn claim(&self) -> Option<Claim> {
        Claim::unpack(self.word.load(Ordering::Acquire))
    }

    /// Waits until a claim that `concerns` the caller is gone; a later one has seen what the caller has revoked, and is not waited for.
    /// The caller has put a full fence between its revocation and this. `wait` is called between two looks with their number, and ends the waiting
    /// with false; then the result is false.
    pub fn wait(&self, concerns: impl Fn(Claim) -> bool, mut wait: impl FnMut(u32) -> bool) -> bool {
        let first = self.word.load(Ordering::Acquire);
        if !Claim::unpack(first).is_some_and(concerns) {
            return true;
        }
        let mut rounds = 0;
        while self.word.load(Ordering::Acquire) == first {
            rounds += 1;
            if !wait(rounds) {
                return false;
            }
        }
        true
    }

    /// Forgets the claim of a process that is gone: its slot begins anew.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Release);
    }
}

/// A claim that stands.
#[derive(Debug)]
pub struct Published<'h>(&'h Hazard);

impl Drop for Published<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.0.word;
        // Release: what was touched was touched before.
        word.store(word.load(Ordering::Relaxed) & !THERE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_seen_as_it_was_published() {
        let hazard = Hazard::new();
        let claim = Claim { target: 254, entry: 0xff_fffe, qp: 0xffff };
        assert_eq!(hazard.claim(), None);
        {
            let _published = hazard.publish(claim);
            assert_eq!(hazard.claim(), Some(claim));
        }
        assert_eq!(hazard.claim(), None);
    }

    #[test]
    fn who_is_not_concerned_does_not_wait_and_who_gives_up_is_told() {
        let hazard = Hazard::new();
        let claim = Claim { target: 3, entry: 7, qp: 9 };
        let published = hazard.publish(claim);
        assert!(hazard.wait(|c| c.target == 4, |_| panic!("not concerned")));
        assert!(!hazard.wait(|c| c.entry == 7, |rounds| rounds < 10));
        drop(published);
        assert!(hazard.wait(|c| c.entry == 7, |_| panic!("it is gone")));
    }

    #[test]
    fn the_same_claim_again_is_not_waited_for() {
        let hazard = Hazard::new();
        let claim = Claim { target: 3, entry: 7, qp: 9 };
        std::mem::forget(hazard.publish(claim));
        // The accessor begins the next one while the owner waits.
        let done = hazard.wait(
            |c| c == claim,
            |rounds| {
                std::mem::forget(hazard.publish(claim));
                rounds < 3
            },
        );
        assert!(done);
    }
}
