//! What requester, responder and completer of one QP share: its type, number, state and attributes, and the few rules
//! that follow from those alone (which headers a packet starts with, what ends the QP).
//!
//! Nothing here sends, receives or waits.

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{MigState, QpAttr, QpState, QpType, Qpn};
use scalefabric_wire::opcode::{Opcode, Service};
use scalefabric_wire::packet::Headers;
use scalefabric_wire::{PKey, Psn};

use crate::host::{Host, Outgoing, Path};
use crate::queue_pair::Config;

/// Type, number, state and attributes of a QP.
#[derive(Debug)]
pub struct Context {
    /// Type.
    pub qp_type: QpType,
    /// Number.
    pub qpn: Qpn,
    /// State. Only `QueuePair` changes it.
    pub state: QpState,
    /// Attributes as last modified. After a migration primary and alternate path have changed places. `qp_state`,
    /// `sq_draining`, `sq_psn` and `rq_psn` are stale here: `QueuePair::query` fills them in.
    pub attr: QpAttr,
    /// What the device decides.
    pub config: Config,
}

/// The QP cannot go on: it goes to ERR and both queues are flushed. Whoever returns it has already completed the WQE at
/// fault (if there is one) and remembered the NAK that the peer must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The asynchronous event to raise, if the standard wants one (clause 11.6.3.2).
    pub event: Option<EventType>,
}

impl Context {
    /// The service whose opcodes this QP speaks.
    pub const fn service(&self) -> Service {
        match self.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }

    /// True for RC and XRC: every request is acknowledged.
    pub const fn is_reliable(&self) -> bool {
        matches!(self.qp_type, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// Bytes of payload in a full packet.
    pub const fn pmtu(&self) -> u32 {
        self.attr.path_mtu.bytes()
    }

    /// The P_Key that packets of this QP carry, as its table says now; `None` if the index is beyond the table.
    pub fn pkey<H: Host>(&self, host: &H) -> Option<PKey> {
        host.pkey(self.attr.port_num, self.attr.pkey_index)
    }

    /// A packet to the connected peer, by the primary path, with the MigReq bit of our migration state (clause
    /// 17.2.8.1: set in MIGRATED, clear in REARM and ARMED).
    pub fn packet(&self, opcode: Opcode, pkey: PKey, psn: Psn) -> Outgoing {
        let mut headers = Headers::new(opcode, pkey, self.attr.dest_qp_num, psn);
        headers.bth.mig_req = matches!(self.attr.path_mig_state, MigState::Migrated);
        Outgoing { headers, path: Path::Primary }
    }
}
