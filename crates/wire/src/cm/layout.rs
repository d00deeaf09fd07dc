//! The layout language of CM messages: a table of fields with their byte, bit and width, from which view, struct, `parse`,
//! `emit` and the five tests are made.
//!
//! Bits count from the most significant one of a byte, as the tables of the standard do.

use crate::ids::{Gid, PKey, Psn, QKey, Qpn, Srqn};

use super::{CommId, Path, ServiceId};

/// `(byte, bit, width)`: a run of bits. A field is one or several, most significant first.
pub(crate) type Run = (usize, usize, usize);

/// The value of a field.
pub(crate) const fn get<const L: usize>(bytes: &[u8; L], runs: &[Run]) -> u64 {
    let mut value = 0;
    let mut run = 0;
    while run < runs.len() {
        let (byte, bit, width) = runs[run];
        let mut i = byte * 8 + bit;
        let end = i + width;
        while i < end {
            // Whole bytes at once where the run allows it.
            if i.is_multiple_of(8) && end - i >= 8 {
                value = value << 8 | bytes[i / 8] as u64;
                i += 8;
            } else {
                value = value << 1 | (bytes[i / 8] >> (7 - i % 8) & 1) as u64;
                i += 1;
            }
        }
        run += 1;
    }
    value
}

/// Writes the low bits of `value` to a field; the other bits of its bytes stay.
pub(crate) fn set<const L: usize>(bytes: &mut [u8; L], runs: &[Run], mut value: u64) {
    for &(byte, bit, width) in runs.iter().rev() {
        let start = byte * 8 + bit;
        for i in (start..start + width).rev() {
            let mask = 1 << (7 - i % 8);
            bytes[i / 8] = bytes[i / 8] & !mask | if value & 1 != 0 { mask } else { 0 };
            value >>= 1;
        }
    }
}

/// A field of at most 64 bits.
pub(crate) trait Bits {
    fn from_bits(value: u64) -> Self;
    fn to_bits(&self) -> u64;
}

macro_rules! bits {
    ($( $t:ty: |$v:ident| $from:expr, |$s:ident| $to:expr; )*) => { $(
        impl Bits for $t {
            fn from_bits($v: u64) -> Self {
                $from
            }
            fn to_bits(&self) -> u64 {
                let $s = self;
                $to
            }
        }
    )* };
}

bits! {
    u8: |v| v as u8, |s| u64::from(*s);
    u16: |v| v as u16, |s| u64::from(*s);
    u32: |v| v as u32, |s| u64::from(*s);
    u64: |v| v, |s| *s;
    bool: |v| v != 0, |s| u64::from(*s);
    Qpn: |v| Self::new(v as u32), |s| u64::from(s.get());
    Psn: |v| Self::new(v as u32), |s| u64::from(s.get());
    Srqn: |v| Self::new(v as u32), |s| u64::from(s.get());
    QKey: |v| Self(v as u32), |s| u64::from(s.0);
    PKey: |v| Self(v as u16), |s| u64::from(s.0);
    CommId: |v| Self(v as u32), |s| u64::from(s.0);
    ServiceId: |v| Self(v), |s| s.0;
}

/// A field of whole bytes.
pub(crate) trait Block {
    fn read<const L: usize>(bytes: &[u8; L], at: usize) -> Self;
    fn write<const L: usize>(&self, bytes: &mut [u8; L], at: usize);
}

impl<const N: usize> Block for [u8; N] {
    fn read<const L: usize>(bytes: &[u8; L], at: usize) -> Self {
        crate::field::array(bytes, at)
    }

    fn write<const L: usize>(&self, bytes: &mut [u8; L], at: usize) {
        crate::field::put(bytes, at, *self);
    }
}

impl Block for Gid {
    fn read<const L: usize>(bytes: &[u8; L], at: usize) -> Self {
        Self(crate::field::array(bytes, at))
    }

    fn write<const L: usize>(&self, bytes: &mut [u8; L], at: usize) {
        crate::field::put(bytes, at, self.0);
    }
}

impl Block for Path {
    fn read<const L: usize>(bytes: &[u8; L], at: usize) -> Self {
        Self::from_bytes(&crate::field::array(bytes, at))
    }

    fn write<const L: usize>(&self, bytes: &mut [u8; L], at: usize) {
        let mut own = crate::field::array(bytes, at);
        self.put(&mut own);
        crate::field::put(bytes, at, own);
    }
}

