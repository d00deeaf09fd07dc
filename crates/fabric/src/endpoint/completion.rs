//! How the end of an operation is told: as an entry that is polled, as a call, or as a future. It says nothing of how the operation was carried out.

use super::link::{Link, lock};
use crate::error::FabricError;
use crate::operation::Outcome;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// From the operation.
    pub context: u64,
    /// How it ended.
    pub outcome: Outcome,
}

impl Default for Completion {
    /// An empty entry, for the buffer that is given to `poll`: nothing in it means anything.
    fn default() -> Self {
        Self { context: 0, outcome: Outcome::NotDone(scalefabric_verbs::WcStatus::GeneralErr) }
    }
}

/// The end of one operation, as a future for any executor. Dropping it leaves the operation as it is, and its end untold.
#[derive(Debug)]
#[must_use = "the operation is on its way; its end is told here"]
pub struct Pending {
    link: Arc<Link>,
    cell: Option<u32>,
}

impl Pending {
    pub(super) fn new(link: Arc<Link>, cell: u32) -> Self {
        link.watch();
        Self { link, cell: Some(cell) }
    }
}

impl Future for Pending {
    type Output = Result<Outcome, FabricError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(cell) = self.cell else {
            return Poll::Ready(Err(FabricError::misuse("the operation's end was told already: do not poll again")));
        };
        let outcome = {
            let link = &self.link;
            let mut sender = lock(&link.sender);
            let ended = link.drive_sender(&mut sender)?;
            let outcome = sender.cells.take(cell);
            if outcome.is_none() {
                sender.cells.watch(cell, cx.waker());
            }
            drop(sender);
            if ended {
                link.bell.ring();
                link.run_handlers();
            }
            outcome
        };
        match outcome {
            Some(outcome) => {
                self.cell = None;
                Poll::Ready(Ok(outcome))
            }
            None => {
                // From now on an event is raised; what came in between is looked at by the task, which the event wakes.
                self.link.arm_sender()?;
                let mut sender = lock(&self.link.sender);
                self.link.drive_sender(&mut sender)?;
                match sender.cells.take(cell) {
                    Some(outcome) => {
                        drop(sender);
                        self.cell = None;
                        Poll::Ready(Ok(outcome))
                    }
                    None => Poll::Pending,
                }
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(cell) = self.cell {
            lock(&self.link.sender).cells.abandon(cell);
        }
    }
}
