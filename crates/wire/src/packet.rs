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
    pub const fn len(self) -> usize {
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
        len[info.code as usize] = (bth::LEN + info.extensions.len()) as u8;
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
