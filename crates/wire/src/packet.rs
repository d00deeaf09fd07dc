//! A whole transport packet: BTH, extended headers, payload, pad, ICRC.
//!
//! [`Headers`] is the plain struct that the transport reads and writes; each header's own bytes live in a module of its
//! own, and which ones follow a BTH is read from the opcode table. Nothing here allocates.

pub use crate::aeth::{Aeth, NakCode, Syndrome};
pub use crate::atomic_ack_eth::AtomicAckEth;
pub use crate::atomic_eth::AtomicEth;
pub use crate::bth::Bth;
pub use crate::deth::Deth;
pub use crate::feth::Feth;
pub use crate::ieth::Ieth;
pub use crate::imm_dt::ImmDt;
pub use crate::invalid::{CannotEmit, InvalidPacket};
pub use crate::reth::Reth;
pub use crate::xrceth::Xrceth;

use crate::ids::{PKey, Psn, Qpn, RKey, Srqn};
use crate::opcode::{Extensions, Opcode, Operation};
use crate::{aeth, atomic_ack_eth, atomic_eth, bth, cnp, deth, feth, ieth, imm_dt, reth, xrceth};

/// Bytes of the ICRC.
pub const ICRC_LEN: usize = 4;

/// The UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;

/// Bytes of the longest headers: BTH, XRCETH, AtomicETH.
pub const MAX_HEADER_LEN: usize = bth::LEN + xrceth::LEN + atomic_eth::LEN;

impl Extensions {
    /// Bytes of these headers together.
    pub const fn header_len(self) -> usize {
        let mut sum = 0;
        let mut row = 0;
        while row < EXTENSION_LEN.len() {
            if self.contains(EXTENSION_LEN[row].0) {
                sum += EXTENSION_LEN[row].1;
            }
            row += 1;
        }
        sum
    }
}

/// Length of each extended header.
const EXTENSION_LEN: [(Extensions, usize); 9] = [
    (Extensions::XRCETH, xrceth::LEN),
    (Extensions::DETH, deth::LEN),
    (Extensions::FETH, feth::LEN),
    (Extensions::RETH, reth::LEN),
    (Extensions::ATOMIC_ETH, atomic_eth::LEN),
    (Extensions::AETH, aeth::LEN),
    (Extensions::ATOMIC_ACK_ETH, atomic_ack_eth::LEN),
    (Extensions::IMM_DT, imm_dt::LEN),
    (Extensions::IETH, ieth::LEN),
];

/// BTH and extended headers of each opcode byte together; 0 if the table does not have it.
const HEADER_LEN: [u8; 256] = {
    let mut len = [0; 256];
    let mut row = 0;
    while row < crate::opcode::TABLE.len() {
        let info = &crate::opcode::TABLE[row];
        len[info.code as usize] = (bth::LEN + info.extensions.header_len()) as u8;
        row += 1;
    }
    len
};

impl Opcode {
    /// Bytes of the BTH and the extended headers of this opcode.
    #[inline]
    pub const fn header_len(self) -> usize {
        HEADER_LEN[self.byte() as usize] as usize
    }
}

/// BTH and those extended headers that its opcode calls for. On emit, exactly the opcode's headers are written and a
/// missing one is an error; on parse exactly those are `Some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Headers {
    pub bth: Bth,
    pub xrceth: Option<Srqn>,
    pub deth: Option<Deth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic_eth: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    /// Original value at the responder.
    pub atomic_ack_eth: Option<u64>,
    /// Immediate data, host order.
    pub imm: Option<u32>,
    /// R_Key to invalidate.
    pub ieth: Option<RKey>,
}

/// Takes `N` bytes off the front.
#[inline]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> &'a [u8] {
    let (head, tail) = rest.split_at_checked(N).unwrap_or((rest, &[]));
    *rest = tail;
    head
}

