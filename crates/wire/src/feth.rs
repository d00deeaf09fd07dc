//! FLUSH extended transport header, 4 bytes (annex A19, release 1.5): bits 3-0 placement type, bits 5-4 selectivity level,
//! the rest reserved. It stands between BTH (XRC: XRCETH) and RETH. Values that the annex does not define parse; the
//! responder answers them with a NAK, which a dropped packet could not.

use crate::field::be32;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 4;

/// A FETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Placement type.
    #[inline]
    pub fn plt(&self) -> u8 {
        (be32(self.0, 0) & 0xf) as u8
    }

    /// Selectivity level.
    #[inline]
    pub fn sel(&self) -> u8 {
        (be32(self.0, 0) >> 4 & 3) as u8
    }
}

/// FLUSH extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type, 4 bits: bit 0 global visibility, bit 1 persistence.
    pub plt: u8,
    /// Selectivity level, 2 bits: 0 range, 1 memory region.
    pub sel: u8,
}

impl Feth {
    /// Placement type bit: visible to every reader of the memory.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement type bit: survives a power failure.
    pub const PERSISTENCE: u8 = 2;
    /// Selectivity level: the bytes of the RETH.
    pub const RANGE: u8 = 0;
    /// Selectivity level: the whole region of the RETH's key.
    pub const MEMORY_REGION: u8 = 1;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        View::new(bytes).map(|view| Self { plt: view.plt(), sel: view.sel() })
    }

    /// Writes the header; only the low bits of each field are used.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = [0, 0, 0, (self.sel & 3) << 4 | (self.plt & 0xf)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Feth,
        known: [0, 0, 0, 0x13],
        means: Feth { plt: Feth::GLOBAL_VISIBILITY | Feth::PERSISTENCE, sel: Feth::MEMORY_REGION },
        illegal: [],
        any: (0u8..16, 0u8..4).prop_map(|(plt, sel)| Feth { plt, sel }),
    }
}
