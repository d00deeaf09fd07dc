//! What a workload of `sfab up` says to whoever started it, one JSON object a line on standard output, and what it is told, one word a line on standard input.

use super::plan::Traffic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The word that makes the port hot.
pub const HEAT: &str = "heat";
/// The word that ends the traffic; what was found is then said.
pub const END: &str = "end";

/// What was done of one kind of traffic since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Operations that ended well; a ping-pong and a call count once.
    pub operations: u64,
    /// Bytes that they carried, there and back.
    pub bytes: u64,
    /// Operations that failed, or whose end nobody knows.
    pub failed: u64,
    /// Bytes or values that are not what they must be.
    pub damaged: u64,
    /// The worst time of an operation, µs.
    pub slowest_us: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.damaged += other.damaged;
        self.slowest_us = self.slowest_us.max(other.slowest_us);
    }
}

/// What was done by kind.
pub type Tallies = BTreeMap<Traffic, Tally>;

/// A line of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum Said {
    /// Its services can be reached.
    Serving,
    /// All its connections are up.
    Ready,
    /// What was done so far; each second.
    Tally {
        /// By kind.
        tallies: Tallies,
    },
    /// An operation failed, or something is not what it must be. The first few only.
    Wrong {
        /// What.
        what: String,
    },
    /// The traffic has ended as it was told to.
    Done {
        /// By kind, in all.
        tallies: Tallies,
        /// Moves that its connections made.
        moves: u64,
        /// QPs that failed and were made anew.
        rebuilds: u64,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let tallies = Tallies::from([(Traffic::Stream, Tally { operations: 3, bytes: 9, ..Tally::default() })]);
        for said in [Said::Ready, Said::Done { tallies, moves: 2, rebuilds: 0 }] {
            let line = serde_json::to_string(&said).expect("JSON");
            assert_eq!(serde_json::from_str::<Said>(&line).expect("it is understood"), said, "{line}");
        }
    }
}
