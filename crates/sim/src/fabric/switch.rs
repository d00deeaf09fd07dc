//! What a switch does with a packet: a way, room in the buffer, a queue, and at its departure a mark and a word of telemetry.

use super::buffer::Admission;
use super::model::Balance;
use super::packet::Kind;
use super::port::CONTROL;
use super::world::{Event, World};

/// Adaptive choice compares queues in grades of 16 KiB, as chips do. Compared to the byte, flows that meet in step would each keep one way, and collide
/// further on like hashed ones.
const GRADE_SHIFT: u32 = 14;

impl World {
    /// A packet came in by the port `local` of a switch.
    #[inline]
    pub(super) fn forward(&mut self, node: u32, local: u32, place: u32) {
        let (to, entropy, priority, bytes, kind) = {
            let packet = self.arena.get_mut(place);
            packet.ingress = local;
            (packet.to, packet.entropy, usize::from(packet.priority), packet.bytes, packet.kind)
        };
        let switch = node - self.topology.hosts;
        let Some(egress) = self.choose_way(node, switch, to, entropy, kind) else {
            self.counters.dropped_no_way += 1;
            self.forget(place);
            return;
        };
        let queue_bytes = self.ports[egress as usize].queues[priority].bytes;
        let buffer = &mut self.buffers[switch as usize];
        let ingress = &mut self.ingress[local as usize];
        if buffer.admit(ingress, priority, bytes, queue_bytes) == Admission::Dropped {
            self.counters.dropped_full += 1;
            self.forget(place);
            return;
        }
        let must_pause = buffer.must_pause(ingress, priority);
        self.ports[egress as usize].enqueue(self.now, &mut self.arena, priority, place);
        if must_pause {
            self.tell_pause(local, priority as u8, Some(egress));
        }
        self.transmit(egress);
    }

    /// The port by which a packet leaves; none if no way is up.
    #[inline]
    fn choose_way(&mut self, node: u32, switch: u32, to: u32, entropy: u32, kind: Kind) -> Option<u32> {
        let ways = self.routes.ports(switch, to);
        let first = match ways {
            [] => return None,
            [only] => *only,
            many => {
                // ACKs keep their way: only data is spread.
                let balance = if kind == Kind::Data { self.model.switch.balance } else { Balance::Hash };
                match balance {
                    Balance::Hash => many[self.hashed(node, entropy, many.len())],
                    Balance::Spray => many[self.random.below(many.len() as u64) as usize],
                    Balance::Adaptive => {
                        // Among equals chance decides, or all would crowd the first.
                        let offset = self.random.below(many.len() as u64) as usize;
                        let around = many[offset..].iter().chain(&many[..offset]);
                        let up = around.filter(|port| self.ports[**port as usize].up);
                        return up.min_by_key(|port| self.ports[**port as usize].queued_bytes >> GRADE_SHIFT).copied();
                    }
                }
            }
        };
        if self.ports[first as usize].up {
            return Some(first);
        }
        // What the switch sees itself it avoids at once; what others see, when ways are computed anew.
        let up = || ways.iter().copied().filter(|port| self.ports[*port as usize].up);
        let count = up().count();
        up().nth(entropy as usize % count.max(1))
    }

    /// Sends from a free port of a switch.
    #[inline]
    pub(super) fn transmit_switch(&mut self, index: u32) {
        let schedule = &self.model.switch.schedule;
        let port = &mut self.ports[index as usize];
        let Some(queue) = port.choose(schedule, &self.arena) else { return };
        let place = port.dequeue(self.now, &self.arena, queue);
        let more = port.waiting != 0;
        if queue != CONTROL {
            self.counters.forwards += 1;
            self.depart(index, queue, place);
        }
        let bytes = self.arena.get(place).bytes;
        self.launch(index, place, bytes);
        let port = &mut self.ports[index as usize];
        if more && !port.armed {
            port.armed = true;
            self.queue.push(port.busy_until, Event::Free { port: index });
        }
    }

    /// A packet leaves its queue: room is given back, and it may be marked and stamped.
    #[inline]
    fn depart(&mut self, index: u32, queue: usize, place: u32) {
        self.release(index, place);
        if self.arena.get(place).kind != Kind::Data {
            return;
        }
        let port = &self.ports[index as usize];
        let chance = self.marking[index as usize].chance(port.queues[queue].bytes);
        if chance > 0 && (chance >= 1 << 32 || self.random.next() >> 32 < chance) {
            let packet = self.arena.get_mut(place);
            self.counters.marked += u64::from(!packet.marked);
            packet.marked = true;
        }
        self.writing.write(self.now, index, &self.ports[index as usize], &mut self.arena, place);
    }

    /// Gives the room of a packet back; the port by which it came may be told to go on.
    #[inline]
    pub(super) fn release(&mut self, index: u32, place: u32) {
        let packet = self.arena.get(place);
        let (ingress, priority, bytes) = (packet.ingress, usize::from(packet.priority), packet.bytes);
        let switch = self.ports[index as usize].node - self.topology.hosts;
        let buffer = &mut self.buffers[switch as usize];
        let port = &mut self.ingress[ingress as usize];
        buffer.release(port, priority, bytes);
        if port.paused != 0 && buffer.may_resume(port, priority) {
            self.tell_resume(ingress, priority as u8);
        }
    }
}
