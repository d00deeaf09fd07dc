//! The ring of a shared receive queue: WQEs are taken in order and freed in any order, because several QPs hold them at
//! once. Slot numbers travel in a circle through two index rings: *free* (engine to poster) and *ready* (poster to
//! engine), each with one producer and one consumer.

use std::sync::OnceLock;

use scalefabric_transport::host::RecvWqe;
use scalefabric_verbs::{Sge, Srqn};

use super::Refusal;
use super::atomic::{AtomicU32, Mutex, MutexGuard, Ordering, lock};
use super::recv::RecvSlots;

/// Segments of slots: the first holds the initial capacity, each later one as many as all before it.
const MAX_SEGMENTS: usize = 21;

/// The ring.
#[derive(Debug)]
pub struct SharedRecvRing {
    srqn: Srqn,
    segments: [OnceLock<RecvSlots>; MAX_SEGMENTS],
    /// Slots in the first segment; a power of two.
    first: u32,
    max_sge: u32,
    capacity: AtomicU32,
    limit_wr: u32,
    ready: Box<[AtomicU32]>,
    free: Box<[AtomicU32]>,
    post: Mutex<PostSide>,
    /// Doorbell record: entries of `ready` before it may be read.
    posted: AtomicU32,
    /// Next entry of `ready` to take. Only the engine writes it.
    taken: AtomicU32,
    /// Entries of `free` before it may be read.
    freed: AtomicU32,
    /// Armed limit, 0 for none. Only the engine's side writes it.
    srq_limit: AtomicU32,
}

#[derive(Debug)]
struct PostSide {
    /// Next entry of `ready` to write.
    next: u32,
    /// Next entry of `free` to read.
    used: u32,
}

impl SharedRecvRing {
    /// An empty ring for at least `max_wr` WRs of at least `max_sge` SGEs, that can grow to `limit_wr` WRs (1 to 2^20).
    pub fn new(srqn: Srqn, max_wr: u32, max_sge: u32, limit_wr: u32) -> Self {
        let limit_wr = limit_wr.max(max_wr).clamp(1, 1 << 20).next_power_of_two();
        let first = max_wr.clamp(1, limit_wr).next_power_of_two();
        let segments = [const { OnceLock::new() }; MAX_SEGMENTS];
        let slots = RecvSlots::new(first, max_sge);
        let max_sge = slots.max_sge();
        let _ = segments[0].set(slots);
        let indexes = || (0..limit_wr).map(AtomicU32::new).collect::<Box<[_]>>();
        Self {
            srqn,
            segments,
            first,
            max_sge,
            capacity: AtomicU32::new(first),
            limit_wr,
            ready: indexes(),
            // Entries 0 to first - 1 are slots 0 to first - 1: all free.
            free: indexes(),
            post: Mutex::new(PostSide { next: 0, used: 0 }),
            posted: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            freed: AtomicU32::new(first),
            srq_limit: AtomicU32::new(0),
        }
    }

    /// Its number.
    pub fn srqn(&self) -> Srqn {
        self.srqn
    }

