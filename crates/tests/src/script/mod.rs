//! The dialogue language: what a script says, as plain data. Parsing is in [`parse`], running in [`crate::runner`].
//!
//! A script is a play in lines. It sets a scene (nodes, memory, QPs), lets somebody act (post, modify, let time pass) and
//! then says, packet by packet, what goes over the wire and what completes. Whatever happens that the script does not say
//! is an error: "nothing more" is the rule, not a wish. The language is described in `crates/tests/scripts/README.md`.

pub mod field;
pub mod parse;
pub mod words;

pub use field::{Field, Fill, Ref};

use scalefabric_verbs::{AccessFlags, OpKind, QpState, QpType, WcOpcode, WcStatus};
use scalefabric_wire::opcode::Opcode;

/// A whole script.
#[derive(Clone, Debug)]
pub struct Script {
    /// File name without folder and extension.
    pub name: String,
    /// The first comment line: what it is about, a sentence.
    pub title: String,
    /// What it claims to prove, from `# proves:` lines; each is checked against what really happened.
    pub claims: Vec<Claim>,
    /// Runs on the bare transport.
    pub on_transport: bool,
    /// Runs on the engine.
    pub on_engine: bool,
    /// The statements with their line numbers.
    pub statements: Vec<(usize, Statement)>,
}

/// One thing that a script claims to prove.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// `opcode`, `wc`, `event`, `transition`, `drop`, `object` or `rule`.
    pub kind: String,
    /// Which.
    pub what: String,
    /// Where it is claimed.
    pub line: usize,
}

/// What happens to a packet on its way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fate {
    /// It is never delivered.
    pub lost: bool,
    /// It is delivered twice.
    pub twice: bool,
    /// A switch marks it Congestion Experienced.
    pub ce: bool,
    /// It waits under this name until `deliver`.
    pub held: Option<String>,
    /// Fields that are changed on the way.
    pub set: Vec<Field>,
}

/// A piece of local memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Region, or a raw key.
    pub base: SliceBase,
    /// Bytes from the region's start (or the raw address).
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// What a slice is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceBase {
    /// A region by name.
    Region(String),
    /// A made-up lkey; the offset is a whole address.
    Key(u32),
}

/// Attributes as `key=value` pairs: resolved by the runner, since they may name other QPs.
pub type Pairs = Vec<(String, String)>;

/// A send WR.
#[derive(Clone, Debug, Default)]
pub struct SendSpec {
    /// wr_id.
    pub wr: u64,
    /// Buffers.
    pub local: Vec<Slice>,
    /// Peer memory.
    pub to: Option<Ref>,
    /// Another rkey than that of `to`.
    pub rkey: Option<Ref>,
    /// Immediate.
    pub imm: Option<u32>,
    /// Key to invalidate.
    pub inv: Option<Ref>,
    /// Atomics and FLUSH.
    pub compare: u64,
    /// Swap value.
    pub swap: u64,
    /// Value to add.
    pub add: u64,
    /// FLUSH length.
    pub length: u32,
    /// FLUSH placement: 1 global, 2 persistent, 3 both.
    pub placement: u8,
    /// FLUSH of the whole region.
    pub whole_region: bool,
    /// UD: QP, ghost or group that it goes to.
    pub ah: Option<String>,
    /// UD: Q_Key.
    pub qkey: Option<u32>,
    /// UD: another destination QPN than `ah`'s.
    pub dest: Option<u32>,
    /// XRC: SRQ by name or number.
    pub srqn: Option<Ref>,
    /// Window that is bound.
    pub window: Option<String>,
    /// Region that it is bound to.
    pub bind_to: Option<Slice>,
    /// Rights of the window.
    pub access: Option<AccessFlags>,
    /// Low 8 bits of the new rkey.
    pub tag: u8,
    /// Flags.
    pub unsignaled: bool,
    /// FENCE.
    pub fence: bool,
    /// SOLICITED.
    pub solicited: bool,
    /// INLINE.
    pub inline: bool,
}

/// What a completion must look like.
#[derive(Clone, Debug, Default)]
pub struct WcSpec {
    /// wr_id.
    pub wr: u64,
    /// Status.
    pub status: Option<WcStatus>,
    /// Opcode.
    pub opcode: Option<WcOpcode>,
    /// byte_len.
    pub len: Option<u32>,
    /// Immediate; `Some(None)`: there is none.
    pub imm: Option<u32>,
    /// Invalidated rkey.
    pub inv: Option<Ref>,
    /// Source QP.
    pub src_qp: Option<Ref>,
    /// GRH flag.
    pub grh: Option<bool>,
    /// Solicited event.
    pub solicited: Option<bool>,
}

