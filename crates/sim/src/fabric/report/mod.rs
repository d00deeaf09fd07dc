//! What came out of a run: figures that follow from the seed alone, so that the same scenario writes the same bytes. Here they are computed; [`page`] writes
//! them as text, [`folder`] as JSON, tables and pictures.

use super::recorder::{Recorder, Sample};
use super::scenario::Scenario;
use super::time::Ps;
use super::workload::Mix;
use super::world::{Counters, End, Message, World};
use serde::Serialize;

pub mod folder;
pub mod page;
mod parquet;
pub mod table;

pub use folder::slowdown_by_size;
pub use page::{bytes, comparison};

/// Times and slowdowns of the flows of a range of sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bin {
    /// The flows up to this per cent of all, by size.
    pub percentile: u32,
    /// The largest of them, in bytes.
    pub max_bytes: u64,
    /// How many.
    pub flows: usize,
    /// Slowdown: time over the time alone.
    pub p50: f64,
    /// Slowdown.
    pub p95: f64,
    /// Slowdown.
    pub p99: f64,
}

/// Times of flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Flows {
    /// How many began.
    pub begun: usize,
    /// How many ended.
    pub ended: usize,
    /// Completion times (posted to last byte acknowledged): least, median, mean, 95th, 99th, most, in µs.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Most.
    pub max_us: f64,
    /// Slowdown, median.
    pub slowdown_p50: f64,
    /// Slowdown, 95th percentile.
    pub slowdown_p95: f64,
    /// Slowdown, 99th percentile.
    pub slowdown_p99: f64,
    /// By size.
    pub bins: Vec<Bin>,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueFigure {
    /// The port, as "from -> to".
    pub port: String,
    /// Most bytes.
    pub peak_bytes: u32,
    /// Bytes on average over the run.
    pub mean_bytes: f64,
    /// Part of the time in which the link sent.
    pub utilisation: f64,
}

/// An edge of the tree by which pauses spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PauseFigure {
    /// The link that had to stop.
    pub paused: String,
    /// Why.
    pub because_of: String,
    /// The cause was paused itself.
    pub passed_on: bool,
    /// How often.
    pub times: u64,
    /// How long the link was stopped in all, whatever the cause, in µs.
    pub paused_us: f64,
}

/// A figure of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedFigure {
    /// What.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: String,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// The point of its sweep.
    pub point: Vec<(String, String)>,
    /// Told apart from other scenarios by it ([`Scenario::fingerprint`]).
    pub fingerprint: u64,
    /// Seed.
    pub seed: u64,
    /// Congestion control.
    pub algorithm: String,
    /// Hosts.
    pub hosts: u32,
    /// Switches.
    pub switches: u32,
    /// How it ended: "done", "time is up", or what is stuck.
    pub end: String,
    /// Simulated time, in µs.
    pub simulated_us: f64,
    /// The last byte was acknowledged then, in µs.
    pub makespan_us: f64,
    /// Payload acknowledged, over the time until then, in Gb/s.
    pub goodput_gbps: f64,
    /// Of flows; collectives have none.
    pub flows: Flows,
    /// What workloads tell.
    pub figures: Vec<NamedFigure>,
    /// The fullest queues.
    pub queues: Vec<QueueFigure>,
    /// Mean of Jain's index.
    pub jain: Option<f64>,
    /// Utilisation of the links of each layer on average: hosts' up, then between switches by layer, down to hosts.
    pub utilisation: Vec<(String, f64)>,
    /// How pauses spread.
    pub pauses: Vec<PauseFigure>,
    /// Time that all ports were stopped by PFC, in µs.
    pub paused_us: f64,
    /// What was counted.
    pub counters: Vec<(&'static str, u64)>,
    /// True if it cannot go on.
    pub stuck: bool,
    /// The samples.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// The messages of flows.
    #[serde(skip)]
    pub messages: Vec<Message>,
}

/// A percentile of sorted values, between neighbours in proportion; 0 of none.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = percent / 100.0 * last as f64;
    let low = place as usize;
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// Completion time.
fn fct(message: &Message) -> Ps {
    message.acked.since(message.posted)
}

fn slowdown(message: &Message) -> f64 {
    // A message of one packet may beat the ideal, which counts a full one.
    (fct(message).0 as f64 / message.ideal.0.max(1) as f64).max(1.0)
}

