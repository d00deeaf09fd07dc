//! What requester, responder and completer of one QP share: its type, number, state and attributes, and the few rules
//! that follow from those alone (which headers a packet starts with, what ends the QP).
//!
//! Nothing here sends, receives or waits.

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{AccessFlags, AddressVector, MigState, Mtu, QpAttr, QpCap, QpState, QpType, Qpn};
use scalefabric_wire::opcode::{Opcode, Service};
use scalefabric_wire::packet::Headers;
use scalefabric_wire::{Gid, PKey, Psn, QKey};

use crate::host::{Host, Outgoing, Path};
use crate::queue_pair::Config;
use crate::requester::segment::MAX_MESSAGE;

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
    /// The peer has said that it reads telemetry trailers, and so do we.
    pub(crate) telemetry: bool,
    /// PATH_MIG_ERR was raised and nothing changed since: a stranger cannot fill the event queue.
    pub(crate) migration_error_raised: bool,
}

/// The QP cannot go on: it goes to ERR and both queues are flushed. Whoever returns it has already completed the WQE at
/// fault (if there is one) and remembered the NAK that the peer must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The asynchronous event to raise, if the standard wants one (clause 11.6.3.2).
    pub event: Option<EventType>,
}

const NO_PATH: AddressVector = AddressVector {
    dgid: Gid::ZERO,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    flow_label: 0,
    sl: 0,
    static_rate: 0,
    port_num: 0,
};

/// Attributes of a QP in RESET, as `query` shows them.
const RESET_ATTR: QpAttr = QpAttr {
    qp_state: QpState::Reset,
    cur_qp_state: QpState::Reset,
    path_mtu: Mtu::Mtu256,
    path_mig_state: MigState::Migrated,
    qkey: QKey(0),
    rq_psn: Psn::new(0),
    sq_psn: Psn::new(0),
    dest_qp_num: Qpn::new(0),
    qp_access_flags: AccessFlags::empty(),
    cap: QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
    ah_attr: NO_PATH,
    alt_ah_attr: NO_PATH,
    pkey_index: 0,
    alt_pkey_index: 0,
    en_sqd_async_notify: false,
    sq_draining: false,
    max_rd_atomic: 0,
    max_dest_rd_atomic: 0,
    min_rnr_timer: 0,
    port_num: 0,
    timeout: 0,
    retry_cnt: 0,
    rnr_retry: 0,
    alt_port_num: 0,
    alt_timeout: 0,
    rate_limit: 0,
};

impl Context {
    /// A QP in RESET.
    pub const fn new(qp_type: QpType, qpn: Qpn, config: Config) -> Self {
        Self {
            qp_type,
            qpn,
            state: QpState::Reset,
            attr: RESET_ATTR,
            config,
            telemetry: false,
            migration_error_raised: false,
        }
    }

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

    /// Bytes of payload that one packet can hold: a datagram is never split, and its limit is checked before.
    pub(crate) const fn packet_bytes(&self) -> u32 {
        if matches!(self.qp_type, QpType::Ud) { MAX_MESSAGE } else { self.pmtu() }
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
        Outgoing { headers, path: Path::Primary, reads_telemetry: self.config.telemetry }
    }
}
