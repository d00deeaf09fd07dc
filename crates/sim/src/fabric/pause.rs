//! PFC on the move: PAUSE and RESUME frames, their quanta, the watchdog; how pauses spread from switch to switch; and the cycle of paused links in which
//! nothing moves any more. What may stay in a buffer is decided in [`super::buffer`].

use super::packet::{Kind, Packet};
use super::port::PRIORITIES;
use super::time::Ps;
use super::world::{Event, World};
use std::collections::BTreeMap;
use std::fmt;

/// One edge of the spreading tree: a link that was paused, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spread {
    /// The port that had to stop.
    pub paused: u32,
    /// The port of the pausing node that held its packets: paused itself, so that the pause came from further on, or just too slow. None: a host that
    /// was slow or sent PAUSE without reason.
    pub because_of: Option<u32>,
    /// That port was paused itself.
    pub passed_on: bool,
}

/// What is known of pauses.
pub struct Pauses {
    /// How often each edge was seen.
    spread: BTreeMap<Spread, u64>,
    /// Which change of each port and priority is the present one.
    serial: Vec<[u32; PRIORITIES]>,
    /// Until when a pause holds, if it has quanta.
    until: Vec<[Ps; PRIORITIES]>,
    /// Bytes that each port had sent at the last look; [`NOT_PAUSED`] if it was not paused then.
    sent_before: Vec<u64>,
    /// Ports that have sent nothing since; its room is used again.
    still: Vec<u32>,
}

/// Instead of bytes sent.
const NOT_PAUSED: u64 = u64::MAX;

/// Why a run cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Links that wait for each other in a circle, each as "from -> to".
    Deadlock {
        /// The priority.
        priority: u8,
        /// The links.
        cycle: Vec<String>,
    },
    /// Packets are lost and nobody sends them again.
    Lost {
        /// Messages that are not done.
        messages: u64,
        /// The first of them.
        first: String,
    },
    /// Engines: messages arrived with other bytes than were sent, which is a fault of the engine.
    Corrupted {
        /// How many.
        messages: u64,
    },
    /// Senders gave up after all their retries, and a workload waits for what they had.
    GaveUp {
        /// How many.
        qps: u64,
    },
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock { priority, cycle } => write!(
                f,
                "PFC deadlock on priority {priority}: each of these links is paused by the next one: {}; use ways without cycles, fewer hops \
                 in one priority, or a watchdog",
                cycle.join(", ")
            ),
            Self::Lost { messages, first } => write!(
                f,
                "{messages} messages can never end, the first is {first}: packets were lost and the model has no retransmission timer; \
                 give host.timeout"
            ),
            Self::Corrupted { messages } => {
                write!(f, "{messages} messages arrived with other bytes than were sent: a fault of the engine")
            }
            Self::GaveUp { qps } => write!(
                f,
                "{qps} QPs gave up after all retries, and what waits for their messages waits for ever: raise host.retry_cnt or host.timeout, or let \
                 the link come back sooner"
            ),
        }
    }
}

impl Pauses {
    /// Nothing yet.
    pub fn new(ports: usize) -> Self {
        Self {
            spread: BTreeMap::new(),
            serial: vec![[0; PRIORITIES]; ports],
            until: vec![[Ps::NEVER; PRIORITIES]; ports],
            sent_before: vec![NOT_PAUSED; ports],
            still: Vec::new(),
        }
    }

    /// The edges of the spreading tree and how often each was seen.
    pub fn spread(&self) -> impl Iterator<Item = (&Spread, u64)> {
        self.spread.iter().map(|(edge, count)| (edge, *count))
    }
}

impl World {
    fn send_pfc(&mut self, local: u32, priority: u8, kind: Kind) {
        let packet = Packet::bare(kind, priority, self.model.switch.pfc.frame_bytes, self.now);
        let place = self.arena.add(packet);
        self.ports[local as usize].enqueue(self.now, &mut self.arena, super::port::CONTROL, place);
        self.transmit(local);
    }

