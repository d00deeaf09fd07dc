//! Keys that cannot be guessed: 24 bits of scrambled slot number and 8 bits of variant, as in mlx5.
//!
//! The scrambling is a secret permutation of 24 bits, so that a key tells nothing about its neighbours, and 100,000
//! regions lie scattered over 2^32 keys. A slot's variants run through all 256 values in a secret order before one
//! comes again, so a stale key is refused for the next 255 lives of its slot. This is no cryptography: it keeps out a
//! peer that tries keys, not one that sees those of others (RoCE has no secrecy on the wire).

use std::sync::atomic::{AtomicU64, Ordering};

/// A secret from which all keys follow.
#[derive(Clone, Copy)]
pub struct KeySpace {
    rounds: [u64; 4],
}

/// All keys follow from it, so it is never printed.
impl std::fmt::Debug for KeySpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeySpace").finish_non_exhaustive()
    }
}

/// Slots that keys can name.
pub const MAX_SLOTS: u32 = 1 << 24;

impl KeySpace {
    pub fn new(seed: [u64; 4]) -> Self {
        Self { rounds: seed }
    }

    /// The upper 24 bits of a slot's keys. `None` for the two slots that would give the keys 0 and 2^32 - 1, which
    /// programs take for "no key".
    pub fn index(&self, slot: u32) -> Option<u32> {
        let (mut left, mut right) = (slot >> 12 & 0xfff, slot & 0xfff);
        for round in self.rounds {
            (left, right) = (right, left ^ half(round, right));
        }
        let index = left << 12 | right;
        (index != 0 && index != 0xff_ffff).then_some(index)
    }

    /// The slot that a key names.
    #[inline]
    pub fn slot(&self, key: u32) -> u32 {
        let (mut left, mut right) = (key >> 20, key >> 8 & 0xfff);
        for round in self.rounds.iter().rev() {
            (left, right) = (right ^ half(*round, left), left);
        }
        left << 12 | right
    }

    /// The variant of a slot's `life`-th key.
    pub fn variant(&self, slot: u32, life: u32) -> u8 {
        let secret = mix(self.rounds[0] ^ self.rounds[3].rotate_left(17) ^ u64::from(slot) << 1);
        let (mut left, mut right) = (life >> 4 & 0xf, life & 0xf);
        for i in 0..4 {
            (left, right) = (right, left ^ mix(secret ^ u64::from(right) << 8 ^ i) as u32 & 0xf);
        }
        (left << 4 | right) as u8
    }
}

/// Slots that keys named lately: unscrambling a key costs more than the rest of a look-up. Never stale, since which slot a key
/// names does not change.
pub struct KnownKeys([AtomicU64; KNOWN]);

/// A power of two.
const KNOWN: usize = 16;

impl KnownKeys {
    pub fn new() -> Self {
        Self([const { AtomicU64::new(0) }; KNOWN])
    }

    /// As [`KeySpace::slot`].
    #[inline]
    pub fn slot(&self, keys: &KeySpace, key: u32) -> u32 {
        // The upper half is the key's upper 24 bits, with a bit that is set in every entry that was written.
        let name = u64::from((key >> 8) | (1 << 31)) << 32;
        let place = &self.0[(key >> 8) as usize % KNOWN];
        let known = place.load(Ordering::Relaxed);
        if (known & !0xffff_ffff) == name {
            return known as u32;
        }
        let slot = keys.slot(key);
        place.store(name | u64::from(slot), Ordering::Relaxed);
        slot
    }
}

#[inline]
fn half(round: u64, value: u32) -> u32 {
    (mix(round ^ u64::from(value)) >> 40) as u32 & 0xfff
}

/// A finalizer with full avalanche (that of splitmix64).
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn slots_and_indexes_are_one_to_one() {
        let keys = KeySpace::new([1, 2, 3, 4]);
        let mut seen = HashSet::new();
        for slot in (0..100_000).chain(MAX_SLOTS - 1000..MAX_SLOTS) {
            if let Some(index) = keys.index(slot) {
                assert!(index < MAX_SLOTS && seen.insert(index));
                assert_eq!(keys.slot(index << 8 | 0x5a), slot);
            }
        }
    }

    #[test]
    fn a_key_that_is_known_names_the_same_slot() {
        let (keys, known) = (KeySpace::new([1, 2, 3, 4]), KnownKeys::new());
        assert_eq!(known.slot(&keys, 0), keys.slot(0), "an entry that nobody wrote knows nothing");
        for _ in 0..2 {
            for key in (0..100_000u32).map(|i| i.wrapping_mul(0x9e37_79b1)).chain([u32::MAX, 0x100, 0x1100]) {
                assert_eq!(known.slot(&keys, key), keys.slot(key));
                assert_eq!(known.slot(&keys, key ^ 0x5a), keys.slot(key), "another life of the same slot");
            }
        }
    }

    #[test]
    fn variants_pass_all_256_before_one_comes_again() {
        let keys = KeySpace::new([5, 6, 7, 8]);
        for slot in [0, 1, 77, 0xff_ffff] {
            let variants: Vec<u8> = (0..512).map(|life| keys.variant(slot, life)).collect();
            assert_eq!(variants[..256].iter().collect::<HashSet<_>>().len(), 256);
            assert_eq!(variants[..256], variants[256..]);
            assert_ne!(variants[..16], (0..16).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn keys_of_neighbours_and_of_other_seeds_have_nothing_in_common() {
        let (a, b) = (KeySpace::new([1, 2, 3, 4]), KeySpace::new([1, 2, 3, 5]));
        let index = |keys: &KeySpace, slot| keys.index(slot).unwrap_or(0);
        let near = (0..1000).filter(|&s| index(&a, s).abs_diff(index(&a, s + 1)) < 1 << 12).count();
        assert!(near < 10, "{near} of 1000 neighbours lie near each other");
        assert!((0..1000).filter(|&s| index(&a, s) == index(&b, s)).count() < 2);
    }
}
