//! A message that came. It holds a receive until it is dropped: then the receive is posted again.

use super::receive::{Arrival, ReceivePool};
use crate::error::FabricError;
use std::sync::Arc;

/// A message, or the notice of a WRITE with immediate. While it lives, one receive less is posted.
#[derive(Debug)]
pub struct Received {
    pub(super) pool: Arc<ReceivePool>,
    pub(super) arrival: Arrival,
}

impl Received {
    /// Bytes. For a WRITE with immediate: bytes that were written elsewhere, none of which can be read here.
    pub fn len(&self) -> usize {
        self.arrival.length as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Immediate data.
    pub fn imm(&self) -> Option<u32> {
        self.arrival.imm
    }

    /// Whether it tells of a WRITE with immediate.
    pub fn is_write(&self) -> bool {
        self.arrival.is_write
    }

    /// Copies bytes out. Misuse outside the message.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        let held = if self.is_write() { 0 } else { self.len() };
        if offset.checked_add(out.len()).is_none_or(|end| end > held) {
            return Err(FabricError::misuse(format!(
                "{} bytes at {offset} are not within the message, which holds {held}",
                out.len()
            )));
        }
        self.pool.read(self.arrival.slot, offset, out)
    }

    /// All of it. Allocates.
    pub fn to_vec(&self) -> Result<Vec<u8>, FabricError> {
        let mut bytes = vec![0; if self.is_write() { 0 } else { self.len() }];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.pool.give_back(self.arrival.slot);
    }
}
