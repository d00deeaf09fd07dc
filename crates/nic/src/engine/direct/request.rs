//! One request at its target: what it may touch there, and the touching.
//!
//! The caller has found the way and published its hazard; nothing here looks at gates. What the target would refuse is [`Direct::Wire`].

use scalefabric_transport::host::{AtomicOp, Direct, RemoteAccess, SendWqe, WqeOp};
use scalefabric_verbs::{AccessFlags, FlushLevel, FlushPlacement, RKey, Sge, WcStatus};

use super::CHUNK;
use crate::memory::{Access, Grant, Neighbour, PdId, Peer, Source};
use crate::ring::SendRing;

/// Where a request's own bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Local<'a> {
    /// In the send queue: its WQE of that index says so.
    Queued(&'a SendRing, u32),
    /// Here.
    Inline(&'a [u8]),
    /// In registered memory.
    Sges(&'a [Sge]),
}

impl Local<'_> {
    fn sges(&self) -> impl Iterator<Item = Sge> + '_ {
        let (queued, list) = match *self {
            Self::Queued(ring, index) => (Some(ring.sges(index)), &[][..]),
            Self::Inline(_) => (None, &[][..]),
            Self::Sges(list) => (None, list),
        };
        queued.into_iter().flatten().chain(list.iter().copied())
    }
}

/// The right that a request needs, and whether it counts against `max_dest_rd_atomic`.
#[inline]
pub(super) fn needs(op: &WqeOp) -> Option<(AccessFlags, bool)> {
    Some(match op {
        WqeOp::Write { .. } => (AccessFlags::REMOTE_WRITE, false),
        WqeOp::Read { .. } => (AccessFlags::REMOTE_READ, true),
        WqeOp::CompareSwap { .. } | WqeOp::FetchAdd { .. } => (AccessFlags::REMOTE_ATOMIC, true),
        WqeOp::AtomicWrite { .. } => (AccessFlags::REMOTE_WRITE, true),
        WqeOp::Flush { placement: FlushPlacement::Global, .. } => (AccessFlags::FLUSH_GLOBAL, true),
        // To persistence: a system call of the owner's.
        _ => return None,
    })
}

#[inline]
pub(super) fn rkey_of(op: &WqeOp) -> (u64, RKey) {
    match *op {
        WqeOp::Write { remote_addr, rkey }
        | WqeOp::Read { remote_addr, rkey }
        | WqeOp::CompareSwap { remote_addr, rkey, .. }
        | WqeOp::FetchAdd { remote_addr, rkey, .. }
        | WqeOp::AtomicWrite { remote_addr, rkey }
        | WqeOp::Flush { remote_addr, rkey, .. } => (remote_addr, rkey),
        _ => (0, RKey(0)),
    }
}

/// Whether a request's bytes can be reached, as the target's table says now; those of its own side are not looked at.
pub(super) fn is_within_reach(
    wqe: &SendWqe,
    memory: &Access<'_>,
    neighbour: Option<&Neighbour>,
    peer: Peer,
    right: AccessFlags,
    slot: u32,
) -> bool {
    let (va, rkey) = rkey_of(&wqe.op);
    let length = match wqe.op {
        WqeOp::Flush { length, level: FlushLevel::Range, .. } => length,
        _ => wqe.length,
    };
    if length == 0 {
        return true;
    }
    let access = RemoteAccess { rkey, va, length: u64::from(length), access: right, xrc_srqn: None };
    let grant = match neighbour {
        Some(neighbour) => neighbour.grant(slot, peer, &access),
        None => memory.grant(slot, peer, &access),
    };
    let moves = matches!(wqe.op, WqeOp::Write { .. } | WqeOp::Read { .. });
    grant.is_some_and(|grant| grant.is_within_reach(moves))
}

/// One request at its target.
pub(super) struct Request<'a> {
    pub wqe: &'a SendWqe,
    pub local: Local<'a>,
    /// PD of the QP that asks.
    pub pd: PdId,
    pub memory: &'a Access<'a>,
    /// The process at which it is; `None`: this one.
    pub neighbour: Option<&'a Neighbour>,
    /// The QP that is asked.
    pub peer: Peer,
    pub right: AccessFlags,
    /// Place of its key in the target's table.
    pub slot: u32,
    /// Bytes that are done.
    pub done: u32,
}

