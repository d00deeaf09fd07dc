//! Step 13 of the walk: the application polls a completion queue, or sleeps on its channel.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt::Debug;
use core::time::Duration;

use crate::error::VerbsError;
use crate::work_completion::WorkCompletion;

/// A completion queue.
pub trait CompletionQueue: Send + Sync + Debug {
    /// Number within its context; what events and channels name.
    fn cq_num(&self) -> u32;

    /// Entries it holds, at least what was asked for.
    fn cqe(&self) -> u32;

    /// Takes up to `out.len()` completions, in order; returns how many. `Err` once it has overrun.
    /// Whoever waits, drives: this call also turns the engine.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError>;

    /// Asks for one event at the next completion (only a solicited or failed one if `solicited_only`).
    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError>;

    /// Changes its size; `EINVAL` below what it holds now.
    fn resize(&self, cqe: u32) -> Result<(), VerbsError>;

    /// Destroys it: `EBUSY` while a QP or SRQ uses it.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// A completion channel: a descriptor that becomes readable when a CQ that asked for it gets a completion.
pub trait CompletionChannel: Send + Sync + Debug {
    /// The descriptor; may be polled, and set to O_NONBLOCK.
    fn fd(&self) -> i32;

    /// Waits for an event and takes it: the number of the CQ. `None` when `timeout` passes (`None` waits for ever).
    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Arc<dyn CompletionQueue>>, VerbsError>;

    /// Destroys it: `EBUSY` while a CQ uses it.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
