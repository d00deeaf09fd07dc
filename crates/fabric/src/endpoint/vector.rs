//! New address vectors for QPs that live: drained in SQD, changed, and back to RTS (clause 10.3.1.5). When that is done is the session's ([`crate::session`]).

use super::lane::Lane;
use super::task::Task;
use crate::error::FabricError;
use crate::path::Path;
use crate::session::{Input, LaneId};
use scalefabric_verbs::{Gid, PKey, QpAttr, QpAttrMask, QpState};
use std::sync::atomic::Ordering;

/// Where a QP stands on its way through SQD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Packets of what was begun are on their way.
    Draining,
    /// None is.
    Drained,
    /// It failed.
    Failed,
}

/// What is done when a QP is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The session is told.
    Tell,
    /// It goes on.
    Resume,
}

impl Lane {
    /// Whether it could take this path; the index of its GID.
    pub(super) fn could_take(&self, path: &Path) -> Result<u8, FabricError> {
        let index = super::lane::gid_index(&self.hub, path)?;
        let mtu = self.hub.mtu(path.port_num)?;
        if mtu < self.mtu() {
            return Err(FabricError::environment(format!(
                "port {} of {} has an MTU of {}, the QP sends packets of {}",
                path.port_num,
                path.device,
                mtu.bytes(),
                self.mtu().bytes()
            )));
        }
        Ok(index)
    }

    /// To SQD, if it is not there.
    fn drain(&self) -> Result<(), FabricError> {
        if self.qp.query()?.0.qp_state != QpState::Sqd {
            let (attr, mask) = QpAttr::sqd(true);
            self.qp.modify(&attr, mask)?;
        }
        Ok(())
    }

    fn queue(&self) -> Queue {
        match self.qp.query() {
            Ok((attr, _)) if attr.qp_state == QpState::Sqd => {
                if attr.sq_draining {
                    Queue::Draining
                } else {
                    Queue::Drained
                }
            }
            _ => Queue::Failed,
        }
    }

    /// Gives a drained QP a new address vector.
    fn turn(&mut self, pkey: PKey, path: Option<Path>, dgid: Option<Gid>) -> Result<(), FabricError> {
        let mut path = path.unwrap_or_else(|| self.path.clone());
        path.dgid = dgid.unwrap_or(self.path.dgid);
        let sgid_index = self.could_take(&path)?;
        let ah_attr = super::lane::address_vector(&path, sgid_index);
        // The partition has a place of its own in each port's table.
        let pkey_index = self.hub.pkey_index(path.port_num, pkey)?;
        let attr = QpAttr { qp_state: QpState::Sqd, ah_attr, pkey_index, ..QpAttr::default() };
        self.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PKEY_INDEX)?;
        self.path = path;
        Ok(())
    }

    fn resume(&self) -> Result<(), FabricError> {
        let (attr, mask) = QpAttr::resume();
        Ok(self.qp.modify(&attr, mask)?)
    }
}

impl Task {
    pub(super) fn lane_mut(&mut self, id: LaneId) -> Result<&mut Lane, FabricError> {
        let lane = self.lanes.iter_mut().find(|lane| lane.id == id);
        lane.ok_or_else(|| FabricError::environment("the QP is gone"))
    }

    pub(super) fn drain(&mut self, id: LaneId, path: Option<&Path>) {
        let begun = self.lane_mut(id).and_then(|lane| {
            if let Some(path) = path {
                lane.could_take(path)?;
            }
            lane.drain()
        });
        match begun {
            Ok(()) => {
                self.draining = Some((id, Then::Tell));
                self.look();
            }
            Err(error) => self.inputs.push_back(Input::NotVectored { lane: id, reason: error.message }),
        }
    }

    /// Looks whether the QP that is to take a new vector is drained.
    pub(super) fn look_at_queue(&mut self) {
        let Some((id, then)) = self.draining else { return };
        let queue = self.lane_mut(id).map_or(Queue::Failed, |lane| lane.queue());
        let input = match queue {
            Queue::Draining => return,
            Queue::Drained => Input::Quiet { lane: id },
            Queue::Failed => Input::Broken { lane: id, reason: "the QP failed while it was drained".into() },
        };
        self.draining = None;
        match then {
            Then::Tell => self.inputs.push_back(input),
            Then::Resume => self.resume(id),
        }
    }

    pub(super) fn vector(&mut self, id: LaneId, path: Option<Path>, dgid: Option<Gid>) {
        let pkey = self.link.pkey;
        match self.lane_mut(id).and_then(|lane| lane.turn(pkey, path, dgid)) {
            Ok(()) => {
                self.link.statistics.moves.fetch_add(1, Ordering::Relaxed);
                self.link.statistics.turned.fetch_add(1, Ordering::Relaxed);
                self.take_path(id);
                self.inputs.push_back(Input::Vectored { lane: id });
            }
            Err(error) => self.inputs.push_back(Input::NotVectored { lane: id, reason: error.message }),
        }
    }

    pub(super) fn resume(&mut self, id: LaneId) {
        self.draining = None;
        let Ok(lane) = self.lane_mut(id) else { return };
        // A QP that still drains does not go back before it has.
        if lane.queue() == Queue::Draining {
            self.draining = Some((id, Then::Resume));
            return;
        }
        // One that failed meanwhile says so itself.
        let _ = lane.resume();
    }
}
