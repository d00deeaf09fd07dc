//! Congestion control on the machine: three senders, each in a network namespace of its own, send through one switch to one receiver whose link is slow and whose queue marks.
//! Each controller must hold the queue that an uncontrolled sender fills, and share the link fairly. Everything is judged by what the queue has counted: bytes, marks, and what
//! waited for how long behind a link of that rate; never by how fast this machine was. Needs root.

mod end;
mod rig;

use rig::{CHILD, Family, Rig, SENDERS};
use scalefabric_sim::switch::queue::Statistics;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The increase is what makes rates equal: 40 Mb/s in each round trip, or the second that is measured is over before they are on a busy machine.
const HPCC: &str = "[congestion]\nalgorithm = \"hpcc\"\ntelemetry = true\nline_rate_gbps = 1\nbase_rtt_us = 1000\n\
    parameters = { ai_rate_bps = 40000000 }";

/// Jain's index of what the senders brought through: 1 is equal, a third is one alone.
const FAIR: f64 = 0.8;
/// So often one that is not fair is looked at.
const MEASUREMENTS: usize = 3;

/// Namespaces and addresses are the same for each test: one at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test by itself: what a process in a namespace runs.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        end::End::open().serve();
    }
}

/// Runs one controller and judges it.
fn holds_the_queue(tag: &str, algorithm: &str, congestion: &str, mean_bytes: f64) {
    let _one = one_at_a_time();
    let Some(mut rig) = Rig::build(tag, Family::V4, congestion) else { return };
    let seen = fairest(|| rig.write());
    assert_eq!(rig.writers(), [algorithm; SENDERS]);
    judge(&seen, mean_bytes);
}

/// The queue was short and lost nothing, and each had its share.
fn judge(seen: &Statistics, mean_bytes: f64) {
    assert_eq!(seen.dropped, 0, "{seen:?}");
    assert!(seen.mean_bytes() < mean_bytes, "{} bytes on average: {seen:?}", seen.mean_bytes());
    assert!(seen.fairness() > FAIR, "{}: {seen:?}", seen.fairness());
}

/// On a machine with fewer processors than senders one of them may hardly run for seconds, which no controller can mend: a share that is small for
/// that reason is fair the next time, one that the controller makes small is not.
fn fairest(mut measure: impl FnMut() -> Statistics) -> Statistics {
    let mut seen = measure();
    for _ in 1..MEASUREMENTS {
        if seen.fairness() > FAIR {
            break;
        }
        seen = measure();
    }
    seen
}

/// Telemetry all the way: a controller that heard none has become another one by the end.
fn hpcc_hears_of_the_queue(tag: &str, family: Family, reads: bool) {
    let _one = one_at_a_time();
    let Some(mut rig) = Rig::build(tag, family, HPCC) else { return };
    let seen = fairest(|| if reads { rig.read() } else { rig.write() });
    let algorithms = if reads { rig.readers() } else { rig.writers() };
    assert_eq!(algorithms, ["hpcc"; SENDERS], "{seen:?}");
    judge(&seen, 300_000.0);
}

#[test]
fn without_control_the_queue_is_as_long_as_the_windows() {
    let _one = one_at_a_time();
    let Some(mut rig) = Rig::build("n", Family::V4, "") else { return };
    let seen = rig.write();
    assert_eq!(rig.writers(), ["none"; SENDERS]);
    // Three times 16 messages of 32 KiB.
    assert!(seen.mean_bytes() > 700_000.0, "{} bytes on average: {seen:?}", seen.mean_bytes());
    assert_eq!(seen.marked, 0, "who listens to nobody does not say that it can be marked");
}

#[test]
fn dcqcn_holds_the_queue_and_shares_the_link() {
    // The firmware's timers are for links on which a packet takes less than a microsecond: here it takes 40, and alpha would be
    // forgotten between two CNPs.
    let congestion = "[congestion]\nalgorithm = \"dcqcn\"\nline_rate_gbps = 1\n\
         [congestion.parameters]\nrpg_ai_rate_bps = 1000000\nrpg_hai_rate_bps = 5000000\nrpg_time_reset_ns = 2000000\n\
         rpg_byte_reset = 1000000\ndce_tcp_rtt_ns = 100000\nrate_reduce_monitor_period_ns = 200000";
    holds_the_queue("d", "dcqcn", congestion, 300_000.0);
}

#[test]
fn dcqcn_with_the_papers_timers_holds_the_queue_and_shares_the_link() {
    let congestion = "[congestion]\nalgorithm = \"dcqcn-paper\"\nline_rate_gbps = 1\n\
         parameters = { rpg_ai_rate_bps = 1000000, rpg_hai_rate_bps = 1000000, rpg_time_reset_ns = 2000000 }";
    holds_the_queue("p", "dcqcn", congestion, 300_000.0);
}

#[test]
fn timely_holds_the_queue_and_shares_the_link() {
    let congestion = "[congestion]\nalgorithm = \"timely-scaled\"\nline_rate_gbps = 1\nbase_rtt_us = 1000";
    holds_the_queue("t", "timely", congestion, 300_000.0);
}

#[test]
fn swift_holds_the_queue_and_shares_the_link() {
    let congestion = "[congestion]\nalgorithm = \"swift\"\nline_rate_gbps = 1\nbase_rtt_us = 1000\n\
         parameters = { base_target_ns = 3000000, fs_range_ns = 3000000 }";
    holds_the_queue("s", "swift", congestion, 300_000.0);
}

#[test]
fn hpcc_holds_the_queue_and_shares_the_link() {
    hpcc_hears_of_the_queue("h", Family::V4, false);
}

#[test]
fn hpcc_holds_the_queue_over_ipv6() {
    hpcc_hears_of_the_queue("h6", Family::V6, false);
}

#[test]
fn hpcc_holds_the_queue_of_read_responses() {
    hpcc_hears_of_the_queue("r", Family::V4, true);
}

#[test]
fn hpcc_holds_the_queue_of_read_responses_over_ipv6() {
    hpcc_hears_of_the_queue("r6", Family::V6, true);
}
