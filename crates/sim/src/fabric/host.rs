//! What a host does: sends the packets of its QPs as their controllers allow, and answers what comes. A receiver may be slower than its link; then it
//! has a small buffer and stops the switch by PFC.

use super::model::{Notification, Recovery};
use super::packet::{Kind, NONE, Packet};
use super::port::CONTROL;
use super::time::{Ps, span};
use super::world::{Event, Notice, World};
use scalefabric_transport::congestion::{Controller, Event as Heard, Hop, Loss, Moment, Telemetry};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Buffer of a slow receiver: PAUSE above, RESUME below.
const SLOW_XOFF_BYTES: u64 = 200_000;
const SLOW_XON_BYTES: u64 = 100_000;

/// A host.
pub struct Host {
    /// Its port.
    pub port: u32,
    /// QPs that may send, by when they may; of one moment, whoever came first.
    ready: BinaryHeap<Reverse<(Ps, u64, u32)>>,
    /// A wake-up is on its way for then.
    pub wake: Ps,
    /// QPs that PFC holds back.
    held: Vec<u32>,
    /// What it takes in, if that is less than its link brings.
    slow_bps: u64,
    /// When it will have taken what it has.
    taken_until: Ps,
    /// It has told the switch to stop.
    pausing: bool,
    /// It sends PAUSE whatever comes.
    pub storming: u8,
}

impl Host {
    /// A host at a port.
    pub fn new(port: u32) -> Self {
        Self {
            port,
            ready: BinaryHeap::new(),
            wake: Ps::NEVER,
            held: Vec::new(),
            slow_bps: 0,
            taken_until: Ps::ZERO,
            pausing: false,
            storming: 0,
        }
    }
}

impl World {
    /// A QP may have become able to send: gives it a place among those of its host, or a better one.
    #[inline]
    pub(super) fn offer(&mut self, index: u32) {
        let qp = &mut self.qps[index as usize];
        if qp.held || !qp.has_more() {
            return;
        }
        if qp.is_closed(self.model.host.flight_limit) {
            return;
        }
        let at = qp.may_send_at(self.model.ns3_quantum, self.model.host.qp_rate).max(self.now);
        // A place that comes no later is as good.
        if qp.ticket != 0 && qp.due <= at {
            return;
        }
        self.tickets += 1;
        qp.ticket = self.tickets;
        qp.due = at;
        self.hosts[qp.from as usize].ready.push(Reverse((at, self.tickets, index)));
    }

    /// Sends from a free port of a host: PFC and ACKs first, then the QP whose turn it is.
    pub(super) fn transmit_host(&mut self, index: u32) {
        let node = self.ports[index as usize].node;
        if self.engines.is_some() {
            self.feed_port(index, node);
        }
        let port = &mut self.ports[index as usize];
        if port.waiting != 0
            && let Some(queue) = port.choose(&self.model.switch.schedule, &self.arena)
        {
            let place = port.dequeue(self.now, &self.arena, queue);
            let bytes = self.arena.get(place).bytes;
            self.launch(index, place, bytes);
            self.arm(index, node);
            return;
        }
        let stopped = self.ports[index as usize].stopped();
        while let Some(&Reverse((at, ticket, which))) = self.hosts[node as usize].ready.peek() {
            if self.qps[which as usize].ticket != ticket {
                self.hosts[node as usize].ready.pop();
                continue;
            }
            if at > self.now {
                break;
            }
            self.hosts[node as usize].ready.pop();
            let qp = &mut self.qps[which as usize];
            qp.ticket = 0;
            if stopped & (1 << qp.priority) != 0 {
                qp.held = true;
                self.hosts[node as usize].held.push(which);
                continue;
            }
            if !qp.has_more() || qp.is_closed(self.model.host.flight_limit) {
                continue;
            }
            if qp.may_send_at(self.model.ns3_quantum, self.model.host.qp_rate) > self.now {
                // The rate has fallen since.
                self.offer(which);
                continue;
            }
            self.send(index, which);
            self.offer(which);
            self.arm(index, node);
            return;
        }
        if let Some(&Reverse((at, ..))) = self.hosts[node as usize].ready.peek() {
            self.wake_at(node, at);
        }
    }

    /// After a packet was put on the wire: who comes when it is through?
    #[inline]
    fn arm(&mut self, index: u32, node: u32) {
        let port = &mut self.ports[index as usize];
        if port.armed {
            return;
        }
        let next = self.hosts[node as usize].ready.peek().map(|Reverse((at, ..))| *at);
        if port.waiting != 0 || next.is_some_and(|at| at <= port.busy_until) {
            port.armed = true;
            self.queue.push(port.busy_until, Event::Free { port: index });
        } else if let Some(at) = next {
            self.wake_at(node, at);
        }
    }