    /// Tells the other side of a port to stop. `egress` is where its newest packet waits.
    pub(super) fn tell_pause(&mut self, local: u32, priority: u8, egress: Option<u32>) {
        // The cause is the port that holds most, and a paused one before others.
        let because_of = egress.map(|egress| {
            let node = self.ports[local as usize].node;
            let passed_on = |port: u32| self.ports[port as usize].stopped() & (1 << priority) != 0;
            let mut best = egress;
            let held = |port: u32| self.ports[port as usize].queues[usize::from(priority)].bytes;
            for &port in &self.node_ports[node as usize] {
                if held(port) > 0 && (passed_on(port), held(port)) > (passed_on(best), held(best)) {
                    best = port;
                }
            }
            (best, passed_on(best))
        });
        let edge = Spread {
            paused: local ^ 1,
            because_of: because_of.map(|(port, _)| port),
            passed_on: because_of.is_some_and(|(_, passed_on)| passed_on),
        };
        *self.pauses.spread.entry(edge).or_default() += 1;
        self.pause_now(local, priority);
    }

    fn pause_now(&mut self, local: u32, priority: u8) {
        self.counters.pauses += 1;
        self.send_pfc(local, priority, Kind::Pause);
        if let Some(quanta) = self.model.switch.pfc.quanta {
            let half = self.quanta(local, quanta).0 / 2;
            self.queue.push(self.now + Ps(half), Event::PauseAgain { port: local, priority });
        }
    }

    /// How long so many quanta of 512 bit times are at a port.
    fn quanta(&self, port: u32, quanta: u16) -> Ps {
        self.ports[port as usize].rate.serialise(u32::from(quanta) * 64)
    }

    /// Half of a pause is over: if it is still needed it is told again.
    pub(super) fn pause_again(&mut self, local: u32, priority: u8) {
        if self.ingress[local as usize].paused & (1 << priority) != 0 && self.ports[local as usize].up {
            self.pause_now(local, priority);
        }
    }

    /// Tells the other side of a port to go on.
    pub(super) fn tell_resume(&mut self, local: u32, priority: u8) {
        self.counters.resumes += 1;
        self.send_pfc(local, priority, Kind::Resume);
    }

    /// A PFC frame has come to a port.
    pub(super) fn obey(&mut self, index: u32, priority: u8, pause: bool) {
        let bit = 1 << priority;
        let port = &mut self.ports[index as usize];
        let was = port.paused & bit != 0;
        if !pause {
            if was {
                self.unpause(index, priority);
            }
            return;
        }
        port.pauses += 1;
        if !was {
            port.paused |= bit;
            port.paused_since[usize::from(priority)] = self.now;
            let serial = &mut self.pauses.serial[index as usize][usize::from(priority)];
            *serial = serial.wrapping_add(1);
            if let Some(watchdog) =
                self.model.switch.pfc.watchdog.filter(|_| self.is_switch(self.ports[index as usize].node))
            {
                self.queue.push(self.now + watchdog, Event::Watchdog { port: index, priority });
            }
        }
        if let Some(quanta) = self.model.switch.pfc.quanta {
            let until = self.now + self.quanta(index, quanta);
            self.pauses.until[index as usize][usize::from(priority)] = until;
            self.queue.push(until, Event::PauseOver { port: index, priority });
        }
    }

    /// The quanta of a pause may be over.
    pub(super) fn pause_is_over(&mut self, index: u32, priority: u8) {
        let paused = self.ports[index as usize].paused & (1 << priority) != 0;
        if paused && self.pauses.until[index as usize][usize::from(priority)] <= self.now {
            self.unpause(index, priority);
        }
    }

    fn unpause(&mut self, index: u32, priority: u8) {
        let port = &mut self.ports[index as usize];
        port.paused &= !(1 << priority);
        port.paused_time += self.now.since(port.paused_since[usize::from(priority)]);
        let node = port.node;
        if !self.is_switch(node) {
            self.let_go(node);
        }
        self.transmit(index);
    }

    /// The watchdog: a priority that has been paused without a break for its time loses what waits, and is deaf for as long again.
    pub(super) fn watchdog(&mut self, index: u32, priority: u8) {
        let Some(limit) = self.model.switch.pfc.watchdog else { return };
        let queue = usize::from(priority);
        let port = &self.ports[index as usize];
        if port.paused & (1 << priority) == 0 || port.deaf & (1 << priority) != 0 {
            return;
        }
        let since = port.paused_since[queue];
        if self.now.since(since) < limit {
            self.queue.push(since + limit, Event::Watchdog { port: index, priority });
            return;
        }
        self.counters.storms += 1;
        self.ports[index as usize].deaf |= 1 << priority;
        while self.ports[index as usize].waiting & (1 << queue) != 0 {
            let place = self.ports[index as usize].dequeue(self.now, &self.arena, queue);
            self.release(index, place);
            self.counters.dropped_watchdog += 1;
            self.forget(place);
        }
        self.queue.push(self.now + limit, Event::Hear { port: index, priority });
        self.queue.push(self.now + limit + limit, Event::Watchdog { port: index, priority });
        self.transmit(index);
    }

