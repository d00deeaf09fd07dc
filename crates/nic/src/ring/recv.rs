//! The receive queue's ring: taken and freed in order. A WQE is its wr_id, a control word and its SGEs, three of them in
//! the first unit.

use scalefabric_transport::host::RecvWqe;
use scalefabric_verbs::Sge;

use super::Refusal;
use super::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, lock};
use super::unit::{Slots, UNIT_BYTES, message_length};

/// Slots of receive WQEs, as the RQ and the SRQ have them.
#[derive(Debug)]
pub(super) struct RecvSlots {
    slots: Slots,
    max_sge: u32,
}

const WR_ID: usize = 0;
/// SGE count in the lower half, message length in the upper.
const CONTROL: usize = 1;
const SGES: usize = 2;

impl RecvSlots {
    pub fn new(count: u32, max_sge: u32) -> Self {
        let stride = (SGES * 8 + max_sge as usize * 16).div_ceil(UNIT_BYTES);
        Self { slots: Slots::new(count, stride), max_sge: ((stride * UNIT_BYTES - SGES * 8) / 16) as u32 }
    }

    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub fn write(&self, slot: u32, wr_id: u64, sges: &[Sge]) -> Result<(), Refusal> {
        if sges.len() > self.max_sge as usize {
            return Err(Refusal::TooManySges);
        }
        let length = message_length(sges).ok_or(Refusal::MessageTooLong)?;
        let at = self.slots.at(slot);
        at.set(WR_ID, wr_id);
        at.set(CONTROL, sges.len() as u64 | u64::from(length) << 32);
        for (i, sge) in sges.iter().enumerate() {
            at.set_sge(SGES + 2 * i, sge);
        }
        Ok(())
    }

    /// wr_id and message length.
    pub fn read(&self, slot: u32) -> (u64, u32) {
        let at = self.slots.at(slot);
        (at.get(WR_ID), (at.get(CONTROL) >> 32) as u32)
    }

    pub fn sges(&self, slot: u32) -> impl Iterator<Item = Sge> + '_ {
        let at = self.slots.at(slot);
        let count = at.get(CONTROL) as u32 as usize;
        (0..count).map(move |i| at.sge(SGES + 2 * i))
    }
}

/// The ring.
#[derive(Debug)]
pub struct RecvRing {
    slots: RecvSlots,
    capacity: u32,
    /// Next index to be posted, and the lock of those who post.
    next: Mutex<u32>,
    /// Doorbell record.
    posted: AtomicU32,
    /// Next index to be taken. Only the engine writes it.
    taken: AtomicU32,
    /// Everything before it may be written again.
    freed: AtomicU32,
}

impl RecvRing {
    /// An empty ring for at least `max_wr` WRs (1 to 2^20) of at least `max_sge` SGEs.
    pub fn new(max_wr: u32, max_sge: u32) -> Self {
        let capacity = max_wr.clamp(1, 1 << 20).next_power_of_two();
        Self {
            slots: RecvSlots::new(capacity, max_sge),
            capacity,
            next: Mutex::new(0),
            posted: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            freed: AtomicU32::new(0),
        }
    }

    /// WRs it holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// SGEs a WR may have; at least what was asked for.
    pub fn max_sge(&self) -> u32 {
        self.slots.max_sge()
    }

    /// Takes the posting side's lock. What is posted becomes visible to the engine with [`RecvPoster::ring_doorbell`] or
    /// when the poster is dropped.
    pub fn poster(&self) -> RecvPoster<'_> {
        RecvPoster { next: lock(&self.next), ring: self }
    }

    /// Engine: takes the next WQE (`srq` is `None`; its slot is its index).
    #[inline]
    pub fn take(&self) -> Option<RecvWqe> {
        let index = self.taken.load(Ordering::Relaxed);
        // Acquire pairs with the doorbell's release.
        if index == self.posted.load(Ordering::Acquire) {
            return None;
        }
        let (wr_id, length) = self.slots.read(index & (self.capacity - 1));
        self.taken.store(index.wrapping_add(1), Ordering::Relaxed);
        Some(RecvWqe { slot: index, wr_id, length, srq: None })
    }

    /// WQEs that are posted and not taken. Exact for the engine, a snapshot for others.
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire).wrapping_sub(self.taken.load(Ordering::Relaxed)).min(self.capacity)
    }

    /// Engine: SGEs of a WQE that was taken and not freed.
    pub fn sges(&self, slot: u32) -> impl Iterator<Item = Sge> + '_ {
        self.slots.sges(slot & (self.capacity - 1))
    }

    /// Engine: frees a slot that was taken, and any older one.
    pub fn free(&self, slot: u32) {
        // Release: our reads of the slot come before a poster's writes to it.
        self.freed.store(slot.wrapping_add(1), Ordering::Release);
    }

    /// Forgets everything (QP to RESET). The caller holds the engine's lock.
    pub fn reset(&self) {
        let mut next = lock(&self.next);
        *next = 0;
        self.posted.store(0, Ordering::Release);
        self.taken.store(0, Ordering::Relaxed);
        self.freed.store(0, Ordering::Release);
    }
}

