//! AllReduce: gradients in buckets, one after the other, each cut over channels; by a ring (reduce-scatter, then all-gather) or by a binary tree (up, then
//! down, in pieces). A message leaves when what it depends on has arrived, and compute takes no time.

use super::super::time::Ps;
use super::super::world::{Message, Notice, Post, Workload};
use super::{Figure, Job};
use std::cell::RefCell;
use std::rc::Rc;

/// How the values travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 2(n-1) steps of 1/n each.
    Ring,
    /// Up a binary tree and down again, in pieces of so many bytes.
    Tree {
        /// Bytes of a piece.
        piece: u64,
    },
}

/// By which ports a QP between two neighbours of a ring goes, and by which path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Sending host: a port of the node that sends.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// UDP source port: with the hosts, what switches hash.
    pub source_port: u16,
    /// The QP: of its own for each way that a connection has had.
    pub lane: u32,
}

/// The ways of a ring that may change while it runs, bucket after bucket without end: a message takes the way that stands here when it is posted, so that what is on
/// its way on the old QP ends there. Shared by the ring and by whoever moves its QPs.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// For each channel and sending member: channel x members + member.
    pub ways: Vec<Way>,
    /// A bucket ends after so many steps of its ring, at most; 0: after all 2(n-1). All steps of a ring are alike, so fewer of them only let rings wait for each other
    /// more often.
    pub steps: u32,
    /// How many buckets are begun.
    pub begun: u32,
    /// When the last of them was.
    pub begun_at: Ps,
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The members of each channel: channels may use different NICs of the same servers.
    pub channels: Vec<Vec<u32>>,
    /// Bytes that every member contributes, for all buckets together.
    pub bytes: u64,
    /// Buckets.
    pub buckets: u32,
    /// Buckets that are under way at once.
    pub overlap: u32,
    /// How often all of it is done, one after the other.
    pub iterations: u32,
    /// How.
    pub shape: Shape,
    /// When it begins.
    pub start: Ps,
    /// Priority of its packets.
    pub priority: u8,
    /// Rings without end, whose ways may change; [`Plan::buckets`] and [`Plan::bytes`] give only the size of a bucket. None: each channel goes by the hosts of its
    /// members.
    pub binding: Option<Rc<RefCell<Binding>>>,
}

/// State of one bucket on one channel at one member: what has arrived.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Ring: steps received. Tree: pieces that have come from the first child, the second, the parent.
    received: [u32; 3],
    /// Tree: pieces sent up, and down.
    sent: [u32; 2],
}

/// One AllReduce, as often as asked for.
pub struct AllReduce {
    plan: Plan,
    begun: bool,
    /// Buckets begun and done, over all iterations.
    opened: u32,
    finished: u32,
    /// For each bucket that is under way (a ring of `overlap` places), channel and member.
    progress: Vec<Progress>,
    /// Members times channels that are not done, for each place.
    missing: Vec<u32>,
    members: usize,
    /// Steps of a ring.
    steps: u32,
    open: u64,
    /// When each iteration ended.
    ends: Vec<Ps>,
}

const UP: u64 = 0;
const DOWN: u64 = 1;

impl AllReduce {
    /// A plan whose channels all have the same number of members, at least two.
    pub fn new(plan: Plan) -> Self {
        let overlap = plan.overlap.clamp(1, plan.buckets.max(1)) as usize;
        let members = plan.channels.first().map_or(0, Vec::len);
        let all = 2 * (members as u32).saturating_sub(1);
        let steps = match plan.binding.as_ref().map(|binding| binding.borrow().steps) {
            None | Some(0) => all,
            Some(most) => all.min(most),
        };
        let cells = overlap * plan.channels.len() * members;
        Self {
            begun: false,
            opened: 0,
            finished: 0,
            progress: vec![Progress::default(); cells],
            missing: vec![0; overlap],
            members,
            steps,
            open: 0,
            ends: Vec::new(),
            plan,
        }
    }

