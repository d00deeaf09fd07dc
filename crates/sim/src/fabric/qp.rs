//! A queue pair of the light host: no payload, but the numbers, the window, the pace and the recovery of the transport, with the congestion controllers
//! that ship. Both ends are here. It sends nothing itself and knows neither ports nor switches.

use super::time::{Ps, Rate, span};
use super::world::Alone;
use scalefabric_transport::congestion::{Control, Controller, NotificationPoint};
use std::collections::VecDeque;

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// The packet number after its last.
    pub end: u32,
    /// Payload of its last packet.
    pub last_payload: u32,
    /// Its index among the messages of the run.
    pub message: u32,
}

/// Which packets beyond a point are there: a bit for each, in a ring that grows.
#[derive(Clone, Debug, Default)]
pub struct Early {
    bits: VecDeque<bool>,
}

impl Early {
    /// The packet `ahead` of the one that is missing is there. False if it was before.
    pub fn set(&mut self, ahead: u32) -> bool {
        let ahead = ahead as usize;
        if self.bits.len() <= ahead {
            self.bits.resize(ahead + 1, false);
        }
        !std::mem::replace(&mut self.bits[ahead], true)
    }

    /// True if the packet `ahead` of the one that is missing is there.
    pub fn has(&self, ahead: u32) -> bool {
        self.bits.get(ahead as usize).copied().unwrap_or(false)
    }

    /// The point moves on by `count` packets.
    pub fn pass(&mut self, count: u32) {
        self.bits.drain(..(count as usize).min(self.bits.len()));
    }

    /// How many at the point are there: moves on beyond them.
    pub fn take_run(&mut self) -> u32 {
        let mut run = 0;
        while self.bits.front() == Some(&true) {
            self.bits.pop_front();
            run += 1;
        }
        run
    }

    /// Packets from the point to the last that is there.
    pub fn span(&self) -> u32 {
        self.bits.len() as u32
    }

    /// Nothing is there.
    pub fn clear(&mut self) {
        self.bits.clear();
    }
}

/// Both ends of a queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Told apart from the QP that had the place before.
    pub generation: u32,
    /// False: the place is free.
    pub open: bool,
    /// Closes when everything is acknowledged.
    pub once: bool,
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Priority of its data.
    pub priority: u8,
    /// What ECMP hashes of it.
    pub entropy: u32,
    /// The lane that it is for; none: a single message.
    pub lane: Option<u32>,
    /// How its messages would travel alone.
    pub alone: Alone,
    /// The controller.
    pub control: Control,
    /// Messages that are not acknowledged.
    pub posted: VecDeque<Posted>,
    /// Packets before it are acknowledged.
    pub acked: u32,
    /// The next packet to send.
    pub next: u32,
    /// The first that was never sent.
    pub fresh: u32,
    /// The first that does not exist yet.
    pub end: u32,
    /// Index in `posted` of the message that holds `next`.
    pub sending: usize,
    /// Payload bytes in flight.
    pub flight: u64,
    /// When its last packet left, and how long that was.
    pub last_sent: Ps,
    /// In bytes on the wire.
    pub last_bytes: u32,
    /// Its place in the host's queue, 0 if it is not there.
    pub ticket: u64,
    /// When that place comes.
    pub due: Ps,
    /// PFC holds it back.
    pub held: bool,
    /// The controller's timer comes then.
    pub timer_at: Ps,
    /// The retransmission timer runs out then.
    pub deadline: Ps,
    /// An event for the retransmission timer is on its way.
    pub deadline_armed: bool,
    /// Timeouts since something was acknowledged.
    pub timeouts: u32,
    /// Packets of it that exist.
    pub packets: u32,
    /// The packet that the receiver awaits.
    pub expected: u32,
    /// Index in `posted` of the message that the receiver is in.
    pub receiving: usize,
    /// Packets since the receiver last answered.
    pub unanswered: u32,
    /// The last NAK was for this packet, at this time.
    pub nak: Option<(u32, Ps)>,
    /// Packets that came early, seen from the receiver …
    pub early: Early,
    /// … and from the sender.
    pub told: Early,
    /// Below it, what is missing was sent again.
    pub repaired: u32,
    /// Packets that are to be sent again, before anything else.
    pub repairs: VecDeque<u32>,
    /// CNPs of the receiver.
    pub notifier: NotificationPoint,
    /// Payload that is acknowledged, since the beginning.
    pub acked_bytes: u64,
}

