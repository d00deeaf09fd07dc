//! The fabric that runs: all hosts, switches, links and packets, and the loop that takes events in the order of time. What each kind of node does stands in
//! [`super::host`] and [`super::switch`], PFC in [`super::pause`]; how it is built, posted to, seen and disturbed in the files below this one. One seed, one
//! run: nothing here takes time or chance from elsewhere, and nothing depends on addresses or hash seeds of the process.

mod build;
mod counters;
mod fault;
mod link;
mod look;
mod message;
mod post;
mod way;

pub use counters::{Counters, End};
pub use fault::Fault;
pub use message::{Message, Notice, Post, Workload};
pub use way::Alone;
pub(super) use way::entropy;

use super::buffer::{Buffer, Ingress};
use super::engine::Engines;
use super::event::EventQueue;
use super::host::Host;
use super::model::{Model, PortMarking};
use super::packet::Arena;
use super::pause::Pauses;
use super::port::Port;
use super::qp::Qp;
use super::route::Routes;
use super::telemetry::Writing;
use super::time::Ps;
use super::topology::Topology;
use crate::random::Random;
use scalefabric_transport::congestion::Profile;

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A packet has passed the wire of a port.
    Arrive { port: u32, packet: u32 },
    /// A transmitter is free.
    Free { port: u32 },
    /// A QP of the host may send.
    Wake { host: u32 },
    /// A controller's timer.
    Timer { qp: u32, generation: u32 },
    /// A retransmission timer.
    Deadline { qp: u32, generation: u32 },
    /// The workload has something to post.
    Workload,
    /// A change of the plan: index among the faults.
    Fault { index: u32 },
    /// Ways are computed anew.
    Reconverge,
    /// A PAUSE is over by its quanta.
    PauseOver { port: u32, priority: u8 },
    /// A PAUSE is told again.
    PauseAgain { port: u32, priority: u8 },
    /// The PFC watchdog looks.
    Watchdog { port: u32, priority: u8 },
    /// The watchdog obeys pauses again.
    Hear { port: u32, priority: u8 },
    /// A slow receiver has taken a packet.
    Taken { host: u32, packet: u32 },
    /// A slow receiver may have room again.
    Room { host: u32 },
    /// An engine has something to do.
    Turn { host: u32 },
    /// Somebody wants to look.
    Sample,
    /// Is there progress?
    Check,
}

/// What a caller wants to see while it runs.
pub trait Observer {
    /// Comes every sampling interval.
    fn sample(&mut self, _world: &World) {}
    /// Asked after each sample; true ends the run as if its time were over.
    fn has_seen_enough(&self) -> bool {
        false
    }
    /// Comes now and then, for a progress line. False ends the run.
    fn progress(&mut self, _world: &World) -> bool {
        true
    }
}

/// Sees nothing.
pub struct Nobody;

impl Observer for Nobody {}

/// Times between looks for progress in a fabric with PFC.
const CHECK: Ps = Ps(1_000_000_000);
/// Events between two calls of [`Observer::progress`].
const PROGRESS_EVENTS: u64 = 1 << 20;

/// The fabric.
pub struct World {
    pub(super) now: Ps,
    pub(super) queue: EventQueue<Event>,
    pub(super) arena: Arena,
    pub(super) model: Model,
    pub(super) profile: Profile,
    pub(super) writing: Writing,
    pub(super) with_stamp: bool,
    pub(super) topology: Topology,
    pub(super) routes: Routes,
    pub(super) ports: Vec<Port>,
    /// The ports of each node.
    pub(super) node_ports: Vec<Vec<u32>>,
    pub(super) ingress: Vec<Ingress>,
    pub(super) marking: Vec<PortMarking>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) hash_seeds: Vec<u32>,
    pub(super) hosts: Vec<Host>,
    pub(super) qps: Vec<Qp>,
    free_qps: Vec<u32>,
    lanes: std::collections::BTreeMap<(u32, u32, u32), u32>,
    pub(super) messages: Vec<Message>,
    /// Those that are acknowledged are not kept; their places.
    forgets: bool,
    free_messages: Vec<u32>,
    /// Messages that are not acknowledged.
    pub(super) open: u64,
    pub(super) tickets: u64,
    pub(super) random: Random,
    pub(super) counters: Counters,
    pub(super) notices: Vec<Notice>,
    pub(super) done: Vec<u32>,
    pub(super) pauses: Pauses,
    faults: Vec<(Ps, Fault)>,
    greatest: (Ps, u8),
    sample_every: Ps,
    last_done: Ps,
    until: Ps,
    posted_bytes: u64,
    acked_bytes: u64,
    pub(super) acknowledged: u64,
    expected_bytes: u64,
    /// Hosts with the whole engine, if there are such.
    pub(super) engines: Option<Box<Engines>>,
}

impl World {
    /// The observer is called each so often.
    pub fn sample_every(&mut self, interval: Ps) {
        if interval != Ps::NEVER && interval > Ps::ZERO {
            self.sample_every = interval;
            self.queue.push(interval, Event::Sample);
        }
    }

    pub(super) fn is_switch(&self, node: u32) -> bool {
        node >= self.topology.hosts
    }

