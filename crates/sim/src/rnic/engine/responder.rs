//! The NIC that answers: pipeline, translations, memory, and the atomic unit with its line locks.

use super::super::load::Responder;
use super::super::parameter::Key;
use super::super::shape::{Op, wire_bytes};
use super::{Engine, Event, bus};
use crate::random::mix;

impl Engine<'_> {
    /// The responder's pipeline and caches.
    pub(super) fn arrive(&mut self, index: u32) {
        let load = self.load;
        let mut busy = self.ps(Key::NicResponder);
        let mut wait = 0;
        if !self.responder_contexts.touch(self.operations[index as usize].qp.into()) {
            busy += self.ps(Key::ResponderStall);
            wait += self.ps(Key::QpcFetch);
        }
        let region = self.random.below(load.memory.regions);
        if !self.regions.touch(region) {
            busy += self.ps(Key::MptStall);
            wait += self.ps(Key::MptMiss);
        }
        let page = region * load.memory.pages() + self.random.below(load.memory.pages());
        if !self.pages.touch(page) {
            busy += self.ps(Key::MttStall);
            wait += self.ps(Key::MttMiss);
        }
        let at = self.answers.start(self.now, busy) + wait;
        self.then(at, Event::Serve(index));
    }

    /// The responder's memory.
    pub(super) fn serve(&mut self, index: u32) {
        let (load, profile) = (self.load, self.profile);
        let mut at = self.now;
        let hot = self.random.chance(load.target.hot_ppm);
        let line = match hot {
            true => self.random.below(load.target.hot_lines),
            false => (1 << 40) + self.random.below(load.target.lines),
        };
        let mirror = load.responder == Responder::Mirror;
        if load.shape.op.is_atomic() {
            at = self.atomic(at, line, hot);
        } else if !load.setting.device_memory {
            let credit = self.ps(Key::BusRead) / profile.count(Key::BusReadCredits);
            let line_ps = self.ps(Key::HotRead);
            let side = if mirror { &mut self.bus } else { &mut self.answer_bus };
            if load.shape.op == Op::Read {
                at = bus::read(profile, side, at, load.shape.bytes.into(), credit);
                if hot && line_ps > 0 {
                    at = self.lines.entry(line).or_default().start(at, line_ps);
                }
            } else {
                bus::write(profile, side, at, load.shape.request_bytes());
            }
        }
        self.then(at, Event::Answer(index));
    }

    /// The answer leaves.
    pub(super) fn answer(&mut self, index: u32) {
        let serial = self.path.serialise_ps(wire_bytes(self.profile, self.load.shape.answer_bytes()));
        // Where all ask and answer alike, answers leave by the wire by which requests leave.
        let mirror = self.load.responder == Responder::Mirror;
        let wire = if mirror { &mut self.out } else { &mut self.back };
        let at = wire.start(self.now + self.path.answer_ps(), serial) + serial + self.path.hop_ps();
        self.schedule(at, Event::Back(index));
    }

    /// The atomic unit, and the lock of the line: when the operation begins.
    pub(super) fn atomic(&mut self, at: u64, line: u64, hot: bool) -> u64 {
        let setting = self.load.setting;
        let dram = if setting.dram { self.ps(Key::AtomicDram) } else { 0 };
        let factor = if setting.emulated_atomics { self.profile.value(Key::AtomicEmulated) } else { 1.0 };
        let slowed = |ps: u64| (ps as f64 * factor) as u64;
        let engine = slowed(self.ps(Key::AtomicEngine) + dram);
        let held = if setting.device_memory { self.ps(Key::AtomicDevice) } else { self.ps(Key::AtomicLine) + dram };
        let buckets = self.profile.count(Key::AtomicBuckets);
        // Hot lines are laid out so that they share no lock; others fall where their address falls.
        let bucket = if hot { line % buckets } else { mix(line) % buckets };
        let at = self.atomic.start(at, engine);
        self.lines.entry(bucket).or_default().start(at, slowed(held))
    }
}
