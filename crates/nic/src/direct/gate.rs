//! The gate of a QP: on which terms its peer, in another process of the device, may execute requests by itself.
//!
//! Its owner opens it when the QP comes to RTS, or in RTR when the first packet has come, and closes it before anything of the terms changes; only the owner writes the
//! terms, and only while it is closed. An accessor reads them once, remembers the generation, and from then on compares one word an
//! operation, after it has published its hazard.
//!
//! Beside it the PSNs are counted that the peer's requests would have taken, so that `rq_psn` of a query says what was executed. The
//! accessor counts before it clears its hazard, also if the gate was closed meanwhile: what it did, it did. There is one accessor, which the terms name, so it needs no atomic
//! read-modify-write; the count says for which opening it is, so that one who was given up in the middle, and goes on later, is noticed.

use scalefabric_verbs::{AccessFlags, Gid, Qpn};

use crate::memory::PdId;
use crate::ring::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// What a QP's peer may do, and who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The QP itself.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: PdId,
    /// What its peer may do.
    pub access: AccessFlags,
    /// Its peer.
    pub peer_qpn: Qpn,
    /// Address of its peer.
    pub peer_gid: Gid,
    /// Index of its own address, in the tables that all processes of the device share.
    pub sgid_index: u8,
    /// Port that it hears by, from 1.
    pub port_num: u8,
    /// READs and atomics that it takes at a time.
    pub max_dest_rd_atomic: u8,
    /// Index of its P_Key, in the same tables.
    pub pkey_index: u16,
}

/// A gate that was found open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Names this opening.
    pub generation: u32,
    /// Its terms.
    pub terms: Terms,
}

/// A QP's gate: one cache line, which the accessor's processor keeps.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Gate {
    /// Lower half: for which opening (or reset) it counts. Upper half: PSNs counted since the QP left RESET.
    counted: AtomicU64,
    /// Generation, odd while open.
    state: AtomicU32,
    /// What was counted when it was opened.
    base: AtomicU32,
    pd: AtomicU32,
    access: AtomicU32,
    qpn: AtomicU32,
    peer_qpn: AtomicU32,
    /// Port, READs, index of the P_Key.
    port: AtomicU32,
    sgid_index: AtomicU32,
    peer_gid: [AtomicU64; 2],
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

fn store_gid(words: &[AtomicU64; 2], gid: Gid) {
    let value = u128::from_be_bytes(gid.0);
    words[0].store((value >> 64) as u64, Ordering::Relaxed);
    words[1].store(value as u64, Ordering::Relaxed);
}

fn load_gid(words: &[AtomicU64; 2]) -> Gid {
    let value = u128::from(words[0].load(Ordering::Relaxed)) << 64 | u128::from(words[1].load(Ordering::Relaxed));
    Gid(value.to_be_bytes())
}

impl Gate {
    /// A closed one.
    pub fn new() -> Self {
        let (word, long) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Self {
            counted: long(),
            state: word(),
            base: word(),
            pd: word(),
            access: word(),
            qpn: word(),
            peer_qpn: word(),
            port: word(),
            sgid_index: word(),
            peer_gid: [long(), long()],
        }
    }

    /// Owner: opens it. It is closed, and nobody is inside any more. What was counted stays.
    pub fn open(&self, terms: &Terms) {
        // Release: who reads one of these terms sees that the last opening is over.
        fence(Ordering::Release);
        self.pd.store(terms.pd.0, Ordering::Relaxed);
        self.access.store(terms.access.bits(), Ordering::Relaxed);
        self.qpn.store(terms.qpn.get(), Ordering::Relaxed);
        self.peer_qpn.store(terms.peer_qpn.get(), Ordering::Relaxed);
        let port =
            u32::from(terms.port_num) | u32::from(terms.max_dest_rd_atomic) << 8 | u32::from(terms.pkey_index) << 16;
        self.port.store(port, Ordering::Relaxed);
        store_gid(&self.peer_gid, terms.peer_gid);
        self.sgid_index.store(u32::from(terms.sgid_index), Ordering::Relaxed);
        let generation = self.state.load(Ordering::Relaxed).wrapping_add(1) | 1;
        self.begin_count(generation, self.executed_psns());
        // Release: who sees it open sees the terms, and where to count.
        self.state.store(generation, Ordering::Release);
    }

    /// Owner: closes it; whoever may still be inside is waited for by its hazard. True if it was open.
    pub fn close(&self) -> bool {
        let generation = self.state.load(Ordering::Relaxed);
        self.state.store(generation.wrapping_add(generation & 1), Ordering::Release);
        generation & 1 == 1
    }

    /// Owner, closed: the QP is in RESET. A count that an accessor still has in hand does not fit the new generation.
    pub fn reset(&self) {
        let generation = self.state.load(Ordering::Relaxed).wrapping_add(2) & !1;
        self.begin_count(generation, 0);
        self.state.store(generation, Ordering::Release);
    }

    fn begin_count(&self, generation: u32, count: u32) {
        self.base.store(count, Ordering::Relaxed);
        self.counted.store(u64::from(generation) | u64::from(count) << 32, Ordering::Release);
    }

