//! The calling side. A table of calls that are under way, a thread that ends those whose time is over and sends what found no room, and the two ways of waiting for
//! one's answer: a condition variable and a waker.

use super::RECEIVES;
use super::frame::{HEAD, Head, Kind, emit, parse};
use super::line::Messages;
use crate::error::FabricError;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How often what found no room is tried again.
const TRY_AGAIN: Duration = Duration::from_micros(100);

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The deadline passed. The peer may have carried it out, or still do so, once.
    Deadline,
    /// The deadline passed before the peer began: it surely was not carried out.
    Late,
    /// The peer has too many requests and has not begun: it surely was not carried out.
    Busy,
    /// The peer's handler refused it, and says why.
    Refused(String),
    /// It was not sent: too long, or the connection is gone.
    Failed(FabricError),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("no answer within the deadline; the call may have been carried out, once"),
            Self::Late => f.write_str("the peer had no time for the call within the deadline; it was not carried out"),
            Self::Busy => f.write_str("the peer has too many calls; it was not carried out, try later"),
            Self::Refused(why) => write!(f, "the peer refuses: {why}"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CallError {}

/// A call that is under way.
struct Waiting {
    deadline: Instant,
    answer: Option<Result<Vec<u8>, CallError>>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Calls {
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// Requests that found no room on the line.
    unsent: VecDeque<(u64, Vec<u8>)>,
    /// Who wants to begin and must wait.
    begin: VecDeque<Waker>,
    /// Answers that came after their deadline.
    late_answers: u64,
    closed: bool,
}

struct Shared {
    line: Arc<dyn Messages>,
    calls: Mutex<Calls>,
    /// Something ended, or began.
    changed: Condvar,
    window: usize,
    /// Somebody is sending.
    flushing: AtomicBool,
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a call its answer; false if nobody waits for it.
    fn end(&self, calls: &mut Calls, call: u64, answer: Result<Vec<u8>, CallError>) -> bool {
        let Some(waiting) = calls.waiting.get_mut(&call).filter(|waiting| waiting.answer.is_none()) else {
            return false;
        };
        waiting.answer = Some(answer);
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
        self.changed.notify_all();
        true
    }

    /// A call's place is free again.
    fn leave(&self, calls: &mut Calls, call: u64) -> Option<Waiting> {
        let left = calls.waiting.remove(&call);
        calls.unsent.retain(|(waiting, _)| *waiting != call);
        if let Some(waker) = calls.begin.pop_front() {
            waker.wake();
        }
        self.changed.notify_all();
        left
    }

    /// Begins a call if there is a place for it; `None` if not. [`Shared::flush`] sends it.
    fn begin(&self, calls: &mut Calls, method: u32, body: &[u8], deadline: Instant) -> Result<Option<u64>, CallError> {
        if HEAD + body.len() > self.line.longest() {
            let longest = self.line.longest().saturating_sub(HEAD);
            return Err(CallError::Failed(FabricError::misuse(format!(
                "a request of {} bytes: the peer receives {longest}",
                body.len()
            ))));
        }
        if calls.closed {
            return Err(CallError::Failed(FabricError::misuse("the caller was closed")));
        }
        if calls.waiting.len() >= self.window {
            return Ok(None);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CallError::Late);
        }
        let call = calls.next;
        calls.next += 1;
        let head = Head { kind: Kind::Request, method, call, left_us: left.as_micros() as u64 };
        calls.unsent.push_back((call, emit(&head, body)));
        calls.waiting.insert(call, Waiting { deadline, answer: None, waker: None });
        self.changed.notify_all();
        Ok(Some(call))
    }

    /// Sends what waits to be sent, in order, while there is room. The table is not locked meanwhile: sending may bring answers.
    fn flush(&self) {
        while !self.flushing.swap(true, Ordering::Acquire) {
            let mut room = true;
            while room {
                let Some((call, message)) = self.calls().unsent.pop_front() else { break };
                match self.line.send(&message) {
                    Ok(true) => {}
                    Ok(false) => {
                        let mut calls = self.calls();
                        // Unless it was given up meanwhile.
                        if calls.waiting.contains_key(&call) {
                            calls.unsent.push_front((call, message));
                        }
                        room = false;
                    }
                    Err(error) => {
                        self.end(&mut self.calls(), call, Err(CallError::Failed(error)));
                    }
                }
            }
            self.flushing.store(false, Ordering::Release);
            // What came while we were leaving, nobody else would send.
            if !room || self.calls().unsent.is_empty() {
                return;
            }
        }
    }

    fn hear(&self, message: &[u8]) {
        let Ok(head) = parse(message) else { return };
        let body = &message[HEAD..];
        let answer = match head.kind {
            Kind::Request => return,
            Kind::Done => Ok(body.to_vec()),
            Kind::Refused => Err(CallError::Refused(String::from_utf8_lossy(body).into_owned())),
            Kind::Busy => Err(CallError::Busy),
            Kind::Late => Err(CallError::Late),
        };
        let mut calls = self.calls();
        if !self.end(&mut calls, head.call, answer) {
            calls.late_answers += 1;
        }
    }

    /// The thread: until the caller is closed.
    fn watch(&self) {
        let mut calls = self.calls();
        while !calls.closed {
            if !calls.unsent.is_empty() {
                drop(calls);
                self.flush();
                calls = self.calls();
            }
            let now = Instant::now();
            let over: Vec<u64> = calls
                .waiting
                .iter()
                .filter(|(_, call)| call.answer.is_none() && call.deadline <= now)
                .map(|(call, _)| *call)
                .collect();
            for call in over {
                // What never left was surely not carried out.
                let unsent = calls.unsent.iter().any(|(waiting, _)| *waiting == call);
                self.end(&mut calls, call, Err(if unsent { CallError::Late } else { CallError::Deadline }));
            }
            let next = calls.waiting.values().filter(|call| call.answer.is_none()).map(|call| call.deadline).min();
            calls = match (next, calls.unsent.is_empty()) {
                (None, _) => self.changed.wait(calls).unwrap_or_else(PoisonError::into_inner),
                (Some(next), unsent) => {
                    let until = next.saturating_duration_since(Instant::now());
                    let until = if unsent { until } else { until.min(TRY_AGAIN) };
                    self.changed.wait_timeout(calls, until).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// The calling side of a line. Threads may share it.
#[derive(Clone)]
pub struct Caller {
    shared: Arc<Shared>,
    // The last one ends the thread.
    _ends: Arc<Ends>,
}

struct Ends(Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut calls = self.0.calls();
        calls.closed = true;
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("line", &self.shared.line).finish_non_exhaustive()
    }
}

impl Caller {
    /// `window` calls may be under way at once, 1 to [`RECEIVES`]: no more than the peer has receives for us, or messages are delayed by RNR NAKs.
    pub fn new(line: Arc<dyn Messages>, window: usize) -> Result<Self, FabricError> {
        if !(1..=RECEIVES as usize).contains(&window) {
            return Err(FabricError::misuse(format!("a window of {window} calls: 1 to {RECEIVES}")));
        }
        let shared = Arc::new(Shared {
            line: line.clone(),
            calls: Mutex::default(),
            changed: Condvar::new(),
            window,
            flushing: AtomicBool::new(false),
        });
        let hears = Arc::downgrade(&shared);
        line.on_message(Box::new(move |message| {
            if let Some(shared) = hears.upgrade() {
                shared.hear(&message);
            }
        }))?;
        let watches = shared.clone();
        std::thread::Builder::new()
            .name("sfab-calls".into())
            .spawn(move || watches.watch())
            .map_err(|error| FabricError::environment(format!("a thread for calls cannot be started: {error}")))?;
        Ok(Self { _ends: Arc::new(Ends(shared.clone())), shared })
    }

    /// Calls and waits, first for a place in the window, then for the answer.
    pub fn call(&self, method: u32, body: &[u8], deadline: Duration) -> Result<Vec<u8>, CallError> {
        let deadline = Instant::now() + deadline;
        let mut calls = self.shared.calls();
        let call = loop {
            if let Some(call) = self.shared.begin(&mut calls, method, body, deadline)? {
                break call;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CallError::Late);
            }
            calls = self.shared.changed.wait_timeout(calls, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(calls);
        self.shared.flush();
        let mut calls = self.shared.calls();
        loop {
            if calls.waiting.get(&call).is_none_or(|waiting| waiting.answer.is_some()) {
                let left = self.shared.leave(&mut calls, call);
                return left.and_then(|waiting| waiting.answer).unwrap_or(Err(CallError::Deadline));
            }
            calls = self.shared.changed.wait(calls).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`Caller::call`], for any executor. Dropping the future gives the call up: the peer may still carry it out.
    pub fn call_async(&self, method: u32, body: Vec<u8>, deadline: Duration) -> Reply {
        Reply { shared: self.shared.clone(), method, body, deadline: Instant::now() + deadline, call: None }
    }

    /// Answers that came when nobody waited for them any more.
    pub fn late_answers(&self) -> u64 {
        self.shared.calls().late_answers
    }
}

/// The answer to a call, as a future.
#[must_use = "nothing is called until it is awaited"]
pub struct Reply {
    shared: Arc<Shared>,
    method: u32,
    body: Vec<u8>,
    deadline: Instant,
    call: Option<u64>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("method", &self.method).field("call", &self.call).finish_non_exhaustive()
    }
}

impl Future for Reply {
    type Output = Result<Vec<u8>, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared.clone();
        let mut calls = shared.calls();
        let call = match self.call {
            Some(call) => call,
            None => match shared.begin(&mut calls, self.method, &self.body, self.deadline) {
                Ok(Some(call)) => {
                    self.call = Some(call);
                    drop(calls);
                    shared.flush();
                    calls = shared.calls();
                    call
                }
                Ok(None) => {
                    // Places are free again by the deadline of those who have them.
                    calls.begin.push_back(context.waker().clone());
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        match calls.waiting.get_mut(&call) {
            Some(waiting) if waiting.answer.is_none() => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => {
                self.call = None;
                let left = shared.leave(&mut calls, call);
                Poll::Ready(left.and_then(|waiting| waiting.answer).unwrap_or(Err(CallError::Deadline)))
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let mut calls = self.shared.calls();
        if let Some(call) = self.call {
            self.shared.leave(&mut calls, call);
        } else if let Some(waker) = calls.begin.pop_front() {
            // It may have been our turn: let the next one look.
            waker.wake();
        }
    }
}
