//! Path migration (clause 17.2.8): the QP goes on by its alternate path; QPN, PSNs, PD and memory stay.
//!
//! MIGRATED, then (the consumer) REARM, then (both sides in REARM) ARMED, then (an error here, a packet with MigReq from
//! the peer, or the consumer) MIGRATED by the other path.

use scalefabric_verbs::MigState;
use scalefabric_verbs::event::EventType;

use crate::context::Context;
use crate::counter::Counter;
use crate::host::Host;

/// Primary and alternate path change places; the state is MIGRATED, so that our packets ask the peer to follow.
pub(crate) fn migrate<H: Host>(ctx: &mut Context, host: &mut H) {
    let attr = &mut ctx.attr;
    core::mem::swap(&mut attr.ah_attr, &mut attr.alt_ah_attr);
    core::mem::swap(&mut attr.port_num, &mut attr.alt_port_num);
    core::mem::swap(&mut attr.pkey_index, &mut attr.alt_pkey_index);
    core::mem::swap(&mut attr.timeout, &mut attr.alt_timeout);
    attr.path_mig_state = MigState::Migrated;
    host.paths_swapped();
}

/// Our own wish, after retries ran out, or the peer's: only an armed QP follows. True if it did.
pub(crate) fn migrate_automatically<H: Host>(ctx: &mut Context, host: &mut H) -> bool {
    if ctx.attr.path_mig_state != MigState::Armed {
        return false;
    }
    migrate(ctx, host);
    host.count(Counter::Migrations, 1);
    host.event(EventType::PathMig);
    true
}

/// A packet came by the primary path: one with MigReq clear tells that the peer is in REARM or ARMED, too (clause
/// 17.2.8.1.2).
pub(crate) fn heard(ctx: &mut Context, mig_req: bool) {
    if ctx.attr.path_mig_state == MigState::Rearm && !mig_req {
        ctx.attr.path_mig_state = MigState::Armed;
        ctx.migration_error_raised = false;
    }
}
