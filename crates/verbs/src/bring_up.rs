//! Ready-made attributes for bringing a QP up, so that a first program is short, and the defaults behind them.
//!
//! Each function returns the attributes and the mask that [`QueuePair::modify`](crate::QueuePair::modify) takes. The masks
//! are the required ones of [`crate::state::TRANSITIONS`]; change a field before the call, or set more bits, as needed.

use scalefabric_wire::{Gid, Psn, QKey, Qpn};

use crate::access::AccessFlags;
use crate::attribute::{AddressVector, MigState, Mtu, QpAttr, QpAttrMask, QpCap};
use crate::state::{QpState, QpType, transition};

impl Default for AddressVector {
    /// Port 1, GID index 0, hop limit 64, best effort, no destination yet (`dgid` zero, which `modify` refuses).
    fn default() -> Self {
        Self {
            dgid: Gid::ZERO,
            sgid_index: 0,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            static_rate: 0,
            port_num: 1,
        }
    }
}

impl AddressVector {
    /// The way from a GID of a port to a destination, with hop limit 64 and best-effort traffic class.
    pub fn new(port_num: u8, sgid_index: u8, dgid: Gid) -> Self {
        Self { dgid, sgid_index, port_num, ..Self::default() }
    }
}

impl Default for QpAttr {
    /// A QP in RESET, and values that suit a data centre wherever `modify` needs one: MTU 1024, `timeout` 14 (67 ms),
    /// `retry_cnt` 7, `rnr_retry` 7 (for ever), `min_rnr_timer` 12 (0.64 ms), 16 READs and atomics outstanding in each
    /// direction, P_Key index 0, port 1, PSNs 0, no remote access.
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: Mtu::Mtu1024,
            path_mig_state: MigState::Migrated,
            qkey: QKey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qp_num: Qpn::new(0),
            qp_access_flags: AccessFlags::empty(),
            cap: QpCap::default(),
            ah_attr: AddressVector::default(),
            alt_ah_attr: AddressVector::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            alt_port_num: 0,
            alt_timeout: 0,
            rate_limit: 0,
        }
    }
}

impl QpAttr {
    /// RESET to INIT of a connected QP: its port, and what its peer may do (`REMOTE_WRITE` and so on; empty: SENDs only).
    pub fn init(qp_type: QpType, port_num: u8, access: AccessFlags) -> (Self, QpAttrMask) {
        let attr = Self { qp_state: QpState::Init, port_num, qp_access_flags: access, ..Self::default() };
        (attr, required(qp_type, QpState::Reset, QpState::Init))
    }

    /// RESET to INIT of a UD QP: its port, and the Q_Key that datagrams to it must carry.
    pub fn init_ud(port_num: u8, qkey: QKey) -> (Self, QpAttrMask) {
        let attr = Self { qp_state: QpState::Init, port_num, qkey, ..Self::default() };
        (attr, required(QpType::Ud, QpState::Reset, QpState::Init))
    }

    /// INIT to RTR of a connected QP: the peer's QPN, its first PSN, the path MTU (at most either port's active MTU) and
    /// the way there. RC and XRC targets also get `max_dest_rd_atomic` and `min_rnr_timer` of [`QpAttr::default`].
    ///
    /// ```
    /// use scalefabric_verbs::{AccessFlags, AddressVector, Gid, Mtu, Psn, QpAttr, QpType, Qpn};
    ///
    /// let peer_gid = Gid::from_ip("10.0.0.2".parse().unwrap());
    /// let steps = [
    ///     QpAttr::init(QpType::Rc, 1, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE),
    ///     QpAttr::rtr(QpType::Rc, Qpn::new(0x11), Psn::new(100), Mtu::Mtu1024, AddressVector::new(1, 0, peer_gid)),
    ///     QpAttr::rts(QpType::Rc, Psn::new(200)),
    /// ];
    /// for (attr, mask) in &steps {
    ///     // qp.modify(attr, *mask)?;
    ///     assert!(mask.contains(scalefabric_verbs::QpAttrMask::STATE));
    /// }
    /// ```
    pub fn rtr(
        qp_type: QpType,
        dest_qp_num: Qpn,
        rq_psn: Psn,
        path_mtu: Mtu,
        ah_attr: AddressVector,
    ) -> (Self, QpAttrMask) {
        let port_num = ah_attr.port_num;
        let attr = Self { qp_state: QpState::Rtr, dest_qp_num, rq_psn, path_mtu, ah_attr, port_num, ..Self::default() };
        (attr, required(qp_type, QpState::Init, QpState::Rtr))
    }

    /// INIT to RTR of a UD QP, which needs nothing.
    pub fn rtr_ud() -> (Self, QpAttrMask) {
        let attr = Self { qp_state: QpState::Rtr, ..Self::default() };
        (attr, required(QpType::Ud, QpState::Init, QpState::Rtr))
    }

    /// RTR to RTS of any QP: the PSN of our first packet, which the peer was given as its `rq_psn`. RC and XRC initiators
    /// also get timeout, retry counts and `max_rd_atomic` of [`QpAttr::default`].
    pub fn rts(qp_type: QpType, sq_psn: Psn) -> (Self, QpAttrMask) {
        let attr = Self { qp_state: QpState::Rts, sq_psn, ..Self::default() };
        (attr, required(qp_type, QpState::Rtr, QpState::Rts))
    }

    /// RTS to SQD: finish what was begun. With `notify`, SQ_DRAINED is raised when that is done.
    pub fn sqd(notify: bool) -> (Self, QpAttrMask) {
        let attr = Self { qp_state: QpState::Sqd, en_sqd_async_notify: notify, ..Self::default() };
        (attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY)
    }

    /// SQD, SQE or RTS to RTS: go on sending.
    pub fn resume() -> (Self, QpAttrMask) {
        (Self { qp_state: QpState::Rts, ..Self::default() }, QpAttrMask::STATE)
    }

    /// Any state to ERR: flushes both queues.
    pub fn error() -> (Self, QpAttrMask) {
        (Self { qp_state: QpState::Err, ..Self::default() }, QpAttrMask::STATE)
    }

    /// Any state to RESET: forgets queues and attributes.
    pub fn reset() -> (Self, QpAttrMask) {
        (Self::default(), QpAttrMask::STATE)
    }
}

/// STATE and what the table requires for the transition.
fn required(qp_type: QpType, from: QpState, to: QpState) -> QpAttrMask {
    transition(qp_type, from, to).map_or(QpAttrMask::STATE, |row| row.required | QpAttrMask::STATE)
}