    /// Runs until everything is done, `until` has come, or nothing can go on.
    pub fn run(&mut self, workload: &mut dyn Workload, until: Ps, observer: &mut dyn Observer) -> End {
        let mut posts = Vec::new();
        self.until = until;
        self.expected_bytes = workload.bytes();
        let mut asked = Ps::NEVER;
        self.ask(workload, &mut asked);
        self.queue.push(self.now + CHECK, Event::Check);
        loop {
            if self.open == 0 && workload.is_done() {
                return End::Done;
            }
            let Some((at, event)) = self.queue.pop() else {
                return End::Stuck(self.explain());
            };
            if at > until {
                self.now = until;
                return End::TimeIsUp;
            }
            self.now = at;
            self.counters.events += 1;
            match event {
                Event::Arrive { port, packet } => self.arrive(port, packet),
                Event::Free { port } => {
                    self.ports[port as usize].armed = false;
                    self.transmit(port);
                }
                Event::Workload => {
                    asked = Ps::NEVER;
                    if workload.next() <= self.now {
                        workload.due(self.now, &mut posts);
                    }
                    posts.drain(..).for_each(|post| self.post(&post));
                    self.ask(workload, &mut asked);
                }
                Event::Sample => {
                    observer.sample(self);
                    if observer.has_seen_enough() {
                        return End::TimeIsUp;
                    }
                    self.queue.push(self.now + self.sample_every, Event::Sample);
                }
                Event::Check => {
                    if let Some(stuck) = self.look_for_deadlock() {
                        return End::Stuck(stuck);
                    }
                    // Nothing but looks is left: whoever still waits, waits for ever.
                    let own = 1 + usize::from(self.sample_every != Ps::NEVER);
                    if self.queue.len() < own {
                        return End::Stuck(self.explain());
                    }
                    self.queue.push(self.now + CHECK, Event::Check);
                }
                other => self.handle(other),
            }
            if !self.notices.is_empty() {
                let mut notices = std::mem::take(&mut self.notices);
                for notice in notices.drain(..) {
                    let (Notice::Delivered(index) | Notice::Acked(index)) = notice;
                    if let Notice::Acked(_) = notice {
                        self.last_done = self.now;
                        self.acked_bytes += self.messages[index as usize].bytes;
                    }
                    let message = self.messages[index as usize];
                    workload.hear(self.now, notice, &message, &mut posts);
                    posts.drain(..).for_each(|post| self.post(&post));
                    if let Notice::Acked(index) = notice {
                        self.forget_message(index);
                    }
                }
                if self.notices.is_empty() {
                    self.notices = notices;
                }
                self.ask(workload, &mut asked);
            }
            if self.counters.events.is_multiple_of(PROGRESS_EVENTS) && !observer.progress(self) {
                return End::TimeIsUp;
            }
        }
    }

    fn ask(&mut self, workload: &dyn Workload, asked: &mut Ps) {
        let next = workload.next();
        if next < *asked {
            *asked = next;
            self.queue.push(next, Event::Workload);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake { host } => {
                let host = &mut self.hosts[host as usize];
                if host.wake <= self.now {
                    host.wake = Ps::NEVER;
                }
                let port = host.port;
                self.transmit(port);
            }
            Event::Timer { qp, generation } => self.timer(qp, generation),
            Event::Deadline { qp, generation } => self.deadline(qp, generation),
            Event::Fault { index } => self.fault(self.faults[index as usize].1),
            Event::Reconverge => {
                let ports = &self.ports;
                self.routes = Routes::new(&self.topology, |link| ports[2 * link as usize].up);
            }
            Event::PauseOver { port, priority } => self.pause_is_over(port, priority),
            Event::PauseAgain { port, priority } => self.pause_again(port, priority),
            Event::Watchdog { port, priority } => self.watchdog(port, priority),
            Event::Hear { port, priority } => {
                self.ports[port as usize].deaf &= !(1 << priority);
            }
            Event::Taken { host, packet } => self.take(host, packet),
            Event::Room { host } => self.room(host),
            Event::Turn { host } => self.turn_is_due(host),
            Event::Arrive { .. } | Event::Free { .. } | Event::Workload | Event::Sample | Event::Check => {}
        }
    }

    /// Takes one event more than the run needed, but none of those that come again and again; how many wait.
    #[cfg(test)]
    pub(super) fn drain_for_test(&mut self) -> Option<usize> {
        let (at, event) = self.queue.pop()?;
        self.now = at;
        match event {
            Event::Arrive { port, packet } => self.arrive(port, packet),
            Event::Free { port } => {
                self.ports[port as usize].armed = false;
                self.transmit(port);
            }
            other => self.handle(other),
        }
        Some(self.queue.len())
    }

    /// Packets that exist.
    #[cfg(test)]
    pub(super) fn packets_in_use(&self) -> usize {
        self.arena.used()
    }

    /// Bytes of shared buffers in use.
    #[cfg(test)]
    pub(super) fn buffers_in_use(&self) -> u64 {
        self.buffers.iter().map(Buffer::shared_used).sum()
    }
}