    fn wake_at(&mut self, node: u32, at: Ps) {
        let host = &mut self.hosts[node as usize];
        if at < host.wake {
            host.wake = at;
            self.queue.push(at, Event::Wake { host: node });
        }
    }

    /// PFC lets a priority of a host go on.
    pub(super) fn let_go(&mut self, node: u32) {
        let stopped = self.ports[self.hosts[node as usize].port as usize].stopped();
        // The list goes back as it is, so that a pause that ends allocates nothing.
        let mut held = std::mem::take(&mut self.hosts[node as usize].held);
        held.retain(|&which| {
            let qp = &mut self.qps[which as usize];
            if stopped & (1 << qp.priority) != 0 {
                return true;
            }
            qp.held = false;
            self.offer(which);
            self.close_if_done(which);
            false
        });
        self.hosts[node as usize].held = held;
    }

    /// Puts the next packet of a QP on the wire.
    #[inline]
    fn send(&mut self, index: u32, which: u32) {
        let host = &self.model.host;
        let qp = &mut self.qps[which as usize];
        let repair = qp.repairs.pop_front();
        let psn = repair.unwrap_or(qp.next);
        let (payload, last) = qp.payload(psn, host.mtu, if repair.is_some() { 0 } else { qp.sending });
        let again = psn < qp.fresh;
        if repair.is_none() {
            qp.next += 1;
            qp.flight += u64::from(payload);
            if last {
                qp.sending += 1;
            }
            qp.fresh = qp.fresh.max(qp.next);
        }
        qp.packets += 1;
        let bytes = self.model.wire_bytes(payload, self.writing.data_bytes(&self.model.host), self.with_stamp);
        (qp.last_sent, qp.last_bytes) = (self.now, bytes);
        // Under a window each packet asks: a window that shrinks below what is in flight would wait for an answer that nobody owes.
        let windowed = host.flight_limit != 0 || qp.control.window_bytes() != u64::MAX;
        let packet = Packet {
            next: NONE,
            qp: which,
            psn,
            answers: 0,
            to: qp.to,
            entropy: qp.entropy,
            ingress: 0,
            bytes,
            payload,
            sent: self.now,
            kind: Kind::Data,
            priority: qp.priority,
            marked: false,
            wants_ack: last || windowed || again || psn + 1 == qp.end,
            again,
            code: 0,
        };
        if host.timeout.is_some() && qp.deadline == Ps::NEVER {
            self.arm_deadline(which);
        }
        let qp = &mut self.qps[which as usize];
        let flight_bytes = if repair.is_some() { 0 } else { payload };
        qp.control.handle(Moment(self.now.0), Heard::Sent { flight_bytes, wire_bytes: bytes });
        self.counters.data_packets += 1;
        self.counters.resent += u64::from(again);
        let place = self.arena.add(packet);
        self.launch(index, place, bytes);
        self.rearm_timer(which);
    }

    /// The controller may want to be called.
    #[inline]
    fn rearm_timer(&mut self, which: u32) {
        let qp = &mut self.qps[which as usize];
        if let Some(Moment(at)) = qp.control.next_timer() {
            let at = Ps(at).max(self.now);
            if at < qp.timer_at {
                qp.timer_at = at;
                self.queue.push(at, Event::Timer { qp: which, generation: qp.generation });
            }
        }
    }

    /// A controller's timer has come.
    pub(super) fn timer(&mut self, which: u32, generation: u32) {
        let qp = &mut self.qps[which as usize];
        if qp.generation != generation || !qp.open || qp.timer_at > self.now {
            return;
        }
        qp.timer_at = Ps::NEVER;
        // One whose sender has nothing left needs no more increases.
        if qp.posted.is_empty() && qp.once {
            return;
        }
        qp.control.handle(Moment(self.now.0), Heard::Timer);
        self.rearm_timer(which);
        self.offer(which);
        self.transmit_soon(which);
    }

    fn transmit_soon(&mut self, which: u32) {
        let port = self.hosts[self.qps[which as usize].from as usize].port;
        self.transmit(port);
    }