impl Request<'_> {
    #[inline(always)]
    fn grant(&self, va: u64, rkey: RKey, length: u64) -> Option<Grant<'_>> {
        let access = RemoteAccess { rkey, va, length, access: self.right, xrc_srqn: None };
        match self.neighbour {
            Some(neighbour) => neighbour.grant(self.slot, self.peer, &access),
            None => self.memory.grant(self.slot, self.peer, &access),
        }
    }

    #[inline(always)]
    pub fn execute(&self) -> Direct {
        let (va, rkey) = rkey_of(&self.wqe.op);
        match self.wqe.op {
            WqeOp::Write { .. } | WqeOp::Read { .. } => self.move_bytes(va, rkey),
            WqeOp::CompareSwap { compare, swap, .. } => self.atomic(va, rkey, AtomicOp::CompareSwap { compare, swap }),
            WqeOp::FetchAdd { add, .. } => self.atomic(va, rkey, AtomicOp::FetchAdd { add }),
            WqeOp::AtomicWrite { .. } => self.atomic_write(va, rkey),
            WqeOp::Flush { length, level, .. } => self.flush(va, rkey, length, level),
            _ => Direct::Wire,
        }
    }

    /// WRITE and READ: as much as goes behind one hazard.
    #[inline(always)]
    fn move_bytes(&self, va: u64, rkey: RKey) -> Direct {
        let whole = self.wqe.length;
        // Without bytes no key is looked at (clause 9.7.4.1.3).
        if whole == 0 {
            return Direct::Done;
        }
        let Some(grant) = self.grant(va, rkey, u64::from(whole)) else { return Direct::Wire };
        let part = (whole - self.done).min(CHUNK);
        let last = self.done + part == whole;
        let moved = match (self.wqe.op, self.local) {
            (WqeOp::Read { .. }, local) => self.memory.get(self.pd, local.sges(), &grant, self.done, part),
            (_, Local::Inline(bytes)) => self.put_inline(bytes, &grant),
            (_, Local::Queued(ring, index)) if ring.is_inline(index) => self.put_queued(ring, index, &grant),
            // Most have one, and no parts: spared is the walk along a list.
            (_, Local::Sges([sge])) if sge.length == whole && part == whole => {
                self.memory.put_one(self.pd, sge, &grant)
            }
            (_, local) => self.memory.put(self.pd, Source::Sges(local.sges()), &grant, self.done, part, last),
        };
        match (moved, last) {
            (false, _) => Direct::Wire,
            (true, false) => Direct::Part(part),
            (true, true) => Direct::Done,
        }
    }

    #[inline(always)]
    fn put_inline(&self, bytes: &[u8], grant: &Grant<'_>) -> bool {
        let source: Source<'_, std::iter::Empty<Sge>> = Source::Inline(bytes);
        self.memory.put(self.pd, source, grant, 0, self.wqe.length, true)
    }

    // Apart: who has no such bytes need not clear room for them.
    #[inline(never)]
    fn put_queued(&self, ring: &SendRing, index: u32, grant: &Grant<'_>) -> bool {
        let mut bytes = [0; crate::post::MAX_INLINE];
        let Some(bytes) = bytes.get_mut(..self.wqe.length as usize) else { return false };
        ring.copy_inline(index, 0, bytes);
        self.put_inline(bytes, grant)
    }

    fn atomic(&self, va: u64, rkey: RKey, op: AtomicOp) -> Direct {
        // Its result must have a place before it is executed: it cannot be executed again.
        let has_place = || self.memory.can_scatter(self.pd, self.local.sges(), 8);
        if !va.is_multiple_of(8) || self.wqe.length != 8 || !has_place() {
            return Direct::Wire;
        }
        let Some(grant) = self.grant(va, rkey, 8) else { return Direct::Wire };
        let Some(old) = self.memory.atomic(&grant, op) else { return Direct::Wire };
        match self.memory.scatter(self.pd, self.local.sges(), 0, &old.to_ne_bytes()) {
            Ok(()) => Direct::Done,
            Err(_) => Direct::Failed(WcStatus::LocProtErr),
        }
    }

    fn atomic_write(&self, va: u64, rkey: RKey) -> Direct {
        let mut bytes = [0; 8];
        if self.wqe.length != 8 || !va.is_multiple_of(8) {
            return Direct::Wire;
        }
        match self.local {
            Local::Inline(given) if given.len() == 8 => bytes.copy_from_slice(given),
            Local::Queued(ring, index) if ring.is_inline(index) => ring.copy_inline(index, 0, &mut bytes),
            local => {
                if self.memory.gather(self.pd, local.sges(), 0, &mut bytes).is_err() {
                    return Direct::Wire;
                }
            }
        }
        let Some(grant) = self.grant(va, rkey, 8) else { return Direct::Wire };
        match self.memory.atomic(&grant, AtomicOp::Write { value: u64::from_ne_bytes(bytes) }) {
            Some(_) => Direct::Done,
            None => Direct::Wire,
        }
    }

    fn flush(&self, va: u64, rkey: RKey, length: u32, level: FlushLevel) -> Direct {
        let granted = match level {
            FlushLevel::Range => length == 0 || self.grant(va, rkey, u64::from(length)).is_some(),
            FlushLevel::MemoryRegion => {
                let access = RemoteAccess { rkey, va, length: 0, access: self.right, xrc_srqn: None };
                match self.neighbour {
                    Some(neighbour) => neighbour.grants_region(self.peer, &access),
                    None => self.memory.grants_region(self.peer, &access),
                }
            }
        };
        if !granted {
            return Direct::Wire;
        }
        self.memory.flush_global();
        Direct::Done
    }
}
