//! What the two ends of `sfab perf` tell each other over TCP, one JSON value a line. The client decides everything and the server checks it,
//! so that no option has to be given twice.
//!
//! The order is fixed: `Hello` both ways; `Plan`; `Side` from the server, then from the client; `Ready` both ways, when the queue pairs are in
//! RTS; then for each step `Step`, `Go`, `Done`, `Result`; at the end `Finish`.

use crate::demo::step::Transport;
use crate::failure::Failure;
use crate::line_link::{Line, LineLink};
use clap::ValueEnum;
use scalefabric_verbs::{OpKind, QpType};
use serde::{Deserialize, Serialize};

/// Version of this exchange. Two different ones refuse each other.
pub const VERSION: u32 = 2;

/// Version of the program.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where a server listens unless told otherwise: perftest's port.
pub const PORT: u16 = 18515;

/// The connection between the two.
pub type Link = LineLink<Message>;

/// Largest message, bytes.
pub const LARGEST: u32 = 1 << 30;

/// Most queue pairs.
pub const MOST_QPS: u32 = 16_384;

/// Most requests in a send or receive queue.
pub const DEEPEST: u32 = 65_536;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
}

/// What is measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Bandwidth and message rate
    Bw,
    /// Latency
    Lat,
    /// Bandwidth, then latency
    Both,
}

impl Verb {
    /// As a command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
            Self::FetchAdd => "atomic fadd",
            Self::CompareSwap => "atomic cas",
        }
    }

    /// In the contract.
    pub const fn kind(self) -> OpKind {
        match self {
            Self::Write => OpKind::Write,
            Self::Read => OpKind::Read,
            Self::Send => OpKind::Send,
            Self::FetchAdd => OpKind::FetchAdd,
            Self::CompareSwap => OpKind::CompareSwap,
        }
    }

    /// On one word of 8 bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// The answer comes back to the one who asked: a completion is there and back.
    pub const fn is_round_trip(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }
}

/// The type of queue pair of a transport.
pub const fn qp_type(transport: Transport) -> QpType {
    match transport {
        Transport::Rc => QpType::Rc,
        Transport::Uc => QpType::Uc,
        Transport::Ud => QpType::Ud,
    }
}

/// What the whole run needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The operation.
    pub verb: Verb,
    /// The service.
    pub transport: Transport,
    /// Bytes of the largest message.
    pub largest: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Sends outstanding on each.
    pub tx_depth: u32,
    /// Receives posted on each.
    pub rx_depth: u32,
    /// Requests posted with one call.
    pub post_list: u32,
    /// One send in so many makes a completion.
    pub signal_every: u32,
    /// Messages up to this go inline.
    pub inline_bytes: u32,
    /// Both ends send.
    pub both_directions: bool,
    /// Whoever waits sleeps on the completion channel.
    pub events: bool,
    /// Path MTU, if not what both ports have.
    pub path_mtu: Option<u32>,
    /// Queue pairs are connected by rdma_cm.
    pub rdma_cm: bool,
    /// Whoever receives copies out what arrived (latency of WRITEs and SENDs).
    pub reads_data: bool,
    /// Whoever has sent takes the completion before looking for the answer (latency of WRITEs and SENDs).
    pub waits_for_completion: bool,
    /// Where the memory comes from.
    pub memory: Memory,
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// The device allocates it
    #[default]
    Device,
    /// The program brings it, and registers it
    Heap,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Latency, else bandwidth.
    pub is_latency: bool,
    /// Bytes of a message.
    pub size: u32,
    /// When it is over.
    pub length: Length,
}

/// When a measurement is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// After so many messages on each queue pair.
    Messages(u64),
    /// After this time, ns.
    Nanoseconds(u64),
}

/// One end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideInfo {
    /// Its device.
    pub device: String,
    /// Port in use.
    pub port_num: u8,
    /// GID in use, as an address.
    pub gid: String,
    /// Its index.
    pub gid_index: u8,
    /// Path MTU of the port, bytes.
    pub path_mtu: u32,
    /// Inline bytes that its queue pairs have.
    pub inline_bytes: u32,
    /// Key of its memory.
    pub rkey: u32,
    /// Address of its memory.
    pub addr: u64,
    /// Half of an area: what is sent lies in the first half, what arrives in the second.
    pub stride: u64,
    /// Areas; queue pair `n` uses area `n % areas`.
    pub areas: u32,
    /// QPN and first PSN of each queue pair.
    pub qps: Vec<(u32, u32)>,
    /// Where its communication manager listens.
    pub cm_port: Option<u16>,
}