    /// WRs it holds.
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// SGEs a WR may have.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Takes the posting side's lock. What is posted becomes visible to the engine with [`SharedPoster::ring_doorbell`]
    /// or when the poster is dropped.
    pub fn poster(&self) -> SharedPoster<'_> {
        SharedPoster { side: lock(&self.post), ring: self }
    }

    /// Where a slot lies: its segment and its place there. The number is one that this ring has handed out.
    fn place(&self, slot: u32) -> (&RecvSlots, u32) {
        let part = slot / self.first;
        let (segment, offset) = match part.checked_ilog2() {
            None => (0, slot),
            Some(k) => (k as usize + 1, slot - (self.first << k)),
        };
        (self.segments[segment].get().expect("a slot that was handed out has its segment"), offset)
    }

    fn cell<'c>(&self, cells: &'c [AtomicU32], index: u32) -> &'c AtomicU32 {
        &cells[(index & (self.limit_wr - 1)) as usize]
    }

    /// Engine: takes the next WQE. The flag: raise SRQ_LIMIT_REACHED now (the limit is disarmed by that).
    #[inline]
    pub fn take(&self) -> Option<(RecvWqe, bool)> {
        let index = self.taken.load(Ordering::Relaxed);
        // Acquire pairs with the doorbell's release.
        let left = self.posted.load(Ordering::Acquire).wrapping_sub(index);
        if left == 0 {
            return None;
        }
        let slot = self.cell(&self.ready, index).load(Ordering::Relaxed);
        let (slots, offset) = self.place(slot);
        let (wr_id, length) = slots.read(offset);
        self.taken.store(index.wrapping_add(1), Ordering::Relaxed);
        let limit = self.srq_limit.load(Ordering::Relaxed);
        let reached = left - 1 < limit;
        if reached {
            self.srq_limit.store(0, Ordering::Relaxed);
        }
        Some((RecvWqe { slot, wr_id, length, srq: Some(self.srqn) }, reached))
    }

    /// WQEs that are posted and not taken. Exact for the engine, a snapshot for others.
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire).wrapping_sub(self.taken.load(Ordering::Relaxed)).min(self.limit_wr)
    }

    /// Engine: SGEs of a WQE that was taken and not freed.
    pub fn sges(&self, slot: u32) -> impl Iterator<Item = Sge> + '_ {
        let (slots, offset) = self.place(slot);
        slots.sges(offset)
    }

    /// Engine: frees a slot that was taken, once.
    pub fn free(&self, slot: u32) {
        let index = self.freed.load(Ordering::Relaxed);
        self.cell(&self.free, index).store(slot, Ordering::Relaxed);
        // Release: our reads of the slot, and the entry, come before a poster's use of them.
        self.freed.store(index.wrapping_add(1), Ordering::Release);
    }

    /// Arms the limit; 0 disarms. The caller holds the engine's lock. True: raise SRQ_LIMIT_REACHED now, because fewer
    /// are posted already (and it is disarmed by that): the condition is a level, not an edge (clause 11.2.3.3).
    pub fn arm_limit(&self, limit: u32) -> bool {
        let reached = self.posted() < limit;
        self.srq_limit.store(if reached { 0 } else { limit }, Ordering::Relaxed);
        reached
    }

    /// The armed limit, 0 for none.
    pub fn limit(&self) -> u32 {
        self.srq_limit.load(Ordering::Relaxed)
    }

    /// Grows to at least `max_wr` WRs. The caller holds the engine's lock. False (and no change) if that is less than it
    /// holds now or more than `limit_wr`: an SRQ never shrinks, since its slots may be anywhere.
    pub fn grow(&self, max_wr: u32) -> bool {
        let mut capacity = self.capacity();
        // `next_power_of_two` of more than 2^31 would overflow.
        if max_wr > self.limit_wr || max_wr < capacity {
            return false;
        }
        while capacity < max_wr {
            let segment = (capacity / self.first).ilog2() as usize + 1;
            let slots = self.segments[segment].get_or_init(|| RecvSlots::new(capacity, self.max_sge));
            debug_assert_eq!(slots.max_sge(), self.max_sge);
            for slot in capacity..2 * capacity {
                self.free(slot);
            }
            capacity *= 2;
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        true
    }
}

/// The posting side, while it holds the ring's lock.
#[derive(Debug)]
pub struct SharedPoster<'r> {
    side: MutexGuard<'r, PostSide>,
    ring: &'r SharedRecvRing,
}

impl SharedPoster<'_> {
    /// Writes a WQE.
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), Refusal> {
        let (ring, side) = (self.ring, &mut *self.side);
        // Acquire pairs with the release of `free`.
        if side.used == ring.freed.load(Ordering::Acquire) {
            return Err(Refusal::Full);
        }
        let slot = ring.cell(&ring.free, side.used).load(Ordering::Relaxed);
        let (slots, offset) = ring.place(slot);
        slots.write(offset, wr_id, sges)?;
        ring.cell(&ring.ready, side.next).store(slot, Ordering::Relaxed);
        side.used = side.used.wrapping_add(1);
        side.next = side.next.wrapping_add(1);
        Ok(())
    }

    /// Makes everything posted so far visible to the engine; also done when dropped.
    pub fn ring_doorbell(&mut self) {
        self.ring.posted.store(self.side.next, Ordering::Release);
    }
}

