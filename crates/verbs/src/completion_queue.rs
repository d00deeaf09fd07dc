//! Step 13 of the walk: the application polls a completion queue, or sleeps on its channel.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt::Debug;
use core::time::Duration;

use bitflags::bitflags;

use crate::error::{Errno, VerbsError};
use crate::work_completion::WorkCompletion;

bitflags! {
    /// How a CQ is made. Values are our own: C has them partly as `wc_flags`, partly as `flags` of `ibv_cq_init_attr_ex`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CqFlags: u32 {
        /// Completions carry the raw clock (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`, or `…_WALLCLOCK`, which
        /// [`crate::Context::wallclock_ns`] makes of it).
        const TIMESTAMP = 1;
        /// The program makes sure that it never overruns (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`): a completion that finds
        /// no room overwrites nothing and makes no error, the queue becomes larger.
        const IGNORE_OVERRUN = 1 << 1;
        /// Only one thread polls (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`). A promise; nothing breaks if it is not kept.
        const SINGLE_THREADED = 1 << 2;
    }
}

/// What [`crate::Context::create_cq_with`] takes.
#[derive(Clone, Debug, Default)]
pub struct CqInit {
    /// Entries, at least.
    pub cqe: u32,
    /// Where it rings.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Completion vector, below `num_comp_vectors`.
    pub comp_vector: u32,
    /// What it is like.
    pub flags: CqFlags,
}

/// A completion queue.
pub trait CompletionQueue: Send + Sync + Debug {
    /// Number within its context; what events and channels name.
    fn cq_num(&self) -> u32;

    /// Entries it holds, at least what was asked for.
    fn cqe(&self) -> u32;

    /// Takes up to `out.len()` completions, in order; returns how many. `Err` once it has overrun.
    /// Whoever waits, drives: this call also turns the engine.
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError>;

    /// Asks for one event at the next completion (only a solicited or failed one if `solicited_only`). One that came since
    /// the last poll may count, if no event told of it: the software NIC raises it at once, other backends may not, so poll
    /// once more before sleeping. An event may find an empty queue.
    fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError>;

    /// Changes its size; `EINVAL` below what it holds now.
    fn resize(&self, cqe: u32) -> Result<(), VerbsError>;

    /// Moderates its events (`ibv_modify_cq`): an armed CQ rings when `count` completions have come, or `period_us` after
    /// the first. 0 and 0: at once, as at first. `EINVAL` beyond `max_cq_count` and `max_cq_period`.
    fn modify_moderation(&self, _count: u16, _period_us: u16) -> Result<(), VerbsError> {
        Err(VerbsError::misuse(Errno::EOPNOTSUPP, "this device does not moderate the events of its completion queues"))
    }

    /// Destroys it: `EBUSY` while a QP or SRQ uses it. Events of it that its channel has not handed out yet are gone. It
    /// does not wait for those that were handed out: there is nothing to acknowledge here, a handle keeps the CQ alive. Who
    /// speaks C (`ibv_ack_cq_events`) counts what `wait` gave and what was acknowledged, and waits before this call.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}

/// A completion channel: a descriptor that becomes readable when a CQ that asked for it gets a completion.
pub trait CompletionChannel: Send + Sync + Debug {
    /// The descriptor; may be polled, and set to O_NONBLOCK.
    fn fd(&self) -> i32;

    /// Waits for an event and takes it: the number of the CQ. `None` when `timeout` passes; without one, when a
    /// signal handler ran meanwhile.
    fn wait(&self, timeout: Option<Duration>) -> Result<Option<Arc<dyn CompletionQueue>>, VerbsError>;

    /// Destroys it: `EBUSY` while a CQ uses it.
    fn destroy(&self) -> Result<(), VerbsError>;

    /// For a backend to find its own object.
    fn as_any(&self) -> &dyn Any;
}
