//! The store of the simulated fabric, with etcd's meaning: revisions, guards, leases, history that is compacted. It can be without a leader: then nothing is done, and
//! what was asked is answered with that it is not known, or not at all. An answer may be lost although the work was done. Etcd's client and the file have tests of
//! their own; what is looked at here is what the rest makes of a store that behaves like this.

use super::MS;
use crate::keys;
use crate::message::Answer;
use crate::order::OrderRecord;
use crate::store::{Entry, Event, LeaseId, Revision};
use std::collections::{BTreeMap, VecDeque};

/// Whose lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    Node(usize),
    Leader(u64),
}

impl Owner {
    fn ttl_ns(self) -> u64 {
        match self {
            Self::Node(_) => NODE_TTL_NS,
            Self::Leader(_) => LEADER_TTL_NS,
        }
    }
}

/// How long what an agent told stays when nothing is heard of it.
const NODE_TTL_NS: u64 = 15_000 * MS;
/// How long a duty stays.
const LEADER_TTL_NS: u64 = crate::leader::TTL.as_nanos() as u64;
/// Changes that are kept for watches.
const HISTORY: usize = 4_000;

/// What replicas ask.
#[derive(Clone, Debug)]
pub enum Call {
    /// An agent has joined: its node's record is this replica's from now on.
    Join { node: usize, incarnation: u64, stream: u64 },
    /// What an agent told, if its node's record is still at this revision.
    Write { node: usize, stream: u64, revision: Revision, changes: Vec<(String, Option<Vec<u8>>)> },
    /// The agent lives.
    KeepNode { node: usize },
    /// The duty, if nobody has it; asked at this time of the replica's clock.
    Stand { name: String, asked: u64 },
    /// The duty stays; asked at this time of the replica's clock.
    Renew { token: u64, asked: u64 },
    /// An order, not guarded by anything: it is the agents that must refuse what is old.
    Order { key: String, value: Vec<u8> },
    /// The answer to one, if it has none.
    Answer { key: String, answer: Answer },
    /// Orders of a node.
    Waiting { node: usize, stream: u64 },
    /// Everything.
    List,
    /// What an operator sets.
    Put { key: String, value: Vec<u8> },
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Done at this revision; for [`Call::Join`] with the keys that the node has.
    Done(Revision, Vec<String>),
    /// A guard did not hold.
    Refused,
    /// All keys.
    Listing(Vec<Entry>, Revision),
    /// Nobody knows whether it was done.
    Unknown,
}

#[derive(Debug, Default)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
    owners: BTreeMap<String, Owner>,
    leases: BTreeMap<Owner, u64>,
    incarnations: BTreeMap<usize, u64>,
    revision: u64,
    history: VecDeque<(u64, Event)>,
    compacted: u64,
    /// Without a leader until then.
    pub headless_until: u64,
}

impl Store {
    pub fn has_leader(&self, now: u64) -> bool {
        now >= self.headless_until
    }

    /// The leader is lost. The next one gives every lease its whole time again, as etcd does.
    pub fn lose_leader(&mut self, now: u64, until: u64) {
        self.headless_until = self.headless_until.max(until);
        for (owner, end) in &mut self.leases {
            if *end > now {
                *end = self.headless_until + owner.ttl_ns();
            }
        }
    }

    /// History is forgotten: whoever has not read it must read everything anew.
    pub fn compact(&mut self) {
        self.compacted = self.revision;
        self.history.clear();
    }

    /// Leases that are over take their keys with them.
    pub fn expire(&mut self, now: u64) {
        if !self.has_leader(now) {
            return;
        }
        let over: Vec<Owner> = self.leases.iter().filter(|(_, end)| **end <= now).map(|(owner, _)| *owner).collect();
        for owner in over {
            self.leases.remove(&owner);
            let gone: Vec<String> =
                self.owners.iter().filter(|(_, of)| **of == owner).map(|(key, _)| key.clone()).collect();
            self.change(gone.into_iter().map(|key| (key, None)).collect(), None);
        }
    }

    /// Changes after a revision; `None`: they are no longer kept.
    pub fn since(&self, revision: u64) -> Option<(Vec<Event>, u64)> {
        if revision < self.compacted {
            return None;
        }
        let news = self.history.iter().filter(|(at, _)| *at > revision).map(|(_, event)| event.clone());
        Some((news.collect(), self.revision))
    }

    /// The token of whoever has the duty.
    pub fn leader(&self) -> Option<u64> {
        self.entries.get(&leader_key()).map(|entry| entry.revision.0)
    }

