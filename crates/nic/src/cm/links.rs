//! The connections of this process, by our communication ID, filed under what else names them. Whoever changed one calls [`Links::settle`] before it lets go
//! of the lock, so that names and deadlines are those of the connection.

use std::collections::HashMap;
use std::sync::Arc;

use scalefabric_transport::Time;
use scalefabric_transport::cm::{Connection, QpPath, Side, State as Stand};
use scalefabric_verbs::{AddressVector, Gid, Qpn};
use scalefabric_wire::cm::CommId;

use super::devices::Device;
use super::index::{Deadlines, PeerNames, Peers};
use crate::engine::drive::Core;
use crate::share::connections::Orphan;

/// A connection with what its messages need.
pub(super) struct Link {
    pub(super) machine: Connection,
    pub(super) core: Arc<Core>,
    /// Kept open for as long as the connection lasts; `None` for the connection of a dead process.
    pub(super) device: Option<Arc<Device>>,
    /// Way of the messages.
    pub(super) av: AddressVector,
    pub(super) path: QpPath,
    pub(super) packet_life_time: u8,
    /// The identifier, while there is one.
    pub(super) id: Option<u32>,
    /// Record in the segment.
    pub(super) noted: Option<usize>,
}

/// Connections by our communication ID.
#[derive(Default)]
pub(super) struct Links {
    all: HashMap<u32, Link>,
    deadlines: Deadlines,
    peers: Peers,
}

impl Links {
    pub(super) fn insert(&mut self, key: u32, link: Link) {
        self.all.insert(key, link);
        self.settle(key);
    }

    /// Files a connection anew after a change; forgets it when it is over.
    pub(super) fn settle(&mut self, key: u32) {
        let link = self.all.get(&key).filter(|link| link.machine.state() != Stand::Closed);
        self.deadlines.set(key, link.and_then(|link| link.machine.deadline()));
        self.peers.file(key, link.and_then(Link::peer_names));
        if link.is_none() {
            self.all.remove(&key);
        }
    }

    pub(super) fn get(&self, key: &u32) -> Option<&Link> {
        self.all.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &u32) -> Option<&mut Link> {
        self.all.get_mut(key)
    }

    pub(super) fn contains_key(&self, key: &u32) -> bool {
        self.all.contains_key(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.keys().copied()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadlines.first()
    }

    pub(super) fn due(&self, now: Time) -> Vec<u32> {
        self.deadlines.due(now)
    }

    /// The passive side of a connection that the same REQ has opened.
    pub(super) fn opened_by(&self, core: &Arc<Core>, peer: Gid, guid: u64, id: CommId) -> Option<u32> {
        let is_it = |link: &Link| Arc::ptr_eq(&link.core, core) && link.machine.side() == Side::Passive;
        self.peers.with_id(peer, guid, id).find(|key| self.all.get(key).is_some_and(is_it))
    }

    /// A connection that is up with a QP of the peer.
    pub(super) fn up_with(&self, core: &Arc<Core>, peer: Gid, guid: u64, qpn: Qpn) -> Option<u32> {
        let is_it = |link: &Link| Arc::ptr_eq(&link.core, core) && link.machine.is_up();
        self.peers.with_qp(peer, guid, qpn).find(|key| self.all.get(key).is_some_and(is_it))
    }

    /// A connection with this ID of the peer.
    pub(super) fn of_peer(&self, peer: Gid, guid: u64, id: CommId) -> Option<u32> {
        self.peers.with_id(peer, guid, id).next()
    }
}

impl Link {
    /// `None` as long as an active side has heard nothing of its peer.
    fn peer_names(&self) -> Option<PeerNames> {
        let machine = &self.machine;
        let (guid, id, qpn) = (machine.remote_guid(), machine.remote_id(), machine.remote_qpn());
        let is_known = machine.side() == Side::Passive || guid != 0 || id != CommId(0);
        is_known.then_some(PeerNames { gid: self.av.dgid, guid, id, qpn })
    }

    /// Keeps the segment's record in step: others must know a connection from the moment the peer may believe in it.
    pub(super) fn note(&mut self) {
        let Some(device) = &self.device else { return };
        match (self.machine.is_up(), self.noted) {
            (true, None) => {
                let orphan = Orphan {
                    local_id: self.machine.local_id().0,
                    remote_id: self.machine.remote_id().0,
                    remote_qpn: self.machine.remote_qpn().get(),
                    port_num: self.av.port_num,
                    sgid: self.path_source(),
                    dgid: self.av.dgid,
                };
                self.noted = device.segment().note_connection(device.slot(), &orphan);
            }
            (false, Some(index)) => {
                device.segment().forget_connection(index);
                self.noted = None;
            }
            _ => {}
        }
    }

    fn path_source(&self) -> Gid {
        let held = self.core.lock();
        let port = held.engine.tables().port(self.av.port_num);
        port.and_then(|port| port.gid(u32::from(self.av.sgid_index))).unwrap_or_default()
    }
}