    fn total(&self) -> u32 {
        match &self.plan.binding {
            Some(_) => u32::MAX,
            None => self.plan.buckets * self.plan.iterations,
        }
    }

    /// Buckets of an iteration: bound rings have only one.
    fn iteration(&self) -> u32 {
        if self.plan.binding.is_some() { u32::MAX } else { self.plan.buckets }
    }

    fn share(&self) -> u64 {
        self.plan.bytes.div_ceil(u64::from(self.plan.buckets)).div_ceil(self.plan.channels.len() as u64)
    }

    fn pieces(&self) -> u32 {
        match self.plan.shape {
            Shape::Ring => self.steps,
            Shape::Tree { piece } => self.share().div_ceil(piece.max(1)).max(1) as u32,
        }
    }

    fn cell(&mut self, place: usize, channel: usize, member: usize) -> &mut Progress {
        let index = (place * self.plan.channels.len() + channel) * self.members + member;
        &mut self.progress[index]
    }

    fn post(&mut self, place: usize, channel: usize, from: usize, to: usize, direction: u64, posts: &mut Vec<Post>) {
        let bytes = match self.plan.shape {
            Shape::Ring => self.share().div_ceil(self.members as u64),
            Shape::Tree { piece } => piece.min(self.share()),
        };
        let hosts = &self.plan.channels[channel];
        let way = match &self.plan.binding {
            Some(binding) => binding.borrow().ways.get(channel * self.members + from).copied(),
            None => None,
        };
        self.open += 1;
        posts.push(Post {
            from: way.map_or(hosts[from], |way| way.from),
            to: way.map_or(hosts[to], |way| way.to),
            bytes: bytes.max(1),
            priority: self.plan.priority,
            lane: Some(way.map_or(channel as u32, |way| way.lane)),
            source_port: way.map(|way| way.source_port),
            tag: direction << 55 | (place as u64) << 44 | (channel as u64) << 32 | (from as u64) << 16 | to as u64,
        });
    }

    fn open_buckets(&mut self, now: Ps, posts: &mut Vec<Post>) {
        let overlap = self.missing.len() as u32;
        while self.opened < self.total() && self.opened - self.finished < overlap {
            // An iteration begins when the one before is done.
            if self.opened.is_multiple_of(self.iteration()) && self.finished != self.opened {
                return;
            }
            let Some(place) = self.missing.iter().position(|missing| *missing == 0) else { return };
            self.opened += 1;
            if let Some(binding) = &self.plan.binding {
                let mut binding = binding.borrow_mut();
                (binding.begun, binding.begun_at) = (self.opened, now);
            }
            self.missing[place] = (self.plan.channels.len() * self.members) as u32;
            for channel in 0..self.plan.channels.len() {
                for member in 0..self.members {
                    *self.cell(place, channel, member) = Progress::default();
                }
                match self.plan.shape {
                    Shape::Ring => {
                        for member in 0..self.members {
                            self.post(place, channel, member, (member + 1) % self.members, UP, posts);
                        }
                    }
                    Shape::Tree { .. } => {
                        for member in 0..self.members {
                            self.climb(place, channel, member, posts);
                        }
                    }
                }
            }
        }
    }

    /// Tree: sends up what both children have brought, and at the root down again.
    fn climb(&mut self, place: usize, channel: usize, member: usize, posts: &mut Vec<Post>) {
        let (pieces, members) = (self.pieces(), self.members);
        let has = |child: usize| child < members;
        loop {
            let state = *self.cell(place, channel, member);
            let from_first = if has(2 * member + 1) { state.received[0] } else { pieces };
            let from_second = if has(2 * member + 2) { state.received[1] } else { pieces };
            let ready = from_first.min(from_second);
            if state.sent[0] >= ready {
                break;
            }
            self.cell(place, channel, member).sent[0] += 1;
            if member == 0 {
                self.cell(place, channel, member).received[2] += 1;
            } else {
                self.post(place, channel, member, (member - 1) / 2, UP, posts);
            }
        }
        self.descend(place, channel, member, posts);
    }

