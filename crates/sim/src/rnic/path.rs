//! The way of one operation through an idle NIC, closed form: named components, each with the place where its time passes. The event simulation takes
//! its latencies from here, so that an operation that meets nobody takes exactly the sum.

use super::load::Memory;
use super::parameter::Key;
use super::profile::Profile;
use super::savings::page_miss_ppm;
use super::shape::{Op, Setting, Shape, Transport, bus_bytes, bus_bytes_per_ns, time_ps, wire_bytes};

/// Where time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The requester's CPU.
    Cpu,
    /// The requester's bus.
    Bus,
    /// The requester's NIC.
    Nic,
    /// Cables and switches.
    Wire,
    /// The other side: its NIC, bus and memory.
    Responder,
}

impl Place {
    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Place::Cpu => "CPU",
            Place::Bus => "PCIe",
            Place::Nic => "NIC",
            Place::Wire => "wire",
            Place::Responder => "responder",
        }
    }
}

/// A named part of a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Component {
    /// What happens.
    pub name: &'static str,
    /// Where.
    pub place: Place,
    /// How long, in picoseconds.
    pub ps: u64,
}

/// The way of one operation.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    /// The NIC; both sides have the same.
    pub profile: &'a Profile,
    /// The operation.
    pub shape: Shape,
    /// The circumstances.
    pub setting: Setting,
}

/// Adds what takes time.
struct Sum(Vec<Component>);

impl Sum {
    fn add(&mut self, name: &'static str, place: Place, ps: u64) {
        if ps > 0 {
            self.0.push(Component { name, place, ps });
        }
    }
}

impl<'a> Path<'a> {
    /// The way of `shape`.
    pub fn new(profile: &'a Profile, shape: Shape, setting: Setting) -> Self {
        Self { profile, shape, setting }
    }

    fn ps(&self, key: Key) -> u64 {
        self.profile.ps(key)
    }

    /// Components from the call of `ibv_post_send` until the CPU has seen the completion.
    pub fn components(&self) -> Vec<Component> {
        let mut sum = Sum(Vec::new());
        self.posting(&mut sum);
        self.leaving(&mut sum);
        if self.is_acknowledged() {
            self.crossing(&mut sum, wire_bytes(self.profile, self.shape.request_bytes()), true);
            self.answering(&mut sum);
            self.crossing(&mut sum, wire_bytes(self.profile, self.shape.answer_bytes()), false);
            self.coming_back(&mut sum);
        } else {
            let bytes = wire_bytes(self.profile, self.shape.request_bytes());
            sum.add("serialise the request", Place::Wire, self.serialise_ps(bytes));
        }
        self.completing(&mut sum);
        sum.0
    }

    /// Components until data of a WRITE or SEND are in the responder's memory: half of a ping-pong (`ib_write_lat`), seen by a polling CPU there.
    pub fn arrival(&self) -> Vec<Component> {
        let mut sum = Sum(Vec::new());
        self.posting(&mut sum);
        self.leaving(&mut sum);
        self.crossing(&mut sum, wire_bytes(self.profile, self.shape.request_bytes()), true);
        sum.add("NIC receives the request", Place::Responder, self.ps(Key::NicReceive));
        if self.shape.op == Op::Send {
            sum.add("take a receive and complete it", Place::Responder, self.ps(Key::NicConsume));
        }
        sum.add("write to memory", Place::Responder, self.ps(Key::BusWrite) + self.bus_ps(self.shape.request_bytes()));
        sum.add("poll sees it", Place::Responder, self.ps(Key::CpuPoll));
        sum.0
    }

    /// What translations that the NIC does not have cost on average, when the operation falls anywhere in `memory`; none if all are in the NIC.
    pub fn translation(&self, memory: Memory, seed: u64) -> Option<Component> {
        let missed = page_miss_ppm(self.profile, memory, seed);
        let ps = self.ps(Key::MttMiss) * missed / 1_000_000;
        (ps > 0).then_some(Component { name: "missed translations (MTT), mean", place: Place::Responder, ps })
    }

    /// Until the CPU has seen the completion, in picoseconds.
    pub fn latency_ps(&self) -> u64 {
        self.build_ps() + self.ring_ps() + self.until_back_ps() + self.come_back_ps() + self.seen_ps()
    }

