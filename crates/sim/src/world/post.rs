//! The applications' half that asks: receives and chains of work requests are posted.

use scalefabric_verbs::{
    FlushLevel, FlushPlacement, MemoryRegion, QpType, Qpn, SendFlags, SendOp, SendWr, Sge, UdAddress,
};

use super::{Connection, Lane, MAX_OPS, MIN_KINDS, MIN_PACKETS, REBUILDS, Stop, World, sink};
use crate::ledger::{Kind, Op, SLOTS, TARGET_LEN};
use crate::pattern::Fault;
use crate::random::fill;
use crate::station::QKEY;
use crate::workload::{BUFFER, ConnectionPlan};

impl World {
    pub(super) fn post_receives(&mut self) -> Result<bool, Stop> {
        let mut posted = false;
        for index in 0..self.receivers.len() {
            let receiver = &mut self.receivers[index];
            if !receiver.wants() || receiver.hungry_until > self.now && !self.calm {
                continue;
            }
            if !self.calm && self.random.chance(self.faults.starve_ppm) {
                receiver.hungry_until = self.now + self.random.range(10_000, 400_000);
                self.wire.state().tally.strike(Fault::ReceiverNotReady);
                continue;
            }
            let count = self.random.range(1, 8) as usize;
            receiver.post(count)?;
            let (connection, side) = receiver.connection;
            let nic = self.connections[connection].plan.nics[side];
            self.due[nic] = self.now;
            posted = true;
        }
        Ok(posted)
    }

    pub(super) fn post_sends(&mut self) -> Result<bool, Stop> {
        if self.finishing.is_some() {
            return Ok(false);
        }
        let mut posted = false;
        for lane in 0..self.lanes.len() {
            let chain = self.lanes[lane].source.chain_length();
            let flow = &self.ledger.flows[lane];
            if flow.is_dead() || flow.outstanding() + chain > SLOTS - 2 || self.lanes[lane].next_post > self.now {
                continue;
            }
            if !flow.is_reliable() {
                self.lanes[lane].next_post = self.now + self.random.range(3_000, 30_000);
            }
            self.post_chain(lane, chain)?;
            posted = true;
        }
        if self.ledger.flows.iter().all(|flow| flow.is_dead() || !flow.is_reliable()) && self.rebuilt < REBUILDS {
            self.rebuild()?;
            posted = true;
        }
        let operations: usize = self.ledger.flows.iter().map(|flow| flow.ops.len()).sum();
        let tally = &self.wire.state().tally;
        let enough =
            tally.delivered - tally.forged >= MIN_PACKETS && tally.kinds() >= MIN_KINDS && self.kill_at.is_none();
        let enough = enough && self.main.is_none_or(|main| tally.faults[main as usize] > 0);
        if enough || operations > MAX_OPS {
            self.finishing = Some(self.now);
        }
        Ok(posted)
    }

    /// All reliable flows have given up: a new connection goes on with the work.
    pub(super) fn rebuild(&mut self) -> Result<(), Stop> {
        self.rebuilt += 1;
        let psns = [self.random.below(1 << 24) as u32, self.random.below(1 << 24) as u32];
        let plan = ConnectionPlan { psns, ..self.connections[0].plan };
        let v6 = crate::wire::address(0, true) == self.wire.state().address(0);
        self.connect(self.random.clone().next(), &plan, v6)
    }

