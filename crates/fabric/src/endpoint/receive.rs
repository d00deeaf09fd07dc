//! The receiving half of a connection: receives from a pool over an SRQ, which lanes and connections share, and messages in the order in which they were
//! sent, also when two lanes are there at once. It counts what came, for rebuild and hand-over believe its count. It may not lend the bytes: they are copied out.

use super::hub::Hub;
use super::traffic::Traffic;
use crate::error::FabricError;
use crate::session::LaneId;
use scalefabric_verbs::{
    AccessFlags, CompletionQueue, MemoryRegion, RecvWr, Sge, SharedReceiveQueue, SrqInit, WcFlags, WcOpcode, WcStatus,
    WorkCompletion,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

/// Receives of one size in one SRQ.
#[derive(Debug)]
pub(crate) struct ReceivePool {
    pub srq: Arc<dyn SharedReceiveQueue>,
    region: Arc<dyn MemoryRegion>,
    pub receives: u32,
    pub bytes: u32,
}

impl ReceivePool {
    /// Makes and posts them.
    pub fn new(hub: &Hub, receives: u32, bytes: u32) -> Result<Arc<Self>, FabricError> {
        let most = hub.attr.max_srq_wr;
        if receives == 0 || receives > most {
            return Err(FabricError::misuse(format!(
                "receives {receives} is not 1 to {most}, what the device's SRQ holds"
            )));
        }
        let srq = hub.pd.create_srq(&SrqInit { max_wr: receives, max_sge: 1, srq_limit: 0, xrc: None })?;
        let region = hub.pd.alloc_mr(receives as usize * bytes.max(1) as usize, AccessFlags::LOCAL_WRITE)?;
        Self::of(srq, region, receives, bytes)
    }

    /// Of these parts.
    pub fn of(
        srq: Arc<dyn SharedReceiveQueue>,
        region: Arc<dyn MemoryRegion>,
        receives: u32,
        bytes: u32,
    ) -> Result<Arc<Self>, FabricError> {
        let pool = Arc::new(Self { srq, region, receives, bytes });
        for slot in 0..receives {
            pool.post(slot)?;
        }
        Ok(pool)
    }

    fn post(&self, slot: u32) -> Result<(), FabricError> {
        let addr = self.region.addr() + u64::from(slot) * u64::from(self.bytes);
        let sge = [Sge { addr, length: self.bytes, lkey: self.region.lkey() }];
        let wr = RecvWr { wr_id: u64::from(slot), sg_list: &sge };
        self.srq.post_recv(std::slice::from_ref(&wr)).map_err(|error| scalefabric_verbs::VerbsError::from(error).into())
    }

    /// Gives a receive back. Its place in the SRQ is free, since it came from there; a device that fails has no use for it.
    pub fn give_back(&self, slot: u32) {
        let _ = self.post(slot);
    }

    pub fn read(&self, slot: u32, offset: usize, out: &mut [u8]) -> Result<(), FabricError> {
        Ok(self.region.read(slot as usize * self.bytes as usize + offset, out)?)
    }
}

/// A message that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Which device's receive it spent.
    pub domain: u8,
    pub slot: u32,
    pub length: u32,
    pub imm: Option<u32>,
    pub is_write: bool,
}

/// One lane's receives.
#[derive(Debug)]
struct Inlet {
    lane: LaneId,
    domain: usize,
    qp_num: u32,
    /// Its messages go to the application; else they wait here.
    open: bool,
    /// It opens when so many messages have come in all.
    after: Option<u64>,
    stash: VecDeque<Arrival>,
}

/// Where messages of one device come from.
#[derive(Debug)]
struct Inflow {
    domain: usize,
    cq: Arc<dyn CompletionQueue>,
    pool: Arc<ReceivePool>,
    /// There are lanes on it, or were until now.
    watched: bool,
}

/// Receiving half.
#[derive(Debug)]
pub(crate) struct Receiver {
    inflows: Vec<Inflow>,
    inlets: Vec<Inlet>,
    inbox: VecDeque<Arrival>,
    /// Messages that came to the application's inbox since the connection began.
    delivered: u64,
    pub wakers: Vec<Waker>,
    pub has_handler: bool,
    pub traffic: Arc<Traffic>,
}

/// What a look at the queue found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Messages for the application.
    pub messages: bool,
    /// A hand-over is complete for this lane.
    pub received: Option<LaneId>,
    /// A lane's receive failed.
    pub broken: Option<(LaneId, WcStatus)>,
}

impl Receiver {
    pub fn new(cq: Arc<dyn CompletionQueue>, pool: Arc<ReceivePool>) -> Self {
        let inbox = VecDeque::with_capacity(pool.receives as usize);
        Self {
            inflows: vec![Inflow { domain: 0, cq, pool, watched: true }],
            inlets: Vec::with_capacity(4),
            inbox,
            delivered: 0,
            wakers: Vec::with_capacity(4),
            has_handler: false,
            traffic: Arc::default(),
        }
    }

    /// Lanes may come on this device from now on.
    pub fn attach(&mut self, domain: usize, cq: &Arc<dyn CompletionQueue>, pool: &Arc<ReceivePool>) {
        match self.inflows.iter_mut().find(|inflow| inflow.domain == domain) {
            Some(inflow) => inflow.watched = true,
            None => {
                self.inbox.reserve(self.inbox.len() + pool.receives as usize);
                self.inflows.push(Inflow { domain, cq: cq.clone(), pool: pool.clone(), watched: true });
            }
        }
    }

    /// There are lanes on these devices only; on the others nothing comes until one is attached again.
    pub fn detach(&mut self, keep: impl Fn(usize) -> bool) {
        self.inflows.iter_mut().for_each(|inflow| inflow.watched = keep(inflow.domain));
    }

