//! What ports and connections carry: the latest of each, in memory, from the agents of this replica and, at second hand, from those of the others.
//! It believes nothing beyond the shape of a message; whether a number can be true is judged by the balancing rule.

use crate::directory::PortRecord;
use crate::proto::control as proto;
use scalefabric_fabric::directory::ConnectionId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shortest and longest interval that a message may speak of.
const INTERVAL_US: std::ops::RangeInclusive<u32> = 1_000..=60_000_000;
/// What is older is no longer told.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// What a port carried lately. Rates are means over the agent's interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PortLoad {
    /// Device.
    pub device: String,
    /// Port, from 1.
    pub port_num: u8,
    /// What it can carry each way, bits a second.
    pub capacity_bps: u64,
    /// Whether it can carry traffic.
    pub active: bool,
    /// Bits a second sent.
    pub tx_bps: f64,
    /// Bits a second received.
    pub rx_bps: f64,
    /// Packets sent again, a second.
    pub retransmitted_ps: f64,
    /// Packets marked as congested, a second.
    pub marked_ps: f64,
    /// How long ago it was measured, milliseconds.
    pub age_ms: u64,
}

/// What a connection carried lately.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConnectionLoad {
    /// Who made it.
    pub origin: String,
    /// Its number.
    pub serial: u64,
    /// Bits a second sent.
    pub tx_bps: f64,
    /// Bits a second received.
    pub rx_bps: f64,
    /// Whether the end that was connected to says so; else the end that connected.
    #[serde(default)]
    pub passive: bool,
    /// Packets sent again by packets sent, 0 to 1.
    pub retransmit_ratio: f64,
    /// How long ago it was measured, milliseconds.
    pub age_ms: u64,
}

/// A node's loads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeLoad {
    /// Ports, in the order of the node's record.
    pub ports: Vec<PortLoad>,
    /// Connections that carried the most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionLoad>,
}

/// Loads by node: what replicas tell one another.
pub type Loads = BTreeMap<String, NodeLoad>;

/// The table.
#[derive(Debug, Default)]
pub struct LoadTable {
    nodes: Mutex<HashMap<String, Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    load: Arc<NodeLoad>,
    taken: Duration,
    /// From an agent of this replica.
    own: bool,
}

/// A load with its age.
fn aged(load: &NodeLoad, age: Duration) -> NodeLoad {
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let mut load = load.clone();
    load.ports.iter_mut().for_each(|port| port.age_ms = age_ms);
    load.connections.iter_mut().for_each(|connection| connection.age_ms = age_ms);
    load
}

