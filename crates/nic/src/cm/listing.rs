//! The identifiers of a device, for tools.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use scalefabric_wire::ids::Qpn;

use super::Whole;
use super::id::{Id, Stage};
use crate::engine::drive::Core;
use crate::provider::communication;
use crate::resources::CmIdResource;

/// How long to wait for a lock. Not longer: whoever holds it may be waiting for the thread that lists.
const PATIENCE: Duration = Duration::from_millis(20);

fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// The identifiers that use a device of this process, listeners for any address among them. None while the communication
/// manager is busy for long.
pub(crate) fn list(core: &Core) -> Vec<CmIdResource> {
    let Whole { agent, .. } = communication();
    let Some(agent) = lock(agent).and_then(|agent| agent.clone()) else { return Vec::new() };
    let Some(state) = lock(&agent.state) else { return Vec::new() };
    let is_it = |other: &Arc<Core>| std::ptr::eq(&**other, core);
    let uses = |id: &&Id| {
        id.place.as_ref().is_some_and(|place| is_it(place.device.core()))
            || id.claims.iter().any(|(device, _)| is_it(device.core()))
    };
    let mut all: Vec<_> = state
        .ids
        .values()
        .filter(uses)
        .map(|id| CmIdResource {
            cm_idn: id.number,
            lqpn: None,
            rqpn: id
                .link
                .and_then(|link| state.links.get(&link))
                .map(|link| link.machine.remote_qpn())
                .filter(|qpn| *qpn != Qpn::new(0))
                .map(Qpn::get),
            qp_type: id.qp_type as u32,
            state: number(id.stage),
            ps: u32::from(id.space.to_raw()),
            port_num: id.place.as_ref().map_or(0, |place| place.port_num),
            src: id.local,
            dst: id.peer,
        })
        .collect();
    all.sort_by_key(|id| id.cm_idn);
    all
}

/// As `enum rdma_cm_state` of Linux counts.
fn number(stage: Stage) -> u32 {
    match stage {
        Stage::Idle => 0,
        Stage::AddrResolved => 2,
        Stage::RouteResolved => 4,
        Stage::Connect => 5,
        Stage::Disconnect => 6,
        Stage::AddrBound => 7,
        Stage::Listen => 8,
        Stage::Removed => 9,
    }
}
