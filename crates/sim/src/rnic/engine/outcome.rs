//! What came of a load: rate, latency, what was busy, what missed; counted from the end of the warm-up on.

use super::super::cache::Cache;
use super::super::server::Server;
use super::Engine;
use std::cmp::Reverse;

/// What came of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Operations that were measured.
    pub operations: u64,
    /// Time that they took, in picoseconds.
    pub elapsed_ps: u64,
    /// Mean time from the call until the CPU saw the completion, in picoseconds, of signalled operations.
    pub latency_ps: u64,
    /// How busy each part was, in a thousand; the busiest first.
    pub busy: Vec<(&'static str, u64)>,
    /// Misses of each cache, in a million uses.
    pub misses: Vec<(&'static str, u64)>,
}

impl Outcome {
    /// Million operations a second.
    pub fn mops(&self) -> f64 {
        if self.elapsed_ps == 0 { 0.0 } else { self.operations as f64 * 1e6 / self.elapsed_ps as f64 }
    }

    /// Misses of one cache, in a million uses.
    pub fn miss_ppm(&self, name: &str) -> u64 {
        self.misses.iter().find(|(have, _)| *have == name).map_or(0, |(_, ppm)| *ppm)
    }

    /// What was busiest, or `latency` if nothing was busy nine tenths of the time.
    pub fn limit(&self) -> &'static str {
        self.busy.first().filter(|(_, permille)| *permille >= 900).map_or("latency", |(name, _)| *name)
    }
}

impl Engine<'_> {
    pub(super) fn begin_to_measure(&mut self) {
        self.from = self.now;
        [&mut self.contexts, &mut self.map, &mut self.responder_contexts, &mut self.pages, &mut self.regions]
            .into_iter()
            .for_each(Cache::warm);
        self.wqes.warm();
        self.spill.warm();
        let buses = [&mut self.bus, &mut self.answer_bus]
            .into_iter()
            .flat_map(|bus| [&mut bus.up, &mut bus.down, &mut bus.reads]);
        let servers = [
            &mut self.doorbell,
            &mut self.pipeline,
            &mut self.out,
            &mut self.answers,
            &mut self.back,
            &mut self.atomic,
        ];
        let many = self
            .units
            .iter_mut()
            .chain(&mut self.qp_units)
            .chain(&mut self.queue_locks)
            .chain(&mut self.register_locks);
        buses.chain(servers).chain(many).chain(self.lines.values_mut()).for_each(|server| server.busy = 0);
        self.threads.iter_mut().for_each(|thread| thread.busy = 0);
    }

    pub(super) fn outcome(&self) -> Outcome {
        let elapsed = self.to.saturating_sub(self.from).max(1);
        let most = |servers: &[Server]| servers.iter().map(|server| server.busy).max().unwrap_or(0);
        let threads: u64 = self.threads.iter().map(|thread| thread.busy).sum();
        let mut busy = vec![
            ("CPU", threads / u64::from(self.load.threads)),
            ("lock of a shared QP", most(&self.queue_locks)),
            ("shared doorbell", most(&self.register_locks)),
            ("doorbells in the NIC", self.doorbell.busy),
            ("one QP's processing unit", most(&self.qp_units)),
            ("NIC, requests", self.pipeline.busy),
            ("NIC, answers", self.answers.busy),
            ("PCIe to memory", self.bus.up.busy),
            ("PCIe from memory", self.bus.down.busy),
            ("DMA read credits", self.bus.reads.busy),
            ("PCIe to memory, responder", self.answer_bus.up.busy),
            ("PCIe from memory, responder", self.answer_bus.down.busy),
            ("DMA read credits, responder", self.answer_bus.reads.busy),
            ("wire, out", self.out.busy),
            ("wire, back", self.back.busy),
            ("atomic unit", self.atomic.busy),
            ("one cache line", self.lines.values().map(|line| line.busy).max().unwrap_or(0)),
        ];
        // What is counted is what was begun: at the end a queue may stand that is still to be served.
        busy.iter_mut().for_each(|(_, ps)| *ps = (u128::from(*ps) * 1000 / u128::from(elapsed)).min(1000) as u64);
        busy.sort_by_key(|(name, permille)| (Reverse(*permille), *name));
        let misses = vec![
            ("QP contexts", self.contexts.miss_ppm()),
            ("context map", self.map.miss_ppm()),
            ("responder contexts", self.responder_contexts.miss_ppm()),
            ("WQEs in flight", self.wqes.miss_ppm()),
            ("state of READs", self.spill.miss_ppm()),
            ("pages (MTT)", self.pages.miss_ppm()),
            ("regions (MPT)", self.regions.miss_ppm()),
        ];
        Outcome {
            operations: self.completed.saturating_sub(self.warm_until),
            elapsed_ps: elapsed,
            latency_ps: (self.latency / u128::from(self.signalled.max(1))) as u64,
            busy,
            misses,
        }
    }
}
