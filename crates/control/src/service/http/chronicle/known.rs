//! What the chronicle knows of nodes and connections, so that it sees what changed: a port that is down, a connection on another path. It is told the
//! directory's changes in their order; it has no clock and tells nobody.

use super::log::{Happening, Kind};
use super::{Use, port_name};
use crate::directory::{Change, Located, NodeRecord};
use crate::rebalance::node_of;
use crate::topology::PortName;
use scalefabric_fabric::Path;
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, ConnectionState};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// A node is new, or its agent was started again.
    Joined {
        /// It.
        node: Arc<NodeRecord>,
        /// It was there before.
        again: bool,
    },
    /// A node is gone, with so many connections.
    Gone {
        /// Its name.
        node: String,
    },
    /// A port went up or down.
    Port {
        /// Which.
        port: PortName,
        /// What it is now.
        up: bool,
    },
    /// A connection took another path.
    Moved {
        /// Which.
        id: ConnectionId,
        /// Node of the end that made it.
        node: Arc<str>,
        /// Path before.
        from: Path,
        /// Path now.
        to: Path,
    },
    /// The QP of a connection failed.
    Rebuilding {
        /// Which.
        id: ConnectionId,
        /// Node of the end that tells.
        node: Arc<str>,
        /// Its path.
        path: Path,
    },
}

