//! Step 3 of the walk: which QP sends next, and which timer is due.
//!
//! A round-robin run queue and an indexed heap of deadlines, both keyed by QP index. Idle QPs are in neither, so they
//! cost nothing. Room is made when a QP is created; nothing here allocates afterwards.

use std::collections::VecDeque;

use scalefabric_transport::Time;

/// QPs with something to send, in the order in which they get their turn.
#[derive(Debug, Default)]
pub struct RunQueue {
    queue: VecDeque<u16>,
    queued: Vec<bool>,
}

impl RunQueue {
    /// Makes room for QP indexes below `len`.
    pub fn grow(&mut self, len: usize) {
        if self.queued.len() < len {
            self.queued.resize(len, false);
            self.queue.reserve(len - self.queue.len());
        }
    }

    /// Puts a QP at the end, unless it is in the queue already.
    #[inline]
    pub fn push(&mut self, index: u16) {
        let queued = &mut self.queued[usize::from(index)];
        if !*queued {
            *queued = true;
            self.queue.push_back(index);
        }
    }

    /// Takes the next QP.
    #[inline]
    pub fn pop(&mut self) -> Option<u16> {
        let index = self.queue.pop_front()?;
        self.queued[usize::from(index)] = false;
        Some(index)
    }

    /// QPs that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes a QP out that is being destroyed.
    pub fn remove(&mut self, index: u16) {
        if core::mem::take(&mut self.queued[usize::from(index)]) {
            self.queue.retain(|&i| i != index);
        }
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
