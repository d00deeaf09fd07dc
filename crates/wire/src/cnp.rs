//! Congestion notification packet (annex A17.9.3): a BTH with BECN set, then 16 reserved bytes, sent as 0 and ignored on
//! receipt. The congested flow is named by the addresses and the destination QP alone.

use crate::bth::Bth;
use crate::ids::{PKey, Psn, Qpn};
use crate::invalid::InvalidPacket;
use crate::opcode::{Opcode, Operation, Position, Service};

/// Bytes of the reserved field, after the BTH.
pub const LEN: usize = 16;

/// The opcode.
pub const OPCODE: Opcode = match Opcode::find(Service::Cnp, Operation::Cnp, Position::Only) {
    Some(opcode) => opcode,
    None => panic!("the table has no CNP"),
};

/// The reserved field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnp;

impl Cnp {
    /// Looks at what follows the BTH. Longer is refused like shorter: no other form of the packet is defined.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        match bytes.len() {
            LEN => Ok(Self),
            have if have < LEN => Err(InvalidPacket::short(LEN, have)),
            _ => Err(InvalidPacket::Malformed("a CNP carries 16 reserved bytes and no more")),
        }
    }

    /// Writes the reserved field.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = [0; LEN];
    }
}

/// The BTH of a CNP to `dest_qp`: PSN 0, BECN set, no ACK asked for.
pub const fn bth(pkey: PKey, dest_qp: Qpn) -> Bth {
    Bth {
        opcode: OPCODE,
        solicited: false,
        mig_req: true,
        pad_count: 0,
        tver: 0,
        pkey,
        fecn: false,
        becn: true,
        dest_qp,
        ack_req: false,
        psn: Psn::new(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Cnp,
        known: [0; 16],
        means: Cnp,
        illegal: [],
        any: Just(Cnp),
    }

    #[test]
    fn a_longer_one_is_refused() {
        assert!(matches!(Cnp::parse(&[0; 17]), Err(InvalidPacket::Malformed(_))));
    }

    #[test]
    fn its_bth_says_becn() {
        let mut out = [0; crate::bth::LEN];
        bth(PKey::DEFAULT, Qpn::new(0x123456)).emit(&mut out);
        assert_eq!(out, [0x81, 0x40, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0, 0, 0, 0]);
    }
}
