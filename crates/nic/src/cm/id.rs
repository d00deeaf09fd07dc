//! An identifier: what it is bound to, how far it has come, and how its application hears of things.

use std::net::SocketAddr;
use std::sync::Arc;

use scalefabric_transport::cm::Event;
use scalefabric_verbs::{
    CmEvent, CmEventType, ConnEvent, Ece, Errno, EventParam, PathRecord, PortSpace, QKey, QpType, UdEvent, VerbsError,
};
use scalefabric_wire::cm::{Rep, Req};

use super::agent::State;
use super::devices::{Device, Place};
use super::service::Asked;
use crate::provider::SoftwareProvider;

/// How far an identifier has come. Calls out of order are refused by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    AddrBound,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
    /// Its device is gone: it can only be destroyed.
    Removed,
}

/// A device, and the record of a port in its segment.
pub(super) type Claimed = (Arc<Device>, usize);

/// An identifier.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) number: u32,
    pub(super) channel: u32,
    pub(super) provider: SoftwareProvider,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) uid: u64,
    pub(super) stage: Stage,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) place: Option<Place>,
    /// Records of its port in the segments of its devices: one, or all for any address.
    pub(super) claims: Vec<Claimed>,
    pub(super) route: Option<PathRecord>,
    pub(super) link: Option<u32>,
    pub(super) question: Option<u32>,
    /// Passive and UD: what was asked and is not answered.
    pub(super) asked: Option<Asked>,
    /// Listening: requests that may still be queued.
    pub(super) backlog: u32,
    /// Its joins of multicast groups.
    pub(super) joins: Vec<u32>,
    pub(super) reported: u32,
    pub(super) reuse: bool,
    pub(super) af_only: bool,
    pub(super) tos: Option<u8>,
    pub(super) timeout: Option<u8>,
    pub(super) qkey: QKey,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
}

impl Id {
    pub(super) fn new(
        number: u32,
        channel: u32,
        provider: SoftwareProvider,
        space: PortSpace,
        qp_type: QpType,
    ) -> Self {
        Self {
            number,
            channel,
            provider,
            space,
            qp_type,
            uid: 0,
            stage: Stage::Idle,
            local: None,
            peer: None,
            place: None,
            claims: Vec::new(),
            route: None,
            link: None,
            question: None,
            asked: None,
            backlog: 0,
            joins: Vec::new(),
            reported: 0,
            reuse: false,
            af_only: false,
            tos: None,
            timeout: None,
            qkey: QKey(0),
            local_ece: Ece::default(),
            remote_ece: Ece::default(),
        }
    }

    /// Refuses a call that comes out of order.
    pub(super) fn expect(&self, call: &str, stages: &[Stage]) -> Result<(), VerbsError> {
        if stages.contains(&self.stage) {
            return Ok(());
        }
        if self.stage == Stage::Removed {
            return Err(VerbsError::environment(
                Errno::EIO,
                format!("{call} on identifier {}: its device is gone (DEVICE_REMOVAL); destroy it", self.number),
            ));
        }
        Err(VerbsError::invalid(format!(
            "{call} on identifier {} in state {:?}: it needs {stages:?}",
            self.number, self.stage
        )))
    }

    pub(super) fn is_ud(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Port space and port that it is bound to.
    pub(super) fn service(&self) -> Option<(u16, u16)> {
        self.local.map(|local| (self.space.to_raw(), local.port()))
    }

    /// Parameters without content, of the identifier's kind.
    pub(super) fn nothing(&self) -> EventParam {
        if self.is_ud() { EventParam::Ud(UdEvent::default()) } else { EventParam::Conn(ConnEvent::default()) }
    }
}

/// What a REQ tells, in the words of its receiver: the peer's depths, exchanged.
pub(super) fn request_event(req: &Req, private_data: &[u8]) -> ConnEvent {
    ConnEvent {
        private_data: private_data.to_vec(),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.end_to_end_flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        qp_num: req.local_qpn,
    }
}

/// The same for a REP.
fn reply_event(rep: &Rep, xrc: bool) -> ConnEvent {
    ConnEvent {
        private_data: rep.private_data.to_vec(),
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: rep.end_to_end_flow_control,
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        qp_num: scalefabric_transport::cm::request::reply_qpn(rep, xrc),
    }
}

pub(super) fn no_such(number: u32) -> VerbsError {
    VerbsError::misuse(Errno::EINVAL, format!("identifier {number} is destroyed"))
}

impl State {
    /// A new identifier, of its channel.
    pub(super) fn enrol(&mut self, id: Id) {
        if let Some(line) = self.channels.get_mut(&id.channel) {
            line.ids.insert(id.number);
        }
        self.ids.insert(id.number, id);
    }

