//! The directory in memory: records by key, and for each field that can be asked by the keys that have it. It is told what happened and answers;
//! it never waits for anything but its own lock, which is held for one batch of changes or one answer.

use super::change::{Batch, Change, Changes};
use super::query::{Found, Query};
use super::{Located, NodeRecord};
use crate::keys;
use crate::store::{Entry, Event, Revision};
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, ServiceAddress};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::broadcast;

/// Batches that a slow watcher may be behind.
const BEHIND: usize = 1024;

/// The index.
#[derive(Debug)]
pub struct Index {
    inner: RwLock<Inner>,
    told: broadcast::Sender<Batch>,
}

#[derive(Debug, Default)]
struct Inner {
    revision: Revision,
    connections: BTreeMap<Arc<str>, Located>,
    by: Fields,
    nodes: BTreeMap<String, (Arc<NodeRecord>, Revision)>,
    services: BTreeMap<String, BTreeMap<(String, String), Arc<ServiceAddress>>>,
    names: HashMap<String, Arc<str>>,
    malformed: u64,
}

/// A field's value, and the keys that have it.
type Having<T> = HashMap<T, BTreeSet<Arc<str>>>;

#[derive(Debug, Default)]
struct Fields {
    node: Having<Arc<str>>,
    qp_num: Having<u32>,
    tenant: Having<String>,
    service: Having<String>,
    port: Having<(String, u8)>,
}

impl Default for Index {
    fn default() -> Self {
        Self { inner: RwLock::default(), told: broadcast::Sender::new(BEHIND) }
    }
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Size {
    /// Nodes.
    pub nodes: usize,
    /// Connections.
    pub connections: usize,
    /// Names of services.
    pub services: usize,
    /// Entries of the store that could not be read, since the start.
    pub malformed: u64,
}

impl Index {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew with what a listing of the store showed.
    pub fn handle_listing(&self, entries: &[Entry], revision: Revision) {
        let mut fresh = Inner { revision, ..Inner::default() };
        for entry in entries {
            fresh.put(entry);
        }
        let mut inner = self.write();
        *inner = fresh;
        let _ = self.told.send(Arc::new((revision, vec![Change::All])));
    }

