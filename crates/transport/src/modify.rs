//! `modify`: the QP state machine (clauses 10.3.1 and 11.2.5.2). All is checked before anything is changed.
//!
//! Which transition takes which attributes says the table of `verbs::state`; which values a device can have says
//! `verbs::limit`, which the NIC has asked before. Here stands what only the protocol knows: draining and migration.

use scalefabric_verbs::state::check_modify;
use scalefabric_verbs::{MigState, QpAttr, QpAttrMask, QpState, VerbsError};

use crate::context::Context;
use crate::host::Host;
use crate::migration;
use crate::queue_pair::QueuePair;
use crate::requester::Requester;

impl QueuePair {
    /// Changes attributes and state by the table of `verbs::state`; all or nothing. What the QP has in its queues is
    /// flushed on the way to ERR; on the way to RESET the host drops it.
    pub fn modify<H: Host>(&mut self, host: &mut H, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.alike = None;
        let from = self.ctx.state;
        let to = check_modify(self.ctx.qp_type, from, attr, mask)?;
        self.check_draining(to, mask)?;
        self.check_migration(attr, mask)?;

        if to == QpState::Reset {
            self.ctx = Context::new(self.ctx.qp_type, self.ctx.qpn, self.ctx.config);
            self.requester = Requester::new(self.requester.control.take());
            self.responder.reset();
            return Ok(());
        }
        // Manual migration leaves by the path that was loaded before this call.
        if mask.contains(QpAttrMask::PATH_MIG_STATE)
            && attr.path_mig_state == MigState::Migrated
            && self.ctx.attr.path_mig_state == MigState::Armed
        {
            migration::migrate(&mut self.ctx, host);
            // What was tried on the old path does not count on the new one, and its timeout is its own.
            self.requester.retry.progress(&self.ctx);
            self.requester.retry.restart_if_armed(&self.ctx, host.now());
        }
        self.ctx.apply(attr, mask);
        self.ctx.state = to;
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.responder.start(attr.rq_psn),
            (QpState::Rtr, QpState::Rts) => self.requester.start(&self.ctx, attr.sq_psn),
            (QpState::Rts, QpState::Sqd) => {
                self.ctx.attr.en_sqd_async_notify =
                    mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify;
                self.requester.draining = true;
                self.requester.check_drained(&self.ctx, host);
            }
            (QpState::Sqd, QpState::Sqd | QpState::Rts) => self.requester.retry.progress(&self.ctx),
            (_, QpState::Err) => self.enter_error(host, None),
            _ => {}
        }
        Ok(())
    }

    /// While it drains, a QP in SQD takes no attributes and does not go back to RTS: packets of begun messages still
    /// leave by what it has (clause 10.3.1.5).
    fn check_draining(&self, to: QpState, mask: QpAttrMask) -> Result<(), VerbsError> {
        let changes = to == QpState::Rts || !mask.difference(QpAttrMask::STATE).is_empty();
        if self.ctx.state == QpState::Sqd
            && self.requester.draining
            && changes
            && !matches!(to, QpState::Reset | QpState::Err)
        {
            return Err(VerbsError::invalid(
                "modify in SQD while the send queue still drains: wait for the event SQ_DRAINED (en_sqd_async_notify), or \
                 until query shows sq_draining false",
            ));
        }
        Ok(())
    }

    fn check_migration(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        if !mask.contains(QpAttrMask::PATH_MIG_STATE) {
            return Ok(());
        }
        let loaded = self.ctx.attr.alt_port_num != 0 || mask.contains(QpAttrMask::ALT_PATH);
        match attr.path_mig_state {
            MigState::Armed => Err(VerbsError::invalid(
                "path_mig_state ARMED cannot be set: set REARM here and at the peer; ARMED follows with the next packets",
            )),
            MigState::Rearm if !loaded => Err(VerbsError::invalid(
                "path_mig_state REARM without an alternate path: give ALT_PATH before or in the same call",
            )),
            MigState::Rearm | MigState::Migrated => Ok(()),
        }
    }
}

impl Context {
    fn apply(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        let ours = &mut self.attr;
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $( if mask.contains(QpAttrMask::$bit) { $( ours.$field = attr.$field; )+ } )*
            };
        }
        take! {
            ACCESS_FLAGS: qp_access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: ah_attr;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_ah_attr, alt_port_num, alt_pkey_index, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            DEST_QPN: dest_qp_num;
            RATE_LIMIT: rate_limit;
        }
        if self.state == QpState::Sqd && mask.contains(QpAttrMask::AV) && !mask.contains(QpAttrMask::PORT) {
            // As Linux has it: a new vector in SQD takes the QP to its port.
            ours.port_num = attr.ah_attr.port_num;
        }
        // The path leaves by the QP's port; elsewhere the two are the same, which the values' check saw to.
        ours.ah_attr.port_num = ours.port_num;
        ours.alt_ah_attr.port_num = ours.alt_port_num;
        if mask.intersects(QpAttrMask::PATH_MIG_STATE | QpAttrMask::ALT_PATH) {
            self.migration_error_raised = false;
        }
    }
}
