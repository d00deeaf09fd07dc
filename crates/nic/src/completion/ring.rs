//! The ring of a completion queue.

use std::sync::Arc;

use scalefabric_verbs::WorkCompletion;

/// Makes a queue of at least `cqe` entries. `events`: whether it has a channel; without one, arming does nothing.
pub fn completion_queue(_cqe: u32, _events: bool) -> (Producer, Arc<CompletionRing>) {
    todo!()
}

/// What came of placing a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pushed {
    /// It is there.
    Quiet,
    /// It is there and the queue was armed for it: tell the channel (once: the queue is disarmed now).
    Notify,
    /// There was no room: the queue is in error for ever. Raise CQ_ERR and put the QPs that use it into error. If
    /// `notify`, tell the channel, so that a sleeper finds the error. Later pushes are `Lost`.
    Overrun {
        /// The queue was armed.
        notify: bool,
    },
    /// The queue had overrun before.
    Lost,
}

/// The engine's side.
#[derive(Debug)]
pub struct Producer {}

impl Producer {
    /// Places a completion. `solicited`: it also satisfies a request for solicited completions only (a failed one does
    /// so by itself).
    pub fn push(&mut self, _wc: &WorkCompletion, _solicited: bool) -> Pushed {
        todo!()
    }
    /// Changes the size. False (and no change) if the queue holds more than `cqe` now.
    pub fn resize(&mut self, _cqe: u32) -> bool {
        todo!()
    }
    /// The other side.
    pub fn ring(&self) -> &Arc<CompletionRing> {
        todo!()
    }
}

/// What polling found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// So many completions, 0 if it is empty.
    Some(usize),
    /// Empty, and it has overrun: completions were lost.
    Overrun,
}

/// The side that polls.
#[derive(Debug)]
pub struct CompletionRing {}

impl CompletionRing {
    /// Entries it holds.
    pub fn capacity(&self) -> u32 {
        todo!()
    }
    /// Completions in it now.
    pub fn len(&self) -> u32 {
        todo!()
    }
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Takes up to `out.len()` completions, in order. What was placed before an overrun is still handed out.
    pub fn poll(&self, _out: &mut [WorkCompletion]) -> Polled {
        todo!()
    }
    /// Drops the completions of a QP that is destroyed or reset, which must never be seen again (clause 10.2.4.4). The
    /// caller holds the engine's lock.
    pub fn forget_qp(&self, _qpn: scalefabric_verbs::Qpn) {
        todo!()
    }
    /// Asks for one event: at the next completion, or only at a solicited or failed one. A request for the next one is
    /// never weakened by a later one for solicited ones.
    pub fn req_notify(&self, _solicited_only: bool) {
        todo!()
    }
}
