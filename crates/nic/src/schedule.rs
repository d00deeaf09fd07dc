//! Step 3 of the walk: which QP sends next, and which timer is due.
//!
//! A round-robin run queue and an indexed heap of deadlines, both keyed by QP index. Idle QPs are in neither, so they
//! cost nothing. Room is made when a QP is created; nothing here allocates afterwards.

use scalefabric_transport::Time;

/// A QP's place in the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: u16,
    behind: u16,
    queued: bool,
}

/// QPs with something to send, in the order in which they get their turn. A ring of links: whoever leaves it from the middle costs
/// the same, however many wait.
#[derive(Debug)]
pub struct RunQueue {
    /// By QP index. Index 0 is no QP: it closes the ring.
    links: Vec<Link>,
    len: usize,
}

impl Default for RunQueue {
    fn default() -> Self {
        Self { links: vec![Link::default()], len: 0 }
    }
}

impl RunQueue {
    /// Makes room for QP indexes below `len`.
    pub fn grow(&mut self, len: usize) {
        if self.links.len() < len {
            self.links.resize(len, Link::default());
        }
    }

    /// Puts a QP at the end, unless it is in the queue already.
    #[inline]
    pub fn push(&mut self, index: u16) {
        debug_assert_ne!(index, 0, "no QP has index 0");
        if self.links[usize::from(index)].queued {
            return;
        }
        let last = self.links[0].before;
        self.links[usize::from(index)] = Link { before: last, behind: 0, queued: true };
        self.links[usize::from(last)].behind = index;
        self.links[0].before = index;
        self.len += 1;
    }

    /// Takes the next QP.
    #[inline]
    pub fn pop(&mut self) -> Option<u16> {
        let index = self.links[0].behind;
        (index != 0).then(|| {
            self.take(index);
            index
        })
    }

    /// QPs that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a QP out that is being destroyed.
    pub fn remove(&mut self, index: u16) {
        if self.links[usize::from(index)].queued {
            self.take(index);
        }
    }

    #[inline]
    fn take(&mut self, index: u16) {
        let Link { before, behind, .. } = core::mem::take(&mut self.links[usize::from(index)]);
        self.links[usize::from(before)].behind = behind;
        self.links[usize::from(behind)].before = before;
        self.len -= 1;
    }
}

/// Where a QP is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// Deadlines: a binary heap in which each QP has at most one entry, and knows its place.
///
/// Acknowledgements push a deadline back far more often than timers run out, so [`Timers::arm`] leaves an entry that is too
/// early where it is; when it comes up, the owner looks at the true deadline and arms again.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Vec<(Time, u16)>,
    place: Vec<u32>,
}

impl Timers {
    /// Makes room for QP indexes below `len`.
    pub fn grow(&mut self, len: usize) {
        if self.place.len() < len {
            self.place.resize(len, NOWHERE);
            self.heap.reserve(len - self.heap.len());
        }
    }

    /// Asks to be woken at `at` or earlier.
    #[inline]
    pub fn arm(&mut self, index: u16, at: Time) {
        let place = self.place[usize::from(index)];
        if place == NOWHERE {
            self.heap.push((at, index));
            self.place[usize::from(index)] = (self.heap.len() - 1) as u32;
            self.up(self.heap.len() - 1);
        } else if at < self.heap[place as usize].0 {
            self.heap[place as usize].0 = at;
            self.up(place as usize);
        }
    }

    /// The earliest entry; a true deadline may be later.
    #[inline]
    pub fn first(&self) -> Option<Time> {
        self.heap.first().map(|e| e.0)
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if no QP waits for a time.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Takes an entry that is due.
    #[inline]
    pub fn pop_due(&mut self, now: Time) -> Option<u16> {
        let &(at, index) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.take(0);
        Some(index)
    }

    /// Takes a QP out that is being destroyed.
    pub fn remove(&mut self, index: u16) {
        let place = self.place[usize::from(index)];
        if place != NOWHERE {
            self.take(place as usize);
        }
    }

    fn take(&mut self, place: usize) {
        let (_, index) = self.heap.swap_remove(place);
        self.place[usize::from(index)] = NOWHERE;
        if place < self.heap.len() {
            self.place[usize::from(self.heap[place].1)] = place as u32;
            self.down(place);
            self.up(place);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[usize::from(self.heap[a].1)] = a as u32;
        self.place[usize::from(self.heap[b].1)] = b as u32;
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            // Equal times leave in the order of QP indexes: a run in virtual time must repeat exactly.
            if self.heap[parent] <= self.heap[at] {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            if left < self.heap.len() && self.heap[left] < self.heap[least] {
                least = left;
            }
            if right < self.heap.len() && self.heap[right] < self.heap[least] {
                least = right;
            }
            if least == at {
                break;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_queued_qp_is_not_queued_twice() {
        let mut q = RunQueue::default();
        q.grow(4);
        q.push(2);
        q.push(1);
        q.push(2);
        assert_eq!((q.pop(), q.pop(), q.pop()), (Some(2), Some(1), None));
    }

    #[test]
    fn a_removed_qp_gets_no_turn() {
        let mut q = RunQueue::default();
        q.grow(4);
        q.push(2);
        q.push(3);
        q.remove(2);
        assert_eq!((q.pop(), q.pop()), (Some(3), None));
    }

    #[test]
    fn the_queue_agrees_with_a_list() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let (mut queue, mut twin) = (RunQueue::default(), Vec::new());
        queue.grow(16);
        for step in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let index = (x >> 8) as u16 % 15 + 1;
            match x % 4 {
                0 | 1 => {
                    queue.push(index);
                    if !twin.contains(&index) {
                        twin.push(index);
                    }
                }
                2 => {
                    queue.remove(index);
                    twin.retain(|other| *other != index);
                }
                _ => {
                    let first = (!twin.is_empty()).then(|| twin.remove(0));
                    assert_eq!(queue.pop(), first, "step {step}");
                }
            }
            assert_eq!((queue.len(), queue.is_empty()), (twin.len(), twin.is_empty()), "step {step}");
        }
    }

    #[test]
    fn timers_agree_with_a_sorted_map() {
        // A multiplicative generator is enough here: the twin is exact, and every step is checked.
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let (mut timers, mut twin) = (Timers::default(), BTreeMap::new());
        timers.grow(64);
        for step in 0..20_000 {
            let (index, at) = ((next() % 64) as u16, Time(next() % 1000));
            match next() % 4 {
                0 | 1 => {
                    timers.arm(index, at);
                    let entry = twin.entry(index).or_insert(at);
                    *entry = (*entry).min(at);
                }
                2 => {
                    timers.remove(index);
                    twin.remove(&index);
                }
                _ => {
                    let due = twin.iter().map(|(&i, &t)| (t, i)).min().filter(|&(t, _)| t <= at).map(|(_, i)| i);
                    assert_eq!(timers.pop_due(at), due, "step {step}");
                    if let Some(index) = due {
                        twin.remove(&index);
                    }
                }
            }
            assert_eq!(timers.first(), twin.values().min().copied(), "step {step}");
        }
    }
}
