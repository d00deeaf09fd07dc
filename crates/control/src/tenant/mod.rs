//! Tenants: who may connect to whom, in which partition, and how much each may have. Pure policy; it is enforced by the fabric library
//! (`may_connect` before a connection is made), by the NIC (its P_Key table drops packets of other partitions) and by who charges the ledger.

mod policy;
mod quota;
#[cfg(test)]
mod tests;

pub use policy::{Allow, Denied, Grant, MAX_PKEYS, Partition, Tenant, Tenants};
pub use quota::{Amount, Ledger, OverQuota, Quota};
