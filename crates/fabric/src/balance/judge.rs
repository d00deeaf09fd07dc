//! Decides what of a snapshot is believed. Agents may be wrong, late or lying: nonsense is named and left out, so that it can neither heat a port nor
//! cool one, and never moves a connection. It changes nothing and keeps nothing.

use super::history::History;
use super::outcome::{Doubt, DoubtReason, Subject};
use super::policy::Policy;
use super::sample::{ConnectionKey, ConnectionSample, PortKey, PortSample, Route, Snapshot};
use std::collections::{BTreeMap, BTreeSet};

/// A port of which was spoken sensibly.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortFact {
    pub taken_ms: u64,
    /// It was not seen in an earlier round.
    pub is_new: bool,
    pub plane: Option<u32>,
    pub up: bool,
    pub capacity_bps: u64,
    /// Sent and received, by [`super::Direction`].
    pub load_bps: [u64; 2],
}

impl PortFact {
    /// Thousandths of the capacity, rounded up.
    pub fn permille(&self, direction: usize) -> u32 {
        permille(self.load_bps[direction], self.capacity_bps)
    }
}

/// Thousandths of a capacity, rounded up; of none, everything is too much.
pub(super) fn permille(load_bps: u64, capacity_bps: u64) -> u32 {
    if capacity_bps == 0 {
        return if load_bps == 0 { 0 } else { u32::MAX };
    }
    u32::try_from((u128::from(load_bps) * 1000).div_ceil(u128::from(capacity_bps))).unwrap_or(u32::MAX)
}

/// What is said of a connection's traffic, if it is believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// Sent and received.
    pub load_bps: [u64; 2],
    pub retransmit_permille: u32,
}

/// A connection of which was spoken sensibly.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionFact<'a> {
    pub sample: &'a ConnectionSample,
    /// It was not seen in an earlier round.
    pub is_new: bool,
    /// The route in use.
    pub route: &'a Route,
    pub traffic: Option<Traffic>,
}

impl ConnectionFact<'_> {
    pub fn key(&self) -> ConnectionKey {
        self.sample.connection
    }
}

/// What is believed.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts<'a> {
    pub ports: BTreeMap<PortKey, PortFact>,
    /// In order of key.
    pub connections: Vec<ConnectionFact<'a>>,
}

/// Sorts a snapshot into what is believed and what is not.
pub(super) fn judge<'a>(snapshot: &Snapshot<'a>, policy: &Policy, history: &History) -> (Facts<'a>, Vec<Doubt>) {
    let mut facts = Facts::default();
    let mut doubts = Vec::new();
    for sample in snapshot.ports {
        match judge_port(sample, snapshot.now_ms, policy, history) {
            Ok(fact) => {
                facts.ports.insert(sample.port, fact);
            }
            Err(why) => doubts.push(Doubt { about: Subject::Port(sample.port), why }),
        }
    }
    for port in twice(snapshot.ports.iter().map(|sample| sample.port)) {
        facts.ports.remove(&port);
        doubts.push(Doubt { about: Subject::Port(port), why: DoubtReason::Twice });
    }
    let repeated: BTreeSet<ConnectionKey> = twice(snapshot.connections.iter().map(|sample| sample.connection));
    for &connection in &repeated {
        doubts.push(Doubt { about: Subject::Connection(connection), why: DoubtReason::Twice });
    }
    for sample in snapshot.connections {
        if repeated.contains(&sample.connection) {
            continue;
        }
        let about = Subject::Connection(sample.connection);
        match judge_connection(sample, snapshot.now_ms, policy, history) {
            Ok((is_new, route)) => {
                let traffic = judge_traffic(sample, route, &facts.ports);
                if let Err(why) = traffic {
                    doubts.push(Doubt { about, why });
                }
                facts.connections.push(ConnectionFact { sample, is_new, route, traffic: traffic.ok() });
            }
            Err(why) => doubts.push(Doubt { about, why }),
        }
    }
    facts.connections.sort_by_key(ConnectionFact::key);
    compare_with_ports(&mut facts, policy, history, &mut doubts);
    (facts, doubts)
}

fn judge_port(sample: &PortSample, now_ms: u64, policy: &Policy, history: &History) -> Result<PortFact, DoubtReason> {
    let seen_ms = history.ports.get(&sample.port).map(|memory| memory.taken_ms);
    let is_new = judge_time(sample.taken_ms, now_ms, seen_ms, policy)?;
    if sample.up && sample.capacity_bps == 0 {
        return Err(DoubtReason::NoCapacity);
    }
    let mut load_bps = [0; 2];
    for (slot, value) in load_bps.iter_mut().zip([sample.tx_bps, sample.rx_bps]) {
        *slot = judge_load(value, if sample.up { sample.capacity_bps } else { u64::MAX })?;
    }
    // A port goes down within a sample: what it carried before is in the mean of the first one, and in no other.
    let was_up = history.ports.get(&sample.port).is_none_or(|memory| memory.up);
    if !sample.up && !was_up && is_new && load_bps != [0; 2] {
        return Err(DoubtReason::LoadWhileDown);
    }
    let (plane, up, capacity_bps) = (sample.plane, sample.up, sample.capacity_bps);
    Ok(PortFact { taken_ms: sample.taken_ms, is_new, plane, up, capacity_bps, load_bps })
}