impl Drop for SharedPoster<'_> {
    fn drop(&mut self) {
        self.ring_doorbell();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use scalefabric_verbs::LKey;

    fn ring(max_wr: u32) -> SharedRecvRing {
        SharedRecvRing::new(Srqn::new(5), max_wr, 2, 16)
    }

    fn take(ring: &SharedRecvRing) -> RecvWqe {
        ring.take().expect("posted").0
    }

    #[test]
    fn slots_are_freed_in_any_order() {
        let ring = ring(3);
        assert_eq!(ring.capacity(), 4);
        for i in 0..4 {
            ring.poster().post(i, &[]).expect("there is room");
        }
        assert_eq!(ring.poster().post(9, &[]), Err(Refusal::Full));
        let wqes: Vec<RecvWqe> = (0..4).map(|_| take(&ring)).collect();
        assert_eq!(wqes.iter().map(|w| w.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(ring.take().is_none());
        ring.free(wqes[2].slot);
        let sges = [Sge { addr: 1, length: 2, lkey: LKey(3) }; 2];
        ring.poster().post(10, &sges).expect("there is room");
        assert_eq!(ring.poster().post(11, &[]), Err(Refusal::Full));
        let wqe = take(&ring);
        assert_eq!((wqe.slot, wqe.wr_id, wqe.length, wqe.srq), (wqes[2].slot, 10, 4, Some(Srqn::new(5))));
        assert_eq!(ring.sges(wqe.slot).collect::<Vec<_>>(), sges);
    }

    #[test]
    fn the_limit_fires_once_when_fewer_are_left() {
        let ring = ring(4);
        for i in 0..4 {
            ring.poster().post(i, &[]).expect("there is room");
        }
        assert!(!ring.arm_limit(3), "four are posted");
        assert_eq!(ring.take().map(|t| t.1), Some(false), "three left: not fewer than three");
        assert_eq!(ring.take().map(|t| t.1), Some(true), "two left");
        assert_eq!(ring.limit(), 0);
        assert_eq!(ring.take().map(|t| t.1), Some(false), "disarmed");
        assert!(ring.arm_limit(2), "one left: at once");
        assert_eq!(ring.limit(), 0);
        assert!(!ring.arm_limit(1));
    }

    #[test]
    fn it_grows_while_receives_are_out() {
        let ring = ring(2);
        ring.poster().post(0, &[]).expect("there is room");
        ring.poster().post(1, &[]).expect("there is room");
        let out = take(&ring);
        assert!(!ring.grow(1), "never smaller");
        assert!(!ring.grow(17), "never above its limit");
        assert!(ring.grow(5));
        assert_eq!(ring.capacity(), 8);
        for i in 2..8 {
            ring.poster().post(i, &[]).expect("there is room");
        }
        assert_eq!(ring.poster().post(8, &[]), Err(Refusal::Full));
        let mut slots = vec![out.slot];
        for i in 1..8 {
            let wqe = take(&ring);
            assert_eq!(wqe.wr_id, i);
            slots.push(wqe.slot);
        }
        slots.sort_unstable();
        assert_eq!(slots, (0..8).collect::<Vec<_>>(), "each slot once");
        assert!(ring.grow(16));
        for i in 8..16 {
            ring.poster().post(i, &[]).expect("there is room");
            assert_eq!(take(&ring).wr_id, i);
        }
    }

    #[test]
    fn its_counters_wrap() {
        let ring = ring(4);
        let start = u32::MAX - 2;
        *lock(&ring.post) = PostSide { next: start, used: start };
        ring.posted.store(start, Ordering::Relaxed);
        ring.taken.store(start, Ordering::Relaxed);
        ring.freed.store(start, Ordering::Relaxed);
        (0..4).for_each(|slot| ring.free(slot));
        for i in 0..10 {
            ring.poster().post(i, &[]).expect("there is room");
            let wqe = take(&ring);
            assert_eq!(wqe.wr_id, i);
            ring.free(wqe.slot);
        }
        assert_eq!(ring.posted(), 0);
    }
}
