//! What must hold, whatever happens. It sees what comes of things, never how they are done, and keeps the first thing that is wrong.

use super::dice::Dice;
use super::end::End;
use super::node::Node;
use super::world::{EndKey, World};
use super::{MS, owner_of};
use crate::order::OrderRecord;
use scalefabric_fabric::FabricError;
use scalefabric_fabric::directory::{ConnectionId, Order, OrderResult};
use scalefabric_fabric::session::Role;
use std::collections::{BTreeMap, BTreeSet};

/// How much later than its overlap a key may be withdrawn: the process looks at its timers that often.
const SLACK_NS: u64 = 200 * MS;
/// Before the end so long nothing is moved any more.
pub const REST_NS: u64 = 20_000 * MS;

#[derive(Debug, Default)]
pub struct Checker {
    /// The first thing that is wrong.
    pub wrong: Option<String>,
    /// Applications send nothing more.
    pub is_ending: bool,
    /// What there was to see: a run in which nothing happens proves nothing.
    pub seen: Seen,
    expected: BTreeMap<EndKey, u64>,
    /// Tokens of orders by their names.
    tokens: BTreeMap<String, u64>,
    highest_granted: u64,
    granted: Vec<u64>,
    /// Connections that have been up, by side, and those of which an end's process has died.
    up: [BTreeSet<ConnectionId>; 2],
    excused: BTreeSet<ConnectionId>,
    last_move: u64,
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub received: u64,
    pub leaders: u64,
    pub orders: u64,
    pub moves: u64,
    pub rolled_back: u64,
    pub fenced: u64,
    pub closed: u64,
    pub old_keys: u64,
    pub connections: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.received += other.received;
        self.leaders += other.leaders;
        self.orders += other.orders;
        self.moves += other.moves;
        self.rolled_back += other.rolled_back;
        self.fenced += other.fenced;
        self.closed += other.closed;
        self.old_keys += other.old_keys;
        self.connections += other.connections;
    }
}

impl Checker {
    fn is_wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// The duty was given under a token.
    pub fn granted(&mut self, token: u64, before: Option<u64>) {
        self.seen.leaders += 1;
        if token <= self.highest_granted || before.is_some() {
            self.is_wrong(|| format!("the duty was given with token {token} while {before:?} had it"));
        }
        self.highest_granted = token;
        self.granted.push(token);
    }

    /// The token of somebody who led before the one who leads now.
    pub fn former_leader(&self, dice: &mut Dice) -> Option<u64> {
        let former = self.granted.len().checked_sub(1).filter(|count| *count > 0)?;
        Some(self.granted[dice.index(former)])
    }

    /// A replica whose clock runs believes that it leads; who leads by the store.
    pub fn leads(&mut self, believed: Option<u64>, holder: Option<u64>) {
        if let Some(token) = believed.filter(|_| believed != holder) {
            self.is_wrong(|| format!("a replica believes in its token {token} when {holder:?} has the duty"));
        }
    }

    /// An order is in the store.
    pub fn ordered(&mut self, key: &str, value: &[u8]) {
        self.seen.orders += 1;
        let id = crate::keys::parts(key).and_then(|parts| parts.into_iter().nth(1)).unwrap_or_default();
        if let Ok(record) = serde_json::from_slice::<OrderRecord>(value) {
            self.tokens.insert(id, crate::client::token(&record.order).0);
        }
    }

    /// An agent was told of an order.
    pub fn heard(&mut self, _: usize, id: &str, token: u64) {
        self.tokens.insert(id.into(), token);
    }

    /// A process carries an order out: no newer authority may have been heard at its node.
    pub fn given(&mut self, node: &Node, order: &Order) {
        let id = node.orders.iter().find(|(_, other)| *other == order).map(|(id, _)| id.clone());
        let token = id.as_ref().and_then(|id| self.tokens.get(id)).copied();
        match token {
            Some(token) if token >= node.known_token => {}
            other => self.is_wrong(|| {
                format!("{order:?} is carried out by authority {other:?} when {} had been heard", node.known_token)
            }),
        }
    }

