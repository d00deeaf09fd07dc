//! `--peer`: the same test with other programs on this machine, and the ratio. Both ends of each are started here, one after the other, on
//! the loopback, and ended by process ID. What is not installed is named with its package.

mod iperf3;
mod libfabric;
mod pair;
mod perftest;
mod ucx;

use crate::demo::step::Transport;
use crate::failure::{During, Failure};
use crate::perf::asked::{Asked, ClientOptions};
use crate::perf::client::{self, Measured};
use crate::perf::exchange::{Length, Test, Verb};
use crate::perf::report;
use crate::table::{Align, Table};
use crate::terminal::{Progress, print, say};
use crate::units;
use clap::ValueEnum;
use pair::{Pair, Server};
use serde::Serialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// Who is measured, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PeerChoice {
    /// TCP, also without copying (-Z)
    Iperf3,
    /// UCX over TCP, or what UCX_TLS says
    Ucx,
    /// libfabric over TCP
    Libfabric,
    /// perftest on the software NIC, by `sfab run`
    Perftest,
    /// All of them
    All,
}

/// The test as others are told it.
#[derive(Clone, Debug)]
struct Job {
    verb: Verb,
    is_latency: bool,
    size: u32,
    messages: u64,
    seconds: Option<f64>,
    transport: Transport,
    qps: u32,
    tx_depth: u32,
    post_list: u32,
    mtu: Option<u32>,
    events: bool,
    rdma_cm: bool,
    /// Device and GID index that we used.
    device: (String, u8),
    /// The path that was asked for, for those that run on the software NIC, too.
    path: Option<String>,
}

/// What another program says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Told {
    /// Average bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    average_gbits: Option<f64>,
    /// Message rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_per_s: Option<f64>,
    /// Median latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50_us: Option<f64>,
    /// Mean latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_us: Option<f64>,
    /// Processor time of the sender, s for 10^9 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_cpu_s_per_gb: Option<f64>,
    /// Processor time of the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_cpu_s_per_gb: Option<f64>,
}

/// A run of another program: its two ends, and how to read what the client prints.
struct Run {
    name: String,
    pair: Pair,
    read: fn(&str, &Job) -> Option<Told>,
}

/// Another program.
struct Other {
    choice: PeerChoice,
    name: &'static str,
    program: fn(&Job) -> &'static str,
    /// How it is had.
    install: fn(&Job) -> &'static str,
    /// Its runs for a job; or why it has none.
    runs: fn(&Job) -> Result<Vec<Run>, &'static str>,
}

const OTHERS: [Other; 4] = [
    Other {
        choice: PeerChoice::Iperf3,
        name: "iperf3",
        program: |_| "iperf3",
        install: |_| "install the package iperf3",
        runs: iperf3::runs,
    },
    Other {
        choice: PeerChoice::Ucx,
        name: "ucx",
        program: |_| "ucx_perftest",
        install: |_| "install the package ucx-utils",
        runs: ucx::runs,
    },
    Other {
        choice: PeerChoice::Libfabric,
        name: "libfabric",
        program: libfabric::program,
        install: libfabric::install,
        runs: libfabric::runs,
    },
    Other {
        choice: PeerChoice::Perftest,
        name: "perftest",
        program: perftest::program,
        install: |_| "install the package perftest",
        runs: perftest::runs,
    },
];

/// Measures ours, then theirs.
pub fn run(choice: PeerChoice, asked: &Asked, options: &ClientOptions, shows: bool) -> Result<(), Failure> {
    let refused: [(bool, &str); 3] =
        [(asked.test == Test::Both, "both"), (options.both_directions, "-b"), (options.rate.is_some(), "--rate")];
    if let Some((_, what)) = refused.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!(
            "{what}: with --peer one test in a closed loop and in one direction is compared: use bw or lat"
        )));
    }
    let mut progress = Progress::new(if shows { 1 + OTHERS.len() } else { 0 });
    let mut begin = |name: &str| {
        if shows {
            progress.next(name);
        }
    };
    begin("sfab perf");
    let ours = ours(asked, options)?;
    let job = job(asked, options.device.path.as_ref(), &ours);
    let mut rows = Vec::new();
    for other in OTHERS.iter().filter(|other| choice == PeerChoice::All || choice == other.choice) {
        begin(other.name);
        rows.extend(measure(other, &job));
    }
    drop(progress);
    let compared = Compared { ours: &ours, is_latency: job.is_latency, rows };
    if options.json {
        say!("{:#}", compared.json());
    } else {
        report::tables(&ours, true);
        say!("");
        print(format_args!("{}", compared.table()));
        compared.sentences().iter().for_each(|sentence| say!("{sentence}"));
    }
    Ok(())
}