/// What one end did in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Messages sent and completed.
    pub messages: u64,
    /// Time from the first post to the last completion, ns.
    pub elapsed_ns: u64,
    /// Messages a second in the best window.
    pub peak: f64,
}

/// What the server says after a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarResult {
    /// What it sent.
    pub sent: Sent,
    /// Messages that made a receive completion.
    pub arrived: u64,
    /// Processor time of its process, ns.
    pub cpu_ns: u64,
    /// Resident memory of its process, bytes.
    pub rss_bytes: u64,
    /// It served others at the same time: the processor time is theirs, too.
    pub is_shared: bool,
}

/// One line of the exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Versions of the exchange and of the program.
    Hello { exchange: u32, version: String },
    /// What the client wants.
    Plan(Plan),
    /// An end that can be connected to.
    Side(SideInfo),
    /// The queue pairs are in RTS.
    Ready,
    /// What comes next.
    Step(Step),
    /// The server is prepared.
    Go,
    /// The client has sent everything; so many messages it was.
    Done { messages: u64 },
    /// What the server did.
    Result(FarResult),
    /// Nothing more comes.
    Finish,
    /// One side cannot go on.
    Trouble(String),
}

impl Line for Message {
    const PROGRAM: &'static str = "sfab perf";
    const LONGEST: usize = 1 << 20;

    fn trouble(&self) -> Option<&str> {
        if let Self::Trouble(what) = self { Some(what) } else { None }
    }
}

/// The greeting of this program.
pub fn hello() -> Message {
    Message::Hello { exchange: VERSION, version: PROGRAM_VERSION.to_owned() }
}

/// Checks the other end's greeting; gives its version.
pub fn greeted(message: Message) -> Result<String, Failure> {
    match message {
        Message::Hello { exchange: VERSION, version } => Ok(version),
        Message::Hello { exchange, version } => Err(Failure::failed(format!(
            "the other end is sfab {version} and speaks version {exchange} of the exchange, this one is sfab {PROGRAM_VERSION} and speaks \
             {VERSION}: use one version of sfab on both ends"
        ))),
        other => Err(unexpected("a greeting", &other)),
    }
}

/// The message was not the one that had to come.
pub fn unexpected(expected: &str, message: &Message) -> Failure {
    Failure::failed(format!("the exchange is out of step: expected {expected}, got {message:?}"))
}

impl Plan {
    /// Says what is wrong with it, in the words of the command line. Who receives a plan trusts nothing in it.
    pub fn check(&self) -> Result<(), String> {
        let Self { verb, transport, .. } = *self;
        if !scalefabric_verbs::op_allowed(qp_type(transport), verb.kind()) {
            let has = match transport {
                Transport::Ud => "UD has SENDs only",
                _ => "UC has SENDs and WRITEs, READs and atomics need RC",
            };
            return Err(format!("--transport {}: {has}", transport.name().to_lowercase()));
        }
        let within = [
            ("-s", self.largest, 1, LARGEST),
            ("-q", self.qps, 1, MOST_QPS),
            ("-t", self.tx_depth, 1, DEEPEST),
            ("-r", self.rx_depth, 1, DEEPEST),
            ("-l", self.post_list, 1, self.tx_depth),
            ("-Q", self.signal_every, 1, self.tx_depth),
            ("-I", self.inline_bytes, 0, 1 << 16),
        ];
        for (name, value, least, most) in within {
            if !(least..=most).contains(&value) {
                let hint = if matches!(name, "-l" | "-Q") { ", the depth of the send queue (-t)" } else { "" };
                return Err(format!("{name} {value} is out of range {least} to {most}{hint}"));
            }
        }
        if !self.signal_every.is_multiple_of(self.post_list) {
            return Err(format!("-Q {} is no multiple of -l {}", self.signal_every, self.post_list));
        }
        if verb.is_atomic() && self.largest != 8 {
            return Err(format!("-s {}: atomics work on 8 bytes", self.largest));
        }
        if verb.is_round_trip() && self.inline_bytes > 0 {
            return Err(format!("-I {}: a {} sends no data that could be inline", self.inline_bytes, verb.name()));
        }
        if self.rdma_cm && transport != Transport::Rc {
            return Err(format!("-R connects RC queue pairs, not {}: leave out -R", transport.name()));
        }
        if self.path_mtu.is_some_and(|bytes| scalefabric_verbs::Mtu::from_bytes(bytes).is_none()) {
            return Err("-m: a path MTU is 256, 512, 1024, 2048 or 4096".to_owned());
        }
        Ok(())
    }

