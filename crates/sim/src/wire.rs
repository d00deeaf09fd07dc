//! The simulated wire: ports that reach each other through virtual time, with the faults of a pattern. It implements the
//! NIC's `Port`, so that the engine that ships runs on it.
//!
//! Every packet has a latency, is cut out of its train with the IPv4 identification that a kernel would give it, and may be
//! lost, doubled, overtaken, damaged or marked. What really happened is written into [`Tally`], which the checkers read.
//! Buffers are recycled. Arrivals stand on a grid of [`GRID_NS`], so that packets come in batches as they do in life.

mod tally;

pub use tally::{Heard, Patience, Tally};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use scalefabric_nic::port::{Datagram, Port, Sent, Train};
use scalefabric_transport::DropReason;
use scalefabric_wire::icrc::Flow;
use scalefabric_wire::packet::{Headers, Packet};
use scalefabric_wire::{Gid, Psn, Qpn, describe};

use crate::canary::Canary;
use crate::pattern::{Fault, Faults};
use crate::random::Random;

/// Arrivals are rounded up to multiples of this.
pub const GRID_NS: u64 = 500;

/// Ports of each NIC send from this UDP port on.
const SOURCE_PORT: u16 = 0xc000;

/// The address of a NIC. Even seeds run over IPv4, odd ones over IPv6 (`v6`).
pub fn address(nic: usize, v6: bool) -> IpAddr {
    if v6 {
        std::net::Ipv6Addr::new(0xfd5f, 0, 0, 0, 0, 0, 0, nic as u16 + 1).into()
    } else {
        Ipv4Addr::new(10, 0, 0, nic as u8 + 1).into()
    }
}

