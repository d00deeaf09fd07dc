//! What a seed lets its NICs do: how many there are, how they are connected, and which operations each flow asks for.
//!
//! Only choices are made here. The rules that make results predictable are: each flow writes to memory of its own; an
//! operation that changes bytes which an earlier READ may still be reading (a READ may be carried out again) is fenced.

use scalefabric_transport::time::ack_timeout_ns;
use scalefabric_verbs::{Mtu, QpType};

use crate::ledger::{Flow, Kind, Limits, MAX_MESSAGE, Op, SLOTS, Stage, TARGET_LEN, WORDS_LEN};
use crate::pattern::Faults;
use crate::random::Random;

/// A pair of QPs.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPlan {
    /// The two NICs.
    pub nics: [usize; 2],
    /// Type of the first QP; XRC has its target at the second.
    pub qp_type: QpType,
    /// The second NIC's receives come from its SRQ.
    pub srq: bool,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN of each side.
    pub psns: [u32; 2],
    /// `timeout` code.
    pub timeout: u8,
    /// `retry_cnt`.
    pub retry_cnt: u8,
    /// `rnr_retry`.
    pub rnr_retry: u8,
    /// `min_rnr_timer` code.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
    /// Both sides ask.
    pub both_ways: bool,
    /// Every WR makes a completion.
    pub sq_sig_all: bool,
    /// The second side is taken away in the middle of the run.
    pub killed: bool,
}

impl ConnectionPlan {
    /// What its requester has promised.
    pub fn limits(&self) -> Limits {
        let timeout_ns = ack_timeout_ns(self.timeout).unwrap_or(u64::MAX);
        Limits { retry_cnt: self.retry_cnt, rnr_retry: self.rnr_retry, timeout_ns }
    }
}

/// What a seed is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// NICs.
    pub nics: usize,
    /// IPv6 addresses.
    pub v6: bool,
    /// Pairs of QPs. The first one is RC, patient, and lives to the end.
    pub connections: Vec<ConnectionPlan>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, faults: &Faults) -> Self {
        let mut random = Random::new(seed, 0x91a4);
        let nics = if random.chance(250_000) { 3 } else { 2 };
        let count = random.range(3, 5) as usize;
        let connections = (0..count).map(|i| connection(&mut random, i, nics, faults)).collect();
        Self { nics, v6: seed / 16 % 2 == 1, connections }
    }
}

fn connection(random: &mut Random, index: usize, nics: usize, faults: &Faults) -> ConnectionPlan {
    let first = random.below(nics as u64) as usize;
    let second = (first + 1 + random.below(nics as u64 - 1) as usize) % nics;
    let qp_type = match (index, random.below(10)) {
        (0, _) | (_, 0..=4) => QpType::Rc,
        (_, 5..=6) => QpType::Uc,
        (_, 7) => QpType::Ud,
        _ => QpType::XrcSend,
    };
    let psn = |random: &mut Random| {
        if faults.psn_wrap { 0xff_ffff - random.below(60) as u32 } else { random.below(1 << 24) as u32 }
    };
    let impatient = index > 0 && random.chance(200_000);
    let reliable = qp_type.is_reliable();
    ConnectionPlan {
        nics: [first, second],
        qp_type,
        srq: qp_type == QpType::Rc && random.chance(300_000),
        mtu: *random.pick(&[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024]),
        psns: [psn(random), psn(random)],
        timeout: if impatient { random.range(4, 6) as u8 } else { random.range(7, 9) as u8 },
        retry_cnt: if impatient { random.range(0, 2) as u8 } else { 7 },
        rnr_retry: if impatient { random.range(0, 3) as u8 } else { 7 },
        min_rnr_timer: random.range(1, 10) as u8,
        rd_atomic: random.range(1, 8) as u8,
        both_ways: qp_type != QpType::XrcSend && random.chance(500_000),
        sq_sig_all: random.chance(150_000),
        killed: index > 0 && reliable && random.chance(80_000),
    }
}

/// Makes the operations of one flow.
#[derive(Debug)]
pub struct Source {
    random: Random,
    mtu: Mtu,
    key: u64,
    /// Ranges that READs may still be reading.
    reads: Vec<(usize, usize)>,
    /// UC writes each byte once: up to here.
    fresh: usize,
    relay: bool,
}

