//! Steps 3 to 5 of the walk: the requester takes WQEs in order and sends their packets, as many as fence, READ limit,
//! credits, window and pace allow; it keeps the timers that make a lost packet come again (clauses 9.7.3 to 9.7.7, 10.8).
//!
//! Nothing is remembered of a packet or a WQE in flight: two cursors into the send queue say what is acknowledged and
//! what is sent, and a packet can be made again from its number. Going back is setting one cursor to the other. The
//! completer ([`crate::completer`]) moves the first cursor.

mod ack_request;
pub(crate) mod control;
pub(crate) mod direct;
mod pacing;
mod retry;
mod run;
pub(crate) mod segment;
mod shown;

use alloc::boxed::Box;

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{QpState, QpType, SendFlags, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use scalefabric_wire::{PKey, Psn, Qpn, RKey};

use crate::congestion::{Event, int};
use crate::context::{Context, Fatal};
use crate::counter::Counter;
use crate::host::{EmitError, Host, SendWqe, WqeOp};
use crate::queue_pair::Next;
use crate::time::Time;

use ack_request::{AckRequest, Occasion};
use control::{Controlled, Permission};
use direct::Passed;
use pacing::Pacer;
use retry::Retry;
use segment::{Kind, Segment};

/// A place in the send queue: the WQE, how many of its packets lie before, and the PSN of the one that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Cursor {
    pub wqe: u32,
    pub packet: u32,
    pub psn: Psn,
}

impl Cursor {
    /// Moves over `count` packets of a WQE that has `total`.
    pub fn pass(&mut self, count: u32, total: u32) {
        self.psn = self.psn.add(count);
        self.packet += count;
        if self.packet >= total {
            self.wqe = self.wqe.wrapping_add(1);
            self.packet = 0;
        }
    }

    /// True if `self` lies before `other`.
    pub fn is_before(&self, other: &Self) -> bool {
        (self.wqe.wrapping_sub(other.wqe) as i32, self.packet) < (0, other.packet)
    }
}

/// Why the send queue stops. The WQE at fault is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The QP goes to ERR.
    Error(Fatal),
    /// UC and UD: the QP goes to SQE; receiving goes on (clause 10.3.1.6).
    SendQueueError,
}

/// What the READ at the completer's cursor has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadProgress {
    /// A FIRST or MIDDLE came: MIDDLE or LAST must follow.
    pub continuing: bool,
    /// It was asked for again in the middle: FIRST or ONLY may come where MIDDLE or LAST would, and late ones the other
    /// way round.
    pub asked_again: bool,
}

/// The send side of one QP.
#[derive(Debug)]
pub struct Requester {
    /// Everything before is complete or acknowledged.
    pub(crate) acked: Cursor,
    /// Everything before is sent.
    pub(crate) sending: Cursor,
    /// The first WQE that was never begun. `sending` may lie before it after going back.
    pub(crate) begun: u32,
    /// The first PSN that was never sent.
    pub(crate) max_psn: Psn,
    /// The WQE at `sending`, if it was read.
    head: Option<SendWqe>,
    /// The WQE at `acked`, if it was read.
    oldest: Option<SendWqe>,
    /// Cost of what lies between the cursors.
    pub(crate) inflight: u32,
    /// READ requests and atomics between the cursors.
    pub(crate) rd_outstanding: u32,
    /// Index of the first WQE for which the peer has no receive posted, if it counts credits (clause 9.7.7.2). A WQE
    /// takes the place of its SSN here: those that never leave only make the limit tighter.
    pub(crate) credit_limit: Option<u32>,
    /// A WQE that failed here while others before it still wait for the peer: it completes when its turn comes.
    pub(crate) failed: Option<(u32, WcStatus)>,
    /// In SQD, and what was begun is not yet complete.
    pub(crate) draining: bool,
    /// An implied NAK has made us go back; more of the kind mean the same loss until something is acknowledged.
    pub(crate) recovering: bool,
    /// A sequence NAK has made us go back, and nothing was acknowledged since.
    pub(crate) nak_taken: bool,
    /// The `acked` cursor moved since [`Requester::settle`] last looked.
    pub(crate) moved: bool,
    pub(crate) read: ReadProgress,
    pub(crate) retry: Retry,
    /// With a controller: a packet that asked for an answer, not sent before, and when it left.
    pub(crate) rtt_probe: Option<(Psn, Time)>,
    /// The congestion controller; most QPs have none.
    pub(crate) control: Option<Box<Controlled>>,
    /// PSNs that the requests would have taken which the host has executed without packets.
    pub(crate) executed_psns: u32,
    /// The WQE that the host is executing in parts, and how many of its bytes are done.
    direct: Option<(u32, u32)>,
    /// Weight of the one-sided requests that were begun as packets one behind the other, since something else was.
    one_sided: u32,
    /// How often a loss was found, by a sequence NAK, by a response that came too early, or by the timer.
    pub(crate) losses: u64,
    /// The next packet waits for room in the window of its destination.
    pub(crate) waits_for_window: bool,
    ack_request: AckRequest,
    pacer: Pacer,
}

