//! The responder against a peer that is a list of packets: one says exactly what arrives and sees exactly what leaves.

mod alike;
mod answers;
mod checks;
mod duplicates;
mod errors;
mod messages;
mod random;
mod unreliable;

use alloc::vec;
use alloc::vec::Vec;

use scalefabric_verbs::{AccessFlags, MigState, QpState, QpType, WcStatus};
use scalefabric_wire::opcode::{Opcode, Operation, Position};
use scalefabric_wire::packet::{Aeth, AtomicEth, Deth, Feth, Headers, NakCode, Reth, Syndrome};
use scalefabric_wire::{PKey, Psn, QKey, Qpn, RKey, Srqn};

use crate::admission;
use crate::context::{Context, Fatal};
use crate::counter::{Counter, DropReason};
use crate::queue_pair::{Config, Next};
use crate::responder::Responder;
use crate::testing::{Packet, Piece, Region, TestHost, WHOLE, attributes};

pub(super) const US: Qpn = Qpn::new(0x102);
pub(super) const PEER: Qpn = Qpn::new(0x101);
pub(super) const PMTU: usize = 1024;
/// The region that the peer may use: 8 KiB at 0x4000.
pub(super) const KEY: u32 = 0x2222;
pub(super) const AT: u64 = 0x4000;
pub(super) const LEN: u64 = 0x2000;
/// Receive buffers lie here.
pub(super) const BUFFER: u64 = 0x1_0000;
pub(super) const SRQ: Srqn = Srqn::new(77);

/// A responder, its world, and the peer's next PSN.
pub(super) struct Bed {
    pub ctx: Context,
    pub r: Responder,
    pub host: TestHost,
    /// PSN of the peer's next new packet.
    pub psn: Psn,
}

impl Bed {
    /// A responder in RTS whose peer starts just before the PSN wraps.
    pub fn new(qp_type: QpType) -> Self {
        let (mut host, peer) = (TestHost::new(2, 1 << 17), TestHost::new(1, 0));
        host.regions.push(Region { key: KEY, addr: AT, length: LEN, access: all_rights(), gone: false });
        let mut attr = attributes();
        attr.ah_attr = peer.address(1);
        attr.alt_ah_attr = peer.address(2);
        attr.alt_port_num = 2;
        attr.dest_qp_num = PEER;
        host.paths = [Some(attr.ah_attr), Some(attr.alt_ah_attr)];
        let config = Config { advertise_credits: false, ..Config::default() };
        let psn = Psn::new(0xff_fffe);
        let mut r = Responder::new();
        r.start(psn);
        Self {
            ctx: Context {
                qp_type,
                qpn: US,
                state: QpState::Rts,
                attr,
                config,
                telemetry: false,
                migration_error_raised: false,
            },
            r,
            host,
            psn,
        }
    }

    pub fn rc() -> Self {
        Self::new(QpType::Rc)
    }

    /// A packet of the peer with the next PSN, which it does not use up.
    pub fn packet(&self, operation: Operation, position: Position, payload: &[u8]) -> Packet {
        let opcode = Opcode::find(self.ctx.service(), operation, position).expect("the service has it");
        let mut headers = Headers::new(opcode, PKey::DEFAULT, US, self.psn);
        headers.bth.mig_req = self.ctx.attr.path_mig_state == MigState::Migrated;
        headers.bth.ack_req = matches!(position, Position::Last | Position::Only);
        headers.bth.pad_count = (payload.len().wrapping_neg() & 3) as u8;
        if self.ctx.qp_type == QpType::XrcRecv {
            headers.xrceth = Some(SRQ);
        }
        if self.ctx.qp_type == QpType::Ud {
            headers.deth = Some(Deth { qkey: self.ctx.attr.qkey, src_qp: PEER });
        }
        Packet {
            reads_telemetry: false,
            trailer: None,
            headers,
            payload: payload.to_vec(),
            port_num: 1,
            src: self.ctx.attr.ah_attr.dgid,
            dst: self.host.gids[0][0],
            traffic_class: 0,
        }
    }

    pub fn send(&self, position: Position, payload: &[u8]) -> Packet {
        self.packet(Operation::Send, position, payload)
    }

    /// A WRITE packet; the RETH goes with FIRST and ONLY.
    pub fn write(&self, position: Position, va: u64, total: u32, payload: &[u8]) -> Packet {
        let mut packet = self.packet(Operation::Write, position, payload);
        if matches!(position, Position::First | Position::Only) {
            packet.headers.reth = Some(Reth { va, rkey: RKey(KEY), dma_len: total });
        }
        packet
    }

    pub fn read(&self, va: u64, length: u32) -> Packet {
        let mut packet = self.packet(Operation::ReadRequest, Position::Only, &[]);
        packet.headers.reth = Some(Reth { va, rkey: RKey(KEY), dma_len: length });
        packet
    }

    pub fn fetch_add(&self, va: u64, add: u64) -> Packet {
        let mut packet = self.packet(Operation::FetchAdd, Position::Only, &[]);
        packet.headers.atomic_eth = Some(AtomicEth { va, rkey: RKey(KEY), swap_or_add: add, compare: 0 });
        packet
    }

