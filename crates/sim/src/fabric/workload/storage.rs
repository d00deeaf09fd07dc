//! Storage: clients read from and write to servers, by chance in time, size and server. A write is data and its ACK; a read is a small request and the data
//! that it brings. What counts is the time of the operation, not of the messages.

use super::super::time::Ps;
use super::super::world::{Message, Notice, Post, Workload};
use super::flow_list::{Flow, FlowList};
use super::sizes::Sizes;
use super::{Figure, Job};
use crate::random::Random;

/// Bytes of a read request.
const REQUEST_BYTES: u64 = 64;

#[derive(Clone, Copy)]
struct Operation {
    flow: Flow,
    is_read: bool,
    ended: Ps,
}

/// Reads and writes.
pub struct Storage {
    operations: Vec<Operation>,
    next: usize,
    open: u64,
    priority: u8,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who asks.
    pub clients: Vec<u32>,
    /// Who answers.
    pub servers: Vec<u32>,
    /// Part of the operations that read, 0 to 1.
    pub reads: f64,
    /// Bytes of operations over what the clients' links carry.
    pub load: f64,
    /// What a client's link carries, in bits a second.
    pub bps: u64,
    /// Sizes of operations.
    pub sizes: Sizes,
    /// When it begins.
    pub start: Ps,
    /// For how long operations begin.
    pub duration: Ps,
    /// Priority of its packets.
    pub priority: u8,
}

impl Storage {
    /// By a plan with at least one client and one server.
    pub fn new(plan: &Plan, random: &mut Random) -> Self {
        // Times and sizes as for flows; who and where afterwards.
        let clients = plan.clients.len() as u32;
        let flows = FlowList::open_loop(
            clients.max(2),
            plan.bps * u64::from(clients) / u64::from(clients.max(2)),
            plan.load,
            &plan.sizes,
            plan.start,
            plan.duration,
            random,
        );
        let reads_ppm = (plan.reads * 1e6) as u32;
        let mut operations = Vec::with_capacity(flows.len());
        for flow in flows {
            let client = *random.pick(&plan.clients);
            let mut server = *random.pick(&plan.servers);
            while server == client && plan.servers.len() > 1 {
                server = *random.pick(&plan.servers);
            }
            if server != client {
                let is_read = random.chance(reads_ppm);
                operations.push(Operation {
                    flow: Flow { from: client, to: server, ..flow },
                    is_read,
                    ended: Ps::NEVER,
                });
            }
        }
        Self { operations, next: 0, open: 0, priority: plan.priority }
    }
}

impl Workload for Storage {
    fn next(&self) -> Ps {
        self.operations.get(self.next).map_or(Ps::NEVER, |operation| operation.flow.start)
    }

    fn due(&mut self, now: Ps, posts: &mut Vec<Post>) {
        while let Some(operation) = self.operations.get(self.next).filter(|operation| operation.flow.start <= now) {
            let Flow { from, to, bytes, .. } = operation.flow;
            let bytes = if operation.is_read { REQUEST_BYTES } else { bytes };
            posts.push(Post {
                from,
                to,
                bytes,
                priority: self.priority,
                lane: None,
                source_port: None,
                tag: self.next as u64,
            });
            self.next += 1;
            self.open += 1;
        }
    }

    fn hear(&mut self, now: Ps, notice: Notice, message: &Message, posts: &mut Vec<Post>) {
        let operation = &mut self.operations[message.tag as usize];
        let is_data = !operation.is_read || message.from == operation.flow.to;
        match notice {
            Notice::Delivered(_) if !is_data => {
                let Flow { from, to, bytes, .. } = operation.flow;
                posts.push(Post {
                    from: to,
                    to: from,
                    bytes,
                    priority: self.priority,
                    lane: None,
                    source_port: None,
                    tag: message.tag,
                });
            }
            // A read has ended when its data is here, a write when its ACK is.
            Notice::Delivered(_) if operation.is_read => {
                operation.ended = now;
                self.open -= 1;
            }
            Notice::Acked(_) if !operation.is_read => {
                operation.ended = now;
                self.open -= 1;
            }
            _ => {}
        }
    }

    fn is_done(&self) -> bool {
        self.next == self.operations.len() && self.open == 0
    }
}

impl Job for Storage {
    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (is_read, name) in [(true, "read"), (false, "write")] {
            let mut times: Vec<f64> = self
                .operations
                .iter()
                .filter(|operation| operation.is_read == is_read && operation.ended != Ps::NEVER)
                .map(|operation| operation.ended.since(operation.flow.start).as_us())
                .collect();
            if times.is_empty() {
                continue;
            }
            times.sort_by(f64::total_cmp);
            let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
            figures.push(Figure { name: format!("{name}s"), value: times.len() as f64, unit: "" });
            for (part, label) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
                figures.push(Figure { name: format!("{name} time, {label}"), value: at(part), unit: "µs" });
            }
        }
        figures
    }
}
