//! A simulated replica: the shipped decider, driven as `rebalance::driver` drives it, the duty by the rules of `leader`, and sessions with agents that write into the
//! store what they tell, one guarded transaction at a time, as `service::session` does. What it asks of the store and tells agents is returned.

use super::node::{Down, Up};
use super::store::{Call, Reply};
use super::{MS, node_name};
use crate::keys;
use crate::leader::{INTERVAL, TRUSTED};
use crate::message::Answer;
use crate::order::OrderRecord;
use crate::rebalance::{Decider, DeciderOptions, UtilisationReport, node_of};
use crate::store::{Entry, Event, Revision};
use scalefabric_fabric::balance::Policy;
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, FencingToken, Order, OrderResult, ServiceAddress};
use std::collections::{BTreeMap, BTreeSet};

/// The lead is believed for so long after it was last seen held, ms, as in the driver.
const LEAD_MS: u64 = 1_000;
/// Keys of one transaction.
const TOGETHER: usize = 50;

/// Whether the duty is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Asked for again then.
    No {
        again: u64,
    },
    Asked,
    /// Renewed then, by the replica's clock at the time of asking.
    Held {
        token: u64,
        renewed: u64,
        asked: Option<u64>,
    },
}

/// A session with an agent.
#[derive(Debug)]
struct Session {
    node: usize,
    revision: Option<Revision>,
    /// What the store has of the node.
    keys: BTreeSet<String>,
    /// What must be written; `None`: deleted.
    pending: BTreeMap<String, Option<Vec<u8>>>,
    writing: bool,
    wants: BTreeSet<String>,
    kept: u64,
}

/// A replica.
#[derive(Debug)]
pub struct Replica {
    pub name: String,
    pub incarnation: u64,
    pub alive: bool,
    /// What its clock is behind the world's: it stood still while the machine slept, last from then until then.
    behind: u64,
    slept: (u64, u64),
    pub paused_until: u64,
    pub decider: Decider,
    duty: Duty,
    sessions: BTreeMap<u64, Session>,
    /// Revision up to which it has seen the store; `None`: nothing yet, a listing is needed.
    pub seen: Option<u64>,
    listing: bool,
    services: BTreeMap<String, BTreeMap<String, ServiceAddress>>,
    policy: BTreeMap<String, serde_json::Value>,
    orders: BTreeMap<String, Order>,
    serial: u64,
    /// Reports for the other replicas.
    pub published: Vec<UtilisationReport>,
    pub calls: Vec<Call>,
    pub tells: Vec<(u64, Down)>,
    pub ended: Vec<u64>,
}

