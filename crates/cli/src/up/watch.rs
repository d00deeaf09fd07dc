//! What control knows of the fabric that `sfab up` started, asked over its HTTP as anybody may ask: what ports carry, which connections are on them, which moves were
//! decided and why. It changes nothing.

use super::http;
use super::plan::{HOT, Plan};
use crate::failure::Failure;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Above this a port is hot, thousandths: control's default.
pub const HOT_PERMILLE: f64 = 700.0;

/// A port as control sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Port {
    /// What it sends and receives, thousandths of what it is taken to carry.
    pub permille: [f64; 2],
    /// Ends of connections on it.
    pub connections: usize,
    /// Moves that left it.
    pub left: usize,
    /// Moves that came to it.
    pub came: usize,
}

impl Port {
    /// The busier direction.
    pub fn busiest(&self) -> f64 {
        self.permille[0].max(self.permille[1])
    }
}

/// A move that control decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Number of the decision.
    pub serial: u64,
    /// Which connection: `n1/4711-…/7`.
    pub connection: String,
    /// What it is for.
    pub service: String,
    /// Its node.
    pub node: String,
    /// Port that it left, and port that it goes to.
    pub ports: [u64; 2],
    /// Why, in control's words.
    pub why: String,
    /// `ordered`, `done`, `rolled-back`, `fenced`, `no-answer`.
    pub outcome: String,
    /// How long its data waited, µs.
    pub pause_us: Option<u64>,
}

/// Everything that is shown.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Ports by node's place and number.
    pub ports: BTreeMap<(usize, u8), Port>,
    /// Moves by number.
    pub moves: BTreeMap<u64, Moved>,
    /// How many of them are of controls before the present one, which counts from 1 again.
    pub(super) before: u64,
    /// Nodes whose agents have joined, with all their ports active.
    pub nodes: BTreeSet<String>,
    /// Connections that are up, counted at the node that made them.
    pub connections: usize,
    /// Services by connection.
    pub services: BTreeMap<String, String>,
}

impl View {
    /// Control was started again.
    pub fn begin_anew(&mut self) {
        self.before = self.moves.keys().next_back().copied().unwrap_or(0);
    }

    /// Looks again.
    pub fn look(&mut self, plan: &Plan, control: SocketAddr) -> Result<(), Failure> {
        self.take_nodes(plan, &http::json(control, "/v1/nodes")?);
        self.take_connections(plan, &http::json(control, "/v1/connections?limit=10000")?);
        self.take_loads(plan, &http::json(control, "/v1/loads")?);
        self.take_decisions(plan, &http::json(control, "/v1/rebalance/decisions?limit=200")?);
        Ok(())
    }

