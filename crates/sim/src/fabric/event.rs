//! The event queue: a timing wheel for what comes soon, a heap for what comes late. Events leave in the order of their times, and those of one moment in
//! the order in which they were put in; a plain binary heap with sequence numbers is the oracle of the tests.
//!
//! No allocation in steady state: the places of events that left are used again.

use super::time::Ps;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Slots of the wheel, a power of two.
const SLOTS: usize = 1 << 15;
const MASK: u64 = SLOTS as u64 - 1;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node<T> {
    at: Ps,
    next: u32,
    event: T,
}

struct Late<T> {
    at: Ps,
    sequence: u64,
    event: T,
}

impl<T> PartialEq for Late<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Late<T> {}

impl<T> PartialOrd for Late<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Late<T> {
    /// The earliest is the greatest: [`BinaryHeap`] gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// Events in the order of time.
pub struct EventQueue<T> {
    /// A slot holds 2^shift picoseconds.
    shift: u32,
    /// The number of the slot whose events are in `due`, counted from time 0.
    slot: u64,
    /// The newest event of each slot; older ones follow.
    heads: Vec<u32>,
    /// One bit for each slot that holds something, and one for each word of those bits.
    occupied: Vec<u64>,
    summary: Vec<u64>,
    nodes: Vec<Node<T>>,
    free: u32,
    /// Events in the wheel.
    in_wheel: usize,
    /// The events of the present slot in order; those before `taken` have left.
    due: Vec<(Ps, T)>,
    taken: usize,
    late: BinaryHeap<Late<T>>,
    sequence: u64,
}

impl<T: Copy> EventQueue<T> {
    /// An empty queue. `width` is about the time between two events: a slot gets the next power of two above it.
    pub fn new(width: Ps) -> Self {
        let shift = 64 - width.0.clamp(16, 1 << 24).leading_zeros();
        Self {
            shift,
            slot: 0,
            heads: vec![NONE; SLOTS],
            occupied: vec![0; SLOTS / 64],
            summary: vec![0; SLOTS / 4096],
            nodes: Vec::new(),
            free: NONE,
            in_wheel: 0,
            due: Vec::new(),
            taken: 0,
            late: BinaryHeap::new(),
            sequence: 0,
        }
    }

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.in_wheel + self.late.len() + self.due.len() - self.taken
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts an event in. One in the past leaves next.
    #[inline]
    pub fn push(&mut self, at: Ps, event: T) {
        let slot = at.0 >> self.shift;
        if slot <= self.slot {
            let mut place = self.due.len();
            while place > self.taken && self.due[place - 1].0 > at {
                place -= 1;
            }
            self.due.insert(place, (at, event));
        } else if slot - self.slot < SLOTS as u64 {
            self.link(slot, at, event);
        } else {
            self.sequence += 1;
            self.late.push(Late { at, sequence: self.sequence, event });
        }
    }

    /// The time of the next event.
    pub fn peek(&mut self) -> Option<Ps> {
        if self.taken == self.due.len() && !self.turn() {
            return None;
        }
        Some(self.due[self.taken].0)
    }

    /// Takes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ps, T)> {
        if self.taken == self.due.len() && !self.turn() {
            return None;
        }
        let event = self.due[self.taken];
        self.taken += 1;
        Some(event)
    }

    fn link(&mut self, slot: u64, at: Ps, event: T) {
        let index = (slot & MASK) as usize;
        let node = Node { at, next: self.heads[index], event };
        let place = self.free;
        if place == NONE {
            self.heads[index] = self.nodes.len() as u32;
            self.nodes.push(node);
        } else {
            self.free = self.nodes[place as usize].next;
            self.nodes[place as usize] = node;
            self.heads[index] = place;
        }
        self.occupied[index / 64] |= 1 << (index % 64);
        self.summary[index / 4096] |= 1 << (index / 64 % 64);
        self.in_wheel += 1;
    }

