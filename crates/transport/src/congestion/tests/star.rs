//! A star: hosts with one flow each, a switch, and a receiver behind its bottleneck link, in picoseconds. As small as the
//! reference scenarios need; the simulator of fabrics is elsewhere.
//!
//! Payload of 1000 bytes and 48 bytes of headers, an ACK of 60 bytes for each packet with the CNP as a flag in it, links of 1 µs
//! at 100 Gb/s, marking and telemetry when a packet leaves the queue, no loss and no pause frames. Serialisation is truncated to
//! nanoseconds, as the reference simulator does (`congestion.md` §1.7), so that its figures can be compared.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::congestion::{Control, Controller, Event, Hop, Moment, Profile, Telemetry};

use super::{G, STAR, US};

const LINE: u64 = 100 * G;
const PAYLOAD: u32 = 1000;

/// How the switch marks.
#[derive(Clone, Copy)]
pub struct Marking {
    pub kmin: u64,
    pub kmax: u64,
    pub most: f64,
}

pub const MARKING_100G: Marking = Marking { kmin: 400_000, kmax: 1_600_000, most: 0.2 };

pub struct Setup {
    pub profile: Profile,
    /// Bytes that the algorithm adds to a data packet, and to an ACK.
    pub overhead: (u32, u32),
    pub marking: Option<Marking>,
    /// Start, bytes.
    pub flows: Vec<(u64, u64)>,
    pub seed: u64,
}

#[derive(Clone, Copy)]
struct Packet {
    flow: usize,
    sent_at: u64,
    marked: bool,
    hop: Hop,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Send(usize),
    Arrive(usize),
    Leave,
    Ack(usize),
    Timer(usize),
}

struct Flow {
    control: Control,
    size: u64,
    sent: u64,
    acked: u64,
    nic_free: u64,
    wakes: u64,
    timer: Option<Moment>,
    /// Packets under way to the switch, and ACKs under way back: links keep the order.
    to_switch: VecDeque<Packet>,
    acks: VecDeque<Packet>,
    start: u64,
    done: Option<u64>,
}

pub struct Outcome {
    pub makespan_us: f64,
    pub shortest_us: f64,
    pub queue_most: u64,
    /// On average over the makespan.
    pub queue_mean: f64,
    /// Payload bytes acknowledged by each flow, at the sampled times.
    pub samples: Vec<(u64, Vec<u64>)>,
}

struct Star {
    now: u64,
    order: u64,
    heap: BinaryHeap<Reverse<(u64, u64, What)>>,
    flows: Vec<Flow>,
    queue: VecDeque<(Packet, u64)>,
    busy: bool,
    transmitted: u64,
    queue_most: u64,
    /// Bytes times picoseconds that they waited.
    waited: f64,
    wire: u32,
    ack_ps: u64,
    marking: Option<Marking>,
    chance: u64,
}

fn quantum(ps: u64) -> u64 {
    ps / 1000 * 1000
}

fn serialisation(bytes: u32) -> u64 {
    quantum(u64::from(bytes) * 8_000_000_000_000 / LINE)
}

impl Star {
    fn at(&mut self, time: u64, what: What) {
        self.order += 1;
        self.heap.push(Reverse((time, self.order, what)));
    }

