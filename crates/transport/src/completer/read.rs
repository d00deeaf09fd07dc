//! READ responses and ATOMIC acknowledges: the bytes land in the WQE's SGL (clauses 9.7.5.1.5, 9.7.5.1.6, 9.7.6.2).
//!
//! FLUSH and ATOMIC WRITE are answered by a READ response ONLY without payload.

use scalefabric_verbs::{MigState, QpType, WcStatus};
use scalefabric_wire::opcode::Position;
use scalefabric_wire::packet::Syndrome;

use super::{Covered, Expected};
use crate::admission::Admitted;
use crate::context::Context;
use crate::counter::DropReason;
use crate::host::{Host, SendWqe};
use crate::requester::segment::{self, Kind};
use crate::requester::{Requester, Stop};
use crate::responder::Alike;

impl Requester {
    pub(super) fn receive_read<H: Host>(
        &mut self,
        ctx: &mut Context,
        host: &mut H,
        response: &Expected<'_>,
    ) -> Result<(), Stop> {
        let Some(wqe) = self.request_of(ctx, host, response)? else { return Ok(()) };
        let (headers, payload) = (response.response.packet.headers, response.response.packet.payload);
        let position = response.response.info.position;
        let credits = match headers.aeth.map(|a| a.syndrome) {
            None => None,
            Some(Syndrome::Ack(code)) => Some(code),
            Some(_) => return Err(self.fail_oldest(ctx, host, WcStatus::BadRespErr)),
        };
        match wqe.op.completion() {
            Kind::Answered if position == Position::Only && payload.is_empty() => {}
            Kind::Answered => return Err(self.fail_oldest(ctx, host, WcStatus::BadRespErr)),
            Kind::Read => {
                if let Err(status) = self.place_read(ctx, host, &wqe, position, payload) {
                    return Err(self.fail_oldest(ctx, host, status));
                }
            }
            _ => return Err(self.fail_oldest(ctx, host, WcStatus::BadRespErr)),
        }
        self.retire_answered(ctx, host, 1);
        if let (Some(code), Position::Last | Position::Only) = (credits, position) {
            self.take_credits(code);
        }
        self.settle(ctx, host)
    }

    /// Whether READ responses like this one may take the short way of [`Requester::receive_middle`].
    pub(crate) fn place_of_middle(ctx: &Context, admitted: &Admitted<'_>) -> bool {
        ctx.qp_type == QpType::Rc
            // In another state a packet may change the path.
            && ctx.attr.path_mig_state == MigState::Migrated
            && admitted.info.position == Position::Middle
            && admitted.packet.trailer.is_none()
            && !admitted.packet.is_ce()
    }

    /// Takes a READ response MIDDLE that is like the one before it, where nothing is special; false if it has to go the long way
    /// ([`Requester::receive`]), and then nothing has happened. The two are twins: `tests/read.rs` lets them take the same packets.
    #[inline]
    pub(crate) fn receive_middle<H: Host>(&mut self, ctx: &Context, host: &mut H, response: &Alike<'_>) -> bool {
        let plain = self.control.is_none()
            && self.failed.is_none()
            && self.read.continuing
            && !self.read.asked_again
            && response.psn == self.acked.psn
            && response.psn.is_before(self.max_psn);
        if !plain {
            return false;
        }
        let Some(wqe) = self.oldest(host).filter(|wqe| wqe.op.completion() == Kind::Read) else { return false };
        let (pmtu, packet) = (ctx.pmtu(), self.acked.packet);
        let part_end = segment::read_part_end(segment::packets(&wqe, pmtu), packet, self.read_stride(ctx));
        let start = segment::offset(&wqe, packet, pmtu);
        if response.payload.len() != pmtu as usize
            || packet + 1 >= part_end
            || host.scatter_send(wqe.index, start, response.payload).is_err()
        {
            return false;
        }
        self.retire_answered(ctx, host, 1);
        // It fails only where a WQE has failed before.
        self.settle(ctx, host).is_ok()
    }

    /// Checks the place and length of a READ response packet and puts it where it belongs.
    fn place_read<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        wqe: &SendWqe,
        position: Position,
        payload: &[u8],
    ) -> Result<(), WcStatus> {
        let pmtu = ctx.pmtu();
        let packet = self.acked.packet;
        let begins = matches!(position, Position::First | Position::Only);
        if begins == self.read.continuing && !self.read.asked_again {
            return Err(WcStatus::BadRespErr);
        }
        let start = segment::offset(wqe, packet, pmtu);
        let expected = segment::offset(wqe, packet + 1, pmtu) - start;
        let part_end = segment::read_part_end(segment::packets(wqe, pmtu), packet, self.read_stride(ctx));
        let ends = matches!(position, Position::Last | Position::Only);
        if payload.len() != expected as usize || ends != (packet + 1 == part_end) {
            return Err(WcStatus::LocLenErr);
        }
        if !payload.is_empty() {
            host.scatter_send(wqe.index, start, payload).map_err(|_| WcStatus::LocProtErr)?;
        }
        self.read.continuing = !ends;
        if ends {
            self.read.asked_again = false;
        }
        Ok(())
    }

    pub(super) fn receive_atomic<H: Host>(
        &mut self,
        ctx: &mut Context,
        host: &mut H,
        response: &Expected<'_>,
    ) -> Result<(), Stop> {
        let Some(wqe) = self.request_of(ctx, host, response)? else { return Ok(()) };
        let headers = response.response.packet.headers;
        let (Some(aeth), Some(original)) = (headers.aeth, headers.atomic_ack_eth) else {
            host.drop_packet(DropReason::Malformed);
            return Ok(());
        };
        let Syndrome::Ack(code) = aeth.syndrome else {
            return Err(self.fail_oldest(ctx, host, WcStatus::BadRespErr));
        };
        if wqe.op.completion() != Kind::Atomic {
            return Err(self.fail_oldest(ctx, host, WcStatus::BadRespErr));
        }
        // The result is in host order (clause 9.4.5).
        if host.scatter_send(wqe.index, 0, &original.to_ne_bytes()).is_err() {
            return Err(self.fail_oldest(ctx, host, WcStatus::LocProtErr));
        }
        self.retire_answered(ctx, host, 1);
        self.take_credits(code);
        self.settle(ctx, host)
    }

    /// The request that a response answers. A response acknowledges everything posted before its request (clause
    /// 9.7.5.1.2); if it comes from beyond what is next, something was lost and `None` comes back.
    fn request_of<H: Host>(
        &mut self,
        ctx: &mut Context,
        host: &mut H,
        response: &Expected<'_>,
    ) -> Result<Option<SendWqe>, Stop> {
        let covered = self.retire_posted(ctx, host, response.psn, response.response.packet.headers.bth.becn);
        self.settle(ctx, host)?;
        if covered == Covered::Blocked {
            self.implied_nak(ctx, host)?;
            return Ok(None);
        }
        Ok(self.oldest(host))
    }
}
