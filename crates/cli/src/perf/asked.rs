//! What the command line of a client asks for, and what follows from it: defaults, and refusals of what makes no sense together.

use crate::demo::step::Transport;
use crate::failure::Failure;
use crate::perf::device::DeviceOptions;
use crate::perf::exchange::{DEEPEST, LARGEST, Length, MOST_QPS, Memory, PORT, Plan, Step, Test, Verb};
use crate::perf::peer::PeerChoice;
use crate::units;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Sizes of `-a`: powers of two from 2 B to 8 MiB.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;

/// Depth of the send queue unless told otherwise, as in perftest.
const TX_DEPTH: u32 = 128;

/// Depth of the receive queue, as in perftest.
const RX_DEPTH: u32 = 512;

/// Messages of a bandwidth test, as in perftest, and bytes that it should not exceed by default.
const BW_MESSAGES: u64 = 5000;
const BW_BYTES: u64 = 1 << 30;

/// Messages of a latency test: enough for ten beyond the 99.9th percentile.
const LAT_MESSAGES: u64 = 10_000;
const LAT_BYTES: u64 = 512 << 20;

/// Fewest messages by default.
const FEWEST: u64 = 100;

/// Inline bytes of latency tests unless told otherwise, as in perftest.
const LAT_INLINE: u32 = 220;

/// Bytes sent to warm up, at most.
const WARMUP_BYTES: u64 = 64 << 20;

/// Options of `write`, `read` and `send`.
#[derive(Args, Clone, Debug)]
pub struct ClientOptions {
    /// What to measure
    #[arg(value_enum)]
    pub test: Test,
    /// The server: a name or an address, with a port if it is not 18515
    #[arg(value_name = "ADDRESS[:PORT]", required_unless_present = "peer")]
    pub address: Option<String>,
    /// Message size, such as 8, 64K, 1M [default: 64K for bw (UD: 1K), 8 for lat and atomics]
    #[arg(short = 's', long, value_name = "SIZE", value_parser = units::parse_size)]
    pub size: Option<u32>,
    /// All sizes from 2 B to 8 MiB
    #[arg(short = 'a', long, conflicts_with = "size")]
    pub all: bool,
    /// Queue pairs
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_QPS)))]
    pub qps: u32,
    /// Sends under way on each queue pair [default: 128]
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DEEPEST)))]
    pub tx_depth: Option<u32>,
    /// Receives posted on each queue pair
    #[arg(short = 'r', long, value_name = "N", default_value_t = RX_DEPTH, value_parser = clap::value_parser!(u32).range(1..=i64::from(DEEPEST)))]
    pub rx_depth: u32,
    /// Requests posted with one call
    #[arg(short = 'l', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub post_list: Option<u32>,
    /// One completion for so many sends [default: 16, less for shallow queues]
    #[arg(short = 'Q', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cq_mod: Option<u32>,
    /// Measure for so long, each size
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    /// Messages on each queue pair, each size [default: 5000 for bw, 10000 for lat, fewer of large ones]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    pub iters: Option<u64>,
    /// Messages before those that count [default: up to 1000]
    #[arg(long, value_name = "N")]
    pub warmup: Option<u64>,
    /// Both ends send (bw)
    #[arg(short = 'b', long = "bidirectional")]
    pub both_directions: bool,
    /// Messages up to this go inline [default: 220 for lat, 0 for bw, or what the device has]
    #[arg(short = 'I', long = "inline-size", value_name = "BYTES")]
    pub inline: Option<u32>,
    /// Whoever waits sleeps on completion events instead of polling
    #[arg(short = 'e', long)]
    pub events: bool,
    /// Connect the queue pairs by rdma_cm (RC)
    #[arg(short = 'R', long = "rdma-cm", alias = "rdma_cm")]
    pub rdma_cm: bool,
    /// Path MTU: 256, 512, 1024, 2048, 4096 [default: what both ports have]
    #[arg(short = 'm', long, value_name = "BYTES", value_parser = parse_mtu)]
    pub mtu: Option<u32>,
    /// Service of the queue pairs
    #[arg(long, short = 'c', alias = "connection", value_name = "rc|uc|ud", default_value = "rc", value_parser = parse_transport)]
    pub transport: Transport,
    /// Open loop (lat): so many operations a second by a schedule; latency counts from the intended start
    #[arg(long, value_name = "OPS", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// The receiver copies out what arrived before it answers (latency of WRITEs and SENDs over RC)
    #[arg(long)]
    pub read_data: bool,
    /// Both ends take the completion of what they sent before they look for the answer, as perftest does (latency of WRITEs and SENDs)
    #[arg(long)]
    pub wait_completion: bool,
    /// Where the memory comes from
    #[arg(long, value_enum, default_value = "device")]
    pub memory: Memory,
    /// Gb/s instead of MiB/s
    #[arg(long, alias = "report_gbits")]
    pub report_gbits: bool,
    /// One JSON document instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw size against bandwidth and latency (with -a) into this SVG file
    #[arg(long, value_name = "FILE.svg", requires = "all")]
    pub plot: Option<PathBuf>,
    /// The server's TCP port, if the address has none
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,
    /// Measure others on this machine, too, and print the ratio: both ends of all are started here
    #[arg(long, value_enum, conflicts_with_all = ["address", "all"])]
    pub peer: Option<PeerChoice>,
    #[command(flatten)]
    pub device: DeviceOptions,
}

