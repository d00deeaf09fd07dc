//! A port: one end of a link with its queues, the scheduler among them, and what PFC has stopped. It knows nothing of where packets go.

use super::packet::{Arena, NONE};
use super::time::{Ps, Rate};

/// Priorities of Ethernet.
pub const PRIORITIES: usize = 8;
/// The queue of PFC frames: before all others, never paused.
pub const CONTROL: usize = PRIORITIES;

/// Packets of one priority.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    head: u32,
    tail: u32,
    /// Bytes that wait.
    pub bytes: u32,
    /// The most that ever waited.
    pub peak_bytes: u32,
    /// What the round of the weighted scheduler still allows, in bytes.
    deficit: i32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, bytes: 0, peak_bytes: 0, deficit: 0 }
    }
}

impl Queue {
    /// The packets that wait, from the oldest on.
    pub fn packets<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = u32> + 'a {
        let mut place = self.head;
        std::iter::from_fn(move || {
            let found = place;
            if found == NONE {
                return None;
            }
            place = arena.get(found).next;
            Some(found)
        })
    }
}

/// How a port chooses among its priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Priorities that go first, the highest before the others; one bit each.
    pub strict: u8,
    /// Weights of the other ones; they share what is left like their weights (deficit round robin).
    pub weights: [u8; PRIORITIES],
}

impl Default for Schedule {
    fn default() -> Self {
        Self { strict: 0, weights: [1; PRIORITIES] }
    }
}

/// Bytes that weight 1 may send in a round.
const QUANTUM_BYTES: i32 = 1600;

/// One end of a link.
#[derive(Clone, Debug)]
pub struct Port {
    /// Where it is.
    pub node: u32,
    /// Where it leads.
    pub peer: u32,
    /// Speed.
    pub rate: Rate,
    /// Time on the wire.
    pub delay: Ps,
    /// False while the link is down.
    pub up: bool,
    /// Packets in ten million that the wire loses.
    pub loss_e7: u32,
    /// The transmitter sends until then.
    pub busy_until: Ps,
    /// An event will come when the transmitter is free.
    pub armed: bool,
    /// Queues that hold something.
    pub waiting: u16,
    /// Priorities that the other side has stopped.
    pub paused: u8,
    /// Priorities whose pauses the watchdog ignores.
    pub deaf: u8,
    /// The queues by priority, and the one of PFC frames.
    pub queues: [Queue; PRIORITIES + 1],
    /// Bytes in all queues but that of PFC frames.
    pub queued_bytes: u32,
    /// The most of them.
    pub peak_bytes: u32,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes times picoseconds that waited, and until when that is counted.
    area: f64,
    area_until: Ps,
    /// When each pause began, how long all were, how many.
    pub paused_since: [Ps; PRIORITIES],
    /// Pauses that this port has obeyed, all priorities together.
    pub paused_time: Ps,
    /// PAUSE frames received.
    pub pauses: u64,
    turn: u8,
}

impl Port {
    /// A port with empty queues.
    pub fn new(node: u32, peer: u32, rate: Rate, delay: Ps) -> Self {
        Self {
            node,
            peer,
            rate,
            delay,
            up: true,
            loss_e7: 0,
            busy_until: Ps::ZERO,
            armed: false,
            waiting: 0,
            paused: 0,
            deaf: 0,
            queues: [Queue::default(); PRIORITIES + 1],
            queued_bytes: 0,
            peak_bytes: 0,
            tx_bytes: 0,
            tx_packets: 0,
            area: 0.0,
            area_until: Ps::ZERO,
            paused_since: [Ps::ZERO; PRIORITIES],
            paused_time: Ps::ZERO,
            pauses: 0,
            turn: 0,
        }
    }

    /// Puts a packet at the end of a queue.
    #[inline]
    pub fn enqueue(&mut self, now: Ps, arena: &mut Arena, queue: usize, place: u32) {
        let bytes = {
            let packet = arena.get_mut(place);
            packet.next = NONE;
            packet.bytes
        };
        let list = &mut self.queues[queue];
        if list.tail == NONE {
            list.head = place;
        } else {
            arena.get_mut(list.tail).next = place;
        }
        list.tail = place;
        list.bytes += bytes;
        list.peak_bytes = list.peak_bytes.max(list.bytes);
        self.waiting |= 1 << queue;
        if queue != CONTROL {
            self.count(now);
            self.queued_bytes += bytes;
            self.peak_bytes = self.peak_bytes.max(self.queued_bytes);
        }
    }

    /// Takes the first packet of a queue that is not empty.
    #[inline]
    pub fn dequeue(&mut self, now: Ps, arena: &Arena, queue: usize) -> u32 {
        let list = &mut self.queues[queue];
        let place = list.head;
        let packet = arena.get(place);
        list.head = packet.next;
        list.bytes -= packet.bytes;
        if list.head == NONE {
            list.tail = NONE;
            self.waiting &= !(1 << queue);
        }
        if queue != CONTROL {
            self.count(now);
            self.queued_bytes -= packet.bytes;
        }
        place
    }

