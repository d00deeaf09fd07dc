//! What a dialogue plays on: nodes with ports, memory, queues and QPs, and the packets between them, in virtual time.
//!
//! Three stages implement [`Stage`]: the bare transport over vectors ([`crate::transport_stage`]), the NIC's engine over a
//! wire in memory ([`crate::engine_stage`]), and a Linux kernel in real time ([`crate::linux_stage`]). Objects are numbered in the order in which they are made.

use scalefabric_transport::Config;
use scalefabric_verbs::{
    AccessFlags, EventType, OpKind, QpAttr, QpAttrMask, QpType, SendFlags, VerbsError, WcStatus, WorkCompletion,
};
use scalefabric_wire::packet::Headers;
use scalefabric_wire::{Gid, PKey, Qpn, Srqn};

use crate::script::Queue;

/// A packet on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Packet {
    pub headers: Headers,
    pub payload: Vec<u8>,
    pub src: Gid,
    pub dst: Gid,
    /// Port that it leaves by; the wires of a script connect ports of the same number.
    pub port_num: u8,
    pub src_port: u16,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
    /// When it was sent, in ns.
    pub at: u64,
}

/// Where a region is and what its keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RegionInfo {
    pub addr: u64,
    pub len: u64,
    pub lkey: u32,
    pub rkey: u32,
}

/// A piece of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Piece {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A bind of a type 2 window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Bind {
    pub window: usize,
    /// Region, by its number on the stage; `None` unbinds.
    pub region: Option<usize>,
    pub addr: u64,
    pub length: u64,
    pub access: AccessFlags,
    /// The new rkey.
    pub rkey: u32,
}

/// A send WR with all names resolved.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct PlainSend {
    pub wr: u64,
    pub kind: OpKind,
    pub flags: SendFlags,
    pub pieces: Vec<Piece>,
    pub remote_addr: u64,
    pub rkey: u32,
    pub imm: u32,
    pub inv: u32,
    pub compare: u64,
    pub swap: u64,
    pub add: u64,
    /// FLUSH only.
    pub length: u32,
    pub placement: u8,
    pub whole_region: bool,
    /// Destination, QPN, Q_Key.
    pub ud: Option<(Gid, Qpn, u32)>,
    pub srqn: Option<Srqn>,
    pub bind: Option<Bind>,
}

/// A completion, and whether its event is a solicited one (where the stage can tell).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Done {
    pub wc: WorkCompletion,
    pub solicited: Option<bool>,
}

/// A QP or an SRQ, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Target {
    Qp(usize),
    Srq(usize),
}

/// To what an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Subject {
    Qp(usize),
    Srq(usize),
    /// Node (its device, one of its ports or CQs).
    Node(usize),
}

/// What a QP is made of.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct QpSpec {
    pub node: usize,
    pub pd: u32,
    pub qp_type: QpType,
    pub srq: Option<usize>,
    pub sig_all: bool,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    /// Entries of its CQs, if the script cares.
    pub cq: Option<u32>,
    pub config: Config,
}

/// A stage.
#[allow(missing_docs)]
pub trait Stage {
    /// `transport`, `engine` or `linux`.
    fn name(&self) -> &'static str;
    /// Refusals are judged by being one, not by their words: they are not ours.
    fn judges_errno_only(&self) -> bool {
        false
    }
    /// Requests to its own host are executed without packets, where that is possible: a packet of a script that is not there was not needed, and PSNs are those of the
    /// packets that there were.
    fn executes_by_itself(&self) -> bool {
        false
    }
    /// The node has our counters.
    fn counts(&self, _node: usize) -> bool {
        true
    }
    /// It is known that this event is never raised there: none is waited for, and one is a difference.
    fn never_raises(&self, _subject: Subject, _event: EventType) -> bool {
        false
    }
    /// Waits a little for what has not come yet; false when it will not come any more. Only a stage in real time waits.
    fn wait(&mut self, _attempt: u32) -> bool {
        false
    }
    fn add_node(&mut self, ports: &[Gid], pkeys: &[PKey], config: &Config) -> usize;
    fn add_region(&mut self, node: usize, pd: u32, bytes: &[u8], access: AccessFlags) -> Result<usize, String>;
    fn region(&self, region: usize) -> RegionInfo;
    fn read(&self, region: usize, offset: u64, length: usize) -> Result<Vec<u8>, String>;
    fn gone(&mut self, region: usize) -> Result<(), String>;
    fn dereg(&mut self, region: usize) -> Result<(), String>;
    fn add_window(&mut self, node: usize, pd: u32) -> Result<usize, String>;
    /// Its rkey with the low 8 bits replaced.
    fn window_rkey(&self, window: usize, tag: u8) -> u32;
    fn add_srq(&mut self, node: usize, pd: u32, xrc: bool, limit: u32) -> Result<usize, String>;
    fn srqn(&self, srq: usize) -> Srqn;
    fn arm(&mut self, srq: usize, limit: u32) -> Result<(), String>;
    fn add_qp(&mut self, spec: &QpSpec) -> Result<usize, String>;
    fn qpn(&self, qp: usize) -> Qpn;
    fn modify(&mut self, qp: usize, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError>;
    fn query(&self, qp: usize) -> QpAttr;
    fn destroy(&mut self, qp: usize) -> Result<(), String>;
    fn attach(&mut self, qp: usize, group: Gid) -> Result<(), String>;
    fn detach(&mut self, qp: usize, group: Gid) -> Result<(), String>;
    /// Nodes that have joined a group.
    fn members(&self, group: Gid) -> Vec<usize>;
    fn post_send(&mut self, qp: usize, wr: &PlainSend) -> Result<(), String>;
    fn post_recv(&mut self, target: Target, wr: u64, pieces: &[Piece]) -> Result<(), String>;
    /// Everything that wants to be sent now, with the node that sends it.
    fn turn(&mut self, out: &mut Vec<(usize, Packet)>);
    /// Gives packets to a node as one batch.
    fn deliver(&mut self, node: usize, packets: &[Packet]);
    fn now(&self) -> u64;
    /// When something happens by itself.
    fn next_deadline(&mut self) -> Option<u64>;
    /// Sets the time and runs what is due at it.
    fn set_now(&mut self, ns: u64);
    fn poll(&mut self, target: Target, queue: Queue) -> Vec<Done>;
    fn events(&mut self) -> Vec<(Subject, EventType)>;
    fn counter(&self, node: usize, label: &str) -> u64;
    fn set_pkey(&mut self, node: usize, port: u8, index: u16, value: PKey);
    /// `down`, `up`, `remove_gid`, `add_gid`.
    fn change_port(&mut self, node: usize, port: u8, change: &str) -> Result<(), String>;
    fn fail(&mut self, qp: usize, status: WcStatus) -> Result<(), String>;
    fn fail_device(&mut self, node: usize) -> Result<(), String>;
}
