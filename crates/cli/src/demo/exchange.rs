//! What the two processes of a demo tell each other over TCP: who they are, their queue pairs, what comes next, and what
//! arrived. RDMA itself has no way to find a peer; this is the usual one. One JSON object a line.
//!
//! The order is fixed: `Hello` both ways; then for each queue pair `QueuePair` both ways and `Ready` both ways (the second
//! barrier: nobody sends before both are in RTS); then `Step`, `Go`, `Sent`, `Verdict` for each step; at the end `Finish`.

use crate::demo::pattern::Mismatch;
use crate::demo::step::{Step, Transport};
use crate::failure::Failure;
use crate::line_link::{Line, LineLink};
use serde::{Deserialize, Serialize};

/// Version of this exchange. Two different ones refuse each other.
pub const VERSION: u32 = 1;

/// One line of the exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// Version of the exchange, and bytes of memory that each side registers (the initiator decides).
    Hello { version: u32, region_bytes: u64 },
    /// A queue pair to connect to.
    QueuePair(PeerInfo),
    /// The queue pair is in RTS.
    Ready,
    /// What comes next.
    Step(Step),
    /// The target is prepared.
    Go,
    /// The initiator has sent everything.
    Sent,
    /// What the target found.
    Verdict(Verdict),
    /// Nothing more comes.
    Finish,
    /// One side cannot go on.
    Trouble(String),
}

/// All that one needs to know of a peer's queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// RC, UC or UD.
    pub transport: Transport,
    /// Queue pair number.
    pub qpn: u32,
    /// PSN of its first packet.
    pub psn: u32,
    /// GID as text.
    pub gid: String,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Remote key of its region.
    pub rkey: u32,
    /// Address of the first byte of its region.
    pub addr: u64,
    /// Bytes of its region.
    pub length: u64,
}

/// What the target found after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Messages that arrived whole.
    pub arrived: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// The first byte that was wrong.
    pub mismatch: Option<Mismatch>,
}

/// The connection between the two processes.
pub type Link = LineLink<Message>;

impl Line for Message {
    const PROGRAM: &'static str = "sfab demo";
    const LONGEST: usize = 64 * 1024;

    fn trouble(&self) -> Option<&str> {
        if let Self::Trouble(what) = self { Some(what) } else { None }
    }
}

/// The message was not the one that had to come.
pub fn unexpected(expected: &str, message: &Message) -> Failure {
    Failure::failed(format!("the exchange is out of step: expected {expected}, got {message:?}"))
}
