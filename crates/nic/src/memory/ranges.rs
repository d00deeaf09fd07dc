//! Free ranges of something long: given out first fit, joined again when they come back. It touches nothing.

use std::collections::BTreeMap;

/// What is free: offset to length. Neighbours are always joined.
#[derive(Debug)]
pub(super) struct Ranges {
    free: BTreeMap<usize, usize>,
    size: usize,
}

impl Ranges {
    /// All of it is free.
    pub fn new(size: usize) -> Self {
        Self { free: BTreeMap::from([(0, size)]), size }
    }

    /// The first range that is long enough.
    pub fn take(&mut self, length: usize) -> Option<usize> {
        let (&offset, &size) = self.free.iter().find(|&(_, &size)| size >= length)?;
        self.free.remove(&offset);
        if size > length {
            self.free.insert(offset + length, size - length);
        }
        Some(offset)
    }

    /// The first place at a multiple of `align` with so much room.
    pub fn take_aligned(&mut self, length: usize, align: usize) -> Option<usize> {
        let place = |start: usize, size: usize| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(length)? <= start + size).then_some(at)
        };
        let (start, size, at) =
            self.free.iter().find_map(|(&start, &size)| Some((start, size, place(start, size)?)))?;
        self.free.remove(&start);
        for (from, to) in [(start, at), (at + length, start + size)] {
            if to > from {
                self.free.insert(from, to - from);
            }
        }
        Some(at)
    }

    /// Takes a range back.
    pub fn give_back(&mut self, offset: usize, length: usize) {
        let (mut start, mut end) = (offset, offset + length);
        if let Some((&before, &size)) = self.free.range(..offset).next_back()
            && before + size == offset
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(size) = self.free.remove(&end) {
            end += size;
        }
        self.free.insert(start, end - start);
    }

    /// Nothing is given out.
    pub fn is_whole(&self) -> bool {
        self.free.get(&0) == Some(&self.size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_aligned_place_leaves_what_lies_before_and_behind_it() {
        let mut ranges = Ranges::new(100);
        assert_eq!(
            (ranges.take(3), ranges.take_aligned(20, 16), ranges.take_aligned(20, 16)),
            (Some(0), Some(16), Some(48))
        );
        assert_eq!((ranges.take(13), ranges.take(12), ranges.take_aligned(64, 16)), (Some(3), Some(36), None));
        ranges.give_back(16, 20);
        assert_eq!(ranges.take_aligned(20, 16), Some(16), "the hole is as good as new");
    }

    #[test]
    fn neighbours_join_in_any_order() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]] {
            let mut ranges = Ranges::new(30);
            let taken = [10, 10, 10].map(|length| ranges.take(length).expect("room"));
            assert_eq!((taken, ranges.take(1)), ([0, 10, 20], None));
            order.iter().for_each(|&i| ranges.give_back(taken[i], 10));
            assert!(ranges.is_whole());
        }
    }
}
