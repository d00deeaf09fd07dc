//! Rebalancing: who measures, who decides, who carries out. Agents report how loaded their ports are; one leader decides with the pure rule of
//! [`scalefabric_fabric::balance`] and sends orders that carry its fencing token; agents carry them out, refuse those of a former leader, and answer. Nothing here is
//! needed for data to flow: without a leader connections stay where they are and flee from ports that fail by themselves.

mod decider;
mod decision;
pub mod driver;
mod report;
mod settings;
#[cfg(test)]
mod tests;
mod ways;

pub use decider::{Decider, DeciderOptions, OperatorWishes, RoundSummary, node_of};
pub use decision::{Decision, DecisionLog, DecisionOutcome, PortInput};
pub use report::{ConnectionLoad, MAX_CONNECTIONS, MAX_PORTS, PortLoad, Refused, UtilisationReport};
pub use settings::{Settings, WishedMove};
pub use ways::{Plan, Ways, plan};