    /// The link of a host is down: what waits in its QPs is not sent, and is given up like what is not answered.
    pub(super) fn watch_cut_off(&mut self, which: u32) {
        let qp = &self.qps[which as usize];
        let port = self.hosts[qp.from as usize].port;
        if qp.open && qp.has_more() && qp.deadline == Ps::NEVER && !self.ports[port as usize].up {
            self.arm_deadline(which);
        }
    }

    fn arm_deadline(&mut self, which: u32) {
        let Some(timeout) = self.model.host.timeout else { return };
        let qp = &mut self.qps[which as usize];
        qp.deadline = self.now + timeout;
        if !qp.deadline_armed {
            qp.deadline_armed = true;
            self.queue.push(qp.deadline, Event::Deadline { qp: which, generation: qp.generation });
        }
    }

    /// The retransmission timer of a QP may have run out.
    pub(super) fn deadline(&mut self, which: u32, generation: u32) {
        let qp = &mut self.qps[which as usize];
        if qp.generation != generation || !qp.open {
            return;
        }
        qp.deadline_armed = false;
        if qp.deadline == Ps::NEVER {
            return;
        }
        if qp.deadline > self.now {
            qp.deadline_armed = true;
            self.queue.push(qp.deadline, Event::Deadline { qp: which, generation });
            return;
        }
        qp.deadline = Ps::NEVER;
        let is_cut_off = !self.ports[self.hosts[qp.from as usize].port as usize].up && qp.has_more();
        if qp.acked == qp.next && !is_cut_off {
            return;
        }
        self.counters.timeouts += 1;
        qp.timeouts += 1;
        if qp.timeouts > self.model.host.retry_cnt {
            self.give_up(which);
            return;
        }
        qp.go_back();
        qp.control.handle(Moment(self.now.0), Heard::Lost(Loss::Timeout));
        self.arm_deadline(which);
        self.rearm_timer(which);
        self.offer(which);
        self.transmit_soon(which);
    }

    /// Retries are used up: what was posted will never be done.
    fn give_up(&mut self, which: u32) {
        let qp = &mut self.qps[which as usize];
        self.counters.given_up += 1;
        self.open -= qp.posted.len() as u64;
        qp.posted.clear();
        qp.repairs.clear();
        (qp.next, qp.acked, qp.fresh, qp.flight) = (qp.end, qp.end, qp.end, 0);
        // Late packets find nothing that they could belong to.
        (qp.sending, qp.receiving, qp.expected) = (0, 0, qp.end);
        qp.early.clear();
        qp.told.clear();
        self.close_if_done(which);
    }

    /// A packet reached a host.
    #[inline]
    pub(super) fn receive(&mut self, node: u32, place: u32) {
        match self.arena.get(place).kind {
            Kind::Data if self.hosts[node as usize].slow_bps != 0 => self.receive_slowly(node, place),
            _ if self.engines.is_some() => self.receive_by_engine(node, place),
            Kind::Data => self.receive_data(node, place),
            Kind::Ack | Kind::Nak => self.receive_ack(place),
            Kind::Cnp => {
                let which = self.arena.get(place).qp;
                self.qps[which as usize].control.handle(Moment(self.now.0), Heard::Cnp);
                self.after_news(which, place);
            }
            Kind::Pause | Kind::Resume => {}
        }
    }

    fn receive_slowly(&mut self, node: u32, place: u32) {
        let bytes = u64::from(self.arena.get(place).bytes);
        let host = &mut self.hosts[node as usize];
        host.taken_until = host.taken_until.max(self.now) + span(bytes, host.slow_bps);
        let waiting = host.taken_until.since(self.now);
        let at = host.taken_until;
        let held = (u128::from(waiting.0) * u128::from(host.slow_bps) / 8_000_000_000_000) as u64;
        self.queue.push(at, Event::Taken { host: node, packet: place });
        if held > SLOW_XOFF_BYTES && !host.pausing {
            host.pausing = true;
            let port = host.port;
            let room = at.since(span(SLOW_XON_BYTES, host.slow_bps));
            self.queue.push(room.max(self.now), Event::Room { host: node });
            let priority = self.arena.get(place).priority;
            self.ingress[port as usize].paused |= 1 << priority;
            self.tell_pause(port, priority, None);
        }
    }

    /// A slow host has taken a packet.
    pub(super) fn take(&mut self, node: u32, place: u32) {
        if self.engines.is_some() {
            self.receive_by_engine(node, place);
        } else {
            self.receive_data(node, place);
        }
    }