    /// Tree: sends down what came from above.
    fn descend(&mut self, place: usize, channel: usize, member: usize, posts: &mut Vec<Post>) {
        let pieces = self.pieces();
        loop {
            let state = *self.cell(place, channel, member);
            if state.sent[1] >= state.received[2] {
                return;
            }
            self.cell(place, channel, member).sent[1] += 1;
            for child in [2 * member + 1, 2 * member + 2] {
                if child < self.members {
                    self.post(place, channel, member, child, DOWN, posts);
                }
            }
            if state.sent[1] + 1 == pieces {
                self.missing[place] -= 1;
            }
        }
    }
}

impl Workload for AllReduce {
    fn next(&self) -> Ps {
        if self.begun { Ps::NEVER } else { self.plan.start }
    }

    fn due(&mut self, now: Ps, posts: &mut Vec<Post>) {
        self.begun = true;
        self.open_buckets(now, posts);
    }

    fn hear(&mut self, now: Ps, notice: Notice, message: &Message, posts: &mut Vec<Post>) {
        if let Notice::Acked(_) = notice {
            self.open -= 1;
            return;
        }
        let tag = message.tag;
        let (place, channel) = ((tag >> 44 & 0x7ff) as usize, (tag >> 32 & 0xfff) as usize);
        let (from, member) = ((tag >> 16 & 0xffff) as usize, (tag & 0xffff) as usize);
        match self.plan.shape {
            Shape::Ring => {
                let pieces = self.pieces();
                let state = self.cell(place, channel, member);
                state.received[0] += 1;
                let received = state.received[0];
                if received < pieces {
                    self.post(place, channel, member, (member + 1) % self.members, UP, posts);
                } else {
                    self.missing[place] -= 1;
                }
            }
            Shape::Tree { .. } => {
                let which = match tag >> 55 & 1 {
                    DOWN => 2,
                    _ if from == 2 * member + 1 => 0,
                    _ => 1,
                };
                self.cell(place, channel, member).received[which] += 1;
                if which == 2 {
                    self.descend(place, channel, member, posts);
                } else {
                    self.climb(place, channel, member, posts);
                }
            }
        }
        if self.missing[place] == 0 {
            self.finished += 1;
            if self.finished.is_multiple_of(self.iteration()) {
                self.ends.push(now);
            }
            self.open_buckets(now, posts);
        }
    }

    fn is_done(&self) -> bool {
        self.begun && self.finished == self.total() && self.open == 0
    }

    fn bytes(&self) -> u64 {
        if self.plan.binding.is_some() {
            return 0;
        }
        let bucket = self.plan.bytes / u64::from(self.plan.buckets.max(1));
        2 * bucket * (self.members as u64 - 1) * u64::from(self.total())
    }
}

impl Job for AllReduce {
    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let Some(last) = self.ends.last() else { return figures };
        let mean = last.since(self.plan.start).as_secs() / self.ends.len() as f64;
        let mut before = self.plan.start;
        let mut longest = Ps::ZERO;
        for &end in &self.ends {
            longest = longest.max(end.since(before));
            before = end;
        }
        // Bus bandwidth as NCCL counts it: 2(n-1)/n of the bytes pass each member. Channels on several NICs add up.
        let n = self.members as f64;
        let bus = self.plan.bytes as f64 * 8.0 * 2.0 * (n - 1.0) / n / mean / 1e9;
        figures.push(Figure { name: "AllReduce iterations".to_owned(), value: self.ends.len() as f64, unit: "" });
        figures.push(Figure { name: "AllReduce time, mean".to_owned(), value: mean * 1e6, unit: "µs" });
        figures.push(Figure { name: "AllReduce time, longest".to_owned(), value: longest.as_us(), unit: "µs" });
        figures.push(Figure { name: "bus bandwidth per member".to_owned(), value: bus, unit: "Gb/s" });
        figures
    }

    fn has_flows(&self) -> bool {
        false
    }
}