    /// Takes in what a watch told.
    pub fn handle_events(&self, events: &[Event]) {
        let mut inner = self.write();
        let mut changes = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Put(entry) => {
                    inner.revision = entry.revision;
                    changes.extend(inner.put(entry));
                }
                Event::Delete { key, revision } => {
                    inner.revision = *revision;
                    changes.extend(inner.delete(key));
                }
            }
        }
        if !changes.is_empty() {
            // Under the lock, so that `snapshot` and the changes after it fit together.
            let _ = self.told.send(Arc::new((inner.revision, changes)));
        }
    }

    /// Looks connections up.
    pub fn find(&self, query: &Query) -> Found {
        let inner = self.read();
        let limit = query.limit();
        let mut connections = Vec::new();
        let mut last = None;
        let mut more = false;
        let mut take = |key: &Arc<str>, located: &Located| {
            if query.fits(&located.node, &located.record) {
                if connections.len() == limit {
                    more = true;
                    return false;
                }
                connections.push(located.clone());
                last = Some(Arc::clone(key));
            }
            true
        };
        let from = (Bound::Excluded(query.after.as_str()), Bound::Unbounded);
        match inner.by.narrowest(query) {
            Some(None) => {}
            Some(Some(keys)) => {
                keys.range::<str, _>(from)
                    .filter_map(|key| Some((key, inner.connections.get(key)?)))
                    .all(|(key, located)| take(key, located));
            }
            None => {
                inner.connections.range::<str, _>(from).all(|(key, located)| take(key, located));
            }
        }
        let next = last.filter(|_| more).map(|key| key.to_string());
        Found { connections, next, revision: inner.revision }
    }

    /// The ends of a connection at a node: one, or two if its peer is on the same node.
    pub fn ends(&self, node: &str, id: &ConnectionId) -> Vec<Located> {
        let inner = self.read();
        let keys = inner.by.node.get(node).into_iter().flatten();
        keys.filter_map(|key| inner.connections.get(key)).filter(|one| one.record.id == *id).cloned().collect()
    }

    /// Addresses of a service.
    pub fn service(&self, service: &str) -> Vec<Arc<ServiceAddress>> {
        self.read().services.get(service).map(|at| at.values().cloned().collect()).unwrap_or_default()
    }

    /// All addresses of all services.
    pub fn services(&self) -> (Vec<Arc<ServiceAddress>>, Revision) {
        let inner = self.read();
        (inner.services.values().flat_map(BTreeMap::values).cloned().collect(), inner.revision)
    }

    /// A node, and the revision of its record.
    pub fn node(&self, node: &str) -> Option<(Arc<NodeRecord>, Revision)> {
        self.read().nodes.get(node).cloned()
    }

    /// All nodes.
    pub fn nodes(&self) -> Vec<Arc<NodeRecord>> {
        self.read().nodes.values().map(|(node, _)| Arc::clone(node)).collect()
    }

    /// What it shows at least.
    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    /// How much there is.
    pub fn size(&self) -> Size {
        let inner = self.read();
        Size {
            nodes: inner.nodes.len(),
            connections: inner.connections.len(),
            services: inner.services.len(),
            malformed: inner.malformed,
        }
    }

    /// Changes from now on.
    pub fn changes(&self) -> Changes {
        Changes(self.told.subscribe())
    }

    /// All that is there, and every change after it.
    pub fn snapshot(&self, node: Option<&str>) -> (Vec<Change>, Revision, Changes) {
        let inner = self.read();
        let ours = |name: &str| node.is_none_or(|node| node == name);
        let nodes = inner.nodes.values().filter(|(one, _)| ours(&one.node)).map(|(one, _)| Change::Node(one.clone()));
        let connections = inner.connections.values().filter(|one| ours(&one.node)).cloned().map(Change::Connection);
        let services = inner.services.values().flat_map(BTreeMap::values);
        let services = services.filter(|one| ours(&one.node)).cloned().map(Change::Service);
        (nodes.chain(services).chain(connections).collect(), inner.revision, Changes(self.told.subscribe()))
    }
}

impl Inner {
    fn put(&mut self, entry: &Entry) -> Option<Change> {
        let change = if entry.key.starts_with(keys::CONNECTIONS) {
            self.put_connection(entry)
        } else if entry.key.starts_with(keys::SERVICES) {
            serde_json::from_slice::<ServiceAddress>(&entry.value).ok().map(|address| {
                let address = Arc::new(address);
                let at = self.services.entry(address.service.clone()).or_default();
                at.insert((address.node.clone(), address.exchange.clone()), Arc::clone(&address));
                Change::Service(address)
            })
        } else if entry.key.starts_with(keys::NODES) {
            serde_json::from_slice::<NodeRecord>(&entry.value).ok().map(|node| {
                let node = Arc::new(node);
                self.nodes.insert(node.node.clone(), (Arc::clone(&node), entry.revision));
                Change::Node(node)
            })
        } else {
            return None;
        };
        if change.is_none() {
            self.malformed += 1;
        }
        change
    }

    fn put_connection(&mut self, entry: &Entry) -> Option<Change> {
        let record: ConnectionRecord = serde_json::from_slice(&entry.value).ok()?;
        let mut parts = keys::parts(&entry.key)?.into_iter();
        let (node, process) = (parts.next()?, parts.next()?);
        let mut shared = |name| Arc::clone(self.names.entry(name).or_insert_with_key(|name| name.as_str().into()));
        let located = Located { node: shared(node), process: shared(process), record: Arc::new(record) };
        let key = match self.connections.get_key_value(entry.key.as_str()) {
            Some((key, old)) => {
                let (key, old) = (Arc::clone(key), old.clone());
                self.by.remove(&key, &old);
                key
            }
            None => entry.key.as_str().into(),
        };
        self.by.add(&key, &located);
        self.connections.insert(key, located.clone());
        Some(Change::Connection(located))
    }