    /// Takes an identifier out of all that leads to it.
    pub(super) fn strike(&mut self, number: u32) -> Option<Id> {
        let id = self.ids.remove(&number)?;
        if let Some(line) = self.channels.get_mut(&id.channel) {
            line.ids.remove(&number);
        }
        if let Some(service) = id.service()
            && let Some(listeners) = self.listeners.get_mut(&service)
        {
            listeners.retain(|other| *other != number);
            if listeners.is_empty() {
                self.listeners.remove(&service);
            }
        }
        Some(id)
    }

    /// An identifier belongs to another channel from now on.
    pub(super) fn move_to(&mut self, number: u32, channel: u32) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let from = std::mem::replace(&mut id.channel, channel);
        if let Some(line) = self.channels.get_mut(&from) {
            line.ids.remove(&number);
        }
        if let Some(line) = self.channels.get_mut(&channel) {
            line.ids.insert(number);
        }
    }

    pub(super) fn id(&mut self, number: u32) -> Result<&mut Id, VerbsError> {
        self.ids.get_mut(&number).ok_or_else(|| no_such(number))
    }

    /// Queues an event of an identifier. A passive one that its application does not know yet hears nothing.
    pub(super) fn tell(&mut self, number: u32, event: CmEventType, status: i32, param: EventParam) {
        let Some(id) = self.ids.get(&number) else { return };
        if id.uid == 0 {
            return;
        }
        let event = CmEvent {
            event,
            status,
            uid: id.uid,
            id: number,
            listen_id: None,
            request: None,
            param,
            ece: id.remote_ece,
        };
        self.queue(id.channel, event);
    }

    /// Queues an event of a kind that says nothing more.
    pub(super) fn tell_plain(&mut self, number: u32, event: CmEventType, status: i32) {
        let Some(param) = self.ids.get(&number).map(Id::nothing) else { return };
        self.tell(number, event, status, param);
    }

    pub(super) fn queue(&self, channel: u32, event: CmEvent) {
        if let Some(line) = self.channels.get(&channel) {
            line.events.push(event);
            line.events.wake();
        }
    }

    /// What a connection has to tell.
    pub(super) fn tell_connection(&mut self, number: u32, event: Event) {
        const TIMED_OUT: i32 = -(Errno::ETIMEDOUT as i32);
        let Some(id) = self.ids.get_mut(&number) else { return };
        match event {
            Event::Replied { rep, modifier } => {
                id.remote_ece = Ece { vendor_id: rep.vendor_id, attr_mod: modifier };
                let param = EventParam::Conn(reply_event(&rep, id.qp_type == QpType::XrcSend));
                self.tell(number, CmEventType::ConnectResponse, 0, param);
            }
            Event::Established => self.tell_plain(number, CmEventType::Established, 0),
            Event::Rejected { reason, private_data } => {
                let param = ConnEvent { private_data: private_data.to_vec(), ..ConnEvent::default() };
                self.tell(number, CmEventType::Rejected, i32::from(reason), EventParam::Conn(param));
            }
            Event::Unreachable => self.tell_plain(number, CmEventType::Unreachable, TIMED_OUT),
            Event::Disconnected { answered } => {
                if id.stage == Stage::Connect {
                    id.stage = Stage::Disconnect;
                    self.tell_plain(number, CmEventType::Disconnected, if answered { 0 } else { TIMED_OUT });
                }
            }
            Event::TimewaitExit => self.tell_plain(number, CmEventType::TimewaitExit, 0),
        }
    }
}
