//! Immediate data, 4 bytes (clause 9.3.6): what a receive completion hands to the application, here in host order.

use crate::field::be32;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 4;

/// An ImmDt in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Immediate data.
    #[inline]
    pub fn imm(&self) -> u32 {
        be32(self.0, 0)
    }
}

/// Immediate data header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// Immediate data.
    pub imm: u32,
}

impl ImmDt {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        View::new(bytes).map(|view| Self { imm: view.imm() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.imm.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        ImmDt,
        known: [0x00, 0xab, 0xcd, 0xef],
        means: ImmDt { imm: 0x00ab_cdef },
        illegal: [],
        any: any::<u32>().prop_map(|value| ImmDt { imm: value }),
    }
}
