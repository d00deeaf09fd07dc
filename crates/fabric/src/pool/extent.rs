//! Free room of an arena in large pieces: slabs that are cut into blocks, and buffers above 1 MiB. First fit, neighbours joined. Pure data; who
//! uses it holds a lock.

use std::collections::BTreeMap;

/// Pieces are multiples of this: 64 KiB.
pub const GRAIN: usize = 64 << 10;

/// Free pieces by offset.
#[derive(Debug, Default)]
pub struct Extents {
    free: BTreeMap<usize, usize>,
}

impl Extents {
    /// `bytes` of free room.
    pub fn new(bytes: usize) -> Self {
        Self { free: BTreeMap::from([(0, bytes)]) }
    }

    /// Takes `bytes`, a multiple of [`GRAIN`].
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let (&at, &length) = self.free.iter().find(|&(_, &length)| length >= bytes)?;
        self.free.remove(&at);
        if length > bytes {
            self.free.insert(at + bytes, length - bytes);
        }
        Some(at)
    }

    /// Gives a piece back. Whoever gives back what was not taken has lost count: it panics.
    pub fn give(&mut self, at: usize, bytes: usize) {
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &length)) = self.free.range(..at).next_back() {
            assert!(before + length <= at, "{at:#x} is given back twice");
            if before + length == at {
                start = before;
            }
        }
        if let Some((&after, &length)) = self.free.range(at..).next() {
            assert!(after >= end, "{at:#x} is given back twice");
            if after == end {
                self.free.remove(&after);
                end = after + length;
            }
        }
        self.free.insert(start, end - start);
    }

    /// Free bytes.
    pub fn free(&self) -> usize {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random takes and gives against a bit map.
    #[test]
    fn extents_agree_with_a_bit_map() {
        for seed in 1..200_u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut next = |below: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random % below as u64) as usize
            };
            let mut extents = Extents::new(64 * GRAIN);
            let mut map = [false; 64];
            let mut taken = Vec::new();
            for _ in 0..300 {
                if next(2) == 0 {
                    let grains = 1 + next(9);
                    let fits = map.windows(grains).any(|w| w.iter().all(|used| !used));
                    match extents.take(grains * GRAIN) {
                        Some(at) => {
                            let cells = &mut map[at / GRAIN..at / GRAIN + grains];
                            assert!(cells.iter().all(|used| !used), "seed {seed}");
                            cells.fill(true);
                            taken.push((at, grains));
                        }
                        None => assert!(!fits, "seed {seed}: there was room"),
                    }
                } else if !taken.is_empty() {
                    let (at, grains) = taken.swap_remove(next(taken.len()));
                    extents.give(at, grains * GRAIN);
                    map[at / GRAIN..at / GRAIN + grains].fill(false);
                }
                assert_eq!(extents.free(), map.iter().filter(|used| !**used).count() * GRAIN, "seed {seed}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_piece_that_is_given_back_twice_is_noticed() {
        let mut extents = Extents::new(4 * GRAIN);
        let at = extents.take(GRAIN).unwrap();
        extents.give(at, GRAIN);
        extents.give(at, GRAIN);
    }
}
