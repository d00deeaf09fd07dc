//! The ports with what they carry and what has been promised to them: who may still come. It chooses nothing.

use super::history::History;
use super::judge::{Facts, permille};
use super::policy::{Policy, Wishes};
use super::sample::{PortKey, Route};

/// A port with its load and what is on its way to it.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub port: PortKey,
    pub plane: Option<u32>,
    pub up: bool,
    pub drained: bool,
    pub hot: bool,
    pub returning: bool,
    pub capacity_bps: u64,
    /// Sent and received.
    pub load_bps: [i128; 2],
}

impl Spot {
    /// Thousandths of the capacity.
    pub fn permille(&self, load_bps: i128) -> u32 {
        permille(u64::try_from(load_bps.max(0)).unwrap_or(u64::MAX), self.capacity_bps)
    }
}

/// How good a route is to go to. The smaller the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// No port that is entered is hot or just back, and all stay within the filling limit.
    Good,
    /// A port is filled above the limit.
    Tight,
    /// A port was down a moment ago.
    Returning,
    /// A port is hot.
    Hot,
}

/// What a connection adds to each port of `to` when it comes from `from`, by direction; below zero where it takes less than before.
fn gains<'a>(from: &'a Route, to: &'a Route, load_bps: [u64; 2]) -> impl Iterator<Item = (PortKey, [i128; 2])> + 'a {
    let on = move |route: &Route, port: PortKey| {
        let mut sum = [0; 2];
        for (_, direction, bps) in shares(route, load_bps).filter(|&(other, ..)| other == port) {
            sum[direction] += bps;
        }
        sum
    };
    let is_first = |n: usize, port: PortKey| to.ports().take(n).all(|other| other != port);
    to.ports().enumerate().filter(move |&(n, port)| is_first(n, port)).map(move |(_, port)| {
        let [to, from] = [on(to, port), on(from, port)];
        (port, [to[0] - from[0], to[1] - from[1]])
    })
}

/// All ports that are known now.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    /// In order of port.
    spots: Vec<Spot>,
    fill_permille: u32,
}

/// What a connection puts on the ports of a route: port, direction, bits per second.
pub(super) fn shares(route: &Route, load_bps: [u64; 2]) -> impl Iterator<Item = (PortKey, usize, i128)> + '_ {
    let [tx, rx] = load_bps.map(i128::from);
    let local = [(route.local, 0, tx), (route.local, 1, rx)];
    let remote = route.remote.map(|port| [(port, 0, rx), (port, 1, tx)]);
    let via = route.via.iter().map(move |&port| (port, 0, tx));
    local.into_iter().chain(remote.into_iter().flatten()).chain(via)
}

impl Ground {
    /// The ports as measured, with what is on its way to them.
    pub fn new(facts: &Facts<'_>, history: &History, wishes: &Wishes, policy: &Policy, now_ms: u64) -> Self {
        let spot = |(&port, fact): (&PortKey, &super::judge::PortFact)| {
            let memory = history.ports.get(&port);
            Spot {
                port,
                plane: fact.plane,
                up: fact.up,
                drained: wishes.drained.contains(&port),
                hot: memory.is_some_and(|memory| memory.is_hot()),
                returning: memory.is_some_and(|memory| memory.is_returning(now_ms, policy)),
                capacity_bps: fact.capacity_bps,
                load_bps: fact.load_bps.map(i128::from),
            }
        };
        let spots: Vec<Spot> = facts.ports.iter().map(spot).collect();
        let mut ground = Self { spots, fill_permille: policy.fill_permille };
        for fact in &facts.connections {
            let Some(memory) = history.connection(fact.key()) else { continue };
            let load = [memory.tx_bps, memory.rx_bps];
            if let Some(pending) = memory.pending {
                if let Some(to) = fact.sample.routes.iter().find(|route| route.key == pending.to) {
                    ground.claim(fact.route, to, load);
                }
            } else if let Some(moved_ms) = memory.moved_ms {
                // What was measured may not show it yet: counted twice rather than not at all.
                let until_ms = moved_ms.saturating_add(policy.settle_ms);
                for (port, direction, bps) in shares(fact.route, load) {
                    if facts.ports.get(&port).is_some_and(|fact| fact.taken_ms <= until_ms) {
                        ground.add(port, direction, bps);
                    }
                }
            }
        }
        ground
    }

    fn add(&mut self, port: PortKey, direction: usize, bps: i128) {
        if let Some(n) = self.place(port) {
            self.spots[n].load_bps[direction] += bps;
        }
    }

    /// Counts a connection where it goes to. What it leaves keeps its load: nobody builds on room that another move of the same round would make, for
    /// that one may fail.
    pub fn claim(&mut self, from: &Route, to: &Route, load_bps: [u64; 2]) {
        self.book(from, to, load_bps, 1);
    }

    /// Undoes a claim exactly.
    pub fn release(&mut self, from: &Route, to: &Route, load_bps: [u64; 2]) {
        self.book(from, to, load_bps, -1);
    }

    fn book(&mut self, from: &Route, to: &Route, load_bps: [u64; 2], sign: i128) {
        for (port, gain) in gains(from, to, load_bps) {
            for (direction, bps) in gain.into_iter().enumerate() {
                self.add(port, direction, sign * bps.max(0));
            }
        }
    }

    /// A port, if it is known.
    pub fn spot(&self, port: PortKey) -> Option<&Spot> {
        Some(&self.spots[self.place(port)?])
    }

    fn place(&self, port: PortKey) -> Option<usize> {
        self.spots.binary_search_by_key(&port, |spot| spot.port).ok()
    }

    /// Whether all ports of a route are known, up, not being emptied, and of one plane.
    pub fn is_open(&self, route: &Route) -> bool {
        let mut plane = None;
        route.ports().all(|port| {
            let Some(spot) = self.spot(port) else { return false };
            let fits = spot.plane.is_none() || plane.is_none() || plane == spot.plane;
            plane = plane.or(spot.plane);
            spot.up && !spot.drained && fits
        })
    }

    /// How good `to` is for a connection that is on `from`, and how full the fullest port that it enters will be, thousandths; `None` if it
    /// cannot be taken at all.
    pub fn fit(&self, from: &Route, to: &Route, load_bps: [u64; 2]) -> Option<(Fit, u32)> {
        if !self.is_open(to) {
            return None;
        }
        let (mut fit, mut level) = (Fit::Good, 0);
        for (port, gain) in gains(from, to, load_bps) {
            let Some(spot) = self.spot(port) else { continue };
            let is_entered = gain.iter().any(|&bps| bps > 0) || !from.ports().any(|other| other == port);
            if !is_entered {
                continue;
            }
            if spot.hot {
                fit = fit.max(Fit::Hot);
            } else if spot.returning {
                fit = fit.max(Fit::Returning);
            }
            for (load, gain) in spot.load_bps.into_iter().zip(gain).filter(|&(_, gain)| gain > 0) {
                level = level.max(spot.permille(load + gain));
            }
        }
        if level > self.fill_permille {
            fit = fit.max(Fit::Tight);
        }
        Some((fit, level))
    }
}
