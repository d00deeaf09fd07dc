//! The checkers: each knows one promise, and nothing of how the NIC keeps it. They see what was asked ([`crate::ledger`])
//! and what came of it ([`Event`]), and say what is wrong.

pub mod bytes;
pub mod isolation;
pub mod once;
pub mod order;
pub mod progress;

use std::fmt;

use scalefabric_verbs::WorkCompletion;

use crate::ledger::Ledger;
use crate::wire::Tally;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker saw it.
    pub checker: &'static str,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.what)
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// A send completion. The ledger does not know of it yet.
    Completed {
        /// Flow.
        flow: usize,
        /// Operation.
        op: usize,
        /// The completion.
        wc: &'a WorkCompletion,
        /// What it brought back: READ's bytes, an atomic's old value.
        brought: &'a [u8],
        /// Target memory now, where the operation wrote.
        target: &'a [u8],
        /// ns.
        now: u64,
    },
    /// A receive completion that a message of this flow used. The ledger does not know of it yet.
    Received {
        /// Flow.
        flow: usize,
        /// Receive queue and number of the receive.
        receive: (usize, u64),
        /// The completion.
        wc: &'a WorkCompletion,
        /// The message, without a GRH.
        message: &'a [u8],
        /// UD: what stands in front of the message.
        grh: Option<&'a [u8]>,
    },
}

/// Memory at the end of a run.
#[derive(Debug, Default)]
pub struct Remains {
    /// Target memory of each flow.
    pub targets: Vec<Vec<u8>>,
    /// The shared word of each NIC.
    pub shared: Vec<u64>,
    /// Regions that nothing may have touched, and what is wrong with them.
    pub touched: Vec<String>,
    /// ns.
    pub now: u64,
}

/// Knows one promise.
pub trait Checker {
    /// Looks at something that happened.
    fn see(&mut self, ledger: &Ledger, tally: &Tally, event: &Event<'_>) -> Result<(), Violation>;

    /// Looks at what is left.
    fn end(&mut self, ledger: &Ledger, tally: &Tally, remains: &Remains) -> Result<(), Violation>;
}

/// All checkers, in the order in which they look: who can say more comes first.
pub fn all() -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(order::Order),
        Box::new(once::Once::default()),
        Box::new(bytes::Bytes),
        Box::new(progress::Progress),
        Box::new(isolation::Isolation),
    ]
}
