//! Ranges that a thread is discarding (`madvise`). The kernel tells of it *before* it happens and then lets the thread go on, so a registration made in
//! between would keep pages that are thrown away a moment later. Such ranges are not kept until every thread that could be in that call has been seen
//! elsewhere. Data only; adding neither allocates nor frees.

use std::collections::BTreeSet;

/// Most ranges that are told apart; one more, and everything is in quarantine.
const RANGES: usize = 4096;

#[derive(Debug)]
pub struct Quarantine {
    ranges: Vec<Range>,
    /// There were too many to tell apart.
    is_all: bool,
    /// Counts ranges.
    serial: u64,
    /// A round of looking at threads: the serial of the last range that it covers, and the threads not seen elsewhere since.
    round: Option<(u64, BTreeSet<u32>)>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    end: usize,
    serial: u64,
}

impl Quarantine {
    pub fn new() -> Self {
        Self { ranges: Vec::with_capacity(RANGES), is_all: false, serial: 0, round: None }
    }

    /// A thread is about to discard `start..end`.
    pub fn add(&mut self, start: usize, end: usize) {
        self.serial += 1;
        let serial = self.serial;
        // Ranges are not joined: one that grows would never be over.
        if let Some(same) = self.ranges.iter_mut().find(|range| range.start >= start && range.end <= end) {
            *same = Range { start, end, serial };
        } else if self.ranges.len() < RANGES {
            self.ranges.push(Range { start, end, serial });
        } else {
            self.is_all = true;
        }
    }

    /// Threads may be discarding anything.
    pub fn add_all(&mut self) {
        self.serial += 1;
        self.is_all = true;
    }

    /// Number of ranges that were ever added.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    pub fn holds(&self, start: usize, end: usize) -> bool {
        self.is_all || self.ranges.iter().any(|range| range.start < end && range.end > start)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.is_all
    }

    /// Bytes; `usize::MAX` for everything.
    pub fn bytes(&self) -> usize {
        if self.is_all { usize::MAX } else { self.ranges.iter().map(|range| range.end - range.start).sum() }
    }

    /// Starts a round if none is under way: `threads` are all threads there are now. Returns the serial of the last range that
    /// the round covers, and the threads to be looked at.
    pub fn threads_to_see(&mut self, threads: impl FnOnce() -> BTreeSet<u32>) -> (u64, Vec<u32>) {
        if self.round.is_none() && !self.is_empty() {
            self.round = Some((self.serial, threads()));
        }
        let Some((serial, unseen)) = &self.round else { return (0, Vec::new()) };
        (*serial, unseen.iter().copied().collect())
    }

    /// This thread is gone, or was seen where it discards nothing.
    pub fn saw_elsewhere(&mut self, thread: u32) {
        let Some((serial, unseen)) = &mut self.round else { return };
        unseen.remove(&thread);
        if unseen.is_empty() {
            let serial = *serial;
            self.round = None;
            self.ranges.retain(|range| range.serial > serial);
            // Which ranges did not fit in, nobody knows: only a round that covers the last one covers them all.
            self.is_all &= self.serial > serial;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_free_when_all_threads_of_its_time_were_seen_elsewhere() {
        let mut quarantine = Quarantine::new();
        quarantine.add(100, 200);
        assert!(quarantine.holds(150, 160) && quarantine.holds(0, 101) && !quarantine.holds(200, 300));
        assert_eq!(quarantine.threads_to_see(|| BTreeSet::from([1, 2])), (1, vec![1, 2]));
        quarantine.saw_elsewhere(2);
        // What comes during a round waits for the next one; threads that are new meanwhile do not matter.
        quarantine.add(500, 600);
        assert_eq!(quarantine.threads_to_see(|| BTreeSet::from([1, 2, 3])), (1, vec![1]));
        assert!(quarantine.holds(150, 160));
        quarantine.saw_elsewhere(1);
        assert!(!quarantine.holds(150, 160) && quarantine.holds(550, 551));
        assert_eq!(quarantine.threads_to_see(|| BTreeSet::from([1, 2, 3])), (2, vec![1, 2, 3]));
        [1, 2, 3].into_iter().for_each(|thread| quarantine.saw_elsewhere(thread));
        assert!(quarantine.is_empty() && !quarantine.holds(0, usize::MAX));
    }

    #[test]
    fn a_range_that_is_discarded_again_waits_again() {
        let mut quarantine = Quarantine::new();
        quarantine.add(100, 200);
        quarantine.threads_to_see(|| BTreeSet::from([1]));
        quarantine.add(100, 200);
        quarantine.saw_elsewhere(1);
        assert!(quarantine.holds(100, 200));
    }

    #[test]
    fn too_many_ranges_are_everything_until_a_round_sees_the_last() {
        let mut quarantine = Quarantine::new();
        (0..=RANGES).for_each(|index| quarantine.add(index * 10 + 1, index * 10 + 2));
        assert!(quarantine.holds(usize::MAX - 1, usize::MAX));
        quarantine.threads_to_see(|| BTreeSet::from([1]));
        quarantine.saw_elsewhere(1);
        assert!(!quarantine.holds(usize::MAX - 1, usize::MAX));
    }
}
