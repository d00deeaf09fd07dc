//! Tenants: who may connect to whom, in which partition, and how much each may have. Pure policy; it is enforced by the fabric library
//! (`may_connect` before a connection is made, quotas when objects are), and by the NIC (its P_Key table drops packets of other partitions).

mod policy;
mod quota;
#[cfg(test)]
mod tests;

pub use policy::{Allow, Denied, Grant, MAX_PKEYS, Partition, Tenant, Tenants};
pub use quota::Quota;
