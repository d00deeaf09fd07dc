//! The telemetry trailer of the live path: records that switches write behind the ICRC of a RoCEv2 packet, and that the
//! receiver sends back behind the ICRC of an ACK. Our own format, version 1; hardware does not know it.
//!
//! Between BTH and ICRC nothing may be inserted without breaking the ICRC, which every receiver checks; behind it nobody looks.
//! So the trailer stands at the end of the UDP payload, with its fixed part last, where a switch finds it without reading what
//! is before. READ responses have room for records, too, if their request had: the requester, who paces what it asks for,
//! reads them at once, and nothing needs to be sent back.
//!
//!
//! ```text
//! record × capacity, 28 bytes each:  node 4 | rate, Mb/s 4 | time, ns 8 | bytes sent 8 | bytes queued 4
//! fixed part, 8 bytes:               magic "SFIT" 4 | version 1 | kind 1 | records written 1 | capacity 1
//! ```
//!
//! That a packet has one says a reserved bit of the BTH ([`TRAILED`]), and that its sender could read one says another
//! ([`CAPABLE`]): receivers ignore those bits, and the ICRC does not cover them (annex A17.3.3). A requester sends trailers when
//! the peer's answers say that it can read them, so a peer that knows nothing of this never sees one.

use super::Hop;

/// In byte 4 of the BTH: the sender of this packet can read trailers.
pub const CAPABLE: u8 = 0x01;
/// In byte 4 of the BTH: this packet has one.
pub const TRAILED: u8 = 0x02;
/// The byte of the BTH with the two.
pub const FLAGS_AT: usize = 4;

/// Records that a request has room for. A packet that crosses more switches has those of the first ones.
pub const CAPACITY: usize = 4;
const RECORD: usize = 28;
const FIXED: usize = 8;
const MAGIC: [u8; 4] = *b"SFIT";
const VERSION: u8 = 1;
const REQUEST: u8 = 0;
const ECHO: u8 = 1;

/// Bytes of a trailer with room for [`CAPACITY`] records: a multiple of 4, so that trains keep their alignment.
pub const LEN: usize = CAPACITY * RECORD + FIXED;

/// The records of a trailer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    hops: [Hop; CAPACITY],
    count: u8,
}

impl Records {
    /// Those that were written.
    pub fn hops(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count)]
    }
}

const fn fixed(kind: u8, count: u8) -> [u8; FIXED] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, kind, count, CAPACITY as u8]
}

/// The trailer of a request: room, and nothing written.
pub const ROOM: [u8; LEN] = {
    let (mut bytes, fixed, mut at) = ([0; LEN], fixed(REQUEST, 0), 0);
    while at < FIXED {
        bytes[LEN - FIXED + at] = fixed[at];
        at += 1;
    }
    bytes
};

/// The trailer of an ACK that sends records back.
pub fn echo(records: &Records) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (hop, out) in records.hops().iter().zip(bytes.chunks_exact_mut(RECORD)) {
        write(hop, out);
    }
    bytes[LEN - FIXED..].copy_from_slice(&fixed(ECHO, records.count));
    bytes
}

fn write(hop: &Hop, out: &mut [u8]) {
    let mbps = u32::try_from(hop.rate_bps / 1_000_000).unwrap_or(u32::MAX);
    let queue = u32::try_from(hop.queue_bytes).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&hop.node.to_be_bytes());
    out[4..8].copy_from_slice(&mbps.to_be_bytes());
    out[8..16].copy_from_slice(&(hop.at_ps / 1_000).to_be_bytes());
    out[16..24].copy_from_slice(&hop.tx_bytes.to_be_bytes());
    out[24..28].copy_from_slice(&queue.to_be_bytes());
}

fn read(bytes: &[u8]) -> Hop {
    let word = |at: usize| bytes[at..at + 4].iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    Hop {
        node: word(0),
        rate_bps: u64::from(word(4)) * 1_000_000,
        at_ps: long(8).saturating_mul(1_000),
        tx_bytes: long(16),
        queue_bytes: u64::from(word(24)),
    }
}

/// Why there is no trailer to be read where the BTH says that there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTrailer {
    /// Nothing at the end looks like one: a stranger uses the reserved bit, and the packet is judged without it.
    Absent,
    /// It is there, and of a version that is not known here.
    UnknownVersion,
    /// It is there, and contradicts itself or the packet's length.
    Contradiction,
}