impl Source {
    /// For one flow.
    pub fn new(seed: u64, flow: usize, mtu: Mtu) -> Self {
        let mut random = Random::new(seed, 0x50c0 + flow as u64);
        let key = random.next();
        Self { random, mtu, key, reads: Vec::new(), fresh: WORDS_LEN, relay: false }
    }

    /// How many operations the next chain has.
    pub fn chain_length(&mut self) -> usize {
        *self.random.pick(&[1, 1, 1, 2, 3, 4])
    }

    fn length(&mut self) -> usize {
        let mtu = u64::from(self.mtu.bytes());
        let length = match self.random.below(8) {
            0 => self.random.below(9),
            1..=3 => self.random.range(1, 64),
            4 => self.random.range(1, mtu),
            5 => mtu * self.random.range(1, 3),
            6 => (mtu * self.random.range(1, 3)) + self.random.range(0, 2) - 1,
            _ => self.random.range(1, 4 * mtu),
        };
        (length as usize).min(MAX_MESSAGE)
    }

    /// The next operation of a flow; `last` of its chain, so that the chain's end is heard of.
    pub fn next(&mut self, flow: &Flow, last: bool, sq_sig_all: bool) -> Op {
        self.key = crate::random::mix(self.key.wrapping_add(0x9e37_79b9_7f4a_7c15));
        if flow.outstanding() == 0 {
            self.reads.clear();
        }
        let mut op = match flow.qp_type {
            QpType::Ud => self.datagram(),
            QpType::Uc => self.unreliable(),
            _ => self.reliable(flow),
        };
        op.signaled = last || sq_sig_all || self.random.chance(600_000);
        op.inline = matches!(op.kind, Kind::Send | Kind::SendImm | Kind::Write | Kind::WriteImm | Kind::AtomicWrite)
            && op.length <= 64
            && self.random.chance(300_000);
        op.fence |= flow.qp_type.is_reliable() && self.random.chance(20_000);
        if op.fence {
            self.reads.clear();
        }
        if op.kind == Kind::Read {
            self.reads.push((op.target, op.length));
        } else if op.writes() && self.reads.iter().any(|&(target, length)| op.overlaps(target, length)) {
            op.fence = true;
            self.reads.clear();
        }
        op
    }

    fn op(&mut self, kind: Kind, length: usize) -> Op {
        let imm = self.random.next() as u32;
        Op {
            kind,
            key: self.key,
            length,
            target: 0,
            imm,
            fence: false,
            signaled: false,
            inline: false,
            words: [0; 3],
            stage: Stage::Posted,
        }
    }

    /// A datagram begins with its number, so that it can be told apart: at least 8 bytes.
    fn datagram(&mut self) -> Op {
        let length = self.length().clamp(8, self.mtu.bytes() as usize);
        let kind = *self.random.pick(&[Kind::Send, Kind::Send, Kind::SendImm]);
        self.op(kind, length)
    }

    fn unreliable(&mut self) -> Op {
        let length = self.length().max(8);
        let kind = *self.random.pick(&[Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm]);
        let room = TARGET_LEN - self.fresh;
        if !matches!(kind, Kind::Write | Kind::WriteImm) {
            return self.op(kind, length);
        }
        if room < 16 {
            return self.op(Kind::Send, length);
        }
        let length = length.min(room).min(300);
        let target = self.fresh;
        self.fresh += length;
        Op { target, ..self.op(kind, length) }
    }

