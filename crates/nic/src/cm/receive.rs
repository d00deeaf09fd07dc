//! Messages that have come: to which connection they belong, and what is said to those that belong to none.

use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_transport::cm::{Connection, QpPath, about, reason, request};
use scalefabric_verbs::{AddressVector, CmEvent, CmEventType, Ece, EventParam, Gid, Psn, Qpn};
use scalefabric_wire::cm::{CmMad, CommId, Drep, IpAddressing, Message, Rej, Req, ip_addressing};

use super::active::message_vector;
use super::agent::{Agent, State};
use super::devices::{Place, address};
use super::handle::Handle;
use super::id::{Id, Stage, request_event};
use super::links::Link;
use super::route::{called, receiver_id};
use crate::engine::drive::Core;
use crate::ingress::GsiDatagram;

/// A message with its way back.
pub(super) struct Arrived<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) port_num: u8,
    pub(super) src: Gid,
    pub(super) dst: Gid,
    pub(super) mad: &'a CmMad,
}

impl Arrived<'_> {
    /// The way back to the sender, from the address that it sent to. `None` if that address has gone.
    pub(super) fn back(&self) -> Option<AddressVector> {
        let held = self.core.lock();
        let index = held.engine.tables().port(self.port_num)?.find_gid(self.dst)?;
        Some(AddressVector::new(self.port_num, index, self.src))
    }

    /// Answers without a connection.
    pub(super) fn answer(&self, message: Message) {
        if let Some(av) = self.back() {
            let mad = CmMad { transaction_id: self.mad.transaction_id, attribute_modifier: 0, message };
            self.core.send_gsi(&av, &mad.emit());
        }
    }

    fn reject(&self, req: &Req, reason: u16) {
        let rej = Rej { remote_comm_id: req.local_comm_id, message_rejected: about::REQ, reason, ..Rej::default() };
        self.answer(rej.into());
    }
}

/// How long a request waits for a listener before it is refused, ns. Programs close a service and open it again (perftest
/// between its two connections), and a client on this machine is faster than any network: it must not find the gap.
const PATIENCE_NS: u64 = 30_000_000;
/// How long if there was such a service a moment ago, ns: its process lives, and may be waiting for a processor. Less than
/// half of what the caller waits before it asks again.
const LONG_PATIENCE_NS: u64 = 2_000_000_000;
/// How often it is looked for meanwhile, ns.
const LOOK_NS: u64 = 2_000_000;
/// Requests that wait so, at most; the next is refused at once.
const UNHEARD: usize = 64;

/// A request that nobody listens for yet.
pub(super) struct Unheard {
    /// When it is refused.
    until: Time,
    /// When the listener is looked for again.
    pub(super) look: Time,
    core: Arc<Core>,
    datagram: GsiDatagram,
}

impl State {
    /// A datagram for QP 1. `first`: a request that nobody listens for may wait a little ([`PATIENCE_NS`]).
    pub(super) fn receive(
        &mut self,
        agent: &Arc<Agent>,
        core: &Arc<Core>,
        datagram: &GsiDatagram,
        first: bool,
        now: Time,
    ) {
        // MADs of other classes have nobody here, as on a node without their agents.
        if datagram.headers.deth.is_none_or(|deth| deth.src_qp != Qpn::GSI) {
            return;
        }
        let Ok(mad) = CmMad::parse(datagram.payload()) else { return };
        let arrived = Arrived { core, port_num: datagram.port_num, src: datagram.src, dst: datagram.dst, mad: &mad };
        if first && self.unheard.len() < UNHEARD && self.nobody_listens(&arrived) {
            let patience = if core.gsi_was_served(datagram, now) { LONG_PATIENCE_NS } else { PATIENCE_NS };
            let (until, look) = (now.after(patience), now.after(LOOK_NS));
            self.unheard.push(Unheard { until, look, core: core.clone(), datagram: datagram.clone() });
            return;
        }
        match &mad.message {
            Message::Req(req) => self.receive_req(agent, &arrived, req, now),
            Message::SidrReq(req) => self.receive_question(agent, &arrived, req, now),
            Message::SidrRep(rep) => self.receive_answer(rep, mad.attribute_modifier),
            other => {
                let key = receiver_id(other).filter(|key| self.links.contains_key(key));
                match key.or_else(|| self.timed_out(&arrived)) {
                    Some(key) => self.hand(key, &mad, now),
                    None => nobody(&arrived),
                }
            }
        }
    }

