//! The NIC that asks: it hears rings, fetches WQEs, sends requests as caches and limits allow, and writes what comes back.

use super::super::load::Responder;
use super::super::parameter::Key;
use super::super::shape::{Op, bus_bytes, bus_bytes_per_ns, time_ps, wire_bytes};
use super::{Engine, Event, NONE, bus};
use std::collections::VecDeque;

impl Engine<'_> {
    /// The NIC hears the ring and gets the WQEs.
    pub(super) fn ring(&mut self, first: u32) {
        let load = self.load;
        let address = if self.path.copies_address() { self.ps(Key::DoorbellAddressHandle) } else { 0 };
        let handle = self.ps(Key::DoorbellHandle) + address;
        let heard = if load.responder == Responder::Only { self.now } else { self.doorbell.start(self.now, handle) };
        let looked = heard + self.path.schedule_ps();
        let bytes = 64 * load.shape.wqe_blocks();
        let prefetch = self.profile.count(Key::WqePrefetch);
        let (mut at, mut place) = (first, 0);
        let mut ready = looked;
        while at != NONE {
            if !load.shape.blueflame {
                if place % prefetch == 0 {
                    let left = u64::from(load.batch) - place;
                    ready = self.dma_read(looked, bytes * left.min(prefetch)) + self.path.fetch_ps();
                }
            } else {
                ready = looked;
            }
            let operation = self.operations[at as usize];
            self.wqes.enter(operation.id);
            if load.shape.op.is_answered() {
                self.spill.enter(operation.id);
            }
            self.schedule(ready, Event::Ready(at));
            (at, place) = (operation.next, place + 1);
        }
    }

    /// A read by the requester's NIC: when it may begin. Its latency is the caller's.
    pub(super) fn dma_read(&mut self, at: u64, bytes: u64) -> u64 {
        if self.load.responder == Responder::Only {
            return at;
        }
        let credit = self.ps(Key::BusRead) / self.profile.count(Key::BusReadCredits);
        bus::read(self.profile, &mut self.bus, at, bytes, credit)
    }

    /// The NIC sends a request, if the QP may have one more under way.
    pub(super) fn ready(&mut self, index: u32) {
        let qp = self.operations[index as usize].qp;
        if self.load.shape.op.is_answered() {
            if u64::from(self.under_way[qp as usize]) >= self.profile.count(Key::NicOutstanding) {
                self.waiting.entry(qp).or_default().push_back(index);
                return;
            }
            self.under_way[qp as usize] += 1;
        }
        let unit_ps = self.ps(Key::NicUnit);
        match self.load.responder {
            Responder::Only => self.leave(index),
            _ => {
                let at = self.qp_units[qp as usize].start(self.now, unit_ps);
                self.then(at, Event::Turn(index));
            }
        }
    }

    /// The requester's units, pipeline and caches.
    pub(super) fn turn_of(&mut self, index: u32) {
        let shape = self.load.shape;
        let qp = self.operations[index as usize].qp;
        let mut at = self.now;
        let unit_ps = self.ps(Key::NicUnit);
        if unit_ps > 0 {
            // A QP is worked on by one unit at a time, by whichever is free.
            let first = self.units.iter_mut().min_by_key(|unit| unit.free).expect("there is a unit");
            at = first.start(at, unit_ps);
        }
        let op = match (shape.op, self.path.is_acknowledged()) {
            (Op::Read, _) => Key::NicRead,
            (Op::Fadd | Op::Cas, _) => Key::NicAtomic,
            (_, true) => Key::NicWrite,
            (_, false) => Key::NicUnconnected,
        };
        let mut busy = self.ps(op) + self.size_ps();
        let mut wait = 0;
        if !self.contexts.touch(qp.into()) {
            busy += self.ps(if shape.op.is_answered() { Key::QpcReadStall } else { Key::QpcWriteStall });
            wait += self.ps(Key::QpcFetch);
        }
        if !self.map.touch(qp.into()) {
            busy += self.ps(Key::MapStall);
            wait += self.ps(Key::QpcFetch);
        }
        let at = self.pipeline.start(at, busy) + wait;
        self.then(at, Event::Leave(index));
    }

    /// The request leaves.
    pub(super) fn leave(&mut self, index: u32) {
        let at = match self.load.shape.gathered_bytes() {
            0 => self.now,
            bytes => self.dma_read(self.now, bytes),
        };
        let serial = self.path.serialise_ps(wire_bytes(self.profile, self.load.shape.request_bytes()));
        let at = self.out.start(at + self.path.leave_ps(), serial) + serial;
        match self.path.is_acknowledged() {
            true => self.schedule(at + self.path.hop_ps(), Event::Arrive(index)),
            false => self.schedule(at, Event::Back(index)),
        }
    }

    pub(super) fn size_ps(&self) -> u64 {
        let bytes = u64::from(self.load.shape.bytes);
        let more = bytes.div_ceil(self.profile.count(Key::BusMaxPayload)).saturating_sub(1);
        more * self.ps(Key::NicSegment) + (bytes as f64 * self.profile.value(Key::NicByte)) as u64
    }

    /// The requester has the answer, and looks for what it kept of the request.
    pub(super) fn back(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        let answered = self.load.shape.op.is_answered();
        let here = self.wqes.leave(operation.id);
        let spilled = answered && !self.spill.leave(operation.id);
        let mut at = self.now;
        if self.load.responder != Responder::Only {
            let mut stall = 0;
            if !here {
                stall += self.ps(if answered { Key::FlightStall } else { Key::WqeStall });
            }
            if spilled {
                stall += self.ps(Key::SpillStall);
            }
            if stall > 0 {
                at = self.pipeline.start(at, stall) + self.ps(Key::BusRead);
            }
        }
        if answered {
            let qp = operation.qp;
            self.under_way[qp as usize] -= 1;
            if let Some(next) = self.waiting.get_mut(&qp).and_then(VecDeque::pop_front) {
                self.schedule(self.now, Event::Ready(next));
            }
        }
        self.then(at, Event::Land(index));
    }

    /// Data and CQE are written.
    pub(super) fn land(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        let (profile, shape) = (self.profile, self.load.shape);
        let mut at = self.now;
        if self.load.responder != Responder::Only {
            let data = if shape.op.is_answered() { bus_bytes(profile, shape.answer_bytes()) } else { 0 };
            let cqe = bus_bytes(profile, profile.count(Key::CqeBytes)) / profile.count(Key::CqeCompress);
            let bytes = data + if operation.signalled { cqe } else { 0 };
            at = self.bus.up.start(at, time_ps(bytes, bus_bytes_per_ns(profile)));
        }
        let others = self.ps(Key::CpuPollThread) * u64::from(self.load.threads - 1);
        let seen = if operation.signalled { self.path.seen_ps() + others } else { 0 };
        self.schedule(at + self.path.come_back_ps() + seen, Event::Done(index));
    }
}
