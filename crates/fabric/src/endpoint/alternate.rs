//! Alternate paths of QPs that live (APM, clause 17.2.8): loaded at both ends while data flows, armed by a probe that goes one way and an acknowledgement that
//! comes back, then taken by the side that leads; the other follows. When that is done is the session's ([`crate::session`]). Nothing migrates here because
//! a port failed: that is a rebuild, which need not wait for a QP's retries.

use super::hub::Hub;
use super::lane::{Lane, address_vector};
use super::link::lock;
use super::task::Task;
use crate::error::FabricError;
use crate::path::Path;
use crate::session::{Input, LaneId, Role};
use scalefabric_verbs::{Gid, MigState, PKey, QpAttr, QpAttrMask, QpState};
use std::sync::atomic::Ordering;

/// `AUTO_PATH_MIG` of `enum ibv_device_cap_flags`.
const AUTO_PATH_MIG: u32 = 1 << 4;

/// A QP that goes over to its alternate path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migrating {
    lane: LaneId,
    /// The operation whose end says that the peer is armed; `None`: there was no room for it yet.
    probe: Option<u64>,
}

/// Where a QP stands on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// It waits for the peer.
    Rearm,
    /// It may migrate.
    Armed,
    /// It is on its alternate path: by itself, because it lost the other, or because its peer asked.
    Moved,
    /// It has failed, or has no alternate path.
    Lost,
}

impl Hub {
    /// Whether QPs of the device load alternate paths.
    pub fn has_alternate_paths(&self) -> bool {
        self.attr.device_cap_flags & AUTO_PATH_MIG != 0
    }
}

impl Lane {
    /// Loads an alternate path, and says so to the peer's QP with every packet from now on.
    fn load(&mut self, pkey: PKey, path: Option<Path>, dgid: Option<Gid>) -> Result<(), FabricError> {
        let mut path = path.unwrap_or_else(|| self.path.clone());
        path.dgid = dgid.unwrap_or(self.path.dgid);
        let sgid_index = self.could_take(&path)?;
        let attr = QpAttr {
            alt_ah_attr: address_vector(&path, sgid_index),
            alt_port_num: path.port_num,
            alt_pkey_index: self.hub.pkey_index(path.port_num, pkey)?,
            alt_timeout: self.qp.query()?.0.timeout,
            path_mig_state: MigState::Rearm,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE)?;
        self.alternate = Some(path);
        Ok(())
    }

    fn stand(&self) -> Stand {
        let (Some(_), Ok((attr, _))) = (&self.alternate, self.qp.query()) else { return Stand::Lost };
        if !matches!(attr.qp_state, QpState::Rts | QpState::Sqd) {
            return Stand::Lost;
        }
        match attr.path_mig_state {
            MigState::Rearm => Stand::Rearm,
            MigState::Armed => Stand::Armed,
            // Since it was loaded nothing else has changed that.
            MigState::Migrated => Stand::Moved,
        }
    }

    fn set_state(&self, path_mig_state: MigState) -> Result<(), FabricError> {
        let attr = QpAttr { path_mig_state, ..QpAttr::default() };
        Ok(self.qp.modify(&attr, QpAttrMask::PATH_MIG_STATE)?)
    }

    /// It is on its alternate path.
    fn arrive(&mut self) {
        if let Some(path) = self.alternate.take() {
            self.path = path;
        }
    }
}

impl Task {
    pub(super) fn load(&mut self, id: LaneId, path: Option<Path>, dgid: Option<Gid>) {
        let pkey = self.link.pkey;
        let loaded = self.lane_mut(id).and_then(|lane| lane.load(pkey, path, dgid));
        self.inputs.push_back(match loaded {
            Ok(()) => Input::Loaded { lane: id },
            Err(error) => Input::NotVectored { lane: id, reason: error.message },
        });
    }

    pub(super) fn unload(&mut self, id: LaneId) {
        self.migrating = None;
        let Ok(lane) = self.lane_mut(id) else { return };
        // The peer has not loaded its path, so that this QP cannot have been armed, or it rebuilds, and then the QP goes soon.
        if lane.stand() == Stand::Rearm {
            let _ = lane.set_state(MigState::Migrated);
        }
        lane.alternate = None;
    }

    pub(super) fn migrate(&mut self, id: LaneId) {
        self.migrating = Some(Migrating { lane: id, probe: None });
        self.look();
    }

    /// Looks whether the QP may go over to its alternate path, or has.
    pub(super) fn look_at_migration(&mut self) {
        let Some(migrating) = self.migrating else { return };
        let leads = self.session.role() == Role::Leader;
        let stand = self.lane_mut(migrating.lane).map_or(Stand::Lost, |lane| lane.stand());
        match stand {
            Stand::Lost => {
                self.migrating = None;
                let reason = "the QP failed before it came to its alternate path".into();
                self.inputs.push_back(Input::Broken { lane: migrating.lane, reason });
            }
            Stand::Moved => self.arrive(migrating.lane),
            // Who follows is told after the leader's QP has migrated, for which it was armed.
            Stand::Armed if !leads || self.peer_is_armed(migrating) => {
                let migrated = self.lane_mut(migrating.lane).and_then(|lane| lane.set_state(MigState::Migrated));
                match migrated {
                    Ok(()) => self.arrive(migrating.lane),
                    Err(error) => {
                        self.migrating = None;
                        self.inputs.push_back(Input::Broken { lane: migrating.lane, reason: error.message });
                    }
                }
            }
            Stand::Armed | Stand::Rearm => self.arm_peer(migrating),
        }
    }

    /// Sends something, if nothing that was posted after the path was loaded is on its way.
    fn arm_peer(&mut self, migrating: Migrating) {
        if migrating.probe.is_none() {
            let probe = lock(&self.link.sender).probe();
            self.migrating = Some(Migrating { probe, ..migrating });
        }
    }

    /// What was posted after this side loaded its path has been executed: the peer has heard that, and it had loaded its own before.
    fn peer_is_armed(&self, migrating: Migrating) -> bool {
        migrating.probe.is_some_and(|probe| lock(&self.link.sender).has_ended(probe))
    }

    fn arrive(&mut self, id: LaneId) {
        self.migrating = None;
        let Ok(lane) = self.lane_mut(id) else { return };
        lane.arrive();
        self.link.statistics.moves.fetch_add(1, Ordering::Relaxed);
        self.link.statistics.migrated.fetch_add(1, Ordering::Relaxed);
        self.take_path(id);
        // What comes next tells both sides what was lost by the old path; without it their timers would.
        lock(&self.link.sender).probe();
        self.inputs.push_back(Input::Vectored { lane: id });
        self.leave_dead_port();
    }
}
