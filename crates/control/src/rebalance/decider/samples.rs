//! What agents have told, in the numbers of the balancing rule: ports, connections, and the routes that each could take.

use super::{ConnectionView, Decider, node_of};
use crate::topology::PortName;
use scalefabric_fabric::Path;
use scalefabric_fabric::balance::{ConnectionSample, PortKey, PortSample, Route, RouteKey};
use scalefabric_fabric::directory::{ConnectionId, ConnectionRecord, ConnectionState};
use std::collections::BTreeMap;
use std::net::IpAddr;

impl Decider {
    /// What is known, in the numbers of the balancing rule.
    pub(super) fn samples(&self) -> (Vec<PortSample>, Vec<ConnectionSample>) {
        let mut ports = Vec::new();
        let mut owners: BTreeMap<IpAddr, Option<PortKey>> = BTreeMap::new();
        for node in self.nodes.values() {
            for load in &node.ports {
                let Some(&port) = self.port_keys.get(&load.port) else { continue };
                for &address in &load.addresses {
                    // An address that two ports claim is nobody's.
                    owners.entry(address).and_modify(|owner| *owner = None).or_insert(Some(port));
                }
                ports.push(PortSample {
                    port,
                    plane: self.planes.get(&load.port).copied(),
                    taken_ms: node.taken_ms,
                    up: load.up,
                    capacity_bps: load.capacity_bps,
                    tx_bps: load.tx_bps,
                    rx_bps: load.rx_bps,
                });
            }
        }
        let connections = self.connections.values().filter_map(|view| self.sample(view, &owners)).collect();
        (ports, connections)
    }

    fn sample(&self, view: &ConnectionView, owners: &BTreeMap<IpAddr, Option<PortKey>>) -> Option<ConnectionSample> {
        let ConnectionRecord { id, path, alternatives, state, .. } = &*view.record;
        let node = self.nodes.get(node_of(id))?;
        // Agents speak of those that carry the most: what they leave out carries next to nothing.
        let (tx_bps, rx_bps, retransmit_ratio) =
            node.connections.get(id).map_or((0.0, 0.0, 0.0), |load| (load.tx_bps, load.rx_bps, load.retransmit_ratio));
        let mut routes: Vec<Route> = Vec::with_capacity(1 + alternatives.len() + view.ways.len());
        for path in view.paths() {
            let Some(route) = self.route(id, path, view.route_key(path), owners) else { continue };
            if routes.iter().all(|other| other.key != route.key) {
                routes.push(route);
            }
        }
        Some(ConnectionSample {
            connection: view.key,
            taken_ms: node.taken_ms,
            tx_bps,
            rx_bps,
            retransmit_ratio,
            route: view.route_key(path),
            routes,
            moved_ms: None,
            movable: *state == ConnectionState::Up,
        })
    }

    /// A path as a route: the port here, and the port that has the address at the other end if an agent says so.
    fn route(
        &self,
        id: &ConnectionId,
        path: &Path,
        key: RouteKey,
        owners: &BTreeMap<IpAddr, Option<PortKey>>,
    ) -> Option<Route> {
        let name = PortName { node: node_of(id).into(), device: path.device.clone(), port_num: path.port_num };
        let local = *self.port_keys.get(&name)?;
        let remote = owners.get(&path.dgid.to_ip()).copied().flatten();
        Some(Route { key, local, remote, via: Vec::new() })
    }
}