    pub(super) fn post_chain(&mut self, lane: usize, chain: usize) -> Result<(), Stop> {
        let connection = &self.connections[self.lanes[lane].connection];
        let (plan, nic) = (connection.plan, connection.plan.nics[self.lanes[lane].side]);
        let qp = connection.pair.qps[self.lanes[lane].side].clone();
        if self.ledger.flows[lane].outstanding() == 0 {
            self.wire.state().stir(nic, qp.qp_num());
        }
        let mut inline = [[0; 64]; 4];
        let mut sges = [[Sge::default(); 3]; 4];
        let mut pieces = [0; 4];
        let mut first = 0;
        for i in 0..chain {
            let flow = &self.ledger.flows[lane];
            let op = self.lanes[lane].source.next(flow, i + 1 == chain, plan.sq_sig_all);
            if op.kind == Kind::SharedAdd {
                self.ledger.shared_adds[flow.to] += 1;
            }
            let index = self.ledger.flows[lane].post(op);
            first = index + 1 - chain.min(i + 1);
            self.prepare(lane, index, &mut inline[i], &mut sges[i], &mut pieces[i])?;
        }
        let lane_state = &self.lanes[lane];
        let peer = connection_peer(&self.connections[lane_state.connection], lane_state.side);
        let xrc_srqn = match (&self.connections[lane_state.connection].pair.srq, plan.qp_type) {
            (Some(srq), QpType::XrcSend) => Some(srq.srq_num()),
            _ => None,
        };
        let ud = lane_state.ah.as_deref().map(|ah| UdAddress { ah, remote_qpn: peer, remote_qkey: QKEY });
        let shared = &self.stations[plan.nics[1 - lane_state.side]].shared;
        let wr = |i: usize| {
            let index = first + i.min(chain - 1);
            let op = &self.ledger.flows[lane].ops[index];
            let wr = SendWr::new((lane as u64) << 32 | index as u64, operation(op, lane_state, &**shared));
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, op.signaled);
            flags.set(SendFlags::FENCE, op.fence);
            flags.set(SendFlags::INLINE, op.inline);
            flags.set(SendFlags::SOLICITED, op.kind.takes_receive() && op.imm & 3 == 0);
            let inline_data = if op.inline { &inline[i][..op.length] } else { &[] };
            SendWr { flags, sg_list: &sges[i][..pieces[i]], inline_data, ud, xrc_srqn, ..wr }
        };
        let chain_of_wrs = [wr(0), wr(1), wr(2), wr(3)];
        qp.post_send(&chain_of_wrs[..chain])?;
        self.due[nic] = self.now;
        Ok(())
    }

    /// Fills an operation's buffers and names them.
    pub(super) fn prepare(
        &mut self,
        lane: usize,
        index: usize,
        inline: &mut [u8; 64],
        sges: &mut [Sge; 3],
        used: &mut usize,
    ) -> Result<(), Stop> {
        let (lane, flow) = (&self.lanes[lane], &self.ledger.flows[lane]);
        let op = &flow.ops[index];
        let slot = index % SLOTS;
        let (layout, base) = match op.kind {
            // The READ before it brought the bytes into its own buffer.
            Kind::Relay => (lane.layouts[(index - 1) % SLOTS], sink(index - 1)),
            kind if kind.brings() => (lane.layouts[slot], sink(index)),
            _ => (lane.layouts[slot], slot * BUFFER),
        };
        if op.kind == Kind::Flush {
            return Ok(());
        }
        let mut payload = std::mem::take(&mut self.scratch);
        payload.clear();
        payload.resize(op.length, 0);
        match op.kind {
            Kind::AtomicWrite => payload.copy_from_slice(&op.words[1].to_ne_bytes()),
            _ => fill(op.key, 0, &mut payload),
        }
        if op.inline {
            inline[..op.length].copy_from_slice(&payload);
        } else {
            let writes = !op.kind.brings() && op.kind != Kind::Relay;
            for (offset, range) in layout.pieces(op.length) {
                if writes {
                    lane.buffers.write(base + offset, &payload[range.clone()])?;
                }
                let addr = lane.buffers.addr() + (base + offset) as u64;
                sges[*used] = Sge { addr, length: range.len() as u32, lkey: lane.buffers.lkey() };
                *used += 1;
            }
        }
        self.scratch = payload;
        Ok(())
    }
}

fn connection_peer(connection: &Connection, side: usize) -> Qpn {
    connection.pair.qps[1 - side].qp_num()
}

/// An operation in the words of the verbs.
fn operation<'a>(op: &Op, lane: &Lane, shared: &dyn MemoryRegion) -> SendOp<'a> {
    let (remote_addr, rkey) = (lane.target_addr + op.target as u64, lane.target_rkey);
    debug_assert!(op.target + op.length <= TARGET_LEN || !op.writes());
    match op.kind {
        Kind::Send => SendOp::Send,
        Kind::SendImm => SendOp::SendWithImm { imm: op.imm },
        Kind::Write | Kind::Relay => SendOp::Write { remote_addr, rkey },
        Kind::WriteImm => SendOp::WriteWithImm { remote_addr, rkey, imm: op.imm },
        Kind::Read => SendOp::Read { remote_addr, rkey },
        Kind::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: op.words[0], swap: op.words[1] },
        Kind::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: op.words[1] },
        Kind::SharedAdd => SendOp::FetchAdd { remote_addr: shared.addr(), rkey: shared.rkey(), add: 1 },
        Kind::Flush => {
            let whole = op.imm & 1 != 0;
            let level = if whole { FlushLevel::MemoryRegion } else { FlushLevel::Range };
            SendOp::Flush { remote_addr, rkey, length: op.length as u32, placement: FlushPlacement::Global, level }
        }
        Kind::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
    }
}