/// Figures of flows.
pub fn flows(messages: &[Message]) -> Flows {
    let mut ended: Vec<&Message> = messages.iter().filter(|message| message.acked != Ps::NEVER).collect();
    if ended.is_empty() {
        return Flows { begun: messages.len(), ..Flows::default() };
    }
    let mut times: Vec<f64> = ended.iter().map(|message| fct(message).as_us()).collect();
    let mut slow: Vec<f64> = ended.iter().map(|message| slowdown(message)).collect();
    times.sort_by(f64::total_cmp);
    slow.sort_by(f64::total_cmp);
    ended.sort_by_key(|message| message.bytes);
    let mut bins = Vec::new();
    let parts = if ended.len() >= 100 { 10 } else { 1 };
    for part in 0..parts {
        let group = &ended[ended.len() * part / parts..ended.len() * (part + 1) / parts];
        let mut slow: Vec<f64> = group.iter().map(|message| slowdown(message)).collect();
        slow.sort_by(f64::total_cmp);
        bins.push(Bin {
            percentile: (100 * (part + 1) / parts) as u32,
            max_bytes: group.last().map_or(0, |message| message.bytes),
            flows: group.len(),
            p50: percentile(&slow, 50.0),
            p95: percentile(&slow, 95.0),
            p99: percentile(&slow, 99.0),
        });
    }
    Flows {
        begun: messages.len(),
        ended: ended.len(),
        min_us: times[0],
        p50_us: percentile(&times, 50.0),
        mean_us: times.iter().sum::<f64>() / times.len() as f64,
        p95_us: percentile(&times, 95.0),
        p99_us: percentile(&times, 99.0),
        max_us: times[times.len() - 1],
        slowdown_p50: percentile(&slow, 50.0),
        slowdown_p95: percentile(&slow, 95.0),
        slowdown_p99: percentile(&slow, 99.0),
        bins,
    }
}

fn counters(counters: &Counters) -> Vec<(&'static str, u64)> {
    vec![
        ("events", counters.events),
        ("switch_forwards", counters.forwards),
        ("data_packets", counters.data_packets),
        ("resent", counters.resent),
        ("marked", counters.marked),
        ("cnps", counters.cnps),
        ("naks", counters.naks),
        ("timeouts", counters.timeouts),
        ("given_up", counters.given_up),
        ("dropped", counters.dropped()),
        ("dropped_no_room", counters.dropped_full),
        ("dropped_lost_on_wire", counters.dropped_lost),
        ("dropped_link_down", counters.dropped_down),
        ("dropped_no_way", counters.dropped_no_way),
        ("dropped_watchdog", counters.dropped_watchdog),
        ("pfc_pauses", counters.pauses),
        ("pfc_resumes", counters.resumes),
        ("pfc_storms", counters.storms),
    ]
}