    fn delete(&mut self, key: &str) -> Option<Change> {
        if key.starts_with(keys::CONNECTIONS) {
            let (key, located) = self.connections.remove_entry(key)?;
            self.by.remove(&key, &located);
            let Located { node, process, record } = located;
            return Some(Change::ConnectionGone { node, process, id: record.id.clone() });
        }
        let mut parts = keys::parts(key)?.into_iter();
        if key.starts_with(keys::SERVICES) {
            let (service, node, exchange) = (parts.next()?, parts.next()?, parts.next()?);
            let at = self.services.get_mut(&service)?;
            at.remove(&(node.clone(), exchange.clone()))?;
            if at.is_empty() {
                self.services.remove(&service);
            }
            return Some(Change::ServiceGone { service, node, exchange });
        }
        if key.starts_with(keys::NODES) {
            let node = parts.next()?;
            self.nodes.remove(&node)?;
            return Some(Change::NodeGone(node));
        }
        None
    }
}

impl Fields {
    fn add(&mut self, key: &Arc<str>, located: &Located) {
        fn into<T: std::hash::Hash + Eq>(having: &mut Having<T>, value: T, key: &Arc<str>) {
            having.entry(value).or_default().insert(Arc::clone(key));
        }
        let record = &located.record;
        into(&mut self.node, Arc::clone(&located.node), key);
        into(&mut self.qp_num, record.qp_num, key);
        into(&mut self.tenant, record.tenant.clone(), key);
        into(&mut self.service, record.service.clone(), key);
        into(&mut self.port, (record.path.device.clone(), record.path.port_num), key);
    }

    fn remove(&mut self, key: &Arc<str>, located: &Located) {
        fn from<T: std::hash::Hash + Eq>(having: &mut Having<T>, value: &T, key: &Arc<str>) {
            if let Some(keys) = having.get_mut(value) {
                keys.remove(key);
                if keys.is_empty() {
                    having.remove(value);
                }
            }
        }
        let record = &located.record;
        from(&mut self.node, &located.node, key);
        from(&mut self.qp_num, &record.qp_num, key);
        from(&mut self.tenant, &record.tenant, key);
        from(&mut self.service, &record.service, key);
        from(&mut self.port, &(record.path.device.clone(), record.path.port_num), key);
    }