/// What keeps the next packet back.
enum Gate {
    Open { nothing_follows: bool },
    Closed(Next),
}

impl Requester {
    /// As in RESET.
    pub(crate) fn new(control: Option<Box<Controlled>>) -> Self {
        Self {
            acked: Cursor::default(),
            sending: Cursor::default(),
            begun: 0,
            max_psn: Psn::new(0),
            head: None,
            oldest: None,
            inflight: 0,
            rd_outstanding: 0,
            credit_limit: None,
            failed: None,
            draining: false,
            recovering: false,
            nak_taken: false,
            moved: false,
            read: ReadProgress::default(),
            retry: Retry::default(),
            rtt_probe: None,
            executed_psns: 0,
            direct: None,
            one_sided: 0,
            losses: 0,
            control,
            waits_for_window: false,
            ack_request: AckRequest::default(),
            pacer: Pacer::default(),
        }
    }

    /// RTR to RTS: the first request carries `sq_psn`.
    pub(crate) fn start(&mut self, ctx: &Context, sq_psn: Psn) {
        self.acked.psn = sq_psn;
        self.sending.psn = sq_psn;
        self.max_psn = sq_psn;
        if let Some(control) = &mut self.control {
            control.restart(ctx.pmtu());
        }
        self.retry.progress(ctx);
    }

    /// The PSN of the next new request, had all gone as packets: `sq_psn` of a query.
    pub(crate) fn next_psn(&self) -> Psn {
        self.max_psn.add(self.executed_psns)
    }

