//! The progress thread (D2): whoever waits, drives; when nobody does, this thread. It sleeps in epoll on the receive
//! sockets, a wake-up descriptor and the engine's next deadline, so that a passive target (a process that never calls
//! the library) stays readable and writable, and an idle one costs nothing.
//!
//! It knows the engine only through [`Drive`].

use scalefabric_transport::Time;

/// How a turn went, as the worker needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Turned {
    /// Packets came or left, or a completion was placed: it pays to look again at once.
    pub busy: bool,
    /// The earliest time at which a turn has something to do without any packet; `None` if never.
    pub deadline: Option<Time>,
}

/// What a worker drives: the engine behind its lock.
pub trait Drive: Send + Sync {
    /// Takes the engine's lock and one turn.
    fn turn(&self, now: Time) -> Turned;

    /// Turns taken by callers of the library (not by the worker) since the start. While it moves, the worker keeps out
    /// of the way.
    fn caller_turns(&self) -> u64;
}