/// The posting side, while it holds the ring's lock.
#[derive(Debug)]
pub struct RecvPoster<'r> {
    next: MutexGuard<'r, u32>,
    ring: &'r RecvRing,
}

impl RecvPoster<'_> {
    /// Writes a WQE.
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Refusal> {
        let index = *self.next;
        // Acquire pairs with the release of `free`.
        if index.wrapping_sub(self.ring.freed.load(Ordering::Acquire)) >= self.ring.capacity {
            return Err(Refusal::Full);
        }
        self.ring.slots.write(index & (self.ring.capacity - 1), wr_id, sges)?;
        *self.next = index.wrapping_add(1);
        Ok(())
    }

    /// Makes everything posted so far visible to the engine; also done when dropped.
    pub fn ring_doorbell(&mut self) {
        self.ring.posted.store(*self.next, Ordering::Release);
    }
}

impl Drop for RecvPoster<'_> {
    fn drop(&mut self) {
        self.ring_doorbell();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use scalefabric_verbs::LKey;

    #[test]
    fn receives_are_taken_in_order_with_their_buffers() {
        let ring = RecvRing::new(4, 5);
        let sges: Vec<Sge> = (0..5).map(|i| Sge { addr: 100 + i, length: 10, lkey: LKey(i as u32) }).collect();
        ring.poster().post(1, &sges).expect("there is room");
        ring.poster().post(2, &[]).expect("there is room");
        assert_eq!(ring.posted(), 2);
        let first = ring.take().expect("posted");
        assert_eq!((first.slot, first.wr_id, first.length, first.srq), (0, 1, 50, None));
        assert_eq!(ring.sges(first.slot).collect::<Vec<_>>(), sges);
        let second = ring.take().expect("posted");
        assert_eq!((second.slot, second.wr_id, second.length), (1, 2, 0));
        assert_eq!(ring.take(), None);
        assert_eq!(ring.posted(), 0);
    }

    #[test]
    fn a_slot_is_not_written_again_before_it_is_freed() {
        let ring = RecvRing::new(2, 1);
        let start = u32::MAX;
        *lock(&ring.next) = start;
        for counter in [&ring.posted, &ring.taken, &ring.freed] {
            counter.store(start, Ordering::Relaxed);
        }
        ring.poster().post(1, &[]).expect("there is room");
        ring.poster().post(2, &[]).expect("there is room");
        assert_eq!(ring.poster().post(3, &[]), Err(Refusal::Full));
        let first = ring.take().expect("posted");
        assert_eq!(ring.poster().post(3, &[]), Err(Refusal::Full), "taken, but in use");
        ring.free(first.slot);
        assert_eq!(ring.poster().post(3, &[]), Ok(()));
        assert_eq!(ring.take().map(|w| w.wr_id), Some(2));
        assert_eq!(ring.take().map(|w| (w.slot, w.wr_id)), Some((1, 3)));
    }

    #[test]
    fn one_sge_too_many_is_refused() {
        let ring = RecvRing::new(2, 3);
        assert_eq!(ring.max_sge(), 3);
        assert_eq!(ring.poster().post(1, &[Sge::default(); 3]), Ok(()));
        assert_eq!(ring.poster().post(1, &[Sge::default(); 4]), Err(Refusal::TooManySges));
        assert_eq!(ring.posted(), 1);
    }
}