/// Makes a message of `$len` bytes: `View`, the struct, `parse` and `emit`.
macro_rules! layout {
    (
        $(#[$meta:meta])* $name:ident, $len:expr;
        bits { $( $(#[$bmeta:meta])* $bit:ident: $bty:ty = [$( ($byte:literal, $first:literal, $width:literal) ),+]; )* }
        blocks { $( $(#[$kmeta:meta])* $block:ident: $kty:ty = $at:literal; )* }
    ) => {
        /// Bytes.
        pub const LEN: usize = $len;

        /// The bytes in place.
        #[derive(Clone, Copy, Debug)]
        pub struct View<'a>(&'a [u8; LEN]);

        impl<'a> View<'a> {
            /// Looks at the start of `bytes`.
            pub fn new(bytes: &'a [u8]) -> Result<Self, $crate::invalid::InvalidPacket> {
                bytes.first_chunk().map(Self).ok_or($crate::invalid::InvalidPacket::short(LEN, bytes.len()))
            }

            $(
                $(#[$bmeta])*
                pub fn $bit(&self) -> $bty {
                    $crate::cm::layout::Bits::from_bits($crate::cm::layout::get(self.0, &[$( ($byte, $first, $width) ),+]))
                }
            )*
            $(
                $(#[$kmeta])*
                pub fn $block(&self) -> $kty {
                    $crate::cm::layout::Block::read(self.0, $at)
                }
            )*
        }

        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$bmeta])* pub $bit: $bty, )*
            $( $(#[$kmeta])* pub $block: $kty, )*
        }

        impl $name {
            /// Reads the fields at the start of `bytes`. Every bit pattern is legal here.
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::invalid::InvalidPacket> {
                View::new(bytes).map(|view| Self::from_bytes(view.0))
            }

            /// Reads the fields.
            pub(crate) fn from_bytes(bytes: &[u8; LEN]) -> Self {
                let view = View(bytes);
                Self { $( $bit: view.$bit(), )* $( $block: view.$block(), )* }
            }

            /// Writes the fields; reserved bits become 0. Only the bits that a field has on the wire are used.
            pub fn emit(&self, out: &mut [u8; LEN]) {
                *out = [0; LEN];
                self.put(out);
            }

            /// Writes the fields and leaves every other bit.
            pub(crate) fn put(&self, out: &mut [u8; LEN]) {
                // Blocks first: a path leaves out bits that are a field of the message around it.
                $( $crate::cm::layout::Block::write(&self.$block, out, $at); )*
                $(
                    let value = $crate::cm::layout::Bits::to_bits(&self.$bit);
                    $crate::cm::layout::set(out, &[$( ($byte, $first, $width) ),+], value);
                )*
            }
        }

        impl Default for $name {
            /// All zeros.
            fn default() -> Self {
                Self::from_bytes(&[0; LEN])
            }
        }
    };
}
pub(crate) use layout;

/// The five tests of a message: `$known` lists bytes of an otherwise zero message, `$means` the fields that differ from
/// the default. Round trips run over random bytes, whose reserved bits do not survive, so from the struct.
macro_rules! layout_tests {
    ($name:ident, known: [$( ($at:literal, $bytes:expr) ),* $(,)?], means: { $( $field:ident: $value:expr ),* $(,)? }) => {
        #[cfg(test)]
        mod tests {
            use super::*;
            #[allow(unused_imports)]
            use $crate::ids::{Gid, PKey, Psn, QKey, Qpn};
            use proptest::prelude::*;

            fn known() -> [u8; LEN] {
                let mut bytes = [0; LEN];
                $( bytes[$at..$at + $bytes.len()].copy_from_slice(&$bytes); )*
                bytes
            }

            // Short messages give every field.
            #[allow(clippy::needless_update)]
            fn means() -> $name {
                $name { $( $field: $value, )* ..Default::default() }
            }

            #[test]
            fn known_bytes_parse() {
                assert_eq!($name::parse(&known()), Ok(means()));
            }

            #[test]
            fn known_value_emits_the_same_bytes() {
                let mut out = [0xa5; LEN];
                means().emit(&mut out);
                assert_eq!(out, known());
            }

            #[test]
            fn every_short_message_is_refused() {
                for have in 0..LEN {
                    let refusal = $crate::invalid::InvalidPacket::Truncated { need: LEN, have };
                    assert_eq!($name::parse(&known()[..have]), Err(refusal));
                }
            }

            #[test]
            fn no_field_is_illegal() {
                for at in 0..LEN {
                    for value in [0, 1, 0x80, 0xff] {
                        let mut bytes = known();
                        bytes[at] = value;
                        assert!($name::parse(&bytes).is_ok(), "byte {at} = {value:#x}");
                    }
                }
            }

            proptest! {
                #[test]
                fn anything_round_trips(bytes in prop::collection::vec(any::<u8>(), LEN)) {
                    let value = $name::parse(&bytes).unwrap();
                    let mut out = [0x5a; LEN];
                    value.emit(&mut out);
                    prop_assert_eq!($name::parse(&out), Ok(value));
                    // No bit is made up: what is written was there.
                    prop_assert!(out.iter().zip(&bytes).all(|(out, byte)| out & !byte == 0));
                }
            }
        }
    };
}
pub(crate) use layout_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_count_from_the_top_and_join() {
        let mut bytes = [0; 4];
        set(&mut bytes, &[(0, 5, 3), (2, 0, 8)], 0x5a5);
        assert_eq!(bytes, [0b101, 0, 0xa5, 0]);
        assert_eq!(get(&bytes, &[(0, 5, 3), (2, 0, 8)]), 0x5a5);
        assert_eq!(get(&bytes, &[(0, 4, 20)]), 0b0101_0000_0000_1010_0101);
    }
}