    /// True for a request for a service that is not there.
    fn nobody_listens(&self, arrived: &Arrived<'_>) -> bool {
        match &arrived.mad.message {
            Message::Req(req) => {
                let wanted = request::wanted_qp_type(req);
                called(req.service_id, &req.private_data)
                    .is_some_and(|asked| self.listener(arrived, &asked, |id| Some(id.qp_type) == wanted).is_none())
            }
            Message::SidrReq(req) => called(req.service_id, &req.private_data)
                .is_some_and(|asked| self.listener(arrived, &asked, Id::is_ud).is_none()),
            _ => false,
        }
    }

    /// Requests that wait for a listener: those that have one go to it, in whichever process it is; those that waited long
    /// enough are refused.
    pub(super) fn hear(&mut self, agent: &Arc<Agent>, now: Time) {
        let (due, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.unheard).into_iter().partition(|u| u.look <= now);
        self.unheard = rest;
        for mut unheard in due {
            let Unheard { until, core, datagram, .. } = &unheard;
            // A listener of our own is in the segment, too: the router leaves us what is ours.
            if core.route_gsi_again(datagram) {
                continue;
            }
            if *until > now && self.is_unheard(core, datagram) {
                unheard.look = now.after(LOOK_NS).min(*until);
                self.unheard.push(unheard);
                continue;
            }
            let Unheard { core, datagram, .. } = unheard;
            self.receive(agent, &core, &datagram, false, now);
        }
    }

    fn is_unheard(&self, core: &Arc<Core>, datagram: &GsiDatagram) -> bool {
        let Ok(mad) = CmMad::parse(datagram.payload()) else { return false };
        let arrived = Arrived { core, port_num: datagram.port_num, src: datagram.src, dst: datagram.dst, mad: &mad };
        self.nobody_listens(&arrived)
    }

    fn hand(&mut self, key: u32, mad: &CmMad, now: Time) {
        if let Some(link) = self.links.get_mut(&key) {
            link.machine.handle(now, mad);
        }
        self.pump(key);
    }

    /// A REJ of somebody who stopped waiting before it knew our ID names itself by its device and its own ID.
    fn timed_out(&self, arrived: &Arrived<'_>) -> Option<u32> {
        let Message::Rej(rej) = &arrived.mad.message else { return None };
        if rej.reason != reason::TIMEOUT {
            return None;
        }
        let guid = u64::from_be_bytes(*rej.ari.first_chunk()?);
        self.links.of_peer(arrived.src, guid, rej.local_comm_id)
    }

    fn receive_req(&mut self, agent: &Arc<Agent>, arrived: &Arrived<'_>, req: &Req, now: Time) {
        let (core, peer, guid) = (arrived.core, arrived.src, req.local_ca_guid);
        if let Some(key) = self.links.opened_by(core, peer, guid, req.local_comm_id) {
            return self.hand(key, arrived.mad, now);
        }
        if !req.is_xrc()
            && let Some(key) = self.links.up_with(core, peer, guid, req.local_qpn)
        {
            if let Some(link) = self.links.get_mut(&key) {
                link.machine.handle_stale(now);
            }
            self.pump(key);
            return arrived.reject(req, reason::STALE_CONNECTION);
        }
        let Some(asked) = called(req.service_id, &req.private_data) else {
            return arrived.reject(req, reason::INVALID_SERVICE_ID);
        };
        let wanted = request::wanted_qp_type(req);
        let Some((listener, place)) = self.listener(arrived, &asked, |id| Some(id.qp_type) == wanted) else {
            return arrived.reject(req, reason::INVALID_SERVICE_ID);
        };
        let Some(number) = self.child(listener, &place, &asked) else {
            return arrived.reject(req, reason::CONSUMER);
        };
        let local_id = self.comm_id(place.device.slot());
        let starting_psn = Psn::new(self.draw() as u32);
        let path = &req.primary;
        let av = AddressVector {
            dgid: path.local_gid,
            sgid_index: place.sgid_index,
            hop_limit: path.hop_limit.max(1),
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            sl: path.sl,
            static_rate: 0,
            port_num: place.port_num,
        };
        let qp_type = wanted.unwrap_or(scalefabric_verbs::QpType::Rc);
        let guid = place.device.guid();
        let link = Link {
            machine: Connection::request(req, arrived.mad.transaction_id, CommId(local_id), guid),
            core: arrived.core.clone(),
            device: Some(place.device.clone()),
            // Answers go where the request came from.
            av: AddressVector { dgid: arrived.src, ..message_vector(&av) },
            path: QpPath::of_peer_req(req, qp_type, av, starting_psn),
            packet_life_time: path.local_ack_timeout.saturating_sub(1),
            id: Some(number),
            noted: None,
        };
        self.links.insert(local_id, link);
        let ece = Ece { vendor_id: req.vendor_id, attr_mod: arrived.mad.attribute_modifier };
        if let Some(id) = self.ids.get_mut(&number) {
            id.qp_type = qp_type;
            id.link = Some(local_id);
            id.remote_ece = ece;
        }
        let param = EventParam::Conn(request_event(req, &req.private_data[ip_addressing::LEN..]));
        self.tell_request(agent, listener, number, param, ece);
    }

