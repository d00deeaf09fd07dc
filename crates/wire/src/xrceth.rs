//! XRC extended transport header, 4 bytes (annex A14): the SRQ that takes the message. The upper 8 bits are reserved.

use crate::field::be32;
use crate::ids::Srqn;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 4;

/// An XRCETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// SRQ at the responder.
    #[inline]
    pub fn srqn(&self) -> Srqn {
        Srqn::new(be32(self.0, 0))
    }
}

/// XRC extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xrceth {
    /// SRQ at the responder.
    pub srqn: Srqn,
}

impl Xrceth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        View::new(bytes).map(|view| Self { srqn: view.srqn() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.srqn.get().to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Xrceth,
        known: [0x00, 0xab, 0xcd, 0xef],
        means: Xrceth { srqn: Srqn::new(0x00ab_cdef) },
        illegal: [],
        any: any::<u32>().prop_map(|value| Xrceth { srqn: Srqn::new(value) }),
    }
}
