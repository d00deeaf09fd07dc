//! Chance from a seed: SplitMix64, the same on every machine. Nothing in this crate takes chance from elsewhere.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed. `stream` keeps the users of one seed apart, so that one more draw here changes nothing there.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        random.next();
        random
    }

    /// 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number of `from..=to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True `ppm` times in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// One of a list that is not empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
}

/// A good mixing of 64 bits.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `out` with the bytes that belong to `key`, from their `offset` on: what every payload is made of.
pub fn fill(key: u64, offset: usize, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        let at = offset + i;
        *byte = (key.wrapping_add((at as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> (8 * (at % 8))) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_stream() {
        let draw = |seed, stream| Random::new(seed, stream).next();
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(2, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
    }

    #[test]
    fn pieces_of_a_payload_fit_together() {
        let (mut whole, mut pieces) = ([0; 50], [0; 50]);
        fill(7, 0, &mut whole);
        fill(7, 0, &mut pieces[..13]);
        fill(7, 13, &mut pieces[13..]);
        assert_eq!(whole, pieces);
    }

    #[test]
    fn chances_are_kept() {
        let mut random = Random::new(5, 0);
        let hits = (0..100_000).filter(|_| random.chance(50_000)).count();
        assert!((4_500..5_500).contains(&hits), "{hits}");
        assert!(!random.chance(0));
        assert!((0..1000).all(|_| random.chance(1_000_000)));
        assert!((0..1000).all(|_| (3..=5).contains(&random.range(3, 5))));
    }
}
