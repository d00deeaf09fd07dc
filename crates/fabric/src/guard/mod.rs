//! A provider for one tenant: it makes objects of the provider below it as long as the tenant may have more, and keeps their number. What the tenant may have
//! the directory says, from what it knows now; nothing here waits for anybody. Objects are charged before they are made and given back when they are
//! gone, however they go. QPs share the tenant's rate in equal parts.
//!
//! It limits who goes through it: it stands in the process of the tenant, who could leave it out. What keeps tenants apart is the P_Key, which the NIC checks.

mod context;
mod domain;
mod queue_pair;
mod region;

pub use context::TenantProvider;

use crate::directory::{Allowance, Directory, Holdings, Limit};
use scalefabric_verbs::queue_pair::RateLimit;
use scalefabric_verbs::{Errno, QueuePair, VerbsError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What all objects of a tenant in this process share.
#[derive(Debug)]
struct Ledger {
    tenant: String,
    directory: Arc<dyn Directory>,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    holdings: Holdings,
    /// QPs that came to RTS, which share the rate.
    sending: Vec<Weak<dyn QueuePair>>,
    /// Among how many the rate was divided last.
    parts: u64,
    /// What was divided; `None`: nothing is limited.
    rate_bps: Option<u64>,
}

/// A part of what a tenant has. It is given back when this is dropped.
#[derive(Debug)]
struct Charge {
    ledger: Arc<Ledger>,
    what: Holdings,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut held = self.ledger.held();
        let Holdings { qps, mrs, memory_bytes } = &mut held.holdings;
        *qps = qps.saturating_sub(self.what.qps);
        *mrs = mrs.saturating_sub(self.what.mrs);
        *memory_bytes = memory_bytes.saturating_sub(self.what.memory_bytes);
        self.ledger.tell(&held);
    }
}

/// Ledgers that are in use.
static LEDGERS: Mutex<Vec<Weak<Ledger>>> = Mutex::new(Vec::new());

impl Ledger {
    /// The one of a tenant and a directory.
    fn of(directory: Arc<dyn Directory>, tenant: &str) -> Arc<Self> {
        let mut ledgers = LEDGERS.lock().unwrap_or_else(PoisonError::into_inner);
        ledgers.retain(|ledger| ledger.strong_count() > 0);
        let is_it = |ledger: &Arc<Self>| ledger.tenant == tenant && Arc::ptr_eq(&ledger.directory, &directory);
        if let Some(known) = ledgers.iter().filter_map(Weak::upgrade).find(is_it) {
            return known;
        }
        let ledger = Arc::new(Self { tenant: tenant.to_owned(), directory, held: Arc::default() });
        // It looks at what is held and never has the directory, whose thread it runs on: who has a directory last ends that thread.
        let watching = Arc::downgrade(&ledger.held);
        let look = move |allowance: &Allowance| {
            let held = watching.upgrade();
            held.inspect(|held| locked(held).divide(allowance.rate_bps)).is_some()
        };
        ledger.directory.watch_allowance(tenant, Box::new(look));
        // Who has said that he works for a tenant, even with nothing yet, hears what it has elsewhere.
        ledger.tell(&ledger.held());
        ledgers.push(Arc::downgrade(&ledger));
        ledger
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        locked(&self.held)
    }

    fn allowance(&self) -> Allowance {
        self.directory.allowance(&self.tenant)
    }

    fn tell(&self, held: &Held) {
        self.directory.holds(&self.tenant, held.holdings);
    }

    /// Takes a part, whole or not at all.
    fn charge(self: &Arc<Self>, what: Holdings) -> Result<Charge, VerbsError> {
        let allowance = self.allowance();
        let mut held = self.held();
        let has = held.holdings;
        self.check("QPs", "qps", what.qps, has.qps, allowance.qps)?;
        self.check("memory regions", "mrs", what.mrs, has.mrs, allowance.mrs)?;
        self.check("bytes of memory", "memory_bytes", what.memory_bytes, has.memory_bytes, allowance.memory_bytes)?;
        held.holdings = Holdings {
            qps: has.qps + what.qps,
            mrs: has.mrs + what.mrs,
            memory_bytes: has.memory_bytes.saturating_add(what.memory_bytes),
        };
        self.tell(&held);
        Ok(Charge { ledger: Arc::clone(self), what })
    }

    fn check(&self, things: &str, quota: &str, asked: u64, here: u64, limit: Option<Limit>) -> Result<(), VerbsError> {
        let Some(Limit { most, elsewhere }) = limit else { return Ok(()) };
        if asked == 0 || here.saturating_add(elsewhere).saturating_add(asked) <= most {
            return Ok(());
        }
        Err(VerbsError::environment(
            Errno::ENOMEM,
            format!(
                "tenant `{}` may have {most} {things} and has {} ({here} in this process, {elsewhere} elsewhere); {asked} more are asked for: give some back, or \
                 ask the operator for a larger quota (`{quota}`)",
                self.tenant,
                here.saturating_add(elsewhere)
            ),
        ))
    }

