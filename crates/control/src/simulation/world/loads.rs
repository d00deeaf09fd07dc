//! What connections carry, and what agents say of it: the truth, or what a liar makes of it.

use super::super::dice::Dice;
use super::super::end::End;
use super::super::node::Up;
use super::super::{MS, NODES, PER_NODE, gid, node_name, place_of};
use super::{CAPACITY_BPS, Event, World};
use crate::rebalance::{ConnectionLoad, PortLoad, UtilisationReport};
use crate::topology::PortName;
use scalefabric_fabric::directory::ConnectionId;
use scalefabric_fabric::session::Role;

impl World {
    pub(super) fn tell_loads(&mut self, node: usize, incarnation: u64) {
        if self.agent(node, incarnation).is_none() {
            return;
        }
        self.at(100 * MS, Event::Loads(node, incarnation));
        let Some((stream, true)) = self.nodes[node].agent.as_ref().and_then(|agent| agent.stream) else { return };
        self.nodes[node].reports += 1;
        let ports = [1, 2].map(|port_num: u8| {
            let [tx, rx] = self.load(node, port_num);
            PortLoad {
                port: PortName { node: node_name(node), device: "sf0".into(), port_num },
                up: self.nodes[node].up[usize::from(port_num) - 1],
                capacity_bps: CAPACITY_BPS,
                tx_bps: tx as f64,
                rx_bps: rx as f64,
                addresses: vec![gid(node, port_num).to_ip()],
            }
        });
        let own = self.ends.iter().filter(|((slot, _), end)| slot / PER_NODE == node && end.role == Role::Leader);
        let connections = own.filter(|(_, end)| end.is_up()).map(|(_, end)| ConnectionLoad {
            connection: end.id.clone(),
            tx_bps: if self.flows(end) { demand(&end.id) as f64 } else { 0.0 },
            rx_bps: 0.0,
            retransmit_ratio: 0.0,
        });
        let mut report = UtilisationReport {
            node: node_name(node),
            epoch: incarnation,
            serial: self.nodes[node].reports,
            age_ms: 0,
            ports: ports.into(),
            connections: connections.collect(),
        };
        if self.nodes[node].lies {
            self.lie(&mut report);
        }
        self.send_up(stream, Up::Load(Box::new(report)));
    }

    pub(super) fn lie(&mut self, report: &mut UtilisationReport) {
        let odd = [f64::NAN, f64::INFINITY, -1.0, 1e30, CAPACITY_BPS as f64 * 1.2];
        let value = odd[self.dice.index(odd.len())];
        match self.dice.below(4) {
            0 => report.ports.iter_mut().for_each(|port| port.tx_bps = value),
            1 => report.ports.iter_mut().for_each(|port| port.capacity_bps = 0),
            2 => report.age_ms = 5_000,
            _ => report.connections.iter_mut().for_each(|one| one.tx_bps = value),
        }
        // It also speaks of its neighbour, in the neighbour's name.
        let mut foreign = report.ports[0].clone();
        foreign.port.node = node_name(NODES - 1);
        foreign.up = false;
        report.ports.push(foreign);
    }

    /// Whether a connection's data comes to the peer.
    pub(super) fn flows(&self, end: &End) -> bool {
        end.path.as_ref().is_some_and(|path| {
            let far = place_of(path.dgid);
            let up = |node: usize, port: u8| self.nodes[node].up[usize::from(port) - 1];
            up(end.node, path.port_num) && far.is_some_and(|(node, port)| up(node, port))
        })
    }

    /// What a port sends and receives.
    pub fn load(&self, node: usize, port_num: u8) -> [u64; 2] {
        let mut load = [0; 2];
        for end in self.ends.values().filter(|end| end.role == Role::Leader && end.is_up() && self.flows(end)) {
            let Some(path) = &end.path else { continue };
            if (end.node, path.port_num) == (node, port_num) {
                load[0] += demand(&end.id);
            }
            if place_of(path.dgid) == Some((node, port_num)) {
                load[1] += demand(&end.id);
            }
        }
        load.map(|load| load.min(CAPACITY_BPS))
    }
}

/// What a connection wants to send, bits a second: 4 to 20 % of a port.
fn demand(id: &ConnectionId) -> u64 {
    let mut dice = Dice::new(id.serial.wrapping_mul(31).wrapping_add(id.origin.bytes().map(u64::from).sum::<u64>()));
    CAPACITY_BPS / 100 * (4 + dice.below(17))
}
