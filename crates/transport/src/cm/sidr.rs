//! Finding a datagram service (clause 12.11): SIDR_REQ, repeated until a SIDR_REP comes. The other side keeps nothing but the
//! answer, which the NIC holds for duplicates.

use scalefabric_wire::cm::{CmMad, SidrRep, SidrReq};

use super::repeat::{Due, Repeat};
use super::{MAX_RETRIES, RESPONSE_TIMEOUT, code_ns};
use crate::time::Time;

/// Statuses of a SIDR_REP that rdma_cm gives.
pub mod status {
    /// Here it is.
    pub const VALID: u8 = 0;
    /// Nobody offers it.
    pub const UNSUPPORTED: u8 = 1;
    /// The consumer does not want to.
    pub const REJECT: u8 = 2;
}

/// What came of it.
// One of them is large, and it is not kept.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer, of whatever status, with its attribute modifier.
    Answered(SidrRep, u32),
    /// Nobody answered.
    Unreachable,
}

/// One question.
#[derive(Clone, Debug)]
pub struct Query {
    request_id: u32,
    repeat: Option<Repeat>,
    out: Option<CmMad>,
    outcome: Option<Outcome>,
}

impl Query {
    /// Asks. The interval is the one Linux takes: the service's time and the way there and back.
    pub fn ask(now: Time, req: SidrReq, transaction_id: u64, packet_life_time: u8) -> Self {
        let mad = CmMad { transaction_id, attribute_modifier: 0, message: req.into() };
        let interval = code_ns(RESPONSE_TIMEOUT) + 2 * code_ns(packet_life_time);
        Self {
            request_id: req.request_id,
            repeat: Some(Repeat::new(now, mad, interval, MAX_RETRIES)),
            out: Some(mad),
            outcome: None,
        }
    }

    /// An answer. Only the first one counts.
    pub fn handle(&mut self, rep: &SidrRep, modifier: u32) {
        if rep.request_id == self.request_id && self.repeat.take().is_some() {
            self.outcome = Some(Outcome::Answered(*rep, modifier));
        }
    }

    /// Looks at the time.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.repeat.as_mut().map(|repeat| repeat.handle_timeout(now)) {
            Some(Due::Again(mad)) => self.out = Some(mad),
            Some(Due::GaveUp) => {
                self.repeat = None;
                self.outcome = Some(Outcome::Unreachable);
            }
            Some(Due::No) | None => {}
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<CmMad> {
        self.out.take()
    }

    /// What came of it, once.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// When [`Query::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.repeat.as_ref().map(Repeat::deadline)
    }
}