/// Options of `atomic`.
#[derive(Args, Clone, Debug)]
pub struct AtomicOptions {
    /// Fetch and add, or compare and swap
    #[arg(long, short = 'A', value_enum, default_value = "fadd")]
    pub op: AtomicOp,
    #[command(flatten)]
    pub client: ClientOptions,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AtomicOp {
    /// Fetch and add
    #[value(alias = "FETCH_AND_ADD")]
    Fadd,
    /// Compare and swap
    #[value(alias = "CMP_AND_SWAP")]
    Cas,
}

fn parse_transport(text: &str) -> Result<Transport, String> {
    match text.to_ascii_uppercase().as_str() {
        "RC" => Ok(Transport::Rc),
        "UC" => Ok(Transport::Uc),
        "UD" => Ok(Transport::Ud),
        _ => Err("use rc, uc or ud".to_owned()),
    }
}

fn parse_mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes| scalefabric_verbs::Mtu::from_bytes(*bytes).is_some());
    bytes.ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.001..=604_800.0).contains(seconds));
    seconds.ok_or_else(|| "use seconds, from 0.001 to 604800 (a week)".to_owned())
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (0.01..=1e9).contains(rate));
    rate.ok_or_else(|| "use operations a second, from 0.01 to 1000000000".to_owned())
}

/// A run, with all that was not said filled in.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The test.
    pub test: Test,
    /// What the server is told.
    pub plan: Plan,
    /// Sizes, each a row.
    pub sizes: Vec<u32>,
    /// The open loop's operations a second.
    pub rate: Option<f64>,
    /// Inline bytes may be fewer than the plan has, since nobody named them.
    pub inline_is_a_wish: bool,
    duration: Option<f64>,
    iters: Option<u64>,
    warmup: Option<u64>,
}

/// Fills in what was not said and refuses what makes no sense.
pub fn asked(verb: Verb, options: &ClientOptions) -> Result<Asked, Failure> {
    let refuse = |what: &str| Err(Failure::usage(what.to_owned()));
    let (bw, lat) = (options.test != Test::Lat, options.test != Test::Bw);
    if !bw {
        let only_bw: [(bool, &str); 4] = [
            (options.qps > 1, "-q"),
            (options.post_list.is_some_and(|list| list > 1), "-l"),
            (options.cq_mod.is_some_and(|every| every > 1), "-Q"),
            (options.both_directions, "-b"),
        ];
        if let Some((_, name)) = only_bw.iter().find(|(given, _)| *given) {
            return Err(Failure::usage(format!("{name} is for bandwidth: a latency test has one message under way")));
        }
    }
    if !lat && options.rate.is_some() {
        return refuse("--rate is for latency: a bandwidth test sends as fast as it can");
    }
    if lat && verb == Verb::Write && options.events {
        return refuse(
            "-e: the latency of WRITEs is seen by polling memory, which makes no event; leave out -e, or use `send lat`",
        );
    }
    if options.tx_depth.is_some() && !bw && (options.rate.is_none() || !verb.is_round_trip()) {
        return refuse(
            "-t is for bandwidth, and for READs and atomics with --rate: a latency test has one message under way",
        );
    }
    if verb.is_atomic() && (options.all || options.size.is_some_and(|size| size != 8)) {
        return refuse("atomics work on 8 bytes: leave out -s and -a");
    }
    if options.read_data && (bw || verb.is_round_trip()) {
        return refuse(
            "--read-data is for the latency of WRITEs and SENDs: elsewhere nobody is told that data arrived",
        );
    }
    if options.wait_completion && (bw || verb.is_round_trip()) {
        return refuse(
            "--wait-completion is for the latency of WRITEs and SENDs: a READ or an atomic is there when its completion is, and bandwidth tests count completions",
        );
    }
    let sizes = sizes(verb, options);
    let largest = sizes.iter().copied().max().unwrap_or(1);
    if largest > LARGEST || sizes.contains(&0) {
        return Err(Failure::usage(format!(
            "-s {largest} is out of range: use 1 byte to {}",
            units::size(LARGEST.into())
        )));
    }
    let tx_depth = options.tx_depth.unwrap_or(if lat && !bw && options.rate.is_none() { 16 } else { TX_DEPTH });
    let post_list = options.post_list.unwrap_or(1);
    let signal_every = options.cq_mod.unwrap_or_else(|| signals(tx_depth, post_list));
    let wish = if lat && !verb.is_round_trip() { LAT_INLINE } else { 0 };
    let plan = Plan {
        verb,
        transport: options.transport,
        largest,
        qps: options.qps,
        tx_depth,
        rx_depth: options.rx_depth,
        post_list,
        signal_every: if bw { signal_every } else { 1 },
        inline_bytes: options.inline.unwrap_or(wish),
        both_directions: options.both_directions,
        events: options.events,
        path_mtu: options.mtu,
        rdma_cm: options.rdma_cm,
        reads_data: options.read_data,
        waits_for_completion: options.wait_completion,
        memory: options.memory,
    };
    plan.check().map_err(Failure::usage)?;
    Ok(Asked {
        test: options.test,
        plan,
        sizes,
        rate: options.rate,
        inline_is_a_wish: options.inline.is_none(),
        duration: options.duration,
        iters: options.iters,
        warmup: options.warmup,
    })
}