impl Headers {
    /// BTH alone, with the flags of a plain request and no extended headers.
    pub const fn new(opcode: Opcode, pkey: PKey, dest_qp: Qpn, psn: Psn) -> Self {
        Self::from_bth(Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad_count: 0,
            tver: 0,
            pkey,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        })
    }

    /// This BTH and no extended headers.
    pub const fn from_bth(bth: Bth) -> Self {
        Self {
            bth,
            xrceth: None,
            deth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm: None,
            ieth: None,
        }
    }

    /// Bytes of these headers.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Reads BTH and extended headers at the start of `bytes`; returns them and their length. What follows is not looked
    /// at.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), InvalidPacket> {
        let bth = Bth::parse(bytes)?;
        let extensions = bth.opcode.info().extensions;
        let need = bth.opcode.header_len();
        let mut headers = Self::from_bth(bth);
        // Cut once, here; each header then takes its own length from what is known to be there.
        let Some(mut rest) = bytes.get(bth::LEN..need) else {
            return Err(InvalidPacket::short(need, bytes.len()));
        };
        if extensions.contains(Extensions::XRCETH) {
            headers.xrceth = Some(Xrceth::parse(take::<{ xrceth::LEN }>(&mut rest))?.srqn);
        }
        if extensions.contains(Extensions::DETH) {
            headers.deth = Some(Deth::parse(take::<{ deth::LEN }>(&mut rest))?);
        }
        if extensions.contains(Extensions::FETH) {
            headers.feth = Some(Feth::parse(take::<{ feth::LEN }>(&mut rest))?);
        }
        if extensions.contains(Extensions::RETH) {
            headers.reth = Some(Reth::parse(take::<{ reth::LEN }>(&mut rest))?);
        }
        if extensions.contains(Extensions::ATOMIC_ETH) {
            headers.atomic_eth = Some(AtomicEth::parse(take::<{ atomic_eth::LEN }>(&mut rest))?);
        }
        if extensions.contains(Extensions::AETH) {
            headers.aeth = Some(Aeth::parse(take::<{ aeth::LEN }>(&mut rest))?);
        }
        if extensions.contains(Extensions::ATOMIC_ACK_ETH) {
            let ack = AtomicAckEth::parse(take::<{ atomic_ack_eth::LEN }>(&mut rest))?;
            headers.atomic_ack_eth = Some(ack.original);
        }
        if extensions.contains(Extensions::IMM_DT) {
            headers.imm = Some(ImmDt::parse(take::<{ imm_dt::LEN }>(&mut rest))?.imm);
        }
        if extensions.contains(Extensions::IETH) {
            headers.ieth = Some(Ieth::parse(take::<{ ieth::LEN }>(&mut rest))?.rkey);
        }
        Ok((headers, need))
    }

    /// Writes BTH and the extended headers of its opcode to the start of `out`; returns their length. Headers that are
    /// set but not called for are not written.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, CannotEmit> {
        let need = self.len();
        let have = out.len();
        let extensions = self.bth.opcode.info().extensions;
        let no_room = CannotEmit::NoRoom { need, have };
        let Some((front, mut rest)) = out.get_mut(..need).and_then(|out| out.split_first_chunk_mut()) else {
            return Err(no_room);
        };
        self.bth.emit(front);

        macro_rules! header {
            ($flag:ident, $name:literal, $value:expr) => {
                if extensions.contains(Extensions::$flag) {
                    let value = $value.ok_or(CannotEmit::Missing($name))?;
                    let (chunk, tail) = rest.split_first_chunk_mut().ok_or(no_room)?;
                    value.emit(chunk);
                    rest = tail;
                }
            };
        }
        header!(XRCETH, "XRCETH", self.xrceth.map(|srqn| Xrceth { srqn }));
        header!(DETH, "DETH", self.deth);
        header!(FETH, "FETH", self.feth);
        header!(RETH, "RETH", self.reth);
        header!(ATOMIC_ETH, "AtomicETH", self.atomic_eth);
        header!(AETH, "AETH", self.aeth);
        header!(ATOMIC_ACK_ETH, "AtomicAckETH", self.atomic_ack_eth.map(|original| AtomicAckEth { original }));
        header!(IMM_DT, "ImmDt", self.imm.map(|imm| ImmDt { imm }));
        header!(IETH, "IETH", self.ieth.map(|rkey| Ieth { rkey }));
        let _ = rest;
        Ok(need)
    }
}

/// A UDP payload taken apart. The ICRC is read, not checked: that needs the IP header (see [`crate::icrc`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// BTH and extended headers.
    pub headers: Headers,
    /// Payload, without pad.
    pub payload: &'a [u8],
    /// The ICRC as a number: it travels least significant byte first.
    pub icrc: u32,
}

/// Pad bytes after `length` bytes of payload.
#[inline]
pub const fn pad_count(length: usize) -> u8 {
    (length.wrapping_neg() & 3) as u8
}

