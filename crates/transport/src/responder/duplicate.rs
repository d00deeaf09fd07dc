//! Requests that came before (clause 9.7.5.1.4 and figure "duplicate request"): nothing is done twice, and everything is
//! answered again.
//!
//! SEND and WRITE get an ACK of everything so far. A READ is read again, all of it or the end that the requester still
//! lacks. Atomics, ATOMIC WRITE and FLUSH get their stored result. What is no longer remembered, or is not what it was the
//! first time, is dropped (class D).
//!
//! A copy may also have been made by the network and come long after its answer was used. So a READ whose key has been
//! taken back since is dropped like the rest, and does not end the connection.

use scalefabric_wire::opcode::Operation;
use scalefabric_wire::packet::Headers;

use super::Responder;
use super::acknowledge::Executed;
use super::check::{Duplicate, Stop};
use super::read::response_packets;
use super::resources::{Answer, Unsent};
use crate::context::Context;
use crate::counter::{Counter, DropReason};
use crate::host::{Host, RemoteAccess};

impl Responder {
    /// Answers a duplicate.
    pub(super) fn duplicate<H: Host>(
        &mut self,
        ctx: &Context,
        host: &mut H,
        duplicate: &Duplicate<'_>,
    ) -> Result<(), Stop> {
        host.count(Counter::DuplicateRequests, 1);
        let headers = duplicate.request.packet.headers;
        let operation = duplicate.request.info.operation;
        if matches!(
            operation,
            Operation::Send
                | Operation::SendWithImm
                | Operation::SendWithInv
                | Operation::Write
                | Operation::WriteWithImm
        ) {
            let ack_req = headers.bth.ack_req;
            self.owe_ack(ctx, host, &Executed { ack_req, ends_message: false, duplicate: true });
            return Ok(());
        }
        let forgotten = Stop::Drop(DropReason::DuplicateRequest);
        let at = self.resources.find(duplicate.psn).ok_or(forgotten)?;
        let remembered = self.resources.get(at);
        let again = match (operation, remembered.answer) {
            (Operation::ReadRequest, Answer::Read(source)) => {
                let part = part_of(&source, headers).ok_or(forgotten)?;
                let packets = u64::from(response_packets(part.length as u32, ctx.pmtu()));
                if duplicate.psn + packets - 1 > remembered.last {
                    return Err(forgotten);
                }
                if !ctx.attr.qp_access_flags.contains(part.access)
                    || part.length > 0 && host.check_remote(&part).is_err()
                {
                    return Err(Stop::Drop(DropReason::RemoteAccess));
                }
                Unsent { psn: duplicate.psn, va: part.va, left: part.length as u32, started: false }
            }
            (_, Answer::Stored { operation: before, va, rkey, .. })
                if before == operation && names(headers) == Some((va, rkey)) =>
            {
                Unsent { psn: duplicate.psn, va: 0, left: 0, started: false }
            }
            _ => return Err(forgotten),
        };
        self.resources.send_again(at, again);
        Ok(())
    }
}

/// The range that a repeated READ asks for, if it lies in that of the first.
fn part_of(source: &RemoteAccess, headers: &Headers) -> Option<RemoteAccess> {
    let reth = headers.reth?;
    let length = u64::from(reth.dma_len);
    let skipped = reth.va.checked_sub(source.va)?;
    let fits = reth.rkey == source.rkey && skipped.checked_add(length)? <= source.length;
    fits.then_some(RemoteAccess { va: reth.va, length, ..*source })
}

/// Address and key that a request names.
fn names(headers: &Headers) -> Option<(u64, scalefabric_wire::RKey)> {
    match (headers.atomic_eth, headers.reth) {
        (Some(eth), _) => Some((eth.va, eth.rkey)),
        (None, Some(reth)) => Some((reth.va, reth.rkey)),
        (None, None) => None,
    }
}
