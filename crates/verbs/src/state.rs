//! QP types, QP states, and the tables that follow from them: every transition with its required and optional attributes
//! (clause 10.3.1, table 91 of clause 11.2.5.2), and what may be posted and received in each state.
//!
//! Nothing here changes a QP. A backend asks [`check_modify`] before it changes anything, so that a refused call leaves
//! the QP as it was. Attributes are those that RoCE needs: the address vector is always required on the way to RTR.

use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::attribute::{QpAttr, QpAttrMask};
use crate::error::VerbsError;

/// Type of a QP. Values are those of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, initiator (a send queue only).
    XrcSend = 9,
    /// Extended reliable connection, target (no queues of its own: SRQs of its XRC domain).
    XrcRecv = 10,
}

impl QpType {
    /// All types.
    pub const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::XrcSend, Self::XrcRecv];

    /// The type of a number of `enum ibv_qp_type`; `None` for those that this contract does not have (raw packet,
    /// driver types).
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            2 => Self::Rc,
            3 => Self::Uc,
            4 => Self::Ud,
            9 => Self::XrcSend,
            10 => Self::XrcRecv,
            _ => return None,
        })
    }

    /// Name as the standard and libibverbs spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        }
    }

    /// True if the QP talks to one peer QP (everything but UD).
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// True if requests are acknowledged and repeated (RC and both ends of XRC).
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// True if it has a send queue.
    pub const fn has_send_queue(self) -> bool {
        !matches!(self, Self::XrcRecv)
    }

    /// True if receives can be posted to it (or to its SRQ): neither end of XRC has a receive queue.
    pub const fn has_recv_queue(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Ud)
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// State of a QP. Values are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpState {
    /// As created: nothing can be posted, nothing is received.
    Reset = 0,
    /// Receives can be posted; nothing is sent or received.
    Init = 1,
    /// Ready to receive: answers its peer, sends no requests of its own.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drain: what was begun is finished, nothing new is begun. Receiving goes on.
    Sqd = 4,
    /// Send queue error (UC and UD): a send failed locally; sends are flushed, receiving goes on.
    Sqe = 5,
    /// Error: both queues are flushed, packets are dropped.
    Err = 6,
}

impl QpState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// The state of a number of `enum ibv_qp_state`.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        if raw < 7 { Some(Self::ALL[raw as usize]) } else { None }
    }

    /// Name as the standard and libibverbs spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }

    /// What this state permits: its row of [`STATES`].
    pub const fn rule(self) -> &'static StateRule {
        &STATES[self as usize]
    }

    /// True if `post_send` is accepted: RTS, SQD (it waits), SQE and ERR (it is flushed).
    pub const fn post_send_allowed(self) -> bool {
        !matches!(self.rule().post_send, Posting::Refused)
    }

    /// True if `post_recv` is accepted: everywhere but in RESET.
    pub const fn post_recv_allowed(self) -> bool {
        !matches!(self.rule().post_recv, Posting::Refused)
    }

    /// True if packets from the peer are looked at: RTR, RTS, SQD, SQE.
    pub const fn receives(self) -> bool {
        self.rule().receives
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What becomes of a WR that is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posting {
    /// The call fails with `EINVAL` (immediate error, clause 11.4.1.1).
    Refused,
    /// It is queued and waits for another state.
    Queued,
    /// It is queued and processed.
    Processed,
    /// It is queued and completes with `WR_FLUSH_ERR`.
    Flushed,
}

/// What a state permits (clause 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRule {
    /// The state.
    pub state: QpState,
    /// What becomes of a send WR.
    pub post_send: Posting,
    /// What becomes of a receive WR.
    pub post_recv: Posting,
    /// Whether incoming packets are processed; otherwise they are dropped silently (and counted).
    pub receives: bool,
    /// Whether new requests are begun.
    pub sends: bool,
}

/// What each state permits, in the order of their numbers.
pub const STATES: &[StateRule; 7] = &[
    rule(QpState::Reset, Posting::Refused, Posting::Refused, false, false),
    rule(QpState::Init, Posting::Refused, Posting::Queued, false, false),
    rule(QpState::Rtr, Posting::Refused, Posting::Processed, true, false),
    rule(QpState::Rts, Posting::Processed, Posting::Processed, true, true),
    rule(QpState::Sqd, Posting::Queued, Posting::Processed, true, false),
    rule(QpState::Sqe, Posting::Flushed, Posting::Processed, true, false),
    rule(QpState::Err, Posting::Flushed, Posting::Flushed, false, false),
];

