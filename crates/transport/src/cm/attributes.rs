//! What the attributes of a QP become through a connection: what Linux fills in for `rdma_init_qp_attr`.

use scalefabric_verbs::{AccessFlags, AddressVector, Mtu, Psn, QpAttr, QpAttrMask, QpState, QpType, Qpn};
use scalefabric_wire::cm::{Rep, Req};

use super::request::{ack_timeout, reply_qpn};

/// All that a connection knows of its QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpPath {
    /// Type of our QP.
    pub qp_type: QpType,
    /// Way to the peer.
    pub av: AddressVector,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// The peer's QP.
    pub dest_qp_num: Qpn,
    /// First PSN that we expect: the one our own REQ or REP named.
    pub rq_psn: Psn,
    /// First PSN that we send: the one the peer named.
    pub sq_psn: Psn,
    /// READs and atomics that we answer.
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub initiator_depth: u8,
    /// Retries after timeouts.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry: u8,
    /// Local ACK timeout.
    pub timeout: u8,
}

impl QpPath {
    /// Knows the way and nothing else.
    pub fn none(av: AddressVector) -> Self {
        Self::of_own_req(&Req::default(), QpType::Rc, av)
    }

    /// Active side, from its own REQ.
    pub fn of_own_req(req: &Req, qp_type: QpType, av: AddressVector) -> Self {
        Self {
            qp_type,
            av,
            path_mtu: Mtu::from_raw(u32::from(req.path_mtu)).unwrap_or(Mtu::Mtu1024),
            dest_qp_num: Qpn::new(0),
            rq_psn: req.starting_psn,
            sq_psn: Psn::new(0),
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            timeout: req.primary.local_ack_timeout,
        }
    }

    /// Active side: the REP has come, and says how much of what we wanted we get.
    pub fn take_rep(&mut self, rep: &Rep, packet_life_time: u8) {
        let xrc = self.qp_type == QpType::XrcSend;
        self.dest_qp_num = reply_qpn(rep, xrc);
        self.sq_psn = rep.starting_psn;
        self.initiator_depth = rep.responder_resources;
        self.responder_resources = rep.initiator_depth;
        self.rnr_retry = rep.rnr_retry_count;
        self.timeout = ack_timeout(rep.target_ack_delay, packet_life_time);
    }

    /// Passive side, from the peer's REQ.
    pub fn of_peer_req(req: &Req, qp_type: QpType, av: AddressVector, starting_psn: Psn) -> Self {
        Self {
            qp_type,
            av,
            path_mtu: Mtu::from_raw(u32::from(req.path_mtu)).unwrap_or(Mtu::Mtu256),
            dest_qp_num: req.local_qpn,
            rq_psn: starting_psn,
            sq_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            timeout: req.primary.local_ack_timeout,
        }
    }

    /// Attributes for a state with their mask; `None` for a state that a connection does not lead to.
    pub fn attributes(&self, state: QpState) -> Option<(QpAttr, QpAttrMask)> {
        let reliable = matches!(self.qp_type, QpType::Rc | QpType::XrcSend);
        let answers = matches!(self.qp_type, QpType::Rc | QpType::XrcRecv);
        let mut mask = QpAttrMask::STATE;
        let mut attr = QpAttr { qp_state: state, port_num: self.av.port_num, ..QpAttr::default() };
        match state {
            QpState::Init => {
                mask |= QpAttrMask::ACCESS_FLAGS | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
                attr.qp_access_flags = AccessFlags::REMOTE_WRITE;
                if self.responder_resources > 0 {
                    attr.qp_access_flags |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
                }
            }
            QpState::Rtr => {
                mask |= QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
                attr.ah_attr = self.av;
                attr.path_mtu = self.path_mtu;
                attr.dest_qp_num = self.dest_qp_num;
                attr.rq_psn = self.rq_psn;
                if answers {
                    mask |= QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
                    attr.max_dest_rd_atomic = self.responder_resources;
                    attr.min_rnr_timer = 0;
                }
            }
            QpState::Rts => {
                mask |= QpAttrMask::SQ_PSN;
                attr.sq_psn = self.sq_psn;
                if reliable {
                    mask |= QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
                    attr.retry_cnt = self.retry_count;
                    attr.rnr_retry = self.rnr_retry;
                    attr.max_rd_atomic = self.initiator_depth;
                }
                if reliable || answers {
                    mask |= QpAttrMask::TIMEOUT;
                    attr.timeout = self.timeout;
                }
            }
            _ => return None,
        }
        Some((attr, mask))
    }
}