    pub fn compare_swap(&self, va: u64, compare: u64, swap: u64) -> Packet {
        let mut packet = self.packet(Operation::CompareSwap, Position::Only, &[]);
        packet.headers.atomic_eth = Some(AtomicEth { va, rkey: RKey(KEY), swap_or_add: swap, compare });
        packet
    }

    pub fn atomic_write(&self, va: u64, value: [u8; 8]) -> Packet {
        let mut packet = self.packet(Operation::AtomicWrite, Position::Only, &value);
        packet.headers.reth = Some(Reth { va, rkey: RKey(KEY), dma_len: 8 });
        packet
    }

    pub fn flush_request(&self, va: u64, length: u32, plt: u8, sel: u8) -> Packet {
        let mut packet = self.packet(Operation::Flush, Position::Only, &[]);
        packet.headers.reth = Some(Reth { va, rkey: RKey(KEY), dma_len: length });
        packet.headers.feth = Some(Feth { plt, sel });
        packet
    }

    /// The packet arrives. Nothing else happens.
    pub fn give(&mut self, packet: &Packet) {
        let incoming = packet.incoming();
        let Some(admitted) = admission::admit(&mut self.ctx, &mut self.host, &incoming) else { return };
        let outcome = self.r.receive(&self.ctx, &mut self.host, &admitted);
        self.settle(outcome);
    }

    /// As [`Bed::give`], and the peer's next packet has the next PSN.
    pub fn next(&mut self, packet: &Packet) {
        self.give(packet);
        self.psn = packet.headers.bth.psn.next();
    }

    /// Gives the packets one after the other, each with the PSN that follows the one before.
    pub fn all(&mut self, packets: &[Packet]) {
        for packet in packets {
            let mut packet = packet.clone();
            packet.headers.bth.psn = self.psn;
            self.next(&packet);
        }
    }

    /// The batch ends, and everything leaves that can: what was said.
    pub fn said(&mut self) -> Vec<Packet> {
        let outcome = self.r.end_of_batch(&self.ctx, &mut self.host);
        self.settle(outcome);
        loop {
            match self.transmit(usize::MAX) {
                Some(Next::Idle | Next::Blocked) => break,
                Some(Next::Ready) | None => {}
                Some(Next::At(_)) => panic!("a responder does not wait for a time"),
            }
        }
        self.host.wire.drain(..).collect()
    }

    /// `transmit`, or `None` if that ended the QP.
    pub fn transmit(&mut self, budget: usize) -> Option<Next> {
        let mut budget = budget;
        match self.r.transmit(&self.ctx, &mut self.host, &mut budget, false, None) {
            Ok(next) => Some(next),
            Err(fatal) => {
                self.settle(Err(fatal));
                None
            }
        }
    }

    /// As `QueuePair` does.
    fn settle(&mut self, outcome: Result<(), Fatal>) {
        if let Err(fatal) = outcome {
            self.ctx.state = QpState::Err;
            if let Some(event) = fatal.event {
                self.host.event(event);
            }
            self.r.flush(&self.ctx, &mut self.host);
        }
    }

    /// Posts a receive of `length` bytes at [`BUFFER`].
    pub fn post(&mut self, wr_id: u64, length: u32) {
        self.host.post_recv(wr_id, &[Piece { addr: BUFFER, length, key: WHOLE }]);
    }

    pub fn memory(&self, at: u64, length: usize) -> &[u8] {
        &self.host.memory[at as usize..at as usize + length]
    }

    /// The statuses of the receive completions so far.
    pub fn statuses(&self) -> Vec<WcStatus> {
        self.host.received.iter().map(|r| r.wc.status).collect()
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.host.dropped(reason)
    }

    pub fn counter(&self, counter: Counter) -> u64 {
        self.host.counter(counter)
    }
}

use crate::host::Host;

pub(super) fn all_rights() -> AccessFlags {
    AccessFlags::REMOTE | AccessFlags::LOCAL_WRITE
}

/// Bytes that differ from place to place.
pub(super) fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// What an ACK or NAK says: its PSN and syndrome.
pub(super) fn verdict(packet: &Packet) -> (Psn, Syndrome) {
    assert_eq!(packet.headers.bth.opcode.info().operation, Operation::Acknowledge);
    assert_eq!(packet.headers.bth.dest_qp, PEER);
    let Aeth { syndrome, .. } = packet.headers.aeth.expect("an acknowledge has an AETH");
    (packet.headers.bth.psn, syndrome)
}

/// The one packet that was said is this ACK.
#[track_caller]
pub(super) fn assert_ack(said: &[Packet], psn: Psn, msn: u32) {
    assert_eq!(said.iter().map(verdict).collect::<Vec<_>>(), vec![(psn, Syndrome::Ack(31))]);
    assert_eq!(said[0].headers.aeth.unwrap().msn, msn);
}

/// The one packet that was said is this NAK.
#[track_caller]
pub(super) fn assert_nak(said: &[Packet], psn: Psn, code: NakCode) {
    assert_eq!(said.iter().map(verdict).collect::<Vec<_>>(), vec![(psn, Syndrome::Nak(code))]);
}

/// Opcode position and PSN of each answer.
pub(super) fn shape(said: &[Packet]) -> Vec<(Operation, Position, u32)> {
    said.iter()
        .map(|p| {
            let info = p.headers.bth.opcode.info();
            (info.operation, info.position, p.headers.bth.psn.get())
        })
        .collect()
}
