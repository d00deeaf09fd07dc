//! Why bytes are not a packet. The bytes are to blame: nothing here is an error of the caller or of the machine.
//!
//! The variants correspond one to one to the drop reasons of the transport, so that each ends in its own counter.

use core::fmt;

/// What is wrong with received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidPacket {
    /// Shorter than its own headers say.
    Truncated {
        /// Bytes that were needed.
        need: usize,
        /// Bytes that were there.
        have: usize,
    },
    /// The opcode byte is not in the table.
    BadOpcode(u8),
    /// The transport header version is not 0.
    BadVersion(u8),
    /// Pad count beyond the payload, or a packet that is not a multiple of four bytes.
    BadPad {
        /// Pad count of the BTH.
        pad_count: u8,
        /// Bytes between the headers and the ICRC.
        bytes: usize,
    },
    /// A field has a value that the standard forbids; which one.
    Malformed(&'static str),
}

impl InvalidPacket {
    /// The refusal of `have` bytes where `need` are needed.
    #[inline]
    pub(crate) const fn short(need: usize, have: usize) -> Self {
        Self::Truncated { need, have }
    }
}

impl fmt::Display for InvalidPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { need, have } => write!(f, "truncated: {have} bytes where the headers need {need}"),
            Self::BadOpcode(code) => write!(f, "opcode {code:#04x} is in no table of the standard"),
            Self::BadVersion(tver) => write!(f, "transport header version {tver}; only 0 exists"),
            Self::BadPad { pad_count, bytes } => {
                write!(f, "pad count {pad_count} does not fit {bytes} bytes of payload and pad")
            }
            Self::Malformed(what) => write!(f, "malformed: {what}"),
        }
    }
}

impl core::error::Error for InvalidPacket {}

/// Why a packet could not be written. The caller is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotEmit {
    /// The opcode calls for an extended header that is `None`; which one.
    Missing(&'static str),
    /// The output is shorter than the packet.
    NoRoom {
        /// Bytes that are needed.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
}

impl fmt::Display for CannotEmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Missing(header) => write!(f, "the opcode needs a {header}, which is not set"),
            Self::NoRoom { need, have } => write!(f, "{need} bytes to write and room for {have}"),
        }
    }
}

impl core::error::Error for CannotEmit {}
