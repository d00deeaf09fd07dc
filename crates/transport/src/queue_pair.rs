//! One queue pair's protocol: the face that `nic` and the tests see. It holds what requester, responder and completer
//! share (type, number, state, attributes) and hands each call to the part that owns it. What `modify` does stands in
//! `modify.rs`.

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{CongestionState, QpAttr, QpState, QpType, Qpn, WcStatus};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Operation, Position};

use crate::admission::{self, Receiver};
use crate::congestion::{Controller, Event, Invalid, Profile, Route};
use crate::context::{Context, Fatal};
use crate::counter::Counter;
use crate::host::{Direct, Host, Incoming, SendWqe};
use crate::migration;
use crate::requester::control::Controlled;
use crate::requester::{Requester, Stop, segment};
use crate::responder::{Acks, Alike, Cnps, Responder};
use crate::time::Time;

/// What a device decides for its QPs, beyond their attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes a requester may have unacknowledged. Default 2 MiB. Too small: idle between ACKs; too large: the peer's
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
    /// Whether this side reads telemetry trailers, sends back what they say, and tells the peer so. Default false. True needs
    /// room behind each packet ([`crate::congestion::int::LEN`]).
    pub telemetry: bool,
    /// The smallest `timeout` code that is used: one below it counts as it. Default 0: each as it is. Some NICs take
    /// none below 12 or 16 (17 ms, 268 ms).
    pub least_timeout: u8,
    /// What the ACK timer takes, in times of what its code says. Default 1; the standard allows up to 4 (clause 9.7.6.1.3).
    pub timeout_multiple: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_inflight_bytes: 2 << 20,
            ack_req_interval: 16,
            advertise_credits: true,
            cnp_interval_ns: 4_000,
            acks: Acks::Coalesced,
            cnps: Cnps::Paced,
            telemetry: false,
            least_timeout: 0,
            timeout_multiple: 1,
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

impl Next {
    /// What two parts of one QP wait for, together.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Blocked, _) | (_, Self::Blocked) => Self::Blocked,
            (Self::Ready, _) | (_, Self::Ready) => Self::Ready,
            (Self::At(a), Self::At(b)) => Self::At(a.min(b)),
            (Self::At(a), Self::Idle) | (Self::Idle, Self::At(a)) => Self::At(a),
            (Self::Idle, Self::Idle) => Self::Idle,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    pub(crate) ctx: Context,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// The last packet of one of these kinds passed admission, and those like it take the short way. Forgotten when attributes or state
    /// change.
    pub(crate) alike: Option<Kindred>,
}

/// Packets that come in trains and take the short way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kindred {
    /// WRITEs at this place of their message.
    Write(Position),
    /// READ responses MIDDLE.
    ReadMiddle,
}

