//! What a session hears and what it wants done. Plain data.

use super::message::{Body, Drained, LaneId, MemoryOffer, QpOffer, Strategy};
use crate::directory::{ConnectionState, FencingToken, OrderResult};
use crate::error::FabricError;
use crate::path::Path;
use serde::{Deserialize, Serialize};

/// Names an order that a session is given, so that its answer finds who waits for it. Who gives orders to a session never uses one twice; two orders may say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// An ordered change of path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Where to, from this side.
    pub path: Path,
    /// Where to, from the peer's side; `None`: it stays where it is.
    pub peer_path: Option<Path>,
    /// How; `None`: the best that both sides have. A strategy that is named and cannot be carried out is an answer, not another strategy.
    pub strategy: Option<Strategy>,
    /// Authority.
    pub token: FencingToken,
    /// Why, for people.
    pub reason: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The peer said something.
    Message(Body),
    /// A channel to the peer is there. An earlier one is gone, and what was said on it and not heard is lost.
    ChannelUp,
    /// The channel broke, or could not be made.
    ChannelDown {
        /// Why, for people.
        reason: String,
    },
    /// Answer to [`Action::Make`].
    Made {
        /// Which.
        lane: LaneId,
        /// What the peer must know.
        qp: QpOffer,
    },
    /// Answer to [`Action::Ready`]: the QP is in RTS.
    Ready {
        /// Which.
        lane: LaneId,
    },
    /// [`Action::Make`] or [`Action::Ready`] failed.
    Failed {
        /// Which.
        lane: LaneId,
        /// Why, for people.
        reason: String,
    },
    /// Nothing that this side could do would make the connection, now or a little later: it ends with this.
    Hopeless {
        /// Why.
        error: FabricError,
    },
    /// A lane's QP is in error.
    Broken {
        /// Which.
        lane: LaneId,
        /// Why, for people.
        reason: String,
    },
    /// Answer to [`Action::Drain`]: what was begun has ended, and nothing new is begun.
    Quiet {
        /// Which.
        lane: LaneId,
    },
    /// Answer to [`Action::Load`].
    Loaded {
        /// Which.
        lane: LaneId,
    },
    /// Answer to [`Action::Vector`], and to [`Action::Migrate`].
    Vectored {
        /// Which.
        lane: LaneId,
    },
    /// [`Action::Drain`], [`Action::Vector`] or [`Action::Load`] failed: the QP has the vector that it had.
    NotVectored {
        /// Which.
        lane: LaneId,
        /// Why, for people.
        reason: String,
    },
    /// Answer to [`Action::Stop`].
    Drained(Drained),
    /// [`Action::Resolve`] found that the peer's numbers cannot be.
    Contradicted {
        /// What cannot be.
        reason: String,
    },
    /// After [`Action::HandOver`]: everything that was posted on earlier lanes has completed.
    Idle {
        /// The lane to switch to.
        lane: LaneId,
        /// Messages sent on earlier lanes since the connection began.
        sent: u64,
    },
    /// After [`Action::Expect`]: everything that was announced has been received.
    Received {
        /// The lane that was switched to.
        lane: LaneId,
    },
    /// After [`Action::TakeKeys`]: nothing that is outstanding uses keys of earlier rounds.
    KeysIdle {
        /// The round that was taken.
        round: u64,
    },
    /// The application, or an order, offers memory: all offers of this side. Keys of the round before may be withdrawn when [`Action::Revoke`] says so.
    Offer {
        /// All of them.
        offers: Vec<MemoryOffer>,
        /// How long both keys are good at most.
        overlap_ns: u64,
    },
    /// An order to move; answered by [`Action::Answer`].
    Move {
        /// The order.
        ticket: Ticket,
        /// What it wants.
        change: Change,
    },
    /// Make the QP anew.
    Rebuild {
        /// Why, for people.
        reason: String,
    },
    /// Close it.
    Close {
        /// Why, for people.
        reason: String,
        /// If it is an order, which is answered: its name, and the authority.
        order: Option<(Ticket, FencingToken)>,
    },
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make a channel to the peer; answer [`Input::ChannelUp`] or [`Input::ChannelDown`].
    Dial,
    /// Say this. Lost if there is no channel.
    Send(Body),
    /// Make a QP for a lane; answer [`Input::Made`] or [`Input::Failed`].
    Make {
        /// Which.
        lane: LaneId,
        /// On which path; `None`: the one in use, or one that reaches the peer.
        path: Option<Path>,
        /// The peer's QP, where it is known already.
        peer: Option<QpOffer>,
    },
    /// Take a lane's QP to RTR and RTS; answer [`Input::Ready`] or [`Input::Failed`]. It receives from now on, and nothing is posted on it yet.
    Ready {
        /// Which.
        lane: LaneId,
        /// The peer's QP.
        peer: QpOffer,
    },
    /// Post nothing more, take every QP to ERR, wait until all its completions are taken, destroy it; answer [`Input::Drained`].
    Stop,
    /// Every lane is stopped on both sides and this is what the peer had received: say of each outstanding operation whether it is done, is to be posted
    /// again, or must be reported.
    Resolve(Drained),
    /// Post on this lane, and take messages from it.
    Use {
        /// Which.
        lane: LaneId,
    },
    /// Post nothing more on earlier lanes; when everything on them has completed: [`Input::Idle`].
    HandOver {
        /// The lane that will be used.
        lane: LaneId,
    },
    /// Post on this lane.
    Switch {
        /// Which.
        lane: LaneId,
    },
    /// Take messages from this lane once so many have come in all; then [`Input::Received`].
    Expect {
        /// Which.
        lane: LaneId,
        /// Messages since the connection began.
        after: u64,
    },
    /// Take a lane's QP to SQD, after a look whether it could take this path; answer [`Input::Quiet`] or [`Input::NotVectored`]. Operations are posted all the
    /// while, and wait. Of a QP that is drained already: answer at once.
    Drain {
        /// Which.
        lane: LaneId,
        /// The path that it is to take; `None`: only the peer's GID changes.
        path: Option<Path>,
    },
    /// Give a drained lane's QP a new address vector; answer [`Input::Vectored`] or [`Input::NotVectored`].
    Vector {
        /// Which.
        lane: LaneId,
        /// The path; `None`: as it is.
        path: Option<Path>,
        /// The peer's GID; `None`: as it is.
        dgid: Option<std::net::Ipv6Addr>,
    },
    /// Load an alternate path, and ask to be armed, after a look whether the QP could take it; answer [`Input::Loaded`] or [`Input::NotVectored`]. Operations
    /// are posted and executed all the while.
    Load {
        /// Which.
        lane: LaneId,
        /// The path; `None`: as it is, to the peer's other GID.
        path: Option<Path>,
        /// The peer's GID on it; `None`: as it is.
        dgid: Option<std::net::Ipv6Addr>,
    },
    /// Go over to the alternate path, as soon as both sides are armed; answer [`Input::Vectored`], also if the QP has done it by itself, or
    /// [`Input::Broken`].
    Migrate {
        /// Which.
        lane: LaneId,
    },
    /// Do not migrate after all. The peer's QP has no alternate path for it, so that this one is not armed.
    Unload {
        /// Which.
        lane: LaneId,
    },
    /// Back to RTS.
    Resume {
        /// Which.
        lane: LaneId,
    },
    /// A lane does not come about: destroy its QP. Nothing was posted on it.
    Discard {
        /// Which.
        lane: LaneId,
    },
    /// Destroy the QPs of earlier lanes.
    Retire {
        /// The lane that stays.
        lane: LaneId,
    },
    /// The peer's offers; operations that are posted from now on use them. Answer [`Input::KeysIdle`].
    TakeKeys {
        /// Round.
        round: u64,
        /// All of the peer's offers.
        offers: Vec<MemoryOffer>,
    },
    /// Keys that were offered before this round may be withdrawn.
    Revoke {
        /// Round.
        round: u64,
        /// The peer says that nothing of it uses them any more; else the overlap has passed.
        taken: bool,
    },
    /// The connection's state has changed.
    Report(ConnectionState),
    /// Answer to an order, once.
    Answer {
        /// Which.
        ticket: Ticket,
        /// The answer.
        result: OrderResult,
    },
    /// It is over: destroy everything, report what is outstanding.
    Closed(FabricError),
}
