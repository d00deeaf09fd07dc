//! Step 3 of the walk: how much may be under way to one destination, of all QPs together.
//!
//! Each QP has a window of its own, and a thousand of them that post at once overrun the receive buffer that they share: the peer's with
//! requests, their own with the answers. So a QP whose destination has as much under way as a buffer is sure to hold waits here, in the order
//! of coming, until ACKs, NAKs or timers give back what others have. Destinations share 64 lanes; two that share one hold each other up,
//! which costs speed only where both are full. Nothing here allocates after the start, and nothing looks at the protocol.

use scalefabric_wire::Gid;

/// Lanes; each has a bit in a word.
const LANES: usize = 64;

/// What a QP has under way, as it is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    lane: u8,
    bytes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    under_way: u64,
    first: u16,
    last: u16,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: u16,
    behind: u16,
    lane: u8,
    queued: bool,
}

/// The windows of all destinations, and the QPs that wait for one.
#[derive(Debug)]
pub struct Windows {
    limit: u64,
    lanes: [Lane; LANES],
    /// By QP index. Index 0 is no QP: it ends a queue.
    links: Vec<Link>,
    /// Lanes that got room since QPs began to wait in them.
    open: u64,
}

impl Windows {
    /// At most `limit` bytes to each destination; `u64::MAX`: no limit.
    pub fn new(limit: u64) -> Self {
        Self { limit, lanes: [Lane::default(); LANES], links: Vec::new(), open: 0 }
    }

    /// Makes room for QP indexes below `len`.
    pub fn grow(&mut self, len: usize) {
        if self.limit != u64::MAX && self.links.len() < len {
            self.links.resize(len, Link::default());
        }
    }

    /// What a QP has is from now on on its way to `dst`.
    pub fn lead(&mut self, part: &mut Part, dst: Gid) {
        let bytes = part.bytes;
        self.settle(part, 0);
        let [low, high] = [0, 8].map(|at| dst.0[at..at + 8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)));
        part.lane = ((low ^ high).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u8;
        self.settle(part, bytes);
    }

    /// How much a QP may have under way, beside what others have: once it has as much, it waits.
    #[inline]
    pub fn room(&self, part: Part) -> u32 {
        let others = self.lanes[usize::from(part.lane)].under_way - u64::from(part.bytes);
        self.limit.saturating_sub(others).min(u64::from(u32::MAX)) as u32
    }

    /// The QP has so much under way now.
    #[inline]
    pub fn settle(&mut self, part: &mut Part, bytes: u32) {
        if part.bytes == bytes {
            return;
        }
        let lane = &mut self.lanes[usize::from(part.lane)];
        lane.under_way = lane.under_way - u64::from(part.bytes) + u64::from(bytes);
        if lane.first != 0 && lane.under_way < self.limit {
            self.open |= 1 << part.lane;
        }
        part.bytes = bytes;
    }

    /// The QP found no room: it waits, unless it does so already.
    pub fn wait(&mut self, index: u16, part: Part) {
        debug_assert_ne!(index, 0, "no QP has index 0");
        if self.links.get(usize::from(index)).is_none_or(|link| link.queued) {
            return;
        }
        let lane = &mut self.lanes[usize::from(part.lane)];
        let before = core::mem::replace(&mut lane.last, index);
        if before == 0 {
            lane.first = index;
        } else {
            self.links[usize::from(before)].behind = index;
        }
        let is_open = lane.under_way < self.limit;
        self.links[usize::from(index)] = Link { before, behind: 0, lane: part.lane, queued: true };
        // It found none in the middle of a turn, in which others gave some back.
        self.open |= u64::from(is_open) << part.lane;
    }

    /// Takes a QP for which there is room now.
    #[inline]
    pub fn pop(&mut self) -> Option<u16> {
        while self.open != 0 {
            let at = self.open.trailing_zeros() as usize;
            let lane = self.lanes[at];
            if lane.first != 0 && lane.under_way < self.limit {
                self.remove(lane.first);
                return Some(lane.first);
            }
            self.open &= self.open - 1;
        }
        None
    }