    fn change(&mut self, changes: Vec<(String, Option<Vec<u8>>)>, owner: Option<Owner>) -> Revision {
        self.revision += 1;
        let revision = Revision(self.revision);
        for (key, value) in changes {
            let event = match value {
                Some(value) => {
                    let entry = Entry { key: key.clone(), value, revision, lease: owner.map(|_| LeaseId(1)) };
                    self.entries.insert(key.clone(), entry.clone());
                    match owner {
                        Some(owner) => self.owners.insert(key, owner),
                        None => self.owners.remove(&key),
                    };
                    Event::Put(entry)
                }
                None => {
                    self.owners.remove(&key);
                    if self.entries.remove(&key).is_none() {
                        continue;
                    }
                    Event::Delete { key, revision }
                }
            };
            self.history.push_back((revision.0, event));
        }
        while self.history.len() > HISTORY {
            if let Some((at, _)) = self.history.pop_front() {
                self.compacted = at;
            }
        }
        revision
    }

    /// Does what is asked.
    pub fn carry_out(&mut self, call: &Call, now: u64) -> Reply {
        match call {
            Call::Join { node, incarnation, .. } => {
                let known = self.incarnations.entry(*node).or_default();
                if *known > *incarnation {
                    return Reply::Refused;
                }
                *known = *incarnation;
                self.leases.insert(Owner::Node(*node), now + NODE_TTL_NS);
                let name = super::node_name(*node);
                let record = incarnation.to_string().into_bytes();
                let revision = self.change(vec![(keys::node(&name), Some(record))], Some(Owner::Node(*node)));
                let own =
                    |key: &&String| self.owners.get(*key) == Some(&Owner::Node(*node)) && **key != keys::node(&name);
                let keys = self.entries.keys().filter(own).cloned().collect();
                Reply::Done(revision, keys)
            }
            Call::Write { node, revision, changes, .. } => {
                let key = keys::node(&super::node_name(*node));
                if self.entries.get(&key).is_none_or(|entry| entry.revision != *revision) {
                    return Reply::Refused;
                }
                Reply::Done(self.change(changes.clone(), Some(Owner::Node(*node))), Vec::new())
            }
            Call::KeepNode { node } => match self.leases.get_mut(&Owner::Node(*node)) {
                Some(end) => {
                    *end = now + NODE_TTL_NS;
                    Reply::Done(Revision(self.revision), Vec::new())
                }
                None => Reply::Refused,
            },
            Call::Stand { name, .. } => {
                if self.entries.contains_key(&leader_key()) {
                    return Reply::Refused;
                }
                let owner = Owner::Leader(self.revision + 1);
                self.leases.insert(owner, now + LEADER_TTL_NS);
                Reply::Done(self.change(vec![(leader_key(), Some(name.clone().into_bytes()))], Some(owner)), Vec::new())
            }
            Call::Renew { token, .. } => match self.leases.get_mut(&Owner::Leader(*token)) {
                Some(end) => {
                    *end = now + LEADER_TTL_NS;
                    Reply::Done(Revision(self.revision), Vec::new())
                }
                None => Reply::Refused,
            },
            Call::Order { key, value } | Call::Put { key, value } => {
                Reply::Done(self.change(vec![(key.clone(), Some(value.clone()))], None), Vec::new())
            }
            Call::Answer { key, answer } => {
                let Some(entry) = self.entries.get(key) else { return Reply::Refused };
                let Ok(mut record) = serde_json::from_slice::<OrderRecord>(&entry.value) else { return Reply::Refused };
                if record.answer.replace(answer.clone()).is_some() {
                    return Reply::Refused;
                }
                Reply::Done(self.change(vec![(key.clone(), serde_json::to_vec(&record).ok())], None), Vec::new())
            }
            Call::Waiting { node, .. } => {
                let prefix = format!("{}{}/", keys::ORDERS, keys::part(&super::node_name(*node)));
                let orders = self.entries.values().filter(|entry| entry.key.starts_with(&prefix));
                Reply::Listing(orders.cloned().collect(), Revision(self.revision))
            }
            Call::List => Reply::Listing(self.entries.values().cloned().collect(), Revision(self.revision)),
        }
    }

    /// Orders that have been answered, or that nobody waits for any more, are deleted.
    pub fn sweep_orders(&mut self, before: u64) {
        let old = |entry: &&Entry| entry.key.starts_with(keys::ORDERS) && entry.revision.0 < before;
        let old: Vec<_> = self.entries.values().filter(old).map(|entry| (entry.key.clone(), None)).collect();
        if !old.is_empty() {
            self.change(old, None);
        }
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }
}

fn leader_key() -> String {
    format!("{}rebalance", keys::LEADERS)
}