    /// A slow host may have room again.
    pub(super) fn room(&mut self, node: u32) {
        let host = &mut self.hosts[node as usize];
        let bps = host.slow_bps;
        if host.pausing && bps != 0 && host.taken_until.since(self.now) > span(SLOW_XON_BYTES, bps) {
            let at = host.taken_until.since(span(SLOW_XON_BYTES, bps));
            self.queue.push(at, Event::Room { host: node });
            return;
        }
        if std::mem::take(&mut host.pausing) {
            let port = host.port;
            let paused = std::mem::take(&mut self.ingress[port as usize].paused);
            for priority in (0..8).filter(|priority| paused & (1 << priority) != 0) {
                self.tell_resume(port, priority);
            }
        }
    }

    /// A host takes in less from now on.
    pub(super) fn slow_down(&mut self, node: u32, bps: u64) {
        self.hosts[node as usize].slow_bps = bps;
        if bps == 0 {
            self.room(node);
        }
    }

    /// A host begins or ends to send PAUSE without reason.
    pub(super) fn storm(&mut self, node: u32, priority: u8, on: bool) {
        let host = &mut self.hosts[node as usize];
        let port = host.port;
        if on {
            host.storming |= 1 << priority;
            self.ingress[port as usize].paused |= 1 << priority;
            self.tell_pause(port, priority, None);
        } else {
            host.storming &= !(1 << priority);
            self.ingress[port as usize].paused &= !(1 << priority);
            self.tell_resume(port, priority);
        }
    }

    /// The responder: what is next is taken, what is not is told.
    #[inline]
    fn receive_data(&mut self, node: u32, place: u32) {
        let (which, psn, payload, marked, wants_ack) = {
            let packet = self.arena.get(place);
            (packet.qp, packet.psn, packet.payload, packet.marked, packet.wants_ack)
        };
        let host = &self.model.host;
        let qp = &mut self.qps[which as usize];
        let before = qp.expected;
        let mut answer = None;
        if psn == qp.expected {
            qp.expected += 1;
            self.counters.delivered_bytes += u64::from(payload);
            let mut filled = 0;
            if let Recovery::Selective { .. } = host.recovery {
                qp.early.pass(1);
                filled = qp.early.take_run();
                qp.expected += filled;
            }
            qp.unanswered += 1;
            // Behind a gap the packet that asked for an answer may have come already.
            if wants_ack || filled > 0 || qp.unanswered >= host.ack_every {
                answer = Some(Kind::Ack);
            }
        } else if psn > qp.expected {
            match host.recovery {
                Recovery::GoBackN => {
                    let tell = match (qp.nak, host.nak_interval) {
                        (Some((last, at)), Some(interval)) => last != qp.expected || self.now.since(at) >= interval,
                        (Some((last, _)), None) => last != qp.expected,
                        (None, _) => true,
                    };
                    if tell {
                        qp.nak = Some((qp.expected, self.now));
                        answer = Some(Kind::Nak);
                    }
                }
                Recovery::Selective { .. } => {
                    if qp.early.set(psn - qp.expected) {
                        self.counters.delivered_bytes += u64::from(payload);
                    }
                    answer = Some(Kind::Ack);
                }
            }
        } else if host.answer_duplicates {
            answer = Some(Kind::Ack);
        }
        if qp.expected != before {
            while let Some(posted) = qp.posted.get(qp.receiving).filter(|posted| posted.end <= qp.expected) {
                self.messages[posted.message as usize].delivered = self.now;
                self.notices.push(Notice::Delivered(posted.message));
                qp.receiving += 1;
            }
        }
        if marked
            && let Notification::Packets { interval } = host.notification
            && qp.notifier.marked(self.now.0, interval.0)
        {
            self.send_cnp(node, which);
        }
        match answer {
            None => self.forget(place),
            Some(kind) => self.answer(node, place, which, kind),
        }
    }

    fn send_cnp(&mut self, node: u32, which: u32) {
        let host = &self.model.host;
        let qp = &mut self.qps[which as usize];
        qp.packets += 1;
        let packet = Packet {
            qp: which,
            to: qp.from,
            entropy: qp.entropy,
            ..Packet::bare(Kind::Cnp, host.cnp_priority, host.ack_bytes, self.now)
        };
        self.counters.cnps += 1;
        let place = self.arena.add(packet);
        self.queue_answer(node, place);
    }