/// The fixed part: kind, count, length of the whole.
fn look(payload: &[u8]) -> Result<(u8, u8, usize), NoTrailer> {
    let (_, fixed) = payload.split_last_chunk::<FIXED>().ok_or(NoTrailer::Absent)?;
    let [a, b, c, d, version, kind, count, capacity] = *fixed;
    if [a, b, c, d] != MAGIC {
        return Err(NoTrailer::Absent);
    }
    if version != VERSION {
        return Err(NoTrailer::UnknownVersion);
    }
    let length = usize::from(capacity) * RECORD + FIXED;
    let sound = kind <= ECHO && count <= capacity && usize::from(capacity) <= CAPACITY && payload.len() >= length;
    if sound { Ok((kind, count, length)) } else { Err(NoTrailer::Contradiction) }
}

/// A trailer that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailer {
    /// On a request: to be sent back. On a READ response: what its own way is like, for the requester.
    Request(Records),
    /// On an ACK: what the switches wrote on one of our packets.
    Echo(Records),
}

/// Takes the trailer off a UDP payload whose BTH says that it has one.
pub fn split(payload: &[u8]) -> Result<(&[u8], Trailer), NoTrailer> {
    let (kind, count, length) = look(payload)?;
    let (packet, trailer) = payload.split_at(payload.len() - length);
    let mut records = Records { count, ..Records::default() };
    for (hop, bytes) in records.hops.iter_mut().zip(trailer.chunks_exact(RECORD)).take(usize::from(count)) {
        *hop = read(bytes);
    }
    Ok((packet, if kind == REQUEST { Trailer::Request(records) } else { Trailer::Echo(records) }))
}

/// What a switch does: writes its record on a UDP payload if that is a request's trailer with room left. True if it did.
pub fn stamp(payload: &mut [u8], hop: &Hop) -> bool {
    if payload.get(FLAGS_AT).is_none_or(|flags| flags & TRAILED == 0) {
        return false;
    }
    let Ok((REQUEST, count, length)) = look(payload) else { return false };
    let start = payload.len() - length;
    let place = start + usize::from(count) * RECORD;
    if place + RECORD > payload.len() - FIXED {
        return false;
    }
    write(hop, &mut payload[place..place + RECORD]);
    let at = payload.len() - 2;
    payload[at] += 1;
    true
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn hop(n: u64) -> Hop {
        Hop {
            node: n as u32,
            rate_bps: 25_000_000_000 * n,
            at_ps: 1_234_567_890_000 * n,
            tx_bytes: 0x0123_4567_89ab * n,
            queue_bytes: 40_000 * n,
        }
    }

    fn request() -> Vec<u8> {
        let mut payload = alloc::vec![0xaa; 40];
        payload[FLAGS_AT] = TRAILED | CAPABLE;
        payload.extend(ROOM);
        payload
    }

    #[test]
    fn switches_write_in_order_until_the_room_is_full_and_the_packet_stays_as_it_was() {
        let mut payload = request();
        for n in 1..=4 {
            assert!(stamp(&mut payload, &hop(n)));
        }
        assert!(!stamp(&mut payload, &hop(5)), "no room");
        let (packet, trailer) = split(&payload).unwrap();
        assert_eq!(packet, &request()[..40]);
        let Trailer::Request(records) = trailer else { panic!("{trailer:?}") };
        assert_eq!(records.hops(), [hop(1), hop(2), hop(3), hop(4)]);
        // And back.
        let mut answer = alloc::vec![0xbb; 20];
        answer.extend(echo(&records));
        let (packet, trailer) = split(&answer).unwrap();
        assert_eq!((packet.len(), trailer), (20, Trailer::Echo(records)));
    }

    #[test]
    fn nobody_writes_on_an_echo_or_on_a_packet_that_does_not_say_it_has_a_trailer() {
        let mut payload = request();
        payload[FLAGS_AT] = CAPABLE;
        assert!(!stamp(&mut payload, &hop(1)));
        let mut answer = alloc::vec![TRAILED; 20];
        answer.extend(echo(&Records::default()));
        assert!(!stamp(&mut answer, &hop(1)));
        assert!(!stamp(&mut [], &hop(1)));
    }

    #[test]
    fn what_contradicts_itself_is_no_trailer() {
        let good = request();
        assert!(split(&good).is_ok());
        let end = good.len();
        use NoTrailer::{Absent, Contradiction, UnknownVersion};
        for (at, value, fault) in [
            (end - 8, b'X', Absent),
            (end - 4, 2, UnknownVersion),
            (end - 3, 2, Contradiction),
            (end - 2, 5, Contradiction),
            (end - 1, 5, Contradiction),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(split(&bad), Err(fault), "byte {at}");
            assert!(!stamp(&mut bad, &hop(1)), "byte {at}");
        }
        assert_eq!(split(&good[good.len() - LEN + 1..]), Err(Contradiction), "cut off");
        assert_eq!(split(&[]), Err(Absent));
    }
}