fn sizes(verb: Verb, options: &ClientOptions) -> Vec<u32> {
    if options.all {
        return ALL_SIZES.map(|power| 1 << power).collect();
    }
    let default = match options.test {
        _ if verb.is_atomic() => 8,
        Test::Lat => 8,
        Test::Bw | Test::Both if options.transport == Transport::Ud => 1024,
        Test::Bw | Test::Both => 65_536,
    };
    vec![options.size.unwrap_or(default)]
}

/// One completion for so many: a multiple of the list, and several within the depth, so that the queue never runs dry for want of news.
fn signals(tx_depth: u32, post_list: u32) -> u32 {
    let few = (tx_depth / 4).clamp(1, 16);
    (few / post_list).max(1) * post_list
}

impl Asked {
    /// What comes before the messages that count; `None`: nothing.
    pub fn warmup(&self, size: u32, is_latency: bool) -> Option<Step> {
        let most = (WARMUP_BYTES / u64::from(size)).clamp(16, 1000);
        let count = self.warmup.unwrap_or_else(|| most.min(self.iters.unwrap_or(u64::MAX)));
        (count > 0).then_some(Step { is_latency, size, length: Length::Messages(count) })
    }

    /// The messages that count.
    pub fn step(&self, size: u32, is_latency: bool) -> Step {
        let length = match (self.duration, self.iters) {
            (Some(seconds), _) => Length::Nanoseconds((seconds * 1e9) as u64),
            (None, Some(count)) => Length::Messages(count),
            (None, None) => {
                let (most, bytes) = if is_latency { (LAT_MESSAGES, LAT_BYTES) } else { (BW_MESSAGES, BW_BYTES) };
                Length::Messages((bytes / u64::from(size)).clamp(FEWEST, most))
            }
        };
        Step { is_latency, size, length }
    }

    /// Whether latency is measured, and whether bandwidth is.
    pub fn halves(&self) -> impl Iterator<Item = bool> {
        let halves: &[bool] = match self.test {
            Test::Bw => &[false],
            Test::Lat => &[true],
            Test::Both => &[false, true],
        };
        halves.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ClientOptions,
    }

    fn read(verb: Verb, words: &str) -> Result<Asked, Failure> {
        let words = std::iter::once("perf").chain(words.split_whitespace());
        asked(verb, &Line::try_parse_from(words).expect("clap takes it").options)
    }