    /// Turns a data packet into its answer, which keeps time stamp, mark and telemetry.
    #[inline]
    fn answer(&mut self, node: u32, place: u32, which: u32, kind: Kind) {
        let host = &self.model.host;
        let qp = &mut self.qps[which as usize];
        qp.unanswered = 0;
        let bytes = host.ack_bytes + self.writing.ack_bytes(host);
        let packet = self.arena.get_mut(place);
        packet.kind = kind;
        packet.answers = packet.psn;
        packet.psn = qp.expected;
        packet.to = qp.from;
        packet.bytes = bytes;
        packet.payload = 0;
        packet.priority = host.ack_priority;
        self.counters.naks += u64::from(kind == Kind::Nak);
        self.queue_answer(node, place);
    }

    #[inline]
    fn queue_answer(&mut self, node: u32, place: u32) {
        let port = self.hosts[node as usize].port;
        let queue = if self.model.host.acks_first { CONTROL } else { usize::from(self.arena.get(place).priority) };
        self.ports[port as usize].enqueue(self.now, &mut self.arena, queue, place);
        self.transmit(port);
    }

    /// The completer: what an ACK or NAK tells.
    #[inline]
    fn receive_ack(&mut self, place: u32) {
        let packet = *self.arena.get(place);
        let which = packet.qp;
        let mtu = self.model.host.mtu;
        let (in_ack, selective) = (self.model.host.notification == Notification::InAck, self.model.host.recovery);
        let now = Moment(self.now.0);
        let mut done = std::mem::take(&mut self.done);
        let qp = &mut self.qps[which as usize];
        let (moved, before) = (packet.psn > qp.acked, qp.acked_bytes);
        let off = qp.acknowledge(packet.psn, mtu, &mut done);
        self.acknowledged += qp.acked_bytes - before;
        if packet.marked && in_ack {
            qp.control.handle(now, Heard::Cnp);
        }
        let rtt_ps = (!packet.again).then(|| self.now.since(packet.sent).0);
        let mut hops = [Hop::default(); super::packet::INT_HOPS];
        let told = self.arena.hops(place);
        for (hop, told) in hops.iter_mut().zip(told) {
            *hop = Hop {
                node: 0,
                rate_bps: u64::from(told.rate_mbps) * 1_000_000,
                at_ps: told.at.0,
                tx_bytes: told.tx_bytes,
                queue_bytes: u64::from(told.queue_bytes),
            };
        }
        let telemetry = match (told.len(), packet.code) {
            (0, 0) => Telemetry::None,
            (0, code) => Telemetry::Pint(code),
            (count, _) => Telemetry::Hops(&hops[..count]),
        };
        qp.control.handle(now, Heard::Ack { flight_bytes: off, rtt_ps, ecn_echo: packet.marked, telemetry });
        if packet.kind == Kind::Nak && qp.next > qp.acked {
            qp.go_back();
            qp.control.handle(now, Heard::Lost(Loss::Nak));
        }
        if let Recovery::Selective { reorder } = selective {
            self.repair(which, packet.answers, reorder);
        }
        let qp = &mut self.qps[which as usize];
        if moved {
            qp.deadline = Ps::NEVER;
            if qp.acked != qp.next {
                self.arm_deadline(which);
            }
        }
        for message in done.drain(..) {
            self.messages[message as usize].acked = self.now;
            self.open -= 1;
            self.notices.push(Notice::Acked(message));
        }
        self.done = done;
        self.after_news(which, place);
    }

    /// Selective repeat: a packet is there; what is missing `reorder` before it is sent again, once until it is acknowledged or the timer runs out.
    fn repair(&mut self, which: u32, answers: u32, reorder: u32) {
        let qp = &mut self.qps[which as usize];
        if answers < qp.acked || answers >= qp.next {
            return;
        }
        qp.told.set(answers - qp.acked);
        let known = qp.acked + qp.told.span();
        let surely = known.saturating_sub(reorder);
        let mut missing = 0;
        for psn in qp.repaired.max(qp.acked)..surely {
            if !qp.told.has(psn - qp.acked) {
                qp.repairs.push_back(psn);
                missing += 1;
            }
        }
        qp.repaired = qp.repaired.max(surely);
        if missing > 0 {
            // The flight stays; controllers hear of a loss as of a NAK only when all goes back, so they are told by a mark instead.
            qp.control.handle(Moment(self.now.0), Heard::Cnp);
        }
    }

    /// A controller has heard something: timers, places and the packet that brought it.
    #[inline]
    fn after_news(&mut self, which: u32, place: u32) {
        self.rearm_timer(which);
        self.offer(which);
        let from = self.qps[which as usize].from;
        self.forget(place);
        self.transmit(self.hosts[from as usize].port);
    }
}