    fn reliable(&mut self, flow: &Flow) -> Op {
        // A relay follows its READ at once, in the next slot.
        if core::mem::take(&mut self.relay)
            && let Some(read) = flow.ops.last().filter(|op| op.kind == Kind::Read)
        {
            let length = read.length;
            let target = self.place(length);
            return Op { target, fence: true, ..self.op(Kind::Relay, length) };
        }
        let word = 8 * self.random.below(WORDS_LEN as u64 / 8) as usize;
        match self.random.below(100) {
            0..=17 => {
                let length = self.length();
                self.op(Kind::Send, length)
            }
            18..=27 => {
                let length = self.length();
                self.op(Kind::SendImm, length)
            }
            28..=47 => {
                let length = self.length();
                Op { target: self.place(length), ..self.op(Kind::Write, length) }
            }
            48..=55 => {
                let length = self.length();
                Op { target: self.place(length), ..self.op(Kind::WriteImm, length) }
            }
            56..=71 => {
                let length = self.length();
                self.relay = self.random.chance(200_000);
                let target = if self.random.chance(100_000) && length <= WORDS_LEN { 0 } else { self.place(length) };
                Op { target, ..self.op(Kind::Read, length) }
            }
            72..=77 => {
                // Half of them find what they look for.
                let compare = if self.random.chance(500_000) { flow.word(word) } else { self.random.next() };
                let swap = self.random.next();
                Op { target: word, words: [compare, swap, 0], ..self.op(Kind::CompareSwap, 8) }
            }
            78..=85 => {
                let add = self.random.next() | 1;
                Op { target: word, words: [0, add, 0], ..self.op(Kind::FetchAdd, 8) }
            }
            86..=90 => self.op(Kind::SharedAdd, 8),
            91..=94 => {
                let length = self.length();
                Op { target: self.place(length), ..self.op(Kind::Flush, length) }
            }
            _ => {
                let value = self.random.next();
                Op { target: word, words: [0, value, 0], ..self.op(Kind::AtomicWrite, 8) }
            }
        }
    }

    fn place(&mut self, length: usize) -> usize {
        self.random.range(WORDS_LEN as u64, (TARGET_LEN - length) as u64) as usize
    }
}

/// Where the pieces of a slot's buffer are: bytes of memory between them must never change.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Ends of the first two pieces, in bytes of the message.
    pub cuts: [usize; 2],
}

/// Bytes between two pieces.
pub const GAP: usize = 8;
/// Bytes of a slot's buffer: the longest message, a GRH, and the gaps.
pub const BUFFER: usize = 4096;

impl Layout {
    /// The layout of a slot.
    pub fn new(random: &mut Random) -> Self {
        let first = *random.pick(&[0, 1, 7, 16, 40, 255, 1000]);
        let second = first + *random.pick(&[0, 3, 24, 200, 700]);
        Self { cuts: [first, second] }
    }

    /// The pieces of `length` bytes: offset in the buffer, and the bytes of the message that lie there.
    pub fn pieces(&self, length: usize) -> impl Iterator<Item = (usize, core::ops::Range<usize>)> + use<> {
        let [a, b] = self.cuts;
        let ranges = [0..a, a..b, b..usize::MAX];
        ranges.into_iter().enumerate().filter_map(move |(i, range)| {
            let range = range.start.min(length)..range.end.min(length);
            (!range.is_empty()).then_some((range.start + i * GAP, range))
        })
    }

    /// Where the gaps are.
    pub fn gaps(&self) -> [usize; 2] {
        [self.cuts[0], self.cuts[1] + GAP]
    }
}

/// Slots are used in turn.
pub const fn slot_of(op: usize) -> usize {
    op % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_gaps_do_not_meet_and_make_the_whole() {
        let mut random = Random::new(1, 1);
        for _ in 0..200 {
            let layout = Layout::new(&mut random);
            let length = random.below(3112) as usize;
            let mut next = 0;
            for (offset, range) in layout.pieces(length) {
                assert_eq!(range.start, next);
                next = range.end;
                assert!(offset + range.len() <= BUFFER);
                for gap in layout.gaps() {
                    assert!(gap + GAP <= offset || offset + range.len() <= gap, "{layout:?} {length}");
                }
            }
            assert_eq!(next, length);
        }
    }

    #[test]
    fn plans_are_the_same_for_the_same_seed_and_begin_with_a_patient_rc_pair() {
        let faults = Faults::default();
        for seed in 0..50 {
            let plan = Plan::new(seed, &faults);
            assert_eq!(format!("{plan:?}"), format!("{:?}", Plan::new(seed, &faults)));
            let first = plan.connections[0];
            assert!(first.qp_type == QpType::Rc && first.retry_cnt == 7 && !first.killed);
            assert!(plan.connections.iter().all(|c| c.nics[0] != c.nics[1]));
        }
    }
}
