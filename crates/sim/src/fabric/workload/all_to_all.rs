//! Everybody to everybody: each host sends the same to each other one, in shifted order, with a limit on what it has open.

use super::super::time::Ps;
use super::super::world::{Message, Notice, Post, Workload};
use super::{Figure, Job};

/// An exchange among `hosts`.
pub struct AllToAll {
    hosts: Vec<u32>,
    bytes: u64,
    priority: u8,
    /// Messages that a host may have open.
    concurrent: u32,
    start: Ps,
    /// The next shift of each host; hosts - 1 is the last.
    shift: Vec<u32>,
    open: u64,
    begun: bool,
    ended: Ps,
}

impl AllToAll {
    /// `bytes` from each of `hosts` to each other one.
    pub fn new(hosts: Vec<u32>, bytes: u64, concurrent: u32, priority: u8, start: Ps) -> Self {
        let shift = vec![1; hosts.len()];
        Self {
            hosts,
            bytes,
            priority,
            concurrent: concurrent.max(1),
            start,
            shift,
            open: 0,
            begun: false,
            ended: Ps::ZERO,
        }
    }

    fn post_next(&mut self, index: usize, posts: &mut Vec<Post>) {
        let shift = self.shift[index] as usize;
        if shift >= self.hosts.len() {
            return;
        }
        self.shift[index] += 1;
        self.open += 1;
        posts.push(Post {
            from: self.hosts[index],
            to: self.hosts[(index + shift) % self.hosts.len()],
            bytes: self.bytes,
            priority: self.priority,
            lane: Some(0),
            source_port: None,
            tag: index as u64,
        });
    }
}

impl Workload for AllToAll {
    fn next(&self) -> Ps {
        if self.begun { Ps::NEVER } else { self.start }
    }

    fn due(&mut self, _now: Ps, posts: &mut Vec<Post>) {
        self.begun = true;
        for index in 0..self.hosts.len() {
            for _ in 0..self.concurrent {
                self.post_next(index, posts);
            }
        }
    }

    fn hear(&mut self, now: Ps, notice: Notice, message: &Message, posts: &mut Vec<Post>) {
        if let Notice::Acked(_) = notice {
            self.open -= 1;
            self.ended = now;
            self.post_next(message.tag as usize, posts);
        }
    }

    fn is_done(&self) -> bool {
        self.begun && self.open == 0
    }
}

impl Job for AllToAll {
    fn figures(&self) -> Vec<Figure> {
        let each = self.bytes as f64 * (self.hosts.len() as f64 - 1.0);
        let time = self.ended.since(self.start);
        let gbps = if time == Ps::ZERO { 0.0 } else { each * 8.0 / time.as_secs() / 1e9 };
        vec![
            Figure { name: "all-to-all time".to_owned(), value: time.as_us(), unit: "µs" },
            Figure { name: "all-to-all goodput per host".to_owned(), value: gbps, unit: "Gb/s" },
        ]
    }
}
