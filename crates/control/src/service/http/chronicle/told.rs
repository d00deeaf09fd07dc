//! What the store tells beside the directory, in sentences: orders and how they ended, tenants, settings, keys, replicas. It also remembers why connections
//! were ordered to move, so that a move that is seen has its why on every replica. It decides nothing.

use super::known::Known;
use super::log::{Happening, Kind};
use super::port_name;
use crate::keys;
use crate::message::Answer;
use crate::order::OrderRecord;
use crate::rebalance::{Settings, node_of};
use crate::rotation::{RotationRecord, Schedule};
use crate::service::{ReplicaRecord, Shared};
use crate::store::Entry;
use crate::tenant::Tenants;
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{ConnectionId, Order, OrderResult};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Moves whose why is remembered.
const REMEMBERED: usize = 4_096;

/// What was told.
#[derive(Debug, Default)]
pub struct Diary {
    tenants: Tenants,
    replicas: BTreeSet<String>,
    /// Keys of orders that are on their way.
    given: BTreeSet<String>,
    whys: HashMap<ConnectionId, (Path, String)>,
    order_of_whys: VecDeque<ConnectionId>,
}

impl Diary {
    /// What a listing shows of what is told here; gives what differs from what was known. Orders and rotations of the past are no news.
    pub fn seed(&mut self, entries: &[Entry]) -> Vec<Happening> {
        let mut news = Vec::new();
        for entry in entries {
            let past = entry.key.starts_with(keys::ORDERS) || entry.key.starts_with(keys::KEYS);
            let told = self.hear(&entry.key, &entry.value);
            news.extend(told.filter(|_| !past));
        }
        news
    }

    /// A key has a new value.
    pub fn hear(&mut self, key: &str, value: &[u8]) -> Option<Happening> {
        if key.starts_with(keys::ORDERS) {
            let record: OrderRecord = serde_json::from_slice(value).ok()?;
            let node = keys::parts(key)?.into_iter().next()?;
            return match &record.answer {
                None => self.given.insert(key.to_owned()).then(|| self.given(&node, &record)),
                Some(answer) => {
                    self.given.remove(key);
                    Some(ended(&node, &record, answer))
                }
            };
        }
        if key.starts_with(keys::TENANTS) {
            let fresh: Tenants = serde_json::from_slice(value).ok()?;
            let text = tenants_changes(&self.tenants, &fresh)?;
            self.tenants = fresh;
            return Some(Happening::new(Kind::TenantsChanged, text));
        }
        if key.starts_with(keys::REPLICAS) {
            let replica: ReplicaRecord = serde_json::from_slice(value).ok()?;
            let text = format!("replica {} has come, version {}", replica.name, replica.version);
            return self.replicas.insert(replica.name).then(|| Happening::new(Kind::ReplicaJoined, text));
        }
        if key.starts_with(keys::KEYS) {
            return keys_news(key, value);
        }
        None
    }

    /// A key is gone.
    pub fn hear_delete(&mut self, key: &str) -> Option<Happening> {
        let first = keys::parts(key)?.into_iter().next()?;
        if key.starts_with(keys::ORDERS) {
            self.given.remove(key);
        } else if key.starts_with(keys::REPLICAS) && self.replicas.remove(&first) {
            return Some(Happening::new(
                Kind::ReplicaGone,
                format!("nothing was heard of replica {first} for its lease"),
            ));
        } else if key.starts_with(keys::LEADERS) {
            return Some(Happening::new(Kind::LeaderChanged, format!("nobody has the duty to {first}")));
        } else if key.starts_with(keys::TENANTS) {
            self.tenants = Tenants::default();
            return Some(Happening::new(
                Kind::TenantsChanged,
                "the rules are gone: everybody may connect to everything",
            ));
        }
        None
    }

    /// Why a connection took a path: the order that said so, else the decision, else what its port suggests.
    pub fn why(&self, shared: &Shared, known: &Known, id: &ConnectionId, from: &Path, to: &Path) -> Option<String> {
        if let Some((_, why)) = self.whys.get(id).filter(|(path, _)| path == to) {
            return Some(why.clone());
        }
        if let Some(decision) = shared.rebalancing.decisions(Some(id), 1).pop().filter(|decision| decision.to == *to) {
            return Some(decision.text);
        }
        let port = port_name(node_of(id), from);
        known.is_down(&port).then(|| format!("{port} is down, and the connection left by itself"))
    }

