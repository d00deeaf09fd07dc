//! NAKs, said and implied (clauses 9.7.5.2 and 9.7.6.1).

use scalefabric_verbs::WcStatus;
use scalefabric_wire::Psn;
use scalefabric_wire::packet::NakCode;

use super::Covered;
use crate::congestion::{Event, Loss};
use crate::context::Context;
use crate::counter::{Counter, DropReason};
use crate::host::Host;
use crate::requester::{Requester, Stop};

impl Requester {
    /// A NAK for `psn`; it acknowledges everything before.
    pub(super) fn receive_nak<H: Host>(
        &mut self,
        ctx: &mut Context,
        host: &mut H,
        psn: Psn,
        code: NakCode,
    ) -> Result<(), Stop> {
        if code == NakCode::PsnSequenceError {
            self.losses += 1;
            host.count(Counter::ReceivedSequenceNaks, 1);
        }
        let covered = self.retire_posted(ctx, host, psn, false);
        self.settle(ctx, host)?;
        if covered == Covered::Blocked {
            return self.implied_nak(ctx, host);
        }
        let status = match code {
            NakCode::PsnSequenceError => return self.receive_sequence_nak(ctx, host),
            NakCode::InvalidRequest => {
                host.count(Counter::RemoteInvalidRequests, 1);
                WcStatus::RemInvReqErr
            }
            NakCode::RemoteAccessError => {
                host.count(Counter::RemoteAccessErrors, 1);
                WcStatus::RemAccessErr
            }
            NakCode::RemoteOperationalError => WcStatus::RemOpErr,
            // A code of RD, which no peer of ours speaks: reserved here, like those without a meaning.
            NakCode::InvalidRdRequest => WcStatus::BadRespErr,
        };
        Err(self.fail_oldest(ctx, host, status))
    }

    /// A responder sends it once, and then nothing until the PSN that it misses has come (clause 9.7.5.2). So a second one for
    /// the same PSN is a copy, or a peer that answers each packet behind the gap: it tells of a loss that is made good
    /// already, and takes no retry. If what was sent again is lost as well, the timer finds out.
    fn receive_sequence_nak<H: Host>(&mut self, ctx: &mut Context, host: &mut H) -> Result<(), Stop> {
        if self.nak_taken || self.sending.psn == self.acked.psn || self.retry.rnr_until.is_some() {
            host.drop_packet(DropReason::StaleResponse);
            return Ok(());
        }
        self.nak_taken = true;
        self.send_again(ctx, host, Loss::Nak)
    }

    /// A response came from beyond the request at `acked`: the answer to that one was lost. More of these mean the same
    /// loss until something is acknowledged, and so do those that come while what was set back has not left again; if the
    /// answer is lost once more, the timer finds out.
    pub(super) fn implied_nak<H: Host>(&mut self, ctx: &mut Context, host: &mut H) -> Result<(), Stop> {
        if self.recovering || self.sending.psn == self.acked.psn {
            self.recovering = true;
            host.drop_packet(DropReason::StaleResponse);
            return Ok(());
        }
        self.losses += 1;
        host.count(Counter::ImpliedNaks, 1);
        self.recovering = true;
        self.send_again(ctx, host, Loss::Nak)
    }

    /// The peer had no receive posted for `psn`: wait as long as its code says, then send again (clause 9.7.5.2.8).
    pub(super) fn receive_rnr_nak<H: Host>(
        &mut self,
        ctx: &mut Context,
        host: &mut H,
        psn: Psn,
        code: u8,
    ) -> Result<(), Stop> {
        host.count(Counter::ReceivedRnrNaks, 1);
        let covered = self.retire_posted(ctx, host, psn, false);
        self.settle(ctx, host)?;
        if covered == Covered::Blocked {
            return self.implied_nak(ctx, host);
        }
        if self.sending.psn == self.acked.psn || self.retry.rnr_until.is_some() {
            host.drop_packet(DropReason::StaleResponse);
            return Ok(());
        }
        self.go_back();
        if let Some(control) = &mut self.control {
            control.handle(host.now(), Event::Withdrawn);
        }
        if self.retry.wait_for_receiver(ctx, host.now(), code) {
            return Ok(());
        }
        host.count(Counter::RnrRetryExceeded, 1);
        Err(self.fail_oldest(ctx, host, WcStatus::RnrRetryExcErr))
    }
}
