//! Capture files of the next generation (draft-ietf-opsawg-pcapng): sections of either byte order, several interfaces with
//! stamps of any resolution, packets with comments. Reading works on a slice and skips blocks it does not know; writing
//! appends to a `Vec`, so that a capture port can stream.

use alloc::vec::Vec;

use crate::pcap::{Endian, InvalidCapture, LinkType, Record};

/// Type of the block that begins a section, the same in both byte orders.
pub(crate) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;

/// What an interface's packets have in common.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    snaplen: u32,
    /// As in `if_tsresol`: a power of ten, or of two if the top bit is set.
    resolution: u8,
    offset_s: i64,
}

impl Interface {
    /// A stamp in ns; stays at the end of time if it is beyond it.
    fn time_ns(&self, stamp: u64) -> u64 {
        let power = u32::from(self.resolution & 0x7f);
        let ns = if self.resolution & 0x80 != 0 {
            (u128::from(stamp) * 1_000_000_000) >> power
        } else if power <= 9 {
            u128::from(stamp) * 10u128.pow(9 - power)
        } else {
            10u64.checked_pow(power - 9).map_or(0, |divisor| u128::from(stamp / divisor))
        };
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(i128::from(self.offset_s) * 1_000_000_000);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

/// The options at the end of a block.
struct Options<'a> {
    endian: Endian,
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let code = self.endian.u16(take(&mut self.rest)?);
        let length = usize::from(self.endian.u16(take(&mut self.rest)?));
        if code == OPT_END {
            return None;
        }
        let value = self.rest.get(..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    }
}

/// Reads a capture from a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    endian: Endian,
    interfaces: Vec<Interface>,
}

impl<'a> Reader<'a> {
    /// Looks at the first block, which must begin a section.
    pub fn new(bytes: &'a [u8]) -> Result<Self, InvalidCapture> {
        let magic: [u8; 4] = *bytes.first_chunk().ok_or(InvalidCapture::Truncated { offset: 0 })?;
        if magic != SECTION_HEADER {
            return Err(InvalidCapture::BadMagic(magic));
        }
        Ok(Self { bytes, at: 0, endian: Endian::Little, interfaces: Vec::new() })
    }

