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
/// Buckets that must begin before the measurement, so that fast rings have run as far ahead as they may and wait for the slow ones.
const WARM: u32 = OVERLAP + 1;
/// Samples of the measurement.
const MEASURED: u32 = 10;
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
    /// Once it measures: samples left, and what connections had sent when it began.
    measuring: Option<(u32, Vec<u64>)>,
    /// Bytes that each ring's QPs sent while it was measured, of the slowest ring.
    slowest: u64,
    progress: &'a mut dyn FnMut(&World) -> bool,
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
        let waited = self.binding.borrow().begun >= self.begun + WARM;
        rests && waited || self.samples >= SAMPLES
    }
}

impl Observer for Mover<'_> {
    fn sample(&mut self, world: &World) {
        let acked = self.acked(world);
        match &mut self.measuring {
            None => {
                self.samples += 1;
                self.ask_the_rule(world, &acked);
                if self.is_steady() {
                    self.measuring = Some((MEASURED, acked.clone()));
                }
            }
            Some((left @ 1.., since)) => {
                *left -= 1;
                if *left == 0 {
                    // All rings together are as fast as the slowest, and others only wait for it.
                    let sent: Vec<u64> = acked.iter().zip(since.iter()).map(|(now, then)| now - then).collect();
                    let rings = sent.chunks(self.cluster.order.len()).map(|ring| ring.iter().sum());
                    self.slowest = rings.min().unwrap_or(0);
                }
            }
            Some(_) => {}
        }
        self.connection_bytes = acked;
    }

    fn has_seen_enough(&self) -> bool {
        matches!(self.measuring, Some((0, _)))
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
    let binding = Rc::new(RefCell::new(Binding { ways: ways.collect(), steps: STEPS, begun: 0 }));
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
        measuring: None,
        slowest: 0,
        progress,
    };
    world.sample_every(SAMPLE);
    world.forget_messages();
    if let End::Stuck(stuck) = world.run(&mut rings, Ps::NEVER, &mut mover) {
        return Err(stuck.to_string());
    }
    if !mover.has_seen_enough() {
        return Err("the run was ended before it was done".to_owned());
    }
    let (moves, rested) =
        mover.balancer.as_ref().map_or((0, true), |balancer| (balancer.moves, balancer.quiet >= QUIET));
    let seconds = SAMPLE.as_secs() * f64::from(MEASURED);
    let sent_bps = mover.slowest as f64 * 8.0 / seconds * f64::from(setup.qps) / f64::from(setup.nodes);
    Ok(Outcome { gbps: setup.all_reduce_gbps(sent_bps), moves, rested })
}
