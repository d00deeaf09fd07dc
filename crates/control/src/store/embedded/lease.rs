//! Which leases there are, until when, and which keys hang on each. It knows no clock: it is told the time. The writer shares it with those who keep
//! leases alive: a renewal never waits for the disk, so that a long commit cannot starve it.

use super::super::LeaseId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A stand-still of the process longer than this does not count against leases: nobody could have kept them alive.
const STAND_STILL: Duration = Duration::from_secs(1);

struct Lease {
    ttl: Duration,
    ends: Duration,
    /// Its time has passed and the writer takes it away: it can no longer be kept alive.
    ending: bool,
    keys: BTreeSet<String>,
}

/// All leases.
pub struct Leases {
    leases: BTreeMap<LeaseId, Lease>,
    looked: Duration,
}

/// The leases as the writer and those who keep them alive share them. The lock is held for moments, never during a commit.
pub struct SharedLeases(Mutex<Leases>);

impl SharedLeases {
    /// These.
    pub fn new(leases: Leases) -> Self {
        Self(Mutex::new(leases))
    }

    /// To look or to change.
    pub fn lock(&self) -> MutexGuard<'_, Leases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    /// None, at a time.
    pub fn new(now: Duration) -> Self {
        Self { leases: BTreeMap::new(), looked: now }
    }

    /// One more.
    pub fn add(&mut self, id: LeaseId, ttl: Duration, now: Duration) {
        self.leases.insert(id, Lease { ttl, ends: now + ttl, ending: false, keys: BTreeSet::new() });
    }

    /// Its whole time again; false if there is no such lease, or if it is being taken away.
    pub fn keep_alive(&mut self, id: LeaseId, now: Duration) -> bool {
        let found = self.leases.get_mut(&id).filter(|lease| !lease.ending);
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

    /// Those whose time has passed. From now on they cannot be kept alive.
    pub fn ended(&mut self, now: Duration) -> Vec<LeaseId> {
        let stood_still = now.saturating_sub(self.looked);
        self.looked = now;
        if stood_still > STAND_STILL {
            for lease in self.leases.values_mut() {
                lease.ends += stood_still;
            }
        }
        let mut ended = Vec::new();
        for (id, lease) in self.leases.iter_mut().filter(|(_, lease)| lease.ends <= now) {
            lease.ending = true;
            ended.push(*id);
        }
        ended
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
    fn a_lease_that_was_kept_alive_in_time_does_not_end_and_one_that_is_taken_away_is_not_kept() {
        let mut leases = Leases::new(Duration::ZERO);
        leases.add(LeaseId(1), SECOND, Duration::ZERO);
        assert!(leases.keep_alive(LeaseId(1), SECOND / 2));
        assert!(leases.ended(SECOND).is_empty());
        assert_eq!(leases.ended(SECOND * 3 / 2), [LeaseId(1)]);
        assert!(!leases.keep_alive(LeaseId(1), SECOND * 3 / 2), "the writer has begun to take it away");
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
