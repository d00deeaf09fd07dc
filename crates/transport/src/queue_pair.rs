//! One queue pair's protocol: the face that `nic` and the tests see. It holds what requester, responder and completer
//! share (type, number, state, attributes) and hands each call to the part that owns it.

use scalefabric_verbs::{
    AccessFlags, AddressVector, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, Qpn, VerbsError, WcStatus,
};
use scalefabric_wire::{Gid, Psn, QKey};

use crate::admission::{self, Receiver};
use crate::congestion::Congestion;
use crate::context::{Context, Fatal};
use crate::counter::{Counter, DropReason};
use crate::host::{Host, Incoming};
use crate::responder::{Acks, Cnps, Responder};
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
    /// When a responder acknowledges. Default: one ACK for each batch of packets that were received together.
    pub acks: Acks,
    /// Whether packets that were marked CE are answered with CNPs. Default: yes, paced by `cnp_interval_ns`.
    pub cnps: Cnps,
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
            acks: Acks::Coalesced,
            cnps: Cnps::Paced,
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
    ctx: Context,
    responder: Responder,
}

const NO_PATH: AddressVector = AddressVector {
    dgid: Gid::ZERO,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    flow_label: 0,
    sl: 0,
    static_rate: 0,
    port_num: 0,
};

/// Attributes of a QP in RESET, as `query` shows them.
const RESET_ATTR: QpAttr = QpAttr {
    qp_state: QpState::Reset,
    cur_qp_state: QpState::Reset,
    path_mtu: Mtu::Mtu256,
    path_mig_state: MigState::Migrated,
    qkey: QKey(0),
    rq_psn: Psn::new(0),
    sq_psn: Psn::new(0),
    dest_qp_num: Qpn::new(0),
    qp_access_flags: AccessFlags::empty(),
    cap: QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
    ah_attr: NO_PATH,
    alt_ah_attr: NO_PATH,
    pkey_index: 0,
    alt_pkey_index: 0,
    en_sqd_async_notify: false,
    sq_draining: false,
    max_rd_atomic: 0,
    max_dest_rd_atomic: 0,
    min_rnr_timer: 0,
    port_num: 0,
    timeout: 0,
    retry_cnt: 0,
    rnr_retry: 0,
    alt_port_num: 0,
    alt_timeout: 0,
    rate_limit: 0,
};

impl QueuePair {
    /// A QP in RESET.
    pub fn new(qp_type: QpType, qpn: Qpn, config: Config) -> Self {
        Self {
            ctx: Context { qp_type, qpn, state: QpState::Reset, attr: RESET_ATTR, config },
            responder: Responder::new(),
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.ctx.qpn
    }

    /// Its type.
    pub fn qp_type(&self) -> QpType {
        self.ctx.qp_type
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.ctx.state
    }

    /// Changes attributes and state by the table of `verbs::state`; all or nothing.
    pub fn modify<H: Host>(&mut self, _host: &mut H, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        if mask.contains(QpAttrMask::RQ_PSN) {
            self.responder.start(attr.rq_psn);
        }
        if mask.contains(QpAttrMask::STATE) {
            self.ctx.state = attr.qp_state;
        }
        Ok(())
    }

    /// All attributes as they are now (`cap` is the host's to fill).
    pub fn query(&self) -> QpAttr {
        let mut attr = self.ctx.attr;
        attr.qp_state = self.ctx.state;
        attr.cur_qp_state = self.ctx.state;
        attr.rq_psn = self.responder.expected_psn();
        attr
    }

    /// Sends at most `budget` packets: READ responses first, then requests.
    pub fn transmit<H: Host>(&mut self, host: &mut H, budget: usize) -> Next {
        let mut budget = budget;
        match self.responder.transmit(&self.ctx, host, &mut budget) {
            Ok(next) => next,
            Err(fatal) => {
                self.enter_error(host, fatal);
                Next::Ready
            }
        }
    }

    /// Takes a packet that was addressed to this QP.
    pub fn receive<H: Host>(&mut self, host: &mut H, packet: &Incoming<'_>) {
        let Some(admitted) = admission::admit(&self.ctx, host, packet) else { return };
        if packet.is_ce() && admitted.receiver != Receiver::Controller {
            host.count(Counter::EcnMarked, 1);
            self.responder.congestion_experienced(&self.ctx, host, &admitted);
        }
        let outcome = match admitted.receiver {
            Receiver::Responder => self.responder.receive(&self.ctx, host, &admitted),
            Receiver::Completer => {
                host.drop_packet(DropReason::UnexpectedResponse);
                Ok(())
            }
            Receiver::Controller => {
                host.count(Counter::HandledCnps, 1);
                Ok(())
            }
        };
        if let Err(fatal) = outcome {
            self.enter_error(host, fatal);
        }
    }

    /// Ends a batch of received packets: sends the ACK that covers them all.
    pub fn end_of_batch<H: Host>(&mut self, host: &mut H) {
        if let Err(fatal) = self.responder.end_of_batch(&self.ctx, host) {
            self.enter_error(host, fatal);
        }
    }

    /// The next time at which [`QueuePair::on_timer`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.responder.deadline()
    }

    /// Runs what is due: retransmission, RNR wait, give-up.
    pub fn on_timer<H: Host>(&mut self, host: &mut H) {
        self.responder.on_timer(&self.ctx, host);
    }

    /// Goes to ERR from outside the protocol (CQ overrun, an injected fault): the oldest send WQE ends with `status`,
    /// everything else is flushed.
    pub fn fail<H: Host>(&mut self, host: &mut H, _status: WcStatus) {
        self.enter_error(host, Fatal { event: None });
    }

    /// In ERR: flushes what was posted since (each receive and send WQE ends with WR_FLUSH_ERR). The host calls it when
    /// something is posted to a QP in ERR.
    pub fn flush<H: Host>(&mut self, host: &mut H) {
        if self.ctx.state == QpState::Err {
            self.responder.flush(&self.ctx, host);
        }
    }

    fn enter_error<H: Host>(&mut self, host: &mut H, fatal: Fatal) {
        self.ctx.state = QpState::Err;
        if let Some(event) = fatal.event {
            host.event(event);
        }
        self.flush(host);
    }
}
