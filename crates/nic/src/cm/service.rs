//! Datagram services (clause 12.11): a UD identifier that connects asks where the service is, one that accepts tells.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_transport::cm::sidr::{Outcome, status};
use scalefabric_transport::cm::{Query, request};
use scalefabric_verbs::cm::{MAX_SIDR_REP_PRIVATE_DATA, MAX_SIDR_REQ_PRIVATE_DATA, RDMA_UDP_QKEY};
use scalefabric_verbs::{
    AddressVector, CmEventType, ConnParam, Ece, Errno, EventParam, Gid, QKey, Qpn, UdEvent, VerbsError,
};
use scalefabric_wire::cm::{CmMad, ServiceId, SidrRep, SidrReq, ip_addressing};

use super::active::{message_vector, route_vector, too_long};
use super::agent::{Agent, State};
use super::id::{Id, Stage};
use super::index::Deadlines;
use super::receive::Arrived;
use super::route::called;
use crate::clock;
use crate::engine::drive::Core;

/// How long an answer is kept for the case that the question comes again, ns: somewhat longer than the asker's interval.
const KEEP_NS: u64 = 10_000_000_000;

/// A question that an application has not answered yet.
#[derive(Debug)]
pub(super) struct Asked {
    core: Arc<Core>,
    av: AddressVector,
    transaction_id: u64,
    request_id: u32,
    service_id: ServiceId,
}

/// A question of ours.
pub(super) struct Asking {
    pub(super) machine: Query,
    core: Arc<Core>,
    av: AddressVector,
    id: u32,
}

/// Questions of ours by request ID. Whoever changed one calls [`Questions::settle`].
#[derive(Default)]
pub(super) struct Questions {
    all: HashMap<u32, Asking>,
    deadlines: Deadlines,
}

impl Questions {
    fn insert(&mut self, key: u32, question: Asking) {
        self.all.insert(key, question);
        self.settle(key);
    }

    fn settle(&mut self, key: u32) {
        self.deadlines.set(key, self.all.get(&key).and_then(|question| question.machine.deadline()));
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.all.remove(&key);
        self.settle(key);
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Asking> {
        self.all.get_mut(&key)
    }

    pub(super) fn contains_key(&self, key: u32) -> bool {
        self.all.contains_key(&key)
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.first()
    }

    pub(super) fn due(&self, now: Time) -> Vec<u32> {
        self.deadlines.due(now)
    }
}

/// Questions of others, by who asked and by which ID, with the answer once there is one: they may come again.
#[derive(Default)]
pub(super) struct Answers {
    all: HashMap<(Gid, u32), (Option<CmMad>, Time)>,
    /// In the order in which they are forgotten; those that were answered meanwhile stand twice.
    order: VecDeque<(Time, (Gid, u32))>,
}

impl Answers {
    fn get(&self, from: Gid, request_id: u32) -> Option<&Option<CmMad>> {
        self.all.get(&(from, request_id)).map(|(mad, _)| mad)
    }

    fn keep(&mut self, from: Gid, request_id: u32, mad: Option<CmMad>, now: Time) {
        let until = now.after(KEEP_NS);
        self.all.insert((from, request_id), (mad, until));
        self.order.push_back((until, (from, request_id)));
    }

    pub(super) fn forget_old(&mut self, now: Time) {
        while let Some((until, key)) = self.order.front().copied().filter(|(until, _)| *until <= now) {
            self.order.pop_front();
            if self.all.get(&key).is_some_and(|(_, last)| *last <= until) {
                self.all.remove(&key);
            }
        }
    }
}

impl State {
    /// `connect` of a UD identifier.
    pub(super) fn ask(&mut self, number: u32, param: &ConnParam) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        let header = request::addressing(&id.addressing()?);
        let private_data = request::padded(&header, &param.private_data)
            .ok_or_else(|| too_long("connect", param.private_data.len(), MAX_SIDR_REQ_PRIVATE_DATA))?;
        let (place, route) = id.way()?;
        let service_id = id.service_id();
        let request_id = self.comm_id(place.device.slot());
        let req = SidrReq { request_id, pkey: route.pkey, service_id, private_data };
        let transaction_id = 1 << 32 | u64::from(request_id);
        let question = Asking {
            machine: Query::ask(clock::now(), req, transaction_id, route.packet_life_time),
            core: place.device.core().clone(),
            av: message_vector(&route_vector(&place, &route)),
            id: number,
        };
        self.questions.insert(request_id, question);
        let id = self.id(number)?;
        id.question = Some(request_id);
        id.stage = Stage::Connect;
        self.pump_question(request_id);
        Ok(())
    }

    /// A SIDR_REP.
    pub(super) fn receive_answer(&mut self, rep: &SidrRep, modifier: u32) {
        if let Some(question) = self.questions.get_mut(rep.request_id) {
            question.machine.handle(rep, modifier);
        }
        self.pump_question(rep.request_id);
    }

