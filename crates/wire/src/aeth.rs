//! ACK extended transport header, 4 bytes (clause 9.3.5), with the tables of its syndrome: NAK codes (table 47), RNR timer
//! codes (table 45) and credit codes (table 46). A reserved syndrome parses as such: what to do with it is the requester's
//! matter.

use crate::field::be24;
use crate::invalid::InvalidPacket;

/// Bytes on the wire.
pub const LEN: usize = 4;

/// An AETH in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// The syndrome byte.
    #[inline]
    pub fn syndrome(&self) -> u8 {
        self.0[0]
    }

    /// Message sequence number.
    #[inline]
    pub fn msn(&self) -> u32 {
        be24(self.0, 1)
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is said.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages completed by the responder.
    pub msn: u32,
}

impl Aeth {
    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        Ok(Self { syndrome: Syndrome::from_byte(view.syndrome()), msn: view.msn() })
    }

    /// Writes the header; the low 24 bits of `msn` are used.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.msn.to_be_bytes();
        out[0] = self.syndrome.to_byte();
    }
}

/// The AETH syndrome, 8 bits (table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK with a credit code, 0 to 31; 31 means that no credits are given.
    Ack(u8),
    /// RNR NAK with a timer code, 0 to 31.
    RnrNak(u8),
    /// NAK.
    Nak(NakCode),
    /// A reserved value: the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// The credit code of a responder that counts no credits.
    pub const NO_CREDITS: u8 = 31;

    /// The meaning of a syndrome byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        let low = byte & 0x1f;
        match byte >> 5 {
            0 => Self::Ack(low),
            1 => Self::RnrNak(low),
            3 => match low {
                0 => Self::Nak(NakCode::PsnSequenceError),
                1 => Self::Nak(NakCode::InvalidRequest),
                2 => Self::Nak(NakCode::RemoteAccessError),
                3 => Self::Nak(NakCode::RemoteOperationalError),
                4 => Self::Nak(NakCode::InvalidRdRequest),
                _ => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | (timer & 0x1f),
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// NAK codes (table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum NakCode {
    PsnSequenceError = 0,
    InvalidRequest = 1,
    RemoteAccessError = 2,
    RemoteOperationalError = 3,
    InvalidRdRequest = 4,
}

/// RNR timer codes (table 45): the wait in units of 10 µs. Code 0 is the longest.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The wait that an RNR timer code asks for, in ns: 10 µs (code 1) to 655.36 ms (code 0). Only the low 5 bits count.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[(code & 31) as usize] as u64 * 10_000
}

/// Credits of a credit code 0 to 30 (table 46); `None` for 31, which gives none and limits nothing.
pub const fn credits(code: u8) -> Option<u32> {
    match code & 31 {
        31 => None,
        0 => Some(0),
        // 1, 2, 3, 4, 6, 8, 12, 16, …: powers of two and the halfway values between them.
        code if code % 2 == 1 => Some(if code == 1 { 1 } else { 3 << ((code - 3) / 2) }),
        code => Some(1 << (code / 2)),
    }
}

/// The largest credit code that promises no more than `receives`.
pub const fn credit_code(receives: u32) -> u8 {
    let mut code = 30;
    while code > 0 {
        match credits(code) {
            Some(credits) if credits > receives => code -= 1,
            _ => break,
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    crate::header_tests::header_tests! {
        Aeth,
        known: [0x62, 0x00, 0x00, 0x05],
        means: Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccessError), msn: 5 },
        illegal: [],
        any: (any::<u8>(), 0u32..1 << 24).prop_map(|(s, msn)| Aeth { syndrome: Syndrome::from_byte(s), msn }),
    }

    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x34), Syndrome::RnrNak(20));
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(Syndrome::NO_CREDITS));
        assert_eq!(Syndrome::from_byte(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn rnr_timers_are_those_of_the_standard() {
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(5), 60_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(20), 10_240_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
        assert!((2..32).all(|code| rnr_timer_ns(code) > rnr_timer_ns(code - 1)));
    }

    #[test]
    fn credit_codes_are_those_of_the_standard() {
        let table = [
            0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
            4096, 6144, 8192, 12288, 16384, 24576, 32768,
        ];
        for (code, want) in table.into_iter().enumerate() {
            assert_eq!(credits(code as u8), Some(want), "code {code}");
            assert_eq!(credit_code(want), code as u8);
        }
        assert_eq!(credits(31), None);
        assert_eq!(credit_code(5), 4);
        assert_eq!(credit_code(u32::MAX), 30);
    }
}
