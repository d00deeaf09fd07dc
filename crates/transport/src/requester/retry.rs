//! Retry: the ACK timer, the two retry counters and the wait after an RNR NAK (clauses 9.7.5.2.8, 9.7.6.1.3, 9.7.6.1.4).
//!
//! Here stand the times and counters; what follows from them is done by whoever asks.
//!
//! A timer that is seen much too late says nothing of the peer: it was we who were not there. The packets may have left at the
//! end of our absence and not at its beginning. Then the time begins anew, once, and costs no retry; the standard allows up
//! to four times the QP's `timeout` (clause 9.7.6.1.3).

use crate::context::Context;
use crate::time::{Time, ack_timeout_ns};
use scalefabric_wire::aeth::rnr_timer_ns;

/// How long an answer is awaited, by the QP's `timeout` and what the device makes of it.
pub(crate) fn timeout_ns(ctx: &Context) -> Option<u64> {
    let code = match ctx.attr.timeout {
        0 => 0,
        code => code.max(ctx.config.least_timeout),
    };
    ack_timeout_ns(code).map(|ns| ns.saturating_mul(u64::from(ctx.config.timeout_multiple.max(1))))
}

/// Timers and counters of one requester.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    ack_deadline: Option<Time>,
    /// Nothing is sent before: the peer had no receive posted.
    pub rnr_until: Option<Time>,
    left: u8,
    rnr_left: u8,
    /// The timer began anew since we were late, and nothing was acknowledged or sent again since.
    excused: bool,
}

impl Retry {
    /// Something was acknowledged: both counters begin anew.
    pub fn progress(&mut self, ctx: &Context) {
        self.left = ctx.attr.retry_cnt;
        self.rnr_left = ctx.attr.rnr_retry;
    }

    /// A packet left: the timer runs, unless it does already. It never fires early; `timeout` 0 never fires.
    pub fn arm(&mut self, ctx: &Context, now: Time) {
        if self.ack_deadline.is_none() {
            self.restart(ctx, now);
        }
    }

    /// An ACK came and more are awaited.
    pub fn restart(&mut self, ctx: &Context, now: Time) {
        self.ack_deadline = timeout_ns(ctx).map(|ns| now.after(ns));
        self.excused = false;
    }

    /// The path changed: if an answer is awaited, the timer begins anew with the timeout of the new one.
    pub fn restart_if_armed(&mut self, ctx: &Context, now: Time) {
        if self.ack_deadline.is_some() {
            self.restart(ctx, now);
        }
    }

    /// Nothing is awaited.
    pub fn disarm(&mut self) {
        self.ack_deadline = None;
    }

    /// Neither timer runs.
    pub fn stop(&mut self) {
        self.ack_deadline = None;
        self.rnr_until = None;
    }

    /// When the next of the two timers is due.
    pub fn deadline(&self) -> Option<Time> {
        match (self.ack_deadline, self.rnr_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes the ACK timer if it is due. One that is due for longer than a quarter of its time begins anew, once.
    pub fn take_timeout(&mut self, ctx: &Context, now: Time) -> bool {
        let Some(due) = self.ack_deadline.filter(|t| *t <= now) else { return false };
        let late = timeout_ns(ctx).is_some_and(|ns| now.since(due) > ns / 4);
        if late && !self.excused {
            self.restart(ctx, now);
            self.excused = true;
            return false;
        }
        self.ack_deadline = None;
        true
    }

    /// Takes one retry; false if none is left.
    pub fn take(&mut self) -> bool {
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }

    /// The peer was not ready and gave a timer code: takes one RNR retry and waits. False if none is left. 7 is for ever.
    /// The peer lives, so the other counter begins anew.
    pub fn wait_for_receiver(&mut self, ctx: &Context, now: Time, code: u8) -> bool {
        if ctx.attr.rnr_retry != 7 {
            if self.rnr_left == 0 {
                return false;
            }
            self.rnr_left -= 1;
        }
        self.left = ctx.attr.retry_cnt;
        self.ack_deadline = None;
        self.rnr_until = Some(now.after(rnr_timer_ns(code)));
        true
    }
}
