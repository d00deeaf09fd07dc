//! What the balancing rule may do: thresholds, limits and the operator's wishes. It decides nothing.

use super::sample::{ConnectionKey, PortKey, RouteKey};
use crate::error::FabricError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Thresholds and limits. Utilisations are thousandths of a port's capacity, each direction for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Above this a port is on its way to being hot. 1 to 1000, default 700. At 1000 no port is ever hot.
    pub hot_permille: u32,
    /// A hot port is cool again at or below this, and moves aim at it. Default 600; below `hot_permille`. 0: a port that was hot once is avoided until
    /// it stands still.
    pub cool_permille: u32,
    /// No move may bring a port above this. Default 600; below `hot_permille`, so that no move makes a port hot. 0: nothing is moved for load.
    pub fill_permille: u32,
    /// How many samples in a row must say so before a port is hot, cool, or a connection lossy. 1 to 1000, default 3. 1: a single one is believed.
    pub samples: u32,
    /// Most moves of a round, but for those off ports that are down. Default 64. 0: none.
    pub moves_per_round: u32,
    /// Most moves within any second, but for those off ports that are down. Default 256. 0: none.
    pub moves_per_second: u32,
    /// How long a connection rests after a move before it is moved again, but off a port that is down. Default 5,000 ms. Doubles with each move that fails, and with each
    /// for retransmissions, up to 64 times.
    pub rest_ms: u64,
    /// How long after a move what is measured at its ports still shows how it was before. Default 250 ms. Too short: the rule sees old load as new and moves too much.
    pub settle_ms: u64,
    /// How long an order may take; after that it counts as failed. Default 2,000 ms.
    pub order_ms: u64,
    /// How long a port must have been up again before connections return to it. Default 10,000 ms.
    pub return_ms: u64,
    /// How old a sample may be. Default 1,000 ms.
    pub stale_ms: u64,
    /// How far in the future a sample may lie: clocks differ. Default 250 ms.
    pub skew_ms: u64,
    /// A connection that sends more than this again, thousandths of its packets, is lossy. Default 10. 1000: never.
    pub retransmit_permille: u32,
    /// How long a route that was left for its losses is not taken again. Default 60,000 ms.
    pub suspect_ms: u64,
    /// How many steps the search for the smallest set may take before it is content with a good one. Default 20,000, some milliseconds.
    pub search_steps: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            hot_permille: 700,
            cool_permille: 600,
            fill_permille: 600,
            samples: 3,
            moves_per_round: 64,
            moves_per_second: 256,
            rest_ms: 5_000,
            settle_ms: 250,
            order_ms: 2_000,
            return_ms: 10_000,
            stale_ms: 1_000,
            skew_ms: 250,
            retransmit_permille: 10,
            suspect_ms: 60_000,
            search_steps: 20_000,
        }
    }
}

impl Policy {
    /// Refuses what would make connections move for ever, or what is out of its range.
    pub fn check(&self) -> Result<(), FabricError> {
        let refuse = |what: String| Err(FabricError::misuse(what));
        if !(1..=1000).contains(&self.hot_permille) {
            return refuse(format!("hot_permille is {}: use 1 to 1000", self.hot_permille));
        }
        for (name, value) in [("cool_permille", self.cool_permille), ("fill_permille", self.fill_permille)] {
            if value >= self.hot_permille {
                let hot = self.hot_permille;
                return refuse(format!("{name} is {value}: it must be below hot_permille, which is {hot}"));
            }
        }
        if !(1..=1000).contains(&self.samples) {
            return refuse(format!("samples is {}: use 1 to 1000", self.samples));
        }
        if self.retransmit_permille > 1000 {
            return refuse(format!("retransmit_permille is {}: use 0 to 1000", self.retransmit_permille));
        }
        if self.stale_ms == 0 {
            return refuse("stale_ms is 0: every sample would be too old; use at least the time between two".into());
        }
        Ok(())
    }
}

/// How much the operator has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freeze {
    /// Nothing.
    #[default]
    No,
    /// All but the operator's own moves and those off ports that are down or drained.
    Optional,
    /// Everything.
    All,
}

/// What the operator wants.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wishes {
    /// What is stopped.
    pub freeze: Freeze,
    /// Connections that only the operator moves, even if their port is down.
    pub pinned: BTreeSet<ConnectionKey>,
    /// Ports that everybody should leave and nobody should go to.
    pub drained: BTreeSet<PortKey>,
    /// Connections that should go to a certain route. A wish stays until it is taken back, and holds its connection there.
    pub moves: BTreeMap<ConnectionKey, RouteKey>,
}
