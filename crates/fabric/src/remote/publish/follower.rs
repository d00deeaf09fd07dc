//! A thread that looks at a memory node's slot every so often and sets the pace of everybody who works with that node, and areas that keep to the pace. It decides
//! nothing: what follows from a look is [`Pace`]'s.

use super::pace::{LockStrategy, Pace};
use super::{PERIOD_MS, Reader, Watched};
use crate::error::FabricError;
use crate::remote::{Area, Failure};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Looks without anything newer after which the pace falls back: the publisher is gone, and nobody knows how the node is.
const STALE: u32 = 20;

/// What a follower has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FollowerTally {
    /// Looks at the slot.
    pub looks: u64,
    /// Looks that said how the node is.
    pub felt: u64,
    /// Looks that failed.
    pub failed: u64,
    /// Most that was ever paused, ns.
    pub longest_pause_ns: u64,
}

#[derive(Debug)]
struct Shared {
    pace: Mutex<Pace>,
    /// The pace's pause, for those who ask before each operation.
    pause_ns: AtomicU64,
    looks: AtomicU64,
    felt: AtomicU64,
    failed: AtomicU64,
    longest_pause_ns: AtomicU64,
    ended: Mutex<bool>,
    wake: Condvar,
}

/// Follows a slot until the last handle is gone.
#[derive(Clone)]
pub struct Follower {
    shared: Arc<Shared>,
    _ends: Arc<Ends>,
}

struct Ends {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("pause", &self.pause()).field("tally", &self.tally()).finish_non_exhaustive()
    }
}

impl Follower {
    /// Looks every `period`, 1 ms to 10 s; `None`: [`PERIOD_MS`], as often as it is published. Each look is one READ on the reader's area.
    pub fn start<A: Area + 'static>(
        mut reader: Reader<A>,
        watched: Watched,
        pace: Pace,
        period: Option<Duration>,
    ) -> Result<Self, FabricError> {
        let period = period.unwrap_or(Duration::from_millis(PERIOD_MS));
        if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&period) {
            return Err(FabricError::misuse(format!("a period of {period:?}: 1 ms to 10 s")));
        }
        let shared = Arc::new(Shared {
            pace: Mutex::new(pace),
            pause_ns: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            felt: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            longest_pause_ns: AtomicU64::new(0),
            ended: Mutex::new(false),
            wake: Condvar::new(),
        });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("sfab-follows".into()).spawn(move || {
            let mut stale = 0;
            loop {
                let at = Instant::now();
                let looked = reader.look(&watched);
                of_thread.looks.fetch_add(1, Ordering::Relaxed);
                match looked {
                    Ok(Some(pressure)) => {
                        stale = 0;
                        of_thread.felt.fetch_add(1, Ordering::Relaxed);
                        of_thread.feel(|pace| pace.handle_pressure(pressure));
                    }
                    Ok(None) => stale += 1,
                    Err(_) => {
                        stale += 1;
                        of_thread.failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                if stale >= STALE {
                    stale = 0;
                    of_thread.feel(|pace| pace.handle_pressure(super::Pressure::Calm));
                }
                let ended = of_thread.ended.lock().unwrap_or_else(PoisonError::into_inner);
                let left = period.saturating_sub(at.elapsed());
                let waited = of_thread.wake.wait_timeout_while(ended, left, |ended| !*ended);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    return;
                }
            }
        });
        let thread = thread
            .map_err(|error| FabricError::environment(format!("a thread that follows cannot be started: {error}")))?;
        let ends = Arc::new(Ends { shared: shared.clone(), thread: Mutex::new(Some(thread)) });
        Ok(Self { shared, _ends: ends })
    }

    /// How long to wait before the next operation on this node. One load.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.shared.pause_ns.load(Ordering::Relaxed))
    }

    /// How to take locks on this node.
    pub fn lock_strategy(&self) -> LockStrategy {
        self.shared.pace.lock().unwrap_or_else(PoisonError::into_inner).lock_strategy()
    }

    /// What it has seen.
    pub fn tally(&self) -> FollowerTally {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        FollowerTally {
            looks: read(&shared.looks),
            felt: read(&shared.felt),
            failed: read(&shared.failed),
            longest_pause_ns: read(&shared.longest_pause_ns),
        }
    }

    /// An area of the node whose operations wait as long as the pace says.
    pub fn paced<A: Area>(&self, area: A) -> Paced<A> {
        Paced { area, follower: self.clone() }
    }
}

impl Shared {
    fn feel(&self, change: impl FnOnce(&mut Pace)) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut pace);
        let pause_ns = u64::try_from(pace.pause().as_nanos()).unwrap_or(u64::MAX);
        self.pause_ns.store(pause_ns, Ordering::Relaxed);
        self.longest_pause_ns.fetch_max(pause_ns, Ordering::Relaxed);
    }
}

/// An area whose operations wait before they begin, as long as the memory node's pressure asks.
#[derive(Debug)]
pub struct Paced<A> {
    area: A,
    follower: Follower,
}

impl<A: Area> Paced<A> {
    fn area(&self) -> &A {
        let pause = self.follower.pause();
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        &self.area
    }
}

impl<A: Area> Area for Paced<A> {
    fn length(&self) -> u64 {
        self.area.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Failure> {
        self.area().read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.area().write(offset, data)
    }

    fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Failure> {
        self.area().fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Failure> {
        self.area().compare_swap(offset, compare, swap)
    }
}
