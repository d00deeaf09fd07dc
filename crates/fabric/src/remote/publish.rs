//! A memory node's counters in a slot that others READ: one writer stores a snapshot every few milliseconds, and compute nodes see how loaded it is without asking anybody. A slot is copied in and out
//! of registered memory and never lent. What is read while it is written is told apart by a checksum. This file posts nothing and starts no thread: those are
//! [`PublisherLoop`] on the memory node, [`Reader`] and [`Follower`] on compute nodes, and [`Pace`] is what they do about it.

mod beat;
mod follower;
mod pace;
mod reader;

pub use beat::{Beat, PublisherLoop, PublisherTally, STANDARD, standard};
pub use follower::{Follower, FollowerTally, Paced};
pub use pace::{Limits, LockStrategy, Pace};
pub use reader::Reader;

use crate::error::FabricError;
use crate::pool::Buffer;
use scalefabric_verbs::MemoryRegion;
use std::sync::Arc;

/// Marks a slot, and the layout's version.
const MAGIC: u32 = 0x5346_5001;
/// Magic, number of counters, serial, time.
const HEADER: usize = 4 + 4 + 8 + 8;
const CHECKSUM: usize = 4;

/// Most counters of a slot.
pub const MAX_COUNTERS: usize = 128;

/// How often a slot is written unless asked otherwise, milliseconds.
pub const PERIOD_MS: u64 = 5;

/// Bytes of a slot of so many counters.
pub const fn slot_bytes(counters: usize) -> usize {
    HEADER + 8 * counters + CHECKSUM
}

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Counts up with each one; a slot that was never written has none.
    pub serial: u64,
    /// When, nanoseconds of the publisher's clock, whose beginning is its own.
    pub at_ns: u64,
    /// Counters, in the order on which both sides agree.
    pub values: Vec<u64>,
}

/// Why bytes are no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Nothing has been published yet.
    Empty,
    /// It was written while it was read: read again.
    Torn,
    /// This is no slot, or one of another version or size.
    Foreign,
}

impl Snapshot {
    /// Writes it to the start of `out`, which must have [`slot_bytes`] bytes.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, FabricError> {
        emit(self.serial, self.at_ns, &self.values, out)
    }

    /// Reads what a READ of a slot of `counters` counters brought.
    pub fn parse(bytes: &[u8], counters: usize) -> Result<Self, Unreadable> {
        let Some(bytes) = bytes.get(..slot_bytes(counters)) else { return Err(Unreadable::Foreign) };
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(Unreadable::Empty);
        }
        let body = bytes.len() - CHECKSUM;
        if crc32fast::hash(&bytes[..body]).to_le_bytes() != bytes[body..] {
            return Err(Unreadable::Torn);
        }
        if bytes[..4] != MAGIC.to_le_bytes() || bytes[4..8] != (counters as u32).to_le_bytes() {
            return Err(Unreadable::Foreign);
        }
        let values = (0..counters).map(|n| word(HEADER + 8 * n)).collect();
        Ok(Self { serial: word(8), at_ns: word(16), values })
    }
}

fn emit(serial: u64, at_ns: u64, values: &[u64], out: &mut [u8]) -> Result<usize, FabricError> {
    let bytes = slot_bytes(values.len());
    if values.len() > MAX_COUNTERS || out.len() < bytes {
        let (count, room) = (values.len(), out.len());
        return Err(FabricError::misuse(format!(
            "{count} counters need a slot of {bytes} bytes, this one has {room}: at most {MAX_COUNTERS} can be published"
        )));
    }
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&(values.len() as u32).to_le_bytes());
    out[8..16].copy_from_slice(&serial.to_le_bytes());
    out[16..24].copy_from_slice(&at_ns.to_le_bytes());
    for (place, value) in out[HEADER..].chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let body = bytes - CHECKSUM;
    let sum = crc32fast::hash(&out[..body]);
    out[body..bytes].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

/// Memory that a slot is written to: registered, and readable by peers.
pub trait SlotMemory: Send + Sync + std::fmt::Debug {
    /// Bytes.
    fn length(&self) -> usize;
    /// Copies bytes in.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError>;
}

impl SlotMemory for Arc<dyn MemoryRegion> {
    fn length(&self) -> usize {
        (**self).length()
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        Ok((**self).write(offset, data)?)
    }
}

impl SlotMemory for Arc<Buffer> {
    fn length(&self) -> usize {
        crate::Local::len(&**self)
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), FabricError> {
        (**self).write(offset, data)
    }
}

/// Writes snapshots into registered memory. One for each slot.
#[derive(Debug)]
pub struct Publisher {
    memory: Box<dyn SlotMemory>,
    offset: usize,
    counters: usize,
    serial: u64,
    bytes: Vec<u8>,
}

impl Publisher {
    /// Into the bytes of registered memory from `offset` on, for `counters` counters. The memory must let peers read.
    pub fn new(memory: impl SlotMemory + 'static, offset: usize, counters: usize) -> Result<Self, FabricError> {
        let bytes = slot_bytes(counters);
        let fits = counters <= MAX_COUNTERS && offset.checked_add(bytes).is_some_and(|end| end <= memory.length());
        if !fits {
            let length = memory.length();
            return Err(FabricError::misuse(format!(
                "a slot of {counters} counters at {offset} needs {bytes} bytes of memory of {length}: register more memory, or publish at most {MAX_COUNTERS} counters"
            )));
        }
        Ok(Self { memory: Box::new(memory), offset, counters, serial: 0, bytes: vec![0; bytes] })
    }

