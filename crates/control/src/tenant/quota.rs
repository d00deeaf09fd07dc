//! How much a tenant may have: numbers of the policy. They are kept where objects are made, by [`scalefabric_fabric::guard`], with what the tenant has elsewhere as
//! agents and control tell it.

use serde::{Deserialize, Serialize};

/// The least rate that a device can keep, bit/s: it counts in kb/s, and 0 is no limit to it.
const LEAST_RATE_BPS: u64 = 1_000;

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
    /// Rate at which each of its processes may send, bits per second; 1000 at least.
    pub rate_bps: Option<u64>,
}

impl Quota {
    /// Refuses what nobody could keep. A limit of 0 objects is one: the tenant may have none.
    pub fn check(&self) -> Result<(), String> {
        match self.rate_bps {
            Some(rate_bps) if rate_bps < LEAST_RATE_BPS => Err(format!(
                "rate_bps is {rate_bps}: {LEAST_RATE_BPS} at least, or leave it out if there is to be no limit; `qps = 0` keeps it from sending at all"
            )),
            _ => Ok(()),
        }
    }
}
