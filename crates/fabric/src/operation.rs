//! How an operation may be repeated, and how it ended: the words in which rebuild, rebinding and applications speak of operations. It posts nothing.

use scalefabric_verbs::{WcStatus, WorkCompletion};

/// May an operation be carried out again when nobody can say whether it was?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Repeat {
    /// Never: an operation in doubt is reported as [`Outcome::InDoubt`].
    #[default]
    Never,
    /// Doing it twice is as good as once (a READ, a WRITE of the same bytes that nobody else writes).
    Idempotent,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, exactly once.
    Done(WorkCompletion),
    /// It surely had no effect on the peer.
    NotDone(WcStatus),
    /// It may have had its effect once; never more often. A fetched value is lost.
    InDoubt(WcStatus),
}

impl Outcome {
    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}
