//! Atomic extended transport header, 28 bytes (clause 9.3.4). Every bit pattern is legal here; alignment and access are
//! the responder's matter.

use crate::field::{be32, be64, put};
use crate::ids::RKey;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 28;

/// An AtomicETH in place.
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

    /// Swap (or add) data.
    #[inline]
    pub fn swap_or_add(&self) -> u64 {
        be64(self.0, 12)
    }

    /// Compare data.
    #[inline]
    pub fn compare(&self) -> u64 {
        be64(self.0, 20)
    }
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of the eight bytes.
    pub va: u64,
    /// Key that must grant remote atomics.
    pub rkey: RKey,
    /// Swap value, or the value to add.
    pub swap_or_add: u64,
    /// Value to compare with; not looked at by FETCH ADD.
    pub compare: u64,
}

impl AtomicEth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        Ok(Self { va: view.va(), rkey: view.rkey(), swap_or_add: view.swap_or_add(), compare: view.compare() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.0.to_be_bytes());
        put(out, 12, self.swap_or_add.to_be_bytes());
        put(out, 20, self.compare.to_be_bytes());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        pub(crate) fn any_atomic_eth()(va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> AtomicEth {
            AtomicEth { va, rkey: RKey(rkey), swap_or_add, compare }
        }
    }

    crate::header_tests::header_tests! {
        AtomicEth,
        known: [
            0, 0, 0x55, 0x66, 0, 0, 0, 0x08, 0, 0, 0x13, 0x37, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 0, 0,
            0, 0, 0, 0, 0x2a,
        ],
        means: AtomicEth {
            va: 0x5566_0000_0008, rkey: RKey(0x1337), swap_or_add: 0x1122_3344_5566_7788, compare: 42,
        },
        illegal: [],
        any: any_atomic_eth(),
    }
}
