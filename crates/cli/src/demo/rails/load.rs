//! The load of the demo with two rails: a stream of numbered messages on each connection, as fast as each is told, sent by one thread and checked by another.
//! It decides nothing about ports.

use super::ledger::{Findings, Ledger};
use crate::demo::pattern;
use crate::failure::{During, Failure};
use scalefabric_fabric::endpoint::{Completion, Connection, Operation, Piece};
use scalefabric_fabric::pool::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 4096;

/// Messages of a connection that are under way at most.
pub const DEPTH: u64 = 16;

/// As fast as it goes.
pub const UNPACED: u64 = u64::MAX;

/// How many messages a stream may be behind its pace and still catch up: what a pause of some milliseconds leaves.
const BACKLOG: f64 = 8.0;

/// After so long without a message, what has not come is lost.
const SILENCE: Duration = Duration::from_secs(10);

/// What is told to the threads, and by them, of one stream.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Bits of messages per second that it should send.
    pub rate_bps: AtomicU64,
    /// Messages that were checked.
    pub checked: AtomicU64,
    /// Longest time between two messages since it was last set to zero, ns.
    pub gap_ns: AtomicU64,
    sent: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    gauges: Vec<Gauge>,
    seed: u64,
    stop: AtomicBool,
    /// Everything was sent and has completed.
    sent_all: AtomicBool,
}

/// The load. It runs until [`Load::end`].
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    sender: JoinHandle<Result<u64, Failure>>,
    receiver: JoinHandle<Result<Vec<Ledger>, Failure>>,
}

impl Load {
    /// Starts a stream on each pair of ends. All stand still until they are told a rate.
    pub fn start(ends: &[(Connection, Connection)], pool: &Pool, seed: u64) -> Result<Self, Failure> {
        let gauges = ends.iter().map(|_| Gauge::default()).collect();
        let shared = Arc::new(Shared { gauges, seed, stop: AtomicBool::new(false), sent_all: AtomicBool::new(false) });
        let mut streams = Vec::new();
        for (near, _) in ends {
            let buffer = pool.alloc(MESSAGE_BYTES * DEPTH as usize).during(|| "memory for the messages")?;
            streams.push(Outgoing {
                connection: near.clone(),
                buffer: Arc::new(buffer),
                posted: 0,
                done: 0,
                credit: 0.0,
            });
        }
        let far: Vec<Connection> = ends.iter().map(|(_, far)| far.clone()).collect();
        let (of_sender, of_receiver) = (shared.clone(), shared.clone());
        let sender = std::thread::spawn(move || send(&of_sender, streams));
        let receiver = std::thread::spawn(move || receive(&of_receiver, &far));
        Ok(Self { shared, sender, receiver })
    }

    /// What is told of each stream.
    pub fn gauges(&self) -> &[Gauge] {
        &self.shared.gauges
    }

    /// Begins to look for the longest gap anew; returns the longest so far.
    pub fn take_longest_gap(&self) -> Duration {
        let gaps = self.shared.gauges.iter().map(|gauge| gauge.gap_ns.swap(0, Ordering::Relaxed));
        Duration::from_nanos(gaps.max().unwrap_or(0))
    }

    /// Fails when a thread has ended before its time.
    pub fn check(&self) -> Result<(), Failure> {
        if self.sender.is_finished() || self.receiver.is_finished() {
            return Err(Failure::failed("the load has ended before it was told to: a connection was closed"));
        }
        Ok(())
    }

    /// Stops sending, waits for what is under way, and says what the checker found.
    pub fn end(self) -> Result<Findings, Failure> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let failed = self.sender.join().map_err(|_| Failure::failed("the sender panicked"))??;
        let ledgers = self.receiver.join().map_err(|_| Failure::failed("the receiver panicked"))??;
        let mut all = Findings { failed, ..Findings::default() };
        for (ledger, gauge) in ledgers.iter().zip(&self.shared.gauges) {
            all += ledger.close(gauge.sent.load(Ordering::Acquire));
        }
        Ok(all)
    }
}

/// The bytes of a stream differ from those of every other.
fn seed_of(shared: &Shared, stream: usize) -> u64 {
    pattern::scramble(shared.seed ^ (stream as u64) << 32)
}

struct Outgoing {
    connection: Connection,
    buffer: Arc<scalefabric_fabric::pool::Buffer>,
    posted: u64,
    done: u64,
    /// Messages that its rate allows now.
    credit: f64,
}

