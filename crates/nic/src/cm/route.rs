//! Which process of a shared device a message is for. The socket behind QP 1 is read by all of them; a message with an ID of
//! ours carries its slot in the ID's upper 8 bits, and one that opens something is for whoever listens (D1).

use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_verbs::Gid;
use scalefabric_wire::cm::{CmMad, IpAddressing, Message, ServiceId};

use crate::engine::gsi::{GsiRouter, Routed};
use crate::port::Datagram;
use crate::port::udp::{Neighbours, hand_over};
use crate::share::segment::{Segment, SlotState};

/// The slot in the upper 8 bits of an ID.
pub(super) fn slot_of(id: u32) -> u8 {
    (id >> 24) as u8
}

/// The ID that a message gives its receiver: the slot in it says whose it is. `None` for messages that open something.
pub(super) fn receiver_id(message: &Message) -> Option<u32> {
    Some(match message {
        Message::Req(_) | Message::SidrReq(_) => return None,
        Message::Mra(m) => m.remote_comm_id.0,
        Message::Rej(m) => m.remote_comm_id.0,
        Message::Rep(m) => m.remote_comm_id.0,
        Message::Rtu(m) => m.remote_comm_id.0,
        Message::Dreq(m) => m.remote_comm_id.0,
        Message::Drep(m) => m.remote_comm_id.0,
        Message::Lap(m) => m.remote_comm_id.0,
        Message::Apr(m) => m.remote_comm_id.0,
        Message::SidrRep(m) => m.request_id,
    })
}

/// Port space, port and addresses that a REQ or SIDR_REQ asks for.
pub(super) fn called(service_id: ServiceId, private_data: &[u8]) -> Option<(u16, u16, IpAddressing)> {
    let (space, port) = service_id.port()?;
    Some((space, port, IpAddressing::parse(private_data).ok()?))
}

/// The router of a process.
pub(crate) struct Router {
    segment: Arc<Segment>,
    slot: u8,
    neighbours: Vec<Option<Arc<dyn Neighbours>>>,
}

impl Router {
    /// For a member of a device; `neighbours` by port.
    pub(crate) fn new(segment: Arc<Segment>, slot: u8, neighbours: Vec<Option<Arc<dyn Neighbours>>>) -> Self {
        Self { segment, slot, neighbours }
    }

    fn receiver(&self, message: &Message, dst: Gid) -> Option<u8> {
        let listener = |service_id, private_data: &[u8]| {
            let (space, port, ip) = called(service_id, private_data)?;
            // The address in the header is what the caller calls; behind it stands the one that it sends to.
            self.segment.listener_of(space, port, ip.dst).or_else(|| self.segment.listener_of(space, port, dst.to_ip()))
        };
        match message {
            Message::Req(req) => listener(req.service_id, &req.private_data),
            Message::SidrReq(req) => listener(req.service_id, &req.private_data),
            other => receiver_id(other).map(slot_of),
        }
    }
}

impl GsiRouter for Router {
    fn route(&mut self, port_num: u8, datagram: &Datagram<'_>, payload: &[u8]) -> Routed {
        let index = usize::from(port_num) - 1;
        let Some(Some(neighbours)) = self.neighbours.get(index) else { return Routed::Here };
        let Ok(mad) = CmMad::parse(payload) else { return Routed::Here };
        let slot = match self.receiver(&mad.message, Gid::from_ip(datagram.dst)) {
            Some(slot) if slot != 0 && slot != self.slot && slot != 255 => slot,
            _ => return Routed::Here,
        };
        // Nobody lives there any more: whoever has it answers for the dead.
        if self.segment.slot(slot).state() != SlotState::Alive {
            return Routed::Here;
        }
        match neighbours.mailbox(slot) {
            Some(mailbox) if hand_over(mailbox, index as u8, datagram) => Routed::Elsewhere,
            _ => Routed::Lost,
        }
    }

    fn was_served(&self, payload: &[u8], now: Time) -> bool {
        let asked = match CmMad::parse(payload).map(|mad| mad.message) {
            Ok(Message::Req(req)) => called(req.service_id, &req.private_data),
            Ok(Message::SidrReq(req)) => called(req.service_id, &req.private_data),
            _ => None,
        };
        asked.is_some_and(|(space, port, _)| self.segment.was_listened_on(space, port, now))
    }
}
