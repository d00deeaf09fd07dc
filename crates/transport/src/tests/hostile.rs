//! A peer that answers anything at any time: the requester never panics, never completes a WQE twice, out of order or
//! too early, and in the end everything posted is complete.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use scalefabric_verbs::{QpAttr, QpAttrMask, QpState, QpType, RKey, SendFlags, WcStatus};
use scalefabric_wire::opcode::{Operation, Position};
use scalefabric_wire::packet::{Aeth, Syndrome};

use super::{Dialogue, piece};
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::requester::segment::{self, Kind};
use crate::testing::WHOLE;

#[derive(Clone, Debug)]
enum Act {
    Post {
        kind: u8,
        length: u32,
        flags: u32,
    },
    Transmit {
        budget: usize,
        room: usize,
    },
    Ack {
        psn: u32,
        syndrome: u8,
    },
    /// What the request at the `acked` cursor waits for.
    Answer,
    ReadResponse {
        position: u8,
        psn: u32,
        length: usize,
    },
    AtomicAck {
        psn: u32,
    },
    Passes {
        ns: u64,
    },
    Drain,
    GoOn,
    Memory {
        gone: bool,
    },
}

fn act() -> impl Strategy<Value = Act> {
    // Mostly near what is expected: the storm is to get deep, not only to be refused.
    let psn = || prop_oneof![8 => Just(0u32), 4 => 0u32..6, 1 => 0u32..40, 1 => (1u32 << 24) - 3..1 << 24];
    prop_oneof![
        12 => (0u8..10, prop_oneof![Just(8u32), 0u32..5000], 0u32..8)
            .prop_map(|(kind, length, flags)| Act::Post { kind, length, flags }),
        8 => (0usize..20, prop_oneof![4 => Just(1000usize), 1 => 0usize..4])
            .prop_map(|(budget, room)| Act::Transmit { budget, room }),
        40 => Just(Act::Answer),
        4 => (1u32..20).prop_map(|psn| Act::Ack { psn, syndrome: 31 }),
        2 => (psn(), prop_oneof![4 => 0u8..32, 4 => 0x20u8..0x40, 6 => Just(0x60u8)])
            .prop_map(|(psn, syndrome)| Act::Ack { psn, syndrome }),
        1 => (psn(), 0x61u8..=255).prop_map(|(psn, syndrome)| Act::Ack { psn, syndrome }),
        1 => (0u8..4, psn(), prop_oneof![Just(1024usize), Just(0), 0usize..4097])
            .prop_map(|(position, psn, length)| Act::ReadResponse { position, psn, length }),
        1 => psn().prop_map(|psn| Act::AtomicAck { psn }),
        3 => prop_oneof![Just(0u64), 0u64..200_000_000].prop_map(|ns| Act::Passes { ns }),
        1 => Just(Act::Drain),
        2 => Just(Act::GoOn),
        1 => prop::bool::weighted(0.2).prop_map(|gone| Act::Memory { gone }),
    ]
}

/// Answers the oldest request as a peer would.
fn answer(d: &mut Dialogue, oldest: u32) {
    let r = &d.side.qp.requester;
    let (continuing, at, stride) = (r.read.continuing, r.acked, r.read_stride(&d.side.qp.ctx));
    if at.psn == r.max_psn {
        return;
    }
    let Some(wqe) = crate::Host::send_wqe(&mut d.side.host, at.wqe) else { return };
    let total = segment::packets(&wqe, 1024);
    match wqe.op.completion() {
        Kind::Posted => d.ack(oldest),
        Kind::Atomic => d.atomic_ack(oldest, 7),
        Kind::Answered => d.read_response(Position::Only, oldest, &[]),
        Kind::Local => {}
        Kind::Read => {
            let length = segment::cost(&wqe, at.packet, at.packet + 1, 1024) - segment::PACKET_COST;
            let last = at.packet + 1 == segment::read_part_end(total, at.packet, stride);
            let position = match (continuing, last) {
                (false, false) => Position::First,
                (false, true) => Position::Only,
                (true, false) => Position::Middle,
                (true, true) => Position::Last,
            };
            d.read_response(position, oldest, &vec![1; length as usize]);
        }
    }
}

