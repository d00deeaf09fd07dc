//! Asynchronous events: what happened to an object without anybody having asked. Values are those of
//! `enum ibv_event_type`; each has its cause and its remedy. Raising them is the backend's work, not done here.

use core::fmt;

use scalefabric_wire::{Qpn, Srqn};

use crate::work_completion::Produced;

/// What happened. What each means stands in [`EVENTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum EventType {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
    WqFatal = 19,
}

/// What is known about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventInfo {
    /// The event.
    pub event_type: EventType,
    /// Its name in `enum ibv_event_type`, without the prefix `IBV_EVENT_`.
    pub name: &'static str,
    /// Text of `ibv_event_type_str`.
    pub text: &'static str,
    /// How it comes about.
    pub cause: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// Whether a RoCE NIC raises it, and if not, why.
    pub produced: Produced,
}

macro_rules! events {
    ($( $event:ident $name:literal $text:literal $cause:literal $remedy:literal $produced:expr; )*) => {
        /// All events, in the order of their numbers (clause 11.6.3 for those of the standard).
        pub const EVENTS: &[EventInfo] = &[ $( EventInfo {
            event_type: EventType::$event, name: $name, text: $text, cause: $cause, remedy: $remedy, produced: $produced,
        }, )* ];
    };
}

const NO_SM: Produced = Produced::No("RoCE has no subnet manager and no LIDs.");

events! {
    CqErr "CQ_ERR" "CQ error"
        "A completion queue overran: a completion came and there was no room. Completions are lost and the QPs \
         that use it go to ERR."
        "Destroy it. Make CQs as large as the sum of the queues that complete into them, or poll before posting more."
        Produced::Yes;
    QpFatal "QP_FATAL" "local work queue catastrophic error"
        "A QP could not go on and could not say why in a completion: its CQ overran, or a receive broke with \
         nothing to complete."
        "Destroy the QP, or bring it back through RESET. The CQ's state and earlier events tell the reason."
        Produced::Yes;
    QpReqErr "QP_REQ_ERR" "invalid request local work queue error"
        "As responder, the QP refused a request that was wrong in itself (opcode out of sequence, too long, \
         unsupported) and went to ERR."
        "Look at the peer: its completion has REM_INV_REQ_ERR. Then reset and reconnect."
        Produced::Yes;
    QpAccessErr "QP_ACCESS_ERR" "local access violation work queue error"
        "As responder, the QP refused a request for its rkey, range or rights and went to ERR."
        "Compare the rkey and addresses that were given to the peer with the regions; its completion has \
         REM_ACCESS_ERR. Then reset \
         and reconnect."
        Produced::Yes;
    CommEst "COMM_EST" "communication established"
        "The first packet arrived while the QP was in RTR: the peer is already sending."
        "With a connection manager: tell it (rdma_notify), as the RTU may have been lost. Otherwise go to RTS."
        Produced::Yes;
    SqDrained "SQ_DRAINED" "send queue drained"
        "In SQD, everything that had been begun is finished."
        "Attributes can be changed now; go back to RTS to send on."
        Produced::Yes;
    PathMig "PATH_MIG" "path migrated"
        "The QP now uses its alternate path: it was told to, or its peer migrated first."
        "Load a new alternate path and set REARM, so that the next failure can be survived, too."
        Produced::Yes;
    PathMigErr "PATH_MIG_ERR" "path migration request error"
        "A migration was asked for that this side could not follow: the packet's path is not the alternate path \
         that was loaded."
        "Check that both sides loaded the same alternate path (LAP/APR), and its port and GIDs."
        Produced::Yes;
    DeviceFatal "DEVICE_FATAL" "local catastrophic error"
        "The device can do nothing more: all its QPs are dead."
        "Close the context and open the device again; if it stays so, look at the interface and the log."
        Produced::Yes;
    PortActive "PORT_ACTIVE" "port active"
        "The port's interface came up."
        "Nothing: QPs that survived go on. Connections that timed out must be made again."
        Produced::Yes;
    PortErr "PORT_ERR" "port error"
        "The port's interface went down: packets are lost until it returns."
        "Wait for PORT_ACTIVE, or migrate to another port. RC QPs end after timeout x (retry_cnt + 1)."
        Produced::Yes;
    LidChange "LID_CHANGE" "LID change"
        "The subnet manager gave the port another LID."
        "Not seen here."
        NO_SM;
    PkeyChange "PKEY_CHANGE" "P_Key change"
        "The port's P_Key table changed."
        "Look up the index of your P_Key again; QPs whose index now holds another key no longer reach their peers."
        Produced::Yes;
    SmChange "SM_CHANGE" "SM change"
        "Another subnet manager took over."
        "Not seen here."
        NO_SM;
    SrqErr "SRQ_ERR" "SRQ catastrophic error"
        "A shared receive queue broke."
        "Destroy it and its QPs."
        Produced::No("An SRQ is memory of this process: a bad WQE fails its own completion, never the queue.");
    SrqLimitReached "SRQ_LIMIT_REACHED" "SRQ limit reached"
        "Fewer WRs are left in the SRQ than its limit. Raised once, then disarmed."
        "Post more receives, then arm it again with modify_srq."
        Produced::Yes;
    QpLastWqeReached "QP_LAST_WQE_REACHED" "last WQE reached"
        "A QP with an SRQ is in ERR and will take no more WQEs from it."
        "All its receive completions are in the CQ now: drain it, then the QP can be destroyed or reset."
        Produced::Yes;
    ClientReregister "CLIENT_REREGISTER" "client reregistration"
        "The subnet manager asks everybody to register again."
        "Not seen here."
        NO_SM;
    GidChange "GID_CHANGE" "GID table change"
        "An address of the interface came or went, and with it a GID."
        "Read the table again. Indexes of GIDs that stayed did not change."
        Produced::Yes;
    WqFatal "WQ_FATAL" "WQ fatal"
        "A work queue of a raw packet QP broke."
        "Not seen here."
        Produced::No("Raw packet QPs and their work queues are not part of this contract.");
}

impl EventType {
    /// The event of a number of `enum ibv_event_type`; `None` beyond 19.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        if (raw as usize) < EVENTS.len() { Some(EVENTS[raw as usize].event_type) } else { None }
    }

    /// Its number.
    pub const fn to_raw(self) -> u32 {
        self as u32
    }

    /// Its row of [`EVENTS`].
    pub const fn info(self) -> &'static EventInfo {
        &EVENTS[self as usize]
    }

    /// Text of `ibv_event_type_str`.
    pub const fn as_str(self) -> &'static str {
        self.info().text
    }

    /// How it comes about.
    pub const fn cause(self) -> &'static str {
        self.info().cause
    }

    /// What to do.
    pub const fn remedy(self) -> &'static str {
        self.info().remedy
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// To what it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum EventSubject {
    QueuePair(Qpn),
    /// Number of the CQ within its context.
    CompletionQueue(u32),
    SharedReceiveQueue(Srqn),
    /// Port, from 1.
    Port(u8),
    Device,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// What.
    pub event_type: EventType,
    /// To what.
    pub subject: EventSubject,
}
