//! The rule for hot ports: the smallest set of moves that brings them to their goal and makes no other port hot. A good set is found greedily, then
//! a smaller one is looked for until it is proven that there is none, or the search has taken its steps. It looks only at the round it is given.
//!
//! **How good the greedy set is.** What a set of moves takes off the hot ports, counted up to what each must lose, is a monotone submodular function of the set as long as the
//! receiving ports have room. For it the greedy choice needs at most 1 + ln(largest gain / smallest gain) times the fewest moves (Wolsey 1982); with one hot
//! port it takes the largest connections first and needs no more than the fewest. Where receiving ports fill up there is no such bound beforehand:
//! [`Effort::at_least`] then says for each plan how many moves any set needs.

use super::ground::{Fit, Ground, shares};
use super::judge::ConnectionFact;
use super::outcome::{Effort, Reason, Refusal};
use super::round::Round;
use super::sample::{Direction, PortKey, Route};
use super::search;

/// A port, one way, that is hot and should lose load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub port: PortKey,
    pub direction: Direction,
    pub permille: u32,
    pub capacity_bps: u64,
    pub load_bps: i128,
}

/// Bits per second by hot lane, in order of lanes; those that are not named: 0. A connection crosses a few ports, and hot ones may be many.
pub(super) type ByLane = Vec<(usize, i128)>;

/// A way out for a candidate: the route, and what it takes off hot lanes.
#[derive(Clone, Debug)]
pub(super) struct Exit<'a> {
    pub to: &'a Route,
    pub relief: ByLane,
}

/// A connection that may leave a hot lane.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub fact: ConnectionFact<'a>,
    pub load_bps: [u64; 2],
    pub exits: Vec<Exit<'a>>,
    /// The most that it can take off each lane, by whichever exit.
    pub most: ByLane,
}

impl<'a> Candidate<'a> {
    fn new(fact: ConnectionFact<'a>, load_bps: [u64; 2], exits: Vec<Exit<'a>>) -> Self {
        let mut most: ByLane = exits.iter().flat_map(|exit| exit.relief.iter().copied()).collect();
        most.sort_unstable_by_key(|&(lane, bps)| (lane, std::cmp::Reverse(bps)));
        most.dedup_by_key(|(lane, _)| *lane);
        Self { fact, load_bps, exits, most }
    }
}

/// One move of a set: candidate and exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub candidate: usize,
    pub exit: usize,
}

/// Relieves the hot ports.
pub(super) fn relieve(round: &mut Round<'_>) {
    let lanes = hot_lanes(round);
    if lanes.is_empty() {
        return;
    }
    let candidates = candidates(round, &lanes);
    let (steps, effort) = choose(&round.ground, &lanes, &candidates, round.policy);
    round.plan.effort = effort;
    let mut after: Vec<i128> = lanes.iter().map(|lane| lane.load_bps).collect();
    for step in &steps {
        for &(lane, relief) in &candidates[step.candidate].exits[step.exit].relief {
            after[lane] -= relief;
        }
    }
    let expected: Vec<u32> = lanes.iter().zip(&after).map(|(lane, &load)| permille(load, lane.capacity_bps)).collect();
    for step in &steps {
        let (candidate, exit) = (&candidates[step.candidate], &candidates[step.candidate].exits[step.exit]);
        let largest = exit.relief.iter().max_by_key(|&&(lane, bps)| (bps, std::cmp::Reverse(lane)));
        let cause = largest.map_or(0, |&(lane, _)| lane);
        let Lane { port, direction, permille, .. } = lanes[cause];
        let reason = Reason::PortHot { port, direction, permille, expected_permille: expected[cause] };
        round.order(candidate.fact, exit.to, reason);
    }
    for (lane, &permille) in lanes.iter().zip(&expected) {
        if permille > round.policy.hot_permille {
            let Lane { port, direction, .. } = *lane;
            round.plan.refusals.push(Refusal::StaysHot { port, direction, permille });
        }
    }
}

fn permille(load_bps: i128, capacity_bps: u64) -> u32 {
    super::judge::permille(u64::try_from(load_bps.max(0)).unwrap_or(u64::MAX), capacity_bps)
}

/// Ports that have been hot for long enough, are so in a sample that no earlier round has seen, and whose measurements show all earlier moves.
fn hot_lanes(round: &Round<'_>) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for (&port, fact) in &round.facts.ports {
        let Some(memory) = round.history.ports.get(&port) else { continue };
        let Some(spot) = round.ground.spot(port) else { continue };
        if !fact.up || !fact.is_new || spot.drained || !memory.is_settled(fact.taken_ms, round.policy) {
            continue;
        }
        for direction in [Direction::Transmit, Direction::Receive] {
            let permille = fact.permille(direction as usize);
            if memory.heat(direction).hot && permille > round.policy.hot_permille {
                let load_bps = i128::from(fact.load_bps[direction as usize]);
                lanes.push(Lane { port, direction, permille, capacity_bps: fact.capacity_bps, load_bps });
            }
        }
    }
    lanes
}

