//! Invalidate extended transport header, 4 bytes (clause 9.3.7): the key that a SEND with invalidate takes away.

use crate::field::be32;
use crate::ids::RKey;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 4;

/// An IETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// R_Key to invalidate.
    #[inline]
    pub fn rkey(&self) -> RKey {
        RKey(be32(self.0, 0))
    }
}

/// Invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// R_Key to invalidate.
    pub rkey: RKey,
}

impl Ieth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        View::new(bytes).map(|view| Self { rkey: view.rkey() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.rkey.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Ieth,
        known: [0x00, 0xab, 0xcd, 0xef],
        means: Ieth { rkey: RKey(0x00ab_cdef) },
        illegal: [],
        any: any::<u32>().prop_map(|value| Ieth { rkey: RKey(value) }),
    }
}