    /// Turns to the next slot that holds something; false if there is none.
    fn turn(&mut self) -> bool {
        self.due.clear();
        self.taken = 0;
        self.slot = match (self.in_wheel > 0, self.late.peek()) {
            (true, _) => self.next_occupied(),
            (false, Some(late)) => late.at.0 >> self.shift,
            (false, None) => return false,
        };
        // What the heap holds of slots that the wheel can hold now: nothing can have been linked there before it.
        while let Some(late) = self.late.peek() {
            let slot = late.at.0 >> self.shift;
            if slot - self.slot >= SLOTS as u64 {
                break;
            }
            if let Some(Late { at, event, .. }) = self.late.pop() {
                self.link(slot, at, event);
            }
        }
        let index = (self.slot & MASK) as usize;
        let mut place = std::mem::replace(&mut self.heads[index], NONE);
        while place != NONE {
            let node = self.nodes[place as usize];
            self.due.push((node.at, node.event));
            self.nodes[place as usize].next = self.free;
            self.free = place;
            place = node.next;
        }
        self.in_wheel -= self.due.len();
        self.occupied[index / 64] &= !(1 << (index % 64));
        if self.occupied[index / 64] == 0 {
            self.summary[index / 4096] &= !(1 << (index / 64 % 64));
        }
        self.due.reverse();
        // Stable: events of one moment stay in the order of their coming.
        self.due.sort_by_key(|(at, _)| *at);
        true
    }

    /// The first slot after the present one that holds something. Only called if there is one.
    fn next_occupied(&self) -> u64 {
        let from = ((self.slot + 1) & MASK) as usize;
        let found = self.scan(from).or_else(|| self.scan(0)).unwrap_or(from);
        self.slot + 1 + ((found as u64).wrapping_sub(from as u64) & MASK)
    }

    fn scan(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let rest = self.occupied[word] & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let next = word + 1;
        let mut group = next / 64;
        let mut mask = if next.is_multiple_of(64) { u64::MAX } else { u64::MAX << (next % 64) };
        while group < self.summary.len() {
            let words = self.summary[group] & mask;
            if words != 0 {
                let word = group * 64 + words.trailing_zeros() as usize;
                return Some(word * 64 + self.occupied[word].trailing_zeros() as usize);
            }
            group += 1;
            mask = u64::MAX;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::cmp::Reverse;

    /// The simple twin.
    #[derive(Default)]
    struct Oracle {
        heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
        sequence: u64,
    }

    impl Oracle {
        fn push(&mut self, at: Ps, event: u32) {
            self.sequence += 1;
            self.heap.push(Reverse((at.0, self.sequence, event)));
        }
        fn pop(&mut self) -> Option<(Ps, u32)> {
            self.heap.pop().map(|Reverse((at, _, event))| (Ps(at), event))
        }
    }

    #[test]
    fn order_is_that_of_a_heap_with_sequence_numbers() {
        for seed in 0..40 {
            let mut random = Random::new(seed, 0);
            let width = Ps(1 << random.range(4, 14));
            let (mut queue, mut oracle) = (EventQueue::new(width), Oracle::default());
            let mut now = Ps::ZERO;
            for event in 0..20_000_u32 {
                // Many of one moment, some soon, few so late that they go through the heap, in phases that fill and drain.
                let span = match random.below(10) {
                    0 => 0,
                    1..=6 => random.below(width.0 * 64),
                    7 | 8 => random.below(width.0 * SLOTS as u64),
                    _ => random.below(width.0 * SLOTS as u64 * 8),
                };
                let at = now + Ps(span / 8 * 8);
                queue.push(at, event);
                oracle.push(at, event);
                let pops = if event / 2_000 % 2 == 0 { u64::from(random.chance(500_000)) } else { random.below(3) };
                for _ in 0..pops {
                    let (got, expected) = (queue.pop(), oracle.pop());
                    assert_eq!(got, expected, "seed {seed}");
                    now = got.map_or(now, |(at, _)| at);
                }
                assert_eq!(queue.len(), oracle.heap.len(), "seed {seed}");
            }
            while let Some(expected) = oracle.pop() {
                assert_eq!(queue.peek(), Some(expected.0), "seed {seed}");
                assert_eq!(queue.pop(), Some(expected), "seed {seed}");
            }
            assert!(queue.pop().is_none() && queue.is_empty());
        }
    }

    #[test]
    fn places_are_used_again() {
        let mut queue = EventQueue::new(Ps(1000));
        for round in 0..100_000_u64 {
            queue.push(Ps(round * 5_000 + 100_000), round as u32);
            if round >= 10 {
                queue.pop();
            }
        }
        assert!(queue.nodes.len() < 64, "{}", queue.nodes.len());
    }
}
