//! Which leases there are, until when, and which keys hang on each. It knows no clock: it is told the time.

use super::super::LeaseId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A stand-still of the process longer than this does not count against leases: nobody could have kept them alive.
const STAND_STILL: Duration = Duration::from_secs(1);

struct Lease {
    ttl: Duration,
    ends: Duration,
    keys: BTreeSet<String>,
}

/// All leases.
pub struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
    looked: Duration,
}

impl Leases {
    /// None, at a time.
    pub fn new(now: Duration) -> Self {
        Self { leases: BTreeMap::new(), looked: now }
    }

    /// One more.
    pub fn add(&mut self, id: LeaseId, ttl: Duration, now: Duration) {
        self.leases.insert(id, Lease { ttl, ends: now + ttl, keys: BTreeSet::new() });
    }

    /// Its whole time again; false if there is no such lease.
    pub fn keep_alive(&mut self, id: LeaseId, now: Duration) -> bool {
        let found = self.leases.get_mut(&id);
        found.map(|lease| lease.ends = now + lease.ttl).is_some()
    }

    /// Takes it away, with the keys that hang on it.
    pub fn remove(&mut self, id: LeaseId) -> Option<BTreeSet<String>> {
        self.leases.remove(&id).map(|lease| lease.keys)
    }

    /// Whether it is there.
    pub fn has(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// A key leaves one lease and hangs on another.
    pub fn hang(&mut self, key: &str, from: Option<LeaseId>, to: Option<LeaseId>) {
        if from == to {
            return;
        }
        if let Some(lease) = from.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.remove(key);
        }
        if let Some(lease) = to.and_then(|id| self.leases.get_mut(&id)) {
            lease.keys.insert(key.to_owned());
        }
    }

    /// Those whose time has passed.
    pub fn ended(&mut self, now: Duration) -> Vec<LeaseId> {
        let stood_still = now.saturating_sub(self.looked);
        self.looked = now;
        if stood_still > STAND_STILL {
            for lease in self.leases.values_mut() {
                lease.ends += stood_still;
            }
        }
        self.leases.iter().filter(|(_, lease)| lease.ends <= now).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_ends_when_its_time_has_passed_and_not_a_moment_before() {
        let mut leases = Leases::new(Duration::ZERO);
        leases.add(LeaseId(1), SECOND, Duration::ZERO);
        assert!(leases.ended(SECOND - Duration::from_nanos(1)).is_empty());
        assert_eq!(leases.ended(SECOND), [LeaseId(1)]);
    }

    #[test]
    fn time_in_which_the_process_stood_still_does_not_count() {
        let mut leases = Leases::new(Duration::ZERO);
        leases.add(LeaseId(1), SECOND, Duration::ZERO);
        assert!(leases.ended(60 * SECOND).is_empty());
        assert_eq!(leases.ended(61 * SECOND), [LeaseId(1)]);
    }

    #[test]
    fn a_key_hangs_on_one_lease_at_a_time() {
        let mut leases = Leases::new(Duration::ZERO);
        leases.add(LeaseId(1), SECOND, Duration::ZERO);
        leases.add(LeaseId(2), SECOND, Duration::ZERO);
        leases.hang("a", None, Some(LeaseId(1)));
        leases.hang("b", None, Some(LeaseId(1)));
        leases.hang("a", Some(LeaseId(1)), Some(LeaseId(2)));
        assert_eq!(leases.remove(LeaseId(1)), Some(BTreeSet::from(["b".to_owned()])));
        assert_eq!(leases.remove(LeaseId(2)), Some(BTreeSet::from(["a".to_owned()])));
        assert_eq!(leases.remove(LeaseId(2)), None);
    }
}
