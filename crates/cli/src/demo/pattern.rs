//! What the demo sends: bytes that depend on the step, the message and the place in it, so that a byte from elsewhere, a
//! message in the wrong place, or an old message is seen. The first 8 bytes hold the number of the message, so that a
//! datagram says itself which one it is.

use serde::{Deserialize, Serialize};

/// What a buffer holds before anything arrives.
pub const UNTOUCHED: u8 = 0xa5;

/// A byte that is not what was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Number of the message in its step.
    pub message: u64,
    /// Place in the message.
    pub byte: u64,
    /// What was sent.
    pub expected: u8,
    /// What is there.
    pub found: u8,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { message, byte, expected, found } = self;
        write!(f, "message {message}, byte {byte}: {expected:#04x} was sent, {found:#04x} is there")
    }
}

/// A number that looks like no other: the finaliser of splitmix64.
pub const fn scramble(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fills `out` with message `message` of the step with this seed.
pub fn fill(seed: u64, message: u64, out: &mut [u8]) {
    let key = scramble(seed ^ scramble(message));
    for (index, chunk) in out.chunks_mut(8).enumerate() {
        let word = if index == 0 { message } else { scramble(key.wrapping_add(index as u64)) };
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// The number of the message that these bytes say they are; `None` if they are too few to say it.
pub fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// Compares what arrived with what was sent. `scratch` is as long as `found`.
pub fn compare(seed: u64, message: u64, found: &[u8], scratch: &mut [u8]) -> Result<(), Mismatch> {
    let expected = &mut scratch[..found.len()];
    fill(seed, message, expected);
    if found == expected {
        return Ok(());
    }
    let byte = found.iter().zip(expected.iter()).position(|(f, e)| f != e).unwrap_or(0);
    Err(Mismatch { message, byte: byte as u64, expected: expected[byte], found: found[byte] })
}

/// As [`compare`], but a message may be missing in whole or in part (unreliable transports): `Ok(false)` then. A byte that
/// was neither sent nor there before is a mismatch all the same.
pub fn compare_lossy(seed: u64, message: u64, found: &[u8], scratch: &mut [u8]) -> Result<bool, Mismatch> {
    let Err(first) = compare(seed, message, found, scratch) else { return Ok(true) };
    for (byte, (found, expected)) in found.iter().zip(scratch.iter()).enumerate() {
        if found != expected && *found != UNTOUCHED {
            return Err(Mismatch { byte: byte as u64, expected: *expected, found: *found, ..first });
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_byte_is_found() {
        let mut sent = [0; 100];
        let mut scratch = [0; 100];
        fill(7, 3, &mut sent);
        assert_eq!(compare(7, 3, &sent, &mut scratch), Ok(()));
        for byte in 0..sent.len() {
            let mut found = sent;
            found[byte] ^= 1;
            assert_eq!(compare(7, 3, &found, &mut scratch).unwrap_err().byte, byte as u64);
        }
    }

    #[test]
    fn messages_of_other_steps_and_numbers_differ() {
        let mut a = [0; 64];
        let mut b = [0; 64];
        fill(1, 5, &mut a);
        fill(2, 5, &mut b);
        assert_ne!(a, b);
        assert_eq!(number(&a), Some(5));
        assert!(compare(1, 6, &a, &mut [0; 64]).is_err());
    }

    #[test]
    fn a_missing_part_is_loss_and_a_foreign_byte_is_not() {
        let mut found = [0; 64];
        let mut scratch = [0; 64];
        fill(1, 5, &mut found);
        assert_eq!(compare_lossy(1, 5, &found, &mut scratch), Ok(true));
        found[32..].fill(UNTOUCHED);
        assert_eq!(compare_lossy(1, 5, &found, &mut scratch), Ok(false));
        found[40] = UNTOUCHED ^ 0xff;
        // The pattern may by chance hold that very byte; then it is no mismatch.
        if scratch[40] != found[40] {
            assert!(compare_lossy(1, 5, &found, &mut scratch).is_err());
        }
    }
}