    fn given(&mut self, node: &str, record: &OrderRecord) -> Happening {
        let by = &record.by;
        match &record.order {
            Order::Move { connection, path, reason, .. } => {
                self.remember(connection, path, reason);
                let to = port_name(node, path);
                let text = format!("{by} ordered {} {} to {to}", connection.origin, connection.serial);
                let happening = Happening::new(Kind::OrderGiven, text).of_node(node).of_connection(connection);
                Happening { to: Some(to), why: Some(reason.clone()), ..happening }
            }
            Order::Close { connection, reason, .. } => {
                let text = format!("{by} ordered {} {} closed", connection.origin, connection.serial);
                let happening = Happening::new(Kind::OrderGiven, text).of_node(node).of_connection(connection);
                Happening { why: Some(reason.clone()), ..happening }
            }
            Order::RotateKeys { .. } => {
                Happening::new(Kind::OrderGiven, format!("{by} ordered new keys on {node}")).of_node(node)
            }
        }
    }

    fn remember(&mut self, id: &ConnectionId, path: &Path, why: &str) {
        if self.whys.insert(id.clone(), (path.clone(), why.to_owned())).is_none() {
            self.order_of_whys.push_back(id.clone());
        }
        if self.order_of_whys.len() > REMEMBERED
            && let Some(oldest) = self.order_of_whys.pop_front()
        {
            self.whys.remove(&oldest);
        }
    }
}

/// What an order asked for, in few words.
fn asked(node: &str, order: &Order) -> (String, Option<ConnectionId>) {
    match order {
        Order::Move { connection, path, .. } => {
            let to = port_name(node, path);
            (format!("{} {} to {to}", connection.origin, connection.serial), Some(connection.clone()))
        }
        Order::Close { connection, .. } => {
            (format!("close {} {}", connection.origin, connection.serial), Some(connection.clone()))
        }
        Order::RotateKeys { .. } => (format!("new keys on {node}"), None),
    }
}

fn ended(node: &str, record: &OrderRecord, answer: &Answer) -> Happening {
    let (what, connection) = asked(node, &record.order);
    let (kind, text, why) = match answer {
        Answer::Answered { outcome: OrderResult::Done { pause_us, .. } } => {
            (Kind::OrderDone, format!("done: {what}; data paused for {pause_us} µs"), None)
        }
        Answer::Answered { outcome: OrderResult::Rotated { keys, peers, late } } => (
            Kind::OrderDone,
            format!("done: {what}; {keys} registrations, {peers} peers told, {late} of them late"),
            None,
        ),
        Answer::Answered { outcome: OrderResult::RolledBack { reason } } => {
            (Kind::OrderFailed, format!("rolled back: {what}"), Some(reason.clone()))
        }
        Answer::Answered { outcome: OrderResult::Fenced { highest } } => (
            Kind::OrderFailed,
            format!("refused: {what}"),
            Some(format!("an order with the higher token {} was seen", highest.0)),
        ),
        Answer::NotHere { reason } => (Kind::OrderFailed, format!("not here: {what}"), Some(reason.clone())),
    };
    Happening { connection, why, ..Happening::new(kind, text).of_node(node) }
}

/// What differs between two sets of rules; `None`: nothing.
fn tenants_changes(old: &Tenants, new: &Tenants) -> Option<String> {
    if old == new {
        return None;
    }
    let mut parts = Vec::new();
    for tenant in &new.tenants {
        match old.find(&tenant.name) {
            None => parts.push(format!("{} is new", tenant.name)),
            Some(before) if before.quota != tenant.quota => parts.push(format!("{} has another quota", tenant.name)),
            Some(before) if before != tenant => parts.push(format!("{} has other rules", tenant.name)),
            Some(_) => {}
        }
    }
    let gone = old.tenants.iter().filter(|tenant| new.find(&tenant.name).is_none());
    parts.extend(gone.map(|tenant| format!("{} is gone", tenant.name)));
    if old.allow != new.allow {
        parts.push("other leave between tenants".to_owned());
    }
    Some(if parts.is_empty() { "the same tenants in another order".to_owned() } else { parts.join("; ") })
}

