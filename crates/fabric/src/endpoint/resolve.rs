//! What becomes of outstanding operations when a lane has failed: done, to be posted again, or to be reported. Both sides have stopped and drained their
//! QPs, so what the peer counted is final.
//!
//! RC executes in order (clause 9.7.2): if a message was received, all that was posted before it has been executed; if one was not, nothing after it has.
//! Between the last that was received and the first that was not, a backend that vouches for its expected PSN tells the rest; without it,
//! WRITEs and atomics there are in doubt.

use super::log::{Kind, Log, Slot, Stage};
use crate::operation::{Outcome, Repeat};
use crate::session::{Drained, LaneId};
use scalefabric_verbs::WcStatus;

/// What is known of an operation's execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Executed,
    NotExecuted,
    /// Some of its packets were.
    InPart,
    Unknown,
}

/// Decides for every operation that was posted. `executed` messages are known to have been received, `posted` were posted;
/// `keys` is the present rotation of local keys; `is_replaced`: whether
/// memory is offered under this number by other keys than this one, and by this one no more. Returns how many operations are
/// to be posted again; an error if the peer's account cannot be.
pub(crate) fn resolve(
    log: &mut Log,
    peer: &Drained,
    executed: u64,
    posted: u64,
    keys: u32,
    is_replaced: impl Fn(u32, u32) -> bool,
) -> Result<u64, String> {
    if peer.received < executed || peer.received > posted {
        return Err(format!(
            "it received {} messages, but {executed} were acknowledged and {posted} were posted",
            peer.received
        ));
    }
    let is = |slot: &Slot, received: bool| {
        slot.stage == Stage::Posted && slot.kind.is_message() && (slot.message < peer.received) == received
    };
    let last_received = (log.head..log.tail).rev().find(|n| is(log.get(*n), true));
    let first_missing = (log.head..log.tail).find(|n| is(log.get(*n), false));
    let mut again = 0;
    for number in log.head..log.tail {
        let slot = log.get_mut(number);
        if slot.stage != Stage::Posted {
            continue;
        }
        let known = if last_received.is_some_and(|last| number <= last) {
            Known::Executed
        } else if first_missing.is_some_and(|first| number >= first) {
            // The first itself may have come in part; but it was not delivered, and its bytes are nobody's before it is.
            Known::NotExecuted
        } else {
            by_psn(slot, peer)
        };
        slot.stage = decide(slot, known, keys, &is_replaced);
        again += u64::from(slot.stage == Stage::Waiting);
    }
    Ok(again)
}

/// The same where messages are not counted, since several processes receive them: by the PSN alone that the responder of the lane expected next, if its backend
/// vouches for that. Returns how many operations are to be posted again.
pub(crate) fn resolve_by_psn(log: &mut Log, lane: LaneId, expected: Option<u32>, keys: u32) -> u64 {
    let peer = Drained { received: 0, executed: vec![(lane, expected)] };
    let mut again = 0;
    for number in log.head..log.tail {
        let slot = log.get_mut(number);
        if slot.stage == Stage::Posted {
            let known = match by_psn(slot, &peer) {
                // A message that did not come whole was not delivered, and its bytes are nobody's.
                Known::InPart if matches!(slot.kind, Kind::Send { .. }) => Known::NotExecuted,
                known => known,
            };
            slot.stage = decide(slot, known, keys, &|_, _| false);
            again += u64::from(slot.stage == Stage::Waiting);
        }
    }
    again
}

fn by_psn(slot: &Slot, peer: &Drained) -> Known {
    let expected = peer.executed.iter().find(|(lane, _)| *lane == slot.lane).and_then(|(_, psn)| *psn);
    let Some(expected) = expected else { return Known::Unknown };
    // PSNs are 24 bits and wrap; less than half of them are ever outstanding (clause 9.7.1).
    let ahead = expected.wrapping_sub(slot.psn) & 0xff_ffff;
    if ahead >= 1 << 23 || ahead == 0 {
        Known::NotExecuted
    } else if ahead >= slot.psns {
        Known::Executed
    } else {
        Known::InPart
    }
}

fn decide(slot: &Slot, known: Known, keys: u32, is_replaced: &impl Fn(u32, u32) -> bool) -> Stage {
    let status = slot.failed.unwrap_or(WcStatus::WrFlushErr);
    // A local key that was withdrawn while the operation was on its way is not the operation's fault either.
    let local_key_was_rotated = status == WcStatus::LocProtErr && slot.keys != keys;
    if is_own_fault(status) && !local_key_was_rotated && !key_was_rotated(slot, status, is_replaced) {
        // Posting it again would fail again. Nobody answers with a NAK after he has executed it whole.
        return Stage::Ended(match known {
            Known::NotExecuted => Outcome::NotDone(status),
            _ => Outcome::InDoubt(status),
        });
    }
    match (slot.kind, known) {
        (Kind::Read | Kind::Probe, _) => Stage::Waiting,
        (_, Known::NotExecuted) => Stage::Waiting,
        (Kind::Send { .. } | Kind::Write { .. }, Known::Executed) => Stage::Ended(Outcome::Done(slot.success())),
        // The value that it fetched is lost.
        (Kind::CompareSwap { .. } | Kind::FetchAdd { .. }, Known::Executed) => Stage::Ended(Outcome::InDoubt(status)),
        (_, Known::InPart | Known::Unknown) if slot.repeat == Repeat::Idempotent => Stage::Waiting,
        (_, Known::InPart | Known::Unknown) => Stage::Ended(Outcome::InDoubt(status)),
    }
}

/// Whether the operation itself was refused, here or there; a new QP would refuse it, too.
fn is_own_fault(status: WcStatus) -> bool {
    matches!(
        status,
        WcStatus::LocLenErr
            | WcStatus::LocQpOpErr
            | WcStatus::LocProtErr
            | WcStatus::MwBindErr
            | WcStatus::BadRespErr
            | WcStatus::RemInvReqErr
            | WcStatus::RemAccessErr
            | WcStatus::RemOpErr
    )
}

/// The peer withdrew the key while the operation was on its way, and has offered another.
fn key_was_rotated(slot: &Slot, status: WcStatus, is_replaced: &impl Fn(u32, u32) -> bool) -> bool {
    let Some(super::operation::Remote::Offered { id, .. }) = slot.remote else { return false };
    status == WcStatus::RemAccessErr && is_replaced(id, slot.rkey)
}
