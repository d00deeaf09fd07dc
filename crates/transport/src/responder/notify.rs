//! Congestion notification (annex A17.9): a packet that a switch marked CE is answered with a CNP to its sender, not too
//! often.
//!
//! Connected QPs only: a CNP names a QP and travels its path, and a datagram has neither.

use scalefabric_verbs::QpType;
use scalefabric_wire::Psn;
use scalefabric_wire::opcode::{Opcode, Operation, Position, Service};

use crate::congestion::NotificationPoint;
use crate::context::Context;
use crate::counter::Counter;
use crate::host::{Host, Payload};
use crate::queue_pair::Config;
use crate::time::Time;

const CNP: Opcode = match Opcode::find(Service::Cnp, Operation::Cnp, Position::Only) {
    Some(opcode) => opcode,
    None => panic!("the table has the CNP"),
};

/// Payload of a CNP: 16 reserved bytes (figure of annex A17.9.3).
const RESERVED: [u8; 16] = [0; 16];

/// Decides whether a marked packet is answered.
pub trait CnpPolicy {
    /// A marked packet came at `now`.
    fn answers(&self, config: &Config, now: Time, point: &NotificationPoint) -> bool;
}

/// The policies there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cnps {
    /// At most one CNP in `cnp_interval_ns`, the first at once: the notification point of DCQCN.
    #[default]
    Paced,
    /// None, as Linux's rxe.
    Never,
}

impl CnpPolicy for Cnps {
    fn answers(&self, config: &Config, now: Time, point: &NotificationPoint) -> bool {
        match self {
            Self::Paced => point.wants(now.0, config.cnp_interval_ns),
            Self::Never => false,
        }
    }
}

/// Answers a marked packet if the policy wants that.
pub(super) fn answer_mark<H: Host>(ctx: &Context, host: &mut H, point: &mut NotificationPoint) {
    let now = host.now();
    if ctx.qp_type == QpType::Ud || !ctx.config.cnps.answers(&ctx.config, now, point) {
        return;
    }
    let Some(pkey) = ctx.pkey(host) else { return };
    let mut packet = ctx.packet(CNP, pkey, Psn::new(0));
    packet.headers.bth.becn = true;
    // Without room it is not sent: the next marked packet will ask again.
    if host.emit(&packet, Payload::Bytes(&RESERVED)).is_ok() {
        host.count(Counter::SentCnps, 1);
        point.sent(now.0);
    }
}
