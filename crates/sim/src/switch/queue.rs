//! The queue of a port whose link is slow: when each packet leaves, which ones are marked, and which ones find no room.
//!
//! It is arithmetic in nanoseconds and holds no packet: a packet that arrives is told when it leaves, and whoever carries it
//! waits until then, or later. What waits is what would wait behind a link of that rate, however late the carrier is; so
//! figures of a run on a busy machine are figures of the queue and not of the machine.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use super::packet;

/// When a queue marks: never below `kmin`, always above `kmax`, between them with a chance that rises to `most`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marking {
    /// Bytes.
    pub kmin: u64,
    /// Bytes.
    pub kmax: u64,
    /// 0 to 1.
    pub most: f64,
}

/// A slow link and the queue before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// Bit/s.
    pub rate_bps: u64,
    /// Bytes that may wait; a packet that would be more is lost.
    pub buffer_bytes: u64,
    /// Default in tests and nowhere else: `None` never marks.
    pub marking: Option<Marking>,
    /// Of the chance of marks.
    pub seed: u64,
}

/// What a queue has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Packets that left or will leave.
    pub packets: u64,
    /// Their bytes, IP header included.
    pub bytes: u64,
    /// Of them marked.
    pub marked: u64,
    /// Lost for want of room.
    pub dropped: u64,
    /// The most that ever waited.
    pub most_bytes: u64,
    /// Bytes times the nanoseconds that they waited, summed up.
    pub byte_ns: u128,
    /// The first arrival and the last departure, ns.
    pub span_ns: Option<(u64, u64)>,
    /// Bytes by source address.
    pub by_source: BTreeMap<IpAddr, u64>,
}

impl Statistics {
    /// Bytes that waited, on average over the time in which there was traffic.
    pub fn mean_bytes(&self) -> f64 {
        match self.span_ns {
            Some((first, last)) if last > first => self.byte_ns as f64 / (last - first) as f64,
            _ => 0.0,
        }
    }

    /// Part of the packets that were marked.
    pub fn marked_part(&self) -> f64 {
        self.marked as f64 / self.packets.max(1) as f64
    }

    /// Jain's index of what the sources got: 1 is equal, 1/n is one that has all.
    pub fn fairness(&self) -> f64 {
        let sum: f64 = self.by_source.values().map(|&bytes| bytes as f64).sum();
        let squares: f64 = self.by_source.values().map(|&bytes| bytes as f64 * bytes as f64).sum();
        if squares == 0.0 { 1.0 } else { sum * sum / (squares * self.by_source.len() as f64) }
    }
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    bottleneck: Bottleneck,
    /// When each packet that waits has left, and its bytes.
    waiting: VecDeque<(u64, u64)>,
    waiting_bytes: u64,
    free_ns: u64,
    chance: u64,
    statistics: Statistics,
}

impl Queue {
    /// Empty.
    pub fn new(bottleneck: Bottleneck) -> Self {
        Self {
            chance: bottleneck.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            bottleneck,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            free_ns: 0,
            statistics: Statistics::default(),
        }
    }

    /// A packet arrives. When it has left; `None`: it found no room. It may come out marked, if it says that it can be.
    pub fn arrive(&mut self, now_ns: u64, bytes: &mut [u8]) -> Option<u64> {
        while self.waiting.front().is_some_and(|(left, _)| *left <= now_ns) {
            let (_, gone) = self.waiting.pop_front().unwrap_or_default();
            self.waiting_bytes -= gone;
        }
        let length = bytes.len() as u64;
        if self.waiting_bytes + length > self.bottleneck.buffer_bytes {
            self.statistics.dropped += 1;
            return None;
        }
        let begins = self.free_ns.max(now_ns);
        let leaves = begins + length * 8_000_000_000 / self.bottleneck.rate_bps.max(1);
        self.free_ns = leaves;
        self.waiting.push_back((leaves, length));
        self.waiting_bytes += length;
        let marked = self.marks() && packet::mark(bytes);
        let seen = &mut self.statistics;
        seen.packets += 1;
        seen.bytes += length;
        seen.marked += u64::from(marked);
        seen.most_bytes = seen.most_bytes.max(self.waiting_bytes);
        seen.byte_ns += u128::from(length) * u128::from(leaves - now_ns);
        seen.span_ns = Some((seen.span_ns.map_or(now_ns, |(first, _)| first), leaves));
        if let Some(flow) = packet::flow(bytes) {
            *seen.by_source.entry(flow.src).or_default() += length;
        }
        Some(leaves)
    }