fn run(qp_type: QpType, window: u32, acts: &[Act]) -> Result<(), TestCaseError> {
    let config = Config { max_inflight_bytes: window, ..Config::default() };
    let mut d = Dialogue::new(qp_type, config, |attr| attr.retry_cnt = 7);
    let mut signaled = Vec::new();
    let mut posted = 0u64;
    for act in acts {
        // PSNs in acts count from the oldest that is not acknowledged.
        let oldest = d.side.qp.requester.acked.psn.get().wrapping_sub(super::START);
        match act.clone() {
            Act::Post { kind, length, flags } => {
                let (remote_addr, rkey) = (0, RKey(WHOLE));
                let eight = matches!(kind, 3..=5).then_some(8);
                let op = match kind {
                    0 => WqeOp::Write { remote_addr, rkey },
                    1 | 2 => WqeOp::Read { remote_addr, rkey },
                    3 => WqeOp::FetchAdd { remote_addr, rkey, add: 1 },
                    4 => WqeOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
                    5 => WqeOp::AtomicWrite { remote_addr, rkey },
                    6 => WqeOp::BindMw,
                    7 => WqeOp::SendWithImm { imm: 3 },
                    _ => WqeOp::Send,
                };
                let flags = SendFlags::from_bits_truncate(flags);
                let length = if kind == 6 { 0 } else { eight.unwrap_or(length) };
                d.side.host.post_send(posted, op, flags, &[piece(0x1000, length)]);
                if flags.contains(SendFlags::SIGNALED) {
                    signaled.push(posted);
                }
                posted += 1;
            }
            Act::Transmit { budget, room } => {
                d.side.host.room = room;
                d.side.transmit(budget);
                d.side.host.wire.clear();
                d.side.host.room = usize::MAX;
            }
            Act::Ack { psn, syndrome } => {
                let mut packet = d.response(Operation::Acknowledge, Position::Only, psn.wrapping_add(oldest), &[]);
                packet.headers.aeth = Some(Aeth { syndrome: Syndrome::from_byte(syndrome), msn: 0 });
                d.side.receive(&packet);
            }
            Act::ReadResponse { position, psn, length } => {
                let position = [Position::First, Position::Middle, Position::Last, Position::Only][position as usize];
                d.read_response(position, psn.wrapping_add(oldest), &vec![1; length]);
            }
            Act::Answer => answer(&mut d, oldest),
            Act::AtomicAck { psn } => d.atomic_ack(psn.wrapping_add(oldest), 7),
            Act::Passes { ns } => d.passes(ns),
            Act::Drain | Act::GoOn => {
                let state = if matches!(act, Act::Drain) { QpState::Sqd } else { QpState::Rts };
                let attr = QpAttr { qp_state: state, ..d.side.qp.query() };
                let _ = d.side.modify(&attr, QpAttrMask::STATE);
            }
            Act::Memory { gone } => d.side.host.regions[0].gone = gone,
        }
        // Nothing is complete that was never begun, but in ERR and SQE.
        let r = &d.side.qp.requester;
        prop_assert!((r.begun.wrapping_sub(r.acked.wqe) as i32) >= 0);
        prop_assert!((r.sending.wqe.wrapping_sub(r.acked.wqe) as i32) >= 0);
        prop_assert!(r.max_psn.since(r.acked.psn) >= 0 && r.max_psn.since(r.sending.psn) >= 0);
        prop_assert_eq!(d.side.host.retired, r.acked.wqe);
        if r.sending.psn == r.acked.psn {
            prop_assert_eq!(r.inflight, 0);
            prop_assert_eq!(r.rd_outstanding, 0);
        } else if qp_type == QpType::Rc && d.side.qp.state() != QpState::Err {
            prop_assert!(d.side.qp.deadline().is_some(), "something is awaited and no timer runs");
        }
    }
    d.side.to_state(QpState::Err);
    let done: Vec<_> = d.side.host.sent.iter().map(|w| (w.wr_id, w.status)).collect();
    prop_assert!(done.windows(2).all(|w| w[0].0 < w[1].0), "out of order: {:?}", done);
    // Success, then at most one error of its own unless SQE was left, then flushes.
    let mut errors = done.iter().map(|(_, s)| *s).skip_while(|s| *s == WcStatus::Success);
    if let Some(first) = errors.next()
        && qp_type == QpType::Rc
    {
        let _ = first;
        prop_assert!(errors.all(|s| s == WcStatus::WrFlushErr), "{:?}", done);
    }
    for wr_id in signaled {
        prop_assert!(done.iter().any(|(id, _)| *id == wr_id), "{} never completed", wr_id);
    }
    prop_assert_eq!(d.side.host.sends_left(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_answer_breaks_the_requester(
        reliable in prop::bool::weighted(0.9),
        window in prop_oneof![Just(1u32), Just(5000), Just(1 << 20)],
        acts in prop::collection::vec(act(), 1..400),
    ) {
        run(if reliable { QpType::Rc } else { QpType::Uc }, window, &acts)?;
    }
}
