//! What people and cables do from outside: ports, tenants' rules, and orders.

use super::super::store::Call;
use super::super::{MS, PER_NODE, gid, node_name, rotation, tenants};
use super::{OVERLAP_NS, World};
use crate::keys;
use scalefabric_fabric::directory::{FencingToken, Order};
use scalefabric_fabric::session::Role;

impl World {
    /// A port goes down, or comes up.
    pub fn set_port(&mut self, node: usize, port: usize, up: bool) {
        self.note(|| format!("n{node} port {} is {}", port + 1, if up { "up" } else { "down" }));
        self.nodes[node].up[port] = up;
    }

    /// Lets the tenants' rules be others.
    pub fn set_tenants(&mut self, open: bool) {
        let key = format!("{}{}", keys::TENANTS, keys::TENANT_RULES);
        self.store.carry_out(&Call::Put { key, value: tenants(open) }, self.now);
    }

    /// An operator wants new keys on a node.
    pub fn order_rotation(&mut self, node: usize) {
        if let Some(token) = self.store.leader() {
            self.order(node, rotation(FencingToken(token), OVERLAP_NS / MS));
        }
    }

    /// A connection is to move, by whoever leads or, late, by one who has led before: its word was long on its way.
    pub fn order_move(&mut self, is_late: bool) {
        let made_here = self.ends.iter().filter(|(_, end)| end.role == Role::Leader && end.is_up());
        let all: Vec<_> = made_here.map(|(key, end)| (key.clone(), end.path.clone())).collect();
        let token = if is_late { self.checker.former_leader(&mut self.dice) } else { self.store.leader() };
        let (Some(token), false) = (token, all.is_empty()) else { return };
        let ((slot, connection), path) = all[self.dice.index(all.len())].clone();
        let Some(path) = path else { return };
        let node = slot / PER_NODE;
        let port_num = 3 - path.port_num;
        let path = scalefabric_fabric::Path { port_num, sgid: gid(node, port_num), ..path };
        let reason = String::from("somebody wants it");
        self.order(node, Order::Move { connection, path, token: FencingToken(token), reason });
    }

    /// Through the store, as every order.
    pub(super) fn order(&mut self, node: usize, order: Order) {
        self.serial += 1;
        let key = keys::order(&node_name(node), &format!("operator-{}", self.serial));
        let record = crate::order::OrderRecord { order, by: "operator".into(), answer: None };
        let call = Call::Order { key, value: serde_json::to_vec(&record).expect("JSON") };
        if self.store.has_leader(self.now) {
            self.store.carry_out(&call, self.now);
        }
    }
}
