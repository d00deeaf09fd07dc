//! The plan of a demo as data: which operations, which sizes, how many messages. Both sides read the same [`Step`].

use crate::units;
use serde::{Deserialize, Serialize};

/// Service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)]
pub enum Transport {
    Rc,
    Uc,
    Ud,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs)]
pub enum Operation {
    Send,
    Write,
    WriteWithImm,
    Read,
    CompareSwap,
    FetchAdd,
}

/// One measured and verified row: many messages of one operation and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Service.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
    /// Bytes of a message.
    pub size: u32,
    /// Messages: each has a slot of its own, so that each is compared in full.
    pub count: u32,
    /// Messages under way at once; 1 measures latency.
    pub window: u32,
    /// Seed of the bytes.
    pub seed: u64,
}

/// Bytes of the region on each side, unless one message needs more.
pub const REGION_BYTES: u64 = 32 << 20;

/// Slots in a region, at most.
pub const MAX_SLOTS: u32 = 1024;

/// The 40 bytes before a received datagram.
pub const GRH_BYTES: u32 = 40;

impl Transport {
    /// RC, UC, UD.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Nothing is ever lost.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }
}

impl Operation {
    /// As the IBTA names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::WriteWithImm => "WRITE_WITH_IMM",
            Self::Read => "READ",
            Self::CompareSwap => "CMP_AND_SWP",
            Self::FetchAdd => "FETCH_AND_ADD",
        }
    }

    /// Works on one 8-byte word.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// The target needs a posted receive for each.
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteWithImm)
    }
}

impl Step {
    /// Distance between slots: datagrams have a GRH before them, and slots keep to cache lines but for the smallest.
    pub const fn stride(size: u32) -> u64 {
        (size as u64 + GRH_BYTES as u64).next_multiple_of(64)
    }

    /// Slots that fit in a region: as many messages a step can have.
    pub fn slots(size: u32) -> u32 {
        (REGION_BYTES / Self::stride(size)).clamp(1, MAX_SLOTS.into()) as u32
    }

    /// Where slot `index` begins.
    pub const fn offset(&self, index: u32) -> u64 {
        index as u64 * Self::stride(self.size)
    }

    /// After how many messages the target of an unreliable transport answers, so that the initiator neither waits for
    /// ever nor floods it. Also the number of markers that follow plain WRITEs.
    pub const fn windows(&self) -> u32 {
        self.count.div_ceil(self.window)
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.transport.name(), self.operation.name(), units::size(self.size.into()))
    }
}

/// A row of the table: a latency step, and then some steps with many messages under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// One message at a time.
    pub latency: Step,
    /// Many at a time.
    pub bandwidth: Vec<Step>,
}

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Sizes.
    pub sizes: &'a [u32],
    /// Messages for latency and again for bandwidth; `None`: by size.
    pub iterations: Option<u32>,
    /// Transports.
    pub transports: &'a [Transport],
    /// Path MTU in bytes: the largest datagram.
    pub path_mtu: u32,
    /// Seed of all bytes.
    pub seed: u64,
}

impl Plan<'_> {
    /// All rows, in the order of the table.
    pub fn rows(&self) -> Vec<Row> {
        use Operation::{CompareSwap, FetchAdd, Read, Send, Write, WriteWithImm};
        let mut rows = Vec::new();
        for transport in self.transports {
            let operations: &[Operation] = match transport {
                Transport::Rc => &[Send, Write, WriteWithImm, Read, CompareSwap, FetchAdd],
                Transport::Uc => &[Send, Write, WriteWithImm],
                Transport::Ud => &[Send],
            };
            for operation in operations {
                for size in self.sizes_for(*transport, *operation) {
                    let seed = self.seed ^ ((rows.len() as u64 + 1) << 32);
                    rows.push(self.row(*transport, *operation, size, seed));
                }
            }
        }
        rows
    }

    fn sizes_for(&self, transport: Transport, operation: Operation) -> Vec<u32> {
        if operation.is_atomic() {
            return vec![8];
        }
        if transport.is_reliable() {
            return self.sizes.to_vec();
        }
        // Where messages may be lost, each says its number in its first 8 bytes.
        let largest = if transport == Transport::Ud { self.path_mtu } else { u32::MAX };
        let mut sizes: Vec<u32> = self.sizes.iter().map(|size| (*size).clamp(8, largest)).collect();
        sizes.dedup();
        sizes
    }

    fn row(&self, transport: Transport, operation: Operation, size: u32, seed: u64) -> Row {
        let slots = Step::slots(size);
        let by_size = match size {
            0..=16_384 => 1000,
            16_385..=262_144 => 200,
            _ => 30,
        };
        let latency_count = self.iterations.unwrap_or(by_size).clamp(1, slots);
        let latency = Step { transport, operation, size, count: latency_count, window: 1, seed };
        let mut left = self.iterations.unwrap_or(by_size.saturating_mul(4));
        let mut bandwidth = Vec::new();
        while left > 0 {
            let count = left.min(slots);
            left -= count;
            let seed = seed + 1 + bandwidth.len() as u64;
            bandwidth.push(Step { count, window: window(transport, size).min(count), seed, ..latency });
        }
        Row { latency, bandwidth }
    }
}

/// Messages under way: 4 MiB of them on RC, but at least 2 and at most 128. Unreliable transports have no flow control but
/// ours, and a receiving socket without privileges has about 200 KiB.
fn window(transport: Transport, size: u32) -> u32 {
    let bytes: u32 = if transport.is_reliable() { 4 << 20 } else { 64 << 10 };
    let least = if transport.is_reliable() { 2 } else { 1 };
    (bytes / size.max(1)).clamp(least, 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(sizes: &[u32], iterations: Option<u32>) -> Plan<'_> {
        const ALL: &[Transport] = &[Transport::Rc, Transport::Uc, Transport::Ud];
        Plan { sizes, iterations, transports: ALL, path_mtu: 1024, seed: 1 }
    }

    #[test]
    fn each_message_has_a_slot_of_its_own() {
        for row in plan(&[0, 8, 4096, 65536, 1 << 20, 64 << 20], None).rows() {
            for step in row.bandwidth.iter().chain([&row.latency]) {
                assert!(step.count >= 1 && step.count <= MAX_SLOTS && step.window >= 1, "{step:?}");
                let end = step.offset(step.count - 1) + Step::stride(step.size);
                assert!(end <= REGION_BYTES.max(Step::stride(step.size)), "{step:?}");
            }
        }
    }

    #[test]
    fn a_datagram_is_no_larger_than_the_path_mtu() {
        let rows = plan(&[8, 4096], None).rows();
        let datagrams: Vec<u32> =
            rows.iter().filter(|r| r.latency.transport == Transport::Ud).map(|r| r.latency.size).collect();
        assert_eq!(datagrams, [8, 1024]);
    }

    #[test]
    fn as_many_messages_are_sent_as_asked_for() {
        for row in plan(&[8, 1 << 20], Some(2500)).rows() {
            assert_eq!(row.bandwidth.iter().map(|step| step.count).sum::<u32>(), 2500);
        }
    }
}
