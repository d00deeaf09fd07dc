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