    /// An order was answered.
    pub fn answered(&mut self, result: &OrderResult, now: u64) {
        match result {
            OrderResult::Done { .. } => {
                self.seen.moves += 1;
                self.last_move = now;
            }
            OrderResult::RolledBack { .. } => self.seen.rolled_back += 1,
            OrderResult::Fenced { .. } => self.seen.fenced += 1,
            OrderResult::Rotated { .. } => {}
        }
    }

    /// The application received a message.
    pub fn received(&mut self, key: &EndKey, number: u64) {
        self.seen.received += 1;
        let expected = self.expected.entry(key.clone()).or_default();
        let due = *expected;
        *expected += 1;
        if number != due {
            self.is_wrong(|| format!("{key:?} received message {number} when {due} was due"));
        }
    }

    /// Data flows on a connection.
    pub fn used(&mut self, end: &End) {
        let is_new = self.up[usize::from(end.role == Role::Follower)].insert(end.id.clone());
        if end.role == Role::Leader {
            self.seen.connections += u64::from(is_new);
            self.met_by(&end.tenant, &end.service);
        }
    }

    /// A connection has come to a process.
    pub fn met(&mut self, _: &EndKey, tenant: &str, service: &str) {
        self.met_by(tenant, service);
    }

    /// Between some tenants nothing was ever allowed.
    fn met_by(&mut self, tenant: &str, service: &str) {
        let owner = owner_of(service);
        let may = owner == tenant || service.starts_with("blue.open.");
        if !may {
            self.is_wrong(|| format!("`{tenant}` reached `{service}`, which belongs to `{owner}`"));
        }
    }

    /// Memory was written with a key.
    pub fn key_used(&mut self, (now_key, before): (u32, Option<(u32, u64)>), used: u32, now: u64) {
        if used == now_key {
            return;
        }
        self.seen.old_keys += 1;
        match before {
            Some((old, until)) if old == used && now <= until + SLACK_NS => {}
            other => self.is_wrong(|| {
                format!("key {used} was good at {} ms; the one of now is {now_key}, before it {other:?}", now / MS)
            }),
        }
    }

    /// The process of an end has died.
    pub fn died(&mut self, key: &EndKey) {
        self.excused.insert(key.1.clone());
    }

    /// An end is over.
    pub fn closed(&mut self, key: &EndKey, error: &FabricError) {
        self.seen.closed += 1;
        // One that was never up on both sides may be given up: its maker is told so.
        if self.up.iter().all(|side| side.contains(&key.1)) && !self.excused.contains(&key.1) {
            self.is_wrong(|| format!("{key:?} was lost although both processes live: {}", error.message));
        }
        self.excused.insert(key.1.clone());
    }

    /// All is over: every connection that a port could carry is up and has brought everything, and nothing moves any more.
    pub fn conclude(&mut self, world: &World) {
        let ends = &world.ends;
        let alive = ends.iter().filter(|(_, end)| end.closed.is_none() && end.role == Role::Leader);
        for (key, end) in alive {
            let peer = ends.iter().find(|((slot, id), _)| *id == key.1 && *slot != key.0).map(|(_, peer)| peer);
            let Some(peer) = peer.filter(|peer| peer.closed.is_none()) else {
                self.is_wrong(|| format!("{key:?} lives, and its other end does not"));
                continue;
            };
            for (one, other) in [(end, peer), (peer, end)] {
                if !one.is_up() || !one.is_settled() || other.delivered != one.sent {
                    let session = format!("{:?}", one.session);
                    self.is_wrong(|| {
                        format!(
                            "{key:?}, {:?}: up {}, settled {}, sent {}, received {}\n{session}",
                            one.role,
                            one.is_up(),
                            one.is_settled(),
                            one.sent,
                            other.delivered
                        )
                    });
                }
            }
        }
        for (slot, process) in world.processes.iter().enumerate() {
            let mine = |service: &&String| owner_of(service) == process.tenant;
            for service in process.wants.iter().filter(mine) {
                let has = ends.iter().any(|((of, _), end)| *of == slot && end.service == *service && end.is_up());
                if !has {
                    let known = scalefabric_fabric::Directory::resolve(&process.directory, service);
                    self.is_wrong(|| format!("process {slot} is not connected to `{service}`, known at {known:?}"));
                }
            }
        }
        if self.last_move + REST_NS > world.now {
            let at = self.last_move / MS;
            self.is_wrong(|| format!("it does not come to rest: a connection was moved at {at} ms"));
        }
    }
}
