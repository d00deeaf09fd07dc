//! The applications' half that hears: completions are polled, compared with what was asked, and shown to the checkers.

use scalefabric_verbs::{QpType, WcOpcode, WcStatus, WorkCompletion};

use super::{Stop, World, sink, violation};
use crate::canary::Rule;
use crate::checker::Event;
use crate::ledger::{Kind, SLOTS};
use crate::receive::{RECEIVE_BIT, Receiver, gather};
use crate::workload::BUFFER;

impl World {
    pub(super) fn poll(&mut self, nic: usize) -> Result<bool, Stop> {
        let mut wcs = [WorkCompletion::default(); 16];
        let mut any = false;
        for receives in [false, true] {
            loop {
                let station = &self.stations[nic];
                let cq = if receives { &station.recv_cq } else { &station.send_cq };
                let count = cq.poll(&mut wcs)?;
                for wc in &wcs[..count] {
                    match receives {
                        true => self.received(nic, wc)?,
                        false => self.completed(wc)?,
                    }
                }
                any |= count > 0;
                if count < wcs.len() {
                    break;
                }
            }
        }
        Ok(any)
    }

    pub(super) fn completed(&mut self, wc: &WorkCompletion) -> Result<(), Stop> {
        if self.wire.state().trace {
            let (flow, op) = (wc.wr_id >> 32, wc.wr_id & 0xffff_ffff);
            println!("{:>10} flow {flow} operation {op}: {:?} on {}", self.now, wc.status, wc.qp_num);
        }
        let forgotten = self.wire.state().canary.as_mut().is_some_and(|canary| canary.occasion(Rule::ForgetCompletion));
        if forgotten {
            return Ok(());
        }
        let (id, index) = ((wc.wr_id >> 32) as usize, (wc.wr_id & 0xffff_ffff) as usize);
        if wc.wr_id & RECEIVE_BIT != 0 || id >= self.lanes.len() || index >= self.ledger.flows[id].ops.len() {
            return Err(violation("exactly once", format!("a completion of nothing that was posted: {wc:?}")));
        }
        let (lane, flow) = (&self.lanes[id], &self.ledger.flows[id]);
        let op = flow.ops[index];
        let success = wc.status == WcStatus::Success;
        let mut brought = std::mem::take(&mut self.scratch);
        let mut target = std::mem::take(&mut self.message);
        brought.clear();
        target.clear();
        if success && op.kind.brings() {
            let layout = lane.layouts[index % SLOTS];
            if !gather(&*lane.buffers, sink(index), &layout, op.length, &mut brought)? {
                return Err(violation("isolation", format!("flow {id}: {:?} {index} wrote between its SGEs", op.kind)));
            }
        }
        if success && op.writes() {
            target.resize(op.length, 0);
            self.stations[flow.to].arena.read(lane.target_offset + op.target, &mut target)?;
        }
        let event = Event::Completed { flow: id, op: index, wc, brought: &brought, target: &target, now: self.now };
        self.check(&event)?;
        let flow = &mut self.ledger.flows[id];
        if success {
            flow.succeed(index);
        } else {
            flow.fail(index, wc.status, self.now);
        }
        if op.kind == Kind::SharedAdd {
            match <[u8; 8]>::try_from(&brought[..]) {
                Ok(old) if success => self.ledger.shared_olds[flow.to].push(u64::from_ne_bytes(old)),
                _ => self.ledger.shared_unknown[flow.to] += 1,
            }
        }
        if self.ledger.flows[id].failed.is_some() {
            self.close(id);
        }
        self.scratch = brought;
        self.message = target;
        Ok(())
    }

    /// A flow has failed: its QP is in ERR, so that whatever the peer asks of it ends as well.
    pub(super) fn close(&mut self, id: usize) {
        let (connection, side) = (self.lanes[id].connection, self.lanes[id].side);
        for receiver in &mut self.receivers {
            receiver.closed |= receiver.connection == (connection, side);
        }
        if let Some(back) = self.connections[connection].flows[1 - side]
            && self.ledger.flows[back].orphaned_ns.is_none()
        {
            self.ledger.flows[back].orphaned_ns = Some(self.now);
        }
    }

    pub(super) fn received(&mut self, nic: usize, wc: &WorkCompletion) -> Result<(), Stop> {
        let (queue, slot, number) = Receiver::decode(wc.wr_id);
        if wc.wr_id & RECEIVE_BIT == 0 || queue >= self.receivers.len() {
            return Err(violation("exactly once", format!("NIC {nic}: a receive that was never posted: {wc:?}")));
        }
        let (connection, side) = self.receivers[queue].connection;
        let Some(flow) = self.connections[connection].flows[1 - side] else {
            return Err(violation("order", format!("NIC {nic}: a receive of a side that nobody sends to")));
        };
        let mut message = std::mem::take(&mut self.message);
        let grh = if self.ledger.flows[flow].qp_type == QpType::Ud { 40 } else { 0 };
        // The bytes of a WRITE with immediate are elsewhere.
        let with_message = wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv;
        let length = if with_message { wc.byte_len as usize } else { 0 };
        if !self.receivers[queue].take(slot, length.min(BUFFER - 16), &mut message)? {
            return Err(violation(
                "isolation",
                format!("flow {flow}: a message was written between SGEs of its receive"),
            ));
        }
        let event = Event::Received {
            flow,
            receive: (queue, number),
            wc,
            message: message.get(grh.min(length)..).unwrap_or(&[]),
            grh: (grh > 0).then(|| message.get(..grh).unwrap_or(&message)),
        };
        self.check(&event)?;
        self.message = message;
        match wc.status {
            WcStatus::Success => {
                let flow = &mut self.ledger.flows[flow];
                if flow.is_reliable()
                    && let Some(index) = flow.expect_receive()
                {
                    flow.next_receive = index + 1;
                }
            }
            WcStatus::WrFlushErr if self.receivers[queue].closed || self.ledger.flows[flow].is_dead() => {
                self.receivers[queue].closed = true;
            }
            status => {
                return Err(violation(
                    "progress",
                    format!("flow {flow}: a receive ended with {status}, without reason"),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn check(&mut self, event: &Event<'_>) -> Result<(), Stop> {
        let state = self.wire.state();
        for checker in &mut self.checkers {
            checker.see(&self.ledger, &state.tally, event)?;
        }
        Ok(())
    }
}