impl Qp {
    /// An open QP on which nothing was posted.
    pub fn new(generation: u32, from: u32, to: u32, priority: u8, entropy: u32, control: Control) -> Self {
        Self {
            generation,
            open: true,
            once: false,
            from,
            to,
            priority,
            entropy,
            lane: None,
            alone: Alone::default(),
            control,
            posted: VecDeque::new(),
            acked: 0,
            next: 0,
            fresh: 0,
            end: 0,
            sending: 0,
            flight: 0,
            last_sent: Ps::ZERO,
            last_bytes: 0,
            ticket: 0,
            due: Ps::ZERO,
            held: false,
            timer_at: Ps::NEVER,
            deadline: Ps::NEVER,
            deadline_armed: false,
            timeouts: 0,
            packets: 0,
            expected: 0,
            receiving: 0,
            unanswered: 0,
            nak: None,
            early: Early::default(),
            told: Early::default(),
            repaired: 0,
            repairs: VecDeque::new(),
            notifier: NotificationPoint::default(),
            acked_bytes: 0,
        }
    }

    /// Takes over the room that the queues of a closed QP have, so that a flow in its place allocates nothing.
    pub fn take_room_of(&mut self, closed: &mut Self) {
        self.posted = std::mem::take(&mut closed.posted);
        self.repairs = std::mem::take(&mut closed.repairs);
        self.early = std::mem::take(&mut closed.early);
        self.told = std::mem::take(&mut closed.told);
        self.posted.clear();
        self.repairs.clear();
        self.early.clear();
        self.told.clear();
    }

    /// Posts a message of `bytes` (at least one packet).
    pub fn post(&mut self, bytes: u64, mtu: u32, message: u32) {
        let packets = bytes.div_ceil(u64::from(mtu)).max(1);
        let last_payload = (bytes - (packets - 1) * u64::from(mtu)) as u32;
        self.end += packets as u32;
        self.posted.push_back(Posted { end: self.end, last_payload, message });
    }

