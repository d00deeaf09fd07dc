//! Counters of a port: one block of 64-bit numbers that may live in the shared device segment, and the batch in which the
//! engine collects a turn's counts.
//!
//! The engine counts into plain integers under its lock and adds them to the block once a turn: an atomic per packet
//! would cost more than parsing it. Nothing here allocates after the start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scalefabric_transport::{Counter, DropReason};

/// Number of counters.
pub const COUNTERS: usize = Counter::ALL.len();
/// Number of drop reasons.
pub const DROPS: usize = DropReason::ALL.len();

/// The numbers of one port. The layout is that of the device segment: counters, then drops, each a `u64`.
#[derive(Debug)]
#[repr(C)]
pub struct PortCounters {
    counters: [AtomicU64; COUNTERS],
    drops: [AtomicU64; DROPS],
}

impl Default for PortCounters {
    fn default() -> Self {
        Self { counters: [const { AtomicU64::new(0) }; COUNTERS], drops: [const { AtomicU64::new(0) }; DROPS] }
    }
}

impl PortCounters {
    /// Value of a counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].load(Ordering::Relaxed)
    }

    /// Packets dropped for a reason.
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].load(Ordering::Relaxed)
    }

    /// Packets dropped for any reason.
    pub fn all_drops(&self) -> u64 {
        self.drops.iter().map(|d| d.load(Ordering::Relaxed)).sum()
    }

    /// Adds `n` to a counter.
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Adds `n` to a counter of a block to which nobody else adds: that of this process's engine, under its lock.
    #[inline]
    pub fn add_alone(&self, counter: Counter, n: u64) {
        add_alone(&self.counters[counter as usize], n);
    }

    /// Adds `n` dropped packets.
    pub fn add_drops(&self, reason: DropReason, n: u64) {
        self.drops[reason as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Adds everything to another block and starts at zero again.
    pub fn move_to(&self, other: &Self) {
        for (from, to) in self.counters.iter().zip(&other.counters).chain(self.drops.iter().zip(&other.drops)) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Value at a place of [`PortCounters::all`]; `None` beyond the last.
    pub fn at(&self, place: usize) -> Option<u64> {
        let counter = self.counters.get(place).or_else(|| self.drops.get(place.checked_sub(COUNTERS)?))?;
        Some(counter.load(Ordering::Relaxed))
    }

    /// Name and value of everything, counters first, in the order of their tables.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counters = Counter::ALL.iter().map(|&c| (c.label(), self.counter(c)));
        counters.chain(DropReason::ALL.iter().map(|&d| (d.label(), self.drops(d))))
    }
}

/// Something that holds a port's block: the block itself, or a mapping of the device segment.
pub trait CounterBlock: Send + Sync {
    /// The block.
    fn block(&self) -> &PortCounters;
}

impl CounterBlock for PortCounters {
    fn block(&self) -> &PortCounters {
        self
    }
}

/// A shared handle to a port's block.
pub type CountersHandle = Arc<dyn CounterBlock>;

/// What was counted in this turn and is not yet in the block.
#[derive(Debug)]
pub struct Batch {
    counters: [u64; COUNTERS],
    drops: [u64; DROPS],
    /// A bit for each counter that is not zero: most turns touch few.
    counted: u64,
    dropped: u64,
}

const _: () = assert!(COUNTERS <= 64 && DROPS <= 64, "the masks have a bit for each");

impl Default for Batch {
    fn default() -> Self {
        Self { counters: [0; COUNTERS], drops: [0; DROPS], counted: 0, dropped: 0 }
    }
}

impl Batch {
    /// Counts `n` more.
    #[inline]
    pub fn count(&mut self, counter: Counter, n: u64) {
        self.counters[counter as usize] += n;
        self.counted |= 1 << counter as u32;
    }

    /// Counts a dropped packet.
    #[inline]
    pub fn drop_packet(&mut self, reason: DropReason) {
        self.drop_packets(reason, 1);
    }

    /// Counts `n` dropped packets.
    #[inline]
    pub fn drop_packets(&mut self, reason: DropReason, n: u64) {
        self.drops[reason as usize] += n;
        self.dropped |= 1 << reason as u32;
    }

    /// Moves everything into the block, which nobody else adds to: there is one engine, under its lock.
    #[inline]
    pub fn flush(&mut self, block: &PortCounters) {
        move_bits(&mut self.counted, &mut self.counters, &block.counters);
        move_bits(&mut self.dropped, &mut self.drops, &block.drops);
    }
}

/// No read-modify-write: with one writer it would only cost.
#[inline]
fn add_alone(to: &AtomicU64, n: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn move_bits(mask: &mut u64, from: &mut [u64], to: &[AtomicU64]) {
    while *mask != 0 {
        let index = mask.trailing_zeros() as usize;
        *mask &= *mask - 1;
        add_alone(&to[index], core::mem::take(&mut from[index]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_that_of_the_list() {
        let block = PortCounters::default();
        block.add(Counter::SentBytes, 5);
        block.add_drops(DropReason::PortDown, 7);
        for (place, (_, value)) in block.all().enumerate() {
            assert_eq!(block.at(place), Some(value));
        }
        assert_eq!(block.at(COUNTERS + DROPS), None);
    }

    #[test]
    fn a_batch_reaches_the_block_once() {
        let block = PortCounters::default();
        let mut batch = Batch::default();
        batch.count(Counter::SentPackets, 3);
        batch.drop_packet(DropReason::BadIcrc);
        assert_eq!(block.counter(Counter::SentPackets), 0);
        batch.flush(&block);
        batch.flush(&block);
        assert_eq!((block.counter(Counter::SentPackets), block.drops(DropReason::BadIcrc)), (3, 1));
        assert_eq!(block.all_drops(), 1);
    }
}