impl LoadTable {
    fn nodes(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a message of an agent. `id` gives the connection that a handle stands for. False: the message makes no sense and is left out.
    pub fn handle_load(
        &self,
        node: &str,
        ports: &[PortRecord],
        load: &proto::Load,
        id: impl Fn(u32) -> Option<ConnectionId>,
        now: Duration,
    ) -> bool {
        let fits = |list: &[u32]| list.is_empty() || list.len() == ports.len();
        if !INTERVAL_US.contains(&load.interval_us)
            || load.tx_bytes.len() != ports.len()
            || load.rx_bytes.len() != ports.len()
            || !fits(&load.retransmitted)
            || !fits(&load.marked)
            || load.connections.len() > 64
        {
            return false;
        }
        let seconds = f64::from(load.interval_us) / 1e6;
        let bps = |bytes: u64| bytes as f64 * 8.0 / seconds;
        let per_second = |list: &[u32], index: usize| list.get(index).map_or(0.0, |count| f64::from(*count) / seconds);
        let port = |(index, port): (usize, &PortRecord)| PortLoad {
            device: port.device.clone(),
            port_num: port.port_num,
            capacity_bps: port.rate_mbps.saturating_mul(1_000_000),
            active: port.active,
            tx_bps: bps(load.tx_bytes[index]),
            rx_bps: bps(load.rx_bytes[index]),
            retransmitted_ps: per_second(&load.retransmitted, index),
            marked_ps: per_second(&load.marked, index),
            age_ms: 0,
        };
        let connection = |one: &proto::ConnectionLoad| {
            let id = id(one.handle)?;
            let ratio = if one.packets == 0 { 0.0 } else { one.retransmitted as f64 / one.packets as f64 };
            Some(ConnectionLoad {
                origin: id.origin,
                serial: id.serial,
                tx_bps: bps(one.tx_bytes),
                rx_bps: bps(one.rx_bytes),
                passive: one.passive,
                retransmit_ratio: ratio.min(1.0),
                age_ms: 0,
            })
        };
        let load = NodeLoad {
            ports: ports.iter().enumerate().map(port).collect(),
            connections: load.connections.iter().filter_map(connection).collect(),
        };
        self.nodes().insert(node.to_owned(), Kept { load: Arc::new(load), taken: now, own: true });
        true
    }

    /// Takes in what another replica told of its agents. What this replica hears itself is better.
    pub fn handle_neighbour(&self, loads: Loads, now: Duration) {
        let mut nodes = self.nodes();
        for (node, load) in loads {
            let age = load.ports.iter().map(|port| port.age_ms).max().unwrap_or(0);
            let taken = now.saturating_sub(Duration::from_millis(age));
            match nodes.get(&node) {
                Some(kept) if kept.own && kept.taken >= taken => {}
                _ => drop(nodes.insert(node, Kept { load: Arc::new(load), taken, own: false })),
            }
        }
    }

    /// A node's agent has left this replica.
    pub fn handle_gone(&self, node: &str) {
        self.nodes().remove(node);
    }

    /// Looks at each node's load with its age, without copying it.
    pub fn each(&self, now: Duration, mut look: impl FnMut(&str, &NodeLoad, Duration)) {
        for (node, kept) in self.nodes().iter() {
            let age = now.saturating_sub(kept.taken);
            if age < FORGOTTEN {
                look(node, &kept.load, age);
            }
        }
    }

    /// What is known of one node, with its age.
    pub fn of_node(&self, node: &str, now: Duration) -> Option<NodeLoad> {
        let kept = self.nodes().get(node).map(|kept| (Arc::clone(&kept.load), now.saturating_sub(kept.taken)));
        kept.filter(|(_, age)| *age < FORGOTTEN).map(|(load, age)| aged(&load, age))
    }

    /// All that is known, each with its age; with `own_only` what this replica heard itself. Agents wait for no copying: it is done without the lock.
    pub fn snapshot(&self, own_only: bool, now: Duration) -> Loads {
        let mut nodes = self.nodes();
        nodes.retain(|_, kept| now.saturating_sub(kept.taken) < FORGOTTEN);
        let told = nodes.iter().filter(|(_, kept)| kept.own || !own_only);
        let told: Vec<(String, Arc<NodeLoad>, Duration)> =
            told.map(|(node, kept)| (node.clone(), Arc::clone(&kept.load), now.saturating_sub(kept.taken))).collect();
        drop(nodes);
        told.into_iter().map(|(node, load, age)| (node, aged(&load, age))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> Vec<PortRecord> {
        let port = |port_num| PortRecord {
            device: "sf0".into(),
            port_num,
            gids: Vec::new(),
            rate_mbps: 10_000,
            numa_node: None,
            active: true,
        };
        vec![port(1), port(2)]
    }

    fn load(tx: &[u64]) -> proto::Load {
        let rx_bytes = vec![0; tx.len()];
        proto::Load { interval_us: 100_000, tx_bytes: tx.to_vec(), rx_bytes, ..proto::Load::default() }
    }

    #[test]
    fn bytes_of_a_tenth_of_a_second_become_bits_a_second() {
        let table = LoadTable::default();
        assert!(table.handle_load("a", &ports(), &load(&[125_000, 0]), |_| None, Duration::from_secs(1)));
        let told = table.snapshot(true, Duration::from_millis(1_250));
        let port = &told["a"].ports[0];
        assert!((port.tx_bps - 10_000_000.0).abs() < 1.0, "{port:?}");
        assert_eq!(port.age_ms, 250);
    }

    #[test]
    fn a_message_that_does_not_fit_the_ports_is_left_out() {
        let table = LoadTable::default();
        assert!(!table.handle_load("a", &ports(), &load(&[1]), |_| None, Duration::ZERO));
        let silly = proto::Load { interval_us: 0, ..load(&[1, 1]) };
        assert!(!table.handle_load("a", &ports(), &silly, |_| None, Duration::ZERO));
        assert!(table.snapshot(false, Duration::ZERO).is_empty());
    }

    #[test]
    fn what_a_neighbour_tells_does_not_replace_what_was_heard_later() {
        let table = LoadTable::default();
        let at = Duration::from_secs(10);
        table.handle_load("a", &ports(), &load(&[125_000, 0]), |_| None, at);
        let mut old = table.snapshot(true, at);
        old.values_mut().flat_map(|node| &mut node.ports).for_each(|port| (port.age_ms, port.tx_bps) = (500, 1.0));
        table.handle_neighbour(old.clone(), at);
        assert!(table.snapshot(false, at)["a"].ports[0].tx_bps > 1.0);
        table.handle_gone("a");
        table.handle_neighbour(old, at);
        assert!(table.snapshot(true, at).is_empty());
        assert_eq!(table.snapshot(false, at)["a"].ports[0].age_ms, 500);
        assert!(table.snapshot(false, at + FORGOTTEN).is_empty());
    }
}
