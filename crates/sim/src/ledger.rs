//! What was asked and what should come of it: for each flow of messages its operations in order, the memory that they
//! leave behind, and how far they have got. The workload writes it, the checkers read it; nothing here touches a NIC.

use scalefabric_verbs::{QpType, WcStatus};

/// Bytes of a flow's piece of target memory: words for atomics first, data behind them.
pub const TARGET_LEN: usize = 4096;
/// Bytes of the words.
pub const WORDS_LEN: usize = 256;
/// Most bytes of a message.
pub const MAX_MESSAGE: usize = 3072;
/// Operations in flight, and buffers for them. One less may be outstanding: the last two share buffers (see `Kind::Relay`).
pub const SLOTS: usize = 8;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    /// FETCH ADD of 1 on the word that all flows to a NIC share.
    SharedAdd,
    Flush,
    AtomicWrite,
    /// A fenced WRITE of what the READ before it brought.
    Relay,
}

impl Kind {
    /// True if it uses up a receive at the peer.
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    /// True if it brings bytes back.
    pub const fn brings(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd | Self::SharedAdd)
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Posted.
    Posted,
    /// Completed, or known to be complete because a later one is.
    Done,
    /// Ended with this status.
    Failed(WcStatus),
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// Its payload is made from this ([`crate::random::fill`]).
    pub key: u64,
    /// Bytes.
    pub length: usize,
    /// Where in the flow's target memory.
    pub target: usize,
    /// Immediate data.
    pub imm: u32,
    /// Waits for READs and atomics before it.
    pub fence: bool,
    /// Makes a completion.
    pub signaled: bool,
    /// Its bytes travel in the WQE.
    pub inline: bool,
    /// Atomics: value to compare with, value to swap in or add, value that must come back.
    pub words: [u64; 3],
    /// How far it is.
    pub stage: Stage,
}

impl Op {
    /// True if it changes target memory.
    pub const fn writes(&self) -> bool {
        matches!(
            self.kind,
            Kind::Write | Kind::WriteImm | Kind::Relay | Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite
        )
    }

    /// True if the two touch a common byte of the flow's target memory.
    pub const fn overlaps(&self, target: usize, length: usize) -> bool {
        self.target < target + length && target < self.target + self.length
    }
}

/// What a flow promised about its patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `retry_cnt`.
    pub retry_cnt: u8,
    /// `rnr_retry`.
    pub rnr_retry: u8,
    /// The local ACK timeout, ns.
    pub timeout_ns: u64,
}

/// A flow: one direction of a connection, or of a pair of datagram QPs.
#[derive(Debug)]
pub struct Flow {
    /// Its number.
    pub id: usize,
    /// NIC of the requester.
    pub from: usize,
    /// NIC of the responder.
    pub to: usize,
    /// Service of the requester's QP.
    pub qp_type: QpType,
    /// Its patience.
    pub limits: Limits,
    /// All operations so far.
    pub ops: Vec<Op>,
    /// Operations that are known to have ended, from the first on.
    pub ended: usize,
    /// What the target memory must hold when all is done.
    pub shadow: Vec<u8>,
    /// What each outstanding READ must bring, by slot.
    pub expected: [Vec<u8>; SLOTS],
    /// Ranges of target memory of which nobody can tell whether they were written: operations that failed.
    pub uncertain: Vec<(usize, usize)>,
    /// Operation whose message the peer must receive next.
    pub next_receive: usize,
    /// The first failure, and when.
    pub failed: Option<(usize, WcStatus, u64)>,
    /// The peer's QP was taken away at this time.
    pub orphaned_ns: Option<u64>,
    /// This side's QP was taken away: what was outstanding has vanished.
    pub vanished: bool,
}

impl Flow {
    /// A flow that has done nothing.
    pub fn new(id: usize, from: usize, to: usize, qp_type: QpType, limits: Limits) -> Self {
        Self {
            id,
            from,
            to,
            qp_type,
            limits,
            ops: Vec::with_capacity(256),
            ended: 0,
            shadow: vec![0; TARGET_LEN],
            expected: Default::default(),
            uncertain: Vec::new(),
            next_receive: 0,
            failed: None,
            orphaned_ns: None,
            vanished: false,
        }
    }

    /// Operations posted and not ended.
    pub fn outstanding(&self) -> usize {
        self.ops.len() - self.ended
    }

    /// True if nothing more can be asked of it.
    pub fn is_dead(&self) -> bool {
        self.failed.is_some() || self.vanished
    }

    /// True for services that promise delivery.
    pub fn is_reliable(&self) -> bool {
        self.qp_type.is_reliable()
    }

    /// Notes an operation and what it does to the target memory. The flow's operations take effect in order, so this is
    /// known when they are posted.
    pub fn post(&mut self, mut op: Op) -> usize {
        let range = op.target..op.target + op.length;
        match op.kind {
            Kind::Write | Kind::WriteImm if self.is_reliable() => {
                crate::random::fill(op.key, 0, &mut self.shadow[range]);
            }
            Kind::Read => {
                let slot = self.ops.len() % SLOTS;
                self.expected[slot].clear();
                self.expected[slot].extend_from_slice(&self.shadow[range]);
            }
            Kind::Relay => {
                let before = (self.ops.len() + SLOTS - 1) % SLOTS;
                let (shadow, expected) = (&mut self.shadow[range], &self.expected[before]);
                shadow.copy_from_slice(&expected[..op.length]);
            }
            Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite => {
                let old = self.word(op.target);
                let new = match op.kind {
                    Kind::CompareSwap if old == op.words[0] => op.words[1],
                    Kind::CompareSwap => old,
                    Kind::FetchAdd => old.wrapping_add(op.words[1]),
                    _ => op.words[1],
                };
                op.words[2] = old;
                self.shadow[range].copy_from_slice(&new.to_ne_bytes());
            }
            _ => {}
        }
        self.ops.push(op);
        self.ops.len() - 1
    }