impl QueuePair {
    /// A QP in RESET.
    pub fn new(qp_type: QpType, qpn: Qpn, config: Config) -> Self {
        Self {
            ctx: Context::new(qp_type, qpn, config),
            requester: Requester::new(None),
            responder: Responder::new(),
            alike: None,
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

    /// How often the requester found that something was lost, since RESET. A peer without a receive (RNR) is no loss.
    pub fn losses(&self) -> u64 {
        self.requester.losses
    }

    /// Gives the QP a congestion controller, or with [`Profile::None`] takes it away, before it leaves INIT: parts of READs in
    /// flight depend on it. `burst_bytes` is what a sender whose turns come late may make up for at once. The path MTU counts,
    /// and not the route's `packet_bytes`, from RTS on. The QP keeps it through RESET, and begins at line rate again.
    ///
    /// A controller that learns from telemetry becomes `fallback` when the peer or the network brings none.
    pub fn set_congestion(
        &mut self,
        profile: &Profile,
        fallback: &Profile,
        route: &Route,
        burst_bytes: u64,
    ) -> Result<(), Invalid> {
        if !matches!(self.ctx.state, QpState::Reset | QpState::Init) {
            return Err(Invalid(alloc::format!(
                "congestion control is chosen before RTR, and the QP is in {:?}: choose it in RESET or INIT",
                self.ctx.state
            )));
        }
        if self.ctx.qp_type == QpType::Ud && *profile != Profile::None {
            return Err(Invalid("a UD QP has no peer that could tell it of congestion: it takes no controller".into()));
        }
        profile.check(route)?;
        fallback.check(route)?;
        // Without acknowledges nobody brings telemetry back; marks are answered with CNPs all the same.
        let blind = profile.needs_telemetry() && !self.ctx.is_reliable();
        let profile = if blind { fallback } else { profile };
        self.requester.control = Controlled::new(profile, fallback, route, burst_bytes);
        let other = if profile.needs_telemetry() { fallback.cnp_interval_ns() } else { None };
        if let Some(interval) = profile.cnp_interval_ns().or(other) {
            self.ctx.config.cnp_interval_ns = interval;
        }
        Ok(())
    }

    /// Its congestion controller as it stands; `None` without one.
    pub fn congestion(&self) -> Option<CongestionState> {
        let control = self.requester.control.as_ref()?;
        let controller = control.controller();
        Some(CongestionState {
            algorithm: control.profile().algorithm(),
            rate_bps: controller.rate_bps(),
            window_bytes: controller.window_bytes(),
        })
    }

    /// All attributes as they are now (`cap` is the host's to fill). After a migration the path in use is `ah_attr`, and
    /// the one that was left is `alt_ah_attr`.
    pub fn query(&self) -> QpAttr {
        let mut attr = self.ctx.attr;
        attr.qp_state = self.ctx.state;
        attr.cur_qp_state = self.ctx.state;
        attr.sq_draining = self.requester.draining;
        attr.sq_psn = self.requester.next_psn();
        attr.rq_psn = self.responder.expected_psn();
        attr
    }

    /// Sends at most `budget` packets: answers first, but never so many that requests starve.
    pub fn transmit<H: Host>(&mut self, host: &mut H, mut budget: usize) -> Next {
        self.transmit_before_ack(host, &mut budget, false)
    }

    /// The same, and counts the budget down; with `hold_ack` a plain ACK is kept back for [`QueuePair::end_of_batch`], which must follow. So requests
    /// leave before it, and a short ACK can close their train.
    pub fn transmit_before_ack<H: Host>(&mut self, host: &mut H, budget: &mut usize, hold_ack: bool) -> Next {
        // A doorbell on a QP in ERR or SQE: what was posted is flushed.
        self.flush(host);
        let mut answers = budget.div_ceil(2);
        *budget -= answers;
        let mut next = self.transmit_answers(host, &mut answers, hold_ack);
        *budget += answers;
        if next == Next::Blocked {
            return next;
        }
        let requests = match self.requester.transmit(&self.ctx, host, budget) {
            Ok(requests) => requests,
            Err(stop) => {
                self.stop(host, stop);
                Next::Idle
            }
        };
        if next == Next::Ready && *budget > 0 && requests != Next::Blocked {
            next = self.transmit_answers(host, budget, hold_ack);
        }
        next.and(requests)
    }

    fn transmit_answers<H: Host>(&mut self, host: &mut H, budget: &mut usize, hold_ack: bool) -> Next {
        let control = self.requester.control.as_deref_mut();
        match self.responder.transmit(&self.ctx, host, budget, hold_ack, control) {
            Ok(next) => next,
            Err(fatal) => {
                self.enter_error(host, fatal.event);
                // The NAK that says why.
                self.responder.transmit(&self.ctx, host, budget, false, None).unwrap_or(Next::Idle)
            }
        }
    }

    /// Lets the host execute what is posted, at most `budget` requests, and sends nothing. False if something is left for
    /// [`QueuePair::transmit`].
    #[inline]
    pub fn transmit_directly<H: Host>(&mut self, host: &mut H, mut budget: usize) -> bool {
        match self.requester.transmit_directly(&self.ctx, host, &mut budget) {
            Ok(all) => all,
            Err(stop) => {
                self.stop(host, stop);
                true
            }
        }
    }

    /// Lets `execute` do a request that is posted and stands in no queue. `posted` is the index that the next WQE of the send queue will have:
    /// nothing may be waiting there. `execute` gets the attributes and the number of the request's PSNs. False if the request has to be queued:
    /// then nothing was done.
    #[inline(always)]
    pub fn execute_unqueued<H: Host>(
        &mut self,
        host: &mut H,
        posted: u32,
        wqe: &SendWqe,
        execute: impl FnOnce(&mut H, &QpAttr, u32) -> Direct,
    ) -> bool {
        match self.requester.execute_unqueued(&self.ctx, host, posted, wqe, execute) {
            Ok(done) => done,
            Err(stop) => {
                self.stop(host, stop);
                true
            }
        }
    }

    /// Whether requests may be executed that are posted and stand in no queue. `posted`: as in [`QueuePair::execute_unqueued`].
    #[inline]
    pub fn may_execute_unqueued(&self, posted: u32) -> bool {
        self.requester.may_execute_unqueued(&self.ctx, posted)
    }

    /// Requests of so many PSNs were executed that stood in no queue: [`QueuePair::may_execute_unqueued`] said so.
    #[inline]
    pub fn executed_unqueued(&mut self, psns: u32) {
        self.requester.executed_psns = self.requester.executed_psns.wrapping_add(psns);
    }

    /// PSNs that a WRITE of `length` bytes takes.
    #[inline]
    pub fn packets_of_write(&self, length: u32) -> u32 {
        segment::packets_of(length, self.ctx.pmtu())
    }

    /// Whether packets have come from its peer since RESET.
    pub fn is_established(&self) -> bool {
        self.responder.is_established()
    }

    /// PSNs that its own requests would have taken which the host executed without packets, since RESET.
    pub fn executed_psns(&self) -> u32 {
        self.requester.executed_psns
    }

    /// Bytes of requests that are under way and come back, by an ACK or a timer; 0 without a timer, where they may never.
    #[inline]
    pub fn bytes_under_way(&self) -> u32 {
        self.requester.counted(&self.ctx)
    }

    /// Packets of requests that left and are not acknowledged; a READ counts for each packet of its answer.
    #[inline]
    pub fn packets_under_way(&self) -> u32 {
        self.requester.packets_under_way()
    }

    /// Whether the peer is owed an ACK and nothing else.
    #[inline]
    pub fn owes_plain_ack(&self) -> bool {
        self.responder.owes_plain_ack()
    }

    /// Whether its next request waits for [`Host::window`]: who sees to it that there is room lets it transmit then.
    #[inline]
    pub fn waits_for_window(&self) -> bool {
        self.requester.waits_for_window
    }

    /// Takes a packet that was addressed to this QP.
    pub fn receive<H: Host>(&mut self, host: &mut H, packet: &Incoming<'_>) {
        let Some(admitted) = admission::admit(&mut self.ctx, host, packet) else { return };
        if admitted.receiver == Receiver::Controller {
            host.count(Counter::HandledCnps, 1);
            if let Some(control) = &mut self.requester.control {
                control.handle(host.now(), Event::Cnp);
            }
            return;
        }
        if admitted.migrate && migration::migrate_automatically(&mut self.ctx, host) {
            self.requester.retry.progress(&self.ctx);
        }
        migration::heard(&mut self.ctx, packet.headers.bth.mig_req);
        if packet.reads_telemetry && self.ctx.config.telemetry {
            self.ctx.telemetry = true;
        }
        if packet.is_ce() {
            host.count(Counter::EcnMarked, 1);
            self.responder.congestion_experienced(&self.ctx, host, &admitted);
        }
        if admitted.receiver == Receiver::Completer {
            if admitted.info.operation == Operation::ReadResponse {
                self.alike = Requester::place_of_middle(&self.ctx, &admitted).then_some(Kindred::ReadMiddle);
            }
            if let Err(stop) = self.requester.receive(&mut self.ctx, host, &admitted) {
                self.stop(host, stop);
            }
            return;
        }
        self.alike = None;
        if let Err(fatal) = self.responder.receive(&self.ctx, host, &admitted) {
            return self.enter_error(host, fatal.event);
        }
        self.alike = Responder::place_of_alike(&self.ctx, &admitted).map(Kindred::Write);
    }

    /// Takes a packet that came by the same port, from and to the same addresses, with the same traffic class and the same first
    /// eight bytes of BTH as the last request or READ response that [`QueuePair::receive`] took, while GIDs and P_Keys are what they were then. False if
    /// it has to go there, too; then nothing has happened.
    #[inline]
    pub fn receive_alike<H: Host>(&mut self, host: &mut H, packet: &Alike<'_>) -> bool {
        match self.alike {
            Some(Kindred::Write(position)) => self.responder.receive_alike(&self.ctx, host, position, packet),
            Some(Kindred::ReadMiddle) => self.requester.receive_middle(&self.ctx, host, packet),
            None => false,
        }
    }

    /// Whether [`QueuePair::receive_alike`] would look at more than the PSN of such a packet.
    #[inline]
    pub fn expects_alike(&self, psn: Psn) -> bool {
        match self.alike {
            Some(Kindred::Write(_)) => self.responder.expected_psn() == psn,
            Some(Kindred::ReadMiddle) => self.requester.acked.psn == psn,
            None => false,
        }
    }

    /// Whether the last request or READ response that [`QueuePair::receive`] took was one of those for which [`QueuePair::receive_alike`] is made. A
    /// change of attributes or state forgets it.
    pub fn takes_alike(&self) -> bool {
        self.alike.is_some()
    }

    /// The index of the send WQE that [`QueuePair::transmit`] would begin or go on with, were there nothing to answer; `None` if it
    /// may have something else to do.
    #[inline]
    pub fn waits_for_wqe(&self) -> Option<u32> {
        let plain =
            self.ctx.state == QpState::Rts && self.requester.control.is_none() && self.responder.owes_ack_at_most();
        plain.then_some(self.requester.sending.wqe)
    }

    /// Ends a batch of received packets: sends the ACK that covers them all. True if [`QueuePair::transmit`] has answers
    /// left to send.
    pub fn end_of_batch<H: Host>(&mut self, host: &mut H) -> bool {
        if let Err(fatal) = self.responder.end_of_batch(&self.ctx, host) {
            self.enter_error(host, fatal.event);
        }
        self.responder.owes()
    }

    /// The next time at which [`QueuePair::on_timer`] has something to do. After it, [`QueuePair::transmit`] may have.
    pub fn deadline(&self) -> Option<Time> {
        match (self.requester.retry.deadline(), self.responder.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Runs what is due: retransmission, RNR wait, give-up. Too early it does nothing.
    pub fn on_timer<H: Host>(&mut self, host: &mut H) {
        self.responder.on_timer(&self.ctx, host);
        if let Err(stop) = self.requester.on_timer(&mut self.ctx, host) {
            self.stop(host, stop);
        }
    }

    /// Goes to ERR from outside the protocol (CQ overrun, an injected fault): the oldest send WQE ends with `status`,
    /// everything else is flushed, and QP_FATAL is raised. In RESET and ERR there is nothing to do.
    pub fn fail<H: Host>(&mut self, host: &mut H, status: WcStatus) {
        if matches!(self.ctx.state, QpState::Reset | QpState::Err) {
            return;
        }
        self.requester.fail_oldest(&self.ctx, host, status);
        self.enter_error(host, Some(EventType::QpFatal));
    }

    /// Goes to ERR for no reason that a WQE could tell (an injected fault): everything is flushed, and QP_FATAL is raised. In
    /// RESET and ERR there is nothing to do.
    pub fn break_down<H: Host>(&mut self, host: &mut H) {
        if !matches!(self.ctx.state, QpState::Reset | QpState::Err) {
            self.enter_error(host, Some(EventType::QpFatal));
        }
    }

    /// In ERR: flushes what was posted since (each receive and send WQE ends with WR_FLUSH_ERR). In SQE: the same for the
    /// send queue. The host calls it, or [`QueuePair::transmit`], when something is posted to a QP in one of these states.
    pub fn flush<H: Host>(&mut self, host: &mut H) {
        if matches!(self.ctx.state, QpState::Err | QpState::Sqe) {
            self.requester.flush(&self.ctx, host);
        }
        if self.ctx.state == QpState::Err {
            self.responder.flush(&self.ctx, host);
        }
    }

    /// Lets the WQE indexes start elsewhere, as after many sends.
    #[cfg(test)]
    pub(crate) fn start_sends_at(&mut self, index: u32) {
        self.requester.acked.wqe = index;
        self.requester.sending.wqe = index;
        self.requester.begun = index;
    }

    fn stop<H: Host>(&mut self, host: &mut H, stop: Stop) {
        match stop {
            Stop::Error(Fatal { event }) => self.enter_error(host, event),
            Stop::SendQueueError => {
                self.ctx.state = QpState::Sqe;
                self.flush(host);
            }
        }
    }

    pub(crate) fn enter_error<H: Host>(&mut self, host: &mut H, event: Option<EventType>) {
        self.ctx.state = QpState::Err;
        self.alike = None;
        if let Some(event) = event {
            host.event(event);
        }
        self.flush(host);
    }
}