    fn until_back_ps(&self) -> u64 {
        let ready = self.schedule_ps() + self.fetch_ps();
        let request = self.serialise_ps(wire_bytes(self.profile, self.shape.request_bytes()));
        if !self.is_acknowledged() {
            return ready + self.leave_ps() + request;
        }
        let answer = self.serialise_ps(wire_bytes(self.profile, self.shape.answer_bytes()));
        ready + self.leave_ps() + request + self.hop_ps() + self.answer_ps() + answer + self.hop_ps()
    }

    /// True if the operation completes with an answer of the other side.
    pub fn is_acknowledged(&self) -> bool {
        self.shape.transport == Transport::Rc
    }

    fn posting(&self, sum: &mut Sum) {
        sum.add("build the WQE", Place::Cpu, self.build_ps());
        sum.add("doorbell: MMIO write", Place::Cpu, self.ps(Key::DoorbellMmio));
        sum.add("doorbell: fence", Place::Cpu, self.ps(Key::DoorbellFence));
        sum.add("BlueFlame: copy the WQE", Place::Cpu, self.blueflame_ps());
        sum.add("PCIe wakes from ASPM", Place::Bus, self.aspm_ps());
        sum.add("doorbell: NIC schedules", Place::Nic, self.ps(Key::DoorbellSchedule));
        sum.add("fetch the WQE", Place::Bus, self.fetch_ps());
    }

    fn leaving(&self, sum: &mut Sum) {
        sum.add("fetch the data", Place::Bus, self.gather_ps());
        sum.add("NIC sends the request", Place::Nic, self.ps(Key::NicTransmit));
    }

    fn crossing(&self, sum: &mut Sum, bytes: u64, out: bool) {
        let names = [
            ["serialise the answer", "cable, back", "switch, back"],
            ["serialise the request", "cable, out", "switch, out"],
        ][usize::from(out)];
        sum.add(names[0], Place::Wire, self.serialise_ps(bytes));
        sum.add(names[1], Place::Wire, self.ps(Key::WirePropagation));
        sum.add(names[2], Place::Wire, self.switches_ps());
    }

    fn answering(&self, sum: &mut Sum) {
        sum.add("NIC receives the request", Place::Responder, self.ps(Key::NicReceive));
        sum.add("PCIe wakes from ASPM there", Place::Responder, self.responder_aspm_ps());
        match self.shape.op {
            Op::Read => sum.add("read memory", Place::Responder, self.memory_ps()),
            Op::Send => sum.add("take a receive and complete it", Place::Responder, self.memory_ps()),
            Op::Fadd | Op::Cas => {
                let word = self.word_ps();
                sum.add("atomic unit", Place::Responder, self.memory_ps() - word);
                sum.add("read and lock the word", Place::Responder, word);
            }
            Op::Write => {}
        }
    }

    fn coming_back(&self, sum: &mut Sum) {
        sum.add("NIC receives the answer", Place::Nic, self.ps(Key::NicReceive));
        sum.add("handle the ACK", Place::Nic, self.acknowledge_ps());
        sum.add("write the data", Place::Bus, self.land_ps());
    }

    fn completing(&self, sum: &mut Sum) {
        sum.add("write the CQE", Place::Bus, self.ps(Key::CqeWrite));
        sum.add("poll sees the CQE", Place::Cpu, self.ps(Key::CpuPoll));
        sum.add("event wakes the CPU", Place::Cpu, self.event_ps());
    }

    /// The CPU builds the WQE.
    pub fn build_ps(&self) -> u64 {
        self.ps(Key::CpuPost)
    }

    /// The CPU rings: MMIO, fence, and the copy by BlueFlame; the bus wakes meanwhile.
    pub fn ring_ps(&self) -> u64 {
        self.ps(Key::DoorbellMmio) + self.ps(Key::DoorbellFence) + self.blueflame_ps() + self.aspm_ps()
    }

    fn blueflame_ps(&self) -> u64 {
        let address = if self.copies_address() { self.ps(Key::DoorbellAddress) } else { 0 };
        if self.shape.blueflame { self.ps(Key::DoorbellBlueFlame) * self.shape.wqe_blocks() + address } else { 0 }
    }