/// Whether it is new, if its time is good.
fn judge_time(taken_ms: u64, now_ms: u64, seen_ms: Option<u64>, policy: &Policy) -> Result<bool, DoubtReason> {
    if taken_ms > now_ms.saturating_add(policy.skew_ms) {
        return Err(DoubtReason::FromTheFuture);
    }
    if now_ms.saturating_sub(taken_ms) > policy.stale_ms {
        return Err(DoubtReason::Stale);
    }
    match seen_ms {
        Some(seen_ms) if taken_ms < seen_ms => Err(DoubtReason::OutOfOrder),
        Some(seen_ms) => Ok(taken_ms > seen_ms),
        None => Ok(true),
    }
}

/// A load in whole bits per second. A mean over a slightly short interval may be a little above the capacity: 5 % are taken as full.
fn judge_load(value: f64, capacity_bps: u64) -> Result<u64, DoubtReason> {
    if !value.is_finite() {
        return Err(DoubtReason::NotANumber);
    }
    if value < 0.0 {
        return Err(DoubtReason::Negative);
    }
    if value > capacity_bps as f64 * 1.05 {
        return Err(DoubtReason::AboveCapacity);
    }
    Ok((value.ceil() as u64).min(capacity_bps))
}

fn judge_connection<'a>(
    sample: &'a ConnectionSample,
    now_ms: u64,
    policy: &Policy,
    history: &History,
) -> Result<(bool, &'a Route), DoubtReason> {
    let seen_ms = history.connections.get(&sample.connection).map(|memory| memory.taken_ms);
    let is_new = judge_time(sample.taken_ms, now_ms, seen_ms, policy)?;
    // Few routes: comparing each with each is cheaper than a set.
    let is_repeated = |(n, route): (usize, &Route)| sample.routes[..n].iter().any(|other| other.key == route.key);
    if sample.routes.iter().enumerate().any(is_repeated) {
        return Err(DoubtReason::BadRoutes);
    }
    let route = sample.routes.iter().find(|route| route.key == sample.route).ok_or(DoubtReason::BadRoutes)?;
    Ok((is_new, route))
}

fn judge_traffic(
    sample: &ConnectionSample,
    route: &Route,
    ports: &BTreeMap<PortKey, PortFact>,
) -> Result<Traffic, DoubtReason> {
    let ratio = sample.retransmit_ratio;
    if !ratio.is_finite() {
        return Err(DoubtReason::NotANumber);
    }
    if ratio < 0.0 {
        return Err(DoubtReason::Negative);
    }
    if ratio > 1.0 {
        return Err(DoubtReason::AboveCapacity);
    }
    let capacity_bps = ports.get(&route.local).filter(|port| port.up).map_or(u64::MAX, |port| port.capacity_bps);
    let load_bps = [judge_load(sample.tx_bps, capacity_bps)?, judge_load(sample.rx_bps, capacity_bps)?];
    Ok(Traffic { load_bps, retransmit_permille: (ratio * 1000.0).ceil() as u32 })
}

/// The connections on a port cannot carry more than the port. A quarter, and a twentieth of the capacity, are left to samples that were not taken at
/// the same moment; ports that connections have just come to or left are not compared.
fn compare_with_ports(facts: &mut Facts<'_>, policy: &Policy, history: &History, doubts: &mut Vec<Doubt>) {
    let mut sums: BTreeMap<PortKey, [u64; 2]> = BTreeMap::new();
    for fact in &facts.connections {
        if let Some(traffic) = fact.traffic {
            let sum = sums.entry(fact.route.local).or_default();
            for (sum, load) in sum.iter_mut().zip(traffic.load_bps) {
                *sum = sum.saturating_add(load);
            }
        }
    }
    let ports = &facts.ports;
    sums.retain(|port, sum| {
        let Some(fact) = ports.get(port).filter(|fact| fact.up) else { return false };
        let settled = history.ports.get(port).is_none_or(|memory| memory.is_settled(fact.taken_ms, policy));
        let most = |load: u64| load.saturating_add(load / 4).saturating_add(fact.capacity_bps / 20);
        settled && sum.iter().zip(fact.load_bps).any(|(&sum, load)| sum > most(load))
    });
    if sums.is_empty() {
        return;
    }
    for fact in &mut facts.connections {
        if sums.contains_key(&fact.route.local) && fact.traffic.take().is_some() {
            doubts.push(Doubt { about: Subject::Connection(fact.key()), why: DoubtReason::MoreThanItsPort });
        }
    }
}

/// What occurs more than once.
fn twice<T: Ord + Copy>(keys: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut keys: Vec<T> = keys.collect();
    keys.sort_unstable();
    keys.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
}