    /// True if a packet waits to be sent.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.next != self.end || !self.repairs.is_empty()
    }

    /// True if the window, or a limit that is not 0, holds it back. What is sent again is in the flight already.
    #[inline]
    pub fn is_closed(&self, limit: u64) -> bool {
        self.repairs.is_empty() && (self.flight >= self.control.window_bytes() || (limit != 0 && self.flight >= limit))
    }

    /// When the pace lets the next packet go, and a limit of the QP's rate if there is one. `quantised`: the time of a packet is cut to whole nanoseconds, as
    /// ns-3.17 does; controllers do not.
    #[inline]
    pub fn may_send_at(&self, quantised: bool, limit: Option<Rate>) -> Ps {
        let at = self.pace_lets_at(quantised);
        match limit {
            Some(limit) if self.last_bytes > 0 => at.max(self.last_sent + limit.serialise(self.last_bytes)),
            _ => at,
        }
    }

    #[inline]
    fn pace_lets_at(&self, quantised: bool) -> Ps {
        if quantised && self.last_bytes > 0 {
            let time = span(u64::from(self.last_bytes), self.control.rate_bps());
            return self.last_sent + Ps(time.0 / 1_000 * 1_000);
        }
        Ps(self.control.next_send().0)
    }

    /// Payload of the packet `psn`, and whether it is the last of its message. `hint` is an index in `posted` at or before it.
    #[inline]
    pub fn payload(&self, psn: u32, mtu: u32, hint: usize) -> (u32, bool) {
        let mut index = hint;
        while let Some(posted) = self.posted.get(index) {
            if psn < posted.end {
                let last = psn + 1 == posted.end;
                return (if last { posted.last_payload } else { mtu }, last);
            }
            index += 1;
        }
        (mtu, false)
    }

    /// Payload of the packets `from..to`; all of them are posted and not acknowledged.
    pub fn bytes_between(&self, from: u32, to: u32, mtu: u32) -> u64 {
        let mut bytes = u64::from(to - from) * u64::from(mtu);
        for posted in &self.posted {
            if posted.end > to {
                break;
            }
            if posted.end > from {
                bytes -= u64::from(mtu - posted.last_payload);
            }
        }
        bytes
    }

    /// Sends again from the first that is not acknowledged.
    pub fn go_back(&mut self) {
        self.next = self.acked;
        self.sending = 0;
        self.flight = 0;
        self.repairs.clear();
        self.repaired = self.acked;
        self.told.clear();
    }

    /// Everything before `psn` is acknowledged: how many bytes of flight that takes off. Messages that are done go to `done`.
    pub fn acknowledge(&mut self, psn: u32, mtu: u32, done: &mut Vec<u32>) -> u32 {
        let psn = psn.min(self.end);
        if psn <= self.acked {
            return 0;
        }
        let bytes = self.bytes_between(self.acked, psn, mtu);
        self.acked_bytes += bytes;
        let off = if psn >= self.next {
            self.next = psn;
            std::mem::take(&mut self.flight)
        } else {
            let off = bytes.min(self.flight);
            self.flight -= off;
            off
        };
        self.told.pass(psn - self.acked);
        self.acked = psn;
        self.repaired = self.repaired.max(psn);
        while self.repairs.front().is_some_and(|repair| *repair < psn) {
            self.repairs.pop_front();
        }
        while let Some(posted) = self.posted.front().filter(|posted| posted.end <= psn) {
            done.push(posted.message);
            self.posted.pop_front();
            self.sending = self.sending.saturating_sub(1);
            self.receiving = self.receiving.saturating_sub(1);
        }
        self.timeouts = 0;
        u32::try_from(off).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scalefabric_transport::congestion::{Profile, Route};

    fn qp() -> Qp {
        let route = Route { line_rate_bps: 1_000_000_000, base_rtt_ps: 1_000_000, packet_bytes: 1000, hops: 1 };
        Qp::new(0, 0, 1, 3, 0, Profile::None.controller(&route, 0))
    }

    #[test]
    fn messages_are_cut_into_packets_and_counted_back() {
        let mut qp = qp();
        qp.post(2500, 1000, 7);
        qp.post(0, 1000, 8);
        qp.post(1000, 1000, 9);
        assert_eq!(qp.end, 5);
        let payloads: Vec<_> = (0..5).map(|psn| qp.payload(psn, 1000, 0)).collect();
        assert_eq!(payloads, [(1000, false), (1000, false), (500, true), (0, true), (1000, true)]);
        assert_eq!((qp.bytes_between(0, 5, 1000), qp.bytes_between(2, 4, 1000)), (3500, 500));
        (qp.next, qp.flight) = (4, 2500);
        let mut done = Vec::new();
        assert_eq!(qp.acknowledge(1, 1000, &mut done), 1000);
        assert!(done.is_empty());
        assert_eq!(qp.acknowledge(4, 1000, &mut done), 1500);
        assert_eq!((done, qp.flight, qp.acked_bytes), (vec![7, 8], 0, 2500));
    }

    #[test]
    fn an_ack_beyond_where_a_sender_went_back_to_moves_it_on() {
        let mut qp = qp();
        qp.post(10_000, 1000, 0);
        (qp.next, qp.flight) = (8, 8000);
        qp.go_back();
        assert_eq!((qp.next, qp.flight), (0, 0));
        (qp.next, qp.flight) = (1, 1000);
        assert_eq!(qp.acknowledge(5, 1000, &mut Vec::new()), 1000);
        assert_eq!((qp.next, qp.acked, qp.flight), (5, 5, 0));
    }

    #[test]
    fn what_came_early_is_remembered_and_taken() {
        let mut early = Early::default();
        assert!(early.set(2) && early.set(1) && !early.set(2) && !early.has(0) && early.has(1));
        assert_eq!(early.take_run(), 0);
        assert!(early.set(0));
        assert_eq!((early.take_run(), early.span()), (3, 0));
        early.set(5);
        early.pass(3);
        assert!(early.has(2) && early.span() == 3);
    }
}
