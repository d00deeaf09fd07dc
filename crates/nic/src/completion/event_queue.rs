//! A queue of events with a descriptor that is readable while there are any.

use std::time::Duration;

use scalefabric_verbs::VerbsError;

/// The queue. The descriptor may be set to O_NONBLOCK by the application; waiting honours that.
#[derive(Debug)]
pub struct EventQueue<T> {
    _t: std::marker::PhantomData<T>,
}

impl<T: Copy> EventQueue<T> {
    /// An empty queue.
    pub fn new() -> Result<Self, VerbsError> {
        todo!()
    }
    /// The descriptor.
    pub fn fd(&self) -> i32 {
        todo!()
    }
    /// Adds an event without a system call. [`EventQueue::wake`] must follow, after the turn.
    pub fn push(&self, _event: T) {
        todo!()
    }
    /// Makes the descriptor readable for what was pushed. One system call, none if there is nothing new.
    pub fn wake(&self) {
        todo!()
    }
    /// Takes the oldest event.
    pub fn take(&self) -> Option<T> {
        todo!()
    }
    /// Waits until there is an event and takes it; `None` when `timeout` passes, or at once if there is none and the
    /// descriptor is O_NONBLOCK (`EAGAIN` then). `EINTR` restarts the wait.
    pub fn wait(&self, _timeout: Option<Duration>) -> Result<Option<T>, VerbsError> {
        todo!()
    }
    /// Removes events that `gone` picks (their object is destroyed).
    pub fn forget(&self, _gone: impl FnMut(&T) -> bool) {
        todo!()
    }
}
