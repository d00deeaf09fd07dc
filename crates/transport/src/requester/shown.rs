//! The packets that would have carried a request which the host executed without any: for whoever watches the wire.
//!
//! They are shown and never sent. Requests are made by the same code as those that leave ([`segment`]); the answers are those of a peer that acknowledges each
//! message by itself and grants no credits. PSNs go on where those of packets and of requests executed before have come to; the MSN is that of a peer
//! that has seen everything that was posted here, binds and invalidations of this side included.

use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Opcode, Operation, Position};
use scalefabric_wire::packet::{Aeth, Syndrome};

use super::Requester;
use super::segment::{self, Kind};
use crate::context::Context;
use crate::host::{Host, Payload, SendWqe};

/// MSNs have 24 bits.
const MSN: u32 = 0xff_ffff;

impl Requester {
    /// Shows the packets of a request and of its answer; its first PSN is [`Requester::next_psn`].
    #[cold]
    pub(super) fn show<H: Host>(&self, ctx: &Context, host: &mut H, wqe: &SendWqe) {
        let psn = self.next_psn();
        self.show_request(ctx, host, wqe, psn);
        Self::show_answer(ctx, host, wqe, psn);
    }

    fn show_request<H: Host>(&self, ctx: &Context, host: &mut H, wqe: &SendWqe, first: Psn) {
        let Some(pkey) = ctx.pkey(host) else { return };
        let (total, stride) = (segment::packets(wqe, ctx.pmtu()), self.read_stride(ctx));
        let mut packet = 0;
        while packet < total {
            let Some(mut part) = segment::segment(ctx, wqe, pkey, packet, first.add(packet), stride) else { return };
            part.outgoing.headers.bth.ack_req = part.last;
            host.show(&part.outgoing, part.payload, false);
            packet += part.psns.max(1);
        }
    }

    fn show_answer<H: Host>(ctx: &Context, host: &mut H, wqe: &SendWqe, first: Psn) {
        let Some(pkey) = ctx.pkey(host) else { return };
        let (total, pmtu) = (segment::packets(wqe, ctx.pmtu()), ctx.pmtu());
        let aeth = Aeth { syndrome: Syndrome::Ack(Syndrome::NO_CREDITS), msn: wqe.index.wrapping_add(1) & MSN };
        let mut answer = |operation, position, packet: u32, payload: Payload<'_>| {
            let Some(opcode) = Opcode::find(ctx.service(), operation, position) else { return };
            let mut outgoing = ctx.packet(opcode, pkey, first.add(packet));
            outgoing.headers.bth.dest_qp = ctx.qpn;
            outgoing.headers.aeth = (position != Position::Middle).then_some(aeth);
            host.show(&outgoing, payload, true);
        };
        match wqe.op.completion() {
            Kind::Read => {
                for packet in 0..total {
                    let position = match (packet == 0, packet + 1 == total) {
                        (true, true) => Position::Only,
                        (true, false) => Position::First,
                        (false, true) => Position::Last,
                        (false, false) => Position::Middle,
                    };
                    let (from, to) = (segment::offset(wqe, packet, pmtu), segment::offset(wqe, packet + 1, pmtu));
                    // What was read lies where the WQE wanted it.
                    let payload = Payload::Wqe { index: wqe.index, offset: from, length: to - from };
                    answer(Operation::ReadResponse, position, packet, payload);
                }
            }
            Kind::Atomic => {
                let payload = Payload::Wqe { index: wqe.index, offset: 0, length: 8 };
                answer(Operation::AtomicAcknowledge, Position::Only, 0, payload);
            }
            // A READ response without bytes (IBTA 1.5).
            Kind::Answered => answer(Operation::ReadResponse, Position::Only, 0, Payload::None),
            Kind::Posted | Kind::Local => {
                answer(Operation::Acknowledge, Position::Only, total.max(1) - 1, Payload::None);
            }
        }
    }
}
