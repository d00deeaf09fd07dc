//! Classic capture files (draft-ietf-opsawg-pcap): reading both byte orders with µs and ns stamps from a slice, writing to
//! a `Vec`. Reading stops with an error at the first record that cannot be; what came before it stays good.

use alloc::vec::Vec;
use core::fmt;

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Endian {
    Little,
    Big,
}

impl Endian {
    /// A 16-bit number.
    pub(crate) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A 32-bit number.
    pub(crate) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// Appends a 16-bit number.
    pub(crate) fn put16(self, out: &mut Vec<u8>, value: u16) {
        out.extend(match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        });
    }

    /// Appends a 32-bit number.
    pub(crate) fn put32(self, out: &mut Vec<u8>, value: u32) {
        out.extend(match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        });
    }
}

/// Link-layer header type, as the registry of the draft numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub u16);

#[allow(missing_docs)]
impl LinkType {
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6, told apart by the version nibble.
    pub const RAW: Self = Self(101);
    pub const LINUX_SLL: Self = Self(113);
    pub const IPV4: Self = Self(228);
    pub const IPV6: Self = Self(229);
    pub const LINUX_SLL2: Self = Self(276);
}

/// Why a file cannot be read (further). The bytes are to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidCapture {
    /// Neither pcap nor pcapng: the first four bytes.
    BadMagic([u8; 4]),
    /// The file ends inside a header, a record or a block: it was cut, or its writer died.
    Truncated {
        /// Where the incomplete thing begins.
        offset: usize,
    },
    /// A length or field that cannot be.
    Malformed {
        /// Where.
        offset: usize,
        /// What.
        what: &'static str,
    },
}

impl fmt::Display for InvalidCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadMagic(magic) => write!(f, "not a pcap or pcapng file: it begins with {magic:02x?}"),
            Self::Truncated { offset } => write!(f, "the file ends inside the record at byte {offset}: it was cut"),
            Self::Malformed { offset, what } => write!(f, "byte {offset}: {what}"),
        }
    }
}

impl core::error::Error for InvalidCapture {}

/// One captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time, ns since 1970 (or whatever the capturer counts from).
    pub time_ns: u64,
    /// What the bytes begin with.
    pub link: LinkType,
    /// Bytes it had; `data` may be shorter.
    pub original_len: u32,
    /// Bytes that were kept.
    pub data: &'a [u8],
    /// A remark (pcapng only). The first one, if it is UTF-8.
    pub comment: Option<&'a str>,
}

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// Byte order and whether stamps are in ns, if these are the first bytes of a classic capture.
pub(crate) fn sniff(magic: [u8; 4]) -> Option<(Endian, bool)> {
    [Endian::Little, Endian::Big].into_iter().find_map(|endian| match endian.u32(magic) {
        MAGIC_US => Some((endian, false)),
        MAGIC_NS => Some((endian, true)),
        _ => None,
    })
}

/// Reads a classic capture from a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    endian: Endian,
    ns: bool,
    link: LinkType,
}

impl<'a> Reader<'a> {
    /// Reads the file header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidCapture> {
        let header: &[u8; FILE_HEADER] = bytes.first_chunk().ok_or(InvalidCapture::Truncated { offset: 0 })?;
        let magic = crate::field::array(header, 0);
        let (endian, ns) = sniff(magic).ok_or(InvalidCapture::BadMagic(magic))?;
        // The upper bits of the link type say how long the FCS is, which is then part of no packet here.
        let link = LinkType(endian.u32(crate::field::array(header, 20)) as u16);
        Ok(Self { bytes, at: FILE_HEADER, endian, ns, link })
    }

    /// Byte order of the file.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// True if stamps are in ns.
    pub fn is_ns(&self) -> bool {
        self.ns
    }

    /// Link type of all packets.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// The next packet; `None` at the end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<Record<'a>, InvalidCapture>> {
        let offset = self.at;
        let rest = self.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        let result = self.record(rest).ok_or(InvalidCapture::Truncated { offset });
        match &result {
            Ok(record) => self.at += RECORD_HEADER + record.data.len(),
            Err(_) => self.at = self.bytes.len(),
        }
        Some(result)
    }

    fn record(&self, rest: &'a [u8]) -> Option<Record<'a>> {
        let header: &[u8; RECORD_HEADER] = rest.first_chunk()?;
        let word = |at| self.endian.u32(crate::field::array(header, at));
        let (seconds, fraction, kept, original_len) = (word(0), word(4), word(8), word(12));
        let data = rest.get(RECORD_HEADER..)?.get(..usize::try_from(kept).ok()?)?;
        let fraction_ns = u64::from(fraction) * if self.ns { 1 } else { 1_000 };
        let time_ns = u64::from(seconds) * 1_000_000_000 + fraction_ns;
        Some(Record { time_ns, link: self.link, original_len, data, comment: None })
    }
}