/// A packet on its way, or arrived.
#[derive(Debug, Default)]
struct OnTheWay {
    to: usize,
    ip_id: u16,
    src: Option<IpAddr>,
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    forged: bool,
    damaged: bool,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Endpoint {
    address: IpAddr,
    inbox: VecDeque<OnTheWay>,
    blocked_until: u64,
    /// Packets of a burst that are still to be lost.
    burst: u32,
    /// The link is dead until then.
    down_until: u64,
    /// The NIC itself has its port down: what arrives is not heard.
    deaf: bool,
    /// The link takes only small packets until then.
    small_until: u64,
    /// When the line is free again.
    busy_until: u64,
}

impl Endpoint {
    fn new(address: IpAddr) -> Self {
        Self {
            address,
            inbox: VecDeque::new(),
            blocked_until: 0,
            burst: 0,
            down_until: 0,
            deaf: false,
            small_until: 0,
            busy_until: 0,
        }
    }
}

/// Everything behind the lock.
#[derive(Debug)]
pub struct State {
    now: u64,
    sequence: u64,
    faults: Faults,
    random: Random,
    endpoints: Vec<Endpoint>,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<OnTheWay>,
    free: Vec<usize>,
    spare: Vec<Vec<u8>>,
    quiet: bool,
    /// Every packet that arrives or is lost is printed.
    pub trace: bool,
    /// Bytes that no packet may carry.
    secret: Option<[u8; 8]>,
    /// A rule that is broken on purpose.
    pub canary: Option<Canary>,
    /// What happened.
    pub tally: Tally,
}

/// The wire: a handle; clones are the same wire.
#[derive(Clone, Debug)]
pub struct SimWire(Arc<Mutex<State>>);

impl SimWire {
    /// A wire with so many ports, at time 0.
    pub fn new(ports: usize, v6: bool, faults: Faults, seed: u64) -> Self {
        let endpoints = (0..ports).map(|nic| Endpoint::new(address(nic, v6))).collect();
        let state = State {
            now: 0,
            sequence: 0,
            faults,
            random: Random::new(seed, 0x317e),
            endpoints,
            queue: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            quiet: false,
            trace: false,
            secret: None,
            canary: None,
            tally: Tally::default(),
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// A look inside, or a change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The port of a NIC.
    pub fn port(&self, nic: usize) -> SimPort {
        SimPort { wire: self.clone(), nic }
    }
}

impl State {
    /// From now on nothing is lost, damaged or moved: what is under way can come to its end.
    pub fn calm(&mut self) {
        self.quiet = true;
        for endpoint in &mut self.endpoints {
            endpoint.burst = 0;
            endpoint.down_until = 0;
            endpoint.small_until = 0;
            endpoint.blocked_until = 0;
        }
    }

    /// These eight bytes may be in no packet.
    pub fn guard_secret(&mut self, secret: [u8; 8]) {
        self.secret = Some(secret);
    }

    /// Watches what a requester hears whose first PSN is `psn`.
    pub fn watch(&mut self, nic: usize, qpn: Qpn, peer: (usize, Qpn), mtu: u32, psn: Psn) {
        self.tally.heard.push(Heard::new(nic, qpn, peer, mtu, psn));
    }

    /// The requester begins a message after a silence: its patience counts from now.
    pub fn stir(&mut self, nic: usize, qpn: Qpn) {
        let now = self.now;
        if let Some(heard) = self.tally.heard.iter_mut().find(|heard| heard.nic == nic && heard.qpn == qpn) {
            heard.progress_ns = now;
            heard.fruitless = 0;
            heard.rnr_naks = 0;
        }
    }

    /// Whether a NIC's own port is down.
    pub fn deafen(&mut self, nic: usize, deaf: bool) {
        self.endpoints[nic].deaf = deaf;
    }

    /// Cuts a NIC off until `until`.
    pub fn cut(&mut self, nic: usize, until: u64) {
        self.endpoints[nic].down_until = until;
        self.tally.strike(Fault::LinkFlap);
    }

    /// Lets only small packets through to and from a NIC until `until`.
    pub fn narrow(&mut self, nic: usize, until: u64) {
        self.endpoints[nic].small_until = until;
        self.tally.strike(Fault::MtuChange);
    }

    /// Address of a NIC.
    pub fn address(&self, nic: usize) -> IpAddr {
        self.endpoints[nic].address
    }

    /// The time of the next arrival.
    pub fn next_arrival(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((due, ..))| *due)
    }

    /// Puts what is due into the inboxes; returns a bit set of the NICs that got something.
    pub fn advance(&mut self, now: u64) -> u32 {
        self.now = now;
        let mut reached = 0;
        while let Some(&Reverse((due, _, slot))) = self.queue.peek() {
            if due > now {
                break;
            }
            self.queue.pop();
            self.free.push(slot);
            let packet = core::mem::take(&mut self.slots[slot]);
            let to = packet.to;
            if self.deliver(packet) {
                reached |= 1 << to;
            }
        }
        reached
    }

    fn deliver(&mut self, packet: OnTheWay) -> bool {
        let to = packet.to;
        self.show(
            if packet.forged {
                "forged"
            } else if packet.damaged {
                "damaged"
            } else {
                "arrives"
            },
            to,
            &packet.bytes,
        );
        if self.endpoints[to].down_until > self.now {
            self.recycle(packet.bytes);
            return false;
        }
        self.tally.delivered += 1;
        self.tally.forged += u64::from(packet.forged);
        if !packet.forged
            && let Ok(parsed) = Packet::parse(&packet.bytes)
        {
            if !packet.damaged && !self.endpoints[to].deaf {
                let waits = self.endpoints[to].blocked_until > self.now;
                self.tally.hear(to, &parsed.headers, self.now, waits);
            }
            let bth = &parsed.headers.bth;
            let what = u64::from(bth.opcode.byte()) << 56 | u64::from(bth.psn.get()) << 32 | packet.bytes.len() as u64;
            self.tally.fingerprint = crate::random::mix(self.tally.fingerprint ^ what ^ self.now.rotate_left(17));
        }
        self.endpoints[to].inbox.push_back(packet);
        true
    }

    fn show(&self, what: &str, to: usize, bytes: &[u8]) {
        if self.trace {
            let text = Headers::parse(bytes).map_or_else(|e| e.to_string(), |(headers, _)| describe::headers(&headers));
            println!("{:>10} {what:8} at {to}: {text}, {} bytes", self.now, bytes.len());
        }
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < 256 {
            self.spare.push(bytes);
        }
    }

    fn buffer(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    fn find(&self, address: IpAddr) -> Option<usize> {
        self.endpoints.iter().position(|endpoint| endpoint.address == address)
    }

    fn enqueue(&mut self, due: u64, packet: OnTheWay) {
        let due = due.next_multiple_of(GRID_NS);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(OnTheWay::default());
                self.slots.len() - 1
            }
        };
        self.slots[slot] = packet;
        self.sequence += 1;
        self.queue.push(Reverse((due, self.sequence, slot)));
    }

    /// A packet of nobody's NIC goes to `to`, as if `src` had sent it.
    pub fn forge(&mut self, src: IpAddr, to: usize, bytes: &[u8]) {
        let bytes = self.buffer(bytes);
        self.tally.strike(Fault::Forgery);
        let packet = OnTheWay {
            to,
            ip_id: 0,
            src: Some(src),
            src_port: SOURCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            forged: true,
            damaged: false,
            bytes,
        };
        self.enqueue(self.now + 1_000, packet);
    }

