//! Faults that begin by themselves: ports go down, paths get narrow, a process dies, packets are forged.

use scalefabric_nic::PortChange;
use scalefabric_verbs::{Psn, QpAttr, QpAttrMask, QpState, Qpn};

use super::{Stop, World};
use crate::attacker::target;
use crate::canary::Rule;
use crate::ledger::Kind;
use crate::pattern::Fault;

impl World {
    /// The next time at which a fault begins by itself.
    pub(super) fn next_fault(&self) -> u64 {
        let flap = if self.faults.flap_ns + self.faults.mtu_ns > 0 { self.next_flap } else { u64::MAX };
        flap.min(self.kill_at.unwrap_or(u64::MAX))
    }

    pub(super) fn run_faults(&mut self) -> Result<(), Stop> {
        for nic in 0..self.port_down.len() {
            if self.port_down[nic] != 0 && (self.port_down[nic] <= self.now || self.calm) {
                self.port_down[nic] = 0;
                self.stations[nic].nic.change_port(1, PortChange::Up)?;
                self.wire.state().deafen(nic, false);
                self.due[nic] = self.now;
            }
        }
        if self.calm {
            return Ok(());
        }
        if self.next_flap <= self.now && self.faults.flap_ns + self.faults.mtu_ns > 0 {
            let nic = self.random.below(self.stations.len() as u64) as usize;
            let longest = self.faults.flap_ns.max(self.faults.mtu_ns);
            let until = self.now + self.random.range(1_000, longest);
            let flap = self.faults.flap_ns > 0 && (self.faults.mtu_ns == 0 || self.random.chance(500_000));
            match (flap, self.random.chance(300_000)) {
                (true, true) => {
                    self.stations[nic].nic.change_port(1, PortChange::Down)?;
                    self.wire.state().deafen(nic, true);
                    self.port_down[nic] = until;
                    self.wire.state().tally.strike(Fault::LinkFlap);
                }
                (true, false) => self.wire.state().cut(nic, until),
                (false, _) => self.wire.state().narrow(nic, until),
            }
            self.next_flap = until + self.random.range(50_000, 400_000);
        }
        if self.kill_at.is_some_and(|at| at <= self.now) {
            self.kill_at = None;
            self.kill()?;
        }
        if self.next_forgery <= self.wire.state().tally.sent && self.faults.forge_ppm > 0 {
            let rate = 1_000_000 / u64::from(self.faults.forge_ppm);
            self.next_forgery = self.wire.state().tally.sent + self.random.range(rate / 2 + 1, rate * 2);
            self.forge()?;
        }
        Ok(())
    }

    pub(super) fn forge(&mut self) -> Result<(), Stop> {
        let mut working: Vec<(usize, Qpn, Psn)> = Vec::with_capacity(8);
        for connection in &self.connections {
            working.push(target(connection.plan.nics[1], &*connection.pair.qps[1], connection.plan.psns[0]));
        }
        self.attacker.strike(&self.wire, &self.stations, &working, &self.victims);
        let mut canary = self.wire.state().canary.take();
        if let Some(canary) = &mut canary
            && canary.occasion(Rule::WriteAnywhere)
        {
            let station = &self.stations[0];
            station.arena.write(station.forbidden[0].offset + 17, &[0xa5])?;
        }
        self.wire.state().canary = canary;
        Ok(())
    }

    /// Takes the second side of the connections that are to be killed away, as if its process had died.
    pub(super) fn kill(&mut self) -> Result<(), Stop> {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if !connection.plan.killed {
                continue;
            }
            let qp = &connection.pair.qps[1];
            let (attr, _) = qp.query()?;
            qp.modify(&QpAttr { qp_state: QpState::Reset, ..attr }, QpAttrMask::STATE)?;
            if let Some(flow) = connection.flows[0] {
                self.ledger.flows[flow].orphaned_ns = Some(self.now);
            }
            if let Some(flow) = connection.flows[1] {
                self.account_unknown(flow);
                self.ledger.flows[flow].vanish();
            }
            for receiver in &mut self.receivers {
                receiver.closed |= receiver.connection.0 == index;
            }
        }
        Ok(())
    }

    /// Operations of a flow that will not be heard of again may or may not have taken effect.
    pub(super) fn account_unknown(&mut self, flow: usize) {
        let flow = &self.ledger.flows[flow];
        let adds = flow.ops[flow.ended..].iter().filter(|op| op.kind == Kind::SharedAdd).count();
        self.ledger.shared_unknown[flow.to] += adds as u64;
    }
}
