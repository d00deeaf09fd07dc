//! Messages on QPs: they come in order, late or not at all, and are acknowledged or refused.

use super::super::lane::{Fate, Lane};
use super::super::{MS, PER_NODE, place_of};
use super::rotation::owned_key;
use super::{EndKey, Event, World};

impl World {
    /// Whether packets of a lane come to the QP of its peer.
    pub(super) fn reaches(&self, node: usize, lane: &Lane) -> bool {
        let Some(peer) = lane.peer.and_then(|peer| self.qps.get(&peer)) else { return false };
        let near = self.nodes[node].up[usize::from(lane.path.port_num) - 1];
        let far = place_of(lane.path.dgid).is_some_and(|(node, port)| self.nodes[node].up[usize::from(port) - 1]);
        let there = self.ends.get(peer).is_some_and(|end| end.lanes.values().any(|other| Some(other.qp) == lane.peer));
        near && far && there
    }

    pub(super) fn send_data(&mut self, key: &EndKey, qp: u32, psn: u64, number: u64, with: Option<u32>) {
        let Some(end) = self.ends.get(key) else { return };
        let Some(lane) = end.lanes.values().find(|lane| lane.qp == qp) else { return };
        let (Some(to), true) = (lane.peer, self.reaches(key.0 / PER_NODE, lane)) else { return };
        if !self.dice.permille(self.trouble / 2) {
            let time = self.now + MS / 10 + self.dice.below(MS);
            let last = self.wires.entry(qp).or_default();
            *last = time.max(*last + 1);
            let time = *last;
            self.at_time(time, Event::Data { from: qp, to, psn, number, key: with });
        }
    }

    pub(super) fn arrive(&mut self, from: u32, to: u32, psn: u64, number: u64, with: Option<u32>) {
        let Some(key) = self.qps.get(&to).cloned() else { return };
        let wait = self.processes[key.0].paused_until;
        if wait > self.now {
            // The NIC is in the process: it does nothing while that stands still, and then timers are first.
            return self.at_time(wait + MS, Event::Data { from, to, psn, number, key: with });
        }
        let owned = &self.processes[key.0].keys;
        let good = with.is_none_or(|with| with == owned.now || owned.before.is_some_and(|(before, _)| before == with));
        if !good {
            return self.at(MS / 2, Event::Ack { to: from, up_to: 0, refused: true });
        }
        let (now, clock) = (self.now, self.processes[key.0].clock(self.now));
        let fate = self.ends.get_mut(&key).and_then(|end| end.take(to, from, psn, number, clock, now));
        if let (Some(Fate::Ack(up_to)), Some(with)) = (fate, with)
            && up_to == psn + 1
        {
            self.checker.key_used(owned_key(&self.processes[key.0]), with, now);
        }
        self.carry(&key);
        if let Some(Fate::Ack(up_to)) = fate
            && !self.dice.permille(self.trouble / 2)
        {
            self.at(MS / 2, Event::Ack { to: from, up_to, refused: false });
        }
    }

    pub(super) fn acknowledge(&mut self, to: u32, up_to: u64, refused: bool) {
        let Some(key) = self.qps.get(&to).cloned() else { return };
        let (now, clock) = (self.now, self.processes[key.0].clock(self.now));
        if let Some(end) = self.ends.get_mut(&key) {
            if refused { end.refused(to, clock, now) } else { end.acknowledge(to, up_to, clock, now) }
        }
        self.carry(&key);
    }
}
