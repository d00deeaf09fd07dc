//! 64-byte units of a ring: eight atomic words. The words themselves need no ordering; what publishes them does.

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

/// Slots of equal stride, addressed by slot and word.
#[derive(Debug)]
pub struct Slots {
    units: Box<[Unit]>,
    stride: usize,
}

impl Slots {
    /// `count` slots of `stride` units each, zeroed.
    pub fn new(count: u32, stride: usize) -> Self {
        let units = (0..count as usize * stride).map(|_| Unit(std::array::from_fn(|_| AtomicU64::new(0)))).collect();
        Self { units, stride }
    }

    #[inline]
    fn word(&self, slot: u32, word: usize) -> &AtomicU64 {
        &self.units[slot as usize * self.stride + word / WORDS].0[word % WORDS]
    }

    /// Reads a word.
    #[inline]
    pub fn get(&self, slot: u32, word: usize) -> u64 {
        self.word(slot, word).load(Ordering::Relaxed)
    }

    /// Writes a word.
    #[inline]
    pub fn set(&self, slot: u32, word: usize, value: u64) {
        self.word(slot, word).store(value, Ordering::Relaxed);
    }

    /// Reads the SGE that takes the two words from `word`.
    #[inline]
    pub fn sge(&self, slot: u32, word: usize) -> Sge {
        let (addr, rest) = (self.get(slot, word), self.get(slot, word + 1));
        Sge { addr, length: rest as u32, lkey: LKey((rest >> 32) as u32) }
    }

    /// Writes an SGE to the two words from `word`.
    #[inline]
    pub fn set_sge(&self, slot: u32, word: usize, sge: &Sge) {
        self.set(slot, word, sge.addr);
        self.set(slot, word + 1, u64::from(sge.length) | u64::from(sge.lkey.0) << 32);
    }

    /// Writes bytes from `word` on, eight to a word.
    pub fn set_bytes(&self, slot: u32, word: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for (i, eight) in words.iter().enumerate() {
            self.set(slot, word + i, u64::from_le_bytes(*eight));
        }
        if !rest.is_empty() {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            self.set(slot, word + words.len(), u64::from_le_bytes(eight));
        }
    }

    /// Reads bytes that [`Slots::set_bytes`] wrote from `word` on, beginning with byte `offset`.
    pub fn get_bytes(&self, slot: u32, word: usize, mut offset: usize, mut out: &mut [u8]) {
        if offset.is_multiple_of(8) {
            let (words, rest) = out.as_chunks_mut::<8>();
            for (i, eight) in words.iter_mut().enumerate() {
                *eight = self.get(slot, word + offset / 8 + i).to_le_bytes();
            }
            offset += 8 * words.len();
            out = rest;
        }
        while !out.is_empty() {
            let eight = self.get(slot, word + offset / 8).to_le_bytes();
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
        slots.set_bytes(1, 3, &data);
        for offset in 0..data.len() {
            for end in offset..=data.len() {
                let mut out = vec![0; end - offset];
                slots.get_bytes(1, 3, offset, &mut out);
                assert_eq!(out, data[offset..end]);
            }
        }
        assert_eq!(slots.get(0, 3), 0, "the neighbour is untouched");
    }

    #[test]
    fn a_message_of_two_to_the_31_is_the_longest() {
        let sge = |length| Sge { length, ..Sge::default() };
        assert_eq!(message_length(&[sge(1 << 30), sge(1 << 30)]), Some(1 << 31));
        assert_eq!(message_length(&[sge(1 << 30), sge((1 << 30) + 1)]), None);
        assert_eq!(message_length(&[sge(u32::MAX); 3]), None);
    }
}
