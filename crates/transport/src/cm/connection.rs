//! One side of a connection: the states of figures 131 and 132 of clause 12.9.7, as far as RoCE and Linux use them.
//!
//! A side that has told its consumer of an established connection tells it of the end exactly once, whoever ended it and
//! however. A message that comes twice is answered twice and reported once. Load alternate path (LAP) is refused politely.

use alloc::collections::VecDeque;

use scalefabric_verbs::Qpn;
use scalefabric_wire::cm::{Apr, CmMad, CommId, Drep, Dreq, Lap, Message, Mra, Rej, Rep, Req, Rtu};

use super::repeat::{Due, Repeat};
use super::{CA_ACK_DELAY, MAX_RETRIES, SERVICE_TIMEOUT, about, code_ns, reason, request};
use crate::time::Time;

/// Which side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It sent the REQ.
    Active,
    /// It received the REQ.
    Passive,
}

/// Where a side stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Active: waits for a REP.
    ReqSent,
    /// Active: has a REP, its consumer has not said yet that its QP is ready.
    RepRcvd,
    /// Passive: its consumer has not answered the REQ yet.
    ReqRcvd,
    /// Passive: waits for an RTU.
    RepSent,
    /// Both may send.
    Established,
    /// Waits for a DREP.
    DreqSent,
    /// Over, but late duplicates are still answered.
    Timewait,
    /// Over and forgotten.
    Closed,
}

/// What the consumer is told.
// One of them is large, and it is not kept.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Active: the peer accepts. Bring the QP up, then call [`Connection::establish`].
    Replied {
        /// The REP.
        rep: Rep,
        /// Its attribute modifier (enhanced connection establishment).
        modifier: u32,
    },
    /// Passive: the peer is ready.
    Established,
    /// The peer, or its communication manager, refuses.
    Rejected {
        /// Why.
        reason: u16,
        /// The peer's words.
        private_data: [u8; 148],
    },
    /// Nobody answered.
    Unreachable,
    /// The connection is over. `answered` is false if the peer did not confirm it.
    Disconnected {
        /// The peer knows.
        answered: bool,
    },
    /// The QP may be used again.
    TimewaitExit,
}

/// One side of a connection.
#[derive(Clone, Debug)]
pub struct Connection {
    side: Side,
    state: State,
    local_id: CommId,
    remote_id: CommId,
    transaction_id: u64,
    ca_guid: u64,
    remote_guid: u64,
    remote_qpn: Qpn,
    xrc: bool,
    /// How long the peer may take to answer, with the way there and back.
    answer_ns: u64,
    timewait_ns: u64,
    retries: u8,
    repeat: Option<Repeat>,
    /// What a late duplicate gets.
    answer: Option<CmMad>,
    timewait_until: Option<Time>,
    /// The end of an established connection is still to be told.
    owes_disconnected: bool,
    owes_timewait_exit: bool,
    out: VecDeque<CmMad>,
    events: VecDeque<Event>,
}

impl Connection {
    /// The active side: sends the REQ. `modifier` goes into the attribute modifier.
    pub fn connect(now: Time, req: Req, modifier: u32, transaction_id: u64) -> Self {
        let life = code_ns(req.primary.local_ack_timeout.saturating_sub(1));
        let mut connection = Self {
            side: Side::Active,
            state: State::ReqSent,
            local_id: req.local_comm_id,
            remote_id: CommId(0),
            transaction_id,
            ca_guid: req.local_ca_guid,
            remote_guid: 0,
            remote_qpn: Qpn::new(0),
            xrc: req.is_xrc(),
            answer_ns: 2 * life + code_ns(req.remote_cm_response_timeout),
            timewait_ns: 2 * life + code_ns(CA_ACK_DELAY),
            retries: req.max_cm_retries.min(MAX_RETRIES),
            repeat: None,
            answer: None,
            timewait_until: None,
            owes_disconnected: false,
            owes_timewait_exit: false,
            out: VecDeque::new(),
            events: VecDeque::new(),
        };
        connection.send_and_repeat(now, req.into(), modifier);
        connection
    }