    fn chance(&mut self) -> f64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance >> 11) as f64 / (1u64 << 53) as f64
    }

    fn tell(&mut self, flow: usize, event: Event<'_>) {
        let now = Moment(self.now);
        let f = &mut self.flows[flow];
        f.control.handle(now, event);
        let timer = f.control.next_timer();
        if timer != f.timer {
            f.timer = timer;
            if let Some(at) = timer {
                self.at(at.0.max(self.now), What::Timer(flow));
            }
        }
    }

    fn send(&mut self, flow: usize) {
        loop {
            let f = &self.flows[flow];
            if f.sent >= f.size || f.sent - f.acked >= f.control.window_bytes() || self.now < f.start {
                return;
            }
            let next = f.nic_free.max(quantum(f.control.next_send().0));
            if next > self.now {
                if f.wakes != next {
                    self.flows[flow].wakes = next;
                    self.at(next, What::Send(flow));
                }
                return;
            }
            let packet = Packet { flow, sent_at: self.now, marked: false, hop: Hop::default() };
            let (now, wire) = (self.now, self.wire);
            let f = &mut self.flows[flow];
            f.sent += u64::from(PAYLOAD);
            f.nic_free = now + serialisation(wire);
            f.to_switch.push_back(packet);
            self.at(now + serialisation(wire) + US, What::Arrive(flow));
            self.tell(flow, Event::Sent { flight_bytes: PAYLOAD, wire_bytes: wire });
        }
    }

    fn leave(&mut self) {
        let Some((mut packet, came)) = self.queue.pop_front() else {
            self.busy = false;
            return;
        };
        self.waited += (self.now - came) as f64 * f64::from(self.wire);
        self.busy = true;
        let queued = self.queue.len() as u64 * u64::from(self.wire);
        // The mark looks at the queue with the packet that leaves.
        if let Some(m) = self.marking {
            let before = queued + u64::from(self.wire);
            packet.marked = before > m.kmax
                || before > m.kmin && self.chance() < m.most * (before - m.kmin) as f64 / (m.kmax - m.kmin) as f64;
        }
        packet.hop = Hop { node: 1, rate_bps: LINE, at_ps: self.now, tx_bytes: self.transmitted, queue_bytes: queued };
        self.transmitted += u64::from(self.wire);
        let gone = self.now + serialisation(self.wire);
        self.flows[packet.flow].acks.push_back(packet);
        self.at(gone + US + self.ack_ps, What::Ack(packet.flow));
        self.at(gone, What::Leave);
    }

    fn step(&mut self, what: What) {
        match what {
            What::Send(flow) => {
                self.flows[flow].wakes = 0;
                self.send(flow);
            }
            What::Arrive(flow) => {
                let packet = self.flows[flow].to_switch.pop_front().unwrap();
                self.queue.push_back((packet, self.now));
                self.queue_most = self.queue_most.max(self.queue.len() as u64 * u64::from(self.wire));
                if !self.busy {
                    self.leave();
                }
            }
            What::Leave => self.leave(),
            What::Ack(flow) => {
                let packet = self.flows[flow].acks.pop_front().unwrap();
                self.flows[flow].acked += u64::from(PAYLOAD);
                if self.flows[flow].acked >= self.flows[flow].size {
                    self.flows[flow].done = Some(self.now);
                    return;
                }
                if packet.marked {
                    self.tell(flow, Event::Cnp);
                }
                let rtt_ps = Some(self.now - packet.sent_at);
                let hops = [packet.hop];
                let telemetry = Telemetry::Hops(&hops);
                self.tell(flow, Event::Ack { flight_bytes: PAYLOAD, rtt_ps, ecn_echo: packet.marked, telemetry });
                self.send(flow);
            }
            What::Timer(flow) => {
                let f = &mut self.flows[flow];
                if f.done.is_some() || f.timer.is_none_or(|at| at.0 > self.now) {
                    return;
                }
                f.timer = None;
                self.tell(flow, Event::Timer);
                self.send(flow);
            }
        }
    }
}

/// Runs until every flow is through; `samples` are times in µs.
pub fn run(setup: &Setup, samples: &[u64]) -> Outcome {
    let flow = |&(start, size): &(u64, u64)| Flow {
        control: setup.profile.controller(&STAR, 0),
        size,
        sent: 0,
        acked: 0,
        nic_free: 0,
        wakes: 0,
        timer: None,
        to_switch: VecDeque::new(),
        acks: VecDeque::new(),
        start,
        done: None,
    };
    let ack = 60 + setup.overhead.1;
    let mut star = Star {
        now: 0,
        order: 0,
        heap: BinaryHeap::new(),
        flows: setup.flows.iter().map(flow).collect(),
        queue: VecDeque::new(),
        busy: false,
        transmitted: 0,
        queue_most: 0,
        waited: 0.0,
        wire: PAYLOAD + 48 + setup.overhead.0,
        ack_ps: 2 * (serialisation(ack) + US),
        marking: setup.marking,
        chance: setup.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
    };
    for flow in 0..star.flows.len() {
        let start = star.flows[flow].start;
        star.at(start, What::Send(flow));
    }
    let mut taken = Vec::new();
    while let Some(Reverse((time, _, what))) = star.heap.pop() {
        while taken.len() < samples.len() && samples[taken.len()] * US <= time {
            taken.push((samples[taken.len()], star.flows.iter().map(|f| f.acked).collect()));
        }
        star.now = time;
        star.step(what);
    }
    let done = |f: &Flow| f.done.expect("every flow ends");
    Outcome {
        makespan_us: star.flows.iter().map(done).max().unwrap() as f64 / US as f64,
        shortest_us: star.flows.iter().map(|f| done(f) - f.start).min().unwrap() as f64 / US as f64,
        queue_most: star.queue_most,
        queue_mean: star.waited / star.now as f64,
        samples: taken,
    }
}
