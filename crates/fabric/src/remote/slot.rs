//! The memory of rings and mailboxes: a line with the count of what was consumed (the credits), then slots of one size. A record stands at the beginning of its slot, so that
//! no payload is ever taken for one, and carries its number and a checksum, so that it counts only when it is there whole: the bytes of a WRITE become
//! visible in any order (clause 9.5).

use super::{Area, Failure, Home};
use crate::error::FabricError;
use serde::{Deserialize, Serialize};

/// Bytes before the slots: the count, in a cache line of its own.
pub(super) const COUNT_BYTES: u64 = 64;
/// Bytes of a slot before the payload: claim, number, length, checksum, and eight that are zero.
pub(super) const RECORD_BYTES: usize = 32;
/// Where in a slot a writer writes: behind the claim.
const NUMBER: u64 = 8;

/// How a ring's or mailbox's memory is laid out. Both sides must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotShape {
    /// Slots: messages that can wait. At least 1.
    pub slots: u32,
    /// Bytes of each, a multiple of 64, of which 32 are the record's.
    pub slot_bytes: u32,
}

/// A message that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The bytes.
    pub message: Vec<u8>,
    /// In a mailbox, the number of who sent it; 0 in a ring.
    pub sender: u32,
}

impl SlotShape {
    /// Bytes of memory it wants, zeroed, at a multiple of 8.
    pub fn bytes(&self) -> u64 {
        COUNT_BYTES + u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Longest message.
    pub fn longest(&self) -> usize {
        (self.slot_bytes as usize).saturating_sub(RECORD_BYTES)
    }

    pub(super) fn check(&self, bytes: u64) -> Result<(), FabricError> {
        if self.slots == 0 || self.slot_bytes < 64 || !self.slot_bytes.is_multiple_of(64) {
            return Err(FabricError::misuse(format!("{self:?}: at least one slot, of a multiple of 64 bytes")));
        }
        if bytes < self.bytes() {
            return Err(FabricError::misuse(format!("{self:?} wants {} bytes, there are {bytes}", self.bytes())));
        }
        Ok(())
    }

    /// Where the slot of a message's number begins.
    pub(super) fn slot(&self, index: u64) -> u64 {
        COUNT_BYTES + index % u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// How often the slots were gone through before this number.
    pub(super) fn lap(&self, index: u64) -> u64 {
        index / u64::from(self.slots)
    }

    pub(super) fn check_message(&self, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > self.longest() {
            return Err(FabricError::misuse(format!(
                "a message of {} bytes: a slot has room for {}",
                message.len(),
                self.longest()
            )));
        }
        Ok(())
    }
}

fn checksum(number: u64, message: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&(message.len() as u32).to_le_bytes());
    hasher.update(message);
    hasher.finalize()
}

/// Writes message `index` into its slot, in one WRITE.
pub(super) fn put<A: Area>(area: &A, shape: &SlotShape, index: u64, message: &[u8]) -> Result<(), Failure> {
    let number = index + 1;
    let mut record = Vec::with_capacity(RECORD_BYTES - 8 + message.len());
    record.extend_from_slice(&number.to_ne_bytes());
    record.extend_from_slice(&(message.len() as u32).to_le_bytes());
    record.extend_from_slice(&checksum(number, message).to_le_bytes());
    record.extend_from_slice(&[0; 8]);
    record.extend_from_slice(message);
    area.write(shape.slot(index) + NUMBER, &record)
}

/// Message `index`, if it is there whole.
pub(super) fn take<H: Home>(home: &H, shape: &SlotShape, index: u64) -> Result<Option<Vec<u8>>, FabricError> {
    let number = index + 1;
    let slot = shape.slot(index) as usize;
    if home.load_u64(slot + NUMBER as usize)? != number {
        return Ok(None);
    }
    let mut head = [0; 8];
    home.read(slot + 16, &mut head)?;
    let [a, b, c, d, sum @ ..] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    // Not there yet: the number may have come before the rest.
    if length > shape.longest() {
        return Ok(None);
    }
    let mut message = vec![0; length];
    home.read(slot + RECORD_BYTES, &mut message)?;
    Ok((checksum(number, &message) == u32::from_le_bytes(sum)).then_some(message))
}

/// What the owner has consumed, as a writer sees it.
pub(super) fn consumed<A: Area>(area: &A) -> Result<u64, Failure> {
    let mut count = [0; 8];
    area.read(0, &mut count)?;
    Ok(u64::from_ne_bytes(count))
}
