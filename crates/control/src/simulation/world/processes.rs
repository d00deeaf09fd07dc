//! Processes: they begin, want connections, send, and end.

use super::super::end::{End, Making};
use super::super::lane::Lane;
use super::super::node::Process;
use super::super::{Canary, MS, PER_NODE};
use super::{EndKey, Event, POST_NS, TICK_NS, World};
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::ConnectionId;
use scalefabric_fabric::session::Role;

impl World {
    pub(super) fn begin_process(&mut self, slot: usize) {
        let incarnation = self.processes[slot].incarnation;
        let phase = self.dice.below(100 * MS);
        self.at(phase, Event::ProcessTick(slot, incarnation));
        self.at(phase, Event::Post(slot, incarnation));
    }

    /// A process ends: its QPs and its ends of channels with it.
    pub fn kill_process(&mut self, slot: usize) {
        self.note(|| format!("process {slot} ends"));
        let node = self.processes[slot].node;
        let hub = self.nodes[node].agent.as_ref().map(|agent| &agent.hub);
        self.processes[slot].die(hub);
        let dead: Vec<EndKey> = self.ends.keys().filter(|(of, _)| *of == slot).cloned().collect();
        for key in dead {
            if let Some(end) = self.ends.remove(&key) {
                self.checker.died(&key);
                if let Some(channel) = end.channel {
                    self.break_channel(channel);
                }
            }
        }
        self.qps.retain(|_, (of, _)| *of != slot);
        self.exchange(node);
    }

    pub fn revive_process(&mut self, slot: usize) {
        if self.processes[slot].alive {
            return;
        }
        self.note(|| format!("process {slot} begins anew"));
        let incarnation = self.processes[slot].incarnation + 1;
        let memory = self.nodes[slot / PER_NODE].process_memory.clone();
        self.processes[slot] = Process::start(slot, incarnation, memory, &mut self.dice);
        self.begin_process(slot);
    }

    pub(super) fn is_process(&self, slot: usize, incarnation: u64) -> bool {
        self.processes[slot].alive && self.processes[slot].incarnation == incarnation
    }

    pub(super) fn process_tick(&mut self, slot: usize, incarnation: u64) {
        if !self.is_process(slot, incarnation) {
            return;
        }
        let wait = self.processes[slot].paused_until.saturating_sub(self.now);
        if wait > 0 {
            return self.at(wait, Event::ProcessTick(slot, incarnation));
        }
        self.at(TICK_NS, Event::ProcessTick(slot, incarnation));
        let node = slot / PER_NODE;
        if !self.processes[slot].is_linked()
            && let Some(agent) = &self.nodes[node].agent
        {
            self.processes[slot].link(slot, &agent.hub);
        }
        self.exchange(node);
        let memory = self.processes[slot].directory.memory();
        // The file keeps what another process knows and this one does not.
        let file = &mut self.nodes[node].process_memory;
        file.token.0 = file.token.0.max(memory.token.0);
        file.policy = memory.policy.or(file.policy.take());
        file.services.extend(memory.services);
        self.want(slot);
        let (now, clock) = (self.now, self.processes[slot].clock(self.now));
        let keys: Vec<EndKey> = self.ends.keys().filter(|(of, _)| *of == slot).cloned().collect();
        for key in keys {
            let Some(mut end) = self.ends.remove(&key) else { continue };
            let reaches = |lane: &Lane| self.reaches(node, lane);
            end.ports(self.nodes[node].up, clock, now);
            end.tick(clock, now, reaches);
            self.ends.insert(key.clone(), end);
            self.carry(&key);
        }
        self.withdraw_late(slot);
    }

    /// Connects to what it wants and has not.
    pub(super) fn want(&mut self, slot: usize) {
        for service in self.processes[slot].wants.clone() {
            let is_that =
                |(of, _): &EndKey, end: &End| *of == slot && end.role == Role::Leader && end.service == service;
            if self.ends.iter().any(|(key, end)| is_that(key, end) && end.closed.is_none()) || !self.dice.permille(200)
            {
                continue;
            }
            let process = &self.processes[slot];
            let tenant = process.tenant.clone();
            let allowed = process.directory.may_connect(&tenant, &service).is_ok() || self.canary == Canary::NoTenants;
            let known = process.directory.resolve(&service);
            if !allowed || known.is_empty() {
                continue;
            }
            let process = &mut self.processes[slot];
            process.serial += 1;
            let id = ConnectionId { origin: process.origin(), serial: process.serial };
            self.make(slot, id, &service, Role::Leader);
        }
    }

    pub(super) fn make(&mut self, slot: usize, id: ConnectionId, service: &str, role: Role) {
        self.next_qp += 1000;
        let (seed, process) = (self.dice.next(), &self.processes[slot]);
        let mut end = End::new(Making {
            id: id.clone(),
            node: process.node,
            tenant: &process.tenant,
            service,
            role,
            qps: self.next_qp,
            seed,
            now_ns: process.clock(self.now),
            up_ports: self.nodes[process.node].up,
        });
        end.forgets = self.canary == Canary::Forgets;
        let key = (slot, id);
        self.ends.insert(key.clone(), end);
        self.give_offer(&key);
    }

    pub(super) fn post(&mut self, slot: usize, incarnation: u64) {
        if !self.is_process(slot, incarnation) {
            return;
        }
        self.at(POST_NS, Event::Post(slot, incarnation));
        let now = self.now;
        let keys: Vec<EndKey> = self.ends.keys().filter(|(of, _)| *of == slot).cloned().collect();
        for key in keys {
            if self.dice.permille(700) {
                if let Some(end) = self.ends.get_mut(&key).filter(|_| !self.checker.is_ending) {
                    end.post(now);
                }
                self.carry(&key);
            }
        }
    }
}
