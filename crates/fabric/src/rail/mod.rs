//! Rails: several connections to one peer, over several ports or devices, as one. Large WRITEs and READs are striped by what was measured; SENDs, atomics and
//! small operations go in order over one rail. It decides nothing about where a rail lies.
//!
//! Order is that of calls: a striped operation begins when what was posted on the first rail before it has ended, and what is posted after it has returned
//! comes after it. A rail whose connection is closed is left out; as long as one is there, the rails work on.

mod stripe;

pub use stripe::{Estimate, LEAST, Stripe, UNIT, split, weights};

use crate::buffer::{Local, RemoteRange};
use crate::endpoint::{Connection, Operation, Piece, Remote};
use crate::error::{FabricError, Fault};
use crate::operation::{Outcome, Repeat};
use scalefabric_verbs::Sge;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A rail, as it is given to [`Rails::new`].
#[derive(Clone, Debug)]
pub struct Rail {
    /// Its connection.
    pub connection: Connection,
    /// Index of its device's protection domain among those that memory is registered with ([`Local::sge_on`]). Rails of one device have the same.
    pub domain: usize,
    /// What it is expected to carry, relative to the others, until that has been measured: its speed, less for a device of another NUMA node.
    pub expected: f64,
}

/// Several connections to one peer as one.
#[derive(Debug)]
pub struct Rails {
    rails: Vec<Rail>,
    estimates: Mutex<Vec<Estimate>>,
}

/// Memory as the device of a rail knows it.
struct OnDomain {
    memory: Arc<dyn Local>,
    domain: usize,
}

impl Local for OnDomain {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn sge(&self, offset: usize, length: usize) -> Option<Sge> {
        self.memory.sge_on(self.domain, offset, length)
    }

    fn remote(&self, offset: usize, length: usize) -> Option<RemoteRange> {
        self.memory.remote_on(self.domain, offset, length)
    }
}

/// Bytes of local memory, whole or in part.
#[derive(Clone)]
pub struct Span {
    /// Registered with every rail's device.
    pub memory: Arc<dyn Local>,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub length: usize,
}

impl std::fmt::Debug for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Span").field("offset", &self.offset).field("length", &self.length).finish_non_exhaustive()
    }
}

/// Which way a striped operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Write(Repeat),
    Read,
}

impl Rails {
    /// Misuse without a rail. The first carries what is not striped.
    pub fn new(rails: Vec<Rail>) -> Result<Self, FabricError> {
        if rails.is_empty() {
            return Err(FabricError::misuse("rails need at least one connection"));
        }
        let estimates = Mutex::new(vec![Estimate::default(); rails.len()]);
        Ok(Self { rails, estimates })
    }

    /// The connection for SENDs, atomics, small operations and messages: the first rail that is not closed.
    pub fn ordered(&self) -> Result<&Connection, FabricError> {
        self.rails
            .iter()
            .map(|rail| &rail.connection)
            .find(|connection| connection.closed().is_none())
            .ok_or_else(|| FabricError::new(Fault::Closed, "every rail is closed: connect anew"))
    }

    /// Offers memory to the peer on every rail, each with its device's key, under one number ([`Connection::offer`]).
    pub fn offer(&self, id: u32, memory: &dyn Local) -> Result<(), FabricError> {
        for rail in &self.rails {
            let range = memory.remote_on(rail.domain, 0, memory.len()).ok_or_else(|| {
                FabricError::misuse(format!(
                    "the memory is not lent to peers through protection domain {}: register it with every rail's, with remote rights",
                    rail.domain
                ))
            })?;
            rail.connection.offer(id, range)?;
        }
        Ok(())
    }