    /// How many counters its slot has.
    pub fn counters(&self) -> usize {
        self.counters
    }

    /// Publishes counters as they are at `at_ns`. Allocates nothing. Misuse for another number of them than the slot has.
    pub fn publish(&mut self, at_ns: u64, values: &[u64]) -> Result<(), FabricError> {
        if values.len() != self.counters {
            return Err(FabricError::misuse(format!("{} values for a slot of {}", values.len(), self.counters)));
        }
        self.serial += 1;
        let length = emit(self.serial, at_ns, values, &mut self.bytes)?;
        self.memory.write(self.offset, &self.bytes[..length])
    }
}

/// How a memory node is doing, for those who use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Go on.
    Calm,
    /// Its port is above 70 %: prefer others, batch, wait for locks instead of spinning on them.
    Loaded,
    /// It drops or sends again, or its port is above 90 %: back off.
    Congested,
}

/// What the reader looks at in a snapshot: places in its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Bytes that its port has sent and received.
    pub bytes: [usize; 2],
    /// What says that it does not keep up: packets that it has sent again, requests that were lost on their way to it.
    pub trouble: [usize; 2],
    /// Bits per second each way.
    pub capacity_bps: u64,
}

/// How the node was doing between two snapshots; `None` if they are not two in a row of time, or the publisher began anew.
pub fn pressure(before: &Snapshot, after: &Snapshot, watched: &Watched) -> Option<Pressure> {
    let time_ns = after.at_ns.checked_sub(before.at_ns).filter(|&ns| ns > 0)?;
    if after.serial <= before.serial {
        return None;
    }
    let grown = |n: usize| after.values.get(n)?.checked_sub(*before.values.get(n)?);
    let most = grown(watched.bytes[0])?.max(grown(watched.bytes[1])?);
    let trouble = grown(watched.trouble[0])?.saturating_add(grown(watched.trouble[1])?);
    let possible = u128::from(watched.capacity_bps) * u128::from(time_ns) / 8_000_000_000;
    let permille = (u128::from(most) * 1000).checked_div(possible).unwrap_or(1000);
    Some(match permille {
        _ if trouble > 0 => Pressure::Congested,
        901.. => Pressure::Congested,
        701.. => Pressure::Loaded,
        _ => Pressure::Calm,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(serial: u64, at_ns: u64, values: &[u64]) -> Snapshot {
        Snapshot { serial, at_ns, values: values.to_vec() }
    }

    #[test]
    fn what_is_published_is_read_and_what_is_torn_is_told() {
        let (first, second) = (snapshot(1, 5, &[1, 2, 3]), snapshot(2, 9, &[4, 5, 6]));
        let (mut a, mut b) = ([0; slot_bytes(3)], [0; slot_bytes(3)]);
        assert_eq!(Snapshot::parse(&a, 3), Err(Unreadable::Empty));
        first.emit(&mut a).unwrap();
        second.emit(&mut b).unwrap();
        assert_eq!(Snapshot::parse(&a, 3), Ok(first));
        // Whichever piece of the new one is seen with the rest of the old one.
        for cut in 1..a.len() {
            let torn = [&b[..cut], &a[cut..]].concat();
            let whole = torn == a || torn == b;
            assert!(whole || Snapshot::parse(&torn, 3) == Err(Unreadable::Torn), "{cut}");
        }
    }

    #[test]
    fn another_size_and_too_many_are_refused() {
        let mut bytes = [0; slot_bytes(4)];
        snapshot(1, 1, &[7; 3]).emit(&mut bytes).unwrap();
        assert!(Snapshot::parse(&bytes, 4).is_err());
        assert_eq!(Snapshot::parse(&bytes[..20], 3), Err(Unreadable::Foreign));
        let mut other = bytes;
        other[0] ^= 1;
        let body = slot_bytes(3) - CHECKSUM;
        let sum = crc32fast::hash(&other[..body]).to_le_bytes();
        other[body..body + 4].copy_from_slice(&sum);
        assert_eq!(Snapshot::parse(&other, 3), Err(Unreadable::Foreign));
        assert!(snapshot(1, 1, &[0; 5]).emit(&mut bytes).is_err());
        assert!(snapshot(1, 1, &[0; MAX_COUNTERS + 1]).emit(&mut vec![0; 9_999]).is_err());
    }

    #[test]
    fn pressure_has_its_edges() {
        let watched = Watched { bytes: [0, 1], trouble: [2, 3], capacity_bps: 8_000_000_000 };
        // 5 ms at 8 Gb/s are 5,000,000 bytes.
        let before = snapshot(1, 0, &[100, 100, 7, 1]);
        let at = |tx: u64, rx: u64, trouble: u64| {
            pressure(&before, &snapshot(2, 5_000_000, &[100 + tx, 100 + rx, 7, 1 + trouble]), &watched)
        };
        assert_eq!(at(3_500_000, 0, 0), Some(Pressure::Calm));
        assert_eq!(at(0, 3_505_000, 0), Some(Pressure::Loaded));
        assert_eq!(at(4_500_000, 0, 0), Some(Pressure::Loaded));
        assert_eq!(at(4_505_000, 0, 0), Some(Pressure::Congested));
        assert_eq!(at(0, 0, 1), Some(Pressure::Congested));
        // A publisher that began anew, and the same snapshot twice.
        assert_eq!(pressure(&before, &snapshot(1, 5, &[0; 4]), &watched), None);
        assert_eq!(pressure(&before, &snapshot(2, 5, &[0; 4]), &watched), None);
        assert_eq!(pressure(&before, &before, &watched), None);
    }
}
