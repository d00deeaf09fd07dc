//! Atomic ACK extended transport header, 8 bytes (clause 9.5.3): the value that was there before the atomic.

use crate::field::be64;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 8;

/// An AtomicAckETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Original remote data.
    #[inline]
    pub fn original(&self) -> u64 {
        be64(self.0, 0)
    }
}

/// Atomic ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// Value at the responder before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        View::new(bytes).map(|view| Self { original: view.original() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.original.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        AtomicAckEth,
        known: [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88],
        means: AtomicAckEth { original: 0x1122_3344_5566_7788 },
        illegal: [],
        any: any::<u64>().prop_map(|original| AtomicAckEth { original }),
    }
}
