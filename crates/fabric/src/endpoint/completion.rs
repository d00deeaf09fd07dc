//! How the end of an operation is told: as an entry that is polled, as a call, or as a future. It says nothing of how the operation was carried out.

use crate::operation::Outcome;

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

/// The end of one operation, as a future. Dropping it leaves the operation as it is, and its end untold.
#[derive(Debug)]
#[must_use = "the operation is on its way; its end is told here"]
pub struct Pending {}

impl std::future::Future for Pending {
    type Output = Result<Outcome, crate::FabricError>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        std::task::Poll::Ready(Err(crate::FabricError::environment("not built yet")))
    }
}
