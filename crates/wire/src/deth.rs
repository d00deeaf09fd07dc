//! Datagram extended transport header, 8 bytes (clause 9.3.2): the Q_Key and who sent it. Byte 4 is reserved.

use crate::field::{be24, be32, put, put24};
use crate::ids::{QKey, Qpn};
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 8;

/// A DETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Q_Key.
    #[inline]
    pub fn qkey(&self) -> QKey {
        QKey(be32(self.0, 0))
    }

    /// Source QP.
    #[inline]
    pub fn src_qp(&self) -> Qpn {
        Qpn::new(be24(self.0, 5))
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Must be the receiving QP's.
    pub qkey: QKey,
    /// The sender's QP.
    pub src_qp: Qpn,
}

impl Deth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        Ok(Self { qkey: view.qkey(), src_qp: view.src_qp() })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put(out, 0, self.qkey.0.to_be_bytes());
        out[4] = 0;
        put24(out, 5, self.src_qp.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Deth,
        known: [0x11, 0x11, 0x11, 0x11, 0, 0, 0, 0x11],
        means: Deth { qkey: QKey(0x1111_1111), src_qp: Qpn::new(0x11) },
        illegal: [],
        any: (any::<u32>(), any::<u32>()).prop_map(|(q, n)| Deth { qkey: QKey(q), src_qp: Qpn::new(n) }),
    }
}