impl Report {
    /// Of a run that has ended.
    pub fn new(scenario: &Scenario, world: &World, mix: &Mix, recorder: &Recorder<'_>, end: &End) -> Self {
        let now = world.now();
        let topology = world.topology();
        let hosts = topology.hosts;
        let is_flow = |message: &&Message| mix.jobs().get(Mix::owner(message.tag)).is_some_and(|job| job.has_flows());
        let messages: Vec<Message> = world.messages().iter().filter(is_flow).copied().collect();
        let makespan = world.last_done();
        let acked: u64 =
            world.messages().iter().filter(|message| message.acked != Ps::NEVER).map(|message| message.bytes).sum();
        let span = if *end == End::Done { makespan } else { now };
        let utilised = |tx_bytes: u64, bps: u64| match span.as_secs() {
            0.0 => 0.0,
            seconds => tx_bytes as f64 * 8.0 / bps as f64 / seconds,
        };
        let mut order: Vec<u32> =
            (0..world.ports().len() as u32).filter(|port| world.ports()[*port as usize].node >= hosts).collect();
        order.sort_by_key(|port| (std::cmp::Reverse(world.ports()[*port as usize].peak_bytes), *port));
        let queues = order.iter().take(8).map(|&index| {
            let port = &world.ports()[index as usize];
            QueueFigure {
                port: world.link_name(index),
                peak_bytes: port.peak_bytes,
                mean_bytes: port.mean_bytes(now) * now.0 as f64 / span.0.max(1) as f64,
                utilisation: utilised(port.tx_bytes, port.rate.bps),
            }
        });
        let mut layers: std::collections::BTreeMap<(u8, u8), (f64, u32)> = std::collections::BTreeMap::new();
        let layer = |node: u32| {
            if node < hosts { 0 } else { topology.layers.get((node - hosts) as usize).map_or(1, |layer| layer + 1) }
        };
        for port in world.ports() {
            let entry = layers.entry((layer(port.node), layer(port.peer))).or_default();
            entry.0 += utilised(port.tx_bytes, port.rate.bps);
            entry.1 += 1;
        }
        const NAMES: [&str; 4] = ["host", "leaf", "spine", "core"];
        let named = |layer: u8| NAMES.get(usize::from(layer)).copied().unwrap_or("switch");
        let utilisation = layers
            .into_iter()
            .map(|((from, to), (sum, count))| (format!("{} -> {}", named(from), named(to)), sum / f64::from(count)))
            .collect();
        let mut pauses: Vec<PauseFigure> = world
            .pauses()
            .spread()
            .map(|(edge, times)| PauseFigure {
                paused: world.link_name(edge.paused),
                because_of: edge.because_of.map_or_else(|| "the host itself".to_owned(), |port| world.link_name(port)),
                passed_on: edge.passed_on,
                times,
                paused_us: world.ports()[edge.paused as usize].total_paused(now).as_us(),
            })
            .collect();
        pauses.sort_by(|a, b| b.paused_us.total_cmp(&a.paused_us).then_with(|| a.paused.cmp(&b.paused)));
        let figures = mix.jobs().iter().flat_map(|job| job.figures());
        Self {
            scenario: scenario.name.clone(),
            point: scenario.point.clone(),
            fingerprint: scenario.fingerprint(),
            seed: scenario.seed,
            algorithm: scenario.algorithm.clone(),
            hosts,
            switches: topology.switches,
            end: match end {
                End::Done => "done".to_owned(),
                End::TimeIsUp => "time is up".to_owned(),
                End::Stuck(stuck) => stuck.to_string(),
            },
            simulated_us: span.as_us(),
            makespan_us: makespan.as_us(),
            goodput_gbps: if span == Ps::ZERO { 0.0 } else { acked as f64 * 8.0 / span.as_secs() / 1e9 },
            flows: flows(&messages),
            figures: figures
                .map(|figure| NamedFigure { name: figure.name, value: figure.value, unit: figure.unit.to_owned() })
                .collect(),
            queues: queues.collect(),
            jain: recorder.mean_jain(),
            utilisation,
            pauses,
            paused_us: world.ports().iter().map(|port| port.total_paused(now).as_us()).sum(),
            counters: counters(world.counters()),
            stuck: matches!(end, End::Stuck(_)),
            samples: recorder.samples.clone(),
            messages,
        }
    }

    /// A counter by its name.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(other, _)| *other == name).map_or(0, |(_, value)| *value)
    }

    /// What distinguishes the run, for a line or a file name.
    pub fn title(&self) -> String {
        let point: Vec<String> = self
            .point
            .iter()
            .map(|(key, value)| format!("{}={value}", key.rsplit('.').next().unwrap_or(key)))
            .collect();
        if point.is_empty() { self.scenario.clone() } else { format!("{} {}", self.scenario, point.join(" ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!([0.0, 50.0, 100.0].map(|p| percentile(&values, p)), [1.0, 2.5, 4.0]);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn flows_are_binned_by_size() {
        let message = |bytes: u64| Message {
            from: 0,
            to: 1,
            bytes,
            posted: Ps(0),
            acked: Ps(bytes * 20),
            delivered: Ps(bytes * 20),
            ideal: Ps(bytes * 10),
            tag: 0,
        };
        let messages: Vec<Message> = (1..=200).map(message).collect();
        let flows = flows(&messages);
        assert_eq!((flows.begun, flows.ended, flows.bins.len()), (200, 200, 10));
        assert_eq!((flows.bins[0].max_bytes, flows.bins[9].max_bytes, flows.slowdown_p99), (20, 200, 2.0));
    }
}
