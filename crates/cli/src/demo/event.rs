//! What a child process of a demo tells its parent: one JSON object a line on standard output. A person who starts a side
//! by hand gets sentences instead.

use crate::demo::exchange::Verdict;
use crate::demo::step::{Operation, Step, Transport};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::time::Duration;

/// One line from child to parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The target waits for the initiator here.
    Listening { address: String },
    /// The port in use.
    Port { device: String, gid: String, path_mtu: u32 },
    /// How many rows will come.
    Plan { rows: usize },
    /// A row begins.
    Begin { name: String },
    /// A row is measured and verified.
    Result(Measured),
    /// Counters that changed during the demo.
    Counters { values: Vec<(String, u64)> },
    /// The work failed.
    Failed { message: String, is_usage: bool },
    /// All is done.
    Done,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Service.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
    /// Bytes of a message.
    pub size: u32,
    /// Messages sent.
    pub messages: u64,
    /// Messages that did not arrive: legal on UC and UD.
    pub lost: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// Median latency in ns: RC from post to completion, UC and UD half of there-and-back. 0 if nothing came back.
    pub latency_median_ns: u64,
    /// 99th percentile of the same.
    pub latency_p99_ns: u64,
    /// Time with many messages under way.
    pub elapsed_ns: u64,
    /// Messages that arrived in that time.
    pub streamed: u64,
}

impl Measured {
    /// A row without numbers.
    pub fn new(step: &Step) -> Self {
        Self {
            transport: step.transport,
            operation: step.operation,
            size: step.size,
            messages: 0,
            lost: 0,
            verified_bytes: 0,
            latency_median_ns: 0,
            latency_p99_ns: 0,
            elapsed_ns: 0,
            streamed: 0,
        }
    }

    /// Takes the samples of a latency step.
    pub fn latency(&mut self, mut samples: Vec<Duration>, sent: u32, verdict: &Verdict) {
        samples.sort_unstable();
        let at = |part: usize| samples.get(samples.len().saturating_sub(1) * part / 100).map_or(0, as_ns);
        self.latency_median_ns = at(50);
        self.latency_p99_ns = at(99);
        self.add(sent, verdict);
    }

    /// Takes a step with many messages under way.
    pub fn bandwidth(&mut self, elapsed: Duration, sent: u32, verdict: &Verdict) {
        self.elapsed_ns += as_ns(&elapsed);
        self.streamed += verdict.arrived;
        self.add(sent, verdict);
    }

    fn add(&mut self, sent: u32, verdict: &Verdict) {
        self.messages += u64::from(sent);
        self.lost += u64::from(sent).saturating_sub(verdict.arrived);
        self.verified_bytes += verdict.verified_bytes;
    }
}

fn as_ns(time: &Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// Where a side's events go.
pub struct Reporter {
    as_json: bool,
}

impl Reporter {
    /// JSON lines for a parent process, or sentences on standard error for a person.
    pub const fn new(as_json: bool) -> Self {
        Self { as_json }
    }

    /// Tells an event. A parent that is gone is noticed elsewhere.
    pub fn tell(&self, event: &Event) {
        if self.as_json {
            let mut line = serde_json::to_string(event).unwrap_or_default();
            line.push('\n');
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        } else if let Event::Listening { address } = event {
            eprintln!("waiting; on the other side run: sfab demo --connect {address}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_samples() {
        let step =
            Step { transport: Transport::Rc, operation: Operation::Send, size: 8, count: 100, window: 1, seed: 0 };
        let mut measured = Measured::new(&step);
        let samples = (0..=100).rev().map(Duration::from_nanos).collect();
        measured.latency(samples, 101, &Verdict { arrived: 99, ..Verdict::default() });
        assert_eq!((measured.latency_median_ns, measured.latency_p99_ns, measured.lost), (50, 99, 2));
        measured.latency(Vec::new(), 1, &Verdict::default());
        assert_eq!(measured.latency_median_ns, 0);
    }
}
