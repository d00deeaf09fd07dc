//! What two sessions say to one another: typed, versioned, bounded. Each message names its connection, so that one that comes late or to the wrong
//! place is noticed. JSON: a connection says some dozens of messages in its life, and people read them in captures. It holds no state.

use super::act::Ticket;
use crate::buffer::RemoteRange;
use crate::directory::{ConnectionId, FencingToken};
use crate::error::FabricError;
use crate::exchange::MAX_MESSAGE;
use serde::{Deserialize, Serialize};

/// Version of the messages. Sides of different versions refuse one another.
pub const VERSION: u16 = 1;

/// Most ranges of memory that one side offers.
pub const MAX_OFFERS: usize = 256;

/// A lane is one incarnation of the connection's data path: a QP on either side. Lanes are numbered from 1, by the side that connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LaneId(pub u64);

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// [`VERSION`].
    pub version: u16,
    /// Whose.
    pub connection: ConnectionId,
    /// Node and process that say it, such as `node3/4711-1a2b3c4d`: who must be there again when the channel is dialled anew. Empty from
    /// versions that did not say it.
    #[serde(default)]
    pub from: String,
    /// What.
    pub body: Body,
}

/// What is said. The side that connected leads: it alone numbers lanes and decides; the other asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "say")]
pub enum Body {
    /// Leader: let us have this lane; my QP is made.
    Begin(Begin),
    /// Follower: my QP of the lane is in RTS, I can receive on it.
    Accept(Accept),
    /// Leader: mine is in RTS, too. The lane is the connection's; both may post.
    Commit {
        /// Which.
        lane: LaneId,
    },
    /// Leader: the lane does not come about; everything is as before it.
    Abort {
        /// Which.
        lane: LaneId,
        /// Why, for people.
        reason: String,
    },
    /// Follower: I cannot make this lane, or will not.
    Refuse {
        /// Which.
        lane: LaneId,
        /// Why, for people.
        reason: String,
        /// Whether asking again is of no use.
        for_good: bool,
    },
    /// Follower: a lane failed; rebuild.
    Broken {
        /// Which.
        lane: LaneId,
        /// Why, for people.
        reason: String,
    },
    /// Follower: move, please.
    AskMove {
        /// The follower's path, seen from the follower.
        path: crate::path::Path,
        /// How; `None`: the best that both sides have.
        strategy: Option<Strategy>,
        /// Authority.
        token: FencingToken,
        /// The follower's name of the order. Versions that do not say it are told apart by their token.
        #[serde(default)]
        ticket: Option<Ticket>,
        /// Why, for people.
        reason: String,
    },
    /// Leader: what you asked for was not done.
    MoveRefused {
        /// Authority that asked.
        token: FencingToken,
        /// Which order, as the follower named it.
        #[serde(default)]
        ticket: Option<Ticket>,
        /// Why, for people.
        reason: String,
        /// Highest authority that the leader has seen.
        #[serde(default)]
        highest: FencingToken,
    },
    /// Leader: let the QPs of the lane in use take new address vectors. Drain your send queue, or load your alternate path; nothing is changed yet.
    Redirect(Redirect),
    /// Follower: my send queue is drained, and I begin nothing; or: my alternate path is loaded.
    Quiet {
        /// Which redirection.
        number: u64,
        /// The follower's GID from then on.
        gid: std::net::Ipv6Addr,
    },
    /// Follower: I cannot, or will not; I go on as before.
    RedirectRefused {
        /// Which redirection.
        number: u64,
        /// Why, for people.
        reason: String,
    },
    /// Leader: mine is drained, too, and has its new vector: take yours, and go on.
    Turn {
        /// Which redirection.
        number: u64,
    },
    /// Follower: I have, and go on. So may the leader.
    Turned {
        /// Which redirection.
        number: u64,
    },
    /// Leader, before it has said [`Body::Turn`]: nothing comes of it, go on as before.
    RedirectAborted {
        /// Which redirection.
        number: u64,
        /// Why, for people.
        reason: String,
    },
    /// Either, in a move: I have sent so many messages on the lanes before this one, and send on it now.
    Switched {
        /// The lane that is used from now on.
        lane: LaneId,
        /// Messages that spent a receive of the peer since the connection began, before this lane.
        sent: u64,
    },
    /// Either, in a move: I have received everything from the lanes before this one.
    Retired {
        /// The lane that is used from now on.
        lane: LaneId,
    },
    /// Either: memory that the peer may use. Replaces what was offered before under the same numbers.
    Memory {
        /// Counts up.
        round: u64,
        /// The offers.
        offers: Vec<MemoryOffer>,
    },
    /// Answer: nothing uses the keys of earlier rounds any more.
    MemoryTaken {
        /// The round of the offer.
        round: u64,
    },
    /// Either: the connection ends.
    Close {
        /// Why, for people.
        reason: String,
    },
}