impl Replica {
    pub fn start(number: usize, incarnation: u64, policy: &Policy) -> Self {
        let name = format!("c{number}");
        Self {
            name,
            incarnation,
            alive: true,
            behind: 0,
            slept: (0, 0),
            paused_until: 0,
            decider: Decider::new(DeciderOptions::default(), policy.clone()).expect("the policy is good"),
            duty: Duty::No { again: 0 },
            sessions: BTreeMap::new(),
            seen: None,
            listing: false,
            services: BTreeMap::new(),
            policy: BTreeMap::new(),
            orders: BTreeMap::new(),
            serial: 0,
            published: Vec::new(),
            calls: Vec::new(),
            tells: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn clock(&self, now: u64) -> u64 {
        now - self.behind - (now.min(self.slept.1) - self.slept.0.min(now))
    }

    /// The machine sleeps, and its clock with it.
    pub fn sleep(&mut self, now: u64, until: u64) {
        self.behind = now - self.clock(now);
        self.slept = (now, until);
    }

    /// Whether its clock has always run.
    pub fn is_awake(&self) -> bool {
        (self.behind, self.slept) == (0, (0, 0))
    }

    /// The token it leads with, as far as it knows.
    pub fn token(&self) -> Option<u64> {
        match self.duty {
            Duty::Held { token, .. } => Some(token),
            _ => None,
        }
    }

    /// A tenth of a second has passed.
    pub fn tick(&mut self, now: u64) {
        let clock = self.clock(now);
        let trusted = TRUSTED.as_nanos() as u64;
        let interval = INTERVAL.as_nanos() as u64;
        match self.duty {
            Duty::Held { renewed, .. } if clock >= renewed + trusted => {
                self.duty = Duty::No { again: clock + interval }
            }
            Duty::Held { token, renewed, asked: None } if clock >= renewed + interval => {
                self.duty = Duty::Held { token, renewed, asked: Some(clock) };
                self.calls.push(Call::Renew { token, asked: clock });
            }
            Duty::No { again } if clock >= again => {
                self.duty = Duty::Asked;
                self.calls.push(Call::Stand { name: self.name.clone(), asked: clock });
            }
            _ => {}
        }
        let now_ms = clock / MS;
        match self.token() {
            Some(token) => self.decider.lead(FencingToken(token), now_ms + LEAD_MS, now_ms),
            None => self.decider.step_down(),
        }
        for order in self.decider.poll_orders(now_ms) {
            let Order::Move { connection, .. } = &order else { continue };
            self.serial += 1;
            let id = format!("{}-{}-{}", self.name, self.incarnation, self.serial);
            let key = keys::order(node_of(connection), &id);
            let record = OrderRecord { order: order.clone(), by: self.name.clone(), answer: None };
            self.orders.insert(key.clone(), order);
            self.calls.push(Call::Order { key, value: serde_json::to_vec(&record).expect("JSON") });
        }
        if self.seen.is_none() && !self.listing {
            self.listing = true;
            self.calls.push(Call::List);
        }
        for session in self.sessions.values_mut() {
            if now >= session.kept + 5_000 * MS {
                session.kept = now;
                self.calls.push(Call::KeepNode { node: session.node });
            }
        }
    }

    /// The store has answered.
    pub fn answered(&mut self, call: &Call, reply: Reply, now: u64) {
        let clock = self.clock(now);
        let again = clock + INTERVAL.as_nanos() as u64;
        match (call, reply) {
            (Call::Stand { asked, .. }, Reply::Done(revision, _)) => {
                self.duty = Duty::Held { token: revision.0, renewed: *asked, asked: None };
            }
            (Call::Stand { .. }, _) => self.duty = Duty::No { again },
            (Call::Renew { token, asked }, reply) => {
                if let Duty::Held { token: own, renewed, .. } = self.duty
                    && own == *token
                {
                    self.duty = match reply {
                        Reply::Done(..) => Duty::Held { token: own, renewed: *asked, asked: None },
                        Reply::Refused => Duty::No { again },
                        _ => Duty::Held { token: own, renewed, asked: None },
                    };
                }
            }
            (Call::Join { stream, .. }, Reply::Done(revision, known)) => {
                if let Some(session) = self.sessions.get_mut(stream) {
                    session.revision = Some(revision);
                    session.keys.extend(known);
                    self.calls.push(Call::Waiting { node: session.node, stream: *stream });
                    self.tells.push((*stream, Down::Welcome));
                    // One that has not read the store knows of no rules, and says nothing of them.
                    if self.seen.is_some() {
                        self.tells.push((*stream, self.policy_message()));
                    }
                }
            }
            (Call::Join { stream, .. } | Call::Write { stream, .. }, Reply::Refused) => self.end(*stream),
            (Call::Join { node, incarnation, stream }, _) if self.sessions.contains_key(stream) => {
                self.calls.push(Call::Join { node: *node, incarnation: *incarnation, stream: *stream });
            }
            (Call::Join { .. }, _) => {}
            (Call::Write { stream, changes, .. }, reply) => self.written(*stream, changes, &reply),
            (Call::List, Reply::Listing(entries, revision)) => {
                self.listing = false;
                self.take_listing(entries, revision.0);
            }
            (Call::List, _) => self.listing = false,
            (Call::Waiting { stream, .. }, Reply::Listing(entries, _)) => {
                for entry in entries {
                    self.tells.extend(waiting(&entry).map(|order| (*stream, order)));
                }
            }
            // The session ends, and the agent joins again.
            (Call::Waiting { stream, .. }, _) => self.end(*stream),
            (Call::Answer { .. }, Reply::Unknown) => self.calls.push(call.clone()),
            _ => {}
        }
    }

    fn end(&mut self, stream: u64) {
        if self.sessions.remove(&stream).is_some() {
            self.ended.push(stream);
        }
    }

    fn written(&mut self, stream: u64, changes: &[(String, Option<Vec<u8>>)], reply: &Reply) {
        let Some(session) = self.sessions.get_mut(&stream) else { return };
        session.writing = false;
        for (key, value) in changes {
            match reply {
                Reply::Done(..) if value.is_some() => _ = session.keys.insert(key.clone()),
                Reply::Done(..) => _ = session.keys.remove(key),
                // Not known whether it is there: it must be deleted if it is to go.
                _ => {
                    session.keys.insert(key.clone());
                    session.pending.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        self.write(stream);
    }

    fn write(&mut self, stream: u64) {
        let Some(session) = self.sessions.get_mut(&stream) else { return };
        let (false, Some(revision)) = (session.writing, session.revision) else { return };
        let known = &session.keys;
        session.pending.retain(|key, value| value.is_some() || known.contains(key));
        let mut changes = Vec::new();
        while changes.len() < TOGETHER
            && let Some(one) = session.pending.pop_first()
        {
            changes.push(one);
        }
        if !changes.is_empty() {
            session.writing = true;
            self.calls.push(Call::Write { node: session.node, stream, revision, changes });
        }
    }

    /// A stream has ended.
    pub fn lose(&mut self, stream: u64) {
        self.sessions.remove(&stream);
    }

    /// An agent says something.
    pub fn hear(&mut self, node: usize, stream: u64, message: Up, now: u64) {
        match message {
            Up::Hello { incarnation } => {
                let session = Session {
                    node,
                    revision: None,
                    keys: BTreeSet::new(),
                    pending: BTreeMap::new(),
                    writing: false,
                    wants: BTreeSet::new(),
                    kept: now,
                };
                self.sessions.insert(stream, session);
                self.calls.push(Call::Join { node, incarnation, stream });
            }
            Up::Report { whole, records, gone, services, withdrawn } => {
                let Some(session) = self.sessions.get_mut(&stream) else { return };
                let name = node_name(node);
                if whole {
                    // What the store has and the agent does not name is gone.
                    let stale: Vec<String> = session.keys.iter().cloned().collect();
                    session.pending.extend(stale.into_iter().map(|key| (key, None)));
                }
                for (process, record) in records {
                    let key = keys::connection(&name, &process, &record.id);
                    session.pending.insert(key, serde_json::to_vec(&record).ok());
                }
                for (process, id) in gone {
                    session.pending.insert(keys::connection(&name, &process, &id), None);
                }
                for address in services {
                    session.pending.insert(keys::service(&address), serde_json::to_vec(&address).ok());
                }
                for address in withdrawn {
                    session.pending.insert(keys::service(&address), None);
                }
                self.write(stream);
            }
            Up::Want(wants) => {
                let Some(session) = self.sessions.get_mut(&stream) else { return };
                let wants: BTreeSet<String> = wants.into_iter().collect();
                let new: Vec<String> = wants.difference(&session.wants).cloned().collect();
                session.wants = wants;
                for service in new {
                    let message = self.service_message(&service);
                    self.tells.push((stream, message));
                }
            }
            Up::Answer(id, answer) => {
                let key = keys::order(&node_name(node), &id);
                self.calls.push(Call::Answer { key, answer });
            }
            Up::Load(report) => {
                let now_ms = self.clock(now) / MS;
                self.decider.handle_report((*report).clone(), now_ms);
                self.published.push(*report);
            }
        }
    }

    /// Another replica's agents.
    pub fn hear_neighbour(&mut self, report: UtilisationReport, now: u64) {
        let now_ms = self.clock(now) / MS;
        self.decider.handle_report(report, now_ms);
    }

    fn service_message(&self, service: &str) -> Down {
        let known = self.services.get(service);
        Down::Services(service.into(), known.into_iter().flat_map(|nodes| nodes.values().cloned()).collect())
    }

    fn policy_message(&self) -> Down {
        Down::Policy(serde_json::to_vec(&self.policy).expect("JSON"))
    }

    /// Changes of the store, up to a revision.
    pub fn take_events(&mut self, events: &[Event], up_to: u64, now: u64) {
        let (mut services, mut policy) = (BTreeSet::new(), false);
        for event in events {
            match event {
                Event::Put(entry) => self.take_put(entry, &mut services, &mut policy, now),
                Event::Delete { key, .. } => self.take_delete(key, &mut services, &mut policy),
            }
        }
        self.seen = Some(up_to);
        self.spread(services, policy);
    }

    fn take_listing(&mut self, entries: Vec<Entry>, revision: u64) {
        self.services.clear();
        self.policy.clear();
        let mut services = BTreeSet::new();
        let mut policy = true;
        let mut records = Vec::new();
        for entry in &entries {
            if entry.key.starts_with(keys::CONNECTIONS) {
                records.extend(own_record(&entry.key, &entry.value).map(std::sync::Arc::new));
            } else {
                self.take_put(entry, &mut services, &mut policy, 0);
            }
        }
        self.decider.handle_listing(records);
        self.seen = Some(revision);
        let wanted = self.sessions.values().flat_map(|session| session.wants.iter().cloned());
        services.extend(wanted);
        self.spread(services, policy);
    }

    fn take_put(&mut self, entry: &Entry, services: &mut BTreeSet<String>, policy: &mut bool, now: u64) {
        let key = entry.key.as_str();
        let parts = keys::parts(key).unwrap_or_default();
        if key.starts_with(keys::CONNECTIONS) {
            if let Some(record) = own_record(key, &entry.value) {
                self.decider.handle_record(record);
            }
        } else if key.starts_with(keys::ORDERS) {
            if let Some(message) = waiting(entry) {
                let of_node = |session: &Session| node_name(session.node) == parts[0] && session.revision.is_some();
                let streams = self.sessions.iter().filter(|(_, session)| of_node(session)).map(|(stream, _)| *stream);
                let tells: Vec<_> = streams.map(|stream| (stream, message.clone())).collect();
                self.tells.extend(tells);
            } else if let Ok(OrderRecord { answer: Some(answer), .. }) = serde_json::from_slice(&entry.value)
                && let Some(order) = self.orders.remove(key)
            {
                let now_ms = self.clock(now) / MS;
                self.decider.handle_result(&order, result_of(answer), now_ms);
            }
        } else if key.starts_with(keys::SERVICES) {
            if let Ok(address) = serde_json::from_slice::<ServiceAddress>(&entry.value) {
                services.insert(address.service.clone());
                self.services.entry(address.service.clone()).or_default().insert(address.node.clone(), address);
            }
        } else if key.starts_with(keys::TENANTS)
            && let Ok(value) = serde_json::from_slice(&entry.value)
        {
            self.policy.insert(parts[0].clone(), value);
            *policy = true;
        }
    }

    fn take_delete(&mut self, key: &str, services: &mut BTreeSet<String>, policy: &mut bool) {
        let parts = keys::parts(key).unwrap_or_default();
        if key.starts_with(keys::CONNECTIONS) {
            if let Some(id) = connection_of(&parts)
                && parts[0] == node_of(&id)
            {
                self.decider.forget(&id);
            }
        } else if key.starts_with(keys::SERVICES) {
            if let Some(nodes) = self.services.get_mut(&parts[0]) {
                nodes.remove(&parts[1]);
            }
            services.insert(parts[0].clone());
        } else if key.starts_with(keys::TENANTS) {
            self.policy.remove(&parts[0]);
            *policy = true;
        }
    }

    /// Tells sessions what concerns them, in the order in which the dispatcher does.
    fn spread(&mut self, services: BTreeSet<String>, policy: bool) {
        let welcomed: Vec<u64> =
            self.sessions.iter().filter(|(_, session)| session.revision.is_some()).map(|(stream, _)| *stream).collect();
        if policy {
            let message = self.policy_message();
            self.tells.extend(welcomed.iter().map(|stream| (*stream, message.clone())));
        }
        for service in services {
            let message = self.service_message(&service);
            let wanting = welcomed.iter().filter(|stream| self.sessions[*stream].wants.contains(&service));
            let tells: Vec<_> = wanting.map(|stream| (*stream, message.clone())).collect();
            self.tells.extend(tells);
        }
    }
}

/// An order that has no answer yet, as its agent is told of it.
fn waiting(entry: &Entry) -> Option<Down> {
    let record: OrderRecord = serde_json::from_slice(&entry.value).ok()?;
    let id = keys::parts(&entry.key)?.into_iter().nth(1)?;
    record.answer.is_none().then_some(Down::Order(id, record.order))
}

/// The connection of a key's parts: node, process, origin, number.
fn connection_of(parts: &[String]) -> Option<ConnectionId> {
    Some(ConnectionId { origin: parts.get(2)?.clone(), serial: parts.get(3)?.parse().ok()? })
}

/// Both ends tell of a connection; it is moved by the one that made it.
fn own_record(key: &str, value: &[u8]) -> Option<ConnectionRecord> {
    let parts = keys::parts(key)?;
    let record: ConnectionRecord = serde_json::from_slice(value).ok()?;
    (parts.first()? == node_of(&record.id)).then_some(record)
}

fn result_of(answer: Answer) -> OrderResult {
    match answer {
        Answer::Answered { outcome } => outcome,
        Answer::NotHere { reason } => OrderResult::RolledBack { reason },
    }
}
