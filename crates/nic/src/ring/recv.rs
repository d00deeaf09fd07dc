//! The receive queue's ring: taken and freed in order.

use scalefabric_transport::host::RecvWqe;
use scalefabric_verbs::Sge;

use super::Refusal;

/// The ring.
#[derive(Debug)]
pub struct RecvRing {}

impl RecvRing {
    /// An empty ring for at least `max_wr` WRs of at least `max_sge` SGEs.
    pub fn new(_max_wr: u32, _max_sge: u32) -> Self {
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
    pub fn poster(&self) -> RecvPoster<'_> {
        todo!()
    }
    /// Engine: takes the next WQE (`srq` is `None`; its slot is its index).
    pub fn take(&self) -> Option<RecvWqe> {
        todo!()
    }
    /// Engine: WQEs that are posted and not taken.
    pub fn posted(&self) -> u32 {
        todo!()
    }
    /// Engine: SGEs of a WQE that was taken and not freed.
    pub fn sges(&self, _slot: u32) -> impl Iterator<Item = Sge> + '_ {
        std::iter::empty()
    }
    /// Engine: frees a slot, and any older one.
    pub fn free(&self, _slot: u32) {
        todo!()
    }
    /// Forgets everything (QP to RESET). The caller holds the engine's lock.
    pub fn reset(&self) {
        todo!()
    }
}

/// The posting side, while it holds the ring's lock.
#[derive(Debug)]
pub struct RecvPoster<'r> {
    _ring: &'r RecvRing,
}

impl RecvPoster<'_> {
    /// Writes a WQE.
    pub fn post(&mut self, _wr_id: u64, _sges: &[Sge]) -> Result<(), Refusal> {
        todo!()
    }
    /// Makes everything posted so far visible to the engine; also done when dropped.
    pub fn ring_doorbell(&mut self) {
        todo!()
    }
}