    fn count(&mut self, now: Ps) {
        self.area += self.queued_bytes as f64 * (now.0 - self.area_until.0) as f64;
        self.area_until = now;
    }

    /// Bytes that waited on average from the beginning until `now`.
    pub fn mean_bytes(&self, now: Ps) -> f64 {
        let rest = self.queued_bytes as f64 * now.since(self.area_until).0 as f64;
        if now == Ps::ZERO { 0.0 } else { (self.area + rest) / now.0 as f64 }
    }

    /// The priorities that may not send.
    #[inline]
    pub fn stopped(&self) -> u16 {
        u16::from(self.paused & !self.deaf)
    }

    /// The queue that sends next, if any may.
    #[inline]
    pub fn choose(&mut self, schedule: &Schedule, arena: &Arena) -> Option<usize> {
        let ready = self.waiting & !self.stopped();
        if ready == 0 {
            return None;
        }
        if ready & (1 << CONTROL) != 0 {
            return Some(CONTROL);
        }
        let strict = ready & u16::from(schedule.strict);
        if strict != 0 {
            return Some(strict.ilog2() as usize);
        }
        if ready.is_power_of_two() {
            return Some(ready.trailing_zeros() as usize);
        }
        loop {
            let queue = usize::from(self.turn);
            if ready & (1 << queue) != 0 {
                let list = &mut self.queues[queue];
                let bytes = arena.get(list.head).bytes as i32;
                if list.deficit >= bytes {
                    list.deficit -= bytes;
                    return Some(queue);
                }
            } else {
                self.queues[queue].deficit = 0;
            }
            self.turn = (self.turn + 1) % PRIORITIES as u8;
            let next = usize::from(self.turn);
            if ready & (1 << next) != 0 {
                self.queues[next].deficit += QUANTUM_BYTES * i32::from(schedule.weights[next].max(1));
            }
        }
    }

    /// The time that priorities which are paused now have been so, and the past ones.
    pub fn total_paused(&self, now: Ps) -> Ps {
        let mut total = self.paused_time;
        for priority in 0..PRIORITIES {
            if self.paused & (1 << priority) != 0 {
                total += now.since(self.paused_since[priority]);
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::{Kind, Packet};
    use super::*;

    fn packet(priority: u8, bytes: u32) -> Packet {
        Packet { qp: 0, to: 0, payload: bytes, ..Packet::bare(Kind::Data, priority, bytes, Ps::ZERO) }
    }

    /// What each priority got of the first `bytes` that a port with full queues sent.
    fn shares(schedule: Schedule, sizes: [u32; 3], paused: u8) -> [u64; 3] {
        let (mut arena, rate) = (Arena::new(false), Rate::new(1_000_000_000, false));
        let mut port = Port::new(0, 1, rate, Ps::ZERO);
        port.paused = paused;
        for (priority, bytes) in sizes.into_iter().enumerate() {
            for _ in 0..4_000 {
                let place = arena.add(packet(priority as u8, bytes));
                port.enqueue(Ps::ZERO, &mut arena, priority, place);
            }
        }
        let mut got = [0; 3];
        for _ in 0..3_000 {
            let Some(queue) = port.choose(&schedule, &arena) else { break };
            let place = port.dequeue(Ps::ZERO, &arena, queue);
            got[queue] += u64::from(arena.get(place).bytes);
            arena.remove(place);
        }
        got
    }

    #[test]
    fn weights_divide_bytes_and_not_packets() {
        let mut weights = [1; PRIORITIES];
        (weights[1], weights[2]) = (2, 4);
        let got = shares(Schedule { strict: 0, weights }, [1000, 500, 1500], 0);
        let ratio = |a: u64, b: u64| a as f64 / b as f64;
        assert!((ratio(got[1], got[0]) - 2.0).abs() < 0.02 && (ratio(got[2], got[0]) - 4.0).abs() < 0.02, "{got:?}");
    }

    #[test]
    fn strict_goes_first_unless_it_is_paused() {
        let schedule = Schedule { strict: 0b100, ..Schedule::default() };
        assert_eq!(shares(schedule, [1000, 1000, 1000], 0)[..2], [0, 0]);
        let got = shares(schedule, [1000, 1000, 1000], 0b100);
        assert!(got[2] == 0 && got[0].abs_diff(got[1]) <= 3_200, "{got:?}");
        assert_eq!(shares(schedule, [1000, 1000, 1000], 0b111), [0; 3]);
    }

    #[test]
    fn the_mean_is_weighted_by_time() {
        let mut arena = Arena::new(false);
        let mut port = Port::new(0, 1, Rate::new(1_000_000_000, false), Ps::ZERO);
        let place = arena.add(packet(3, 1000));
        port.enqueue(Ps(100), &mut arena, 3, place);
        assert_eq!(port.dequeue(Ps(300), &arena, 3), place);
        assert_eq!(port.mean_bytes(Ps(1000)), 200.0);
        assert_eq!((port.peak_bytes, port.queued_bytes, port.waiting), (1000, 0, 0));
    }
}
