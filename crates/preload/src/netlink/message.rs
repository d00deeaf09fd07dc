//! Bytes of netlink: messages with a head of 16 bytes, and attributes of type, length and value, padded to 4 (RFC 3549,
//! clause 2.3; `linux/netlink.h`). Reading never trusts a length.

/// The message ends a dump.
pub const DONE: u16 = 3;
/// The message says what became of a request: 0 or a negative errno.
pub const ERROR: u16 = 2;
/// Wants an answer of success, too.
pub const ACK: u16 = 0x4;
/// Part of several.
pub const MULTI: u16 = 0x2;
/// Wants all there are: NLM_F_ROOT and NLM_F_MATCH.
pub const DUMP: u16 = 0x300;
/// Bytes of a head.
pub const HEAD: usize = 16;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Type.
    pub kind: u16,
    /// Flags.
    pub flags: u16,
    /// Number that the answers repeat.
    pub sequence: u32,
    /// Who asks.
    pub port: u32,
    /// Its head, for those who want it back.
    pub head: &'a [u8],
    /// Its attributes.
    pub body: &'a [u8],
}

/// The requests in a datagram; what is cut off or lies about its length ends it.
pub fn requests(mut bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    std::iter::from_fn(move || {
        let len = number(bytes, 0, 4)? as usize;
        if len < HEAD || len > bytes.len() {
            return None;
        }
        let request = Request {
            kind: number(bytes, 4, 2)? as u16,
            flags: number(bytes, 6, 2)? as u16,
            sequence: number(bytes, 8, 4)? as u32,
            port: number(bytes, 12, 4)? as u32,
            head: &bytes[..HEAD],
            body: &bytes[HEAD..len],
        };
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some(request)
    })
}

impl Request<'_> {
    /// The value of an attribute of the outermost level.
    pub fn attribute(&self, wanted: u16) -> Option<&[u8]> {
        /// Flags in the type: nested, byte order.
        const FLAGS: u16 = 0xc000;
        let mut rest = self.body;
        loop {
            let len = number(rest, 0, 2)? as usize;
            if len < 4 || len > rest.len() {
                return None;
            }
            if number(rest, 2, 2)? as u16 & !FLAGS == wanted {
                return Some(&rest[4..len]);
            }
            rest = rest.get(aligned(len)..)?;
        }
    }

    /// The value of an attribute that is a number of 32 bits.
    pub fn attribute_u32(&self, wanted: u16) -> Option<u32> {
        number(self.attribute(wanted)?, 0, 4).map(|value| value as u32)
    }

    /// The value of an attribute that is a string.
    pub fn attribute_text(&self, wanted: u16) -> Option<&str> {
        let value = self.attribute(wanted)?;
        std::str::from_utf8(value.split(|&byte| byte == 0).next()?).ok()
    }
}

/// A number in the byte order of this machine.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    let mut wide = [0; 8];
    let start = if cfg!(target_endian = "big") { 8 - len } else { 0 };
    wide[start..start + len].copy_from_slice(bytes);
    Some(u64::from_ne_bytes(wide))
}

const fn aligned(len: usize) -> usize {
    (len + 3) & !3
}

/// A message that is being written.
#[derive(Debug)]
pub struct Message(Vec<u8>);

impl Message {
    /// An answer to a request.
    pub fn new(kind: u16, flags: u16, request: &Request<'_>) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(request.sequence.to_ne_bytes());
        bytes.extend(request.port.to_ne_bytes());
        Self(bytes)
    }

    /// The answer that says what became of a request: 0, or an errno.
    pub fn outcome(errno: i32, request: &Request<'_>) -> Vec<u8> {
        let mut message = Self::new(ERROR, 0, request);
        message.0.extend((-errno).to_ne_bytes());
        message.0.extend(request.head);
        message.finish()
    }

    /// The end of a dump.
    pub fn done(request: &Request<'_>) -> Vec<u8> {
        let mut message = Self::new(DONE, MULTI, request);
        message.0.extend(0_i32.to_ne_bytes());
        message.finish()
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an attribute.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        self.0.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(aligned(self.0.len()), 0);
    }

    /// Adds a number of 8 bits.
    pub fn put_u8(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    /// Adds a number of 32 bits.
    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Adds a number of 64 bits.
    pub fn put_u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// Adds a string, with its end.
    pub fn put_text(&mut self, kind: u16, value: &str) {
        self.put(kind, &[value.as_bytes(), &[0]].concat());
    }

    /// Adds an attribute that holds others.
    pub fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.put(kind, &[]);
        inside(self);
        self.close(at);
    }

    /// Begins an attribute that holds others; what is added belongs to it until [`Message::close`] with what this gives.
    pub fn open(&mut self, kind: u16) -> usize {
        self.put(kind, &[]);
        self.0.len() - 4
    }

    /// Ends what [`Message::open`] began.
    pub fn close(&mut self, at: usize) {
        let len = (self.0.len() - at) as u16;
        self.0[at..at + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// The message, with its length.
    pub fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(aligned(self.0.len()), 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let empty = Request { kind: 7, flags: ACK, sequence: 9, port: 11, head: &[], body: &[] };
        let mut message = Message::new(0x1401, DUMP, &empty);
        message.put_text(2, "sf0");
        message.nest(15, |inside| inside.put_u64(3, 5));
        message.put_u32(1, 42);
        let bytes = message.finish();
        let read: Vec<Request<'_>> = requests(&bytes).collect();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].kind, read[0].flags, read[0].sequence, read[0].port), (0x1401, DUMP, 9, 11));
        assert_eq!(read[0].attribute_u32(1), Some(42));
        assert_eq!(read[0].attribute_text(2), Some("sf0"));
        assert_eq!(read[0].attribute(15).map(<[u8]>::len), Some(12));
        assert_eq!(read[0].attribute(99), None);
    }

    #[test]
    fn a_message_that_is_cut_anywhere_is_none_and_no_panic() {
        let empty = Request { kind: 0, flags: 0, sequence: 0, port: 0, head: &[], body: &[] };
        let mut message = Message::new(1, 0, &empty);
        message.put_u32(1, 42);
        let bytes = message.finish();
        for len in 0..bytes.len() {
            assert_eq!(requests(&bytes[..len]).count(), 0, "{len}");
        }
        for wrong in 0..=255 {
            let mut bytes = bytes.clone();
            bytes[HEAD] = wrong;
            requests(&bytes).for_each(|request| {
                let _ = request.attribute_u32(1);
            });
        }
    }
}
