//! CRC-32 of a few bytes by tables, 16 bytes a step: for packets that are shorter than what vector instructions pay for.
//!
//! The register is that of [`crate::icrc`]: reflected, not inverted. Nothing here knows what the bytes are.

/// Up to here this is faster than the library for long runs, which asks the processor what it can do and folds 64 bytes and more.
pub(crate) const SHORT: usize = 128;

const POLY: u32 = 0xedb8_8320;

/// What a byte contributes to the register when so many more bytes of its step follow it.
static TABLES: [[u32; 256]; 16] = {
    let mut tables = [[0; 256]; 16];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut after = 0;
        while after < 16 {
            let mut bit = 0;
            while bit < 8 {
                state = (state >> 1) ^ (POLY & (state & 1).wrapping_neg());
                bit += 1;
            }
            tables[after][byte] = state;
            after += 1;
        }
        byte += 1;
    }
    tables
};

#[inline(always)]
fn look(after: usize, word: u32, byte: u32) -> u32 {
    TABLES[after][(word >> (8 * byte) & 0xff) as usize]
}

/// Four bytes, the register already added to them, when `after` more bytes of the step follow.
#[inline(always)]
fn four(word: u32, after: usize) -> u32 {
    look(after + 3, word, 0) ^ look(after + 2, word, 1) ^ look(after + 1, word, 2) ^ look(after, word, 3)
}

/// `bytes` through the register.
#[inline]
pub(crate) fn update(mut state: u32, bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<16>();
    for step in steps {
        let word = |at: usize| u32::from_le_bytes([step[at], step[at + 1], step[at + 2], step[at + 3]]);
        state = four(word(0) ^ state, 12) ^ four(word(4), 8) ^ four(word(8), 4) ^ four(word(12), 0);
    }
    // What is left in one step, too, so that its words do not wait for each other: three are a BTH.
    let (words, rest) = rest.as_chunks::<4>();
    let word = |at: usize| u32::from_le_bytes(words[at]);
    state = match words.len() {
        0 => state,
        1 => four(word(0) ^ state, 0),
        2 => four(word(0) ^ state, 4) ^ four(word(1), 0),
        _ => four(word(0) ^ state, 8) ^ four(word(1), 4) ^ four(word(2), 0),
    };
    for byte in rest {
        state = (state >> 8) ^ TABLES[0][((state ^ u32::from(*byte)) & 0xff) as usize];
    }
    state
}

/// The same by the library for long runs.
pub(crate) fn update_long(state: u32, bytes: &[u8]) -> u32 {
    let mut library = crc32fast::Hasher::new_with_initial(!state);
    library.update(bytes);
    !library.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tables_and_library_agree(state: u32, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(update(state, &bytes), update_long(state, &bytes));
        }
    }

    #[test]
    fn the_check_value_of_crc_32() {
        let digits: Vec<u8> = (b'1'..=b'9').collect();
        assert_eq!(!update(!0, &digits), 0xcbf4_3926);
    }
}
