//! Receive queues of the simulation: buffers, which of them are posted, and when there are none.

use std::sync::Arc;

use scalefabric_verbs::{
    AccessFlags, MemoryRegion, PostError, ProtectionDomain, QueuePair, RecvWr, Sge, SharedReceiveQueue, VerbsError,
};

use crate::random::Random;
use crate::station::{RECEIVES, SGES};
use crate::workload::{BUFFER, GAP, Layout};

/// Where receives are posted.
#[derive(Debug)]
pub enum Queue {
    /// A QP's own.
    Qp(Arc<dyn QueuePair>),
    /// Shared.
    Srq(Arc<dyn SharedReceiveQueue>),
}

/// Marks the `wr_id`s of receives.
pub const RECEIVE_BIT: u64 = 1 << 63;

/// A receive queue.
#[derive(Debug)]
pub struct Receiver {
    /// Its number in the simulation.
    pub index: usize,
    queue: Queue,
    region: Arc<dyn MemoryRegion>,
    layouts: Vec<Layout>,
    free: Vec<usize>,
    next: u32,
    /// Nothing is posted before this time.
    pub hungry_until: u64,
    /// The QP is gone, or failed: nothing more is posted.
    pub closed: bool,
    /// The connection and the side of it that receives here.
    pub connection: (usize, usize),
}

impl Receiver {
    /// A queue with buffers, none of which is posted.
    pub fn new(
        index: usize,
        connection: (usize, usize),
        queue: Queue,
        pd: &Arc<dyn ProtectionDomain>,
        random: &mut Random,
    ) -> Result<Self, VerbsError> {
        let region = pd.alloc_mr(RECEIVES as usize * BUFFER, AccessFlags::LOCAL_WRITE)?;
        let layouts = (0..RECEIVES).map(|_| Layout::new(random)).collect();
        let free = (0..RECEIVES as usize).rev().collect();
        Ok(Self { index, queue, region, layouts, free, next: 0, hungry_until: 0, closed: false, connection })
    }

    /// True if a buffer is free.
    pub fn wants(&self) -> bool {
        !self.closed && !self.free.is_empty()
    }

    /// Posts at most `count` free buffers.
    pub fn post(&mut self, count: usize) -> Result<(), PostError> {
        for _ in 0..count {
            let Some(slot) = self.free.pop() else { break };
            let mut sges = [Sge::default(); SGES as usize];
            let mut used = 0;
            let base = slot * BUFFER;
            for (offset, range) in self.layouts[slot].pieces(BUFFER - 2 * GAP) {
                let addr = self.region.addr() + (base + offset) as u64;
                sges[used] = Sge { addr, length: range.len() as u32, lkey: self.region.lkey() };
                used += 1;
            }
            let wr_id = RECEIVE_BIT | (self.index as u64) << 48 | (slot as u64) << 32 | u64::from(self.next);
            self.next += 1;
            let chain = [RecvWr { wr_id, sg_list: &sges[..used] }];
            match &self.queue {
                Queue::Qp(qp) => qp.post_recv(&chain)?,
                Queue::Srq(srq) => srq.post_recv(&chain)?,
            }
        }
        Ok(())
    }

    /// Queue and slot of a `wr_id`.
    pub fn decode(wr_id: u64) -> (usize, usize, u64) {
        ((wr_id >> 48 & 0x7fff) as usize, (wr_id >> 32 & 0xffff) as usize, wr_id & 0xffff_ffff)
    }

    /// Copies out what came into a buffer, and gives the buffer back. Bytes between its pieces must still be zero.
    pub fn take(&mut self, slot: usize, length: usize, out: &mut Vec<u8>) -> Result<bool, VerbsError> {
        let intact = gather(&*self.region, slot * BUFFER, &self.layouts[slot], length, out)?;
        self.free.push(slot);
        Ok(intact)
    }
}

/// Copies the pieces of a buffer together; false if bytes between them were touched.
pub fn gather(
    region: &dyn MemoryRegion,
    base: usize,
    layout: &Layout,
    length: usize,
    out: &mut Vec<u8>,
) -> Result<bool, VerbsError> {
    out.clear();
    out.resize(length, 0);
    for (offset, range) in layout.pieces(length) {
        region.read(base + offset, &mut out[range])?;
    }
    let mut intact = true;
    for gap in layout.gaps() {
        let mut bytes = [0; GAP];
        region.read(base + gap, &mut bytes)?;
        intact &= bytes == [0; GAP];
    }
    Ok(intact)
}