const fn rule(state: QpState, post_send: Posting, post_recv: Posting, receives: bool, sends: bool) -> StateRule {
    StateRule { state, post_send, post_recv, receives, sends }
}

/// A transition that `modify` may make, for one QP type. [`QpAttrMask::STATE`] belongs to every transition and is in
/// neither mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Type.
    pub qp_type: QpType,
    /// State before.
    pub from: QpState,
    /// State after; the same as `from` for a change of attributes only.
    pub to: QpState,
    /// Attributes that must be given.
    pub required: QpAttrMask,
    /// Attributes that may be given.
    pub optional: QpAttrMask,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.qp_type, self.from, self.to)
    }
}

macro_rules! transitions {
    ($( $ty:ident { $( $from:ident -> $to:ident [$($req:ident)*] [$($opt:ident)*]; )* } )*) => {
        &[ $( $( Transition {
            qp_type: QpType::$ty,
            from: QpState::$from,
            to: QpState::$to,
            required: QpAttrMask::empty()$(.union(QpAttrMask::$req))*,
            optional: QpAttrMask::empty()$(.union(QpAttrMask::$opt))*,
        }, )* )* ]
    };
}

/// Every transition that `modify` may make. First brackets: required; second: optional.
///
/// Two rows differ from Linux's table, which is silent where the standard speaks: RESET to ERR is legal (the standard
/// lets every state go to ERR), and SQE exists for UC and UD only. Queue sizes (`CAP`) are fixed at creation, as with
/// most devices. A rate limit, which Linux's table has for raw packet QPs only, is taken by every QP that sends.
#[rustfmt::skip]
pub const TRANSITIONS: &[Transition] = transitions! {
    Rc {
        Reset -> Reset [] [];
        Reset -> Init  [PKEY_INDEX PORT ACCESS_FLAGS] [];
        Reset -> Err   [] [];
        Init  -> Reset [] [];
        Init  -> Init  [] [PKEY_INDEX PORT ACCESS_FLAGS];
        Init  -> Rtr   [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
                       [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Init  -> Err   [] [];
        Rtr   -> Reset [] [];
        Rtr   -> Rts   [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC]
                       [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE RATE_LIMIT];
        Rtr   -> Err   [] [];
        Rts   -> Reset [] [];
        Rts   -> Rts   [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER RATE_LIMIT];
        Rts   -> Sqd   [] [EN_SQD_ASYNC_NOTIFY];
        Rts   -> Err   [] [];
        Sqd   -> Reset [] [];
        Sqd   -> Rts   [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Sqd   -> Sqd   [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS
                           PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE];
        Sqd   -> Err   [] [];
        Err   -> Reset [] [];
        Err   -> Err   [] [];
    }
    Uc {
        Reset -> Reset [] [];
        Reset -> Init  [PKEY_INDEX PORT ACCESS_FLAGS] [];
        Reset -> Err   [] [];
        Init  -> Reset [] [];
        Init  -> Init  [] [PKEY_INDEX PORT ACCESS_FLAGS];
        Init  -> Rtr   [AV PATH_MTU DEST_QPN RQ_PSN] [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Init  -> Err   [] [];
        Rtr   -> Reset [] [];
        Rtr   -> Rts   [SQ_PSN] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE RATE_LIMIT];
        Rtr   -> Err   [] [];
        Rts   -> Reset [] [];
        Rts   -> Rts   [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT];
        Rts   -> Sqd   [] [EN_SQD_ASYNC_NOTIFY];
        Rts   -> Err   [] [];
        Sqd   -> Reset [] [];
        Sqd   -> Rts   [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        Sqd   -> Sqd   [] [AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE];
        Sqd   -> Err   [] [];
        Sqe   -> Reset [] [];
        Sqe   -> Rts   [] [CUR_STATE ACCESS_FLAGS];
        Sqe   -> Err   [] [];
        Err   -> Reset [] [];
        Err   -> Err   [] [];
    }
    Ud {
        Reset -> Reset [] [];
        Reset -> Init  [PKEY_INDEX PORT QKEY] [];
        Reset -> Err   [] [];
        Init  -> Reset [] [];
        Init  -> Init  [] [PKEY_INDEX PORT QKEY];
        Init  -> Rtr   [] [PKEY_INDEX QKEY];
        Init  -> Err   [] [];
        Rtr   -> Reset [] [];
        Rtr   -> Rts   [SQ_PSN] [CUR_STATE QKEY RATE_LIMIT];
        Rtr   -> Err   [] [];
        Rts   -> Reset [] [];
        Rts   -> Rts   [] [CUR_STATE QKEY RATE_LIMIT];
        Rts   -> Sqd   [] [EN_SQD_ASYNC_NOTIFY];
        Rts   -> Err   [] [];
        Sqd   -> Reset [] [];
        Sqd   -> Rts   [] [CUR_STATE QKEY];
        Sqd   -> Sqd   [] [PKEY_INDEX QKEY];
        Sqd   -> Err   [] [];
        Sqe   -> Reset [] [];
        Sqe   -> Rts   [] [CUR_STATE QKEY];
        Sqe   -> Err   [] [];
        Err   -> Reset [] [];
        Err   -> Err   [] [];
    }
    XrcSend {
        Reset -> Reset [] [];
        Reset -> Init  [PKEY_INDEX PORT ACCESS_FLAGS] [];
        Reset -> Err   [] [];
        Init  -> Reset [] [];
        Init  -> Init  [] [PKEY_INDEX PORT ACCESS_FLAGS];
        Init  -> Rtr   [AV PATH_MTU DEST_QPN RQ_PSN] [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Init  -> Err   [] [];
        Rtr   -> Reset [] [];
        Rtr   -> Rts   [TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC]
                       [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE RATE_LIMIT];
        Rtr   -> Err   [] [];
        Rts   -> Reset [] [];
        Rts   -> Rts   [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT];
        Rts   -> Sqd   [] [EN_SQD_ASYNC_NOTIFY];
        Rts   -> Err   [] [];
        Sqd   -> Reset [] [];
        Sqd   -> Rts   [] [CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE];
        Sqd   -> Sqd   [] [PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX
                           PATH_MIG_STATE];
        Sqd   -> Err   [] [];
        Err   -> Reset [] [];
        Err   -> Err   [] [];
    }
    XrcRecv {
        Reset -> Reset [] [];
        Reset -> Init  [PKEY_INDEX PORT ACCESS_FLAGS] [];
        Reset -> Err   [] [];
        Init  -> Reset [] [];
        Init  -> Init  [] [PKEY_INDEX PORT ACCESS_FLAGS];
        Init  -> Rtr   [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
                       [ALT_PATH ACCESS_FLAGS PKEY_INDEX];
        Init  -> Err   [] [];
        Rtr   -> Reset [] [];
        Rtr   -> Rts   [TIMEOUT SQ_PSN] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Rtr   -> Err   [] [];
        Rts   -> Reset [] [];
        Rts   -> Rts   [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER];
        Rts   -> Sqd   [] [EN_SQD_ASYNC_NOTIFY];
        Rts   -> Err   [] [];
        Sqd   -> Reset [] [];
        Sqd   -> Rts   [] [CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE];
        Sqd   -> Sqd   [] [PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER
                           PATH_MIG_STATE];
        Sqd   -> Err   [] [];
        Err   -> Reset [] [];
        Err   -> Err   [] [];
    }
};

/// The row for a transition, if it is legal.
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<&'static Transition> {
    TRANSITIONS.iter().find(|row| row.qp_type == qp_type && row.from == from && row.to == to)
}

/// Checks that `mask` is right for going `from` one state `to` another (the same for attributes alone): the transition
/// exists, no required attribute is missing, none is given that the transition does not take. [`QpAttrMask::STATE`] may
/// be set or not. `EINVAL` names the transition and every attribute at fault.
///
/// ```
/// use scalefabric_verbs::state::check_transition;
/// use scalefabric_verbs::{QpAttrMask, QpState, QpType};
///
/// let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
/// let error = check_transition(QpType::Rc, QpState::Reset, QpState::Init, mask).unwrap_err();
/// assert!(error.message.contains("missing ACCESS_FLAGS"));
/// assert!(check_transition(QpType::Rc, QpState::Reset, QpState::Init, mask | QpAttrMask::ACCESS_FLAGS).is_ok());
/// ```
pub fn check_transition(qp_type: QpType, from: QpState, to: QpState, mask: QpAttrMask) -> Result<(), VerbsError> {
    let Some(row) = transition(qp_type, from, to) else {
        return Err(VerbsError::invalid(no_such_transition(qp_type, from, to)));
    };
    let missing = row.required.difference(mask);
    let forbidden = mask.difference(row.required | row.optional | QpAttrMask::STATE);
    if missing.is_empty() && forbidden.is_empty() {
        return Ok(());
    }
    let mut message = format!("modify {row}: ");
    if !missing.is_empty() {
        message += &format!("missing {}: set the field and its bit in attr_mask", names(missing));
    }
    if !forbidden.is_empty() {
        if !missing.is_empty() {
            message += "; ";
        }
        message += &format!("{} cannot be changed here: clear the bit in attr_mask", names(forbidden));
        let places = places_for(qp_type, forbidden);
        if !places.is_empty() {
            message += &format!(" ({places})");
        }
    }
    Err(VerbsError::invalid(message))
}

/// Checks a whole `modify` against the table and returns the state that it leads to: `attr.qp_state` with
/// [`QpAttrMask::STATE`], else `current`. With [`QpAttrMask::CUR_STATE`] the caller's belief must be true: it is how a
/// consumer finds out that its QP has gone to SQE or ERR in the meantime.
pub fn check_modify(qp_type: QpType, current: QpState, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, VerbsError> {
    let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { current };
    check_transition(qp_type, current, to, mask)?;
    if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_qp_state != current {
        return Err(VerbsError::invalid(format!(
            "modify {qp_type} {current} -> {to}: CUR_STATE says {}, but the QP is in {current}: query it and begin \
             there",
            attr.cur_qp_state
        )));
    }
    Ok(to)
}

/// Why there is no row, and where one can go instead.
fn no_such_transition(qp_type: QpType, from: QpState, to: QpState) -> String {
    if from == QpState::Sqe && qp_type.is_reliable() {
        return format!(
            "modify {qp_type} {from} -> {to}: a {qp_type} QP has no state SQE: its send errors lead to ERR"
        );
    }
    let mut ways = String::new();
    for row in TRANSITIONS.iter().filter(|row| row.qp_type == qp_type && row.from == from) {
        if !ways.is_empty() {
            ways += ", ";
        }
        ways += row.to.as_str();
    }
    if from == to {
        format!(
            "modify {qp_type} in {from}: no attribute can be changed without going to another state (one of {ways})"
        )
    } else {
        format!("modify {qp_type} {from} -> {to}: no such transition; from {from} it may go to {ways}")
    }
}

/// In which transitions of the type the given attributes can be set.
fn places_for(qp_type: QpType, attributes: QpAttrMask) -> String {
    let mut text = String::new();
    for (name, bit) in attributes.iter_names() {
        let mut places = String::new();
        for row in TRANSITIONS.iter().filter(|row| row.qp_type == qp_type) {
            if (row.required | row.optional).contains(bit) {
                if !places.is_empty() {
                    places += ", ";
                }
                places += &format!("{} -> {}", row.from, row.to);
            }
        }
        if !text.is_empty() {
            text += "; ";
        }
        if places.is_empty() {
            text += &format!("{name}: never on a {qp_type} QP");
        } else {
            text += &format!("{name}: {places}");
        }
    }
    text
}

/// Names of the bits, and unknown ones in hexadecimal.
fn names(mask: QpAttrMask) -> String {
    let mut text = String::new();
    for (name, _) in mask.iter_names() {
        if !text.is_empty() {
            text += ", ";
        }
        text += name;
    }
    let unknown = mask.difference(QpAttrMask::all());
    if !unknown.is_empty() {
        if !text.is_empty() {
            text += ", ";
        }
        text += &format!("unknown bits {:#x}", unknown.bits());
    }
    text
}
