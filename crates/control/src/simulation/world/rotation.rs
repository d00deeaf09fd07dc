//! Keys of the memory that processes lend: new ones are told, old ones withdrawn when nobody uses them any more.

use super::super::Canary;
use super::super::node::Process;
use super::{EndKey, OVERLAP_NS, World};
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{ConnectionId, OrderId, OrderResult};

impl World {
    /// Lends the process's memory to a new connection's peer.
    pub(super) fn give_offer(&mut self, key: &EndKey) {
        let (lent, now) = (self.processes[key.0].keys.now, self.now);
        let clock = self.processes[key.0].clock(now);
        if let Some(end) = self.ends.get_mut(key) {
            end.offer(lent, OVERLAP_NS, clock, now);
        }
        self.carry(key);
    }

    /// New keys for the memory that a process lends. While old ones are still being withdrawn another rotation is not begun.
    pub fn rotate(&mut self, slot: usize, order: Option<OrderId>) {
        let process = &mut self.processes[slot];
        if process.keys.before.is_some() {
            if let Some(order) = order {
                process.directory.answer(order, OrderResult::RolledBack { reason: "keys are being rotated".into() });
            }
            return;
        }
        let old = process.keys.now;
        // The upper bits say whose, the lower ones count.
        process.keys.now = (old & 0xffff_0000) | (old.wrapping_add(257) & 0xffff);
        let (lent, clock, now) = (process.keys.now, process.clock(self.now), self.now);
        process.keys.before = Some((old, now + OVERLAP_NS));
        process.keys.order = order;
        let ends = self.ends.iter().filter(|((of, _), end)| *of == slot && end.closed.is_none());
        let keys: Vec<EndKey> = ends.map(|(key, _)| key.clone()).collect();
        process.keys.waits = keys.iter().map(|(_, id)| id.clone()).collect();
        self.note(|| format!("process {slot} lends {lent} instead of {old}"));
        for key in keys {
            if let Some(end) = self.ends.get_mut(&key) {
                end.offer(lent, OVERLAP_NS, clock, now);
            }
            self.carry(&key);
        }
        self.withdraw(slot);
    }

    /// Withdraws the key before, when nobody uses it any more.
    pub(super) fn withdraw(&mut self, slot: usize) {
        let process = &mut self.processes[slot];
        if self.canary == Canary::KeysStay || !process.keys.waits.is_empty() {
            return;
        }
        if process.keys.before.take().is_some()
            && let Some(order) = process.keys.order.take()
        {
            process.directory.answer(order, OrderResult::Rotated { keys: 1, peers: 0, late: 0 });
        }
    }

    /// An end that is gone holds nothing up.
    pub(super) fn withdraw_late(&mut self, slot: usize) {
        let there = |id: &ConnectionId| self.ends.get(&(slot, id.clone())).is_some_and(|end| end.closed.is_none());
        let waits: std::collections::BTreeSet<_> =
            self.processes[slot].keys.waits.iter().filter(|id| there(id)).cloned().collect();
        if waits.len() != self.processes[slot].keys.waits.len() {
            self.processes[slot].keys.waits = waits;
            self.withdraw(slot);
        }
    }
}

/// The key of now, and the one before with its end.
pub(super) fn owned_key(process: &Process) -> (u32, Option<(u32, u64)>) {
    (process.keys.now, process.keys.before)
}