    /// A word of the shadow, as the processor sees it.
    pub fn word(&self, target: usize) -> u64 {
        u64::from_ne_bytes(self.shadow[target..target + 8].try_into().expect("words lie inside the target"))
    }

    /// The operation at `index` has ended well, and with it all before it.
    pub fn succeed(&mut self, index: usize) {
        for op in &mut self.ops[self.ended..=index] {
            op.stage = Stage::Done;
        }
        self.ended = index + 1;
    }

    /// The operation at `index` has failed; what it may have written is uncertain.
    pub fn fail(&mut self, index: usize, status: WcStatus, now_ns: u64) {
        if self.failed.is_none() {
            self.failed = Some((index, status, now_ns));
            // All before it that made no completion are done, and so is what they wrote.
            let ended = self.ended.min(index);
            for op in &mut self.ops[ended..index] {
                op.stage = Stage::Done;
            }
        }
        self.ended = index + 1;
        self.ops[index].stage = Stage::Failed(status);
        let op = self.ops[index];
        if op.writes() {
            self.uncertain.push((op.target, op.length));
        }
    }

    /// This side's QP is gone: nothing outstanding will be heard of again.
    pub fn vanish(&mut self) {
        self.vanished = true;
        for op in &self.ops[self.ended..] {
            if op.writes() {
                self.uncertain.push((op.target, op.length));
            }
        }
    }

    /// The SEND whose message this is; the newest, should two be equal.
    pub fn message(&self, message: &[u8]) -> Option<usize> {
        let mut want = [0; MAX_MESSAGE];
        (0..self.ops.len()).rev().find(|&index| {
            let op = &self.ops[index];
            let send = matches!(op.kind, Kind::Send | Kind::SendImm) && op.length == message.len();
            let (start, want) = (message.len().min(8), &mut want[..message.len().min(MAX_MESSAGE)]);
            if !send {
                return false;
            }
            crate::random::fill(op.key, 0, &mut want[..start]);
            want[..start] == message[..start] && {
                crate::random::fill(op.key, 0, want);
                want == message
            }
        })
    }

    /// The operation whose message must be received next.
    pub fn expect_receive(&self) -> Option<usize> {
        (self.next_receive..self.ops.len()).find(|&i| self.ops[i].kind.takes_receive())
    }
}

/// Everything that was asked.
#[derive(Debug, Default)]
pub struct Ledger {
    /// All flows.
    pub flows: Vec<Flow>,
    /// SharedAdd operations posted, by responder NIC.
    pub shared_adds: Vec<u64>,
    /// Old values that SharedAdd operations brought back, by responder NIC.
    pub shared_olds: Vec<Vec<u64>>,
    /// SharedAdd operations of which nobody can tell whether they took effect, by responder NIC.
    pub shared_unknown: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(kind: Kind, target: usize, length: usize, words: [u64; 3]) -> Op {
        Op {
            kind,
            key: 3,
            length,
            target,
            imm: 0,
            fence: false,
            signaled: true,
            inline: false,
            words,
            stage: Stage::Posted,
        }
    }

    fn flow() -> Flow {
        let limits = Limits { retry_cnt: 7, rnr_retry: 7, timeout_ns: 1 };
        Flow::new(0, 0, 1, QpType::Rc, limits)
    }

    #[test]
    fn the_shadow_follows_the_operations() {
        let mut flow = flow();
        flow.post(op(Kind::FetchAdd, 8, 8, [0, 5, 0]));
        flow.post(op(Kind::CompareSwap, 8, 8, [5, 9, 0]));
        let last = flow.post(op(Kind::CompareSwap, 8, 8, [5, 1, 0]));
        assert_eq!(flow.word(8), 9);
        assert_eq!(flow.ops[last].words[2], 9);
        flow.post(op(Kind::Write, 300, 16, [0; 3]));
        let read = flow.post(op(Kind::Read, 300, 16, [0; 3]));
        flow.post(op(Kind::Relay, 400, 16, [0; 3]));
        assert_eq!(flow.expected[read % SLOTS], flow.shadow[300..316]);
        assert_eq!(flow.shadow[400..416], flow.shadow[300..316]);
    }

    #[test]
    fn a_failure_makes_its_range_uncertain_and_what_was_before_it_done() {
        let mut flow = flow();
        for _ in 0..3 {
            flow.post(op(Kind::Write, 300, 16, [0; 3]));
        }
        flow.fail(1, WcStatus::RetryExcErr, 7);
        flow.fail(2, WcStatus::WrFlushErr, 7);
        assert_eq!(flow.ops[0].stage, Stage::Done);
        assert_eq!(flow.failed, Some((1, WcStatus::RetryExcErr, 7)));
        assert_eq!(flow.uncertain.len(), 2);
        assert_eq!(flow.outstanding(), 0);
    }
}