    /// The passive side: a REQ has come. Its consumer calls [`Connection::accept`] or [`Connection::reject`].
    pub fn request(req: &Req, transaction_id: u64, local_id: CommId, ca_guid: u64) -> Self {
        let life = code_ns(req.primary.local_ack_timeout.saturating_sub(1));
        Self {
            side: Side::Passive,
            state: State::ReqRcvd,
            local_id,
            remote_id: req.local_comm_id,
            transaction_id,
            ca_guid,
            remote_guid: req.local_ca_guid,
            remote_qpn: req.local_qpn,
            xrc: req.is_xrc(),
            answer_ns: 2 * life + code_ns(req.local_cm_response_timeout),
            timewait_ns: 2 * life + code_ns(CA_ACK_DELAY),
            retries: req.max_cm_retries,
            repeat: None,
            answer: None,
            timewait_until: None,
            owes_disconnected: false,
            owes_timewait_exit: false,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The connection of a process that has died: nothing is left to do but to say so, a few times if need be.
    pub fn orphan(now: Time, local_id: u32, remote_id: u32, remote_qpn: u32) -> Self {
        let req = Req { local_comm_id: CommId(local_id), ..Req::default() };
        let mut connection = Self::request(&req, u64::from(local_id), CommId(local_id), 0);
        connection.remote_id = CommId(remote_id);
        connection.remote_qpn = Qpn::new(remote_qpn);
        connection.answer_ns = code_ns(CA_ACK_DELAY + 2);
        connection.retries = 2;
        connection.state = State::Established;
        connection.disconnect(now);
        connection
    }

    /// Passive: the consumer accepts. False if the request is no longer open.
    pub fn accept(&mut self, now: Time, rep: Rep, modifier: u32) -> bool {
        if self.state != State::ReqRcvd {
            return false;
        }
        self.state = State::RepSent;
        self.send_and_repeat(now, rep.into(), modifier);
        true
    }

    /// Active: the consumer's QP can send. False if no REP is there.
    pub fn establish(&mut self) -> bool {
        if self.state != State::RepRcvd {
            return false;
        }
        let rtu =
            self.mad(Rtu { local_comm_id: self.local_id, remote_comm_id: self.remote_id, ..Rtu::default() }.into());
        self.answer = Some(rtu);
        self.out.push_back(rtu);
        self.state = State::Established;
        self.owes_disconnected = true;
        true
    }

    /// Passive: the QP has received something, which is as good as an RTU (clause 12.9.6). False if it says nothing new.
    pub fn communicate(&mut self) -> bool {
        if self.state != State::RepSent {
            return false;
        }
        self.ready();
        true
    }

    /// Refuses what the peer has sent. False if there is nothing to refuse.
    pub fn reject(&mut self, now: Time, reason: u16, info: &[u8], private_data: [u8; 148]) -> bool {
        let message_rejected = match self.state {
            State::ReqRcvd | State::RepSent => about::REQ,
            State::RepRcvd => about::REP,
            State::ReqSent => about::OTHER,
            _ => return false,
        };
        let mut ari = [0; 72];
        let length = info.len().min(ari.len());
        ari[..length].copy_from_slice(&info[..length]);
        let rej = self.mad(
            Rej {
                local_comm_id: self.local_id,
                remote_comm_id: self.remote_id,
                message_rejected,
                reject_info_length: length as u8,
                reason,
                ari,
                private_data,
            }
            .into(),
        );
        self.out.push_back(rej);
        // The peer repeats what it has not seen refused.
        self.linger(now, rej, self.answer_ns + self.timewait_ns);
        true
    }

    /// Asks for the end. False if there is no connection.
    pub fn disconnect(&mut self, now: Time) -> bool {
        if !matches!(self.state, State::Established | State::RepSent | State::RepRcvd) {
            return false;
        }
        self.state = State::DreqSent;
        self.owes_disconnected = true;
        let dreq = Dreq {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            remote_qpn: self.remote_qpn,
            ..Dreq::default()
        };
        self.send_and_repeat(now, dreq.into(), 0);
        true
    }

    /// The consumer has gone: what is open is refused or ended as politely as possible. Events no longer matter.
    pub fn abandon(&mut self, now: Time) {
        match self.state {
            State::ReqSent => {
                let guid = self.ca_guid.to_be_bytes();
                self.reject(now, reason::TIMEOUT, &guid, [0; 148]);
            }
            State::ReqRcvd | State::RepSent | State::RepRcvd => {
                self.reject(now, reason::CONSUMER, &[], [0; 148]);
            }
            State::Established => {
                self.disconnect(now);
            }
            State::DreqSent | State::Timewait | State::Closed => {}
        }
    }

    /// The peer's QP has asked for a new connection: it knows nothing of this one any more.
    pub fn handle_stale(&mut self, now: Time) {
        match self.state {
            State::Established | State::DreqSent => {
                let dreq = Dreq {
                    local_comm_id: self.local_id,
                    remote_comm_id: self.remote_id,
                    remote_qpn: self.remote_qpn,
                    ..Dreq::default()
                };
                self.out.push_back(self.mad(dreq.into()));
                self.end(now, false);
            }
            State::RepSent | State::RepRcvd | State::ReqRcvd => {
                self.events.push_back(Event::Rejected { reason: reason::STALE_CONNECTION, private_data: [0; 148] });
                self.close();
            }
            _ => {}
        }
    }

    /// A message with our ID, or a REQ that opened this connection and came again.
    pub fn handle(&mut self, now: Time, mad: &CmMad) {
        match &mad.message {
            Message::Req(_) => self.handle_duplicate_req(),
            Message::Mra(mra) => self.handle_mra(now, mra),
            Message::Rej(rej) => self.handle_rej(now, rej),
            Message::Rep(rep) => self.handle_rep(rep, mad.attribute_modifier),
            Message::Rtu(rtu) => {
                if self.state == State::RepSent && rtu.local_comm_id == self.remote_id {
                    self.ready();
                }
            }
            Message::Dreq(dreq) => self.handle_dreq(now, dreq),
            Message::Drep(drep) => {
                if self.state == State::DreqSent && drep.local_comm_id == self.remote_id {
                    self.end(now, true);
                }
            }
            Message::Lap(lap) => self.handle_lap(lap),
            Message::Apr(_) | Message::SidrReq(_) | Message::SidrRep(_) => {}
        }
    }

    fn handle_duplicate_req(&mut self) {
        match (self.state, &self.answer) {
            (State::ReqRcvd, _) => self.ask_for_time(about::REQ),
            (State::RepSent, _) => {
                let rep = self.repeat.as_ref().map(|repeat| *repeat.message());
                self.out.extend(rep);
            }
            (State::Timewait, Some(answer)) if matches!(answer.message, Message::Rej(_)) => self.out.push_back(*answer),
            _ => {}
        }
    }

    /// "Your message is here, the answer takes longer": only if the message comes again, as Linux's rdma_cm does it.
    fn ask_for_time(&mut self, message_mraed: u8) {
        let mra = Mra {
            local_comm_id: self.local_id,
            remote_comm_id: self.remote_id,
            message_mraed,
            service_timeout: SERVICE_TIMEOUT,
            ..Mra::default()
        };
        self.out.push_back(self.mad(mra.into()));
    }

    fn handle_mra(&mut self, now: Time, mra: &Mra) {
        let fits = match mra.message_mraed {
            about::REQ => self.state == State::ReqSent,
            about::REP => self.state == State::RepSent,
            _ => false,
        };
        if let (true, Some(repeat)) = (fits, &mut self.repeat) {
            repeat.put_off(now, code_ns(mra.service_timeout) + self.timewait_ns);
        }
    }

    fn handle_rej(&mut self, now: Time, rej: &Rej) {
        let told = Event::Rejected { reason: rej.reason, private_data: rej.private_data };
        match self.state {
            State::ReqSent | State::ReqRcvd | State::RepSent | State::RepRcvd => {
                self.events.push_back(told);
                self.close();
            }
            // The peer did not see our RTU and has given up, or never knew us.
            State::Established | State::DreqSent => self.end(now, true),
            State::Timewait | State::Closed => {}
        }
    }

    fn handle_rep(&mut self, rep: &Rep, modifier: u32) {
        match self.state {
            State::ReqSent => {
                self.remote_id = rep.local_comm_id;
                self.remote_guid = rep.local_ca_guid;
                self.remote_qpn = request::reply_qpn(rep, self.xrc);
                self.repeat = None;
                self.state = State::RepRcvd;
                self.events.push_back(Event::Replied { rep: *rep, modifier });
            }
            State::RepRcvd if rep.local_comm_id == self.remote_id => self.ask_for_time(about::REP),
            State::Established | State::Timewait if self.side == Side::Active => {
                let answer = self.answer.filter(|a| matches!(a.message, Message::Rtu(_) | Message::Rej(_)));
                if let Some(mut answer) = answer {
                    // We may have refused before we knew the peer's ID.
                    if let Message::Rej(rej) = &mut answer.message {
                        rej.remote_comm_id = rep.local_comm_id;
                    }
                    self.out.push_back(answer);
                }
            }
            _ => {}
        }
    }

    fn handle_dreq(&mut self, now: Time, dreq: &Dreq) {
        if dreq.local_comm_id != self.remote_id {
            return;
        }
        let drep =
            self.mad(Drep { local_comm_id: self.local_id, remote_comm_id: self.remote_id, ..Drep::default() }.into());
        match self.state {
            State::Established | State::RepSent | State::RepRcvd | State::DreqSent => {
                self.out.push_back(drep);
                self.owes_disconnected = true;
                self.end(now, true);
                self.answer = Some(drep);
            }
            State::Timewait | State::Closed => self.out.push_back(drep),
            State::ReqSent | State::ReqRcvd => {}
        }
    }

    /// An alternate path is not loaded this way: the peer keeps the one it has.
    fn handle_lap(&mut self, lap: &Lap) {
        const NOT_SUPPORTED: u8 = 2;
        if self.state == State::Established && lap.local_comm_id == self.remote_id {
            let apr = Apr {
                local_comm_id: self.local_id,
                remote_comm_id: self.remote_id,
                ap_status: NOT_SUPPORTED,
                ..Apr::default()
            };
            self.out.push_back(self.mad(apr.into()));
        }
    }

    /// Looks at the time.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.repeat.as_mut().map(|repeat| repeat.handle_timeout(now)) {
            Some(Due::Again(mad)) => self.out.push_back(mad),
            Some(Due::GaveUp) => self.give_up(now),
            Some(Due::No) | None => {}
        }
        if self.timewait_until.is_some_and(|until| until <= now) {
            if core::mem::take(&mut self.owes_timewait_exit) {
                self.events.push_back(Event::TimewaitExit);
            }
            self.close();
        }
    }

