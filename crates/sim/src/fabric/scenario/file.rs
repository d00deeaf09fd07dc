//! The shape of a scenario file: which tables and fields there are. Unknown fields are refused with the list of known ones; what the values mean together is
//! checked in [`super`].

use super::quantity::{Size, Speed, Time};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// What is asked, in one sentence.
    pub question: Option<String>,
    /// Everything that is left to chance follows from it. Default 1.
    pub seed: Option<u64>,
    /// The run ends then at the latest; default: when everything is done, at most 10 s of simulated time.
    pub until: Option<Time>,
    /// What is assumed where the file says nothing: "roce" (default) or "reference".
    pub model: Option<ModelName>,
    /// Which fabric.
    pub topology: TopologyTable,
    /// Changes of hosts.
    #[serde(default)]
    pub host: HostTable,
    /// Changes of switches.
    #[serde(default)]
    pub switch: SwitchTable,
    /// Congestion control.
    #[serde(default)]
    pub congestion: CongestionTable,
    /// Traffic.
    pub workload: Vec<WorkloadTable>,
    /// Links that differ from the others.
    #[serde(default)]
    pub link: Vec<LinkTable>,
    /// What goes wrong, and when.
    #[serde(default)]
    pub fault: Vec<FaultTable>,
    /// What is recorded.
    #[serde(default)]
    pub output: OutputTable,
    /// Values to try: `"table.field" = [values]`; all combinations run.
    #[serde(default)]
    pub sweep: BTreeMap<String, Vec<toml::Value>>,
}

/// Names of models.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ModelName {
    /// [`super::super::model::Model::roce`].
    Roce,
    /// [`super::super::model::Model::reference`].
    Reference,
}

/// Kinds of fabrics.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum TopologyKind {
    Star,
    Dumbbell,
    LeafSpine,
    FatTree,
    Rails,
    Pods,
    Csv,
}

/// The fabric.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyTable {
    /// Which kind.
    pub kind: TopologyKind,
    /// Star, dumbbell: hosts.
    pub hosts: Option<u32>,
    /// Leaf-spine: leaf switches. Pods: leaf switches of a pod.
    pub leaves: Option<u32>,
    /// Leaf-spine, pods: hosts on each leaf.
    pub hosts_per_leaf: Option<u32>,
    /// Leaf-spine, rails: spine switches. Pods: spine switches of a plane.
    pub spines: Option<u32>,
    /// Pods: how many.
    pub pods: Option<u32>,
    /// Pods: planes, which are also the fabric switches of a pod, default 4.
    pub planes: Option<u32>,
    /// Fat tree: ports of a switch, even.
    pub k: Option<u32>,
    /// Rails: servers.
    pub servers: Option<u32>,
    /// Rails: NICs of a server, default 8.
    pub rails: Option<u32>,
    /// Rails: servers that share rail switches, default all.
    pub servers_per_group: Option<u32>,
    /// CSV: the table, relative to this file.
    pub file: Option<String>,
    /// Rate of hosts' links, default "100G".
    pub rate: Option<Speed>,
    /// Rate of links between switches, default as the hosts'.
    pub up_rate: Option<Speed>,
    /// Delay of hosts' links, default "1us".
    pub delay: Option<Time>,
    /// Delay of links between switches, default as the hosts'.
    pub up_delay: Option<Time>,
    /// Instead of `delay`: length of hosts' cables, 5 ns a metre, and `port_delay` of electronics.
    pub cable_m: Option<f64>,
    /// Instead of `up_delay`: the same between switches.
    pub up_cable_m: Option<f64>,
    /// What a port adds to a cable, default "300ns".
    pub port_delay: Option<Time>,
}

/// Names of recoveries.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum RecoveryName {
    GoBackN,
    Selective,
}

/// Kinds of hosts.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum HostKind {
    Light,
    Engine,
}

/// Changes of hosts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTable {
    /// "light" (default), or "engine": the NIC that ships, with real bytes, for small fabrics.
    pub kind: Option<HostKind>,
    /// Payload of a full packet.
    pub mtu: Option<u32>,
    /// Headers of a data packet on the wire.
    pub header_bytes: Option<u32>,
    /// Packets that one ACK answers.
    pub ack_every: Option<u32>,
    /// Retransmission timer; "0ns": none.
    pub timeout: Option<Time>,
    /// Timeouts in a row before a sender gives up.
    pub retry_cnt: Option<u32>,
    /// After loss.
    pub recovery: Option<RecoveryName>,
    /// Selective: packets that may overtake one before it counts as lost.
    pub reorder: Option<u32>,
    /// CNPs of their own, at most one in this time; "0ns": a flag in the ACK.
    pub cnp_interval: Option<Time>,
    /// Most bytes in flight of a QP; "0B": no limit.
    pub flight_limit: Option<Size>,
    /// Most that a QP sends, on the wire; "0G": as fast as its port.
    pub qp_rate: Option<Speed>,
    /// Cut serialisation to whole nanoseconds, as ns-3.17 does.
    pub ns3_quantum: Option<bool>,
}

/// Names of balances.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum BalanceName {
    Hash,
    Spray,
    Adaptive,
}