    fn take_nodes(&mut self, plan: &Plan, nodes: &Value) {
        let active = |node: &&Value| {
            let ports = node["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
            ports.len() == usize::from(plan.ports) && ports.iter().all(|port| port["active"] == true)
        };
        let all = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        self.nodes = all.iter().filter(active).map(|node| text(&node["node"])).collect();
    }

    fn take_connections(&mut self, plan: &Plan, page: &Value) {
        self.ports.values_mut().for_each(|port| port.connections = 0);
        self.connections = 0;
        for one in page["connections"].as_array().into_iter().flatten() {
            let Some(place) = place(plan, &one["node"]) else { continue };
            let port_num = one["path"]["port_num"].as_u64().unwrap_or(0) as u8;
            self.ports.entry((place, port_num)).or_default().connections += 1;
            let id = name(&one["id"]);
            if id.split('/').next() == one["node"].as_str() {
                self.connections += usize::from(one["state"] == "up" || one["state"] == "moving");
                self.services.insert(id, text(&one["service"]));
            }
        }
    }

    fn take_loads(&mut self, plan: &Plan, loads: &Value) {
        for (node, load) in loads.as_object().into_iter().flatten() {
            let Some(place) = place(plan, &Value::from(node.as_str())) else { continue };
            for port in load["ports"].as_array().into_iter().flatten() {
                let capacity = port["capacity_bps"].as_f64().unwrap_or(0.0).max(1.0);
                let permille = |way: &str| port[way].as_f64().unwrap_or(0.0) * 1000.0 / capacity;
                let port_num = port["port_num"].as_u64().unwrap_or(0) as u8;
                self.ports.entry((place, port_num)).or_default().permille = [permille("tx_bps"), permille("rx_bps")];
            }
        }
    }

    fn take_decisions(&mut self, plan: &Plan, answer: &Value) {
        for one in answer["decisions"].as_array().into_iter().flatten() {
            let Some(serial) = one["serial"].as_u64().map(|serial| self.before + serial) else { continue };
            let connection = name(&one["connection"]);
            let port = |path: &str| one[path]["port_num"].as_u64().unwrap_or(0);
            let moved = Moved {
                serial,
                service: self.services.get(&connection).cloned().unwrap_or_default(),
                node: connection.split('/').next().unwrap_or_default().to_owned(),
                connection,
                ports: [port("from"), port("to")],
                why: text(&one["text"]),
                outcome: text(&one["outcome"]["outcome"]),
                pause_us: one["outcome"]["pause_us"].as_u64(),
            };
            self.moves.insert(serial, moved);
        }
        self.ports.values_mut().for_each(|port| (port.left, port.came) = (0, 0));
        for moved in self.moves.values().filter(|moved| moved.outcome == "done") {
            let Some(place) = place(plan, &Value::from(moved.node.as_str())) else { continue };
            self.ports.entry((place, moved.ports[0] as u8)).or_default().left += 1;
            self.ports.entry((place, moved.ports[1] as u8)).or_default().came += 1;
        }
    }

    /// Whether moves were made off the port that was made hot, none is on its way, and no port is hot now.
    pub fn is_relieved(&self) -> bool {
        let left = self.ports.get(&HOT).is_some_and(|port| port.left > 0);
        let waits = self.moves.values().any(|moved| moved.outcome == "ordered");
        left && !waits && self.ports.values().all(|port| port.busiest() <= HOT_PERMILLE)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A connection's name as one word.
fn name(id: &Value) -> String {
    format!("{}/{}", id["origin"].as_str().unwrap_or_default(), id["serial"])
}

fn place(plan: &Plan, node: &Value) -> Option<usize> {
    let node = node.as_str()?;
    (0..plan.nodes).find(|place| plan.node(*place) == node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::up::plan::{BLOCK_BYTES, Ground};
    use serde_json::json;

    fn plan() -> Plan {
        let (ground, folder) = (Ground::Loopback(1), "/tmp/x".into());
        Plan { nodes: 3, ports: 2, port_rate_mbps: 400, block_bytes: BLOCK_BYTES, ground, folder }
    }

    fn loads(tx_bps: f64) -> Value {
        json!({ "n1": { "ports": [{ "port_num": 1, "capacity_bps": 400_000_000, "tx_bps": tx_bps, "rx_bps": 4e6 }] } })
    }

    fn decision(outcome: &str) -> Value {
        json!({ "decisions": [{
            "serial": 4, "connection": { "origin": "n1/7", "serial": 3 }, "from": { "port_num": 1 }, "to": { "port_num": 2 },
            "text": "n1 port 1 sends too much", "outcome": { "outcome": outcome, "pause_us": 80 } }] })
    }

    #[test]
    fn a_port_is_relieved_when_moves_are_done_and_it_is_cool() {
        let mut view = View::default();
        view.take_loads(&plan(), &loads(3.6e8));
        assert_eq!(view.ports[&(0, 1)].permille, [900.0, 10.0]);
        view.take_decisions(&plan(), &decision("ordered"));
        view.take_loads(&plan(), &loads(2e8));
        assert!(!view.is_relieved());
        view.take_decisions(&plan(), &decision("done"));
        assert!(view.is_relieved());
        assert_eq!((view.ports[&(0, 1)].left, view.ports[&(0, 2)].came), (1, 1));
        view.take_loads(&plan(), &loads(2.9e8));
        assert!(!view.is_relieved());
    }

    #[test]
    fn both_ends_of_a_connection_are_on_ports_and_it_is_one_connection() {
        let mut view = View::default();
        let end = |node: &str, port_num: u8| {
            json!({ "node": node, "id": { "origin": "n1/7", "serial": 3 }, "service": "stream.n2",
                "path": { "port_num": port_num }, "state": "up" })
        };
        view.take_connections(&plan(), &json!({ "connections": [end("n1", 2), end("n2", 1), end("stranger", 1)] }));
        assert_eq!(view.connections, 1);
        assert_eq!((view.ports[&(0, 2)].connections, view.ports[&(1, 1)].connections), (1, 1));
        view.take_decisions(&plan(), &decision("done"));
        assert_eq!(view.moves[&4].service, "stream.n2");
    }
}
