//! The ring of a shared receive queue: WQEs are taken in order and freed in any order.

use scalefabric_transport::host::RecvWqe;
use scalefabric_verbs::{Sge, Srqn};

use super::Refusal;

/// The ring.
#[derive(Debug)]
pub struct SharedRecvRing {}

impl SharedRecvRing {
    /// An empty ring for at least `max_wr` WRs of at least `max_sge` SGEs, that can grow to `limit_wr` WRs.
    pub fn new(_srqn: Srqn, _max_wr: u32, _max_sge: u32, _limit_wr: u32) -> Self {
        todo!()
    }
    /// WRs it holds.
    pub fn capacity(&self) -> u32 {
        todo!()
    }
    /// SGEs a WR may have.
    pub fn max_sge(&self) -> u32 {
        todo!()
    }
    /// Takes the posting side's lock.
    pub fn poster(&self) -> SharedPoster<'_> {
        todo!()
    }
    /// Engine: takes the next WQE. The flag: raise SRQ_LIMIT_REACHED now (the limit is disarmed by that).
    pub fn take(&self) -> Option<(RecvWqe, bool)> {
        todo!()
    }
    /// WQEs that are posted and not taken.
    pub fn posted(&self) -> u32 {
        todo!()
    }
    /// Engine: SGEs of a WQE that was taken and not freed.
    pub fn sges(&self, _slot: u32) -> impl Iterator<Item = Sge> + '_ {
        std::iter::empty()
    }
    /// Engine: frees a slot.
    pub fn free(&self, _slot: u32) {
        todo!()
    }
    /// Arms the limit; 0 disarms. The caller holds the engine's lock. True: raise SRQ_LIMIT_REACHED now, because fewer
    /// are posted already (and it is disarmed by that).
    pub fn arm_limit(&self, _limit: u32) -> bool {
        todo!()
    }
    /// The armed limit, 0 for none.
    pub fn limit(&self) -> u32 {
        todo!()
    }
    /// Grows to at least `max_wr` WRs. The caller holds the engine's lock. False (and no change) if that is less than it
    /// holds now or more than `limit_wr`.
    pub fn grow(&self, _max_wr: u32) -> bool {
        todo!()
    }
}

/// The posting side, while it holds the ring's lock.
#[derive(Debug)]
pub struct SharedPoster<'r> {
    _ring: &'r SharedRecvRing,
}

impl SharedPoster<'_> {
    /// Writes a WQE.
    pub fn post(&mut self, _wr_id: u64, _sges: &[Sge]) -> Result<(), Refusal> {
        todo!()
    }
    /// Makes everything posted so far visible to the engine; also done when dropped.
    pub fn ring_doorbell(&mut self) {
        todo!()
    }
}