/// A value as JSON writes it, without quotes.
fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).map_or_else(|_| "?".into(), |value| value.to_string().trim_matches('"').to_owned())
}

/// What differs between two settings of rebalancing.
pub fn settings_changes(old: &Settings, new: &Settings) -> String {
    let mut parts = Vec::new();
    if old.freeze != new.freeze {
        parts.push(format!("freeze: {} instead of {}", word(&new.freeze), word(&old.freeze)));
    }
    if old.dry_run != new.dry_run {
        parts.push(format!("dry run {}", if new.dry_run { "on" } else { "off" }));
    }
    let added = new.drained.iter().filter(|port| !old.drained.contains(port));
    parts.extend(added.map(|port| format!("{port} is drained")));
    let removed = old.drained.iter().filter(|port| !new.drained.contains(port));
    parts.extend(removed.map(|port| format!("{port} may be used again")));
    if old.pinned != new.pinned {
        parts.push(format!("{} connections pinned", new.pinned.len()));
    }
    if old.moves != new.moves {
        parts.push(format!("{} moves wished", new.moves.len()));
    }
    if old.policy != new.policy {
        let fields = |settings: &Settings| match serde_json::to_value(&settings.policy) {
            Ok(serde_json::Value::Object(map)) => map.into_iter().collect::<BTreeMap<_, _>>(),
            _ => BTreeMap::new(),
        };
        let before = fields(old);
        let changed = fields(new).into_iter().filter(|(name, value)| before.get(name) != Some(value));
        parts.extend(changed.map(|(name, value)| format!("{name}: {value}")));
    }
    parts.join("; ")
}

