//! One queue pair's protocol: the face that `nic` and the tests see. It holds what requester, responder and completer
//! share (type, number, state, attributes) and hands each call to the part that owns it.

use scalefabric_verbs::{QpAttr, QpAttrMask, QpState, QpType, Qpn, VerbsError, WcStatus};

use crate::congestion::Congestion;
use crate::host::{Host, Incoming};
use crate::time::Time;

/// What a device decides for its QPs, beyond their attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes a requester may have unacknowledged. Default 1 MiB. Too small: idle between ACKs; too large: the peer's
    /// socket buffer overflows and go-back-N repeats much.
    pub max_inflight_bytes: u32,
    /// A requester asks for an ACK at least every this many packets. Default 16. 1: an ACK a packet.
    pub ack_req_interval: u32,
    /// Whether a responder without SRQ tells how many receives are posted (clause 9.7.7.2). Default true; rxe: false.
    pub advertise_credits: bool,
    /// Least time between two CNPs of one QP, ns. Default 4 µs (clause A17.9.3 leaves it open; mlx5 has 4 µs).
    pub cnp_interval_ns: u64,
    /// Controller.
    pub congestion: Congestion,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_inflight_bytes: 1 << 20,
            ack_req_interval: 16,
            advertise_credits: true,
            cnp_interval_ns: 4_000,
            congestion: Congestion::None,
        }
    }
}

/// Whether there is more to send, and what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing to do until a packet, a doorbell or the timer.
    Idle,
    /// The budget is spent and there is more.
    Ready,
    /// The wire has no room.
    Blocked,
    /// Pacing or an RNR wait: not before this time.
    At(Time),
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    qp_type: QpType,
    qpn: Qpn,
    state: QpState,
}

impl QueuePair {
    /// A QP in RESET.
    pub fn new(qp_type: QpType, qpn: Qpn, _config: Config) -> Self {
        Self { qp_type, qpn, state: QpState::Reset }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its type.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Changes attributes and state by the table of `verbs::state`; all or nothing.
    pub fn modify<H: Host>(&mut self, _host: &mut H, _attr: &QpAttr, _mask: QpAttrMask) -> Result<(), VerbsError> {
        todo!()
    }

    /// All attributes as they are now (`cap` is the host's to fill).
    pub fn query(&self) -> QpAttr {
        todo!()
    }

    /// Sends at most `budget` packets: READ responses first, then requests.
    pub fn transmit<H: Host>(&mut self, _host: &mut H, _budget: usize) -> Next {
        todo!()
    }

    /// Takes a packet that was addressed to this QP.
    pub fn receive<H: Host>(&mut self, _host: &mut H, _packet: &Incoming<'_>) {
        todo!()
    }

    /// Ends a batch of received packets: sends the ACK that covers them all.
    pub fn end_of_batch<H: Host>(&mut self, _host: &mut H) {
        todo!()
    }

    /// The next time at which [`QueuePair::on_timer`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        todo!()
    }

    /// Runs what is due: retransmission, RNR wait, give-up.
    pub fn on_timer<H: Host>(&mut self, _host: &mut H) {
        todo!()
    }

    /// Goes to ERR from outside the protocol (CQ overrun, an injected fault): the oldest send WQE ends with `status`,
    /// everything else is flushed.
    pub fn fail<H: Host>(&mut self, _host: &mut H, _status: WcStatus) {
        todo!()
    }

    /// In ERR: flushes what was posted since (each receive and send WQE ends with WR_FLUSH_ERR). The host calls it when
    /// something is posted to a QP in ERR.
    pub fn flush<H: Host>(&mut self, _host: &mut H) {
        todo!()
    }
}