    /// Checks a step of this plan.
    pub fn check_step(&self, step: &Step) -> Result<(), String> {
        if step.size == 0 || step.size > self.largest {
            return Err(format!("a step of {} bytes in a plan of at most {}", step.size, self.largest));
        }
        if step.is_latency && self.events && self.verb == Verb::Write {
            return Err("-e: the latency of WRITEs is seen by polling memory, which makes no event".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn plan() -> Plan {
        Plan {
            verb: Verb::Write,
            transport: Transport::Rc,
            largest: 65_536,
            qps: 1,
            tx_depth: 128,
            rx_depth: 512,
            post_list: 1,
            signal_every: 16,
            inline_bytes: 0,
            both_directions: false,
            events: false,
            path_mtu: None,
            rdma_cm: false,
            reads_data: false,
            waits_for_completion: false,
            memory: Memory::Device,
        }
    }

    #[test]
    fn a_plan_that_cannot_be_is_refused_in_words_of_the_command_line() {
        let cases: &[(Plan, &str)] = &[
            (Plan { verb: Verb::Read, transport: Transport::Uc, ..plan() }, "need RC"),
            (Plan { verb: Verb::Write, transport: Transport::Ud, ..plan() }, "UD has SENDs only"),
            (Plan { verb: Verb::FetchAdd, ..plan() }, "8 bytes"),
            (Plan { qps: 0, ..plan() }, "-q 0"),
            (Plan { qps: MOST_QPS + 1, ..plan() }, "-q"),
            (Plan { tx_depth: 0, ..plan() }, "-t 0"),
            (Plan { tx_depth: 8, post_list: 9, signal_every: 9, ..plan() }, "-l 9"),
            (Plan { tx_depth: 8, signal_every: 16, ..plan() }, "-Q 16"),
            (Plan { post_list: 3, signal_every: 16, ..plan() }, "no multiple"),
            (Plan { verb: Verb::Read, inline_bytes: 64, ..plan() }, "-I 64"),
            (Plan { rdma_cm: true, transport: Transport::Uc, ..plan() }, "-R"),
            (Plan { path_mtu: Some(1500), ..plan() }, "-m"),
            (Plan { largest: 0, ..plan() }, "-s 0"),
        ];
        assert_eq!(plan().check(), Ok(()));
        for (plan, word) in cases {
            let said = plan.check().expect_err("refused");
            assert!(said.contains(word), "{word}: {said}");
        }
    }

    #[test]
    fn a_step_beyond_its_plan_is_refused() {
        let step = |size| Step { is_latency: true, size, length: Length::Messages(1) };
        assert_eq!(plan().check_step(&step(65_536)), Ok(()));
        assert!(plan().check_step(&step(65_537)).is_err());
        assert!(plan().check_step(&step(0)).is_err());
        assert!(Plan { events: true, ..plan() }.check_step(&step(8)).is_err());
    }

    #[test]
    fn another_version_is_told_with_both_versions() {
        assert_eq!(greeted(hello()).unwrap(), PROGRAM_VERSION);
        let other = Message::Hello { exchange: VERSION + 1, version: "9.8.7".to_owned() };
        let said = greeted(other).unwrap_err().to_string();
        assert!(said.contains("9.8.7") && said.contains(PROGRAM_VERSION), "{said}");
        assert!(greeted(Message::Go).is_err());
    }

    #[test]
    fn messages_survive_the_way_over_a_line() {
        let side = SideInfo {
            device: "sflo".to_owned(),
            port_num: 1,
            gid: "127.0.0.1".to_owned(),
            gid_index: 1,
            path_mtu: 4096,
            inline_bytes: 64,
            rkey: 7,
            addr: 1 << 40,
            stride: 4096,
            areas: 2,
            qps: vec![(1, 2), (3, 4)],
            cm_port: None,
        };
        let result = FarResult { arrived: 3, cpu_ns: 4, ..FarResult::default() };
        for message in [hello(), Message::Plan(plan()), Message::Side(side), Message::Result(result)] {
            let line = serde_json::to_string(&message).unwrap();
            assert!(!line.contains('\n'));
            let back: Message = serde_json::from_str(&line).unwrap();
            assert_eq!(serde_json::to_string(&back).unwrap(), line);
        }
    }

    #[test]
    fn the_most_queue_pairs_fit_a_line() {
        let pair = serde_json::to_string(&(0xff_ffffu32, 0xff_ffffu32)).unwrap();
        assert!((pair.len() + 1) * (MOST_QPS as usize) < Message::LONGEST);
    }
}
