//! Both bindings, packet by packet. The rule's clock runs 100 times as fast as the fabric's: a sample each millisecond stands for one each 100 ms, since
//! nothing but the binding changes in the traffic of a ring. A QP that moves is a new one on another way; what is under way on the old one ends there.

use super::super::time::Ps;
use super::super::workload::all_reduce::{AllReduce, Binding, Plan, Shape};
use super::super::world::{End, Observer, World};
use super::Outcome;
use super::cluster::{Cluster, PORTS, world};
use super::rule::Balancer;
use std::cell::RefCell;
use std::rc::Rc;

/// Simulated time between two samples.
const SAMPLE: Ps = Ps(1_000_000_000);
/// Samples without a move after which the rule counts as resting.
const QUIET: u32 = 20;
/// Samples at most until it rests.
const SAMPLES: u32 = 400;
/// Buckets under way at once: so far a ring may run ahead of another.
const OVERLAP: u32 = 2;
/// Steps of a bucket at most: all there are with 128 nodes. With more, rings would only run ahead of each other for longer before they wait.
const STEPS: u32 = 254;

/// Watches ports and QPs, moves QPs when the rule says so, and measures at the end.
struct Mover<'a> {
    cluster: &'a Cluster,
    balancer: Option<Balancer>,
    binding: Rc<RefCell<Binding>>,
    /// The connection of each lane.
    owners: Vec<u32>,
    port_bytes: Vec<u64>,
    connection_bytes: Vec<u64>,
    samples: u32,
    /// Buckets that had begun at the last move.
    begun: u32,
    /// Buckets that had begun at the last sample, and what is measured.
    begun_before: u32,
    phase: Phase,
    progress: &'a mut dyn FnMut(&World) -> bool,
}

/// What is measured is the time from the beginning of a bucket to that of a later one. A time that is no number of buckets would have more of the haste of fast rings in it, or of
/// their waiting.
#[derive(Clone, Copy)]
enum Phase {
    /// Nothing yet: not steady.
    Warming,
    /// Steady: the next bucket that begins is the first.
    Ready,
    /// From this beginning on, when so many had begun.
    Measuring { since: Ps, begun: u32 },
    /// So many buckets began in so long.
    Done { buckets: u32, time: Ps },
}

impl Mover<'_> {
    /// What each connection has sent and heard an answer to, by all QPs that it has had.
    fn acked(&self, world: &World) -> Vec<u64> {
        let mut bytes = vec![0; self.cluster.connections.len()];
        for qp in world.qps() {
            if let Some(owner) = qp.lane.and_then(|lane| self.owners.get(lane as usize)) {
                bytes[*owner as usize] += qp.acked_bytes;
            }
        }
        bytes
    }

    fn ask_the_rule(&mut self, world: &World, acked: &[u64]) {
        let Some(balancer) = &mut self.balancer else { return };
        let port_bytes: Vec<u64> = world.ports().iter().map(|port| port.tx_bytes).collect();
        let bps = |bytes: u64| bytes as f64 * 8.0 / SAMPLE.as_secs();
        let port = |port: u32| bps(port_bytes[port as usize] - self.port_bytes[port as usize]);
        let connection = |index: usize| bps(acked[index] - self.connection_bytes[index]) / self.cluster.payload_part;
        let moves = balancer.round(self.cluster, port, connection);
        let mut binding = self.binding.borrow_mut();
        if !moves.is_empty() {
            self.begun = binding.begun;
        }
        for (index, to) in moves {
            let lane = self.owners.len() as u32;
            self.owners.push(index as u32);
            binding.ways[index] = self.cluster.connections[index].way(to, lane);
        }
        self.port_bytes = port_bytes;
    }

    /// Whether nothing changes any more: the rule rests, or there is none, and the rings have had time to wait for each other.
    fn is_steady(&self) -> bool {
        let rests = self.balancer.as_ref().is_none_or(|balancer| balancer.quiet >= QUIET);
        let waited = self.binding.borrow().begun >= self.begun + self.cluster.setup().warm_buckets;
        rests && waited || self.samples >= SAMPLES
    }
}

