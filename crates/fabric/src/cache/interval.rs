//! A map of ranges that do not overlap, sorted in one piece of memory: found by bisection, and taken out without allocating or freeing anything, which
//! the thread that hears of vanished memory may not do. Pure data.

/// Values by half-open ranges of addresses.
#[derive(Debug)]
pub struct IntervalMap<T> {
    slots: Vec<Slot<T>>,
}

#[derive(Debug)]
struct Slot<T> {
    start: usize,
    end: usize,
    value: T,
}

impl<T> IntervalMap<T> {
    /// An empty map.
    pub const fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// Adds a range that overlaps none; panics if it does.
    pub fn insert(&mut self, start: usize, end: usize, value: T) {
        let at = self.slots.partition_point(|slot| slot.end <= start);
        let is_free = start < end && self.slots.get(at).is_none_or(|slot| slot.start >= end);
        assert!(is_free, "{start:#x}..{end:#x} overlaps a range of the map");
        self.slots.insert(at, Slot { start, end, value });
    }

    /// Takes out all that overlap `start..end`, in order. Frees nothing.
    pub fn remove_overlapping(&mut self, start: usize, end: usize, mut taken: impl FnMut(T)) {
        if start < end {
            let from = self.slots.partition_point(|slot| slot.end <= start);
            let to = self.slots.partition_point(|slot| slot.start < end);
            self.slots.drain(from..to).for_each(|slot| taken(slot.value));
        }
    }

    /// The value whose range holds all of `start..end`.
    pub fn covering(&self, start: usize, end: usize) -> Option<&T> {
        let at = self.slots.partition_point(|slot| slot.end <= start);
        self.slots.get(at).filter(|slot| slot.start <= start && slot.end >= end).map(|slot| &slot.value)
    }

    /// `start..end`, joined with all that overlap it, and then with neighbours that touch it as long as the whole has at most `touching_bytes`.
    pub fn joined(&self, mut start: usize, mut end: usize, touching_bytes: usize) -> (usize, usize) {
        let mut from = self.slots.partition_point(|slot| slot.end <= start);
        let mut to = self.slots.partition_point(|slot| slot.start < end);
        if from < to {
            start = start.min(self.slots[from].start);
            end = end.max(self.slots[to - 1].end);
        }
        loop {
            let before = from.checked_sub(1).map(|at| &self.slots[at]).filter(|slot| slot.end == start);
            if let Some(before) = before.filter(|slot| end - slot.start <= touching_bytes) {
                start = before.start;
                from -= 1;
                continue;
            }
            let after = self.slots.get(to).filter(|slot| slot.start == end);
            if let Some(after) = after.filter(|slot| slot.end - start <= touching_bytes) {
                end = after.end;
                to += 1;
                continue;
            }
            return (start, end);
        }
    }

    /// Whether any range overlaps `start..end`.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        let at = self.slots.partition_point(|slot| slot.end <= start);
        self.slots.get(at).is_some_and(|slot| slot.start < end)
    }

    /// All values, in order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &slot.value)
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 48;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(usize, usize),
        Remove(usize, usize),
    }

    fn range() -> impl Strategy<Value = (usize, usize)> {
        (0..PAGES, 1..9_usize).prop_map(|(start, length)| (start, (start + length).min(PAGES)))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => range().prop_map(|(start, end)| Step::Insert(start, end)),
            3 => range().prop_map(|(start, end)| Step::Remove(start, end)),
        ]
    }

    /// The model: for each page the number of the range that holds it.
    type Model = [Option<usize>; PAGES];

    fn extent(model: &Model, id: usize) -> (usize, usize) {
        let first = model.iter().position(|page| *page == Some(id)).unwrap();
        (first, first + model.iter().filter(|page| **page == Some(id)).count())
    }

    fn model_joined(model: &Model, mut start: usize, mut end: usize, touching: usize) -> (usize, usize) {
        let inside: Vec<usize> = model[start..end].iter().flatten().copied().collect();
        for id in inside {
            let (first, last) = extent(model, id);
            (start, end) = (start.min(first), end.max(last));
        }
        loop {
            if let Some(id) = start.checked_sub(1).and_then(|page| model[page])
                && end - extent(model, id).0 <= touching
            {
                start = extent(model, id).0;
            } else if let Some(id) = model.get(end).copied().flatten()
                && extent(model, id).1 - start <= touching
            {
                end = extent(model, id).1;
            } else {
                return (start, end);
            }
        }
    }

    proptest! {
        #[test]
        fn the_map_agrees_with_a_page_table(steps in prop::collection::vec(step(), 1..60), asked in range(), touching in 0..20_usize) {
            let mut map = IntervalMap::new();
            let mut model: Model = [None; PAGES];
            for (id, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(start, end) => {
                        if model[start..end].iter().all(Option::is_none) {
                            map.insert(start, end, id);
                            model[start..end].fill(Some(id));
                        }
                    }
                    Step::Remove(start, end) => {
                        let mut taken = Vec::new();
                        map.remove_overlapping(start, end, |id| taken.push(id));
                        let mut expected: Vec<usize> = model[start..end].iter().flatten().copied().collect();
                        expected.dedup();
                        prop_assert_eq!(&taken, &expected);
                        model.iter_mut().for_each(|page| *page = page.filter(|id| !taken.contains(id)));
                    }
                }
            }
            let (start, end) = asked;
            let holder = model[start].filter(|id| model[start..end].iter().all(|page| page == &Some(*id)));
            prop_assert_eq!(map.covering(start, end).copied(), holder);
            prop_assert_eq!(map.joined(start, end, touching), model_joined(&model, start, end, touching));
            prop_assert_eq!(map.overlaps(start, end), model[start..end].iter().any(Option::is_some));
            let mut ids: Vec<usize> = model.iter().flatten().copied().collect();
            ids.dedup();
            prop_assert_eq!(map.values().copied().collect::<Vec<_>>(), ids);
            prop_assert_eq!(map.len(), map.values().count());
        }
    }
}
