//! A load for the event simulation: who posts how, over which QPs and doorbells, into which memory. [`Load::check`] says what makes no sense.

use super::profile::Profile;
use super::shape::{Setting, Shape};

/// When a thread posts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// As soon as there is room for a batch within its depth.
    Window,
    /// When all of its depth have completed.
    Round,
}

/// Doorbell registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// One for each QP.
    Own,
    /// The profile's number of them, QPs in turn.
    Default,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responder {
    /// Another NIC of the same kind, which asks for nothing itself.
    Peer,
    /// All NICs ask and answer alike: what this one asks, it is asked as well, over the same bus.
    Mirror,
    /// Only the responder is looked at: there are requesters enough.
    Only,
}

/// The memory that operations work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Registered regions.
    pub regions: u64,
    /// Bytes of each.
    pub region_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl Memory {
    /// One region on one page: translations are never missed.
    pub const ONE_PAGE: Memory = Memory { regions: 1, region_bytes: 4096, page_bytes: 4096 };

    /// Pages of one region.
    pub fn pages(&self) -> u64 {
        self.region_bytes.div_ceil(self.page_bytes).max(1)
    }
}

/// Which cache lines operations meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Share of operations that go to the hot lines, in a million.
    pub hot_ppm: u32,
    /// How many hot lines there are; they share the hot operations evenly.
    pub hot_lines: u64,
    /// How many other lines.
    pub lines: u64,
}

impl Target {
    /// No hot line.
    pub const SPREAD: Target = Target { hot_ppm: 0, hot_lines: 1, lines: 1 << 20 };
    /// All on one line.
    pub const ONE_LINE: Target = Target { hot_ppm: 1_000_000, hot_lines: 1, lines: 1 };
}

/// What the simulation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The operation.
    pub shape: Shape,
    /// The circumstances.
    pub setting: Setting,
    /// Threads that post, each on a core.
    pub threads: u32,
    /// QPs of all threads together. Fewer than threads: threads share them, under locks.
    pub qps: u32,
    /// Operations that a thread has under way, at most.
    pub depth: u32,
    /// When it posts again.
    pub issue: Issue,
    /// WQEs for each ring of the doorbell. BlueFlame needs 1.
    pub batch: u32,
    /// Each so-manieth operation is signalled.
    pub signal_every: u32,
    /// Doorbell registers.
    pub registers: Registers,
    /// Who answers.
    pub responder: Responder,
    /// Memory at the responder.
    pub memory: Memory,
    /// Cache lines at the responder.
    pub target: Target,
    /// Operations to measure, at least.
    pub operations: u32,
    /// Seed of all chance.
    pub seed: u64,
}

impl Load {
    /// One thread on one QP with one signalled operation at a time.
    pub fn one(shape: Shape, setting: Setting) -> Self {
        Self {
            shape,
            setting,
            threads: 1,
            qps: 1,
            depth: 1,
            issue: Issue::Window,
            batch: 1,
            signal_every: 1,
            registers: Registers::Own,
            responder: Responder::Peer,
            memory: Memory::ONE_PAGE,
            target: Target::SPREAD,
            operations: 6000,
            seed: 1,
        }
    }

    /// Operations under way at most.
    pub fn outstanding(&self) -> u64 {
        u64::from(self.threads) * u64::from(self.depth)
    }

    /// Says what makes no sense, with the remedy.
    pub fn check(&self, profile: &Profile) -> Result<(), String> {
        self.shape.check(profile)?;
        for (name, value, most) in [
            ("threads", self.threads, 1 << 12),
            ("QPs", self.qps, 1 << 20),
            ("depth", self.depth, 1 << 16),
            ("batch", self.batch, 1 << 12),
            ("signal-every", self.signal_every, 1 << 16),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("{name} is {value}; expected 1 to {most}"));
            }
        }
        if self.outstanding() > 1 << 20 {
            return Err(format!("{} operations under way; expected at most {}", self.outstanding(), 1 << 20));
        }
        if self.batch > self.depth {
            return Err(format!("a batch of {} needs a depth of as many; depth is {}", self.batch, self.depth));
        }
        if self.signal_every > 1 && self.depth < self.signal_every + self.batch - 1 {
            let least = self.signal_every + self.batch - 1;
            return Err(format!(
                "one in {} is signalled, {} are posted at a time: depth must be at least {least}, or the queue fills with \
                 operations of which nobody is told",
                self.signal_every, self.batch
            ));
        }
        if self.issue == Issue::Round
            && !(self.depth.is_multiple_of(self.batch) && self.depth.is_multiple_of(self.signal_every))
        {
            return Err("in rounds, depth must be a multiple of batch and of signal-every".to_owned());
        }
        if self.batch > 1 && self.shape.blueflame {
            return Err("BlueFlame carries one WQE: it does not go with a batch".to_owned());
        }
        let memory = self.memory;
        if memory.regions == 0 || memory.region_bytes == 0 || memory.page_bytes == 0 {
            return Err("regions, their size and the page size must be above 0".to_owned());
        }
        if memory.regions.checked_mul(memory.pages()).is_none_or(|pages| pages > 1 << 40) {
            return Err("more than 2^40 pages".to_owned());
        }
        if self.target.hot_ppm > 1_000_000 || self.target.hot_lines == 0 || self.target.lines == 0 {
            return Err("the share of hot lines is at most 1, and there is at least one line".to_owned());
        }
        Ok(())
    }
}
