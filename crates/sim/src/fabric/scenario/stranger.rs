//! Fields that the chosen kind does not look at: they are refused, since who gave one believes that it counts.

use super::file::{FaultKind, FaultTable, TopologyKind, TopologyTable, WorkloadKind, WorkloadTable};
use super::{Refusal, Scenario};

/// A field: its name, whether it is given, and the kinds that look at it.
type Field<K> = (&'static str, bool, &'static [K]);

impl Scenario {
    /// Refuses what nobody looks at.
    pub(super) fn refuse_strangers(&self) -> Result<(), Refusal> {
        let topology = &self.file.topology;
        // A sweep over kinds, or another kind by --set, has fields for all of them.
        if !self.is_changed("topology.kind") {
            self.refuse_stranger("topology", topology.kind, &fields_of_topology(topology))?;
        }
        let is_any_cable = topology.cable_m.is_some() || topology.up_cable_m.is_some();
        if topology.port_delay.is_some() && !is_any_cable {
            return Err(self.refuse("topology.port_delay", "counts only with cable_m or up_cable_m; delay has it all"));
        }
        for (index, table) in self.file.workload.iter().enumerate() {
            if !self.is_changed(&format!("workload.{index}.kind")) {
                self.refuse_stranger(&format!("workload[{index}]"), table.kind, &fields_of_workload(table))?;
            }
        }
        for (index, table) in self.file.fault.iter().enumerate() {
            if !self.is_changed(&format!("fault.{index}.kind")) {
                self.refuse_stranger(&format!("fault[{index}]"), table.kind, &fields_of_fault(table))?;
            }
        }
        Ok(())
    }

    fn refuse_stranger<K: Named>(&self, table: &str, kind: K, fields: &[Field<K>]) -> Result<(), Refusal> {
        let stranger = fields.iter().find(|(_, is_given, kinds)| *is_given && !kinds.contains(&kind));
        let Some((field, _, kinds)) = stranger else { return Ok(()) };
        let kinds: Vec<String> = kinds.iter().map(|kind| format!("\"{}\"", kind.name())).collect();
        let message = format!("does not count with kind = \"{}\", but with {}", kind.name(), kinds.join(", "));
        Err(self.refuse(&format!("{table}.{field}"), &message))
    }
}

/// A kind with the name that it has in a file.
trait Named: Copy + PartialEq + 'static {
    fn name(self) -> &'static str;
}

macro_rules! names {
    ($kind:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        impl Named for $kind {
            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

names!(TopologyKind {
    Star = "star",
    Dumbbell = "dumbbell",
    LeafSpine = "leaf-spine",
    FatTree = "fat-tree",
    Rails = "rails",
    Pods = "pods",
    Csv = "csv",
});

names!(WorkloadKind {
    Incast = "incast",
    Permutation = "permutation",
    AllToAll = "all-to-all",
    AllReduce = "all-reduce",
    OpenLoop = "open-loop",
    Storage = "storage",
    Csv = "csv",
});

names!(FaultKind {
    LinkDown = "link-down",
    LinkUp = "link-up",
    Loss = "loss",
    SlowHost = "slow-host",
    PfcStorm = "pfc-storm",
});

fn fields_of_topology(table: &TopologyTable) -> [Field<TopologyKind>; 17] {
    use TopologyKind::{Csv, Dumbbell, FatTree, LeafSpine, Pods, Rails, Star};
    const MADE: &[TopologyKind] = &[Star, Dumbbell, LeafSpine, FatTree, Rails, Pods];
    const TIERS: &[TopologyKind] = &[Dumbbell, LeafSpine, FatTree, Rails, Pods];
    [
        ("hosts", table.hosts.is_some(), &[Star, Dumbbell]),
        ("leaves", table.leaves.is_some(), &[LeafSpine, Pods]),
        ("hosts_per_leaf", table.hosts_per_leaf.is_some(), &[LeafSpine, Pods]),
        ("spines", table.spines.is_some(), &[LeafSpine, Rails, Pods]),
        ("pods", table.pods.is_some(), &[Pods]),
        ("planes", table.planes.is_some(), &[Pods]),
        ("k", table.k.is_some(), &[FatTree]),
        ("servers", table.servers.is_some(), &[Rails]),
        ("rails", table.rails.is_some(), &[Rails]),
        ("servers_per_group", table.servers_per_group.is_some(), &[Rails]),
        ("file", table.file.is_some(), &[Csv]),
        ("rate", table.rate.is_some(), MADE),
        ("delay", table.delay.is_some(), MADE),
        ("cable_m", table.cable_m.is_some(), MADE),
        ("up_rate", table.up_rate.is_some(), TIERS),
        ("up_delay", table.up_delay.is_some(), TIERS),
        ("up_cable_m", table.up_cable_m.is_some(), TIERS),
    ]
}

fn fields_of_workload(table: &WorkloadTable) -> [Field<WorkloadKind>; 19] {
    use WorkloadKind::{AllReduce, AllToAll, Csv, Incast, OpenLoop, Permutation, Storage};
    const SIZED: &[WorkloadKind] = &[Incast, Permutation, AllToAll, AllReduce, OpenLoop, Storage];
    const BY_CHANCE: &[WorkloadKind] = &[OpenLoop, Storage];
    [
        ("bytes", table.bytes.is_some(), SIZED),
        // A table has its own times.
        ("start", table.start.is_some(), SIZED),
        ("senders", table.senders.is_some(), &[Incast]),
        ("to", table.to.is_some(), &[Incast]),
        ("members", table.members.is_some(), &[AllToAll, AllReduce]),
        ("concurrent", table.concurrent.is_some(), &[AllToAll]),
        ("shape", table.shape.is_some(), &[AllReduce]),
        ("buckets", table.buckets.is_some(), &[AllReduce]),
        ("overlap", table.overlap.is_some(), &[AllReduce]),
        ("channels", table.channels.is_some(), &[AllReduce]),
        ("iterations", table.iterations.is_some(), &[AllReduce]),
        ("piece", table.piece.is_some(), &[AllReduce]),
        ("shuffled", table.shuffled.is_some(), &[AllReduce]),
        ("load", table.load.is_some(), BY_CHANCE),
        ("duration", table.duration.is_some(), BY_CHANCE),
        ("sizes", table.sizes.is_some(), BY_CHANCE),
        ("clients", table.clients.is_some(), &[Storage]),
        ("reads", table.reads.is_some(), &[Storage]),
        ("file", table.file.is_some(), &[Csv]),
    ]
}

fn fields_of_fault(table: &FaultTable) -> [Field<FaultKind>; 5] {
    use FaultKind::{LinkDown, LinkUp, Loss, PfcStorm, SlowHost};
    const LINKS: &[FaultKind] = &[LinkDown, LinkUp, Loss];
    [
        ("a", table.a.is_some(), LINKS),
        ("b", table.b.is_some(), LINKS),
        ("rate", table.rate.is_some(), &[SlowHost]),
        ("loss", table.loss.is_some(), &[Loss]),
        ("priority", table.priority.is_some(), &[PfcStorm]),
    ]
}