/// Our own two ends.
fn ours(asked: &Asked, options: &ClientOptions) -> Result<Measured, Failure> {
    let server = Server::own(options)?;
    let to: SocketAddr =
        server.said["listening"].as_str().unwrap_or_default().parse().during(|| "the server's address")?;
    client::measure(asked, &options.device, &[to], false)
}

fn job(asked: &Asked, path: Option<&String>, ours: &Measured) -> Job {
    let is_latency = asked.test == Test::Lat;
    let size = asked.sizes[0];
    let step = asked.step(size, is_latency);
    let (messages, seconds) = match step.length {
        Length::Messages(count) => (count, None),
        Length::Nanoseconds(ns) => (0, Some(ns as f64 / 1e9)),
    };
    let plan = &ours.plan;
    Job {
        verb: plan.verb,
        is_latency,
        size,
        messages,
        seconds,
        transport: plan.transport,
        qps: plan.qps,
        tx_depth: plan.tx_depth,
        post_list: plan.post_list,
        mtu: plan.path_mtu,
        events: plan.events,
        rdma_cm: plan.rdma_cm,
        device: (ours.client.device.clone(), ours.client.gid_index),
        path: path.cloned(),
    }
}

impl Job {
    /// Messages for programs that count and cannot measure for a time: as many as a quick one of its kind manages.
    fn count(&self, slowest_us: f64) -> u64 {
        match self.seconds {
            None => self.messages.max(100),
            Some(seconds) => {
                let by_bytes = 4e9 * seconds / f64::from(self.size);
                let by_time = seconds * 1e6 / slowest_us;
                by_bytes.min(by_time).clamp(100.0, 1e9) as u64
            }
        }
    }
}

/// How a run of another program ended.
enum Ended {
    Told(Told),
    Not(String),
}

fn measure(other: &Other, job: &Job) -> Vec<(String, Ended)> {
    let program = (other.program)(job);
    if !pair::is_installed(program) {
        let why = format!("`{program}` is missing; {}", (other.install)(job));
        return vec![(other.name.to_owned(), Ended::Not(why))];
    }
    let runs = match (other.runs)(job) {
        Ok(runs) => runs,
        Err(why) => return vec![(other.name.to_owned(), Ended::Not(why.to_owned()))],
    };
    let ended = runs.into_iter().map(|run| {
        let ended = match run.pair.run(limit(job)) {
            Err(why) => Ended::Not(why),
            Ok(text) => match (run.read)(&text, job) {
                Some(told) => Ended::Told(told),
                None => Ended::Not(format!("printed nothing that can be read: {}", last_line(&text))),
            },
        };
        (run.name, ended)
    });
    ended.collect()
}

fn limit(job: &Job) -> Duration {
    Duration::from_secs_f64(60.0 + 5.0 * job.seconds.unwrap_or(0.0))
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("")
}

/// Ours beside theirs.
struct Compared<'a> {
    ours: &'a Measured,
    is_latency: bool,
    rows: Vec<(String, Ended)>,
}