    /// Waits until the peer has offered memory under this number on every rail that is not closed; false when `timeout` passes on one of them.
    pub fn offered(&self, id: u32, timeout: Option<Duration>) -> Result<bool, FabricError> {
        for rail in self.rails.iter().filter(|rail| rail.connection.closed().is_none()) {
            if rail.connection.offered(id, timeout)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// WRITEs to what the peer has offered under `id`, at `at`, striped if it is large, and waits. Done: every byte is there. In doubt: some may be, as
    /// [`Outcome::InDoubt`] says: with [`Repeat::Idempotent`] only if a rail was closed meanwhile, and then the caller may write again.
    pub fn write(&self, from: &Span, id: u32, at: u64, repeat: Repeat) -> Result<Outcome, FabricError> {
        self.transfer(Way::Write(repeat), from, id, at)
    }

    /// READs what the peer has offered, as [`Rails::write`] writes. Not done: some bytes of `into` may have changed.
    pub fn read(&self, into: &Span, id: u32, at: u64) -> Result<Outcome, FabricError> {
        self.transfer(Way::Read, into, id, at)
    }

    /// What each rail was found to carry, bytes per second; `None` before it was measured.
    pub fn measured(&self) -> Vec<Option<f64>> {
        self.estimates().iter().map(Estimate::bytes_per_second).collect()
    }

    fn estimates(&self) -> std::sync::MutexGuard<'_, Vec<Estimate>> {
        self.estimates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transfer(&self, way: Way, local: &Span, id: u32, at: u64) -> Result<Outcome, FabricError> {
        let ordered = self.ordered()?;
        let stripes = self.divide(local.length as u64);
        if stripes.len() > 1 {
            ordered.flush(None)?;
        }
        let pieces: Vec<Piece> = stripes
            .iter()
            .map(|stripe| {
                let memory = OnDomain { memory: local.memory.clone(), domain: self.rails[stripe.rail].domain };
                Piece::new(Arc::new(memory), local.offset + stripe.offset as usize, stripe.length as usize)
            })
            .collect();
        let begun = Instant::now();
        let under_way = stripes.iter().zip(&pieces).map(|(stripe, piece)| {
            let remote = Remote::Offered { id, offset: at + stripe.offset };
            let mut operation = match way {
                Way::Write(_) => Operation::write(piece, remote),
                Way::Read => Operation::read(piece, remote),
            };
            if let Way::Write(repeat) = way {
                operation.repeat = repeat;
            }
            let connection = &self.rails[stripe.rail].connection;
            Box::pin(async move { (connection.execute_async(operation).await, begun.elapsed()) }) as UnderWay<'_>
        });
        let ends = join(under_way.collect());
        let mut estimates = self.estimates();
        let mut all: Option<Outcome> = None;
        let mut any_done = false;
        for (stripe, (outcome, took)) in stripes.iter().zip(ends) {
            let outcome = outcome?;
            if outcome.is_done() {
                any_done = true;
                estimates[stripe.rail].observe(stripe.length, took.as_secs_f64());
            }
            all = Some(match (all, outcome) {
                (None | Some(Outcome::Done(_)), outcome) => outcome,
                (Some(all @ Outcome::InDoubt(_)), _) => all,
                (Some(_), Outcome::InDoubt(status)) => Outcome::InDoubt(status),
                (Some(all), _) => all,
            });
        }
        match (all, way) {
            // Some stripes are there: of the whole nobody may say that it had no effect.
            (Some(Outcome::NotDone(status)), Way::Write(_)) if any_done => Ok(Outcome::InDoubt(status)),
            (Some(outcome), _) => Ok(outcome),
            (None, _) => Err(FabricError::misuse("a transfer of 0 bytes: leave it out")),
        }
    }

    fn divide(&self, length: u64) -> Vec<Stripe> {
        let estimates = self.estimates();
        let rails: Vec<_> = self
            .rails
            .iter()
            .zip(estimates.iter())
            .map(|(rail, estimate)| rail.connection.closed().is_none().then_some((rail.expected, *estimate)))
            .collect();
        let first = rails.iter().position(Option::is_some).unwrap_or(0);
        match split(length, &weights(&rails)) {
            // What is not striped goes where the order is.
            stripes if stripes.len() <= 1 => {
                stripes.into_iter().map(|stripe| Stripe { rail: first, ..stripe }).collect()
            }
            stripes => stripes,
        }
    }
}

type End = (Result<Outcome, FabricError>, Duration);
type UnderWay<'a> = Pin<Box<dyn Future<Output = End> + 'a>>;

/// Runs all on this thread until all have ended; each tells its own time.
fn join(mut under_way: Vec<UnderWay<'_>>) -> Vec<End> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut ends: Vec<Option<End>> = under_way.iter().map(|_| None).collect();
    loop {
        for (future, end) in under_way.iter_mut().zip(&mut ends) {
            if end.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(&mut context)
            {
                *end = Some(value);
            }
        }
        if ends.iter().all(Option::is_some) {
            return ends.into_iter().flatten().collect();
        }
        std::thread::park();
    }
}
