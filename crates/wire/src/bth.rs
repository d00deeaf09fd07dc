//! Base transport header, 12 bytes, in front of every packet (clause 9.2). Parsing refuses an unknown opcode and any
//! header version but 0; reserved bits are ignored on receipt and sent as 0.

use crate::field::{be16, be24, put, put24};
use crate::ids::{PKey, Psn, Qpn};
use crate::invalid::InvalidPacket;
use crate::opcode::Opcode;

/// Bytes on the wire.
pub const LEN: usize = 12;

/// A BTH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the first bytes of a packet.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// The opcode byte, legal or not.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// MigReq.
    #[inline]
    pub fn mig_req(&self) -> bool {
        self.0[1] & 0x40 != 0
    }

    /// Pad count, 0 to 3.
    #[inline]
    pub fn pad_count(&self) -> u8 {
        self.0[1] >> 4 & 3
    }

    /// Transport header version.
    #[inline]
    pub fn tver(&self) -> u8 {
        self.0[1] & 0xf
    }

    /// P_Key.
    #[inline]
    pub fn pkey(&self) -> PKey {
        PKey(be16(self.0, 2))
    }

    /// Forward congestion notification.
    #[inline]
    pub fn fecn(&self) -> bool {
        self.0[4] & 0x80 != 0
    }

    /// Backward congestion notification.
    #[inline]
    pub fn becn(&self) -> bool {
        self.0[4] & 0x40 != 0
    }

    /// Destination QP.
    #[inline]
    pub fn dest_qp(&self) -> Qpn {
        Qpn::new(be24(self.0, 5))
    }

    /// The responder must acknowledge.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.0[8] & 0x80 != 0
    }

    /// PSN.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(be24(self.0, 9))
    }
}

/// Base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// MigReq: true in state MIGRATED (clause 17.2.8).
    pub mig_req: bool,
    /// Bytes of pad, 0 to 3.
    pub pad_count: u8,
    /// Transport header version; 0 is the only legal one.
    pub tver: u8,
    /// P_Key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification: set in CNPs.
    pub becn: bool,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// The responder must acknowledge.
    pub ack_req: bool,
    /// PSN.
    pub psn: Psn,
}

impl Bth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        let Some(opcode) = Opcode::from_byte(view.opcode()) else {
            return Err(InvalidPacket::BadOpcode(view.opcode()));
        };
        if view.tver() != 0 {
            return Err(InvalidPacket::BadVersion(view.tver()));
        }
        Ok(Self {
            opcode,
            solicited: view.solicited(),
            mig_req: view.mig_req(),
            pad_count: view.pad_count(),
            tver: 0,
            pkey: view.pkey(),
            fecn: view.fecn(),
            becn: view.becn(),
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        })
    }

    /// Writes the header. Only the low bits of `pad_count` (2) and `tver` (4) are used.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        out[0] = self.opcode.byte();
        out[1] =
            (self.solicited as u8) << 7 | (self.mig_req as u8) << 6 | (self.pad_count & 3) << 4 | (self.tver & 0xf);
        put(out, 2, self.pkey.0.to_be_bytes());
        out[4] = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        put24(out, 5, self.dest_qp.get());
        out[8] = (self.ack_req as u8) << 7;
        put24(out, 9, self.psn.get());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        pub(crate) fn any_bth()(
            row in 0..crate::opcode::TABLE.len(), flags in any::<[bool; 5]>(), pad_count in 0u8..4, pkey: u16,
            dest_qp: u32, psn: u32,
        ) -> Bth {
            Bth {
                opcode: Opcode::from_byte(crate::opcode::TABLE[row].code).unwrap(),
                solicited: flags[0], mig_req: flags[1], pad_count, tver: 0, pkey: PKey(pkey), fecn: flags[2],
                becn: flags[3], dest_qp: Qpn::new(dest_qp), ack_req: flags[4], psn: Psn::new(psn),
            }
        }
    }

    crate::header_tests::header_tests! {
        Bth,
        // The first packet of a SEND of one byte by Linux's rxe.
        known: [0x04, 0x70, 0xff, 0xff, 0x00, 0x00, 0x00, 0x11, 0x80, 0x10, 0x00, 0x01],
        means: Bth {
            opcode: Opcode::from_byte(4).unwrap(), solicited: false, mig_req: true, pad_count: 3, tver: 0,
            pkey: PKey::DEFAULT, fecn: false, becn: false, dest_qp: Qpn::new(0x11), ack_req: true,
            psn: Psn::new(0x10_0001),
        },
        illegal: [
            (0, 0x15) => InvalidPacket::BadOpcode(0x15),
            (0, 0x40) => InvalidPacket::BadOpcode(0x40),
            (0, 0xff) => InvalidPacket::BadOpcode(0xff),
            (1, 0x71) => InvalidPacket::BadVersion(1),
            (1, 0x7f) => InvalidPacket::BadVersion(15),
        ],
        any: any_bth(),
    }
}
