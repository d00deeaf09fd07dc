//! RDMA extended transport header, 16 bytes (clause 9.3.3): where a WRITE, READ, FLUSH or ATOMIC WRITE goes. Every bit
//! pattern is legal here; whether the key grants the range is the responder's matter.

use crate::field::{be32, be64, put};
use crate::ids::RKey;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 16;

/// A RETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Virtual address.
    #[inline]
    pub fn va(&self) -> u64 {
        be64(self.0, 0)
    }

    /// R_Key.
    #[inline]
    pub fn rkey(&self) -> RKey {
        RKey(be32(self.0, 8))
    }

    /// Bytes of the whole operation.
    #[inline]
    pub fn dma_len(&self) -> u32 {
        be32(self.0, 12)
    }
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address of the first byte.
    pub va: u64,
    /// Key that must grant the range.
    pub rkey: RKey,
    /// Bytes of the whole message, not of this packet.
    pub dma_len: u32,
}

impl Reth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        Ok(Self { va: view.va(), rkey: view.rkey(), dma_len: view.dma_len() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.0.to_be_bytes());
        put(out, 12, self.dma_len.to_be_bytes());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        pub(crate) fn any_reth()(va: u64, rkey: u32, dma_len: u32) -> Reth {
            Reth { va, rkey: RKey(rkey), dma_len }
        }
    }

    crate::header_tests::header_tests! {
        Reth,
        known: [0, 0, 0x7f, 0x12, 0x34, 0x56, 0x70, 0, 0, 0, 0x12, 0xab, 0, 0, 0x20, 0],
        means: Reth { va: 0x7f12_3456_7000, rkey: RKey(0x12ab), dma_len: 0x2000 },
        illegal: [],
        any: any_reth(),
    }
}