    /// A QP sends from now on: it gets its part of the tenant's rate, and the others smaller ones.
    fn share_rate(&self, queue_pair: &Arc<dyn QueuePair>) -> Result<(), VerbsError> {
        let rate_bps = self.allowance().rate_bps;
        let mut held = self.held();
        held.sending.retain(|one| one.strong_count() > 0);
        if !held.sending.iter().any(|one| is_same(one, queue_pair)) {
            held.sending.push(Arc::downgrade(queue_pair));
        }
        held.divide(rate_bps);
        let Some(limit) = held.part() else { return Ok(()) };
        drop(held);
        queue_pair.modify_rate_limit(&limit).map_err(|error| {
            VerbsError::environment(
                Errno::EOPNOTSUPP,
                format!(
                    "the rate of tenant `{}` cannot be limited: {}; use another device, or ask the operator to take `rate_bps` out of its quota",
                    self.tenant, error.message
                ),
            )
        })
    }

    /// A QP sends no more: the others get larger parts.
    fn leave(&self, queue_pair: &Arc<dyn QueuePair>) {
        let rate_bps = self.allowance().rate_bps;
        let mut held = self.held();
        let before = held.sending.len();
        held.sending.retain(|one| one.strong_count() > 0 && !is_same(one, queue_pair));
        if held.sending.len() < before {
            held.divide(rate_bps);
        }
    }
}

fn locked(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_same(one: &Weak<dyn QueuePair>, other: &Arc<dyn QueuePair>) -> bool {
    std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other))
}

impl Held {
    /// Divides the rate anew among all that send, if it or their number has changed by enough: parts are given in advance and taken back late, so that many QPs that come and go do not tell
    /// all others each time. Few get exact parts.
    fn divide(&mut self, rate_bps: Option<u64>) {
        let count = self.sending.len() as u64;
        let same_rate = self.rate_bps == rate_bps;
        if same_rate && (rate_bps.is_none() || (count <= self.parts && self.parts - count <= count / 4)) {
            return;
        }
        (self.parts, self.rate_bps) = (count + count / 8, rate_bps);
        let limit = self.part().unwrap_or_default();
        // One that is on its way to ERR cannot be told, and sends nothing.
        self.sending.iter().filter_map(Weak::upgrade).for_each(|one| _ = one.modify_rate_limit(&limit));
    }

    /// The part of each QP; `None`: the rate is not limited. The device counts in kb/s, and 0 is no limit.
    fn part(&self) -> Option<RateLimit> {
        let part_kbps = self.rate_bps? / 1000 / self.parts.max(1);
        Some(RateLimit { rate_limit: part_kbps.clamp(1, u64::from(u32::MAX)) as u32, ..RateLimit::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::{ConnectionRecord, Order, OrderId, OrderResult, ServiceAddress};
    use crate::error::FabricError;
    use scalefabric_verbs::PKey;

    /// Lets a tenant have three QPs, of which one is elsewhere, and remembers what it was told.
    #[derive(Debug, Default)]
    struct Strict(Mutex<Holdings>);

    impl Directory for Strict {
        fn publish(&self, _: ConnectionRecord) {}
        fn offer(&self, _: ServiceAddress) {}
        fn resolve(&self, _: &str) -> Vec<ServiceAddress> {
            Vec::new()
        }
        fn may_connect(&self, _: &str, _: &str) -> Result<PKey, FabricError> {
            Ok(PKey::DEFAULT)
        }
        fn next_order(&self) -> Option<(OrderId, Order)> {
            None
        }
        fn answer(&self, _: OrderId, _: OrderResult) {}
        fn allowance(&self, _: &str) -> Allowance {
            let limit = |most, elsewhere| Some(Limit { most, elsewhere });
            Allowance { qps: limit(3, 1), memory_bytes: limit(100, 0), ..Allowance::default() }
        }
        fn holds(&self, _: &str, holdings: Holdings) {
            *self.0.lock().unwrap() = holdings;
        }
    }

    #[test]
    fn the_last_one_is_given_the_next_is_refused_and_what_is_given_back_can_be_had_again() {
        let directory = Arc::new(Strict::default());
        let told = || *directory.0.lock().unwrap();
        let ledger = Ledger::of(directory.clone(), "red");
        let qp = Holdings { qps: 1, ..Holdings::default() };
        let first = ledger.charge(qp).unwrap();
        let _second = ledger.charge(qp).unwrap();
        let refused = ledger.charge(qp).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOMEM);
        for part in ["`red`", "3 QPs", "has 3", "2 in this process", "1 elsewhere", "`qps`"] {
            assert!(refused.message.contains(part), "{part}: {}", refused.message);
        }
        // Whole or not at all.
        assert!(ledger.charge(Holdings { qps: 1, mrs: 1, memory_bytes: 1 }).is_err());
        assert_eq!(told(), Holdings { qps: 2, ..Holdings::default() });
        drop(first);
        assert_eq!(told().qps, 1);
        let _third = ledger.charge(qp).unwrap();
        let memory = |memory_bytes| Holdings { mrs: 1, memory_bytes, qps: 0 };
        let _most = ledger.charge(memory(100)).unwrap();
        assert!(ledger.charge(memory(1)).is_err() && ledger.charge(memory(u64::MAX)).is_err());
        assert_eq!(told(), Holdings { qps: 2, mrs: 1, memory_bytes: 100 });
    }
}