    /// The smallest set of keys that a query names; `Some(None)`: nothing fits; `None`: the query names nothing.
    fn narrowest(&self, query: &Query) -> Option<Option<&BTreeSet<Arc<str>>>> {
        let mut sets = Vec::with_capacity(5);
        sets.extend(query.node.as_ref().map(|node| self.node.get(node.as_str())));
        sets.extend(query.qp_num.map(|qp_num| self.qp_num.get(&qp_num)));
        sets.extend(query.tenant.as_ref().map(|tenant| self.tenant.get(tenant)));
        sets.extend(query.service.as_ref().map(|service| self.service.get(service)));
        if let (Some(device), Some(port_num)) = (&query.device, query.port_num) {
            sets.push(self.port.get(&(device.clone(), port_num)));
        }
        sets.into_iter().min_by_key(|set| set.map_or(0, BTreeSet::len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_fabric::Path;
    use scalefabric_fabric::directory::ConnectionState;
    use scalefabric_verbs::Gid;

    fn record(node: &str, serial: u64, qp_num: u32, tenant: &str, port_num: u8) -> ConnectionRecord {
        let path =
            Path { device: "sf0".into(), port_num, sgid: Gid([1; 16]), dgid: Gid([2; 16]), flow_label: 7, dscp: 26 };
        ConnectionRecord {
            id: ConnectionId { origin: format!("{node}/1"), serial },
            tenant: tenant.into(),
            service: "store".into(),
            qp_num,
            peer_qp_num: 9,
            path,
            alternatives: Vec::new(),
            state: ConnectionState::Up,
            generation: 1,
        }
    }

    fn put(node: &str, record: &ConnectionRecord, revision: u64) -> Event {
        Event::Put(Entry {
            key: keys::connection(node, "1", &record.id),
            value: serde_json::to_vec(record).expect("JSON"),
            revision: Revision(revision),
            lease: None,
        })
    }

    fn found(index: &Index, query: &Query) -> Vec<u64> {
        index.find(query).connections.iter().map(|one| one.record.id.serial).collect()
    }

    #[test]
    fn a_connection_is_found_by_each_of_its_fields_and_by_no_other() {
        let index = Index::default();
        let one = record("a", 1, 0x100, "red", 1);
        let two = record("b", 2, 0x200, "blue", 2);
        index.handle_events(&[put("a", &one, 2), put("b", &two, 3)]);
        let query = Query::default;
        assert_eq!(found(&index, &Query { node: Some("a".into()), ..query() }), [1]);
        assert_eq!(found(&index, &Query { qp_num: Some(0x200), ..query() }), [2]);
        assert_eq!(found(&index, &Query { tenant: Some("red".into()), ..query() }), [1]);
        assert_eq!(found(&index, &Query { service: Some("store".into()), ..query() }), [1, 2]);
        assert_eq!(found(&index, &Query { device: Some("sf0".into()), port_num: Some(2), ..query() }), [2]);
        assert_eq!(found(&index, &Query { port_num: Some(1), ..query() }), [1]);
        assert!(found(&index, &Query { tenant: Some("red".into()), qp_num: Some(0x200), ..query() }).is_empty());
        assert!(found(&index, &Query { node: Some("c".into()), ..query() }).is_empty());
    }

    #[test]
    fn a_connection_that_moved_is_no_longer_found_where_it_was() {
        let index = Index::default();
        index.handle_events(&[put("a", &record("a", 1, 0x100, "red", 1), 2)]);
        index.handle_events(&[put("a", &record("a", 1, 0x101, "red", 2), 3)]);
        let at = |port_num| Query { device: Some("sf0".into()), port_num: Some(port_num), ..Query::default() };
        assert!(found(&index, &at(1)).is_empty());
        assert_eq!(found(&index, &at(2)), [1]);
        assert!(found(&index, &Query { qp_num: Some(0x100), ..Query::default() }).is_empty());
        let gone = keys::connection("a", "1", &record("a", 1, 0, "", 1).id);
        index.handle_events(&[Event::Delete { key: gone, revision: Revision(4) }]);
        assert_eq!(index.size(), Size::default());
        assert!(index.read().by.port.is_empty() && index.read().by.tenant.is_empty());
    }

    #[test]
    fn pages_follow_one_another_without_a_gap_or_a_repetition() {
        let index = Index::default();
        let events: Vec<Event> = (0..250).map(|n| put("a", &record("a", n, 7, "red", 1), n + 2)).collect();
        index.handle_events(&events);
        let mut query = Query { tenant: Some("red".into()), limit: 100, ..Query::default() };
        let mut seen = Vec::new();
        loop {
            let answer = index.find(&query);
            seen.extend(answer.connections.iter().map(|one| one.record.id.serial));
            let Some(next) = answer.next else { break };
            query.after = next;
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..250).collect::<Vec<u64>>());
    }

    #[test]
    fn a_watcher_sees_what_was_there_and_each_change_once() {
        let index = Index::default();
        index.handle_events(&[put("a", &record("a", 1, 1, "", 1), 2)]);
        let (there, revision, mut changes) = index.snapshot(Some("a"));
        assert_eq!((there.len(), revision), (1, Revision(2)));
        index.handle_events(&[put("a", &record("a", 2, 2, "", 1), 3)]);
        let batch = changes.0.try_recv().expect("a change");
        assert_eq!((batch.0, batch.1.len()), (Revision(3), 1));
        assert!(changes.0.try_recv().is_err());
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_counted_and_left_out() {
        let index = Index::default();
        let key = "connections/a/1/b/1".to_owned();
        index.handle_events(&[Event::Put(Entry { key, value: b"{".to_vec(), revision: Revision(2), lease: None })]);
        assert_eq!(index.size(), Size { malformed: 1, ..Size::default() });
    }
}
