//! What a connection's task does with its lanes when the session wants it: makes their QPs, stops them, resolves what was outstanding, posts on one of them, and
//! destroys what is left; and what the directory is told of that.

use super::lane::{self, Lane, Place};
use super::link::lock;
use super::resolve::resolve;
use super::task::Task;
use crate::directory::{ConnectionRecord, ConnectionState};
use crate::error::FabricError;
use crate::path::Path;
use crate::session::{Drained, Input, LaneId};
use scalefabric_verbs::{Errno, Gid};
use std::sync::atomic::Ordering;

impl Task {
    pub(super) fn make(&mut self, id: LaneId, path: Option<Path>, peer: Option<Gid>) {
        let place = Place { path, present: self.path.clone(), peer: peer.or(self.near) };
        let psn = self.shared.random() as u32 & 0xff_ffff;
        match Lane::make(&self.link, id, &place, psn) {
            Ok((lane, qp)) => {
                self.shared.watch_qp(lane.domain, qp.qp_num, self.link.tell.clone());
                self.lanes.push(lane);
                self.inputs.push_back(Input::Made { lane: id, qp });
            }
            // Before anything has flowed, who has no QP left hears that at once, and with the errno that making one has. Later it is worth some patience: QPs are given back.
            Err(error) if self.path.is_none() && error.errno == Some(Errno::ENOMEM) => {
                self.inputs.push_back(Input::Hopeless { error });
            }
            Err(error) => self.inputs.push_back(Input::Failed { lane: id, reason: error.message }),
        }
    }

    pub(super) async fn stop(&mut self) -> Result<Drained, FabricError> {
        (self.hand_over, self.draining, self.migrating) = (None, None, None);
        self.windows.stop();
        let shared = &self.shared;
        let last_receive = |lane: &Lane| shared.had_last_receive(lane.domain, lane.qp.qp_num().get());
        let drained = lane::stop(&self.link, &self.lanes, last_receive).await;
        for lane in self.lanes.drain(..) {
            self.shared.forget_qp(lane.domain, lane.qp.qp_num().get());
            lane.destroy();
        }
        drained
    }

    pub(super) fn resolve(&mut self, peer: &Drained) {
        let mut sender = lock(&self.link.sender);
        let (executed, posted, keys) = (sender.executed, sender.messages, sender.bounds.keys);
        let offers = sender.offers();
        let is_replaced = |id, rkey| {
            let mut of_it = offers.iter().filter(|offer| offer.id == id).peekable();
            of_it.peek().is_some() && of_it.all(|offer| offer.range.rkey != rkey)
        };
        match resolve(&mut sender.log, peer, executed, posted, keys, is_replaced) {
            Ok(again) => {
                sender.repeated += again;
                sender.restart(peer.received);
                for waker in sender.wakers.drain(..) {
                    waker.wake();
                }
                drop(sender);
                self.link.bell.ring();
                self.link.run_handlers();
            }
            Err(reason) => self.inputs.push_back(Input::Contradicted { reason }),
        }
    }

    pub(super) fn take_lane(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.id == id) else { return };
        self.link.broken_told.store(false, Ordering::Release);
        lock(&self.link.sender).use_lane(lane.outlet());
        self.take_path(id);
        // A window is its QP's.
        self.bind_windows(None);
    }

    /// The path of this lane is the connection's.
    pub(super) fn take_path(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.iter().find(|lane| lane.id == id) else { return };
        self.home.arrive(&lane.path);
        self.path = Some(lane.path.clone());
        self.session.set_path(lane.path.clone());
        self.update_record(None);
    }

    pub(super) fn destroy(&mut self, gone: impl Fn(LaneId) -> bool) {
        lock(&self.link.receiver).remove(&gone);
        let (dead, alive) = std::mem::take(&mut self.lanes).into_iter().partition(|lane| gone(lane.id));
        self.lanes = alive;
        for lane in dead {
            self.shared.forget_qp(lane.domain, lane.qp.qp_num().get());
            lane.destroy();
        }
        if !self.lanes.is_empty() {
            self.link.detach(|domain| self.lanes.iter().any(|lane| lane.domain == domain));
        }
        self.update_record(None);
    }

    pub(super) fn report(&mut self, state: ConnectionState) {
        self.update_record(Some(state));
        if state == ConnectionState::Up
            && let Some(ready) = self.ready.take()
        {
            ready(Ok(()));
        }
        self.link.wake_all();
    }

    /// Brings the directory's record up to date.
    pub(super) fn update_record(&mut self, state: Option<ConnectionState>) {
        let Some(path) = &self.path else { return };
        let mut record = lock(&self.link.record);
        let state = state.or(record.as_ref().map(|record| record.state)).unwrap_or(ConnectionState::Connecting);
        let newest = self.lanes.iter().max_by_key(|lane| lane.id);
        let new = ConnectionRecord {
            id: self.link.id.clone(),
            tenant: self.link.config.tenant.clone(),
            service: self.link.service.clone(),
            qp_num: newest.map_or(0, |lane| lane.qp.qp_num().get()),
            peer_qp_num: newest.and_then(|lane| lane.qp.query().ok()).map_or(0, |(attr, _)| attr.dest_qp_num.get()),
            path: path.clone(),
            alternatives: lane::alternatives(&self.link.hubs, path),
            state,
            generation: self.session.generation(),
        };
        if record.as_ref() != Some(&new) {
            self.shared.directory.publish(new.clone());
            *record = Some(new);
        }
    }
}