    /// The next packet; `None` at the end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<Record<'a>, InvalidCapture>> {
        loop {
            if self.at >= self.bytes.len() {
                return None;
            }
            match self.block() {
                Ok(None) => {}
                Ok(Some(record)) => return Some(Ok(record)),
                Err(error) => {
                    self.at = self.bytes.len();
                    return Some(Err(error));
                }
            }
        }
    }

    /// Reads one block and goes past it.
    fn block(&mut self) -> Result<Option<Record<'a>>, InvalidCapture> {
        let offset = self.at;
        let malformed = |what| InvalidCapture::Malformed { offset, what };
        let truncated = InvalidCapture::Truncated { offset };
        let block = self.bytes.get(offset..).ok_or(truncated)?;
        let mut head = block;
        let kind: [u8; 4] = take(&mut head).ok_or(truncated)?;
        let length: [u8; 4] = take(&mut head).ok_or(truncated)?;
        if kind == SECTION_HEADER {
            let magic: [u8; 4] = take(&mut head).ok_or(truncated)?;
            self.endian = [Endian::Little, Endian::Big]
                .into_iter()
                .find(|endian| endian.u32(magic) == BYTE_ORDER_MAGIC)
                .ok_or(malformed("byte-order magic is neither 1a2b3c4d nor its reverse"))?;
            self.interfaces.clear();
        }
        let length = self.endian.u32(length) as usize;
        if length < 12 || !length.is_multiple_of(4) {
            return Err(malformed("block length is below 12 or no multiple of 4"));
        }
        let block = block.get(..length).ok_or(truncated)?;
        let (body, trailer) = block[8..].split_last_chunk().ok_or(truncated)?;
        if self.endian.u32(*trailer) as usize != length {
            return Err(malformed("the two lengths of the block differ"));
        }
        self.at += length;
        match self.endian.u32(kind) {
            INTERFACE_DESCRIPTION => {
                let interface = self.interface(body).ok_or(malformed("interface description below 8 bytes"))?;
                self.interfaces.push(interface);
                Ok(None)
            }
            ENHANCED_PACKET => self
                .enhanced(body)
                .map(Some)
                .ok_or(malformed("packet block: no such interface, or data beyond the block")),
            SIMPLE_PACKET => self.simple(body).map(Some).ok_or(malformed("simple packet block: data beyond the block")),
            _ => Ok(None),
        }
    }

    fn interface(&self, mut rest: &[u8]) -> Option<Interface> {
        let link = LinkType(self.endian.u16(take(&mut rest)?));
        let _reserved: [u8; 2] = take(&mut rest)?;
        let snaplen = self.endian.u32(take(&mut rest)?);
        let mut interface = Interface { link, snaplen, resolution: 6, offset_s: 0 };
        for (code, value) in (Options { endian: self.endian, rest }) {
            match (code, value) {
                (IF_TSRESOL, &[resolution]) => interface.resolution = resolution,
                (IF_TSOFFSET, &[a, b, c, d, e, f, g, h]) => {
                    let bytes = [a, b, c, d, e, f, g, h];
                    interface.offset_s = match self.endian {
                        Endian::Little => i64::from_le_bytes(bytes),
                        Endian::Big => i64::from_be_bytes(bytes),
                    };
                }
                _ => {}
            }
        }
        Some(interface)
    }

    fn enhanced(&self, body: &'a [u8]) -> Option<Record<'a>> {
        let mut rest = body;
        let mut word = || Some(self.endian.u32(take(&mut rest)?));
        let (index, high, low, kept, original_len) = (word()?, word()?, word()?, word()?, word()?);
        let interface = self.interfaces.get(index as usize)?;
        let data = rest.get(..kept as usize)?;
        let options = rest.get((kept as usize).next_multiple_of(4)..).unwrap_or(&[]);
        let comment = Options { endian: self.endian, rest: options }
            .find_map(|(code, value)| (code == OPT_COMMENT).then(|| core::str::from_utf8(value).ok()).flatten());
        let time_ns = interface.time_ns(u64::from(high) << 32 | u64::from(low));
        Some(Record { time_ns, link: interface.link, original_len, data, comment })
    }

    fn simple(&self, body: &'a [u8]) -> Option<Record<'a>> {
        let mut rest = body;
        let original_len = self.endian.u32(take(&mut rest)?);
        let interface = self.interfaces.first()?;
        let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        let data = rest.get(..original_len.min(limit) as usize)?;
        Some(Record { time_ns: 0, link: interface.link, original_len, data, comment: None })
    }
}

/// Writes a capture with ns stamps.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    endian: Endian,
}

impl Writer {
    /// Starts a section: appends its header.
    pub fn new(out: &mut Vec<u8>, endian: Endian) -> Self {
        let writer = Self { endian };
        writer.block(out, u32::from_le_bytes(SECTION_HEADER), |out| {
            endian.put32(out, BYTE_ORDER_MAGIC);
            endian.put16(out, 1);
            endian.put16(out, 0);
            // Length of the section: unknown.
            endian.put32(out, u32::MAX);
            endian.put32(out, u32::MAX);
        });
        writer
    }

    /// Describes an interface; packets name it by its number, from 0.
    pub fn interface(&self, out: &mut Vec<u8>, link: LinkType, name: &str) {
        self.block(out, INTERFACE_DESCRIPTION, |out| {
            self.endian.put16(out, link.0);
            self.endian.put16(out, 0);
            self.endian.put32(out, 0);
            self.option(out, IF_NAME, name.as_bytes());
            self.option(out, IF_TSRESOL, &[9]);
            self.endian.put32(out, 0);
        });
    }

    /// Appends a packet. An empty comment is left out; a comment is cut at 65,535 bytes.
    pub fn packet(
        &self,
        out: &mut Vec<u8>,
        interface: u32,
        time_ns: u64,
        original_len: u32,
        data: &[u8],
        comment: &str,
    ) {
        self.block(out, ENHANCED_PACKET, |out| {
            for word in [interface, (time_ns >> 32) as u32, time_ns as u32, data.len() as u32, original_len] {
                self.endian.put32(out, word);
            }
            padded(out, data);
            if !comment.is_empty() {
                self.option(out, OPT_COMMENT, comment.as_bytes());
                self.endian.put32(out, 0);
            }
        });
    }

