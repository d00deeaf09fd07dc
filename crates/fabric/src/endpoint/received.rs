//! A message that came. It holds a receive until it is dropped: then the receive is posted again.

use crate::error::FabricError;

/// A message, or the notice of a WRITE with immediate. While it lives, one receive less is posted.
#[derive(Debug)]
pub struct Received {}

impl Received {
    /// Bytes. For a WRITE with immediate: bytes that were written elsewhere, none of which can be read here.
    pub fn len(&self) -> usize {
        0
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Immediate data.
    pub fn imm(&self) -> Option<u32> {
        None
    }

    /// Whether it tells of a WRITE with immediate.
    pub fn is_write(&self) -> bool {
        false
    }

    /// Copies bytes out. Misuse outside the message.
    pub fn read(&self, _offset: usize, _out: &mut [u8]) -> Result<(), FabricError> {
        Err(FabricError::environment("not built yet"))
    }
}
