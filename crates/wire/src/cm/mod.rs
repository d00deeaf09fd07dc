//! Communication management messages (chapter 12): what travels to QP 1 to set up, move and tear down connections.
//!
//! Here are bytes and fields only; the state machines live in the transport. Field places are those of tables 99 to 120 as
//! `include/rdma/ibta_vol1_c12.h` of Linux gives them, with the vendor ID of enhanced connection establishment in the bits
//! that Linux uses for it. Reserved bits are ignored on receipt and sent as 0.

mod layout;

pub mod apr;
pub mod drep;
pub mod dreq;
pub mod ip_addressing;
pub mod lap;
pub mod mra;
pub mod path;
pub mod rej;
pub mod rep;
pub mod req;
pub mod rtu;
pub mod sidr_rep;
pub mod sidr_req;

pub use apr::Apr;
pub use drep::Drep;
pub use dreq::Dreq;
pub use ip_addressing::IpAddressing;
pub use lap::Lap;
pub use mra::Mra;
pub use path::Path;
pub use rej::Rej;
pub use rep::Rep;
pub use req::Req;
pub use rtu::Rtu;
pub use sidr_rep::SidrRep;
pub use sidr_req::SidrReq;

use core::fmt;

use crate::invalid::InvalidPacket;
use crate::mad::{self, DATA_LEN, MAD_LEN, MadHeader};

/// Names one side's half of a connection. Each side chooses its own (clause 12.9.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct CommId(pub u32);

/// What a listener listens on (annex A3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! messages {
    ($( $variant:ident $name:literal $attribute:literal; )*) => {
        /// A CM message.
        // The variants are of similar size, and boxing them would make parsing allocate.
        #[allow(clippy::large_enum_variant, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message { $( $variant($variant), )* }

        impl Message {
            /// Attribute IDs and names of all messages (table 98).
            pub const ATTRIBUTES: &'static [(u16, &'static str)] = &[ $( ($attribute, $name), )* ];

            /// Attribute ID.
            pub const fn attribute_id(&self) -> u16 {
                match self { $( Self::$variant(_) => $attribute, )* }
            }

            /// Name as the standard prints it.
            pub const fn name(&self) -> &'static str {
                match self { $( Self::$variant(_) => $name, )* }
            }

            /// Reads the class data of a MAD with this attribute ID.
            pub fn parse(attribute_id: u16, data: &[u8; DATA_LEN]) -> Result<Self, InvalidPacket> {
                match attribute_id {
                    $( $attribute => $variant::parse(data).map(Self::$variant), )*
                    _ => Err(InvalidPacket::Malformed("an attribute that communication management does not have")),
                }
            }

            /// Writes the class data.
            pub fn emit(&self, out: &mut [u8; DATA_LEN]) {
                match self { $( Self::$variant(message) => message.emit(out), )* }
            }
        }

        $(
            impl From<$variant> for Message {
                fn from(message: $variant) -> Self {
                    Self::$variant(message)
                }
            }
        )*
    };
}

messages! {
    Req "REQ" 0x0010;
    Mra "MRA" 0x0011;
    Rej "REJ" 0x0012;
    Rep "REP" 0x0013;
    Rtu "RTU" 0x0014;
    Dreq "DREQ" 0x0015;
    Drep "DREP" 0x0016;
    SidrReq "SIDR_REQ" 0x0017;
    SidrRep "SIDR_REP" 0x0018;
    Lap "LAP" 0x0019;
    Apr "APR" 0x001a;
}

/// A CM message with what its MAD header adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Ties a response to its request (clause 12.9.8: chosen by whoever begins the exchange).
    pub transaction_id: u64,
    /// Attribute modifier: what enhanced connection establishment negotiates (REQ, REP, SIDR_REP); else 0.
    pub attribute_modifier: u32,
    /// The message.
    pub message: Message,
}

impl CmMad {
    /// Reads the 256 bytes that came to QP 1.
    pub fn parse(payload: &[u8]) -> Result<Self, InvalidPacket> {
        let (header, data) = MadHeader::parse_mad(payload)?;
        if header.mgmt_class != mad::CLASS_CM {
            return Err(InvalidPacket::Malformed("a MAD of another class than communication management"));
        }
        if header.class_version != mad::CLASS_CM_VERSION {
            return Err(InvalidPacket::Malformed("communication management of another class version than 2"));
        }
        if header.method != mad::METHOD_SEND {
            return Err(InvalidPacket::Malformed("communication management knows only the method Send"));
        }
        Ok(Self {
            transaction_id: header.transaction_id,
            attribute_modifier: header.attribute_modifier,
            message: Message::parse(header.attribute_id, data)?,
        })
    }

    /// Writes the 256 bytes.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut data = [0; DATA_LEN];
        self.message.emit(&mut data);
        let header = MadHeader {
            mgmt_class: mad::CLASS_CM,
            class_version: mad::CLASS_CM_VERSION,
            method: mad::METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction_id: self.transaction_id,
            attribute_id: self.message.attribute_id(),
            attribute_modifier: self.attribute_modifier,
        };
        header.emit_mad(&data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_message_round_trips_and_nothing_panics(
            attribute in 0x0eu16..0x1d, transaction_id: u64, attribute_modifier: u32, data in prop::collection::vec(any::<u8>(), 232),
        ) {
            let data: [u8; DATA_LEN] = data.try_into().unwrap();
            let known = Message::ATTRIBUTES.iter().any(|&(id, _)| id == attribute);
            let message = Message::parse(attribute, &data);
            prop_assert_eq!(message.is_ok(), known);
            if let Ok(message) = message {
                prop_assert_eq!(message.attribute_id(), attribute);
                let mad = CmMad { transaction_id, attribute_modifier, message };
                prop_assert_eq!(CmMad::parse(&mad.emit()), Ok(mad));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = CmMad::parse(&bytes);
        }
    }

    #[test]
    fn each_illegal_header_field_is_refused() {
        let mad = CmMad { transaction_id: 1, attribute_modifier: 0, message: Rtu::default().into() };
        let good = mad.emit();
        assert_eq!(CmMad::parse(&good), Ok(mad));
        for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 0x83), (17, 0x1b)] {
            let mut bad = good;
            bad[at] = value;
            assert!(matches!(CmMad::parse(&bad), Err(InvalidPacket::Malformed(_))), "byte {at} = {value:#x}");
        }
        assert!(matches!(CmMad::parse(&good[..200]), Err(InvalidPacket::Truncated { .. })));
    }
}