impl News {
    /// As an event. `why` says why a connection left the first path for the second.
    pub fn happening(self, why: impl Fn(&ConnectionId, &Path, &Path) -> Option<String>) -> Happening {
        match self {
            Self::Joined { node, again } => {
                let (name, ports) = (&node.node, node.ports.len());
                let text = if again {
                    format!("the agent of {name} was started again")
                } else {
                    format!("{name} has joined {} with {ports} ports", node.replica)
                };
                Happening::new(Kind::NodeJoined, text).of_node(name)
            }
            Self::Gone { node } => {
                Happening::new(Kind::NodeGone, format!("nothing was heard of {node} for its lease")).of_node(&node)
            }
            Self::Port { port, up } => {
                let (kind, word) = if up { (Kind::PortUp, "up") } else { (Kind::PortDown, "down") };
                Happening::new(kind, format!("{port} is {word}")).of_port(port)
            }
            Self::Moved { id, node, from, to } => {
                let why = why(&id, &from, &to);
                let (from, to) = (port_name(&node, &from), port_name(&node, &to));
                let text = if from == to {
                    format!("{} {} took another way from {to}", id.origin, id.serial)
                } else {
                    format!("{} {} moved from {from} to {}/{}", id.origin, id.serial, to.device, to.port_num)
                };
                let happening = Happening::new(Kind::ConnectionMoved, text).of_node(&node).of_connection(&id);
                Happening { from: Some(from), to: Some(to), why, ..happening }
            }
            Self::Rebuilding { id, node, path } => {
                let text = format!("the QP of {} {} failed and is made anew", id.origin, id.serial);
                let happening = Happening::new(Kind::ConnectionRebuilding, text).of_connection(&id);
                happening.of_port(port_name(&node, &path))
            }
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    process: Arc<str>,
    record: Arc<ConnectionRecord>,
}

/// Ends by device and port of a node.
type Counts = HashMap<Arc<str>, Vec<(String, u8, u32)>>;

/// What is known.
#[derive(Debug, Default)]
pub struct Known {
    nodes: BTreeMap<String, Arc<NodeRecord>>,
    /// By [`Known::number`]: nearly always one, two if a process of the same node is the peer.
    ends: HashMap<u64, Vec<End>>,
    count: usize,
    at_port: Counts,
    of_tenant: BTreeMap<String, u32>,
    hasher: RandomState,
}

impl Known {
    /// A connection's end at a node as a number. Two that fell together would be taken for one another: of 100,000 that happens once in 10^9 runs.
    fn number(&self, node: &str, origin: &str, serial: u64) -> u64 {
        self.hasher.hash_one((node, origin, serial))
    }

    /// Nodes by name.
    pub fn nodes(&self) -> &BTreeMap<String, Arc<NodeRecord>> {
        &self.nodes
    }

    /// Ends of connections.
    pub fn ends(&self) -> usize {
        self.count
    }

    /// Ends that use a port.
    pub fn at_port(&self, port: &PortName) -> u32 {
        let of_node = self.at_port.get(port.node.as_str()).map(Vec::as_slice).unwrap_or_default();
        let it = of_node.iter().find(|(device, port_num, _)| *port_num == port.port_num && *device == port.device);
        it.map_or(0, |(.., count)| *count)
    }

    /// Whether a port of a node's record is down.
    pub fn is_down(&self, port: &PortName) -> bool {
        let Some(node) = self.nodes.get(&port.node) else { return false };
        node.ports.iter().any(|one| one.device == port.device && one.port_num == port.port_num && !one.active)
    }

    /// Ends by tenant.
    pub fn tenants(&self) -> BTreeMap<String, Use> {
        self.of_tenant.iter().map(|(name, ends)| (name.clone(), Use { ends: *ends, tx_bps: 0.0 })).collect()
    }

    /// Whose connection it is.
    pub fn tenant_of(&self, node: &str, origin: &str, serial: u64) -> Option<&str> {
        let ends = self.ends.get(&self.number(node, origin, serial))?;
        ends.first().map(|end| end.record.tenant.as_str())
    }

    /// Takes a whole directory in the place of what was known; gives what differs. A connection that is gone is no news.
    pub fn replace(&mut self, all: &[Change]) -> Vec<News> {
        let mut news = Vec::new();
        let there: BTreeSet<&str> = all
            .iter()
            .filter_map(|change| match change {
                Change::Node(node) => Some(node.node.as_str()),
                _ => None,
            })
            .collect();
        let gone: Vec<String> = self.nodes.keys().filter(|name| !there.contains(name.as_str())).cloned().collect();
        for node in gone {
            self.learn(&Change::NodeGone(node), &mut news);
        }
        let before = std::mem::take(&mut self.ends);
        (self.count, self.at_port, self.of_tenant) = (0, Counts::default(), BTreeMap::new());
        for change in all {
            match change {
                Change::Connection(one) => {
                    let number = self.number(&one.node, &one.record.id.origin, one.record.id.serial);
                    let old = before.get(&number).into_iter().flatten().find(|end| end.process == one.process);
                    news.extend(old.and_then(|old| difference(one, &old.record)));
                    self.add(number, one);
                }
                other => self.learn(other, &mut news),
            }
        }
        news
    }

    /// Takes a change in.
    pub fn learn(&mut self, change: &Change, news: &mut Vec<News>) {
        match change {
            Change::Connection(one) => {
                let number = self.number(&one.node, &one.record.id.origin, one.record.id.serial);
                if let Some(old) = self.take(number, &one.node, &one.process) {
                    news.extend(difference(one, &old.record));
                }
                self.add(number, one);
            }
            Change::ConnectionGone { node, process, id } => {
                self.take(self.number(node, &id.origin, id.serial), node, process);
            }
            Change::Node(node) => self.learn_node(node, news),
            Change::NodeGone(node) => {
                if self.nodes.remove(node).is_some() {
                    news.push(News::Gone { node: node.clone() });
                }
            }
            Change::Service(_) | Change::ServiceGone { .. } | Change::All => {}
        }
    }

    fn learn_node(&mut self, node: &Arc<NodeRecord>, news: &mut Vec<News>) {
        let Some(old) = self.nodes.insert(node.node.clone(), Arc::clone(node)) else {
            news.push(News::Joined { node: Arc::clone(node), again: false });
            return;
        };
        if old.incarnation != node.incarnation {
            news.push(News::Joined { node: Arc::clone(node), again: true });
        }
        for port in &node.ports {
            let same = old.ports.iter().find(|one| one.device == port.device && one.port_num == port.port_num);
            if same.is_some_and(|old| old.active != port.active) {
                let port_name =
                    PortName { node: node.node.clone(), device: port.device.clone(), port_num: port.port_num };
                news.push(News::Port { port: port_name, up: port.active });
            }
        }
    }

    fn add(&mut self, number: u64, one: &Located) {
        let record = Arc::clone(&one.record);
        count(&mut self.at_port, &one.node, &record.path, true);
        *self.of_tenant.entry(record.tenant.clone()).or_default() += 1;
        self.count += 1;
        self.ends.entry(number).or_default().push(End { process: Arc::clone(&one.process), record });
    }

    fn take(&mut self, number: u64, node: &Arc<str>, process: &Arc<str>) -> Option<End> {
        let ends = self.ends.get_mut(&number)?;
        let at = ends.iter().position(|end| end.process == *process)?;
        let end = ends.swap_remove(at);
        if ends.is_empty() {
            self.ends.remove(&number);
        }
        self.count -= 1;
        count(&mut self.at_port, node, &end.record.path, false);
        if let Some(left) = self.of_tenant.get_mut(&end.record.tenant) {
            *left -= 1;
            if *left == 0 {
                self.of_tenant.remove(&end.record.tenant);
            }
        }
        Some(end)
    }
}

fn count(counts: &mut Counts, node: &Arc<str>, path: &Path, more: bool) {
    let of_node = counts.entry(Arc::clone(node)).or_default();
    let at = of_node.iter().position(|(device, port, _)| *port == path.port_num && *device == path.device);
    match (at, more) {
        (Some(at), true) => of_node[at].2 += 1,
        (Some(at), false) => {
            of_node[at].2 -= 1;
            if of_node[at].2 == 0 {
                of_node.swap_remove(at);
            }
        }
        (None, true) => of_node.push((path.device.clone(), path.port_num, 1)),
        (None, false) => {}
    }
    if of_node.is_empty() {
        counts.remove(node);
    }
}

/// What an end's new record says that its old one did not. Both ends tell of a move; the one that made the connection is heard.
fn difference(now: &Located, old: &ConnectionRecord) -> Option<News> {
    let record = &now.record;
    let id = record.id.clone();
    let node = Arc::clone(&now.node);
    if record.state == ConnectionState::Rebuilding && old.state != ConnectionState::Rebuilding {
        return Some(News::Rebuilding { id, node, path: record.path.clone() });
    }
    if record.path != old.path && *now.node == *node_of(&record.id) {
        return Some(News::Moved { id, node, from: old.path.clone(), to: record.path.clone() });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::PortRecord;
    use scalefabric_verbs::Gid;

    fn node(name: &str, incarnation: u64, up: bool) -> Change {
        let port = PortRecord {
            device: "sf0".into(),
            port_num: 1,
            gids: Vec::new(),
            rate_mbps: 1,
            numa_node: None,
            active: up,
        };
        Change::Node(Arc::new(NodeRecord {
            node: name.into(),
            version: "1".into(),
            incarnation,
            replica: "c".into(),
            ports: vec![port],
            neighbours: Vec::new(),
        }))
    }

    fn end(node: &str, process: &str, port_num: u8, state: ConnectionState) -> Change {
        let path =
            Path { device: "sf0".into(), port_num, sgid: Gid([1; 16]), dgid: Gid([2; 16]), flow_label: 0, dscp: 0 };
        let record = ConnectionRecord {
            id: ConnectionId { origin: "a/1".into(), serial: 7 },
            tenant: "red".into(),
            service: "s".into(),
            qp_num: 1,
            peer_qp_num: 2,
            path,
            alternatives: Vec::new(),
            state,
            generation: 1,
        };
        Change::Connection(Located { node: node.into(), process: process.into(), record: Arc::new(record) })
    }

    fn port(node: &str, port_num: u8) -> PortName {
        PortName { node: node.into(), device: "sf0".into(), port_num }
    }

    #[test]
    fn a_move_is_told_once_by_the_end_that_made_the_connection() {
        let mut known = Known::default();
        let mut news = Vec::new();
        for change in [end("a", "1", 1, ConnectionState::Up), end("b", "1", 1, ConnectionState::Up)] {
            known.learn(&change, &mut news);
        }
        assert!(news.is_empty());
        for change in [end("a", "1", 2, ConnectionState::Up), end("b", "1", 2, ConnectionState::Up)] {
            known.learn(&change, &mut news);
        }
        assert!(matches!(&news[..], [News::Moved { from, to, .. }] if (from.port_num, to.port_num) == (1, 2)));
        assert_eq!((known.at_port(&port("a", 1)), known.at_port(&port("a", 2)), known.ends()), (0, 1, 2));
        assert_eq!(known.tenants()["red"].ends, 2);
        let happening = news.remove(0).happening(|_, _, _| Some("because".into()));
        assert_eq!(happening.text, "a/1 7 moved from a/sf0/1 to sf0/2");
        assert_eq!((happening.why.as_deref(), happening.to), (Some("because"), Some(port("a", 2))));
    }

    #[test]
    fn two_ends_on_one_node_are_counted_each() {
        let mut known = Known::default();
        let mut news = Vec::new();
        known.learn(&end("a", "1", 1, ConnectionState::Up), &mut news);
        known.learn(&end("a", "2", 1, ConnectionState::Up), &mut news);
        assert_eq!((known.ends(), known.at_port(&port("a", 1))), (2, 2));
        let id = ConnectionId { origin: "a/1".into(), serial: 7 };
        for process in ["1", "2", "2"] {
            let gone = Change::ConnectionGone { node: "a".into(), process: process.into(), id: id.clone() };
            known.learn(&gone, &mut news);
        }
        assert_eq!((known.ends(), known.at_port(&port("a", 1)), news.len()), (0, 0, 0));
        assert!(known.tenants().is_empty() && known.at_port.is_empty() && known.ends.is_empty());
    }

    #[test]
    fn ports_nodes_and_failed_qps_are_told_when_they_change_and_only_then() {
        let mut known = Known::default();
        let mut news = known.replace(&[node("a", 1, true), node("b", 1, true)]);
        assert_eq!(news.len(), 2);
        news.clear();
        known.learn(&node("a", 1, true), &mut news);
        assert!(news.is_empty());
        known.learn(&node("a", 1, false), &mut news);
        assert!(matches!(&news[..], [News::Port { up: false, .. }]) && known.is_down(&port("a", 1)));
        news.clear();
        known.learn(&end("a", "1", 1, ConnectionState::Up), &mut news);
        let all =
            [node("a", 2, false), end("a", "1", 1, ConnectionState::Rebuilding), end("b", "1", 1, ConnectionState::Up)];
        let news = known.replace(&all);
        let [News::Gone { node }, News::Joined { again: true, .. }, News::Rebuilding { .. }] = &news[..] else {
            panic!("{news:?}")
        };
        assert_eq!((node.as_str(), known.ends()), ("b", 2));
        assert!(known.replace(&all).is_empty());
    }
}
