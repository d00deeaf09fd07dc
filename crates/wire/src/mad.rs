//! Management datagram (clause 13.4): 24 bytes of header and 232 of class data, always 256 together. Base version 1 is the
//! only one; class, method and attribute are carried as numbers, since each class has its own.

use crate::field::{array, be16, be32, be64, put};
use crate::invalid::InvalidPacket;

/// Bytes of the header.
pub const LEN: usize = 24;
/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
/// Bytes after the header.
pub const DATA_LEN: usize = MAD_LEN - LEN;

/// Management class of communication management.
pub const CLASS_CM: u8 = 0x07;
/// Its version.
pub const CLASS_CM_VERSION: u8 = 2;
/// Method: a datagram that asks for no response of its own.
pub const METHOD_SEND: u8 = 0x03;
/// Q_Key of QP 1 (clause 10.2.5).
pub const GSI_QKEY: crate::QKey = crate::QKey(0x8001_0000);

/// A MAD header in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8; LEN]);

impl<'a> View<'a> {
    /// Looks at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidPacket> {
        bytes.first_chunk().map(Self).ok_or(InvalidPacket::short(LEN, bytes.len()))
    }

    /// Base version.
    pub fn base_version(&self) -> u8 {
        self.0[0]
    }

    /// Management class.
    pub fn mgmt_class(&self) -> u8 {
        self.0[1]
    }

    /// Class version.
    pub fn class_version(&self) -> u8 {
        self.0[2]
    }

    /// Response bit and method.
    pub fn method(&self) -> u8 {
        self.0[3]
    }

    /// Status.
    pub fn status(&self) -> u16 {
        be16(self.0, 4)
    }

    /// Class specific.
    pub fn class_specific(&self) -> u16 {
        be16(self.0, 6)
    }

    /// Transaction ID.
    pub fn transaction_id(&self) -> u64 {
        be64(self.0, 8)
    }

    /// Attribute ID.
    pub fn attribute_id(&self) -> u16 {
        be16(self.0, 16)
    }

    /// Attribute modifier.
    pub fn attribute_modifier(&self) -> u32 {
        be32(self.0, 20)
    }
}

/// MAD header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Management class.
    pub mgmt_class: u8,
    /// Class version.
    pub class_version: u8,
    /// Response bit (top) and method.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// Class specific.
    pub class_specific: u16,
    /// Transaction ID.
    pub transaction_id: u64,
    /// Attribute ID.
    pub attribute_id: u16,
    /// Attribute modifier. CM: the attribute modifier of enhanced connection establishment, where there is one.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Reads the header at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPacket> {
        let view = View::new(bytes)?;
        if view.base_version() != 1 {
            return Err(InvalidPacket::Malformed("MAD base version is not 1"));
        }
        Ok(Self {
            mgmt_class: view.mgmt_class(),
            class_version: view.class_version(),
            method: view.method(),
            status: view.status(),
            class_specific: view.class_specific(),
            transaction_id: view.transaction_id(),
            attribute_id: view.attribute_id(),
            attribute_modifier: view.attribute_modifier(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = [0; LEN];
        put(out, 0, [1, self.mgmt_class, self.class_version, self.method]);
        put(out, 4, self.status.to_be_bytes());
        put(out, 6, self.class_specific.to_be_bytes());
        put(out, 8, self.transaction_id.to_be_bytes());
        put(out, 16, self.attribute_id.to_be_bytes());
        put(out, 20, self.attribute_modifier.to_be_bytes());
    }

    /// Reads a whole MAD: header and class data. Exactly 256 bytes.
    pub fn parse_mad(payload: &[u8]) -> Result<(Self, &[u8; DATA_LEN]), InvalidPacket> {
        let header = Self::parse(payload)?;
        match payload.split_first_chunk::<LEN>().map(|(_, data)| <&[u8; DATA_LEN]>::try_from(data)) {
            Some(Ok(data)) => Ok((header, data)),
            _ if payload.len() < MAD_LEN => Err(InvalidPacket::short(MAD_LEN, payload.len())),
            _ => Err(InvalidPacket::Malformed("a MAD of more than 256 bytes")),
        }
    }

    /// Writes a whole MAD.
    pub fn emit_mad(&self, data: &[u8; DATA_LEN]) -> [u8; MAD_LEN] {
        let mut header = [0; LEN];
        self.emit(&mut header);
        let mut out = [0; MAD_LEN];
        put(&mut out, 0, header);
        put(&mut out, LEN, array::<DATA_LEN, DATA_LEN>(data, 0));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_mad()(
            bytes: [u8; 3], status: u16, class_specific: u16, transaction_id: u64, attribute_id: u16,
            attribute_modifier: u32,
        ) -> MadHeader {
            let [mgmt_class, class_version, method] = bytes;
            MadHeader {
                mgmt_class, class_version, method, status, class_specific, transaction_id, attribute_id,
                attribute_modifier,
            }
        }
    }

    crate::header_tests::header_tests! {
        MadHeader,
        known: [
            1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 1, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0x10, 0, 0, 0, 0, 0, 5,
        ],
        means: MadHeader {
            mgmt_class: CLASS_CM, class_version: CLASS_CM_VERSION, method: METHOD_SEND, status: 0, class_specific: 0,
            transaction_id: 0x1_aabb_ccdd, attribute_id: 0x10, attribute_modifier: 5,
        },
        illegal: [
            (0, 0) => InvalidPacket::Malformed("MAD base version is not 1"),
            (0, 2) => InvalidPacket::Malformed("MAD base version is not 1"),
        ],
        any: any_mad(),
    }

    #[test]
    fn a_mad_has_256_bytes_and_no_others() {
        let header = MadHeader::parse(&KNOWN).unwrap();
        let mad = header.emit_mad(&[7; DATA_LEN]);
        assert_eq!(MadHeader::parse_mad(&mad), Ok((header, &[7; DATA_LEN])));
        assert_eq!(MadHeader::parse_mad(&mad[..255]), Err(InvalidPacket::Truncated { need: 256, have: 255 }));
        let mut long = [0; 257];
        long[..256].copy_from_slice(&mad);
        assert!(matches!(MadHeader::parse_mad(&long), Err(InvalidPacket::Malformed(_))));
    }
}