    /// A datagram leaves.
    fn send(&mut self, from: usize, train: &Train<'_>, index: usize, bytes: &[u8]) {
        self.tally.sent += 1;
        let Some(to) = self.find(train.dst) else { return };
        let line = &mut self.endpoints[from];
        // 25 Gb/s, and 2 µs of way.
        line.busy_until = line.busy_until.max(self.now) + bytes.len() as u64 * 8 / 25;
        let mut due = line.busy_until + 2_000;
        let mut packet = OnTheWay {
            to,
            ip_id: index as u16,
            src: Some(train.src),
            src_port: train.src_port,
            traffic_class: train.traffic_class,
            hop_limit: train.hop_limit,
            forged: false,
            damaged: false,
            bytes: self.buffer(bytes),
        };
        if self.canary.is_some() {
            self.run_canary(&mut packet);
        }
        if let Ok(parsed) = Packet::parse(&packet.bytes) {
            self.tally.ask(from, to, &parsed.headers);
            if let Some(secret) = self.secret {
                self.tally.leaks += u64::from(parsed.payload.windows(8).any(|window| window == secret));
            }
        }
        if self.quiet {
            return self.enqueue(due, packet);
        }
        if self.is_lost(from, to, &packet.bytes) {
            self.show("lost", to, &packet.bytes);
            return self.recycle(packet.bytes);
        }
        let faults = self.faults;
        if self.random.chance(faults.mark_ppm) && packet.traffic_class & 3 != 0 {
            packet.traffic_class |= 3;
            self.tally.strike(Fault::CongestionMark);
        }
        if self.random.chance(faults.duplicate_ppm) {
            let copy = OnTheWay { bytes: self.buffer(&packet.bytes), ..packet };
            let late = due + self.random.below(60_000);
            self.tally.strike(Fault::Duplicate);
            self.enqueue(late, copy);
        }
        if self.random.chance(faults.corrupt_ppm) {
            self.damage(&mut packet.bytes);
            packet.damaged = true;
        }
        if self.random.chance(faults.reorder_ppm) {
            due += self.random.range(1_000, 40_000);
            self.tally.strike(Fault::Reorder);
        }
        self.enqueue(due, packet);
    }

    /// Flips one to three bits that the ICRC covers: byte 4 of the BTH may change without anybody noticing.
    fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.random.range(1, 3) {
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            let byte = if bit / 8 == 4 { 5 } else { bit / 8 };
            bytes[byte] ^= 1 << (bit % 8);
        }
        self.tally.strike(Fault::Corruption);
    }

    fn is_lost(&mut self, from: usize, to: usize, bytes: &[u8]) -> bool {
        let faults = self.faults;
        let down = |e: &Endpoint| e.down_until > self.now;
        if down(&self.endpoints[from]) || down(&self.endpoints[to]) {
            return true;
        }
        let narrow = self.endpoints[from].small_until.max(self.endpoints[to].small_until) > self.now;
        if narrow && bytes.len() > 256 + 60 {
            return true;
        }
        if self.endpoints[from].burst > 0 {
            self.endpoints[from].burst -= 1;
            return true;
        }
        if self.random.chance(faults.burst_ppm) {
            self.endpoints[from].burst = self.random.range(1, u64::from(faults.burst_packets.max(1))) as u32;
            self.tally.strike(Fault::BurstLoss);
            return true;
        }
        if self.random.chance(faults.loss_ppm) {
            self.tally.strike(Fault::Loss);
            return true;
        }
        let answer = bytes.first().is_some_and(|code| matches!(code & 0x1f, 0x0d..=0x12) && code >> 5 != 3);
        if answer && self.random.chance(faults.lost_ack_ppm) {
            self.tally.strike(Fault::LostAck);
            return true;
        }
        false
    }

    /// Lets the canary look at a packet. What it changes gets a right ICRC, as a broken NIC would send it.
    fn run_canary(&mut self, packet: &mut OnTheWay) {
        let Some(mut canary) = self.canary.take() else { return };
        if canary.touch(packet.to, &mut packet.bytes) {
            let dst = self.endpoints[packet.to].address;
            seal(packet.src.unwrap_or(dst), dst, packet.src_port, packet.ip_id, &mut packet.bytes);
        }
        self.canary = Some(canary);
    }
}

/// Gives a packet the ICRC that it needs between these addresses.
pub fn seal(src: IpAddr, dst: IpAddr, src_port: u16, ip_id: u16, bytes: &mut [u8]) {
    let flow = Flow::between(Gid::from_ip(src), Gid::from_ip(dst), src_port);
    if let Some((transport, icrc)) = bytes.split_last_chunk_mut::<4>() {
        *icrc = flow.icrc(ip_id, transport).to_le_bytes();
    }
}

