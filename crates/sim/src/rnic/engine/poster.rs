//! The CPU's part: threads build WQEs, take the locks that they share, ring, and learn of completions.

use super::super::load::Issue;
use super::super::parameter::Key;
use super::super::server::logarithm;
use super::{Engine, Event, NONE, Operation};

/// A thread.
pub(super) struct Thread {
    pub(super) qps: Vec<u32>,
    pub(super) under_way: u32,
    /// Completed, but not told, since unsignalled.
    pub(super) untold: u32,
    /// Posted since the last signalled one.
    pub(super) silent: u32,
    /// Signalled ones under way.
    pub(super) signalled: u32,
    /// Told in this round.
    pub(super) round: u32,
    /// CPU time for completions, to be spent before the next post.
    pub(super) debt: u64,
    /// First and number of the batch that is being built.
    pub(super) building: (u32, u32),
    pub(super) busy: u64,
    /// A wake is on its way, or it is building.
    pub(super) awake: bool,
    /// Posts in this round so far.
    pub(super) posted: u32,
}

impl Engine<'_> {
    /// A thread builds a batch if it may post one.
    pub(super) fn wake(&mut self, index: u32) {
        let (load, now) = (self.load, self.now);
        let mut spent = std::mem::take(&mut self.threads[index as usize].debt);
        let thread = &mut self.threads[index as usize];
        let may = match load.issue {
            Issue::Window => thread.under_way + load.batch <= load.depth,
            Issue::Round if thread.posted < load.depth => true,
            Issue::Round if thread.round == load.depth => {
                (thread.posted, thread.round) = (0, 0);
                spent += if load.depth > 1 { self.profile.ps(Key::CpuGather) } else { 0 };
                true
            }
            Issue::Round => false,
        };
        if !may {
            thread.awake = false;
            thread.debt = spent;
            return;
        }
        thread.posted += load.batch;
        thread.under_way += load.batch;
        let (qp, mut silent) = (thread.qps[self.random.below(thread.qps.len() as u64) as usize], thread.silent);
        let mut first = NONE;
        let mut flags = Vec::new();
        for _ in 0..load.batch {
            silent += 1;
            flags.push(silent == load.signal_every);
            silent = if silent == load.signal_every { 0 } else { silent };
        }
        thread.silent = silent;
        thread.signalled += flags.iter().filter(|signalled| **signalled).count() as u32;
        for signalled in flags.into_iter().rev() {
            first = self.allocate(Operation { id: 0, thread: index, qp, next: first, signalled, posted: now });
        }
        let build = u64::from(load.batch) * self.path.build_ps();
        // Threads that share a host are not equally fast at all times; alone, a thread is.
        let vary = if self.load.threads > 1 { self.random.range(500, 1500) } else { 1000 };
        let cpu = self.cpu(spent) + self.cpu(build) * vary / 1000;
        let thread = &mut self.threads[index as usize];
        thread.building = (first, qp);
        thread.busy += cpu;
        // Of a batch the first could have been rung at once: its clock starts when the thread turns to it.
        let started = now + self.cpu(spent);
        let mut at = first;
        while at != NONE {
            self.operations[at as usize].posted = started;
            at = self.operations[at as usize].next;
        }
        self.schedule(now + cpu, Event::Built(index));
    }

    pub(super) fn allocate(&mut self, operation: Operation) -> u32 {
        self.next_id += 1;
        let operation = Operation { id: self.next_id, ..operation };
        match self.free.pop() {
            Some(at) => {
                self.operations[at as usize] = operation;
                at
            }
            None => {
                self.operations.push(operation);
                self.operations.len() as u32 - 1
            }
        }
    }

    /// The thread takes the locks that it shares, and rings.
    pub(super) fn built(&mut self, index: u32) {
        let (first, qp) = self.threads[index as usize].building;
        let ring = self.cpu(self.path.ring_ps());
        let sharers = self.sharers[qp as usize];
        let register = qp as usize % self.register_locks.len();
        let mut at = self.now;
        if sharers > 1 {
            let lock = &mut self.queue_locks[qp as usize];
            let contended = self.profile.value(Key::CpuQueueContention) * logarithm(sharers);
            let hold = self.profile.value(Key::CpuQueueLock) + contended;
            at = at.max(lock.free) + (hold * 1000.0) as u64;
        }
        let contenders = self.register_sharers[register];
        if contenders > 1 {
            // The lock's line comes from another core, unless this thread was its last holder.
            let last = std::mem::replace(&mut self.register_holders[register], index);
            let contended = if last == index { 0.0 } else { logarithm(contenders) };
            let hold = self.profile.value(Key::CpuDoorbellLock) * contended;
            at = self.register_locks[register].take(at, ring + (hold * 1000.0) as u64);
        } else {
            at += ring;
        }
        if sharers > 1 {
            let lock = &mut self.queue_locks[qp as usize];
            lock.busy += at - self.now.max(lock.free);
            lock.free = at;
        }
        self.threads[index as usize].busy += at - self.now;
        self.schedule(at, Event::Ring(first));
        self.schedule(at, Event::Wake(index));
    }

    /// The thread learns of it, if it is told.
    pub(super) fn done(&mut self, index: u32) {
        let operation = self.operations[index as usize];
        self.free.push(index);
        self.completed += 1;
        if self.completed == self.warm_until {
            self.begin_to_measure();
        }
        let completion = self.ps(Key::CpuCompletion);
        let thread = &mut self.threads[operation.thread as usize];
        thread.untold += 1;
        if operation.signalled {
            thread.signalled -= 1;
            thread.debt += completion;
        }
        // Operations of different QPs overtake each other: the last is told of even if its signalled neighbour was faster.
        if operation.signalled || thread.signalled == 0 {
            let told = std::mem::take(&mut thread.untold);
            thread.under_way -= told;
            thread.round += told;
            if !thread.awake {
                thread.awake = true;
                self.schedule(self.now, Event::Wake(operation.thread));
            }
            if operation.signalled && self.completed > self.warm_until {
                self.latency += u128::from(self.now - operation.posted);
                self.signalled += 1;
            }
        }
        self.to = self.now;
    }
}