/// What a record of rotation tells. No key is ever in it.
fn keys_news(key: &str, value: &[u8]) -> Option<Happening> {
    match keys::parts(key)?.first()?.as_str() {
        "rotations" => {
            let record: RotationRecord = serde_json::from_slice(value).ok()?;
            let (text, why) = record.news()?;
            Some(Happening { why, ..Happening::new(Kind::KeysChanged, text) })
        }
        "schedule" => {
            let schedule: Schedule = serde_json::from_slice(value).ok()?;
            let text = match schedule.every_s {
                Some(every_s) => format!("keys are rotated every {every_s} s, overlap {} ms", schedule.overlap_ms),
                None => "keys are rotated on demand only".to_owned(),
            };
            Some(Happening::new(Kind::KeysChanged, text))
        }
        // When the schedule was followed last.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::PortName;
    use scalefabric_fabric::balance::Freeze;
    use scalefabric_fabric::directory::FencingToken;
    use scalefabric_verbs::Gid;

    fn order(answer: Option<Answer>) -> Vec<u8> {
        let path =
            Path { device: "sf0".into(), port_num: 2, sgid: Gid([1; 16]), dgid: Gid([2; 16]), flow_label: 0, dscp: 0 };
        let connection = ConnectionId { origin: "n1/7".into(), serial: 3 };
        let order = Order::Move { connection, path, token: FencingToken(1), reason: "n1/sf0/1 is hot".into() };
        serde_json::to_vec(&OrderRecord { order, by: "c1".into(), answer }).expect("JSON")
    }

    #[test]
    fn a_rotation_is_told_when_it_begins_and_when_it_ends() {
        let mut diary = Diary::default();
        let mut record: RotationRecord = serde_json::from_value(serde_json::json!({
            "serial": 7, "scope": "all", "overlap_ms": 10, "by": "operator", "reason": "audit", "begun_ms": 1,
            "state": "running", "nodes": { "n1": null, "n2": null }
        }))
        .expect("a record");
        let mut hear = |record: &RotationRecord| {
            let happening =
                diary.hear("keys/rotations/00000000000000000007", &serde_json::to_vec(record).expect("JSON"));
            happening.map(|happening| (happening.kind, happening.text, happening.why))
        };
        let begun = ("rotation 7: operator ordered new keys of all nodes".to_owned(), Some("audit".to_owned()));
        assert_eq!(hear(&record), Some((Kind::KeysChanged, begun.0, begun.1)));
        let rotated = |keys| Some(Answer::Answered { outcome: OrderResult::Rotated { keys, peers: 2, late: 0 } });
        record.nodes.insert("n1".into(), rotated(3));
        assert_eq!(hear(&record), None, "it goes on");
        record.nodes.insert("n2".into(), Some(Answer::NotHere { reason: "asleep".into() }));
        record.state = crate::rotation::RotationState::Incomplete;
        let (_, text, _) = hear(&record).expect("news");
        assert_eq!(text, "rotation 7 is incomplete: keys are as they were on n2");
        record.nodes.insert("n2".into(), rotated(4));
        record.state = crate::rotation::RotationState::Done;
        let (_, text, _) = hear(&record).expect("news");
        assert_eq!(text, "rotation 7 is done: 7 registrations of all nodes made anew, 4 peers told, 0 of them late");
        let schedule = diary.hear("keys/schedule", br#"{"every_s":86400,"overlap_ms":10000}"#).expect("news");
        assert_eq!(schedule.text, "keys are rotated every 86400 s, overlap 10000 ms");
        assert_eq!(diary.hear("keys/followed", b"5"), None);
    }

    #[test]
    fn an_order_is_told_when_it_is_given_and_when_it_ends() {
        let mut diary = Diary::default();
        let key = keys::order("n1", "c1-1");
        let given = diary.hear(&key, &order(None)).expect("news");
        assert_eq!((given.kind, given.why.as_deref()), (Kind::OrderGiven, Some("n1/sf0/1 is hot")));
        assert_eq!(given.text, "c1 ordered n1/7 3 to n1/sf0/2");
        assert_eq!(diary.hear(&key, &order(None)), None, "the same again");
        let done = Answer::Answered { outcome: OrderResult::Done { generation: 2, pause_us: 40 } };
        let done = diary.hear(&key, &order(Some(done))).expect("news");
        assert_eq!(
            (done.kind, done.text.as_str()),
            (Kind::OrderDone, "done: n1/7 3 to n1/sf0/2; data paused for 40 µs")
        );
        let away = diary.hear(&key, &order(Some(Answer::NotHere { reason: "no such".into() }))).expect("news");
        assert_eq!((away.kind, away.why.as_deref()), (Kind::OrderFailed, Some("no such")));
        assert!(diary.given.is_empty());
    }

    #[test]
    fn settings_and_tenants_are_told_by_what_differs() {
        let old = Settings::default();
        let drained = vec![PortName { node: "n1".into(), device: "sf0".into(), port_num: 1 }];
        let mut new = Settings { freeze: Freeze::Optional, dry_run: true, drained, ..Settings::default() };
        new.policy.hot_permille = 800;
        let text = settings_changes(&old, &new);
        assert_eq!(text, "freeze: optional instead of no; dry run on; n1/sf0/1 is drained; hot_permille: 800");
        assert!(settings_changes(&new, &old).contains("may be used again"));
        let rules = |text: &str| Tenants::from_toml(text).expect("rules");
        let red = rules("[[tenant]]\nname = \"red\"\npkey = 0x8001\n");
        let quota = rules("[[tenant]]\nname = \"red\"\npkey = 0x8001\nquota = { qps = 5 }\n");
        assert_eq!(tenants_changes(&Tenants::default(), &red).as_deref(), Some("red is new"));
        assert_eq!(tenants_changes(&red, &quota).as_deref(), Some("red has another quota"));
        assert_eq!(tenants_changes(&quota, &Tenants::default()).as_deref(), Some("red is gone"));
        assert_eq!(tenants_changes(&red, &red), None);
    }

    #[test]
    fn whys_are_remembered_for_the_latest_moves_only() {
        let mut diary = Diary::default();
        let path = |port_num| Path {
            device: "sf0".into(),
            port_num,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            flow_label: 0,
            dscp: 0,
        };
        for serial in 0..REMEMBERED as u64 + 10 {
            diary.remember(&ConnectionId { origin: "n/1".into(), serial }, &path(1), "x");
        }
        assert_eq!((diary.whys.len(), diary.order_of_whys.len()), (REMEMBERED, REMEMBERED));
    }
}