/// Who may leave the hot lanes, and where to: only to good places, and of places that differ in nothing but the label only the first.
fn candidates<'a>(round: &Round<'a>, lanes: &[Lane]) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    let facts = round.facts;
    for fact in &facts.connections {
        let is_hot = |port: PortKey| {
            lanes.get(lanes.partition_point(|lane| lane.port < port)).is_some_and(|lane| lane.port == port)
        };
        if fact.traffic.is_none() || !fact.route.ports().any(is_hot) || !round.may_choose(*fact) {
            continue;
        }
        let load_bps = round.load(fact.key());
        let mut exits: Vec<Exit<'a>> = Vec::new();
        for to in &fact.sample.routes {
            let suspect =
                round.history.connection(fact.key()).is_some_and(|memory| memory.is_suspect(to.key, round.now_ms));
            let same = |exit: &Exit<'_>| exit.to.ports().eq(to.ports());
            if to.key == fact.route.key || suspect || exits.iter().any(same) {
                continue;
            }
            let relief = relief(lanes, fact.route, to, load_bps);
            let helps = !relief.is_empty() && relief.iter().all(|&(_, bps)| bps > 0);
            if helps && round.ground.fit(fact.route, to, load_bps).is_some_and(|(fit, _)| fit == Fit::Good) {
                exits.push(Exit { to, relief });
            }
        }
        if !exits.is_empty() {
            found.push(Candidate::new(*fact, load_bps, exits));
        }
    }
    // The largest first: the search finds its set sooner.
    let total = |candidate: &Candidate<'_>| -> i128 { candidate.most.iter().map(|(_, bps)| bps).sum() };
    found.sort_by_cached_key(|candidate| (std::cmp::Reverse(total(candidate)), candidate.fact.key()));
    found
}

/// What a move takes off hot lanes; below 0 where it adds. Lanes are in order of port and direction.
fn relief(lanes: &[Lane], from: &Route, to: &Route, load_bps: [u64; 2]) -> ByLane {
    let at = |port: PortKey, direction: usize| {
        lanes.binary_search_by_key(&(port, direction), |lane| (lane.port, lane.direction as usize)).ok()
    };
    let mut relief = ByLane::new();
    for (route, sign) in [(from, 1), (to, -1)] {
        for (port, direction, bps) in shares(route, load_bps) {
            let Some(lane) = at(port, direction) else { continue };
            match relief.iter_mut().find(|(other, _)| *other == lane) {
                Some((_, sum)) => *sum += sign * bps,
                None => relief.push((lane, sign * bps)),
            }
        }
    }
    relief.retain(|&(_, bps)| bps != 0);
    relief.sort_unstable();
    relief
}

/// The set: first one that makes all hot lanes cool; if there is none, one that brings them all below the threshold; if there is none, what helps.
fn choose(
    ground: &Ground,
    lanes: &[Lane],
    candidates: &[Candidate<'_>],
    policy: &super::Policy,
) -> (Vec<Step>, Effort) {
    let mut steps_left = policy.search_steps;
    let mut last = None;
    for goal_permille in [policy.cool_permille, policy.hot_permille] {
        let need = |lane: &Lane| lane.load_bps - i128::from(lane.capacity_bps) * i128::from(goal_permille) / 1000;
        let problem = search::Problem::new(lanes, candidates, lanes.iter().map(need).collect());
        let greedy = problem.greedy(ground.clone());
        let mut at_least = problem.at_least();
        let reached = greedy.is_complete;
        if !reached && at_least.is_none() {
            // Even all candidates together are too few.
            last = Some((problem, greedy));
            continue;
        }
        let mut size = at_least.unwrap_or(0);
        let limit = if reached { greedy.steps.len() } else { candidates.len() + 1 };
        while size < limit {
            match problem.search(ground.clone(), size, &mut steps_left) {
                search::Verdict::Found(steps) => {
                    let effort = effort(size, steps.len(), policy.search_steps - steps_left);
                    return (steps, effort);
                }
                search::Verdict::NoSuchSet => size += 1,
                search::Verdict::Unknown => break,
            }
            at_least = Some(size);
        }
        if reached {
            let chosen = greedy.steps.len();
            let effort = effort(at_least.unwrap_or(0).min(chosen), chosen, policy.search_steps - steps_left);
            return (greedy.steps, effort);
        }
        last = Some((problem, greedy));
    }
    let Some((problem, greedy)) = last else { return Default::default() };
    let at_least = problem.at_least_for(&greedy.steps);
    let effort = effort(at_least, greedy.steps.len(), policy.search_steps - steps_left);
    (greedy.steps, effort)
}

fn effort(at_least: usize, chosen: usize, steps: u32) -> Effort {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Effort { at_least: count(at_least), chosen: count(chosen), steps }
}