/// Why a lane is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// The first one.
    Connect,
    /// The one before failed. Both sides have drained it.
    Rebuild,
    /// Another path, while data flows on the one before.
    Move(Strategy),
}

/// How a connection takes another path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// A second QP is made ready on the new path, the old one is drained, then it takes over. Works everywhere.
    #[default]
    MakeBeforeBreak,
    /// The same QP migrates to an alternate path that both sides have loaded (APM, clause 17.2.8). Nobody drains; what was on its way is sent again.
    AlternatePath,
    /// The same QP is drained (SQD), gets a new address vector, and goes on. Where only the source port or the DSCP changes, one side does it alone.
    DrainedVector,
}

/// What a side can do beside making a second QP. A side that does not say can do nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Abilities {
    /// Its QPs take a new address vector in SQD: [`Strategy::DrainedVector`].
    pub drained_vector: bool,
    /// Its QPs load alternate paths and migrate: [`Strategy::AlternatePath`].
    pub alternate_path: bool,
}

/// The QPs of the lane in use are to take new address vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// Counts up.
    pub number: u64,
    /// The lane in use.
    pub lane: LaneId,
    /// The leader's GID from then on.
    pub gid: std::net::Ipv6Addr,
    /// The path from the follower's side, if it changes, too.
    pub peer_path: Option<crate::path::Path>,
    /// Highest authority that the leader has seen.
    pub token: FencingToken,
    /// By alternate paths, instead of new vectors in SQD. Only to a peer that has [`Abilities::alternate_path`].
    #[serde(default)]
    pub alternate: bool,
}

/// A lane begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Its number.
    pub lane: LaneId,
    /// What for.
    pub purpose: Purpose,
    /// The lane that is the connection's now: what was decided last, in case the word of it was lost.
    pub present: Option<LaneId>,
    /// The leader's QP.
    pub qp: QpOffer,
    /// Service that is wanted.
    pub service: String,
    /// For whom.
    pub tenant: String,
    /// In a rebuild: what the leader had received.
    pub drained: Option<Drained>,
    /// In a move: the path from the follower's side, if the leader knows what it wants. Its `sgid` is the GID that the follower should use.
    pub peer_path: Option<crate::path::Path>,
    /// Highest authority that the leader has seen.
    pub token: FencingToken,
    /// What the leader can do.
    #[serde(default)]
    pub abilities: Abilities,
}

/// A lane is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accept {
    /// Its number.
    pub lane: LaneId,
    /// The follower's QP.
    pub qp: QpOffer,
    /// In a rebuild: what the follower had received.
    pub drained: Option<Drained>,
    /// What the follower can do.
    #[serde(default)]
    pub abilities: Abilities,
}

/// What one side tells of its QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpOffer {
    /// QP number, 24 bits.
    pub qp_num: u32,
    /// PSN of its first request, 24 bits.
    pub psn: u32,
    /// Its GID, as an IPv6 address.
    pub gid: std::net::Ipv6Addr,
    /// Bytes: 256 to 4096.
    pub mtu: u32,
    /// READs and atomics that it can take from the peer.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics that it wants to have outstanding.
    pub max_rd_atomic: u8,
    /// Longest message that its receives hold, bytes.
    pub receive_bytes: u32,
    /// Receives that it posts.
    pub receives: u32,
    /// Device and port, for people.
    pub port: String,
    /// SRQ number, for XRC.
    pub srq_num: Option<u32>,
    /// Which of its fabric's devices the QP is on: offers of memory are told apart by it.
    #[serde(default)]
    pub domain: u8,
}

/// What one side had received when its QPs were stopped and drained.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Messages that spent a receive, since the connection began.
    pub received: u64,
    /// For each lane that was stopped: the PSN that its responder expected next, on backends that vouch for it: everything before was executed,
    /// nothing from it on.
    pub executed: Vec<(LaneId, Option<u32>)>,
}