    /// Ports that are paused with something to send and have sent nothing since the last look, in a circle.
    pub(super) fn look_for_deadlock(&mut self) -> Option<Stuck> {
        let mut still = std::mem::take(&mut self.pauses.still);
        still.clear();
        for ((index, port), before) in (0_u32..).zip(&self.ports).zip(&mut self.pauses.sent_before) {
            let is_paused = port.stopped() & port.waiting != 0 && port.node >= self.topology.hosts;
            if is_paused && *before == port.tx_bytes {
                still.push(index);
            }
            *before = if is_paused { port.tx_bytes } else { NOT_PAUSED };
        }
        let found = if still.is_empty() {
            None
        } else {
            (0..PRIORITIES as u8).find_map(|priority| self.find_cycle(&still, priority))
        };
        self.pauses.still = still;
        found
    }

    /// A paused port waits for the node behind it to pass on what came by this link: for the ports there that hold such packets and are paused, too.
    fn find_cycle(&self, still: &[u32], priority: u8) -> Option<Stuck> {
        let queue = usize::from(priority);
        let is_stopped =
            |port: u32| self.ports[port as usize].stopped() & self.ports[port as usize].waiting & (1 << priority) != 0;
        // By node, so that a look at tens of thousands of paused ports takes no square of them.
        let mut at: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &port in still.iter().filter(|port| is_stopped(**port)) {
            at.entry(self.ports[port as usize].node).or_default().push(port);
        }
        let mut waits: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &from in at.values().flatten() {
            let there = at.get(&self.ports[from as usize].peer).map_or(&[][..], Vec::as_slice);
            let holding = there.iter().copied().filter(|port| {
                let mut packets = self.ports[*port as usize].queues[queue].packets(&self.arena);
                packets.any(|place| self.arena.get(place).ingress == (from ^ 1))
            });
            waits.insert(from, holding.collect());
        }
        // Depth first; `open` is the way from the start to here. A port that was looked at: true once nothing beyond it is open.
        let mut finished: BTreeMap<u32, bool> = BTreeMap::new();
        for &start in waits.keys() {
            if finished.contains_key(&start) {
                continue;
            }
            finished.insert(start, false);
            let mut open: Vec<(u32, usize)> = vec![(start, 0)];
            while let Some((port, next)) = open.last_mut() {
                let edges = waits.get(port).map_or(&[][..], Vec::as_slice);
                let Some(&to) = edges.get(*next) else {
                    finished.insert(*port, true);
                    open.pop();
                    continue;
                };
                *next += 1;
                if finished.get(&to) == Some(&false)
                    && let Some(begin) = open.iter().position(|(port, _)| *port == to)
                {
                    let cycle = open[begin..].iter().map(|(port, _)| self.link_name(*port)).collect();
                    return Some(Stuck::Deadlock { priority, cycle });
                }
                if let std::collections::btree_map::Entry::Vacant(place) = finished.entry(to) {
                    place.insert(false);
                    open.push((to, 0));
                }
            }
        }
        None
    }

    /// Nothing happens any more, and not everything is done: why.
    pub(super) fn explain(&self) -> Stuck {
        let still: Vec<u32> = (0_u32..)
            .zip(&self.ports)
            .filter(|(_, port)| port.stopped() & port.waiting != 0)
            .map(|(index, _)| index)
            .collect();
        if let Some(stuck) = (0..PRIORITIES as u8).find_map(|priority| self.find_cycle(&still, priority)) {
            return stuck;
        }
        if self.open == 0 {
            return Stuck::GaveUp { qps: self.counters.given_up };
        }
        let first = self.messages.iter().find(|message| message.acked == Ps::NEVER);
        let first = first.map_or_else(String::new, |message| {
            format!(
                "{} B from {} to {}",
                message.bytes,
                self.topology.name(message.from),
                self.topology.name(message.to)
            )
        });
        Stuck::Lost { messages: self.open, first }
    }

    /// A port as "from -> to".
    pub fn link_name(&self, port: u32) -> String {
        let port = &self.ports[port as usize];
        format!("{} -> {}", self.topology.name(port.node), self.topology.name(port.peer))
    }
}
