//! The answering side: requests wait in a bounded queue, threads take them, late ones are answered without being begun. It does not interpret what is asked.

use super::RECEIVES;
use super::frame::{HEAD, Head, Kind, emit, parse};
use super::line::Messages;
use crate::error::FabricError;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often an answer that finds no room is tried again.
const TRY_AGAIN: Duration = Duration::from_micros(50);

/// A request as its handler sees it.
#[derive(Debug)]
pub struct Request {
    /// What is asked: the two applications agree on numbers.
    pub method: u32,
    /// The bytes.
    pub body: Vec<u8>,
    /// Until when the answer is of use, by this side's clock.
    pub deadline: Instant,
}

/// What became of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Handled.
    pub handled: u64,
    /// Turned away because too many waited.
    pub busy: u64,
    /// Too late before anybody had time for them.
    pub late: u64,
    /// Messages that were no requests.
    pub strange: u64,
    /// Answers that could not be sent: too long, or the connection was gone.
    pub unanswered: u64,
}

type Handler = dyn Fn(Request) -> Result<Vec<u8>, String> + Send + Sync;

struct Shared {
    line: Arc<dyn Messages>,
    handler: Box<Handler>,
    queue: Mutex<Queue>,
    came: Condvar,
    handled: AtomicU64,
    busy: AtomicU64,
    late: AtomicU64,
    strange: AtomicU64,
    unanswered: AtomicU64,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<(u64, Request)>,
    closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, mut message: Vec<u8>) {
        let Ok(Head { kind: Kind::Request, method, call, left_us }) = parse(&message) else {
            self.strange.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // A deadline beyond a day is none.
        let left = Duration::from_micros(left_us).min(Duration::from_secs(86_400));
        let request = Request { method, body: message.split_off(HEAD), deadline: Instant::now() + left };
        let mut queue = self.queue();
        if queue.requests.len() >= RECEIVES as usize {
            drop(queue);
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.answer(call, Kind::Busy, &[], Instant::now());
            return;
        }
        queue.requests.push_back((call, request));
        self.came.notify_one();
    }

    /// Sends an answer, trying until then.
    fn answer(&self, call: u64, kind: Kind, body: &[u8], until: Instant) {
        let longest = self.line.longest().saturating_sub(HEAD);
        let too_long = b"the answer is longer than a message".as_slice();
        let (kind, body) = match kind {
            Kind::Done if body.len() > longest => (Kind::Refused, &too_long[..longest.min(too_long.len())]),
            Kind::Refused if body.len() > longest => (kind, &body[..longest]),
            kind => (kind, body),
        };
        let message = emit(&Head { kind, method: 0, call, left_us: 0 }, body);
        loop {
            match self.line.send(&message) {
                Ok(true) => return,
                Ok(false) if Instant::now() < until => std::thread::sleep(TRY_AGAIN),
                _ => {
                    self.unanswered.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn work(&self) {
        let mut queue = self.queue();
        while !queue.closed {
            let Some((call, request)) = queue.requests.pop_front() else {
                queue = self.came.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let deadline = request.deadline;
            if deadline <= Instant::now() {
                self.late.fetch_add(1, Ordering::Relaxed);
                self.answer(call, Kind::Late, &[], deadline);
            } else {
                let answer = (self.handler)(request);
                self.handled.fetch_add(1, Ordering::Relaxed);
                match answer {
                    Ok(body) => self.answer(call, Kind::Done, &body, deadline),
                    Err(why) => self.answer(call, Kind::Refused, why.as_bytes(), deadline),
                }
            }
            queue = self.queue();
        }
    }
}

/// Answers the calls of one line, until it is dropped; then it waits for handlers that are at work.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("tally", &self.tally()).finish_non_exhaustive()
    }
}

impl Server {
    /// `threads` handlers may be at work at once, 1 to 256. At most [`RECEIVES`] requests wait; what comes beyond is answered "busy".
    pub fn new(
        line: Arc<dyn Messages>,
        threads: usize,
        handler: impl Fn(Request) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Result<Self, FabricError> {
        if !(1..=256).contains(&threads) {
            return Err(FabricError::misuse(format!("{threads} threads for calls: 1 to 256")));
        }
        let shared = Arc::new(Shared {
            line: line.clone(),
            handler: Box::new(handler),
            queue: Mutex::default(),
            came: Condvar::new(),
            handled: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            late: AtomicU64::new(0),
            strange: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        });
        let mut server = Self { shared: shared.clone(), threads: Vec::with_capacity(threads) };
        for _ in 0..threads {
            let works = shared.clone();
            let thread = std::thread::Builder::new().name("sfab-serves".into()).spawn(move || works.work());
            server.threads.push(
                thread.map_err(|error| {
                    FabricError::environment(format!("a thread for calls cannot be started: {error}"))
                })?,
            );
        }
        let hears = Arc::downgrade(&shared);
        line.on_message(Box::new(move |message| {
            if let Some(shared) = hears.upgrade() {
                shared.hear(message);
            }
        }))?;
        Ok(server)
    }

    /// What became of requests so far.
    pub fn tally(&self) -> Tally {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &self.shared;
        Tally {
            handled: of(&shared.handled),
            busy: of(&shared.busy),
            late: of(&shared.late),
            strange: of(&shared.strange),
            unanswered: of(&shared.unanswered),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.came.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallError, Caller};
    use super::*;
    use std::sync::mpsc;

    type Heard = Box<dyn FnMut(Vec<u8>) + Send>;

    /// One side of a line within the process; a thread carries the messages to the other's handler.
    struct Wire {
        out: mpsc::SyncSender<Vec<u8>>,
        handler: Arc<Mutex<Option<Heard>>>,
    }

    impl fmt::Debug for Wire {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Wire")
        }
    }

    impl Messages for Wire {
        fn send(&self, message: &[u8]) -> Result<bool, FabricError> {
            match self.out.try_send(message.to_vec()) {
                Ok(()) => Ok(true),
                Err(mpsc::TrySendError::Full(_)) => Ok(false),
                Err(mpsc::TrySendError::Disconnected(_)) => Err(FabricError::unreachable("the wire is cut")),
            }
        }

        fn on_message(&self, handler: Box<dyn FnMut(Vec<u8>) + Send>) -> Result<(), FabricError> {
            *self.handler.lock().unwrap() = Some(handler);
            Ok(())
        }

        fn longest(&self) -> usize {
            128
        }
    }

    /// Two sides, with room for `room` messages in each direction.
    fn wires(room: usize) -> (Arc<Wire>, Arc<Wire>) {
        let (to_right, from_left) = mpsc::sync_channel::<Vec<u8>>(room);
        let (to_left, from_right) = mpsc::sync_channel::<Vec<u8>>(room);
        let left = Arc::new(Wire { out: to_right, handler: Arc::default() });
        let right = Arc::new(Wire { out: to_left, handler: Arc::default() });
        for (from, handler) in [(from_left, right.handler.clone()), (from_right, left.handler.clone())] {
            std::thread::spawn(move || {
                for message in from {
                    if let Some(handler) = &mut *handler.lock().unwrap() {
                        handler(message);
                    }
                }
            });
        }
        (left, right)
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Method 1 doubles each byte, 2 refuses, 3 answers too much.
    fn doubles(request: Request) -> Result<Vec<u8>, String> {
        match request.method {
            1 => Ok(request.body.iter().map(|byte| byte.wrapping_mul(2)).collect()),
            3 => Ok(vec![0; 1000]),
            method => Err(format!("there is no method {method}")),
        }
    }

    #[test]
    fn callers_at_once_get_their_own_answers_over_a_narrow_line() {
        let (left, right) = wires(2);
        let server = Server::new(right, 2, doubles).unwrap();
        let caller = Caller::new(left, 8).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let caller = caller.clone();
                scope.spawn(move || {
                    for number in 0..50_u8 {
                        assert_eq!(caller.call(1, &[thread, number], LONG).unwrap(), [thread * 2, number * 2]);
                    }
                });
            }
        });
        assert_eq!(caller.call(2, b"", LONG).unwrap_err(), CallError::Refused("there is no method 2".into()));
        assert!(matches!(caller.call(3, b"", LONG).unwrap_err(), CallError::Refused(why) if why.contains("longer")));
        assert!(matches!(caller.call(1, &[0; 128], LONG).unwrap_err(), CallError::Failed(_)));
        assert_eq!(server.tally(), Tally { handled: 202, ..Tally::default() });
    }

    #[test]
    fn asynchronous_calls_beyond_the_window_wait_for_their_place() {
        let (left, right) = wires(64);
        let _server = Server::new(right, 1, doubles).unwrap();
        let caller = Caller::new(left, 2).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> =
                (0..20_u8).map(|number| tokio::spawn(caller.call_async(1, vec![number], LONG))).collect();
            for (number, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap().unwrap(), [number as u8 * 2]);
            }
            // One that is given up gives its place back.
            for _ in 0..5 {
                let given_up = caller.call_async(1, vec![1], LONG);
                tokio::select! {
                    biased;
                    _ = given_up => {}
                    () = std::future::ready(()) => {}
                }
            }
            assert_eq!(caller.call_async(1, vec![4], LONG).await.unwrap(), [8]);
        });
    }

    #[test]
    fn a_deadline_ends_the_wait_and_a_late_request_is_not_begun() {
        let (left, right) = wires(64);
        let (let_go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let server = Server::new(right, 1, move |request| {
            if request.method == 9 {
                let _ = held.lock().unwrap().recv();
            }
            Ok(Vec::new())
        })
        .unwrap();
        let caller = Caller::new(left.clone(), 8).unwrap();
        assert_eq!(caller.call(9, b"", Duration::from_millis(300)).unwrap_err(), CallError::Deadline);
        // It waits behind the one that is held, with no time left, and is too late when its turn comes.
        let head = Head { kind: Kind::Request, method: 1, call: 77, left_us: 0 };
        assert!(left.send(&emit(&head, b"")).unwrap());
        let_go.send(()).unwrap();
        caller.call(1, b"", LONG).unwrap();
        assert_eq!((server.tally().handled, server.tally().late), (2, 1));
        assert_eq!(caller.late_answers(), 2);
    }
}
