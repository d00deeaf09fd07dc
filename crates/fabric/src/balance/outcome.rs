//! What the balancing rule says: moves with their reasons, what it would have liked to do and could not, and what it did not believe.

use super::history::History;
use super::sample::{ConnectionKey, Direction, PortKey, RouteKey};
use serde::{Deserialize, Serialize};

/// Take this connection to that route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Whose.
    pub connection: ConnectionKey,
    /// Where it is.
    pub from: RouteKey,
    /// Where to.
    pub to: RouteKey,
    /// Why.
    pub reason: Reason,
}

/// Why a connection should move. Utilisations in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Reason {
    /// A port on its route is hot.
    PortHot {
        /// Which port.
        port: PortKey,
        /// Which way.
        direction: Direction,
        /// How loaded it is.
        permille: u32,
        /// How loaded it is expected to be after this round's moves.
        expected_permille: u32,
    },
    /// A port on its route is down.
    PortDown {
        /// Which.
        port: PortKey,
    },
    /// The operator wants a port on its route empty.
    PortDrained {
        /// Which.
        port: PortKey,
    },
    /// It had left a port that was down, and that port has been up again for long enough.
    PortReturned {
        /// Which.
        port: PortKey,
    },
    /// It sends too much again.
    Retransmissions {
        /// How much, thousandths of its packets.
        permille: u32,
    },
    /// The operator wants it there.
    Operator,
}

/// What could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "refused")]
pub enum Refusal {
    /// This connection should move and has no route that is up, known and allowed.
    NowhereToGo {
        /// Whose.
        connection: ConnectionKey,
    },
    /// This port is hot and what uses it cannot be moved so that it gets below its goal; what can be done is done.
    StaysHot {
        /// Which.
        port: PortKey,
        /// Which way.
        direction: Direction,
        /// How loaded it is expected to stay, thousandths.
        permille: u32,
    },
    /// Moves that wait for the next rounds because of the rate limit.
    RateLimit {
        /// How many.
        moves: u32,
    },
    /// The operator has frozen moves; so many would have been made.
    Frozen {
        /// How many.
        moves: u32,
    },
    /// The operator's wish names a route that the connection does not have, or that is not up.
    WishImpossible {
        /// Whose.
        connection: ConnectionKey,
        /// Where to.
        route: RouteKey,
    },
    /// The policy refuses itself ([`super::Policy::check`]); nothing is moved.
    BadPolicy,
    /// The clock went back; nothing is moved in this round.
    ClockWentBack {
        /// By how much, ms.
        by_ms: u64,
    },
}

/// Something that was said and is not believed, and what was wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doubt {
    /// Who is spoken of.
    pub about: Subject,
    /// What is wrong.
    pub why: DoubtReason,
}

/// Who a doubt is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A port.
    Port(PortKey),
    /// A connection.
    Connection(ConnectionKey),
}

/// What is wrong with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DoubtReason {
    /// A load or ratio is not a finite number.
    NotANumber,
    /// A load or ratio is below zero.
    Negative,
    /// A load is above the port's capacity, or a ratio above 1.
    AboveCapacity,
    /// A port that is up has no capacity.
    NoCapacity,
    /// A port that is down has load.
    LoadWhileDown,
    /// The sample is older than the policy allows.
    Stale,
    /// The sample lies in the future.
    FromTheFuture,
    /// The sample is older than one that was seen before.
    OutOfOrder,
    /// The same thing is spoken of twice in a round; neither is believed.
    Twice,
    /// The connections on a port claim clearly more than the port carries; none of their loads is believed.
    MoreThanItsPort,
    /// The route in use is not among the routes, or a route is named twice.
    BadRoutes,
}

/// How good the set of moves for load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Effort {
    /// No set of fewer moves reaches what this one reaches.
    pub at_least: u32,
    /// How many moves for load the set has, before the rate limit.
    pub chosen: u32,
    /// How many steps the search took.
    pub steps: u32,
}

/// What should be done in this round.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Plan {
    /// Moves, the most urgent first.
    pub moves: Vec<Move>,
    /// What could not be done.
    pub refusals: Vec<Refusal>,
    /// What was not believed.
    pub doubts: Vec<Doubt>,
    /// Which ports are hot, with their utilisation in thousandths.
    pub hot: Vec<(PortKey, Direction, u32)>,
    /// How good the set is.
    pub effort: Effort,
    /// To be given to the next round. It takes all `moves` as ordered; who does not order one says so with [`History::failed`].
    pub history: History,
}
