//! How much a tenant may have, and how much it has. Whoever makes a QP or registers memory charges it here first; a charge is taken whole or not at all.
//! Rates are not counted here: they are handed to whoever sends.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

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

/// What somebody has, or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Amount {
    /// Queue pairs.
    pub qps: u64,
    /// Memory regions.
    pub mrs: u64,
    /// Registered memory, bytes.
    pub memory_bytes: u64,
}

/// A charge that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// Whose quota.
    pub tenant: String,
    /// Of what.
    pub what: &'static str,
    /// What was asked for.
    pub asked: u64,
    /// What it has already.
    pub has: u64,
    /// What it may have.
    pub limit: u64,
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, what, asked, has, limit } = self;
        write!(
            f,
            "`{tenant}` has {has} {what} and asks for {asked} more; it may have {limit}: release some, or ask the operator for a larger quota"
        )
    }
}

/// What all tenants have, by who has it: an agent that comes back says anew what its processes have.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ledger {
    accounts: BTreeMap<String, BTreeMap<String, Amount>>,
}

impl Ledger {
    /// What a tenant has.
    pub fn total(&self, tenant: &str) -> Amount {
        let parts = self.accounts.get(tenant).into_iter().flat_map(BTreeMap::values);
        parts.fold(Amount::default(), |sum, part| sum.plus(part))
    }

    /// Charges a tenant for what `holder` (a node, a process) asks for, if its quota allows.
    pub fn charge(&mut self, tenant: &str, holder: &str, ask: &Amount, quota: &Quota) -> Result<(), OverQuota> {
        let has = self.total(tenant);
        let rows = [
            ("queue pairs", ask.qps, has.qps, quota.qps),
            ("memory regions", ask.mrs, has.mrs, quota.mrs),
            ("bytes of registered memory", ask.memory_bytes, has.memory_bytes, quota.memory_bytes),
        ];
        for (what, asked, has, limit) in rows {
            // Who asks for nothing of a kind is not held up by what others have of it.
            if let Some(limit) = limit.filter(|&limit| asked > 0 && has.saturating_add(asked) > limit) {
                return Err(OverQuota { tenant: tenant.into(), what, asked, has, limit });
            }
        }
        let account = self.accounts.entry(tenant.into()).or_default().entry(holder.into()).or_default();
        *account = account.plus(ask);
        Ok(())
    }

    /// Gives back. More than the holder has is nothing at all.
    pub fn release(&mut self, tenant: &str, holder: &str, amount: &Amount) {
        if let Some(account) = self.accounts.get_mut(tenant).and_then(|all| all.get_mut(holder)) {
            *account = account.minus(amount);
        }
        self.tidy(tenant);
    }

    /// What a holder really has, as it counts itself: replaces what was charged. It may be above the quota: nothing is taken away, but nothing is added either.
    pub fn restate(&mut self, tenant: &str, holder: &str, amount: Amount) {
        self.accounts.entry(tenant.into()).or_default().insert(holder.into(), amount);
        self.tidy(tenant);
    }

    /// A holder is gone, with everything.
    pub fn forget(&mut self, holder: &str) {
        self.accounts.retain(|_, account| {
            account.remove(holder);
            !account.is_empty()
        });
    }

    fn tidy(&mut self, tenant: &str) {
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.retain(|_, amount| *amount != Amount::default());
            if account.is_empty() {
                self.accounts.remove(tenant);
            }
        }
    }
}

impl Amount {
    fn plus(&self, other: &Self) -> Self {
        Self {
            qps: self.qps.saturating_add(other.qps),
            mrs: self.mrs.saturating_add(other.mrs),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        Self {
            qps: self.qps.saturating_sub(other.qps),
            mrs: self.mrs.saturating_sub(other.mrs),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }
}
