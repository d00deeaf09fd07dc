//! Listening and answering, and the end of things: disconnecting, destroying, moving to another channel.

use std::net::{Ipv4Addr, SocketAddr};

use scalefabric_transport::cm::{Reply, Side, State as Stand, request};
use scalefabric_verbs::cm::{MAX_ACCEPT_PRIVATE_DATA, MAX_REJECT_PRIVATE_DATA, reject_reason};
use scalefabric_verbs::{CmEvent, CmEventType, ConnParam, Ece, Errno, VerbsError};

use super::active::too_long;
use super::agent::State;
use super::id::Stage;
use crate::clock;

/// Requests that a listener queues, at most: the kernel's limit.
const MAX_BACKLOG: u32 = 1024;

/// The address that a listener without one listens on.
pub(super) fn any() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))
}

impl State {
    pub(super) fn listen(&mut self, number: u32, backlog: u32) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        id.expect("listen", &[Stage::AddrBound])?;
        if let Some(local) = id.local
            && !id.claims.iter().all(|(device, index)| device.segment().listen_on(device.slot(), *index))
        {
            return Err(VerbsError::environment(
                Errno::EADDRINUSE,
                format!("another identifier listens on {local} in this port space already"),
            ));
        }
        id.backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        id.stage = Stage::Listen;
        if let Some(service) = id.service() {
            self.listeners.entry(service).or_default().push(number);
        }
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        number: u32,
        param: Option<&ConnParam>,
        uid: Option<u64>,
        ece: Ece,
    ) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        id.expect("accept", &[Stage::Connect])?;
        if id.is_ud() {
            return self.accept_service(number, param, uid);
        }
        let gone = || {
            VerbsError::misuse(
                Errno::EINVAL,
                format!("nothing to accept on identifier {number}: the peer has given up"),
            )
        };
        let key = id.link.ok_or_else(gone)?;
        let place = id.place.clone();
        let starting_psn = self.links.get(&key).map(|link| link.path.rq_psn).unwrap_or_default();
        let link = self.links.get_mut(&key).ok_or_else(gone)?;
        let done = match (link.machine.side(), param) {
            (Side::Active, _) => link.machine.establish(),
            (Side::Passive, Some(param)) => {
                let private_data = request::padded(&[], &param.private_data)
                    .ok_or_else(|| too_long("accept", param.private_data.len(), MAX_ACCEPT_PRIVATE_DATA))?;
                let rep = Reply {
                    ca_guid: place.map_or(0, |place| place.device.guid()),
                    qpn: param.qp_num,
                    starting_psn,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    flow_control: param.flow_control,
                    rnr_retry_count: param.rnr_retry_count,
                    srq: param.srq,
                    vendor_id: ece.vendor_id,
                    private_data,
                };
                link.path.responder_resources = param.responder_resources;
                link.path.initiator_depth = param.initiator_depth;
                let xrc = link.path.qp_type == scalefabric_verbs::QpType::XrcRecv;
                let rep = rep.message(link.machine.local_id(), link.machine.remote_id(), xrc);
                link.machine.accept(clock::now(), rep, ece.attr_mod)
            }
            (Side::Passive, None) => {
                return Err(VerbsError::invalid("the passive side accepts with parameters: at least its QP"));
            }
        };
        if !done {
            return Err(gone());
        }
        if let Some(uid) = uid {
            self.id(number)?.uid = uid;
        }
        self.pump(key);
        Ok(())
    }

    pub(super) fn reject(&mut self, number: u32, private_data: &[u8], reason: u8) -> Result<(), VerbsError> {
        if !matches!(reason, reject_reason::CONSUMER_DEFINED | reject_reason::VENDOR_OPTION_NOT_SUPPORTED) {
            return Err(VerbsError::invalid(format!(
                "reject reason {reason}: a consumer may give 28 (its own) or 35 (vendor option not supported)"
            )));
        }
        let id = self.id(number)?;
        if id.is_ud() {
            return self.reject_service(number, private_data);
        }
        let nothing = || VerbsError::invalid(format!("nothing to reject on identifier {number}"));
        let key = id.link.ok_or_else(nothing)?;
        let data = request::padded(&[], private_data)
            .ok_or_else(|| too_long("reject", private_data.len(), MAX_REJECT_PRIVATE_DATA))?;
        let link = self.links.get_mut(&key).ok_or_else(nothing)?;
        if !link.machine.reject(clock::now(), u16::from(reason), &[], data) {
            return Err(nothing());
        }
        self.pump(key);
        Ok(())
    }

    pub(super) fn disconnect(&mut self, number: u32) -> Result<(), VerbsError> {
        let id = self.id(number)?;
        if !matches!(id.stage, Stage::Connect | Stage::Disconnect) {
            return Err(VerbsError::invalid(format!("identifier {number} has no connection")));
        }
        // A second call, or one after the peer's, changes nothing.
        if let Some(key) = id.link {
            if let Some(link) = self.links.get_mut(&key) {
                link.machine.disconnect(clock::now());
            }
            self.pump(key);
        }
        Ok(())
    }

    /// `notify` of COMM_EST.
    pub(super) fn communicate(&mut self, number: u32) -> Result<(), VerbsError> {
        let nothing = || VerbsError::invalid(format!("identifier {number} has no connection"));
        let key = self.id(number)?.link.ok_or_else(nothing)?;
        let link = self.links.get_mut(&key).ok_or_else(nothing)?;
        if !link.machine.communicate() {
            // The RTU was faster.
            let up = link.machine.state() == Stand::Established;
            return if up {
                Err(VerbsError::misuse(Errno::EISCONN, format!("identifier {number} is connected already")))
            } else {
                Err(nothing())
            };
        }
        self.pump(key);
        Ok(())
    }

    /// Destroys an identifier with everything that hangs on it; gives the number of events its application has had.
    pub(super) fn destroy(&mut self, number: u32) -> Result<u32, VerbsError> {
        let mut id = self.strike(number).ok_or_else(|| super::id::no_such(number))?;
        let now = clock::now();
        id.release();
        if let Some(key) = id.link {
            if let Some(link) = self.links.get_mut(&key) {
                link.id = None;
                link.machine.abandon(now);
            }
            self.pump(key);
        }
        if let Some(key) = id.question {
            self.questions.remove(key);
        }
        if let Some(asked) = id.asked.take() {
            self.refuse_service(&asked, &[]);
        }
        let joins = std::mem::take(&mut id.joins);
        for join in &joins {
            self.joins.remove(join);
        }
        let mut children = Vec::new();
        if let Some(line) = self.channels.get(&id.channel) {
            line.events.forget(|event| {
                let join = matches!(event.event, CmEventType::MulticastJoin | CmEventType::MulticastError);
                let own = if join {
                    joins.contains(&event.id)
                } else {
                    event.listen_id.map_or(event.id == number, |listener| listener == number)
                };
                if own && event.event == CmEventType::ConnectRequest {
                    children.push(event.id);
                }
                own
            });
        }
        for child in children {
            let _ = self.destroy(child);
        }
        Ok(id.reported)
    }

    /// An event is handed out.
    pub(super) fn reported(&mut self, event: &CmEvent) {
        let of = event.listen_id.unwrap_or(event.id);
        if let Some(join) = self.joins.get_mut(&event.id)
            && matches!(event.event, CmEventType::MulticastJoin | CmEventType::MulticastError)
        {
            join.reported += 1;
            let id = join.id;
            if let Some(id) = self.ids.get_mut(&id) {
                id.reported += 1;
            }
            return;
        }
        if let Some(id) = self.ids.get_mut(&of) {
            id.reported += 1;
            if event.event == CmEventType::ConnectRequest {
                id.backlog += 1;
            }
        }
    }

    /// Moves an identifier and its undelivered events to another channel.
    pub(super) fn migrate(&mut self, number: u32, to: u32) -> Result<u32, VerbsError> {
        let from = self.id(number)?.channel;
        let queue = |channel: u32| {
            let queue = self.channels.get(&channel).map(|line| line.events.clone());
            queue.ok_or_else(|| VerbsError::invalid("the channel to migrate to is closed"))
        };
        let (old, new) = (queue(from)?, queue(to)?);
        let joins = self.id(number)?.joins.clone();
        let mut children = Vec::new();
        if from != to {
            old.forget(|event| {
                let join = matches!(event.event, CmEventType::MulticastJoin | CmEventType::MulticastError);
                let own = if join {
                    joins.contains(&event.id)
                } else {
                    event.listen_id.map_or(event.id == number, |listener| listener == number)
                };
                if own {
                    new.push(event.clone());
                    // The request's new identifier goes where its listener goes.
                    if event.event == CmEventType::ConnectRequest {
                        children.push(event.id);
                    }
                }
                own
            });
            new.wake();
        }
        children.into_iter().chain([number]).for_each(|id| self.move_to(id, to));
        Ok(self.id(number)?.reported)
    }
}