impl Observer for Mover<'_> {
    fn sample(&mut self, world: &World) {
        let acked = self.acked(world);
        let (begun, begun_at) = (self.binding.borrow().begun, self.binding.borrow().begun_at);
        let now_begins = begun != self.begun_before;
        match self.phase {
            Phase::Warming => {
                self.samples += 1;
                self.ask_the_rule(world, &acked);
                if self.is_steady() {
                    self.phase = Phase::Ready;
                }
            }
            Phase::Ready if now_begins => self.phase = Phase::Measuring { since: begun_at, begun },
            Phase::Measuring { since, begun: first }
                if now_begins && begun - first >= self.cluster.setup().measured_buckets =>
            {
                self.phase = Phase::Done { buckets: begun - first, time: begun_at.since(since) };
            }
            Phase::Ready | Phase::Measuring { .. } | Phase::Done { .. } => {}
        }
        self.begun_before = begun;
        self.connection_bytes = acked;
    }

    fn has_seen_enough(&self) -> bool {
        matches!(self.phase, Phase::Done { .. })
    }

    fn progress(&mut self, world: &World) -> bool {
        (self.progress)(world)
    }
}

/// Runs the rings with QPs that stay where they are, or that the rule moves. `progress` hears of the fabric now and then; false ends the run, and that is an error.
pub fn run(cluster: &Cluster, with_rule: bool, progress: &mut dyn FnMut(&World) -> bool) -> Result<Outcome, String> {
    let setup = cluster.setup();
    let mut world = world(setup)?;
    let count = cluster.connections.len();
    let ways = (0..).zip(&cluster.connections).map(|(lane, connection)| connection.way(connection.first, lane));
    let binding = Rc::new(RefCell::new(Binding { ways: ways.collect(), steps: STEPS, begun: 0, begun_at: Ps::ZERO }));
    let hosts: Vec<u32> = cluster.order.iter().map(|node| node * PORTS).collect();
    let mut rings = AllReduce::new(Plan {
        channels: vec![hosts; setup.qps as usize],
        bytes: setup.bucket() * u64::from(OVERLAP),
        buckets: OVERLAP,
        overlap: OVERLAP,
        iterations: 1,
        shape: Shape::Ring,
        start: Ps::ZERO,
        priority: 3,
        binding: Some(Rc::clone(&binding)),
    });
    let mut mover = Mover {
        cluster,
        balancer: with_rule.then(|| Balancer::new(cluster)),
        binding,
        owners: (0..count as u32).collect(),
        port_bytes: vec![0; cluster.rates.len()],
        connection_bytes: vec![0; count],
        samples: 0,
        begun: 0,
        begun_before: 0,
        phase: Phase::Warming,
        progress,
    };
    world.sample_every(SAMPLE);
    world.forget_messages();
    if let End::Stuck(stuck) = world.run(&mut rings, Ps::NEVER, &mut mover) {
        return Err(stuck.to_string());
    }
    let Phase::Done { buckets, time } = mover.phase else {
        return Err("the run was ended before it was done".to_owned());
    };
    let (moves, rested) =
        mover.balancer.as_ref().map_or((0, true), |balancer| (balancer.moves, balancer.quiet >= QUIET));
    // A bucket is done when the slowest ring has it: each QP has sent its share once a step.
    let steps = STEPS.min(2 * (setup.nodes - 1));
    let share = setup.bucket() / u64::from(setup.qps) / u64::from(setup.nodes);
    let sent = u64::from(buckets) * u64::from(steps) * share * u64::from(setup.qps);
    let sent_bps = sent as f64 * 8.0 / time.as_secs();
    Ok(Outcome { gbps: setup.all_reduce_gbps(sent_bps), moves, rested })
}