/// Writes a classic capture.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    endian: Endian,
    ns: bool,
}

impl Writer {
    /// Starts a file: appends the file header.
    pub fn new(out: &mut Vec<u8>, endian: Endian, ns: bool, link: LinkType) -> Self {
        endian.put32(out, if ns { MAGIC_NS } else { MAGIC_US });
        endian.put16(out, 2);
        endian.put16(out, 4);
        for word in [0, 0, 262_144, u32::from(link.0)] {
            endian.put32(out, word);
        }
        Self { endian, ns }
    }

    /// Appends a packet that was kept whole or in part.
    pub fn record(&self, out: &mut Vec<u8>, time_ns: u64, original_len: u32, data: &[u8]) {
        let fraction = (time_ns % 1_000_000_000) as u32;
        self.endian.put32(out, (time_ns / 1_000_000_000) as u32);
        self.endian.put32(out, if self.ns { fraction } else { fraction / 1_000 });
        self.endian.put32(out, data.len() as u32);
        self.endian.put32(out, original_len);
        out.extend_from_slice(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            big: bool, ns: bool, link: u16,
            packets in prop::collection::vec((0u64..4_000_000_000_000_000_000, prop::collection::vec(any::<u8>(), 0..40)), 0..5),
        ) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut file = Vec::new();
            let writer = Writer::new(&mut file, endian, ns, LinkType(link));
            for (time, data) in &packets {
                writer.record(&mut file, *time, data.len() as u32 + 7, data);
            }
            let mut reader = Reader::new(&file).unwrap();
            prop_assert_eq!((reader.endian(), reader.is_ns(), reader.link()), (endian, ns, LinkType(link)));
            for (time, data) in &packets {
                let record = reader.next().unwrap().unwrap();
                prop_assert_eq!(record.time_ns, if ns { *time } else { time / 1_000 * 1_000 });
                prop_assert_eq!(record.data, &data[..]);
                prop_assert_eq!(record.original_len as usize, data.len() + 7);
            }
            prop_assert!(reader.next().is_none());
        }

        #[test]
        fn nothing_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic in 0usize..3) {
            if let (Some(start), Some(magic)) = (bytes.first_chunk_mut(), [MAGIC_US, MAGIC_NS].get(magic)) {
                *start = magic.to_le_bytes();
            }
            if let Ok(mut reader) = Reader::new(&bytes) {
                while reader.next().is_some() {}
            }
        }
    }

    #[test]
    fn a_cut_record_is_an_error_and_the_end() {
        let mut file = Vec::new();
        let writer = Writer::new(&mut file, Endian::Little, true, LinkType::ETHERNET);
        writer.record(&mut file, 5, 3, &[1, 2, 3]);
        let second = file.len();
        writer.record(&mut file, 6, 3, &[1, 2, 3]);
        for cut in second + 1..file.len() {
            let mut reader = Reader::new(&file[..cut]).unwrap();
            assert!(reader.next().unwrap().is_ok());
            assert_eq!(reader.next(), Some(Err(InvalidCapture::Truncated { offset: second })));
            assert_eq!(reader.next(), None);
        }
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(Reader::new(&[0x7f; 24]).unwrap_err(), InvalidCapture::BadMagic([0x7f; 4]));
        assert_eq!(Reader::new(&[0xd4, 0xc3, 0xb2]).unwrap_err(), InvalidCapture::Truncated { offset: 0 });
    }
}