    fn option(&self, out: &mut Vec<u8>, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.endian.put16(out, code);
        self.endian.put16(out, value.len() as u16);
        padded(out, value);
    }

    /// A block around what `body` appends; its length is filled in afterwards.
    fn block(&self, out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        self.endian.put32(out, kind);
        self.endian.put32(out, 0);
        body(out);
        let length = (out.len() - start + 4) as u32;
        self.endian.put32(out, length);
        let mut bytes = Vec::with_capacity(4);
        self.endian.put32(&mut bytes, length);
        out[start + 4..start + 8].copy_from_slice(&bytes);
    }
}

/// Appends bytes and zeros up to a multiple of four.
fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + crate::packet::pad_count(bytes.len()) as usize, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            big: bool,
            packets in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..40), "\\PC{0,9}"), 0..5),
        ) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut file = Vec::new();
            let writer = Writer::new(&mut file, endian);
            writer.interface(&mut file, LinkType::RAW, "sf0");
            writer.interface(&mut file, LinkType::ETHERNET, "");
            for (i, (time, data, comment)) in packets.iter().enumerate() {
                writer.packet(&mut file, i as u32 % 2, *time, 99, data, comment);
            }
            let mut reader = Reader::new(&file).unwrap();
            for (i, (time, data, comment)) in packets.iter().enumerate() {
                let want = Record {
                    time_ns: *time,
                    link: [LinkType::RAW, LinkType::ETHERNET][i % 2],
                    original_len: 99,
                    data,
                    comment: (!comment.is_empty()).then_some(comment.as_str()),
                };
                prop_assert_eq!(reader.next(), Some(Ok(want)));
            }
            prop_assert_eq!(reader.next(), None);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut file = Vec::new();
            let writer = Writer::new(&mut file, Endian::Little);
            writer.interface(&mut file, LinkType::RAW, "x");
            let kinds = [INTERFACE_DESCRIPTION, SIMPLE_PACKET, ENHANCED_PACKET, u32::from_le_bytes(SECTION_HEADER), 9];
            for (i, part) in bytes.chunks(24).enumerate() {
                writer.block(&mut file, kinds[(i + bytes.len()) % kinds.len()], |out| padded(out, part));
            }
            file.extend(&bytes);
            for start in [&file[..], &bytes[..]] {
                if let Ok(mut reader) = Reader::new(start) {
                    while reader.next().is_some() {}
                }
            }
        }
    }

    #[test]
    fn stamps_of_every_resolution_become_ns() {
        let at =
            |resolution, stamp| Interface { link: LinkType::RAW, snaplen: 0, resolution, offset_s: 0 }.time_ns(stamp);
        assert_eq!(at(6, 5), 5_000);
        assert_eq!(at(9, 5), 5);
        assert_eq!(at(0, 5), 5_000_000_000);
        assert_eq!(at(12, 5_000), 5);
        assert_eq!(at(0x80 | 1, 3), 1_500_000_000);
        assert_eq!(at(127, u64::MAX), 0);
        assert_eq!(at(0xff, u64::MAX), 0);
        assert_eq!(at(0, u64::MAX), u64::MAX);
        let late = Interface { link: LinkType::RAW, snaplen: 0, resolution: 9, offset_s: -1 };
        assert_eq!(late.time_ns(1_000_000_005), 5);
        assert_eq!(late.time_ns(5), 0);
    }

    #[test]
    fn unknown_blocks_are_skipped_and_wrong_lengths_refused() {
        let mut file = Vec::new();
        let writer = Writer::new(&mut file, Endian::Big);
        writer.block(&mut file, 0x0bad, |out| out.extend([1; 8]));
        writer.interface(&mut file, LinkType::IPV4, &String::from_iter(['x'; 3]));
        writer.packet(&mut file, 0, 1, 2, &[7, 8], "");
        let mut reader = Reader::new(&file).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().data, [7, 8]);
        let end = file.len() - 1;
        file[end] ^= 4;
        let mut reader = Reader::new(&file).unwrap();
        assert!(matches!(reader.next(), Some(Err(InvalidCapture::Malformed { .. }))));
        assert_eq!(reader.next(), None);
    }
}