    /// The queue that is the `index`th of those that are watched.
    pub fn queue(&self, index: usize) -> Option<Arc<dyn CompletionQueue>> {
        self.inflows.iter().filter(|inflow| inflow.watched).nth(index).map(|inflow| inflow.cq.clone())
    }

    /// A lane's QP exists. Its messages wait until it is opened.
    pub fn add(&mut self, lane: LaneId, domain: usize, qp_num: u32) {
        let receives = self.inflows.iter().map(|inflow| inflow.pool.receives as usize).max().unwrap_or(0);
        let stash = VecDeque::with_capacity(receives);
        self.inlets.push(Inlet { lane, domain, qp_num, open: false, after: None, stash });
    }

    /// Takes what has come. Allocates nothing: no more can come than the pool has receives.
    pub fn poll(&mut self) -> Result<Found, FabricError> {
        let mut found = Found::default();
        let mut some = [WorkCompletion::default(); 16];
        for index in 0..self.inflows.len() {
            while self.inflows[index].watched {
                let count = self.inflows[index].cq.poll(&mut some)?;
                for wc in &some[..count] {
                    self.take(index, wc, &mut found);
                }
                if count < some.len() {
                    break;
                }
            }
        }
        if self.inlets.len() > 1 {
            self.open_due(&mut found);
        }
        Ok(found)
    }

    fn take(&mut self, index: usize, wc: &WorkCompletion, found: &mut Found) {
        let slot = wc.wr_id as u32;
        let Inflow { domain, pool, .. } = &self.inflows[index];
        let (domain, qp_num) = (*domain, wc.qp_num.get());
        let inlet = self.inlets.iter_mut().find(|inlet| (inlet.domain, inlet.qp_num) == (domain, qp_num));
        if wc.status != WcStatus::Success {
            pool.give_back(slot);
            if let Some(inlet) = inlet
                && wc.status != WcStatus::WrFlushErr
            {
                found.broken = Some((inlet.lane, wc.status));
            }
            return;
        }
        self.traffic.received(wc.byte_len.into());
        let arrival = Arrival {
            domain: domain as u8,
            slot,
            length: wc.byte_len,
            imm: wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm),
            is_write: wc.opcode == WcOpcode::RecvRdmaWithImm,
        };
        match inlet {
            Some(inlet) if !inlet.open => inlet.stash.push_back(arrival),
            // A QP that is gone already cannot bring anything; if a device does it, the message is the application's all the same.
            _ => {
                self.inbox.push_back(arrival);
                self.delivered += 1;
                found.messages = true;
            }
        }
    }

    fn open_due(&mut self, found: &mut Found) {
        let delivered = self.delivered;
        let due =
            self.inlets.iter().position(|inlet| !inlet.open && inlet.after.is_some_and(|after| delivered >= after));
        if let Some(index) = due {
            let lane = self.inlets[index].lane;
            found.messages |= self.open(lane);
            found.received = Some(lane);
        }
    }

    /// Takes messages from this lane from now on; true if some were waiting.
    pub fn open(&mut self, lane: LaneId) -> bool {
        let Some(inlet) = self.inlets.iter_mut().find(|inlet| inlet.lane == lane) else { return false };
        inlet.open = true;
        let any = !inlet.stash.is_empty();
        self.delivered += inlet.stash.len() as u64;
        self.inbox.append(&mut inlet.stash);
        any
    }

    /// Opens a lane once so many messages have come in all. An error if more have come already: then the peer miscounts.
    pub fn expect(&mut self, lane: LaneId, after: u64) -> Result<Found, FabricError> {
        if self.delivered > after {
            return Err(FabricError::peer(format!(
                "it says that it sent {after} messages before the hand-over, and {} have come",
                self.delivered
            )));
        }
        if let Some(inlet) = self.inlets.iter_mut().find(|inlet| inlet.lane == lane) {
            inlet.after = Some(after);
        }
        self.poll()
    }

    /// All lanes are stopped and their completions taken: what waits is the application's, in the order of the lanes, and they are forgotten. Returns how many
    /// messages have come since the connection began, and whether there are new ones.
    pub fn stop(&mut self) -> Result<(u64, bool), FabricError> {
        let mut any = self.poll()?.messages;
        self.inlets.sort_by_key(|inlet| inlet.lane);
        let lanes: Vec<LaneId> = self.inlets.iter().map(|inlet| inlet.lane).collect();
        for lane in lanes {
            any |= self.open(lane);
        }
        self.inlets.clear();
        Ok((self.delivered, any))
    }

    /// A lane's QP is gone. What came on one that was never opened is posted again on another by the peer, which was not told of it.
    pub fn remove(&mut self, gone: impl Fn(LaneId) -> bool) {
        for inlet in self.inlets.extract_if(.., |inlet| gone(inlet.lane)) {
            inlet.stash.iter().for_each(|arrival| give_back(&self.inflows, arrival));
        }
    }

    pub fn next(&mut self) -> Option<Arrival> {
        self.inbox.pop_front()
    }

    /// Gives a receive back to its pool.
    #[cfg(test)]
    pub fn give_back(&self, arrival: &Arrival) {
        give_back(&self.inflows, arrival);
    }

    pub fn has_messages(&self) -> bool {
        !self.inbox.is_empty()
    }
}

fn give_back(inflows: &[Inflow], arrival: &Arrival) {
    if let Some(inflow) = inflows.iter().find(|inflow| inflow.domain == usize::from(arrival.domain)) {
        inflow.pool.give_back(arrival.slot);
    }
}