/// A range of memory that the peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryOffer {
    /// Number within the connection, as applications agree.
    pub id: u32,
    /// Of which of the offering side's devices the key is: the one that its QP is on ([`QpOffer::domain`]). 0 where it has one.
    #[serde(default)]
    pub domain: u8,
    /// The key is good on this lane only, for it is that of a window which is bound to the lane's QP. On later lanes there will be another.
    #[serde(default)]
    pub lane: Option<LaneId>,
    /// Where it is, and its key.
    pub range: RemoteRange,
}

impl Message {
    /// As bytes of an exchange. An error if it is longer than [`MAX_MESSAGE`].
    pub fn emit(&self) -> Result<Vec<u8>, FabricError> {
        let bytes =
            serde_json::to_vec(self).map_err(|e| FabricError::misuse(format!("a message cannot be written: {e}")))?;
        if bytes.len() > MAX_MESSAGE {
            return Err(FabricError::misuse(format!(
                "a message of {} bytes is longer than an exchange carries, {MAX_MESSAGE}: offer fewer ranges",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    /// From bytes of an exchange, checked.
    pub fn parse(bytes: &[u8]) -> Result<Self, FabricError> {
        if bytes.len() > MAX_MESSAGE {
            return Err(FabricError::peer(format!("a message of {} bytes is longer than {MAX_MESSAGE}", bytes.len())));
        }
        #[derive(Deserialize)]
        struct Version {
            version: u16,
        }
        // The version first: another version's body may be unreadable.
        let version: Version = serde_json::from_slice(bytes).map_err(|e| unreadable(&e))?;
        if version.version != VERSION {
            return Err(FabricError::peer(format!(
                "the peer speaks version {} of the session's messages, this side {VERSION}: update the older one",
                version.version
            )));
        }
        let message: Self = serde_json::from_slice(bytes).map_err(|e| unreadable(&e))?;
        message.check()?;
        Ok(message)
    }

    fn check(&self) -> Result<(), FabricError> {
        bounded("from", &self.from, 256)?;
        match &self.body {
            Body::Begin(begin) => {
                bounded("service", &begin.service, 256)?;
                bounded("tenant", &begin.tenant, 256)?;
                check_drained(begin.drained.as_ref())?;
                begin.qp.check()
            }
            Body::Accept(accept) => {
                check_drained(accept.drained.as_ref())?;
                accept.qp.check()
            }
            Body::Memory { offers, .. } if offers.len() > MAX_OFFERS => {
                Err(FabricError::peer(format!("{} offers of memory are more than {MAX_OFFERS}", offers.len())))
            }
            _ => Ok(()),
        }
    }
}

/// serde's own words repeat what it could not read, which may be a key.
fn unreadable(error: &serde_json::Error) -> FabricError {
    let what = match error.classify() {
        serde_json::error::Category::Data => "a field has a wrong type or value, or is missing",
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Io | serde_json::error::Category::Syntax => "it is not JSON",
    };
    FabricError::peer(format!("not a session's message: {what} (line {}, column {})", error.line(), error.column()))
}

fn bounded(what: &str, text: &str, most: usize) -> Result<(), FabricError> {
    if text.len() <= most {
        return Ok(());
    }
    Err(FabricError::peer(format!("{what} of {} bytes is longer than {most}", text.len())))
}

fn check_drained(drained: Option<&Drained>) -> Result<(), FabricError> {
    match drained {
        Some(drained) if drained.executed.len() > 64 => {
            Err(FabricError::peer(format!("{} lanes cannot have been stopped at once", drained.executed.len())))
        }
        _ => Ok(()),
    }
}

impl QpOffer {
    /// Looks at what a peer says of its QP.
    pub(crate) fn check(&self) -> Result<(), FabricError> {
        for (name, value) in [("qp_num", self.qp_num), ("psn", self.psn), ("srq_num", self.srq_num.unwrap_or(0))] {
            if value > 0xff_ffff {
                return Err(FabricError::peer(format!("{name} {value:#x} has more than 24 bits")));
            }
        }
        if !(256..=4096).contains(&self.mtu) || !self.mtu.is_power_of_two() {
            return Err(FabricError::peer(format!("mtu {} is none of 256, 512, 1024, 2048, 4096", self.mtu)));
        }
        bounded("port", &self.port, 256)
    }
}