/// Changes of switches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchTable {
    /// Buffer of each switch.
    pub buffer: Option<Size>,
    /// Priorities that PFC protects; []: none.
    pub pfc: Option<Vec<u8>>,
    /// Alpha of lossless ingress ports.
    pub alpha: Option<f64>,
    /// Alpha of lossy egress queues.
    pub lossy_alpha: Option<f64>,
    /// Headroom of each port and priority; instead of what rate and delay ask for.
    pub headroom: Option<Size>,
    /// Bytes below the threshold at which a pause ends.
    pub resume_below: Option<Size>,
    /// Quanta of a pause; 0: until RESUME.
    pub quanta: Option<u16>,
    /// PFC watchdog; "0ns": none.
    pub watchdog: Option<Time>,
    /// ECN on or off.
    pub ecn: Option<bool>,
    /// ECN: no mark up to here.
    pub kmin: Option<Size>,
    /// ECN: every packet from here on.
    pub kmax: Option<Size>,
    /// ECN: probability just below `kmax`.
    pub pmax: Option<f64>,
    /// ECN: thresholds are those of 25 Gb/s and grow with the rate.
    pub ecn_scaled: Option<bool>,
    /// Strict priorities.
    pub strict: Option<Vec<u8>>,
    /// Weights of the eight priorities.
    pub weights: Option<Vec<u8>>,
    /// Among ways.
    pub balance: Option<BalanceName>,
    /// From a failed link to new ways.
    pub reconvergence: Option<Time>,
}

/// Congestion control.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CongestionTable {
    /// A profile of the transport, default "dcqcn".
    pub algorithm: Option<String>,
    /// Its parameters, by the transport's names.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
}

/// Kinds of traffic.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum WorkloadKind {
    Incast,
    Permutation,
    AllToAll,
    AllReduce,
    OpenLoop,
    Storage,
    Csv,
}

/// Names of shapes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum ShapeName {
    Ring,
    Tree,
}

/// Traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadTable {
    /// Which kind.
    pub kind: WorkloadKind,
    /// Begins then, default 0.
    pub start: Option<Time>,
    /// Priority of its packets, default 3.
    pub priority: Option<u8>,
    /// Bytes of a flow, a message, or of an AllReduce.
    pub bytes: Option<Size>,
    /// Incast: senders, default all.
    pub senders: Option<u32>,
    /// Incast: receiver, default the last host.
    pub to: Option<u32>,
    /// All-to-all, AllReduce: hosts that take part (the first ones), default all.
    pub members: Option<u32>,
    /// All-to-all: messages that a host has open, default 4.
    pub concurrent: Option<u32>,
    /// AllReduce: "ring" (default) or "tree".
    pub shape: Option<ShapeName>,
    /// AllReduce: buckets, default 1.
    pub buckets: Option<u32>,
    /// AllReduce: buckets under way at once, default 1.
    pub overlap: Option<u32>,
    /// AllReduce: channels, default 1; on rails: one a rail.
    pub channels: Option<u32>,
    /// AllReduce: how often, default 1.
    pub iterations: Option<u32>,
    /// AllReduce by tree: bytes of a piece, default 512 KiB.
    pub piece: Option<Size>,
    /// AllReduce: members in the order of a shuffle, so that neighbours of the ring are anywhere. Default false.
    pub shuffled: Option<bool>,
    /// Open loop, storage: part of the hosts' links.
    pub load: Option<f64>,
    /// Open loop, storage: flows begin for so long.
    pub duration: Option<Time>,
    /// Open loop, storage: "web-search", "fb-hadoop", "ali-storage", or a table bytes,percent.
    pub sizes: Option<String>,
    /// Storage: clients (the first hosts), default half.
    pub clients: Option<u32>,
    /// Storage: part of the operations that read, default 0.7.
    pub reads: Option<f64>,
    /// CSV: the table src,dst,size_bytes,start_ns, relative to this file.
    pub file: Option<String>,
}

/// A link that differs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTable {
    /// The link of this host …
    pub host: Option<u32>,
    /// … or the link between this node …
    pub a: Option<u32>,
    /// … and this one (switches are numbered after the hosts).
    pub b: Option<u32>,
    /// Rate.
    pub rate: Option<Speed>,
    /// Delay.
    pub delay: Option<Time>,
    /// Part of the packets that get lost, 0 to 1.
    pub loss: Option<f64>,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum FaultKind {
    LinkDown,
    LinkUp,
    Loss,
    SlowHost,
    PfcStorm,
}

/// Something that goes wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultTable {
    /// Which kind.
    pub kind: FaultKind,
    /// When.
    pub at: Time,
    /// For how long; default: to the end.
    pub duration: Option<Time>,
    /// The host, or the link of the host.
    pub host: Option<u32>,
    /// One end of the link …
    pub a: Option<u32>,
    /// … and the other.
    pub b: Option<u32>,
    /// Slow host: what it takes in.
    pub rate: Option<Speed>,
    /// Loss: part of the packets.
    pub loss: Option<f64>,
    /// Storm: priority, default 3.
    pub priority: Option<u8>,
}

/// What is recorded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTable {
    /// Queues, rates and fairness each so often, default "10us".
    pub sample: Option<Time>,
}