impl Compared<'_> {
    /// Ours as others tell theirs.
    fn own(&self) -> Told {
        let row = self.ours.rows[0];
        let latency = row.latency.and_then(|timing| timing.latency);
        Told {
            average_gbits: row.bandwidth.map(|told| told.average_gbits),
            messages_per_s: row.bandwidth.map(|told| told.messages_per_s),
            p50_us: latency.map(|told| told.p50_us),
            mean_us: latency.map(|told| told.mean_us),
            client_cpu_s_per_gb: row.bandwidth.map(|told| told.client_cpu_s_per_gb),
            server_cpu_s_per_gb: row.bandwidth.map(|told| told.server_cpu_s_per_gb),
        }
    }

    /// Ours over theirs: medians if both have them, else means; bandwidth or, where a program tells only that, rate.
    fn ratio(&self, theirs: &Told) -> Option<f64> {
        let own = self.own();
        let pairs = if self.is_latency {
            [(own.p50_us, theirs.p50_us), (own.mean_us, theirs.mean_us)]
        } else {
            [(own.average_gbits, theirs.average_gbits), (own.messages_per_s, theirs.messages_per_s)]
        };
        pairs.into_iter().find_map(|(own, theirs)| Some(own? / theirs.filter(|value| *value > 0.0)?))
    }

    fn table(&self) -> Table {
        let right = Align::Right;
        let (first, second) = if self.is_latency { ("median us", "mean us") } else { ("Gb/s", "messages/s") };
        let mut head = vec![("", Align::Left), (first, right), (second, right)];
        if !self.is_latency {
            head.extend([("CPU s/GB", right), ("of the other end", right)]);
        }
        head.push(("ours / theirs", right));
        let mut table = Table::new(&head);
        table.row(self.cells("sfab perf", &self.own(), "1".to_owned()));
        for (name, ended) in &self.rows {
            if let Ended::Told(told) = ended {
                let ratio = self.ratio(told).map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
                table.row(self.cells(name, told, ratio));
            }
        }
        table
    }

    fn cells(&self, name: &str, told: &Told, ratio: String) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let mut cells = vec![name.to_owned()];
        if self.is_latency {
            cells.extend([number(told.p50_us), number(told.mean_us)]);
        } else {
            let rate = told.messages_per_s.map(|rate| units::message_rate(rate as u64, Duration::from_secs(1)));
            cells.extend([number(told.average_gbits), rate.unwrap_or_else(|| "-".to_owned())]);
            cells.extend([number(told.client_cpu_s_per_gb), number(told.server_cpu_s_per_gb)]);
        }
        cells.push(ratio);
        cells
    }

    fn sentences(&self) -> Vec<String> {
        let not = self.rows.iter().filter_map(|(name, ended)| match ended {
            Ended::Not(why) => Some(format!("{name}: not measured: {why}")),
            Ended::Told(_) => None,
        });
        let order = if self.is_latency { "below 1 is faster than theirs" } else { "above 1 is more than theirs" };
        std::iter::once(format!(
            "Ours / theirs: {order}. One run each: for medians over repetitions, `cargo xtask bench --peers`."
        ))
        .chain(not)
        .collect()
    }

    fn json(&self) -> Value {
        let peers: Vec<Value> = self
            .rows
            .iter()
            .map(|(name, ended)| match ended {
                Ended::Told(told) => json!({ "peer": name, "result": told, "ratio": self.ratio(told) }),
                Ended::Not(why) => json!({ "peer": name, "not_measured": why }),
            })
            .collect();
        json!({ "ours": report::json(self.ours), "own": self.own(), "peers": peers })
    }
}

#[cfg(test)]
fn job_for_tests(verb: Verb, is_latency: bool, size: u32) -> Job {
    Job {
        verb,
        is_latency,
        size,
        messages: 1000,
        seconds: None,
        transport: Transport::Rc,
        qps: 1,
        tx_depth: 128,
        post_list: 1,
        mtu: None,
        events: false,
        rdma_cm: false,
        device: ("sflo".to_owned(), 1),
        path: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_count_are_given_a_count_for_a_time() {
        let job = Job { seconds: Some(1.0), ..job_for_tests(Verb::Write, false, 1 << 20) };
        assert_eq!(job.count(1.0), 3814);
        assert_eq!(Job { size: 8, ..job.clone() }.count(10.0), 100_000);
        assert_eq!(Job { seconds: None, ..job }.count(1.0), 1000);
    }
}