    /// True if the CPU writes a WQE with an address to the BAR.
    pub fn copies_address(&self) -> bool {
        self.shape.blueflame && self.shape.transport == Transport::Ud
    }

    fn aspm_ps(&self) -> u64 {
        if self.setting.aspm { self.ps(Key::BusAspm) } else { 0 }
    }

    fn responder_aspm_ps(&self) -> u64 {
        self.aspm_ps()
    }

    /// From the ring's arrival until the NIC looks.
    pub fn schedule_ps(&self) -> u64 {
        self.ps(Key::DoorbellSchedule)
    }

    /// The NIC reads the WQE; nothing by BlueFlame.
    pub fn fetch_ps(&self) -> u64 {
        if self.shape.blueflame { 0 } else { self.ps(Key::BusRead) + self.bus_ps(64 * self.shape.wqe_blocks()) }
    }

    fn gather_ps(&self) -> u64 {
        match self.shape.gathered_bytes() {
            0 => 0,
            bytes => self.ps(Key::BusRead) + self.bus_ps(bytes),
        }
    }

    /// From a WQE in the NIC to its first bit on the wire.
    pub fn leave_ps(&self) -> u64 {
        self.gather_ps() + self.ps(Key::NicTransmit)
    }

    /// Cables and switches, one way.
    pub fn hop_ps(&self) -> u64 {
        self.ps(Key::WirePropagation) + self.switches_ps()
    }

    fn switches_ps(&self) -> u64 {
        self.ps(Key::WireSwitch) * u64::from(self.setting.switches)
    }

    /// Bytes at the wire's rate.
    pub fn serialise_ps(&self, bytes: u64) -> u64 {
        time_ps(bytes, self.profile.value(Key::WireRate) / 8.0)
    }

    /// Bytes on the bus, TLP headers included.
    pub fn bus_ps(&self, bytes: u64) -> u64 {
        time_ps(bus_bytes(self.profile, bytes), bus_bytes_per_ns(self.profile))
    }

    /// The responder, from the last bit of the request to the first of the answer.
    pub fn answer_ps(&self) -> u64 {
        self.ps(Key::NicReceive) + self.responder_aspm_ps() + self.memory_ps()
    }

    fn memory_ps(&self) -> u64 {
        match self.shape.op {
            Op::Write => 0,
            Op::Send => self.ps(Key::NicConsume),
            Op::Read => self.ps(Key::MemoryRead) + self.bus_ps(self.shape.answer_bytes()),
            Op::Fadd | Op::Cas => {
                let emulated =
                    if self.setting.emulated_atomics { self.profile.value(Key::AtomicEmulated) } else { 1.0 };
                (self.ps(Key::AtomicUnit) as f64 * emulated).round() as u64 + self.word_ps()
            }
        }
    }

    fn word_ps(&self) -> u64 {
        let dram = if self.setting.dram { self.ps(Key::AtomicDram) } else { 0 };
        if self.setting.device_memory { 0 } else { self.ps(Key::AtomicMemory) + dram }
    }

    fn acknowledge_ps(&self) -> u64 {
        if self.shape.op.is_answered() { 0 } else { self.ps(Key::NicAcknowledge) }
    }

    fn land_ps(&self) -> u64 {
        if !self.shape.op.is_answered() {
            return 0;
        }
        let wait = if self.setting.relaxed_ordering { 0 } else { self.ps(Key::BusStrict) };
        self.bus_ps(self.shape.answer_bytes()) + wait
    }

    /// From the last bit of the answer (or, without one, from the last bit out) until the CQE is in memory.
    pub fn come_back_ps(&self) -> u64 {
        let answer = self.ps(Key::NicReceive) + self.acknowledge_ps() + self.land_ps();
        self.ps(Key::CqeWrite) + if self.is_acknowledged() { answer } else { 0 }
    }

    /// From the CQE in memory until a CPU, alone, has seen it.
    pub fn seen_ps(&self) -> u64 {
        self.ps(Key::CpuPoll) + self.event_ps()
    }

    fn event_ps(&self) -> u64 {
        if self.setting.events { self.ps(Key::CpuEvent) } else { 0 }
    }
}

/// Sum of components.
pub fn total_ps(components: &[Component]) -> u64 {
    components.iter().map(|component| component.ps).sum()
}
