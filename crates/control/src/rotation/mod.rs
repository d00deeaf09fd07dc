//! New keys for all memory that peers were lent, on demand and on schedule: orders to the nodes, their answers, and a record of both that every replica can
//! show. It knows no key: processes make keys, tell them to their peers, and withdraw the old ones.
//!
//! The schedule and the records stand in the store under `keys/`, so that whichever replica has the duty of giving orders goes on where the last one stopped.

mod record;
mod run;

pub use record::{RotationRecord, RotationState, Schedule, Scope};
pub use run::{begin, look, recent, run, schedule, set_schedule};
