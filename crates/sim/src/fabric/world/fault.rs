//! Changes during a run: links that fail or lose packets, hosts that are slow or send PAUSE without reason.

use super::super::port::CONTROL;
use super::super::time::Ps;
use super::{Event, World};

/// A change during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A link goes down or comes back.
    Link {
        /// Index of the link.
        link: u32,
        /// Comes back.
        up: bool,
    },
    /// A link loses packets from now on.
    Loss {
        /// Index of the link.
        link: u32,
        /// In ten million.
        loss_e7: u32,
    },
    /// A host takes in only so many bits a second from now on; 0: as fast as its link.
    SlowHost {
        /// The host.
        host: u32,
        /// Bits a second.
        bps: u64,
    },
    /// A host sends PAUSE without reason, or stops to.
    Storm {
        /// The host.
        host: u32,
        /// Its priority.
        priority: u8,
        /// Begins.
        on: bool,
    },
}

impl World {
    /// Plans a change.
    pub fn plan(&mut self, at: Ps, fault: Fault) {
        self.queue.push(at, Event::Fault { index: self.faults.len() as u32 });
        self.faults.push((at, fault));
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Link { link, up } => {
                for port in [2 * link, 2 * link + 1] {
                    self.ports[port as usize].up = up;
                    if up {
                        self.ports[port as usize].paused = 0;
                        self.transmit(port);
                    } else {
                        self.drop_queues(port);
                    }
                }
                for qp in 0..self.qps.len() as u32 {
                    self.watch_cut_off(qp);
                }
                self.queue.push(self.now + self.model.switch.reconvergence, Event::Reconverge);
            }
            Fault::Loss { link, loss_e7 } => {
                for port in [2 * link, 2 * link + 1] {
                    self.ports[port as usize].loss_e7 = loss_e7;
                }
            }
            Fault::SlowHost { host, bps } => self.slow_down(host, bps),
            Fault::Storm { host, priority, on } => self.storm(host, priority, on),
        }
    }

    /// Everything that waits at a port whose link is down is lost.
    fn drop_queues(&mut self, port: u32) {
        for queue in 0..=CONTROL {
            while self.ports[port as usize].waiting & (1 << queue) != 0 {
                let packet = self.ports[port as usize].dequeue(self.now, &self.arena, queue);
                if queue != CONTROL && self.is_switch(self.ports[port as usize].node) {
                    self.release(port, packet);
                }
                self.counters.dropped_down += 1;
                self.forget(packet);
            }
        }
    }
}
