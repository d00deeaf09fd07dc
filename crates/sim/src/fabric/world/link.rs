//! What happens on a link: a packet leaves a port, and reaches the other end, or does not.

use super::super::packet::Kind;
use super::{Event, World};

impl World {
    /// A packet has reached the far end of a port's link.
    #[inline]
    pub(super) fn arrive(&mut self, port: u32, packet: u32) {
        let link = &self.ports[port as usize];
        let (node, loss_e7) = (link.peer, link.loss_e7);
        if !link.up {
            self.counters.dropped_down += 1;
            self.forget(packet);
            return;
        }
        let kind = self.arena.get(packet).kind;
        if loss_e7 > 0
            && !matches!(kind, Kind::Pause | Kind::Resume)
            && self.random.below(10_000_000) < u64::from(loss_e7)
        {
            self.counters.dropped_lost += 1;
            self.forget(packet);
            return;
        }
        let local = port ^ 1;
        if matches!(kind, Kind::Pause | Kind::Resume) {
            let priority = self.arena.get(packet).priority;
            self.arena.remove(packet);
            self.obey(local, priority, kind == Kind::Pause);
        } else if self.is_switch(node) {
            self.forward(node, local, packet);
        } else {
            self.receive(node, packet);
        }
    }

    /// Sends what a port may send, if it is free; else sees to it that it will.
    #[inline]
    pub(in crate::fabric) fn transmit(&mut self, index: u32) {
        let port = &mut self.ports[index as usize];
        if self.now < port.busy_until {
            if !port.armed {
                port.armed = true;
                self.queue.push(port.busy_until, Event::Free { port: index });
            }
            return;
        }
        if !port.up {
            return;
        }
        if self.is_switch(self.ports[index as usize].node) {
            self.transmit_switch(index);
        } else {
            self.transmit_host(index);
        }
    }

    /// Puts a packet on the wire of a free port.
    #[inline]
    pub(in crate::fabric) fn launch(&mut self, index: u32, packet: u32, bytes: u32) {
        let port = &mut self.ports[index as usize];
        port.busy_until = self.now + port.rate.serialise(bytes);
        port.tx_bytes += u64::from(bytes);
        port.tx_packets += 1;
        self.queue.push(port.busy_until + port.delay, Event::Arrive { port: index, packet });
    }
}
