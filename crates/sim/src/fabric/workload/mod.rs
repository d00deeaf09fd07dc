//! What asks for traffic: lists of flows (from patterns, from distributions of sizes, from tables), collectives whose messages wait for each other, storage
//! that reads and writes. All of it follows from the seed; none of it sees packets.

pub mod all_reduce;
pub mod all_to_all;
pub mod flow_list;
pub mod sizes;
pub mod storage;

use super::time::Ps;
use super::world::{Message, Notice, Post, Workload};

/// A figure that a workload tells of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// A workload that has something to tell afterwards.
pub trait Job: Workload {
    /// What came out, beside the times of messages.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
    /// Whether its messages count as flows, with slowdown by size.
    fn has_flows(&self) -> bool {
        true
    }
}

/// Bits of a tag that tell whose it is.
const OWNER_SHIFT: u32 = 56;

/// Several workloads at once. Tags of each lie below 2^56.
pub struct Mix {
    jobs: Vec<Box<dyn Job>>,
}

impl Mix {
    /// At most 256.
    pub fn new(jobs: Vec<Box<dyn Job>>) -> Self {
        Self { jobs }
    }

    /// The workloads.
    pub fn jobs(&self) -> &[Box<dyn Job>] {
        &self.jobs
    }

    /// Which workload a message belongs to.
    pub fn owner(tag: u64) -> usize {
        (tag >> OWNER_SHIFT) as usize
    }

    fn sign(owner: usize, posts: &mut [Post]) {
        for post in posts {
            post.tag |= (owner as u64) << OWNER_SHIFT;
            // Lanes of different workloads are different QPs.
            post.lane = post.lane.map(|lane| lane | (owner as u32) << 24);
        }
    }
}

impl Workload for Mix {
    fn next(&self) -> Ps {
        self.jobs.iter().map(|job| job.next()).min().unwrap_or(Ps::NEVER)
    }

    fn due(&mut self, now: Ps, posts: &mut Vec<Post>) {
        for (owner, job) in self.jobs.iter_mut().enumerate() {
            if job.next() <= now {
                let from = posts.len();
                job.due(now, posts);
                Self::sign(owner, &mut posts[from..]);
            }
        }
    }

    fn hear(&mut self, now: Ps, notice: Notice, message: &Message, posts: &mut Vec<Post>) {
        let owner = Self::owner(message.tag);
        if let Some(job) = self.jobs.get_mut(owner) {
            let own = Message { tag: message.tag & ((1 << OWNER_SHIFT) - 1), ..*message };
            let from = posts.len();
            job.hear(now, notice, &own, posts);
            Self::sign(owner, &mut posts[from..]);
        }
    }

    fn is_done(&self) -> bool {
        self.jobs.iter().all(|job| job.is_done())
    }

    fn bytes(&self) -> u64 {
        // One that does not know makes the sum worth nothing.
        let all: Vec<u64> = self.jobs.iter().map(|job| job.bytes()).collect();
        if all.contains(&0) { 0 } else { all.iter().sum() }
    }
}