    pub(super) fn pump_question(&mut self, key: u32) {
        const TIMED_OUT: i32 = -(Errno::ETIMEDOUT as i32);
        let Some(question) = self.questions.get_mut(key) else { return };
        while let Some(mad) = question.machine.poll_transmit() {
            question.core.send_gsi(&question.av, &mad.emit());
        }
        let Some(outcome) = question.machine.poll_outcome() else { return self.questions.settle(key) };
        let number = question.id;
        self.questions.remove(key);
        let Some(id) = self.ids.get_mut(&number) else { return };
        id.question = None;
        match outcome {
            Outcome::Unreachable => self.tell_plain(number, CmEventType::Unreachable, TIMED_OUT),
            Outcome::Answered(rep, modifier) => {
                id.remote_ece = Ece { vendor_id: rep.vendor_id, attr_mod: modifier };
                let mut told = UdEvent { private_data: rep.private_data.to_vec(), ..UdEvent::default() };
                if rep.status != status::VALID {
                    let status = i32::from(rep.status);
                    return self.tell(number, CmEventType::Unreachable, status, EventParam::Ud(told));
                }
                id.qkey = rep.qkey;
                (told.qp_num, told.qkey) = (rep.qpn, rep.qkey);
                if let Ok((place, route)) = id.way() {
                    told.ah_attr = route_vector(&place, &route);
                }
                self.tell(number, CmEventType::Established, 0, EventParam::Ud(told));
            }
        }
    }

    /// A SIDR_REQ.
    pub(super) fn receive_question(&mut self, agent: &Arc<Agent>, arrived: &Arrived<'_>, req: &SidrReq, now: Time) {
        if let Some(answer) = self.answered.get(arrived.src, req.request_id) {
            if let (Some(mad), Some(av)) = (answer, arrived.back()) {
                arrived.core.send_gsi(&av, &mad.emit());
            }
            return;
        }
        let refuse = |status: u8| {
            let rep = SidrRep { request_id: req.request_id, status, service_id: req.service_id, ..SidrRep::default() };
            arrived.answer(rep.into());
        };
        let Some(asked) = called(req.service_id, &req.private_data) else { return refuse(status::UNSUPPORTED) };
        let Some((listener, place)) = self.listener(arrived, &asked, Id::is_ud) else {
            return refuse(status::UNSUPPORTED);
        };
        let Some(av) = arrived.back() else { return };
        let Some(number) = self.child(listener, &place, &asked) else { return refuse(status::REJECT) };
        if let Some(id) = self.ids.get_mut(&number) {
            id.asked = Some(Asked {
                core: arrived.core.clone(),
                av,
                transaction_id: arrived.mad.transaction_id,
                request_id: req.request_id,
                service_id: req.service_id,
            });
        }
        // Until it is answered the question is known: it may come again.
        self.answered.keep(arrived.src, req.request_id, None, now);
        let private_data = req.private_data[ip_addressing::LEN..].to_vec();
        let param = EventParam::Ud(UdEvent { private_data, ..UdEvent::default() });
        self.tell_request(agent, listener, number, param, Ece::default());
    }

    /// `accept` of a UD identifier.
    pub(super) fn accept_service(
        &mut self,
        number: u32,
        param: Option<&ConnParam>,
        uid: Option<u64>,
    ) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        let Some(param) = param else {
            return Err(VerbsError::invalid("the passive side accepts with parameters: at least its QP"));
        };
        let private_data = request::padded(&[], &param.private_data)
            .ok_or_else(|| too_long("accept", param.private_data.len(), MAX_SIDR_REP_PRIVATE_DATA))?;
        let asked = id.asked.take().ok_or_else(|| {
            VerbsError::invalid(format!("nobody asks for a service on identifier {number}, or it is answered"))
        })?;
        if param.qkey != QKey(0) {
            id.qkey = param.qkey;
        } else if id.qkey == QKey(0) {
            id.qkey = RDMA_UDP_QKEY;
        }
        if let Some(uid) = uid {
            id.uid = uid;
        }
        let (qpn, qkey) = (param.qp_num, id.qkey);
        self.answer_question(&asked, status::VALID, qpn, qkey, private_data);
        Ok(())
    }

    /// `reject` of a UD identifier.
    pub(super) fn reject_service(&mut self, number: u32, private_data: &[u8]) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        if private_data.len() > MAX_SIDR_REP_PRIVATE_DATA {
            return Err(too_long("reject", private_data.len(), MAX_SIDR_REP_PRIVATE_DATA));
        }
        let asked =
            id.asked.take().ok_or_else(|| VerbsError::invalid(format!("nothing to reject on identifier {number}")))?;
        self.refuse_service(&asked, private_data);
        Ok(())
    }

    pub(super) fn refuse_service(&mut self, asked: &Asked, private_data: &[u8]) {
        let data = request::padded(&[], private_data).unwrap_or([0; MAX_SIDR_REP_PRIVATE_DATA]);
        self.answer_question(asked, status::REJECT, Qpn::new(0), QKey(0), data);
    }

    fn answer_question(
        &mut self,
        asked: &Asked,
        status: u8,
        qpn: Qpn,
        qkey: QKey,
        private_data: [u8; MAX_SIDR_REP_PRIVATE_DATA],
    ) {
        let rep = SidrRep {
            request_id: asked.request_id,
            status,
            qpn,
            service_id: asked.service_id,
            qkey,
            private_data,
            ..SidrRep::default()
        };
        let mad = CmMad { transaction_id: asked.transaction_id, attribute_modifier: 0, message: rep.into() };
        asked.core.send_gsi(&asked.av, &mad.emit());
        self.answered.keep(asked.av.dgid, asked.request_id, Some(mad), clock::now());
    }
}