/// Sends until told to stop; returns how many operations failed.
fn send(shared: &Shared, mut streams: Vec<Outgoing>) -> Result<u64, Failure> {
    let mut failed = 0;
    let mut bytes = vec![0; MESSAGE_BYTES];
    let mut last = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut last, now)).as_secs_f64();
        let mut busy = false;
        for (index, stream) in streams.iter_mut().enumerate() {
            let gauge = &shared.gauges[index];
            let rate = gauge.rate_bps.load(Ordering::Relaxed);
            let more = if rate == UNPACED { BACKLOG } else { rate as f64 * passed / (MESSAGE_BYTES * 8) as f64 };
            stream.credit = (stream.credit + more).min(BACKLOG);
            failed += stream.reap()?;
            while stream.credit >= 1.0 && stream.posted - stream.done < DEPTH {
                pattern::fill(seed_of(shared, index), stream.posted, &mut bytes);
                if !stream.post(&bytes)? {
                    break;
                }
                stream.credit -= 1.0;
                gauge.sent.store(stream.posted, Ordering::Release);
                busy = true;
            }
        }
        if !busy {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    for stream in &mut streams {
        let settled = stream.connection.flush(Some(SILENCE)).during(|| "wait for what was sent")?;
        failed += stream.reap()?;
        if !settled {
            failed += stream.posted - stream.done;
        }
    }
    shared.sent_all.store(true, Ordering::Release);
    Ok(failed)
}

impl Outgoing {
    /// Takes completions; returns how many tell of a failure.
    fn reap(&mut self) -> Result<u64, Failure> {
        let mut out = [Completion::default(); DEPTH as usize];
        let count = self.connection.poll(&mut out).during(|| "poll")?;
        self.done += count as u64;
        Ok(out[..count].iter().filter(|completion| !completion.outcome.is_done()).count() as u64)
    }

    /// Sends the next message; false if there is no room.
    fn post(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        let offset = (self.posted % DEPTH) as usize * MESSAGE_BYTES;
        self.buffer.write(offset, bytes).during(|| "fill a message")?;
        let piece = Piece::new(self.buffer.clone(), offset, MESSAGE_BYTES);
        let taken = self.connection.try_post(&[Operation::send(&piece)]).during(|| "send")?;
        self.posted += taken as u64;
        Ok(taken == 1)
    }
}

/// Checks until everything that was sent has come, or nothing comes any more.
fn receive(shared: &Shared, far: &[Connection]) -> Result<Vec<Ledger>, Failure> {
    let mut ledgers: Vec<Ledger> = far.iter().map(|_| Ledger::default()).collect();
    let mut last: Vec<Option<Instant>> = vec![None; far.len()];
    let (mut bytes, mut scratch) = (vec![0; MESSAGE_BYTES], vec![0; MESSAGE_BYTES]);
    let mut heard = Instant::now();
    loop {
        let all_sent = shared.sent_all.load(Ordering::Acquire);
        let mut busy = false;
        for (index, connection) in far.iter().enumerate() {
            let (gauge, ledger) = (&shared.gauges[index], &mut ledgers[index]);
            while let Some(message) = connection.try_receive().during(|| "receive")? {
                busy = true;
                heard = Instant::now();
                if let Some(last) = last[index].replace(heard) {
                    gauge.gap_ns.fetch_max((heard - last).as_nanos() as u64, Ordering::Relaxed);
                }
                if message.len() == MESSAGE_BYTES {
                    message.read(0, &mut bytes).during(|| "read a message")?;
                    let number = pattern::number(&bytes).unwrap_or(u64::MAX);
                    match pattern::compare(seed_of(shared, index), number, &bytes, &mut scratch) {
                        Ok(()) => ledger.take(number),
                        Err(_) => ledger.take_damaged(),
                    }
                } else {
                    ledger.take_damaged();
                }
                gauge.checked.fetch_add(1, Ordering::Relaxed);
            }
        }
        if busy {
            continue;
        }
        let sent = |index: usize| shared.gauges[index].sent.load(Ordering::Acquire);
        let whole = || ledgers.iter().enumerate().all(|(index, ledger)| ledger.next() >= sent(index));
        if all_sent && (whole() || heard.elapsed() > SILENCE) {
            return Ok(ledgers);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}
