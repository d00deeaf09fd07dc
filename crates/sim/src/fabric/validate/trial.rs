//! One run under the reference model, with the figures that the reference simulator told of its own.

use super::super::model::Model;
use super::super::recorder::jain;
use super::super::time::Ps;
use super::super::topology::{Topology, Wire};
use super::super::workload::Mix;
use super::super::workload::flow_list::{Flow, FlowList};
use super::super::world::{Counters, End, Message, Observer, World};
use scalefabric_transport::congestion::Profile;

/// 100 Gb/s and 1 µs.
pub const WIRE: Wire = Wire { bps: 100_000_000_000, delay: Ps(1_000_000) };

/// What came out.
pub struct Outcome {
    /// Flows.
    pub messages: Vec<Message>,
    /// Counters.
    pub counters: Counters,
    /// When the last byte was acknowledged.
    pub makespan: Ps,
    /// The most bytes that waited at the port that had most.
    pub queue_peak: u32,
    /// Bytes that waited there on average until then.
    pub queue_mean: f64,
    /// How it ended.
    pub end: End,
    /// Payload acknowledged by each QP at each sample.
    pub samples: Vec<(Ps, Vec<u64>)>,
}

impl Outcome {
    /// The shortest completion time.
    pub fn shortest(&self) -> Ps {
        self.messages.iter().map(|message| message.acked.since(message.posted)).min().unwrap_or(Ps::ZERO)
    }

    /// Payload rate of each QP between two samples, in Gb/s, and Jain's index of them.
    pub fn rates(&self, from: Ps, to: Ps) -> (Vec<f64>, f64) {
        let at = |time: Ps| self.samples.iter().find(|(at, _)| *at >= time).map(|(_, bytes)| bytes.clone());
        let (Some(before), Some(after)) = (at(from), at(to)) else { return (Vec::new(), 0.0) };
        let span = to.since(from).as_secs();
        let rates: Vec<f64> = after
            .iter()
            .enumerate()
            .map(|(qp, bytes)| (bytes - before.get(qp).copied().unwrap_or(0)) as f64 * 8.0 / span / 1e9)
            .collect();
        let index = jain(rates.iter().copied()).1;
        (rates, index)
    }
}

#[derive(Default)]
struct Acked(Vec<(Ps, Vec<u64>)>);

impl Observer for Acked {
    fn sample(&mut self, world: &World) {
        self.0.push((world.now(), world.qps().iter().map(|qp| qp.acked_bytes).collect()));
    }
}

/// What is run.
pub struct Trial {
    /// The fabric.
    pub topology: Topology,
    /// What is assumed.
    pub model: Model,
    /// Congestion control.
    pub profile: Profile,
    /// Traffic.
    pub flows: Vec<Flow>,
    /// Seed.
    pub seed: u64,
    /// Samples each so often; [`Ps::NEVER`]: none.
    pub sample: Ps,
}

impl Trial {
    /// Flows on a star under the reference model.
    pub fn star(hosts: u32, profile: Profile, flows: Vec<Flow>) -> Self {
        Self {
            topology: Topology::star(hosts, WIRE),
            model: Model::reference(),
            profile,
            flows,
            seed: 1,
            sample: Ps::NEVER,
        }
    }

    /// Runs it, for at most a second of simulated time.
    pub fn run(self) -> Result<Outcome, String> {
        let mut world = World::new(self.topology, self.model, self.profile, self.seed)?;
        world.sample_every(self.sample);
        let mut mix = Mix::new(vec![Box::new(FlowList::new(self.flows, 3))]);
        let mut acked = Acked::default();
        let end = world.run(&mut mix, Ps(1_000_000_000_000), &mut acked);
        let hosts = world.topology().hosts;
        let worst = world.ports().iter().filter(|port| port.node >= hosts).max_by_key(|port| port.peak_bytes);
        let now = world.now();
        let span = world.last_done();
        Ok(Outcome {
            queue_peak: worst.map_or(0, |port| port.peak_bytes),
            queue_mean: worst.map_or(0.0, |port| port.mean_bytes(now) * now.0 as f64 / span.0.max(1) as f64),
            messages: world.messages().to_vec(),
            counters: *world.counters(),
            makespan: span,
            end,
            samples: acked.0,
        })
    }
}

/// A named profile for 100 Gb/s with some parameters set.
pub fn profile(name: &str, changes: &[(&str, f64)]) -> Result<Profile, String> {
    let mut profile = Profile::named(name, WIRE.bps).map_err(|error| error.to_string())?;
    for &(parameter, value) in changes {
        profile.set(parameter, value).map_err(|error| error.to_string())?;
    }
    Ok(profile)
}

/// Flows of a reference table.
pub fn flows(text: &str, name: &str, hosts: u32) -> Result<Vec<Flow>, String> {
    FlowList::from_csv(text, name, hosts, 1 << 42)
}