    /// True if everything that was begun is complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.acked.wqe == self.begun
    }

    /// Sends requests, at most `budget`, which it counts down.
    pub(crate) fn transmit<H: Host>(&mut self, ctx: &Context, host: &mut H, budget: &mut usize) -> Result<Next, Stop> {
        self.waits_for_window = false;
        loop {
            if let Err(error) = self.send_run(ctx, host, budget)
                && let Some(next) = self.not_emitted(ctx, host, error)?
            {
                return Ok(next);
            }
            if !self.may_go_on(ctx) {
                return Ok(Next::Idle);
            }
            if let Some(until) = self.retry.rnr_until {
                if host.now() < until {
                    return Ok(Next::At(until));
                }
                self.retry.rnr_until = None;
            }
            let Some(wqe) = self.head(host) else { return Ok(Next::Idle) };
            let fresh = self.sending.wqe == self.begun;
            if fresh {
                let datagram_bytes = match ctx.qp_type {
                    QpType::Ud => host.active_mtu(ctx.attr.port_num).bytes(),
                    _ => u32::MAX,
                };
                if let Err(status) = segment::check(ctx, &wqe, datagram_bytes) {
                    self.fail_here(ctx, host, wqe.index, status)?;
                    continue;
                }
                if self.is_fenced(&wqe) {
                    return Ok(Next::Idle);
                }
            }
            if wqe.op.completion() == Kind::Local {
                if *budget == 0 {
                    return Ok(Next::Ready);
                }
                *budget -= 1;
                self.pass_local(ctx, host, &wqe, fresh)?;
                continue;
            }
            if fresh && self.may_go_directly(ctx, &wqe) {
                match self.go_directly(ctx, host, &wqe, budget)? {
                    Passed::Whole => continue,
                    Passed::Part => return Ok(Next::Ready),
                    Passed::Not => {}
                }
            } else if fresh && self.waits_to_go_directly(ctx, host, &wqe) {
                return Ok(Next::Idle);
            }
            let pkey = ctx.pkey(host).unwrap_or(PKey(0));
            let stride = self.read_stride(ctx);
            let Some(mut segment) = segment::segment(ctx, &wqe, pkey, self.sending.packet, self.sending.psn, stride)
            else {
                self.fail_here(ctx, host, wqe.index, WcStatus::LocQpOpErr)?;
                continue;
            };
            let nothing_follows = match self.gate(ctx, host, &wqe, &segment) {
                Gate::Open { nothing_follows } => nothing_follows,
                Gate::Closed(next) => return Ok(next),
            };
            if *budget == 0 {
                return Ok(Next::Ready);
            }
            let ack_req = ctx.is_reliable()
                && self.ack_request.decide(Occasion {
                    ends_message: segment.last,
                    nothing_follows,
                    interval: ctx.config.ack_req_interval,
                });
            segment.outgoing.headers.bth.ack_req = ack_req;
            let with_room = self.wants_trailer(ctx, &wqe);
            let emitted = if with_room {
                host.emit_trailed(&segment.outgoing, segment.payload, &int::ROOM)
            } else {
                host.emit(&segment.outgoing, segment.payload)
            };
            match emitted {
                Ok(()) => {
                    *budget -= 1;
                    if let (true, Some(control)) = (with_room, &mut self.control) {
                        control.leaves_with_room(self.sending.psn);
                    }
                    self.sent(ctx, host, &wqe, &segment, ack_req);
                }
                Err(error) => {
                    if let Some(next) = self.not_emitted(ctx, host, error)? {
                        return Ok(next);
                    }
                }
            }
        }
    }

    /// The packet at `sending` did not leave: what to wait for, or its WQE has failed.
    fn not_emitted<H: Host>(&mut self, ctx: &Context, host: &mut H, error: EmitError) -> Result<Option<Next>, Stop> {
        let status = match error {
            EmitError::Blocked => return Ok(Some(Next::Blocked)),
            EmitError::Local(_) | EmitError::Access(_) => WcStatus::LocProtErr,
            EmitError::Status(status) => status,
        };
        self.fail_here(ctx, host, self.sending.wqe, status)?;
        Ok(None)
    }

    /// Whether switches shall write on this packet, and the peer send it back, or on the responses to this READ: a controller learns from that.
    #[inline]
    fn wants_trailer(&self, ctx: &Context, wqe: &SendWqe) -> bool {
        self.control.as_ref().is_some_and(|control| {
            ctx.telemetry && control.wants_telemetry() && matches!(wqe.op.completion(), Kind::Posted | Kind::Read)
        })
    }

    /// State, drain and a WQE that failed: whether the packet at `sending` may leave at all.
    fn may_go_on(&self, ctx: &Context) -> bool {
        let by_state = match ctx.state {
            QpState::Rts => true,
            // What was begun is finished; nothing is begun (clause 10.3.1.5).
            QpState::Sqd => self.sending.wqe != self.begun,
            _ => false,
        };
        by_state && self.failed.is_none_or(|(index, _)| index != self.sending.wqe)
    }

    fn head<H: Host>(&mut self, host: &mut H) -> Option<SendWqe> {
        if self.head.is_none_or(|w| w.index != self.sending.wqe) {
            self.head = host.send_wqe(self.sending.wqe);
        }
        self.head
    }

    /// The WQE at `acked`.
    pub(crate) fn oldest<H: Host>(&mut self, host: &mut H) -> Option<SendWqe> {
        if self.oldest.is_none_or(|w| w.index != self.acked.wqe) {
            self.oldest = host.send_wqe(self.acked.wqe);
        }
        self.oldest
    }

    /// The fence (clause 10.8.3.3): READs and atomics before must be complete; before a LOCAL_INV everything.
    fn is_fenced(&self, wqe: &SendWqe) -> bool {
        if !wqe.flags.contains(SendFlags::FENCE) {
            return false;
        }
        match wqe.op {
            WqeOp::LocalInv { .. } => self.acked.wqe != wqe.index,
            _ => self.rd_outstanding > 0,
        }
    }

    /// Packets that one READ request asks for, at most: half the window, so that the next part is on its way while this
    /// one arrives; and well below half the PSNs, which may be outstanding together (clause 9.7.2).
    pub(crate) fn read_stride(&self, ctx: &Context) -> u32 {
        // A path MTU is a power of two, and this runs for every packet.
        let half = (ctx.config.max_inflight_bytes >> (ctx.pmtu().trailing_zeros() + 1)).clamp(1, Psn::MODULUS / 4);
        if self.control.is_some() { half.min(control::READ_STRIDE) } else { half }
    }

    /// Bytes under way that come back, by an ACK or a timer; 0 without a timer, where they may never.
    #[inline]
    pub(crate) fn counted(&self, ctx: &Context) -> u32 {
        if ctx.attr.timeout == 0 { 0 } else { self.inflight }
    }

    fn gate<H: Host>(&mut self, ctx: &Context, host: &H, wqe: &SendWqe, segment: &Segment) -> Gate {
        let now = host.now();
        let idle = Gate::Closed(Next::Idle);
        let mut nothing_follows = false;
        if ctx.is_reliable() {
            let rule = wqe.op.kind().rule();
            if rule.rd_atomic && self.rd_outstanding >= u32::from(ctx.attr.max_rd_atomic) {
                return idle;
            }
            let outstanding = self.packets_under_way();
            if outstanding + segment.psns >= Psn::MODULUS / 2 {
                return idle;
            }
            // Beyond the credits one packet may go, to find out (clause 9.7.7.2.3); when it is acknowledged, its message
            // has its receive.
            let beyond = |limit: u32| (wqe.index.wrapping_sub(limit) as i32) >= 0;
            let limited = rule.consumes_receive
                && self.credit_limit.is_some_and(beyond)
                && !(self.acked.wqe == wqe.index && self.acked.packet > 0);
            if limited && outstanding > 0 {
                return idle;
            }
            let window = u64::from(ctx.config.max_inflight_bytes);
            let after = u64::from(self.inflight) + u64::from(segment.cost);
            if self.inflight > 0 && after > window {
                return idle;
            }
            let shared = host.window();
            if self.counted(ctx) >= shared {
                self.waits_for_window = true;
                return idle;
            }
            nothing_follows = limited
                || after + u64::from(segment.cost) > window
                || is_tight(ctx, shared)
                || after >= u64::from(shared);
        }
        let bytes = segment.cost;
        let rate = rate(ctx, wqe);
        if pacing::is_slow(rate, bytes, ctx) {
            nothing_follows = true;
        }
        let at = self.pacer.next_send(rate);
        if at > now {
            return Gate::Closed(Next::At(at));
        }
        if let Some(control) = &mut self.control {
            let inflight = if ctx.is_reliable() { self.inflight } else { 0 };
            match control.permission(now, inflight, bytes, ctx.config.ack_req_interval) {
                Permission::Granted { ask } => nothing_follows |= ask,
                // A window that has shrunk below what is under way waits for an answer. If none of that has asked for one, nobody owes it: one packet
                // more goes and asks, or only the retransmission timer would end the silence.
                Permission::WindowFull => {
                    let outstanding = self.packets_under_way();
                    if self.rd_outstanding > 0 || self.ack_request.is_owed(outstanding) {
                        return idle;
                    }
                    nothing_follows = true;
                }
                Permission::NotBefore(at) => return Gate::Closed(Next::At(at)),
            }
        }
        Gate::Open { nothing_follows }
    }

    /// Packets that left and are not acknowledged.
    #[inline]
    pub(crate) fn packets_under_way(&self) -> u32 {
        self.sending.psn.sub(self.acked.psn.get()).get()
    }

    /// A packet left.
    fn sent<H: Host>(&mut self, ctx: &Context, host: &mut H, wqe: &SendWqe, segment: &Segment, ack_req: bool) {
        let now = host.now();
        let psn = self.sending.psn;
        let again = psn.is_before(self.max_psn);
        if wqe.op.completion() == Kind::Read && !self.sending.packet.is_multiple_of(self.read_stride(ctx)) {
            self.read.asked_again = true;
        }
        if self.sending.wqe == self.begun {
            self.begun = self.begun.wrapping_add(1);
            self.begun_as_packets(wqe);
        }
        self.sending.pass(segment.psns, segment::packets(wqe, ctx.packet_bytes()));
        if self.max_psn.is_before(self.sending.psn) {
            self.max_psn = self.sending.psn;
        }
        self.pacer.sent(now, segment.cost, rate(ctx, wqe));
        if let Some(control) = &mut self.control {
            let flight_bytes = if ctx.is_reliable() { segment.cost } else { 0 };
            control.handle(now, Event::Sent { flight_bytes, wire_bytes: segment.cost });
        }
        if !ctx.is_reliable() {
            self.acked = self.sending;
            if segment.last {
                self.complete(ctx, host, wqe, WcStatus::Success);
                host.retire_sends(self.acked.wqe);
                self.check_drained(ctx, host);
            }
            return;
        }
        self.ack_request.sent(ack_req);
        if again {
            host.count(Counter::RetransmittedPackets, 1);
        } else if self.control.is_some() && self.rtt_probe.is_none() {
            let answered_at_once = match wqe.op.completion() {
                Kind::Posted => ack_req,
                Kind::Read => true,
                Kind::Atomic | Kind::Answered | Kind::Local => false,
            };
            if answered_at_once {
                self.rtt_probe = Some((psn, now));
            }
        }
        self.inflight = self.inflight.saturating_add(segment.cost);
        self.rd_outstanding += u32::from(wqe.op.kind().rule().rd_atomic);
        self.retry.arm(ctx, now);
    }

    /// Executes a WQE that never leaves, once, and passes it.
    fn pass_local<H: Host>(&mut self, ctx: &Context, host: &mut H, wqe: &SendWqe, fresh: bool) -> Result<(), Stop> {
        if fresh {
            let done = match wqe.op {
                WqeOp::LocalInv { rkey } => host.local_invalidate(rkey),
                _ => host.bind_mw(wqe.index),
            };
            if let Err(status) = done {
                return self.fail_here(ctx, host, wqe.index, status);
            }
            self.begun = self.begun.wrapping_add(1);
        }
        self.sending.pass(0, 0);
        self.retire_local(ctx, host);
        host.retire_sends(self.acked.wqe);
        self.check_drained(ctx, host);
        Ok(())
    }

    /// A WQE cannot be sent. It completes with `status` when everything before it is complete: completions come in order
    /// (clause 10.8.5.1).
    fn fail_here<H: Host>(&mut self, ctx: &Context, host: &mut H, index: u32, status: WcStatus) -> Result<(), Stop> {
        self.failed = Some((index, status));
        self.check_failed(ctx, host)
    }

    /// If it is the turn of the WQE that failed: the end.
    pub(crate) fn check_failed<H: Host>(&mut self, ctx: &Context, host: &mut H) -> Result<(), Stop> {
        match self.failed {
            Some((index, status)) if index == self.acked.wqe => Err(self.fail_oldest(ctx, host, status)),
            _ => Ok(()),
        }
    }

    /// Ends the oldest WQE with `status`; says where the QP goes.
    pub(crate) fn fail_oldest<H: Host>(&mut self, ctx: &Context, host: &mut H, status: WcStatus) -> Stop {
        if let Some(wqe) = self.oldest(host) {
            self.complete(ctx, host, &wqe, status);
            self.acked.wqe = self.acked.wqe.wrapping_add(1);
            self.acked.packet = 0;
            host.retire_sends(self.acked.wqe);
        }
        if ctx.is_reliable() { Stop::Error(Fatal { event: None }) } else { Stop::SendQueueError }
    }

    /// Ends everything in the send queue with WR_FLUSH_ERR, in order; nothing is in flight any more. Also for what was
    /// posted since the last time.
    pub(crate) fn flush<H: Host>(&mut self, ctx: &Context, host: &mut H) {
        let before = self.acked.wqe;
        while let Some(wqe) = self.oldest(host) {
            self.complete(ctx, host, &wqe, WcStatus::WrFlushErr);
            self.acked.wqe = self.acked.wqe.wrapping_add(1);
        }
        if self.acked.wqe != before {
            host.retire_sends(self.acked.wqe);
        }
        // A UC peer sees the message broken off: the next one starts at the next PSN.
        self.acked.packet = 0;
        self.acked.psn = self.max_psn;
        self.sending = self.acked;
        self.begun = self.acked.wqe;
        self.failed = None;
        self.draining = false;
        self.nothing_in_flight();
        self.retry.stop();
    }

    /// Places the completion of a WQE: always for an error, else if it was asked for.
    pub(crate) fn complete<H: Host>(&mut self, ctx: &Context, host: &mut H, wqe: &SendWqe, status: WcStatus) {
        if status != WcStatus::Success || wqe.flags.contains(SendFlags::SIGNALED) {
            // First the ring space, then the completion: who sees it may post at once into a queue that was full.
            host.retire_sends(wqe.index.wrapping_add(1));
            Self::report(ctx, host, wqe, status);
        }
    }

    /// The same for a request that has no place in the ring.
    #[inline(always)]
    fn report<H: Host>(ctx: &Context, host: &mut H, wqe: &SendWqe, status: WcStatus) {
        match status {
            WcStatus::Success if !wqe.flags.contains(SendFlags::SIGNALED) => return,
            WcStatus::Success => {}
            WcStatus::WrFlushErr => host.count(Counter::CqeFlushErrors, 1),
            _ => host.count(Counter::CqeErrors, 1),
        }
        let opcode = wqe.op.kind().rule().completes_as;
        let byte_len = match opcode {
            WcOpcode::RdmaRead => wqe.length,
            WcOpcode::CompSwap | WcOpcode::FetchAdd => 8,
            _ => 0,
        };
        host.complete_send(&WorkCompletion {
            wr_id: wqe.wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: if status == WcStatus::Success { byte_len } else { 0 },
            imm: 0,
            invalidated_rkey: RKey(0),
            qp_num: ctx.qpn,
            src_qp: Qpn::new(0),
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
            timestamp_ns: 0,
        });
    }

    /// Goes back: what is not acknowledged is sent again (clause 9.7.5.1.4).
    pub(crate) fn go_back(&mut self) {
        self.sending = self.acked;
        self.nothing_in_flight();
    }

    /// The flight is empty, or given up.
    pub(crate) fn nothing_in_flight(&mut self) {
        self.inflight = 0;
        self.rd_outstanding = 0;
        self.rtt_probe = None;
        self.ack_request = AckRequest::default();
        self.retry.disarm();
    }

    /// In SQD: tells when what was begun is complete (clause 10.3.1.5).
    pub(crate) fn check_drained<H: Host>(&mut self, ctx: &Context, host: &mut H) {
        if self.draining && self.is_drained() {
            self.draining = false;
            if ctx.attr.en_sqd_async_notify {
                host.event(EventType::SqDrained);
            }
        }
    }
}

/// Whether others have so much under way to the same destination that the QP cannot fill its own window. Then each packet asks for an ACK, since
/// any may be the last one for a while, and what it has under way keeps others back.
#[inline]
fn is_tight(ctx: &Context, shared: u32) -> bool {
    shared < ctx.config.max_inflight_bytes
}

/// The rate that limits a WQE's packets, kb/s; 0 for none.
fn rate(ctx: &Context, wqe: &SendWqe) -> u32 {
    let path = match (ctx.qp_type, &wqe.ud) {
        (QpType::Ud, Some((av, ..))) => av.static_rate,
        _ => ctx.attr.ah_attr.static_rate,
    };
    if ctx.attr.rate_limit | u32::from(path) == 0 { 0 } else { pacing::rate_kbps(ctx.attr.rate_limit, path) }
}