    /// The listener that a request is for, with the place where it was heard.
    pub(super) fn listener(
        &self,
        arrived: &Arrived<'_>,
        asked: &(u16, u16, IpAddressing),
        fits: impl Fn(&Id) -> bool,
    ) -> Option<(u32, Place)> {
        let (space, port, ip) = asked;
        let mut best: Option<(bool, u32, Place)> = None;
        let listeners = self.listeners.get(&(*space, *port)).into_iter().flatten();
        for id in listeners.filter_map(|number| self.ids.get(number)) {
            let Some(local) = id.local.filter(|local| id.stage == Stage::Listen && local.port() == *port) else {
                continue;
            };
            let any = local.ip().is_unspecified();
            let family = local.is_ipv4() == ip.dst.is_ipv4() || (local.is_ipv6() && !id.af_only);
            let here = if any { family } else { local.ip() == ip.dst || local.ip() == arrived.dst.to_ip() };
            if id.space.to_raw() != *space || !here || !fits(id) {
                continue;
            }
            let device = id.claims.iter().map(|(device, _)| device).find(|d| Arc::ptr_eq(d.core(), arrived.core));
            let place = device.and_then(|device| Place::on(device, arrived.port_num, arrived.dst));
            let Some(place) = place else { continue };
            if best.as_ref().is_none_or(|(best_any, ..)| *best_any && !any) {
                best = Some((any, id.number, place));
            }
        }
        best.map(|(_, number, place)| (number, place))
    }

    /// A new identifier for a request; `None` if the listener's backlog is full.
    pub(super) fn child(&mut self, listener: u32, place: &Place, asked: &(u16, u16, IpAddressing)) -> Option<u32> {
        let number = self.number();
        let parent = self.ids.get_mut(&listener)?;
        parent.backlog = parent.backlog.checked_sub(1)?;
        let (_, port, ip) = asked;
        let scope = place.device.core().lock().engine.tables().port(place.port_num).map_or(0, |p| p.interface().1);
        let mut id = Id::new(number, parent.channel, parent.provider.clone(), parent.space, parent.qp_type);
        id.stage = Stage::Connect;
        id.local = Some(address(ip.dst, *port, scope));
        id.peer = Some(address(ip.src, ip.src_port, scope));
        id.place = Some(place.clone());
        (id.tos, id.timeout, id.af_only) = (parent.tos, parent.timeout, parent.af_only);
        self.enrol(id);
        Some(number)
    }

    pub(super) fn tell_request(&self, agent: &Arc<Agent>, listener: u32, number: u32, param: EventParam, ece: Ece) {
        let Some(parent) = self.ids.get(&listener) else { return };
        let event = CmEvent {
            event: CmEventType::ConnectRequest,
            status: 0,
            uid: parent.uid,
            id: number,
            listen_id: Some(listener),
            request: Some(Handle::of(agent, number)),
            param,
            ece,
        };
        self.queue(parent.channel, event);
    }
}

/// A message for a connection that is not here. Only who waits for an answer gets one.
fn nobody(arrived: &Arrived<'_>) {
    match &arrived.mad.message {
        Message::Dreq(dreq) => arrived.answer(
            Drep { local_comm_id: dreq.remote_comm_id, remote_comm_id: dreq.local_comm_id, ..Drep::default() }.into(),
        ),
        // The peer has accepted something that is over here.
        Message::Rep(rep) => arrived.answer(
            Rej {
                local_comm_id: rep.remote_comm_id,
                remote_comm_id: rep.local_comm_id,
                message_rejected: about::REP,
                reason: INVALID_COMM_ID,
                ..Rej::default()
            }
            .into(),
        ),
        _ => {}
    }
}

/// Reject reason: the ID in the message names no connection here.
const INVALID_COMM_ID: u16 = 6;
