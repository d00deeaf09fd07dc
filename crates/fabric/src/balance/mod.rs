//! The balancing rule: which connections should leave which ports, and why. A pure function of what was measured, run alike by the control plane, by the
//! simulator and by tests. It may not read a clock or remember anything outside its arguments; the same arguments give the same plan.
//!
//! A round is `plan(&snapshot, &policy, &wishes, history) -> Plan`; the plan holds the history for the next one.

mod history;
mod outcome;
mod policy;
mod sample;

pub use history::History;
pub use outcome::{Doubt, DoubtReason, Effort, Move, Plan, Reason, Refusal, Subject};
pub use policy::{Freeze, Policy, Wishes};
pub use sample::{ConnectionKey, ConnectionSample, Direction, PortKey, PortSample, Route, RouteKey, Snapshot};