    fn give_up(&mut self, now: Time) {
        if self.state == State::DreqSent {
            return self.end(now, false);
        }
        // The peer may have seen some of what we sent: it should not wait for more.
        let guid = self.ca_guid.to_be_bytes();
        self.reject(now, reason::TIMEOUT, &guid, [0; 148]);
        self.events.push_back(Event::Unreachable);
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<CmMad> {
        self.out.pop_front()
    }

    /// The next thing to tell the consumer.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Connection::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        let repeat = self.repeat.as_ref().map(Repeat::deadline);
        [repeat, self.timewait_until].into_iter().flatten().min()
    }

    /// State.
    pub fn state(&self) -> State {
        self.state
    }

    /// Side.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Our ID.
    pub fn local_id(&self) -> CommId {
        self.local_id
    }

    /// The peer's ID; 0 while unknown.
    pub fn remote_id(&self) -> CommId {
        self.remote_id
    }

    /// EUI-64 of the peer's device; 0 while unknown.
    pub fn remote_guid(&self) -> u64 {
        self.remote_guid
    }

    /// The peer's QP; 0 while unknown.
    pub fn remote_qpn(&self) -> Qpn {
        self.remote_qpn
    }

    /// True if an end would still have to be told to the consumer or the peer.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Established | State::DreqSent | State::RepSent | State::RepRcvd)
    }

    fn mad(&self, message: Message) -> CmMad {
        CmMad { transaction_id: self.transaction_id, attribute_modifier: 0, message }
    }

    fn send_and_repeat(&mut self, now: Time, message: Message, attribute_modifier: u32) {
        let mad = CmMad { transaction_id: self.transaction_id, attribute_modifier, message };
        self.out.push_back(mad);
        self.repeat = Some(Repeat::new(now, mad, self.answer_ns, self.retries));
    }

    fn ready(&mut self) {
        self.repeat = None;
        self.state = State::Established;
        self.owes_disconnected = true;
        self.events.push_back(Event::Established);
    }

    fn end(&mut self, now: Time, answered: bool) {
        if core::mem::take(&mut self.owes_disconnected) {
            self.events.push_back(Event::Disconnected { answered });
        }
        self.repeat = None;
        self.state = State::Timewait;
        self.owes_timewait_exit = true;
        self.timewait_until = Some(now.after(self.timewait_ns));
    }

    fn linger(&mut self, now: Time, answer: CmMad, ns: u64) {
        self.repeat = None;
        self.answer = Some(answer);
        self.state = State::Timewait;
        self.timewait_until = Some(now.after(ns));
    }

    fn close(&mut self) {
        self.repeat = None;
        self.timewait_until = None;
        self.state = State::Closed;
    }
}