/// The UDP port that forged packets come from.
pub const FORGED_PORT: u16 = SOURCE_PORT;

/// A NIC's port on the wire.
#[derive(Debug)]
pub struct SimPort {
    wire: SimWire,
    nic: usize,
}

impl Port for SimPort {
    fn receive(&mut self, max: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        let mut count = 0;
        while count < max {
            // Not held while the engine works: it may send.
            let mut state = self.wire.state();
            let dst = state.endpoints[self.nic].address;
            let Some(packet) = state.endpoints[self.nic].inbox.pop_front() else { break };
            drop(state);
            sink(&Datagram {
                src: packet.src.unwrap_or(dst),
                src_port: packet.src_port,
                dst,
                traffic_class: packet.traffic_class,
                hop_limit: packet.hop_limit,
                flow_label: 0,
                ip_id: packet.ip_id,
                bytes: &packet.bytes,
            });
            self.wire.state().recycle(packet.bytes);
            count += 1;
        }
        count
    }

    fn send(&mut self, train: &Train<'_>) -> Sent {
        let mut state = self.wire.state();
        let block = state.faults.block_ppm;
        if !state.quiet {
            if state.endpoints[self.nic].blocked_until > state.now {
                return Sent::Blocked;
            }
            if state.random.chance(block) {
                let until = state.now + state.random.range(1_000, 30_000);
                state.endpoints[self.nic].blocked_until = until;
                state.tally.strike(Fault::Blocked);
                return Sent::Blocked;
            }
        }
        for (index, bytes) in train.bytes.chunks(train.segment.max(1)).enumerate() {
            state.send(self.nic, train, index, bytes);
        }
        Sent::Done
    }

    fn take_drops(&mut self, _sink: &mut dyn FnMut(DropReason, u64)) {}

    fn source_port(&self, _src: IpAddr, flow: u32) -> u16 {
        SOURCE_PORT | (flow & 0x3fff) as u16
    }

    fn max_train(&self) -> usize {
        16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train<'a>(bytes: &'a [u8], to: usize) -> Train<'a> {
        Train {
            src: address(0, false),
            src_port: 0xc001,
            dst: address(to, false),
            traffic_class: 2,
            hop_limit: 9,
            flow_label: 0,
            segment: 16,
            bytes,
        }
    }

    fn drain(port: &mut SimPort) -> Vec<(u16, usize)> {
        let mut got = Vec::new();
        port.receive(99, &mut |d| got.push((d.ip_id, d.bytes.len())));
        got
    }

    #[test]
    fn a_train_arrives_after_its_latency_cut_and_numbered() {
        let wire = SimWire::new(2, false, Faults::default(), 1);
        let (mut a, mut b) = (wire.port(0), wire.port(1));
        assert_eq!(a.send(&train(&[0; 40], 1)), Sent::Done);
        assert_eq!(wire.state().advance(1_999), 0);
        assert_eq!(drain(&mut b), []);
        let due = wire.state().next_arrival().unwrap();
        assert_eq!(wire.state().advance(due), 0b10);
        assert_eq!(drain(&mut b), [(0, 16), (1, 16), (2, 8)]);
        assert_eq!(wire.state().next_arrival(), None);
    }

    #[test]
    fn each_fault_strikes_and_is_counted() {
        let all = Faults { loss_ppm: 1_000_000, ..Faults::default() };
        let wire = SimWire::new(2, false, all, 1);
        wire.port(0).send(&train(&[0; 40], 1));
        assert_eq!(wire.state().next_arrival(), None);
        assert_eq!(wire.state().tally.faults[Fault::Loss as usize], 3);

        let twice = Faults { duplicate_ppm: 1_000_000, corrupt_ppm: 1_000_000, ..Faults::default() };
        let wire = SimWire::new(2, false, twice, 1);
        wire.port(0).send(&train(&[0; 16], 1));
        wire.state().advance(1_000_000);
        assert_eq!(drain(&mut wire.port(1)).len(), 2);
        assert_eq!(wire.state().tally.kinds(), 2);
    }

    #[test]
    fn a_cut_port_is_silent_both_ways_until_it_is_calm() {
        let wire = SimWire::new(2, false, Faults::default(), 1);
        wire.state().cut(1, u64::MAX);
        wire.port(0).send(&train(&[0; 16], 1));
        assert_eq!(wire.state().next_arrival(), None);
        wire.state().calm();
        wire.port(0).send(&train(&[0; 16], 1));
        assert!(wire.state().next_arrival().is_some());
    }
}