    /// PSNs that the peer's own executions would have taken.
    pub fn executed_psns(&self) -> u32 {
        let counted = self.counted.load(Ordering::Acquire);
        // Of the opening that there is, or was last. Else somebody who was given up has gone on, and what was counted since is lost.
        let is_of_now = self.state.load(Ordering::Relaxed).wrapping_sub(counted as u32) <= 1;
        if is_of_now { (counted >> 32) as u32 } else { self.base.load(Ordering::Relaxed) }
    }

    /// Accessor: its terms, if it is open.
    pub fn read(&self) -> Option<Open> {
        let generation = self.state.load(Ordering::Acquire);
        if generation & 1 == 0 {
            return None;
        }
        let port = self.port.load(Ordering::Relaxed);
        let terms = Terms {
            qpn: Qpn::new(self.qpn.load(Ordering::Relaxed)),
            pd: PdId(self.pd.load(Ordering::Relaxed)),
            access: AccessFlags::from_bits_retain(self.access.load(Ordering::Relaxed)),
            peer_qpn: Qpn::new(self.peer_qpn.load(Ordering::Relaxed)),
            peer_gid: load_gid(&self.peer_gid),
            sgid_index: self.sgid_index.load(Ordering::Relaxed) as u8,
            port_num: port as u8,
            max_dest_rd_atomic: (port >> 8) as u8,
            pkey_index: (port >> 16) as u16,
        };
        // A second look: the terms belong to the generation only if it is still the same.
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == generation).then_some(Open { generation, terms })
    }

    /// Accessor, behind its hazard: whether it is still open on the terms that were read.
    #[inline]
    pub fn is_open(&self, generation: u32) -> bool {
        self.state.load(Ordering::Acquire) == generation
    }

    /// Accessor, behind its hazard: counts what it has executed. Nothing is counted once the gate belongs to another life of the QP.
    #[inline]
    pub fn count(&self, generation: u32, psns: u32) {
        let now = self.counted.load(Ordering::Relaxed);
        let before = if now as u32 == generation {
            (now >> 32) as u32
        } else if self.is_open(generation) {
            // Somebody who was given up has gone on, and has written over it.
            self.base.load(Ordering::Relaxed)
        } else {
            return;
        };
        self.counted.store(u64::from(generation) | u64::from(before.wrapping_add(psns)) << 32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn terms(n: u8) -> Terms {
        Terms {
            qpn: Qpn::new(0x01_0002),
            pd: PdId(u32::from(n)),
            access: AccessFlags::REMOTE_WRITE,
            peer_qpn: Qpn::new(0x02_0003),
            peer_gid: Gid([n; 16]),
            sgid_index: 3,
            port_num: 2,
            max_dest_rd_atomic: 16,
            pkey_index: 63,
        }
    }

    #[test]
    fn what_it_was_opened_with_is_read_and_nothing_when_it_is_closed() {
        let gate = Gate::new();
        assert_eq!(gate.read(), None);
        gate.open(&terms(5));
        let open = gate.read().unwrap();
        assert_eq!(open.terms, terms(5));
        assert!(gate.is_open(open.generation) && gate.close());
        assert!(!gate.is_open(open.generation) && gate.read().is_none() && !gate.close());
        gate.open(&terms(6));
        let again = gate.read().unwrap();
        assert_eq!(again.terms, terms(6));
        assert!(!gate.is_open(open.generation));
    }

    #[test]
    fn what_was_executed_counts_until_the_qp_is_reset() {
        let gate = Gate::new();
        gate.open(&terms(5));
        let first = gate.read().unwrap().generation;
        gate.count(first, 3);
        gate.close();
        gate.count(first, 2);
        assert_eq!(gate.executed_psns(), 5, "one who was inside while it closed counts, too");
        gate.open(&terms(5));
        gate.count(first, 1);
        assert_eq!(gate.executed_psns(), 5, "one who was given up does not");
        gate.close();
        let last = first.wrapping_add(2);
        gate.reset();
        gate.count(last, 1);
        assert_eq!(gate.executed_psns(), 0);
    }

    #[test]
    fn one_who_was_given_up_and_goes_on_is_noticed() {
        let gate = Gate::new();
        gate.open(&terms(5));
        let first = gate.read().unwrap().generation;
        gate.count(first, 3);
        gate.close();
        gate.open(&terms(5));
        let second = gate.read().unwrap().generation;
        gate.count(second, 4);
        assert_eq!(gate.executed_psns(), 7);
        // It had looked before the gate was closed, and writes now.
        gate.counted.store(u64::from(first) | 4 << 32, Ordering::Release);
        assert_eq!(gate.executed_psns(), 3, "what is certain");
        gate.count(second, 2);
        assert_eq!(gate.executed_psns(), 5);
        gate.close();
        assert_eq!(gate.executed_psns(), 5);
    }

    #[test]
    fn one_cache_line_each() {
        assert_eq!((size_of::<Gate>(), size_of::<crate::direct::Hazard>()), (64, 64));
    }
}
