//! How the communication manager finds a connection by what an event names: the peer's own ID in a REQ or REJ that comes without ours, the peer's QP,
//! the clock. A look costs the same however many connections are idle. Data only: it sends nothing and tells nobody.

use std::collections::{BTreeSet, HashMap};

use scalefabric_transport::Time;
use scalefabric_verbs::{Gid, Qpn};
use scalefabric_wire::cm::CommId;

/// When each of many things has something to do.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    next: BTreeSet<(Time, u32)>,
    of: HashMap<u32, Time>,
}

impl Deadlines {
    /// `key` has something to do at this time from now on, or nothing.
    pub(super) fn set(&mut self, key: u32, at: Option<Time>) {
        let before = match at {
            Some(at) => self.of.insert(key, at),
            None => self.of.remove(&key),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.next.remove(&(before, key));
        }
        if let Some(at) = at {
            self.next.insert((at, key));
        }
    }

    /// The earliest time.
    pub(super) fn first(&self) -> Option<Time> {
        self.next.first().map(|(at, _)| *at)
    }

    /// All whose time has come, the earliest first.
    pub(super) fn due(&self, now: Time) -> Vec<u32> {
        self.next.range(..=(now, u32::MAX)).map(|(_, key)| *key).collect()
    }
}

/// What the peer of a connection calls itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerNames {
    pub(super) gid: Gid,
    pub(super) guid: u64,
    pub(super) id: CommId,
    pub(super) qpn: Qpn,
}

type Name = (Gid, u64, u32);

/// Connections by the names of their peers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    filed: HashMap<u32, PeerNames>,
    ids: BTreeSet<(Name, u32)>,
    qps: BTreeSet<(Name, u32)>,
}

impl PeerNames {
    fn by_id(&self) -> Name {
        (self.gid, self.guid, self.id.0)
    }

    fn by_qp(&self) -> Name {
        (self.gid, self.guid, self.qpn.get())
    }
}

impl Peers {
    /// The peer of `key` has these names from now on; `None` while they are not known, and at the end.
    pub(super) fn file(&mut self, key: u32, names: Option<PeerNames>) {
        if self.filed.get(&key) == names.as_ref() {
            return;
        }
        if let Some(before) = self.filed.remove(&key) {
            self.ids.remove(&(before.by_id(), key));
            self.qps.remove(&(before.by_qp(), key));
        }
        if let Some(names) = names {
            self.filed.insert(key, names);
            self.ids.insert((names.by_id(), key));
            self.qps.insert((names.by_qp(), key));
        }
    }

    /// Connections whose peer has this communication ID.
    pub(super) fn with_id(&self, gid: Gid, guid: u64, id: CommId) -> impl Iterator<Item = u32> + '_ {
        of(&self.ids, (gid, guid, id.0))
    }

    /// Connections of this QP of the peer.
    pub(super) fn with_qp(&self, gid: Gid, guid: u64, qpn: Qpn) -> impl Iterator<Item = u32> + '_ {
        of(&self.qps, (gid, guid, qpn.get()))
    }
}

fn of(names: &BTreeSet<(Name, u32)>, name: Name) -> impl Iterator<Item = u32> + '_ {
    names.range((name, 0)..=(name, u32::MAX)).map(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gid(last: u8) -> Gid {
        let mut bytes = [0; 16];
        bytes[15] = last;
        Gid(bytes)
    }

    fn names() -> impl Strategy<Value = PeerNames> {
        (0..2_u8, 0..2_u64, 0..3_u32, 0..3_u32).prop_map(|(g, guid, id, qpn)| PeerNames {
            gid: gid(g),
            guid,
            id: CommId(id),
            qpn: Qpn::new(qpn),
        })
    }

    proptest! {
        #[test]
        fn peers_are_found_as_if_all_were_looked_at(
            steps in prop::collection::vec((0..6_u32, prop::option::of(names())), 0..60),
            asked in names(),
        ) {
            let mut peers = Peers::default();
            let mut model = std::collections::BTreeMap::new();
            for (key, names) in steps {
                peers.file(key, names);
                match names {
                    Some(names) => model.insert(key, names),
                    None => model.remove(&key),
                };
            }
            let scan = |is_it: &dyn Fn(&PeerNames) -> bool| -> Vec<u32> {
                model.iter().filter(|(_, names)| is_it(names)).map(|(key, _)| *key).collect()
            };
            let with_id: Vec<u32> = peers.with_id(asked.gid, asked.guid, asked.id).collect();
            prop_assert_eq!(with_id, scan(&|names| names.by_id() == asked.by_id()));
            let with_qp: Vec<u32> = peers.with_qp(asked.gid, asked.guid, asked.qpn).collect();
            prop_assert_eq!(with_qp, scan(&|names| names.by_qp() == asked.by_qp()));
            // Nothing is left of what is over.
            (0..6).for_each(|key| peers.file(key, None));
            prop_assert!(peers.filed.is_empty() && peers.ids.is_empty() && peers.qps.is_empty());
        }

        #[test]
        fn deadlines_come_in_order(
            steps in prop::collection::vec((0..6_u32, prop::option::of(0..50_u64)), 0..60),
            now in 0..60_u64,
        ) {
            let mut deadlines = Deadlines::default();
            let mut model = std::collections::BTreeMap::new();
            for (key, at) in steps {
                deadlines.set(key, at.map(Time));
                match at {
                    Some(at) => model.insert(key, at),
                    None => model.remove(&key),
                };
            }
            prop_assert_eq!(deadlines.first(), model.values().min().copied().map(Time));
            let mut due: Vec<(u64, u32)> = model.iter().filter(|(_, at)| **at <= now).map(|(key, at)| (*at, *key)).collect();
            due.sort_unstable();
            prop_assert_eq!(deadlines.due(Time(now)), due.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
        }
    }
}
