//! Who is connected with whom: nodes, NICs, ports, switches and cables, from agents' reports and a configuration file, and the ways between them. Pure: it opens nothing and
//! asks nobody.

mod file;
mod graph;
mod lldp;
mod report;
#[cfg(test)]
mod tests;
mod way;

pub use file::{LinkEntry, PortEntry, SwitchEntry, TopologyFile};
pub use graph::{Finding, Joint, Topology, Vertex};
pub use lldp::parse_lldpctl;
pub use report::{NicReport, NodeReport, PortName, PortReport, SwitchPort};
pub use way::{Choice, MAX_WAYS, Way, Wish, natural};
