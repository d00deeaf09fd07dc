//! The memory node's side: a thread that reads its port's counters and publishes them, every few milliseconds. It reads no memory but the slot's, and a failure
//! to read a counter stops nothing: the slot then grows old, which readers see.

use super::{MAX_COUNTERS, PERIOD_MS, Publisher, Watched};
use crate::error::FabricError;
use scalefabric_verbs::Context;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Counters that are worth publishing, by the names of the software NIC; [`standard`] says where readers find what.
pub const STANDARD: [&str; 11] = [
    "sent_bytes",
    "rcvd_bytes",
    "retransmitted_pkts",
    "out_of_seq_request",
    "sent_pkts",
    "rcvd_pkts",
    "send_rnr_err",
    "np_ecn_marked_roce_packets",
    "rx_read_requests",
    "rx_write_requests",
    "rx_atomic_requests",
];

/// What to look at in a slot of [`STANDARD`], for a port of this speed, bits per second each way.
pub const fn standard(capacity_bps: u64) -> Watched {
    Watched { bytes: [0, 1], trouble: [2, 3], capacity_bps }
}

/// One publication: counters are read, and written to the slot. Allocates nothing on the software NIC.
#[derive(Debug)]
pub struct Beat {
    context: Arc<dyn Context>,
    port_num: u8,
    places: Vec<u32>,
    values: Vec<u64>,
    publisher: Publisher,
}

impl Beat {
    /// Of these counters of a port ([`Context::hw_counters`] lists their names), into a slot with as many. Misuse for a name that the port does not have.
    pub fn new(
        context: Arc<dyn Context>,
        port_num: u8,
        names: &[&str],
        publisher: Publisher,
    ) -> Result<Self, FabricError> {
        if names.len() != publisher.counters() {
            return Err(FabricError::misuse(format!(
                "{} counters for a slot of {}: at most {MAX_COUNTERS}, and as many as the slot has",
                names.len(),
                publisher.counters()
            )));
        }
        let known = context.hw_counters(port_num)?;
        let place = |name: &&str| {
            let place = known.iter().position(|(known, _)| known == name);
            place.map(|place| place as u32).ok_or_else(|| {
                FabricError::misuse(format!("port {port_num} has no counter `{name}`: name others for this device"))
            })
        };
        let places = names.iter().map(place).collect::<Result<Vec<u32>, _>>()?;
        Ok(Self { context, port_num, values: vec![0; places.len()], places, publisher })
    }

    /// Publishes what the counters say now, `at_ns` of the publisher's clock.
    pub fn publish(&mut self, at_ns: u64) -> Result<(), FabricError> {
        self.context.read_hw_counters(self.port_num, &self.places, &mut self.values)?;
        self.publisher.publish(at_ns, &self.values)
    }
}

/// What a publisher has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PublisherTally {
    /// Snapshots written.
    pub published: u64,
    /// Times that counters could not be read.
    pub failed: u64,
    /// Time from the beginning to the end of all publications, ns: with waiting for a processor, so an upper bound of what they cost.
    pub spent_ns: u64,
}

#[derive(Debug, Default)]
struct Shared {
    published: AtomicU64,
    failed: AtomicU64,
    spent_ns: AtomicU64,
    ended: Mutex<bool>,
    wake: Condvar,
}

/// A thread that publishes every so often, until it is dropped.
pub struct PublisherLoop {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for PublisherLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherLoop").field("tally", &self.tally()).finish_non_exhaustive()
    }
}

impl PublisherLoop {
    /// Every `period`, 1 ms to 10 s; `None`: [`PERIOD_MS`]. Shorter: readers see a change sooner, at the price of a publication each time; longer: they
    /// act on what was. A thread that was late does not catch up.
    pub fn start(mut beat: Beat, period: Option<Duration>) -> Result<Self, FabricError> {
        let period = period.unwrap_or(Duration::from_millis(PERIOD_MS));
        if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&period) {
            return Err(FabricError::misuse(format!("a period of {period:?}: 1 ms to 10 s")));
        }
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("sfab-publishes".into()).spawn(move || {
            let begun = Instant::now();
            loop {
                let at = Instant::now();
                let counter = match beat.publish(begun.elapsed().as_nanos() as u64) {
                    Ok(()) => &of_thread.published,
                    Err(_) => &of_thread.failed,
                };
                of_thread.spent_ns.fetch_add(at.elapsed().as_nanos() as u64, Ordering::Relaxed);
                counter.fetch_add(1, Ordering::Relaxed);
                let ended = of_thread.ended.lock().unwrap_or_else(PoisonError::into_inner);
                let left = period.saturating_sub(at.elapsed());
                let waited = of_thread.wake.wait_timeout_while(ended, left, |ended| !*ended);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
            }
        });
        let thread = thread
            .map_err(|error| FabricError::environment(format!("a thread that publishes cannot be started: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What it has done.
    pub fn tally(&self) -> PublisherTally {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        PublisherTally {
            published: read(&shared.published),
            failed: read(&shared.failed),
            spent_ns: read(&shared.spent_ns),
        }
    }
}

impl Drop for PublisherLoop {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
