//! Agents, their streams to replicas, and what passes between an agent and the processes of its node.

use super::super::node::{Agent, Down, Process, Up};
use super::super::{Canary, MS, PER_NODE};
use super::{Event, Stream, World};
use crate::message::Answer;
use scalefabric_fabric::Directory;
use scalefabric_fabric::directory::{Order, OrderResult};

impl World {
    pub(super) fn agent(&self, node: usize, incarnation: u64) -> Option<&Agent> {
        self.nodes[node].agent.as_ref().filter(|agent| agent.incarnation == incarnation)
    }

    pub fn start_agent(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            return;
        }
        self.nodes[node].starts += 1;
        let incarnation = self.nodes[node].starts;
        self.note(|| format!("the agent of n{node} begins"));
        let one = &mut self.nodes[node];
        one.agent = Some(Agent::start(node, incarnation, one.memory.clone(), self.now));
        one.known_token = one.saved_token;
        let phase = self.dice.below(100 * MS);
        self.at(phase, Event::AgentTick(node, incarnation));
        self.at(1_000 * MS + phase, Event::AgentSave(node, incarnation));
        self.at(phase, Event::Loads(node, incarnation));
        // One that was there before waits for its processes.
        let wait = if incarnation > 1 { 2_500 * MS } else { phase };
        self.at(wait, Event::Join(node, incarnation));
    }

    pub fn kill_agent(&mut self, node: usize) {
        self.note(|| format!("the agent of n{node} ends"));
        if let Some(agent) = self.nodes[node].agent.take()
            && let Some((stream, _)) = agent.stream
        {
            self.break_stream(stream);
        }
        self.processes.iter_mut().filter(|process| process.node == node).for_each(Process::unlink);
    }

    pub(super) fn save(&mut self, node: usize, incarnation: u64) {
        let Some(agent) = self.agent(node, incarnation) else { return };
        let memory = agent.hub.take_memory();
        let one = &mut self.nodes[node];
        if let Some(memory) = memory {
            one.memory = memory;
        }
        one.saved_token = one.known_token;
        self.at(1_000 * MS, Event::AgentSave(node, incarnation));
    }

    pub(super) fn join(&mut self, node: usize, incarnation: u64) {
        let Some(agent) = self.agent(node, incarnation) else { return };
        if agent.stream.is_some() {
            return;
        }
        let replica = self.dice.index(self.replicas.len());
        let reaches = self.agent_cut[node] <= self.now && self.replicas[replica].alive;
        if !reaches {
            let pause = 100 * MS + self.dice.below(1_000 * MS);
            return self.at(pause, Event::Join(node, incarnation));
        }
        self.serial += 1;
        let stream = self.serial;
        let of_replica = self.replicas[replica].incarnation;
        let last = [self.now; 2];
        self.streams.insert(stream, Stream { node, agent: incarnation, replica, incarnation: of_replica, last });
        if let Some(agent) = &mut self.nodes[node].agent {
            agent.stream = Some((stream, false));
        }
        self.send_up(stream, Up::Hello { incarnation });
    }

    pub(super) fn send_up(&mut self, stream: u64, message: Up) {
        self.send(stream, 0, Event::Up { stream, message });
    }

    pub(super) fn send_down(&mut self, stream: u64, message: Down) {
        self.send(stream, 1, Event::Down { stream, message });
    }

    /// In order, or the stream breaks.
    pub(super) fn send(&mut self, stream: u64, way: usize, event: Event) {
        let delay = self.delay();
        let Some(one) = self.streams.get_mut(&stream) else { return };
        if self.agent_cut[one.node] > self.now {
            return self.break_stream(stream);
        }
        let time = (self.now + delay).max(one.last[way] + 1);
        one.last[way] = time;
        self.at_time(time, event);
        if self.trouble > 0 && self.dice.permille(self.trouble / 20) {
            self.break_stream(stream);
        }
    }

    /// What is on its way is lost; both sides learn of it later.
    pub fn break_stream(&mut self, stream: u64) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (replica, incarnation) = (one.replica, one.incarnation);
        if self.is_replica(replica, incarnation) {
            let delay = self.delay();
            self.at(delay, Event::StreamEnd { stream, at_agent: false });
        }
        let delay = self.delay();
        self.at(delay, Event::StreamEnd { stream, at_agent: true });
    }

    pub(super) fn stream_ended(&mut self, stream: u64, at_agent: bool) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (node, agent, replica, incarnation) = (one.node, one.agent, one.replica, one.incarnation);
        if !at_agent {
            if self.is_replica(replica, incarnation) {
                self.replicas[replica].lose(stream);
            }
            return;
        }
        self.streams.remove(&stream);
        if self.is_replica(replica, incarnation) {
            self.replicas[replica].lose(stream);
        }
        let is_its = self.agent(node, agent).is_some_and(|agent| agent.stream.is_some_and(|(own, _)| own == stream));
        if is_its {
            if let Some(agent) = &mut self.nodes[node].agent {
                agent.stream = None;
            }
            let pause = 100 * MS + self.dice.below(1_000 * MS);
            self.at(pause, Event::Join(node, agent));
        }
    }

    pub(super) fn hear_agent(&mut self, stream: u64, message: Up) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (node, replica, incarnation) = (one.node, one.replica, one.incarnation);
        if !self.is_replica(replica, incarnation) {
            return;
        }
        let wait = self.replicas[replica].paused_until;
        if wait > self.now {
            return self.at_time(wait, Event::Up { stream, message });
        }
        let now = self.now;
        self.replicas[replica].hear(node, stream, message, now);
        self.settle_replica(replica);
    }

    pub(super) fn hear_replica(&mut self, stream: u64, message: Down) {
        let Some(one) = self.streams.get(&stream) else { return };
        let (node, incarnation) = (one.node, one.agent);
        if self.agent(node, incarnation).is_none() {
            return;
        }
        let canary = self.canary;
        let Some(agent) = &mut self.nodes[node].agent else { return };
        agent.set_clock(self.now);
        match message {
            Down::Welcome => {
                agent.stream = Some((stream, true));
                let whole = agent.whole();
                whole.into_iter().for_each(|message| self.send_up(stream, message));
            }
            Down::Services(service, addresses) => agent.hub.handle_services(&service, addresses),
            Down::Policy(json) => agent.hub.handle_policy(&json),
            Down::Order(id, order) => {
                let known = self.nodes[node].known_token;
                let token = crate::client::token(&order).0;
                let order = if canary == Canary::NoFencing { with_token(&order, known.max(token)) } else { order };
                self.note(|| format!("n{node} hears {id}: {order:?}"));
                let one = &mut self.nodes[node];
                one.orders.insert(id.clone(), order.clone());
                one.known_token = one.known_token.max(token);
                self.checker.heard(node, &id, token);
                if let Some(agent) = &one.agent {
                    agent.hub.handle_order(&id, &order);
                }
            }
        }
        self.exchange(node);
    }

    /// Everything between the agent and its processes, and what the agent has to tell.
    pub(super) fn exchange(&mut self, node: usize) {
        let Some(agent) = &self.nodes[node].agent else { return };
        agent.set_clock(self.now);
        loop {
            let mut spoken = false;
            for process in self.processes.iter_mut().filter(|process| process.node == node && process.alive) {
                spoken |= process.exchange(&agent.hub);
            }
            if !spoken {
                break;
            }
        }
        let told = match agent.stream {
            Some((stream, true)) => agent.news().into_iter().map(|message| (stream, message)).collect(),
            _ => Vec::new(),
        };
        for (stream, message) in told {
            if let Up::Answer(_, Answer::Answered { outcome: OrderResult::Fenced { .. } }) = &message {
                self.checker.seen.fenced += 1;
            }
            self.send_up(stream, message);
        }
        for slot in node * PER_NODE..(node + 1) * PER_NODE {
            self.obey(slot);
        }
    }

    /// Orders that came to a process go to its connections.
    pub(super) fn obey(&mut self, slot: usize) {
        for (id, order) in std::mem::take(&mut self.processes[slot].orders) {
            let node = &self.nodes[slot / PER_NODE];
            self.checker.given(node, &order);
            let (now, clock) = (self.now, self.processes[slot].clock(self.now));
            match &order {
                Order::Move { connection, .. } | Order::Close { connection, .. } => {
                    let key = (slot, connection.clone());
                    match self.ends.get_mut(&key).filter(|end| end.closed.is_none()) {
                        Some(end) => {
                            end.order(id, &order, clock, now);
                            self.carry(&key);
                        }
                        None => {
                            let reason = "not a connection of this process".into();
                            self.processes[slot].directory.answer(id, OrderResult::RolledBack { reason });
                        }
                    }
                }
                Order::RotateKeys { .. } => self.rotate(slot, Some(id)),
            }
        }
    }

    /// Streams there are.
    pub fn streams(&self) -> Vec<u64> {
        self.streams.keys().copied().collect()
    }
}

fn with_token(order: &Order, token: u64) -> Order {
    let mut order = order.clone();
    match &mut order {
        Order::Move { token: old, .. } | Order::Close { token: old, .. } | Order::RotateKeys { token: old, .. } => {
            old.0 = token
        }
    }
    order
}
