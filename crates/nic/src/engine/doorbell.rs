//! Doorbells: how a thread that posted work tells the engine, without the engine's lock.
//!
//! One bell per QP index, and a stack of those that were rung. Ringing and taking are a few atomic operations; nothing
//! allocates and nobody waits.
//!
//! **No ring is lost.** A poster writes its WQE (the ring publishes it with release order), then swaps `rung` to true. The
//! engine swaps `rung` to false and only then reads the ring. Both swaps are read-modify-writes of one location, so one
//! comes first. If the poster's does, the engine's swap reads from it (or from a later one in its release sequence) and
//! acquires: the engine sees the WQE. If the engine's does, the poster reads false and pushes the bell again: the engine
//! will be back. What brings the engine back when its lock is taken is proved in `engine::gate`.

use crate::ring::atomic::{AtomicBool, AtomicU32, Ordering};

/// End of the stack.
const NONE: u32 = 0;

#[derive(Debug)]
struct Bell {
    /// In the stack, or about to be.
    rung: AtomicBool,
    /// The bell below in the stack: its index plus one, or [`NONE`]. Belongs to whoever set `rung`.
    next: AtomicU32,
}

/// The doorbells of all QPs.
#[derive(Debug)]
pub struct Doorbells {
    bells: Box<[Bell]>,
    /// Top of the stack, as `next`.
    head: AtomicU32,
}

impl Doorbells {
    /// Bells for QP indexes below `len`.
    pub fn new(len: usize) -> Self {
        Self {
            bells: (0..len).map(|_| Bell { rung: AtomicBool::new(false), next: AtomicU32::new(NONE) }).collect(),
            head: AtomicU32::new(NONE),
        }
    }

    /// Rings for a QP.
    #[inline]
    pub fn ring(&self, index: u16) {
        let Some(bell) = self.bells.get(usize::from(index)) else { return };
        if bell.rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            bell.next.store(head, Ordering::Relaxed);
            // Release publishes `next`. A bell that was taken and pushed again while we looked (ABA) does no harm: only
            // `take` pops, and it pops everything.
            match self.head.compare_exchange_weak(head, u32::from(index) + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// True if no bell waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == NONE
    }

    /// Takes all bells that were rung, in the order of ringing. One caller at a time: the engine, under its lock.
    #[inline]
    pub fn take(&self, mut each: impl FnMut(u16)) {
        if self.is_empty() {
            return;
        }
        // Turn the stack around first: while `rung` is still set, the links are ours.
        let mut at = self.head.swap(NONE, Ordering::AcqRel);
        let mut reversed = NONE;
        while at != NONE {
            let bell = &self.bells[at as usize - 1];
            let next = bell.next.swap(reversed, Ordering::Relaxed);
            reversed = at;
            at = next;
        }
        while reversed != NONE {
            let index = reversed - 1;
            let bell = &self.bells[index as usize];
            reversed = bell.next.load(Ordering::Relaxed);
            bell.rung.swap(false, Ordering::AcqRel);
            each(index as u16);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn bells_come_in_order_and_once() {
        let bells = Doorbells::new(8);
        for index in [3, 1, 3, 7, 1] {
            bells.ring(index);
        }
        let mut taken = Vec::new();
        bells.take(|i| taken.push(i));
        assert_eq!(taken, [3, 1, 7]);
        assert!(bells.is_empty());
        bells.ring(200);
        assert!(bells.is_empty(), "a number beyond the table is nobody's bell");
    }

    #[test]
    fn no_ring_of_two_threads_is_lost() {
        // Each thread adds to its QP's counter and rings; the taker must see every addition in the end.
        const EACH: u64 = 20_000;
        let bells = Arc::new(Doorbells::new(2));
        let posted: Arc<[AtomicU64; 2]> = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let threads: Vec<_> = (0..2u16)
            .map(|index| {
                let (bells, posted) = (bells.clone(), posted.clone());
                std::thread::spawn(move || {
                    for _ in 0..EACH {
                        posted[usize::from(index)].fetch_add(1, Ordering::Release);
                        bells.ring(index);
                    }
                })
            })
            .collect();
        let mut seen = [0; 2];
        while threads.iter().any(|t| !t.is_finished()) {
            bells.take(|i| seen[usize::from(i)] = posted[usize::from(i)].load(Ordering::Acquire));
            std::thread::yield_now();
        }
        bells.take(|i| seen[usize::from(i)] = posted[usize::from(i)].load(Ordering::Acquire));
        assert_eq!(seen, [EACH; 2]);
    }
}