    #[test]
    fn what_makes_no_sense_together_is_wrong_use() {
        let cases: &[(Verb, &str, &str)] = &[
            (Verb::Write, "lat h -q 2", "-q"),
            (Verb::Write, "lat h -l 2", "-l"),
            (Verb::Write, "lat h -b", "-b"),
            (Verb::Write, "lat h -Q 4", "-Q"),
            (Verb::Write, "lat h -t 4", "-t"),
            (Verb::Write, "lat h -e", "-e"),
            (Verb::Write, "both h -e", "-e"),
            (Verb::Write, "bw h --rate 1000", "--rate"),
            (Verb::Read, "lat h -t 4", "-t"),
            (Verb::Read, "bw h -I 8", "-I"),
            (Verb::Write, "bw h --read-data", "--read-data"),
            (Verb::Read, "lat h --read-data", "--read-data"),
            (Verb::Write, "bw h --wait-completion", "--wait-completion"),
            (Verb::FetchAdd, "lat h --wait-completion", "--wait-completion"),
            (Verb::Read, "bw h --transport uc", "RC"),
            (Verb::Write, "bw h --transport ud", "UD"),
            (Verb::FetchAdd, "lat h -s 16", "8 bytes"),
            (Verb::FetchAdd, "lat h -a", "8 bytes"),
            (Verb::Write, "bw h -s 0", "-s"),
            (Verb::Write, "bw h -s 2G", "-s"),
            (Verb::Write, "bw h -t 4 -l 8", "-l 8"),
            (Verb::Write, "bw h -t 8 -Q 16", "-Q 16"),
            (Verb::Write, "bw h -l 3 -Q 4", "no multiple"),
            (Verb::Send, "bw h -R --transport uc", "-R"),
        ];
        for (verb, words, part) in cases {
            let failure = read(*verb, words).err().unwrap_or_else(|| panic!("{words} was taken"));
            assert!(failure.is_usage() && failure.to_string().contains(part), "{words}: {failure}");
        }
    }

    #[test]
    fn what_perftest_takes_is_taken() {
        for (verb, words) in [
            (Verb::Write, "bw h -a"),
            (Verb::Write, "bw h:1 -s 1M -q 4 -t 64 -l 8 -Q 16 -D 5 -b -I 0 -m 4096 --report_gbits -i 1 -x 1 -d sf0"),
            (Verb::Read, "lat h --rate 1000 -t 8"),
            (Verb::Send, "lat h -e -c UD -n 10"),
            (Verb::FetchAdd, "bw h -R"),
        ] {
            read(verb, words).unwrap_or_else(|failure| panic!("{words}: {failure}"));
        }
    }

    #[test]
    fn what_clap_refuses() {
        for words in [
            "bw",
            "bw h -s 12q",
            "bw h -a -s 8",
            "bw h -D 1 -n 1",
            "bw h -D 0",
            "bw h -n 0",
            "bw h -m 1500",
            "fast h",
            "bw h --plot f.svg",
            "bw h -q 0",
            "bw h -q 20000",
            "bw h --rate 0",
        ] {
            let words = std::iter::once("perf").chain(words.split_whitespace());
            assert!(Line::try_parse_from(words.clone()).is_err(), "{:?}", words.collect::<Vec<_>>());
        }
    }

    #[test]
    fn completions_come_in_time_for_the_depth_and_with_whole_lists() {
        assert_eq!(signals(128, 1), 16);
        assert_eq!(signals(8, 1), 2);
        assert_eq!(signals(1, 1), 1);
        assert_eq!(signals(128, 32), 32);
        assert_eq!(signals(64, 5), 15);
        for (depth, list) in [(128, 1), (4, 4), (7, 3), (1, 1), (1024, 64)] {
            let every = signals(depth, list);
            assert!(every.is_multiple_of(list) && every <= depth, "{depth} {list}");
        }
    }

    #[test]
    fn large_messages_are_fewer_by_default_and_never_few() {
        let asked = read(Verb::Write, "both h -a").unwrap();
        assert_eq!((asked.sizes[0], *asked.sizes.last().unwrap(), asked.sizes.len()), (2, 8 << 20, 23));
        assert_eq!(asked.step(2, false).length, Length::Messages(5000));
        assert_eq!(asked.step(8 << 20, false).length, Length::Messages(128));
        assert_eq!(asked.step(8 << 20, true).length, Length::Messages(100));
        assert_eq!(asked.step(8, true).length, Length::Messages(10_000));
        assert_eq!(read(Verb::Write, "bw h -D 0.5").unwrap().step(8, false).length, Length::Nanoseconds(500_000_000));
        let few = read(Verb::Write, "bw h -n 10").unwrap();
        assert_eq!(few.warmup(8, false).unwrap().length, Length::Messages(10));
        assert_eq!(read(Verb::Write, "bw h --warmup 0").unwrap().warmup(8, false), None);
    }
}
