//! What the balancing rule remembers from round to round: how long ports have been hot, cool, up or down, what was ordered and has not been seen
//! yet, who must rest, and where connections were before a port failed. Plain data, filled only from what was believed; its owner keeps it and looks at nothing.

use super::policy::Policy;
use super::sample::{ConnectionKey, Direction, PortKey, RouteKey};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Everything that is remembered. A new leader begins with an empty one: nothing is hot before it has been seen hot for long enough.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct History {
    /// Time of the last round, ms.
    pub(super) last_ms: u64,
    pub(super) ports: BTreeMap<PortKey, PortMemory>,
    pub(super) connections: BTreeMap<ConnectionKey, ConnectionMemory>,
    /// When moves were ordered that the rate limit counts: the last second of them.
    pub(super) recent: VecDeque<u64>,
}

/// One direction of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Heat {
    pub hot: bool,
    /// Samples in a row that speak for the other state.
    streak: u32,
}

impl Heat {
    /// Takes a sample in.
    pub fn observe(&mut self, permille: u32, policy: &Policy) {
        let other = if self.hot { permille <= policy.cool_permille } else { permille > policy.hot_permille };
        self.streak = if other { self.streak + 1 } else { 0 };
        if self.streak >= policy.samples {
            *self = Self { hot: !self.hot, streak: 0 };
        }
    }

    /// Forgets what it was about to believe.
    pub fn interrupt(&mut self) {
        self.streak = 0;
    }
}

/// What is remembered of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortMemory {
    /// Time of the last sample that was believed, ms.
    pub taken_ms: u64,
    /// Since when it is up (or down), ms; `None`: since before it was first seen.
    pub since_ms: Option<u64>,
    pub up: bool,
    pub heat: [Heat; 2],
    /// When a move to it or from it was last ordered or seen, ms.
    pub touched_ms: Option<u64>,
}

impl PortMemory {
    pub fn is_hot(&self) -> bool {
        self.heat.iter().any(|heat| heat.hot)
    }

    pub fn heat(&self, direction: Direction) -> Heat {
        self.heat[direction as usize]
    }

    /// Whether what is measured at `at_ms` shows the moves that were made.
    pub fn is_settled(&self, at_ms: u64, policy: &Policy) -> bool {
        self.touched_ms.is_none_or(|touched| at_ms > touched.saturating_add(policy.settle_ms))
    }

    /// Whether it was down and is up again, but not for long.
    pub fn is_returning(&self, now_ms: u64, policy: &Policy) -> bool {
        self.up && self.since_ms.is_some_and(|since| now_ms < since.saturating_add(policy.return_ms))
    }
}

/// An order that has not been seen carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pending {
    pub to: RouteKey,
    pub ordered_ms: u64,
    /// Its reason makes the place where it goes the connection's new home.
    pub settles: bool,
}

/// What is remembered of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectionMemory {
    /// When it was last spoken of, ms.
    pub seen_ms: u64,
    /// Time of the last sample that was believed, ms.
    pub taken_ms: u64,
    pub route: RouteKey,
    /// Where it should be when everything is up.
    pub home: RouteKey,
    /// It left its home because a port was down.
    pub away: bool,
    /// Load that was last believed while its ports were up, bits per second.
    pub tx_bps: u64,
    pub rx_bps: u64,
    pub pending: Option<Pending>,
    pub moved_ms: Option<u64>,
    /// Orders that failed in a row.
    pub failures: u32,
    /// Samples in a row that say it is lossy.
    pub lossy: u32,
    /// When it was last lossy, ms, and how often it has been moved for that.
    pub lossy_ms: u64,
    pub lossy_moves: u32,
    /// Routes that were left for their losses, and until when they are not taken again, ms.
    pub suspects: Vec<(RouteKey, u64)>,
}

impl ConnectionMemory {
    pub fn new(route: RouteKey, now_ms: u64) -> Self {
        Self {
            seen_ms: now_ms,
            taken_ms: 0,
            route,
            home: route,
            away: false,
            tx_bps: 0,
            rx_bps: 0,
            pending: None,
            moved_ms: None,
            failures: 0,
            lossy: 0,
            lossy_ms: 0,
            lossy_moves: 0,
            suspects: Vec::new(),
        }
    }

    /// Whether it must stay where it is for now.
    pub fn is_resting(&self, now_ms: u64, policy: &Policy) -> bool {
        let doublings = (self.failures + self.lossy_moves).min(6);
        let rest = policy.rest_ms.saturating_mul(1 << doublings);
        self.moved_ms.is_some_and(|moved| now_ms < moved.saturating_add(rest))
    }

    pub fn is_suspect(&self, route: RouteKey, now_ms: u64) -> bool {
        self.suspects.iter().any(|&(suspect, until)| suspect == route && now_ms < until)
    }

    /// The order did not come about: it is where it was, and rests longer each time.
    pub fn fail(&mut self, now_ms: u64) {
        self.pending = None;
        self.failures = self.failures.saturating_add(1);
        self.moved_ms = Some(now_ms);
    }
}

impl History {
    /// An order was not given, was refused, or was rolled back.
    pub fn failed(&mut self, connection: ConnectionKey, now_ms: u64) {
        if let Some(memory) = self.connections.get_mut(&connection)
            && memory.pending.is_some()
        {
            memory.fail(now_ms);
        }
    }

    /// Whether a port is taken to be hot, in either direction.
    pub fn is_hot(&self, port: PortKey) -> bool {
        self.ports.get(&port).is_some_and(PortMemory::is_hot)
    }

    /// Where a connection was ordered to, if that has not been seen yet.
    pub fn ordered(&self, connection: ConnectionKey) -> Option<RouteKey> {
        Some(self.connections.get(&connection)?.pending?.to)
    }

    /// Takes back all times that lie after `now_ms`: the clock went back.
    pub(super) fn rebase(&mut self, now_ms: u64) {
        let back = |time: &mut u64| *time = (*time).min(now_ms);
        self.last_ms = now_ms;
        self.recent.iter_mut().for_each(back);
        for port in self.ports.values_mut() {
            back(&mut port.taken_ms);
            port.since_ms.iter_mut().chain(&mut port.touched_ms).for_each(back);
            port.heat.iter_mut().for_each(Heat::interrupt);
        }
        for memory in self.connections.values_mut() {
            [&mut memory.seen_ms, &mut memory.taken_ms, &mut memory.lossy_ms].into_iter().for_each(back);
            memory.moved_ms.iter_mut().for_each(back);
            memory.pending.iter_mut().for_each(|pending| back(&mut pending.ordered_ms));
        }
    }
}