    /// What it has seen since the last call.
    pub fn take_statistics(&mut self) -> Statistics {
        std::mem::take(&mut self.statistics)
    }

    /// What it has seen so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    fn marks(&mut self) -> bool {
        let Some(m) = self.bottleneck.marking else { return false };
        let waiting = self.waiting_bytes;
        if waiting <= m.kmin {
            return false;
        }
        if waiting > m.kmax {
            return true;
        }
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let dice = (self.chance >> 11) as f64 / (1u64 << 53) as f64;
        dice < m.most * (waiting - m.kmin) as f64 / (m.kmax - m.kmin).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: u8, tos: u8) -> Vec<u8> {
        let mut bytes = vec![0; 1000];
        (bytes[0], bytes[1]) = (0x45, tos);
        bytes[2..4].copy_from_slice(&1000_u16.to_be_bytes());
        (bytes[8], bytes[9]) = (64, 17);
        bytes[12..16].copy_from_slice(&[10, 0, 0, from]);
        bytes[16..20].copy_from_slice(&[10, 0, 0, 9]);
        bytes
    }

    fn queue(marking: Option<Marking>) -> Queue {
        // 1000 bytes in 8 us.
        Queue::new(Bottleneck { rate_bps: 1_000_000_000, buffer_bytes: 10_000, marking, seed: 1 })
    }

    #[test]
    fn packets_leave_one_after_the_other_and_a_full_buffer_loses() {
        let mut queue = queue(None);
        let left: Vec<_> = (0..12).map(|_| queue.arrive(100, &mut packet(1, 0))).collect();
        assert_eq!(left[..3], [Some(8_100), Some(16_100), Some(24_100)]);
        assert_eq!(left[9..], [Some(80_100), None, None]);
        assert_eq!(queue.arrive(8_100, &mut packet(1, 0)), Some(88_100), "one has left");
        assert_eq!(queue.arrive(1_000_000, &mut packet(2, 0)), Some(1_008_000), "the link was idle");
        let seen = queue.take_statistics();
        assert_eq!((seen.packets, seen.dropped, seen.most_bytes, seen.marked), (12, 2, 10_000, 0));
        assert_eq!(seen.by_source.values().copied().collect::<Vec<_>>(), [11_000, 1_000]);
        assert_eq!(queue.statistics().packets, 0);
    }

    #[test]
    fn a_queue_that_is_always_one_packet_is_one_packet_on_average() {
        let mut queue = queue(None);
        for n in 0..100 {
            queue.arrive(n * 8_000, &mut packet(1, 0));
        }
        assert_eq!(queue.statistics().mean_bytes(), 1000.0);
    }

    #[test]
    fn only_what_can_be_marked_is_marked_and_only_above_the_thresholds() {
        let mut queue = queue(Some(Marking { kmin: 3_000, kmax: 5_000, most: 0.0 }));
        let marked = |queue: &mut Queue, tos| {
            let mut bytes = packet(1, tos);
            queue.arrive(0, &mut bytes);
            bytes[1] & 3 == 3
        };
        let first: Vec<_> = (0..5).map(|_| marked(&mut queue, 0x6a)).collect();
        assert_eq!(first, [false; 5]);
        assert!(marked(&mut queue, 0x6a) && marked(&mut queue, 0x69));
        assert!(!marked(&mut queue, 0x68), "it has not said that it can be marked");
        assert_eq!(queue.statistics().marked, 2);
    }

    #[test]
    fn between_the_thresholds_chance_decides() {
        let mut queue = queue(Some(Marking { kmin: 0, kmax: 10_000, most: 0.2 }));
        for n in 0..100_000 {
            // Five packets wait whenever one arrives.
            queue.arrive(if n < 5 { 0 } else { (n - 5) * 8_000 + 8_000 }, &mut packet(1, 2));
        }
        let part = queue.statistics().marked_part();
        assert!((0.08..0.12).contains(&part), "half of 0.2, not {part}");
    }

    #[test]
    fn fairness_is_one_for_equals_and_a_half_for_one_of_two() {
        let of = |shares: &[(u8, u64)]| {
            let by_source = shares.iter().map(|(n, bytes)| (IpAddr::from([10, 0, 0, *n]), *bytes)).collect();
            Statistics { by_source, ..Statistics::default() }.fairness()
        };
        assert_eq!((of(&[(1, 7), (2, 7)]), of(&[(1, 7), (2, 0)]), of(&[])), (1.0, 0.5, 1.0));
    }
}
