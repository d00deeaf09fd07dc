//! The closed form: a ring goes at the pace of its slowest QP, and the rings of a bucket wait for each other, so that all QPs go at one rate: what the worst port
//! leaves each of those that share it, or what a QP may send. No packets, no queues, and so the same table for thousands of nodes in seconds. The balancing rule
//! is asked round after round until it rests.

use super::cluster::Cluster;
use super::rule::Balancer;
use super::{Outcome, Setup};

/// Rounds without a move after which the rule counts as resting: longer than a connection's rest and everything that is measured late.
const QUIET: u32 = 80;
/// Rounds at most.
const ROUNDS: u32 = 3_000;

/// How many QPs each port sends, and the rate of each QP that follows, payload, bits a second.
fn pace(cluster: &Cluster, route: impl Fn(usize) -> usize, counts: &mut [u32]) -> f64 {
    counts.fill(0);
    for (index, connection) in cluster.connections.iter().enumerate() {
        for &port in &connection.ports[route(index)] {
            counts[port as usize] += 1;
        }
    }
    let shares = counts.iter().zip(&cluster.rates).filter(|(count, _)| **count > 0);
    let shares = shares.map(|(count, rate)| *rate as f64 * cluster.payload_part / f64::from(*count));
    shares.fold(cluster.setup().qp_bps as f64, f64::min)
}

fn outcome(setup: &Setup, rate: f64, moves: u64, rested: bool) -> Outcome {
    Outcome { gbps: setup.all_reduce_gbps(rate * f64::from(setup.qps)), moves, rested }
}

/// What the binding comes to if nobody moves anything.
pub fn fixed(cluster: &Cluster) -> Outcome {
    let mut counts = vec![0; cluster.rates.len()];
    let first = |index: usize| cluster.connections[index].index(cluster.connections[index].first);
    outcome(cluster.setup(), pace(cluster, first, &mut counts), 0, true)
}

/// What it comes to when the rule rests.
pub fn moved(cluster: &Cluster) -> Outcome {
    let mut balancer = Balancer::new(cluster);
    let mut counts = vec![0; cluster.rates.len()];
    let mut routes: Vec<usize> =
        cluster.connections.iter().map(|connection| connection.index(connection.first)).collect();
    let mut rate = pace(cluster, |index| routes[index], &mut counts);
    for _ in 0..ROUNDS {
        let on_wire = rate / cluster.payload_part;
        let port = |port: u32| f64::from(counts[port as usize]) * on_wire;
        let moves = balancer.round(cluster, port, |_| on_wire);
        for &(connection, to) in &moves {
            routes[connection] = cluster.connections[connection].index(to);
        }
        if !moves.is_empty() {
            rate = pace(cluster, |index| routes[index], &mut counts);
        }
        if balancer.quiet >= QUIET {
            break;
        }
    }
    outcome(cluster.setup(), rate, balancer.moves, balancer.quiet >= QUIET)
}
