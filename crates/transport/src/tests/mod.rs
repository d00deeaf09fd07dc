//! Dialogues of the requester and the completer: at T, A sends; the peer answers; nothing more. The peer is either the
//! test itself, which answers packet by packet ([`Dialogue`]), or a second QP behind a wire that loses what the test says.

mod congestion;
mod credits;
mod direct;
mod hostile;
mod limits;
mod loss;
mod migration;
mod order;
mod random;
mod read;
mod runs;
mod states;
mod statuses;
mod unreliable;

use alloc::vec::Vec;

use scalefabric_verbs::{QpAttr, QpType, RKey, SendFlags, WcStatus};
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};
use scalefabric_wire::packet::{Aeth, NakCode, Syndrome};

use crate::host::WqeOp;
use crate::queue_pair::{Config, Next};
use crate::testing::{Packet, Piece, Side, TestHost, WHOLE, attributes};
use crate::time::Time;

/// The PSN that every dialogue starts with: a few before the wrap.
pub(crate) const START: u32 = 0x00ff_fffe;

/// One QP in RTS, and the test as its peer.
pub(crate) struct Dialogue {
    pub side: Side,
    pub peer: TestHost,
}

pub(crate) fn piece(addr: u64, length: u32) -> Piece {
    Piece { addr, length, key: WHOLE }
}

pub(crate) const WRITE: WqeOp = WqeOp::Write { remote_addr: 0x100, rkey: RKey(WHOLE) };
pub(crate) const READ: WqeOp = WqeOp::Read { remote_addr: 0x100, rkey: RKey(WHOLE) };
pub(crate) const FADD: WqeOp = WqeOp::FetchAdd { remote_addr: 0x100, rkey: RKey(WHOLE), add: 1 };
pub(crate) const SIGNALED: SendFlags = SendFlags::SIGNALED;

impl Dialogue {
    pub fn new(qp_type: QpType, config: Config, change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut side = Side::new(qp_type, 1, 1 << 20, config);
        let peer = TestHost::new(2, 64);
        let mut attr = attributes();
        attr.sq_psn = Psn::new(START);
        attr.ah_attr = peer.address(1);
        attr.alt_ah_attr = peer.address(2);
        attr.dest_qp_num = scalefabric_verbs::Qpn::new(0x102);
        change(&mut attr);
        side.bring_up(&attr);
        Self { side, peer }
    }

    pub fn rc(change: impl FnOnce(&mut QpAttr)) -> Self {
        Self::new(QpType::Rc, Config::default(), change)
    }

    pub fn post(&mut self, wr_id: u64, op: WqeOp, length: u32) {
        let pieces = [piece(0x1000, length)];
        self.side.host.post_send(wr_id, op, SIGNALED, if length == 0 { &[] } else { &pieces });
    }

    /// Lets the QP send all it wants; returns the packets.
    pub fn sends(&mut self) -> Vec<Packet> {
        self.side.transmit(1000);
        self.side.host.wire.drain(..).collect()
    }

    /// Short names of what the QP sends now: the opcode without its service, and the PSN after [`START`].
    pub fn sends_named(&mut self) -> Vec<(&'static str, u32)> {
        let name = |p: &Packet| (&p.headers.bth.opcode.info().name[3..], relative(p));
        self.sends().iter().map(name).collect()
    }

    fn response(&self, operation: Operation, position: Position, psn: u32, payload: &[u8]) -> Packet {
        let opcode = Opcode::find(Service::Rc, operation, position).unwrap();
        let qp = self.side.qp.query();
        let mut headers = scalefabric_wire::packet::Headers::new(
            opcode,
            scalefabric_wire::PKey::DEFAULT,
            self.side.qp.qpn(),
            Psn::new(START.wrapping_add(psn)),
        );
        headers.aeth = (operation != Operation::ReadResponse || position != Position::Middle)
            .then_some(Aeth { syndrome: Syndrome::Ack(31), msn: 0 });
        Packet {
            headers,
            payload: payload.to_vec(),
            port_num: qp.port_num,
            src: qp.ah_attr.dgid,
            dst: self.side.host.gids[usize::from(qp.port_num) - 1][0],
            traffic_class: 0,
            reads_telemetry: false,
            trailer: None,
        }
    }

    pub fn ack(&mut self, psn: u32) {
        self.answers(psn, Syndrome::Ack(31));
    }

    pub fn nak(&mut self, psn: u32, code: NakCode) {
        self.answers(psn, Syndrome::Nak(code));
    }

    /// An Acknowledge with any syndrome.
    pub fn answers(&mut self, psn: u32, syndrome: Syndrome) {
        let mut packet = self.response(Operation::Acknowledge, Position::Only, psn, &[]);
        packet.headers.aeth = Some(Aeth { syndrome, msn: 0 });
        self.side.receive(&packet);
    }

    pub fn read_response(&mut self, position: Position, psn: u32, payload: &[u8]) {
        let packet = self.response(Operation::ReadResponse, position, psn, payload);
        self.side.receive(&packet);
    }

    pub fn atomic_ack(&mut self, psn: u32, original: u64) {
        let mut packet = self.response(Operation::AtomicAcknowledge, Position::Only, psn, &[]);
        packet.headers.atomic_ack_eth = Some(original);
        self.side.receive(&packet);
    }

    /// Work request IDs and statuses completed since the last call.
    pub fn completions(&mut self) -> Vec<(u64, WcStatus)> {
        self.side.host.sent.drain(..).map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Time passes; the timer runs if it is due.
    pub fn passes(&mut self, ns: u64) {
        self.side.host.now = self.side.host.now.after(ns);
        self.side.qp.on_timer(&mut self.side.host);
    }

    pub fn now(&self) -> Time {
        self.side.host.now
    }

    pub fn next(&mut self) -> Next {
        self.side.transmit(0)
    }
}

pub(crate) fn relative(packet: &Packet) -> u32 {
    packet.headers.bth.psn.sub(START).get()
}
