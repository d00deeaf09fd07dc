//! How much a tenant may have: numbers of the policy. They are kept where objects are made, by [`scalefabric_fabric::guard`], with what the tenant has elsewhere as
//! agents and control tell it.

use serde::{Deserialize, Serialize};

/// Limits of a tenant, on all nodes together. `None`: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Queue pairs.
    pub qps: Option<u64>,
    /// Memory regions.
    pub mrs: Option<u64>,
    /// Registered memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Rate at which each of its processes may send, bits per second.
    pub rate_bps: Option<u64>,
}
