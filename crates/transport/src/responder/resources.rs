//! The responder resources of clause 9.7.5.1: what must be remembered of READs, atomics, ATOMIC WRITEs and
//! FLUSHes, to answer each in PSN order and to answer a repeated one without doing it twice.
//!
//! There are `max_dest_rd_atomic` of them in a ring that is allocated once. The requester promises to have no more
//! outstanding, so a new request overwrites the oldest whose answer has left.

use alloc::collections::VecDeque;

use scalefabric_wire::RKey;
use scalefabric_wire::opcode::Operation;

use crate::host::RemoteAccess;
use crate::requester::segment::PACKET_COST;

/// A PSN that does not wrap: the 24 bits on the wire are its lowest. With it a result from 2^24 packets ago can never be
/// taken for one of now.
pub(super) type LongPsn = u64;

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The bytes of this range, as they are when each packet leaves (also when it leaves again).
    Read(RemoteAccess),
    /// The stored result: `value` for CAS and FAA, nothing for ATOMIC WRITE and FLUSH.
    Stored { operation: Operation, va: u64, rkey: RKey, value: u64 },
}

/// What is left to send of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsent {
    /// PSN of the next packet.
    pub psn: LongPsn,
    /// READ: the next byte.
    pub va: u64,
    /// READ: bytes left.
    pub left: u32,
    /// READ: FIRST has left.
    pub started: bool,
}

/// One remembered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    /// PSN of the request, and of the first packet of its answer.
    pub first: LongPsn,
    /// PSN of the last packet of its answer.
    pub last: LongPsn,
    /// MSN when it was executed.
    pub msn: u32,
    /// What it is answered with.
    pub answer: Answer,
    /// The whole answer left at least once.
    pub answered: bool,
    /// READ: its responses leave with room for telemetry.
    pub has_room: bool,
    /// What is to be sent now.
    pub unsent: Option<Unsent>,
}

impl Remembered {
    /// What the next packet of a READ's answer takes of the wire, about; `None` for other answers.
    pub(super) fn next_cost(&self, pmtu: u32) -> Option<u32> {
        match (self.answer, self.unsent) {
            (Answer::Read(_), Some(unsent)) => Some(unsent.left.min(pmtu) + PACKET_COST),
            _ => None,
        }
    }
}

/// The ring, oldest first: PSNs rise.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Remembered>,
    limit: usize,
    unsent: usize,
}

impl Resources {
    /// Takes `max_dest_rd_atomic` as it is now. Allocates when it grew, which it does once in a connection's life.
    pub(super) fn limit(&mut self, max_dest_rd_atomic: u8) {
        let limit = usize::from(max_dest_rd_atomic);
        if limit == self.limit {
            return;
        }
        self.limit = limit;
        while self.ring.len() > limit {
            self.forget_oldest();
        }
        self.ring.reserve_exact(limit - self.ring.len());
    }

    /// Whether another may be remembered: there is a free place, or the oldest was answered and so the requester, which
    /// keeps within the limit, has seen its answer.
    pub(super) fn has_room(&self) -> bool {
        self.ring.len() < self.limit || self.ring.front().is_some_and(|oldest| oldest.answered)
    }

    /// Remembers a request. [`Resources::has_room`] was asked.
    pub(super) fn remember(&mut self, request: Remembered) {
        if self.ring.len() == self.limit {
            // If its answer was on the way once more, nobody waits for that now.
            self.forget_oldest();
        }
        self.unsent += usize::from(request.unsent.is_some());
        self.ring.push_back(request);
    }

    /// The request whose answer covers `psn`.
    pub(super) fn find(&self, psn: LongPsn) -> Option<usize> {
        self.ring.iter().rposition(|r| r.first <= psn && psn <= r.last)
    }

    /// A remembered request.
    pub(super) fn get(&self, at: usize) -> &Remembered {
        &self.ring[at]
    }

    /// Sends an answer, or a part of it, once more. What was left to be sent of it is forgotten: the requester has gone
    /// back.
    pub(super) fn send_again(&mut self, at: usize, what: Unsent) {
        let request = &mut self.ring[at];
        self.unsent += usize::from(request.unsent.is_none());
        request.unsent = Some(what);
    }

    /// The oldest request with something to send. Answers leave in the order of PSNs (clause 9.7.5.1.1).
    pub(super) fn first_unsent(&self) -> Option<usize> {
        if self.unsent == 0 { None } else { self.ring.iter().position(|r| r.unsent.is_some()) }
    }

    /// A packet of the answer left; `rest` is what is left now.
    pub(super) fn sent(&mut self, at: usize, rest: Option<Unsent>) {
        let request = &mut self.ring[at];
        if rest.is_none() {
            request.answered = true;
            self.unsent -= 1;
        }
        request.unsent = rest;
    }

    /// Sends no more answers, though they stay remembered.
    pub(super) fn stop_sending(&mut self) {
        for request in &mut self.ring {
            request.unsent = None;
        }
        self.unsent = 0;
    }

    /// Forgets everything; keeps its memory.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.unsent = 0;
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.ring.pop_front() {
            self.unsent -= usize::from(oldest.unsent.is_some());
        }
    }
}