/// Which queue of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Queue {
    /// Send.
    Send,
    /// Receive.
    Recv,
}

/// One line of a script.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Statement {
    /// `config advertise_credits=false …`: for all QPs made after it.
    Config { pairs: Pairs },
    /// `node a [v6] [pkeys=0xffff,0x8001]`.
    Node { name: String, v6: bool, pkeys: Vec<u16> },
    /// `mr m node=a len=64 [fill=count] [access=…] [pd=2]`.
    Region { name: String, node: String, len: u64, fill: Fill, access: AccessFlags, pd: u32 },
    /// `mw w node=a [pd=2]`: a type 2 window.
    Window { name: String, node: String, pd: u32 },
    /// `srq S node=b [xrc] [limit=2] [pd=1]`.
    Srq { name: String, node: String, xrc: bool, limit: u32, pd: u32 },
    /// `qp A rc [node=a] …`.
    Qp { name: String, node: String, qp_type: QpType, srq: Option<String>, pd: u32, pairs: Pairs },
    /// `ghost G [node=g] qpn=0x99 psn=1`: a peer that the script plays.
    Ghost { name: String, node: String, qpn: u32, psn: u32, v6: bool },
    /// `connect A B`: both to RTS.
    Connect { a: String, b: String },
    /// `up A`: a UD QP to RTS.
    Up { qp: String },
    /// `modify A state=SQD …` or `… refused "text"`.
    Modify { qp: String, pairs: Pairs, refused: Option<String> },
    /// `state A RTS`.
    State { qp: String, state: QpState },
    /// `query A key=value …`.
    Query { qp: String, pairs: Pairs },
    /// `post A send wr=1 …` or `… refused "text"`.
    Post { qp: String, kind: OpKind, spec: Box<SendSpec>, refused: Option<String> },
    /// `recv B wr=1 local=m:64`.
    Recv { target: String, wr: u64, local: Vec<Slice>, refused: Option<String> },
    /// `A -> B: RC SEND ONLY psn=1 | lost`.
    Packet { from: String, to: String, opcode: Opcode, fields: Vec<Field>, at: Option<u64>, fate: Fate },
    /// `inject A -> B: …`.
    Inject { from: String, to: String, opcode: Opcode, fields: Vec<Field> },
    /// `deliver NAME`.
    Deliver { name: String },
    /// `batch` … `end`: one end of batch for all that is delivered between.
    Batch { begin: bool },
    /// `at 5ms` or `at +5ms`.
    At { ns: u64, relative: bool },
    /// `nothing`.
    Nothing,
    /// `silent A`: A has sent nothing that was not mentioned.
    Silent { qp: String },
    /// `wc A send wr=1 SUCCESS …`.
    Completion { target: String, queue: Queue, spec: WcSpec },
    /// `event A COMM_EST`.
    Event { target: String, event: scalefabric_verbs::EventType },
    /// `memory m+4 "bytes"` or `memory m+4 = n+0:16`.
    Memory { at: Ref, expect: Expect },
    /// `count a label 2`.
    Count { node: String, label: String, value: u64 },
    /// `pkey a port=1 index=0 0x8001`.
    PKey { node: String, port: u8, index: u16, value: u16 },
    /// `port a down port=1`: down, up, remove_gid, add_gid.
    PortChange { node: String, port: u8, change: String },
    /// `poll A off`: its completions stay in their CQs until `poll A on`.
    Poll { qp: String, on: bool },
    /// `fail_device a`.
    FailDevice { node: String },
    /// `group M 239.1.2.3`: a name for a multicast group.
    Group { name: String, gid: scalefabric_wire::Gid },
    /// `attach B M`, `detach B M`.
    Attach { qp: String, group: String, join: bool, refused: Option<String> },
    /// `gone m`: the memory goes away.
    Gone { region: String },
    /// `dereg m`.
    Dereg { region: String },
    /// `fail A STATUS`.
    Fail { qp: String, status: WcStatus },
    /// `arm S limit=2`.
    Arm { srq: String, limit: u32 },
    /// `destroy A`.
    Destroy { qp: String, refused: Option<String> },
}

/// What memory must hold.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Expect {
    Text(Vec<u8>),
    Number(u64),
    Zeros(usize),
    Slice(Slice),
}