    /// Whether [`Windows::pop`] may give one.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open != 0
    }

    /// Takes a QP out, if it waits.
    pub fn remove(&mut self, index: u16) {
        let Some(link) = self.links.get_mut(usize::from(index)).filter(|link| link.queued) else { return };
        let Link { before, behind, lane, .. } = core::mem::take(link);
        let lane = &mut self.lanes[usize::from(lane)];
        match before {
            0 => lane.first = behind,
            before => self.links[usize::from(before)].behind = behind,
        }
        match behind {
            0 => lane.last = before,
            behind => self.links[usize::from(behind)].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn without_a_limit_there_is_always_room_and_nobody_waits() {
        let mut windows = Windows::new(u64::MAX);
        windows.grow(8);
        let mut part = Part::default();
        windows.settle(&mut part, u32::MAX);
        assert_eq!(windows.room(Part::default()), u32::MAX);
        windows.wait(3, part);
        assert!(!windows.is_open() && windows.pop().is_none());
    }

    #[test]
    fn what_one_has_is_no_room_for_another_until_it_comes_back() {
        let mut windows = Windows::new(1000);
        windows.grow(8);
        let (mut one, mut two) = (Part::default(), Part::default());
        windows.settle(&mut one, 900);
        assert_eq!((windows.room(one), windows.room(two)), (1000, 100));
        windows.settle(&mut two, 150);
        assert_eq!((windows.room(one), windows.room(two)), (850, 100));
        windows.wait(1, one);
        windows.wait(2, two);
        windows.wait(1, one);
        assert_eq!(windows.pop(), None, "1,050 of 1,000 are under way");
        windows.settle(&mut one, 100);
        assert_eq!([windows.pop(), windows.pop(), windows.pop()], [Some(1), Some(2), None]);
    }

    #[test]
    fn destinations_of_two_lanes_do_not_wait_for_each_other() {
        let mut windows = Windows::new(1000);
        windows.grow(8);
        let to = |last| Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]);
        let (mut one, mut two) = (Part::default(), Part::default());
        windows.lead(&mut one, to(1));
        windows.settle(&mut one, 1000);
        let other = (2..=255).find(|last| {
            windows.lead(&mut two, to(*last));
            two.lane != one.lane
        });
        assert!(other.is_some() && windows.room(two) == 1000);
        windows.wait(1, one);
        windows.settle(&mut two, 5);
        assert_eq!(windows.pop(), None);
        // It goes somewhere else: what it has goes with it.
        windows.lead(&mut one, to(other.unwrap()));
        assert_eq!((windows.room(two), windows.pop()), (0, Some(1)));
    }

    #[test]
    fn the_queues_agree_with_lists() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut windows = Windows::new(100);
        windows.grow(16);
        let mut parts: Vec<Part> = (0..16).map(|index| Part { lane: index % 3, bytes: 0 }).collect();
        let mut twins = [(); 3].map(|()| VecDeque::new());
        for step in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let index = (x >> 8) as u16 % 15 + 1;
            let part = &mut parts[usize::from(index)];
            let lane = usize::from(part.lane);
            match x % 4 {
                0 => windows.settle(part, (x >> 20) as u32 % 30),
                1 => {
                    windows.wait(index, *part);
                    if !twins[lane].contains(&index) {
                        twins[lane].push_back(index);
                    }
                }
                2 => {
                    windows.remove(index);
                    twins[lane].retain(|other| *other != index);
                }
                _ => {
                    let sum = |lane| parts.iter().filter(|part| part.lane == lane).map(|part| part.bytes).sum::<u32>();
                    let first = (0..3).find(|lane| sum(*lane) < 100 && !twins[usize::from(*lane)].is_empty());
                    let expected = first.and_then(|lane| twins[usize::from(lane)].pop_front());
                    assert_eq!(windows.pop(), expected, "step {step}");
                }
            }
        }
    }
}
