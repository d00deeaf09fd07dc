//! 64-byte units of a ring: eight atomic words. The words themselves need no ordering; what publishes them does.

use std::sync::OnceLock;

use scalefabric_verbs::{LKey, Sge};

use super::atomic::{AtomicU64, Ordering};

/// Words in a unit.
pub const WORDS: usize = 8;
/// Bytes in a unit.
pub const UNIT_BYTES: usize = 64;

/// One unit, on its own cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Unit([AtomicU64; WORDS]);

/// Slots of equal stride. Their memory comes into being with the first post: queue pairs that never post, such as passive targets,
/// do without it.
#[derive(Debug)]
pub struct Slots {
    units: OnceLock<Box<[Unit]>>,
    count: u32,
    stride: usize,
}

impl Slots {
    /// `count` slots of `stride` units each, zeroed.
    pub fn new(count: u32, stride: usize) -> Self {
        Self { units: OnceLock::new(), count, stride }
    }

    /// A slot.
    #[inline]
    pub fn at(&self, slot: u32) -> Slot<'_> {
        let units = match self.units.get() {
            Some(units) => units,
            None => self.make(),
        };
        let first = slot as usize * self.stride;
        Slot(&units[first..first + self.stride])
    }

    #[cold]
    fn make(&self) -> &[Unit] {
        let unit = || Unit(std::array::from_fn(|_| AtomicU64::new(0)));
        self.units.get_or_init(|| (0..self.count as usize * self.stride).map(|_| unit()).collect())
    }
}

/// A slot, addressed by word.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'s>(&'s [Unit]);

impl Slot<'_> {
    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        &self.0[word / WORDS].0[word % WORDS]
    }

    /// Reads a word.
    #[inline]
    pub fn get(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    /// Writes a word.
    #[inline]
    pub fn set(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    /// Reads the SGE that takes the two words from `word`.
    #[inline]
    pub fn sge(&self, word: usize) -> Sge {
        let (addr, rest) = (self.get(word), self.get(word + 1));
        Sge { addr, length: rest as u32, lkey: LKey((rest >> 32) as u32) }
    }

    /// Writes an SGE to the two words from `word`.
    #[inline]
    pub fn set_sge(&self, word: usize, sge: &Sge) {
        self.set(word, sge.addr);
        self.set(word + 1, u64::from(sge.length) | u64::from(sge.lkey.0) << 32);
    }

    /// Writes bytes from `word` on, eight to a word.
    pub fn set_bytes(&self, word: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for (i, eight) in words.iter().enumerate() {
            self.set(word + i, u64::from_le_bytes(*eight));
        }
        if !rest.is_empty() {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            self.set(word + words.len(), u64::from_le_bytes(eight));
        }
    }

    /// Reads bytes that [`Slot::set_bytes`] wrote from `word` on, beginning with byte `offset`.
    pub fn get_bytes(&self, word: usize, mut offset: usize, mut out: &mut [u8]) {
        if offset.is_multiple_of(8) {
            let (words, rest) = out.as_chunks_mut::<8>();
            for (i, eight) in words.iter_mut().enumerate() {
                *eight = self.get(word + offset / 8 + i).to_le_bytes();
            }
            offset += 8 * words.len();
            out = rest;
        }
        while !out.is_empty() {
            let eight = self.get(word + offset / 8).to_le_bytes();
            let part = &eight[offset % 8..];
            let n = part.len().min(out.len());
            let (now, later) = out.split_at_mut(n);
            now.copy_from_slice(&part[..n]);
            out = later;
            offset += n;
        }
    }
}

/// The sum of an SGL's lengths, or `None` above 2^31, the longest message (clause 9.7.1).
pub fn message_length(sges: &[Sge]) -> Option<u32> {
    let sum: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    u32::try_from(sum).ok().filter(|&n| n <= 1 << 31)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_any_offset() {
        let slots = Slots::new(2, 2);
        let data: Vec<u8> = (0..61).collect();
        slots.at(1).set_bytes(3, &data);
        for offset in 0..data.len() {
            for end in offset..=data.len() {
                let mut out = vec![0; end - offset];
                slots.at(1).get_bytes(3, offset, &mut out);
                assert_eq!(out, data[offset..end]);
            }
        }
        assert_eq!(slots.at(0).get(3), 0, "the neighbour is untouched");
    }

    #[test]
    fn a_ring_that_nobody_posts_to_has_no_memory() {
        let slots = Slots::new(1 << 20, 4);
        assert!(slots.units.get().is_none());
        let one = Slots::new(2, 1);
        one.at(1).set(0, 5);
        assert_eq!((one.at(1).get(0), one.at(0).get(0)), (5, 0));
    }

    #[test]
    fn a_message_of_two_to_the_31_is_the_longest() {
        let sge = |length| Sge { length, ..Sge::default() };
        assert_eq!(message_length(&[sge(1 << 30), sge(1 << 30)]), Some(1 << 31));
        assert_eq!(message_length(&[sge(1 << 30), sge((1 << 30) + 1)]), None);
        assert_eq!(message_length(&[sge(u32::MAX); 3]), None);
    }
}