impl<'a> Packet<'a> {
    /// Takes a UDP payload apart: headers, payload, pad, ICRC.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, InvalidPacket> {
        let (headers, header_len) = Headers::parse(udp_payload)?;
        let have = udp_payload.len();
        let Some((body, icrc)) = udp_payload.get(header_len..).and_then(|rest| rest.split_last_chunk::<ICRC_LEN>())
        else {
            return Err(InvalidPacket::short(header_len + ICRC_LEN, have));
        };
        let info = headers.bth.opcode.info();
        let pad_count = headers.bth.pad_count;
        let payload = match body.len().checked_sub(pad_count as usize) {
            Some(length) if body.len().is_multiple_of(4) => &body[..length],
            _ => return Err(InvalidPacket::BadPad { pad_count, bytes: body.len() }),
        };
        if info.operation as u8 == Operation::Cnp as u8 {
            cnp::Cnp::parse(payload)?;
        } else if !info.payload && !body.is_empty() {
            return Err(InvalidPacket::Malformed("a payload after headers that take none"));
        }
        Ok(Self { headers, payload, icrc: u32::from_le_bytes(*icrc) })
    }

    /// Bytes of the whole UDP payload, pad and ICRC included.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(&self) -> usize {
        self.headers.len() + self.payload.len().next_multiple_of(4) + ICRC_LEN
    }

    /// Writes the UDP payload: headers (with the pad count that the payload needs), payload, pad of zeros, and
    /// [`Packet::icrc`] as it stands. Returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, CannotEmit> {
        let mut headers = self.headers;
        headers.bth.pad_count = pad_count(self.payload.len());
        let (need, have) = (self.len(), out.len());
        let no_room = CannotEmit::NoRoom { need, have };
        let out = out.get_mut(..need).ok_or(no_room)?;
        let header_len = headers.emit(out)?;
        let (body, icrc) = out[header_len..].split_last_chunk_mut().ok_or(no_room)?;
        let (payload, pad) = body.split_at_mut(self.payload.len());
        payload.copy_from_slice(self.payload);
        pad.fill(0);
        *icrc = self.icrc.to_le_bytes();
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::TABLE;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    prop_compose! {
        /// Headers of any opcode, with every extended header that it calls for.
        fn any_headers()(
            bth in crate::bth::tests::any_bth(), reth in crate::reth::tests::any_reth(),
            atomic_eth in crate::atomic_eth::tests::any_atomic_eth(), word: u32, original: u64, syndrome: u8, sel in 0u8..4,
            plt in 0u8..16,
        ) -> Headers {
            let has = |flag| bth.opcode.info().extensions.contains(flag);
            let aeth = Aeth { syndrome: Syndrome::from_byte(syndrome), msn: word >> 8 };
            let deth = Deth { qkey: crate::QKey(word), src_qp: Qpn::new(word >> 3) };
            Headers {
                bth,
                xrceth: has(Extensions::XRCETH).then(|| Srqn::new(word)),
                deth: has(Extensions::DETH).then_some(deth),
                feth: has(Extensions::FETH).then_some(Feth { sel, plt }),
                reth: has(Extensions::RETH).then_some(reth),
                atomic_eth: has(Extensions::ATOMIC_ETH).then_some(atomic_eth),
                aeth: has(Extensions::AETH).then_some(aeth),
                atomic_ack_eth: has(Extensions::ATOMIC_ACK_ETH).then_some(original),
                imm: has(Extensions::IMM_DT).then_some(word),
                ieth: has(Extensions::IETH).then_some(RKey(word)),
            }
        }
    }

    proptest! {
        #[test]
        fn any_packet_round_trips(mut headers in any_headers(), bytes in prop::collection::vec(any::<u8>(), 0..70), icrc: u32) {
            let info = headers.bth.opcode.info();
            let payload: &[u8] = match (info.payload, info.operation) {
                (_, Operation::Cnp) => &[0; cnp::LEN],
                (true, _) => &bytes,
                (false, _) => &[],
            };
            headers.bth.pad_count = pad_count(payload.len());
            let packet = Packet { headers, payload, icrc };
            let mut out = vec![0xa5; packet.len() + 3];
            prop_assert_eq!(packet.emit(&mut out), Ok(packet.len()));
            prop_assert_eq!(&out[packet.len()..], [0xa5; 3]);
            prop_assert_eq!(Packet::parse(&out[..packet.len()]), Ok(packet));
        }

        #[test]
        fn every_short_packet_is_refused(headers in any_headers(), have in 0usize..60) {
            let need = headers.len();
            let mut out = vec![0; need];
            headers.emit(&mut out).unwrap();
            if have < need {
                let cut = Headers::parse(&out[..have]);
                prop_assert!(matches!(cut, Err(InvalidPacket::Truncated { .. })), "{:?}", cut);
                prop_assert_eq!(headers.emit(&mut out[..have]), Err(CannotEmit::NoRoom { need, have }));
            }
            // The whole of the headers, but no ICRC.
            let whole = Packet::parse(&out);
            prop_assert_eq!(whole, Err(InvalidPacket::Truncated { need: need + 4, have: need }));
        }

        #[test]
        fn no_bytes_make_it_panic(row in 0..TABLE.len() + 3, mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            if let (Some(info), Some(code)) = (TABLE.get(row), bytes.first_mut()) {
                *code = info.code;
                if let Some(flags) = bytes.get_mut(1) {
                    *flags &= 0xf0;
                }
            }
            let _ = Headers::parse(&bytes);
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert_eq!(packet.len(), bytes.len());
            }
        }
    }

    fn write_only() -> Headers {
        let mut headers =
            Headers::new(Opcode::from_byte(0x0a).unwrap(), PKey::DEFAULT, Qpn::new(0x12), Psn::new(0xff_ffff));
        headers.reth = Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: 5 });
        headers
    }

    #[test]
    fn a_known_packet_is_taken_apart() {
        let mut bytes = vec![0x0a, 0x70, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 0xff, 0xff, 0xff];
        bytes.extend([0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 7, 0, 0, 0, 5]);
        bytes.extend([1, 2, 3, 4, 5, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde]);
        let packet = Packet::parse(&bytes).unwrap();
        let mut headers = write_only();
        headers.bth.ack_req = true;
        headers.bth.pad_count = 3;
        assert_eq!(packet, Packet { headers, payload: &[1, 2, 3, 4, 5], icrc: 0xdead_beef });
    }

    #[test]
    fn a_missing_header_is_the_callers_error() {
        let mut headers = write_only();
        headers.reth = None;
        assert_eq!(headers.emit(&mut [0; 64]), Err(CannotEmit::Missing("RETH")));
    }

    #[test]
    fn wrong_pads_are_refused() {
        let packet = Packet { headers: write_only(), payload: &[9; 4], icrc: 0 };
        let mut out = [0; 64];
        let len = packet.emit(&mut out).unwrap();
        for (end, bytes) in [(len - 1, 3), (len - 2, 2), (len + 1, 5)] {
            assert_eq!(Packet::parse(&out[..end]), Err(InvalidPacket::BadPad { pad_count: 0, bytes }));
        }
        out[1] |= 0x30;
        assert_eq!(Packet::parse(&out[..len]).unwrap().payload.len(), 1);
        assert_eq!(Packet::parse(&out[..len - 4]), Err(InvalidPacket::BadPad { pad_count: 3, bytes: 0 }));
    }

    #[test]
    fn headers_without_payload_refuse_one() {
        let mut ack = Headers::new(Opcode::from_byte(0x11).unwrap(), PKey::DEFAULT, Qpn::new(1), Psn::new(1));
        ack.aeth = Some(Aeth { syndrome: Syndrome::Ack(31), msn: 1 });
        let mut out = [0; 64];
        let len = Packet { headers: ack, payload: &[0; 4], icrc: 0 }.emit(&mut out).unwrap();
        assert!(matches!(Packet::parse(&out[..len]), Err(InvalidPacket::Malformed(_))));
        assert!(Packet::parse(&out[..len - 4]).is_ok());
    }

    #[test]
    fn a_cnp_carries_sixteen_bytes() {
        let headers = Headers::from_bth(cnp::bth(PKey::DEFAULT, Qpn::new(5)));
        let mut out = [0; 64];
        for (bytes, ok) in [(12, false), (16, true), (20, false)] {
            let len = Packet { headers, payload: &[0; 20][..bytes], icrc: 0 }.emit(&mut out).unwrap();
            assert_eq!(Packet::parse(&out[..len]).is_ok(), ok, "{bytes}");
        }
    }

    #[test]
    fn the_longest_headers_fit_the_promise() {
        let longest = TABLE.iter().map(|info| Opcode::from_byte(info.code).unwrap().header_len()).max();
        assert_eq!(longest, Some(MAX_HEADER_LEN));
        assert_eq!(HEADER_LEN[0x15], 0);
    }

    #[test]
    fn flush_has_feth_before_reth() {
        let mut flush = Headers::new(Opcode::from_byte(0x1c).unwrap(), PKey::DEFAULT, Qpn::new(1), Psn::new(1));
        flush.feth = Some(Feth { plt: 3, sel: 1 });
        flush.reth = Some(Reth { va: u64::MAX, rkey: RKey(u32::MAX), dma_len: u32::MAX });
        let mut out = [0; 32];
        assert_eq!(flush.emit(&mut out), Ok(32));
        assert_eq!(out[12..16], [0, 0, 0, 0x13]);
        assert_eq!(out[16..], [0xff; 16]);
        let xrc: Vec<usize> = [0xbc, 0xbd].map(|code| Opcode::from_byte(code).unwrap().header_len()).into();
        assert_eq!(xrc, [12 + 4 + 4 + 16, 12 + 4 + 16]);
    }
}
