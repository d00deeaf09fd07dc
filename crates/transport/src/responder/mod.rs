//! Steps 8 to 10 of the walk: the responder checks a request, executes it and acknowledges it.

use scalefabric_wire::Psn;

use crate::admission::Admitted;
use crate::context::{Context, Fatal};
use crate::host::Host;
use crate::queue_pair::Next;
use crate::time::Time;

/// The responder of one QP.
#[derive(Debug, Default)]
pub struct Responder {
    expected_psn: Psn,
}

impl Responder {
    /// As in RESET.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets everything, as the transition to RESET wants. Receive WQEs are the host's to drop.
    pub fn reset(&mut self) {
        *self = Self::new();
    }

    /// INIT to RTR: the first request will carry `rq_psn`.
    pub fn start(&mut self, rq_psn: Psn) {
        self.expected_psn = rq_psn;
    }

    /// The PSN expected next: `rq_psn` of a query.
    pub fn expected_psn(&self) -> Psn {
        self.expected_psn
    }

    /// Takes a request. `Err`: the WQE at fault is completed, the NAK is remembered, and the QP goes to ERR.
    pub fn receive<H: Host>(&mut self, _ctx: &Context, _host: &mut H, _request: &Admitted<'_>) -> Result<(), Fatal> {
        Ok(())
    }

    /// An admitted packet (request or response, not a CNP) was marked CE: answers with a CNP, not too often.
    pub fn congestion_experienced<H: Host>(&mut self, _ctx: &Context, _host: &mut H, _packet: &Admitted<'_>) {}

    /// Sends what is pending in order (READ responses, ACKs, a NAK), at most `budget` packets, which it counts down.
    /// Also called in ERR, so that the NAK that explains the error leaves. [`Next::Idle`] when nothing is left.
    pub fn transmit<H: Host>(&mut self, _ctx: &Context, _host: &mut H, _budget: &mut usize) -> Result<Next, Fatal> {
        Ok(Next::Idle)
    }

    /// The batch of received packets is over: one ACK for all of it.
    pub fn end_of_batch<H: Host>(&mut self, _ctx: &Context, _host: &mut H) -> Result<(), Fatal> {
        Ok(())
    }

    /// When [`Responder::on_timer`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Runs what is due.
    pub fn on_timer<H: Host>(&mut self, _ctx: &Context, _host: &mut H) {}

    /// The QP is in ERR: completes the receive WQE of a message that was coming in, then everything in the RQ, with
    /// WR_FLUSH_ERR, in order. With an SRQ it raises LAST_WQE_REACHED, once. Called again when more was posted.
    pub fn flush<H: Host>(&mut self, _ctx: &Context, _host: &mut H) {}
}
