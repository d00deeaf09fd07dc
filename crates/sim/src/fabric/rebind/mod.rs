//! Rebinding of QPs between ports: what a ring AllReduce gains if QPs leave ports above 70 % utilisation, on 8 nodes to thousands. [`cluster`] is the fabric with
//! the QPs and the ways that each may take; [`rule`] asks the balancing rule that the control plane runs; [`packets`] runs both bindings packet by packet, and
//! [`lockstep`] computes what they come to if all QPs of the rings go at the pace of the slowest; [`table`] sets them beside what was reported. Why this fabric: docs/decisions/rebinding.md.

pub mod cluster;
pub mod lockstep;
pub mod packets;
pub mod rule;
pub mod table;

use scalefabric_fabric::balance::Policy;

/// What was reported, without a method: nodes, static, moved, in Gb/s over all nodes.
pub const REPORTED: [(u32, f64, f64); 3] = [(8, 56.0, 58.0), (32, 182.0, 210.0), (128, 412.0, 632.0)];

/// How far the gain may be from the reported one, in per cent of static, and the rates from theirs.
pub const GAIN_TOLERANCE_PERCENT: f64 = 5.0;
/// See [`GAIN_TOLERANCE_PERCENT`].
pub const RATE_TOLERANCE_PERCENT: f64 = 10.0;

/// Which UDP source port a QP has that nobody moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticPath {
    /// The same for all: QPs between two ports share a path, as under mlx5 before Linux 5.8.
    Shared,
    /// One of its own, from QP numbers.
    Own,
}

/// Which port of its node a QP is on that nobody moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticPort {
    /// By a hash of the QP, as RoCE over a bond.
    Hashed,
    /// In turn.
    InTurn,
}

/// Everything that a run follows from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Nodes of the ring, each with a NIC of two ports; a multiple of 8, and above 32 of 32.
    pub nodes: u32,
    /// Placement, binding and hashes follow from it.
    pub seed: u64,
    /// QPs from each node to its neighbour; each is a ring of its own. Default 8. More: the binding evens itself out.
    pub qps: u32,
    /// Most that a QP sends, payload, bits a second. Default 1.6 Gb/s. More: links are full whatever the binding.
    pub qp_bps: u64,
    /// Spine switches of a plane that the job's share of a pod reaches. Default 2: 2:1. More: less oversubscription.
    pub spines: u32,
    /// Where members of the ring are: anywhere, or in the order of nodes, so that few QPs leave a rack.
    pub shuffled: bool,
    /// Ports of QPs that nobody moved.
    pub port: StaticPort,
    /// Paths of QPs that nobody moved.
    pub path: StaticPath,
    /// Bytes of a message of the ring, at least; a bucket is this times nodes times QPs, or `bucket_bytes` if that is more.
    pub message_bytes: u64,
    /// Bytes of a bucket, at least.
    pub bucket_bytes: u64,
    /// Congestion control, by the transport's name.
    pub algorithm: String,
    /// The rule's thresholds and limits.
    pub policy: Policy,
    /// Whether the rule is told of switches' ports, or of the NICs' only.
    pub sees_switches: bool,
    /// Packets: buckets that begin before the measurement. Default 3: fast rings have run as far ahead as they may. Fewer: they do not wait yet.
    pub warm_buckets: u32,
    /// Packets: buckets that are measured. Default 8. Few: what chance does to one bucket counts for much.
    pub measured_buckets: u32,
}

impl Setup {
    /// The stated fabric.
    pub fn new(nodes: u32, seed: u64) -> Self {
        Self {
            nodes,
            seed,
            qps: 8,
            qp_bps: 1_600_000_000,
            spines: 2,
            shuffled: true,
            port: StaticPort::Hashed,
            path: StaticPath::Shared,
            message_bytes: 4096,
            bucket_bytes: 4 << 20,
            algorithm: "dcqcn".to_owned(),
            policy: Policy::default(),
            sees_switches: true,
            warm_buckets: 3,
            measured_buckets: 8,
        }
    }

    /// Bytes of a bucket: what one AllReduce of the measurement reduces.
    pub fn bucket(&self) -> u64 {
        let least = u64::from(self.nodes) * u64::from(self.qps) * self.message_bytes;
        self.bucket_bytes.div_ceil(least).max(1) * least
    }

    /// AllReduce bandwidth of all nodes together, Gb/s, when each node sends so much payload: bytes reduced over time, times nodes.
    pub fn all_reduce_gbps(&self, sent_bps: f64) -> f64 {
        let n = f64::from(self.nodes);
        sent_bps / (2.0 * (n - 1.0) / n) * n / 1e9
    }

    /// Refuses what cannot be built.
    pub fn check(&self) -> Result<(), String> {
        let refuse = |what: String| Err(what);
        let unit = if self.nodes <= 32 { 8 } else { 32 };
        if self.nodes < 8 || self.nodes > 8_192 || !self.nodes.is_multiple_of(unit) {
            let nodes = self.nodes;
            return refuse(format!(
                "{nodes} nodes: expected 8, 16, 24, 32 (racks of a pod) or a multiple of 32 (pods) up to 8192"
            ));
        }
        if self.qps == 0 || self.qps > 256 {
            return refuse(format!("{} QPs to each neighbour: expected 1 to 256", self.qps));
        }
        if self.qp_bps == 0 {
            return refuse("a QP must send something: expected a rate above 0".to_owned());
        }
        if self.spines == 0 || self.spines > 64 {
            return refuse(format!("{} spines: expected 1 to 64", self.spines));
        }
        if self.measured_buckets == 0 || self.measured_buckets > 1_000 {
            return refuse(format!("{} buckets measured: expected 1 to 1000", self.measured_buckets));
        }
        if self.warm_buckets > 1_000 {
            return refuse(format!("{} buckets before the measurement: expected 0 to 1000", self.warm_buckets));
        }
        self.policy.check().map_err(|error| error.to_string())
    }
}

/// What one binding came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// AllReduce bandwidth of all nodes together, Gb/s.
    pub gbps: f64,
    /// QPs that were moved, repetitions counted.
    pub moves: u64,
    /// The rule rested before the time was over.
    pub rested: bool,
}
