//! Runs of WRITEs beside the same WQEs taken one by one: the same packets leave at the same time, and the same completions come.

use proptest::prelude::*;
use scalefabric_verbs::SendFlags;
use scalefabric_wire::packet::NakCode;

use super::{Dialogue, FADD, READ, SIGNALED, WRITE, piece};
use crate::counter::Counter;
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::Region;

#[derive(Clone, Debug)]
enum Act {
    Post { op: u8, length: u32, flags: SendFlags },
    Send { budget: usize, room: usize },
    Ack(u32),
    Nak(u32),
    Rnr(u32),
    Answer(u32),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let flags = prop_oneof![
        3 => Just(SendFlags::empty()),
        3 => Just(SIGNALED),
        1 => Just(SIGNALED | SendFlags::FENCE),
        1 => Just(SendFlags::INLINE | SendFlags::SOLICITED),
    ];
    let op = prop_oneof![12 => Just(0), 1 => 1..6_u8];
    let length = prop_oneof![6 => 0..64_u32, 1 => Just(1024_u32), 1 => 1000..3000_u32, 1 => 3000..50_000_u32];
    prop_oneof![
        12 => (op, length, flags).prop_map(|(op, length, flags)| Act::Post { op, length, flags }),
        5 => (prop_oneof![3 => Just(128), 1 => 0..6_usize], prop_oneof![4 => Just(usize::MAX), 1 => 0..5_usize])
            .prop_map(|(budget, room)| Act::Send { budget, room }),
        4 => (0..12_u32).prop_map(Act::Ack),
        1 => (0..12_u32).prop_map(Act::Nak),
        1 => (0..12_u32).prop_map(Act::Rnr),
        1 => (0..12_u32).prop_map(Act::Answer),
        1 => prop_oneof![Just(10_u64), Just(100_000_000)].prop_map(Act::Pass),
    ]
}

fn apply(d: &mut Dialogue, act: &Act, wr_id: u64) {
    use scalefabric_wire::packet::Syndrome;
    // Counted from what is acknowledged, so that most hit something.
    let base = d.side.qp.requester.acked.psn.sub(super::START).get();
    match *act {
        Act::Post { op, length, flags } => {
            let bad = [crate::testing::Piece { key: 0x9999, ..piece(0x1000, length) }];
            let good = [piece(0x1000, length)];
            let (op, pieces) = match op {
                1 => (READ, &[piece(0x1000, 8)][..]),
                2 => (FADD, &[piece(0x1000, 8)][..]),
                3 => (WqeOp::Send, &good[..]),
                4 => (WqeOp::LocalInv { rkey: scalefabric_verbs::RKey(0x77) }, &[][..]),
                5 if length.is_multiple_of(7) => (WRITE, &bad[..]),
                _ => (WRITE, &good[..]),
            };
            let pieces = if pieces.first().is_some_and(|piece| piece.length == 0) { &[] } else { pieces };
            d.side.host.post_send(wr_id, op, flags, pieces);
        }
        Act::Send { budget, room } => {
            d.side.host.room = room;
            d.side.transmit(budget);
            d.side.host.room = usize::MAX;
        }
        Act::Ack(psn) => d.ack(base + psn),
        Act::Nak(psn) => d.nak(base + psn, NakCode::PsnSequenceError),
        Act::Rnr(psn) => d.answers(base + psn, Syndrome::RnrNak(1)),
        Act::Answer(psn) => d.atomic_ack(base + psn, 5),
        Act::Pass(ns) => d.passes(ns),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_run_sends_what_would_have_left_one_by_one(
        acts in prop::collection::vec(act(), 1..120),
        max_inflight_bytes in prop_oneof![Just(1_u32 << 20), Just(1200), Just(4000)],
        run_room in 0..40_usize,
        cuts_runs: bool,
    ) {
        let config = Config { max_inflight_bytes, ..Config::default() };
        let [mut runs, mut single] = [(); 2].map(|()| {
            let mut d = Dialogue::new(scalefabric_verbs::QpType::Rc, config, |_| ());
            d.side.host.regions.push(Region { key: 0x77, ..d.side.host.regions[0] });
            d
        });
        single.side.host.hides_plain_writes = true;
        (runs.side.host.run_room, runs.side.host.cuts_runs) = (run_room, cuts_runs);
        for (wr_id, act) in acts.iter().enumerate() {
            apply(&mut runs, act, wr_id as u64);
            apply(&mut single, act, wr_id as u64);
            prop_assert_eq!(&runs.side.host.wire, &single.side.host.wire, "after {} acts", wr_id + 1);
            runs.side.host.wire.clear();
            single.side.host.wire.clear();
            prop_assert_eq!(runs.completions(), single.completions());
            prop_assert_eq!(runs.side.host.retired, single.side.host.retired);
            prop_assert_eq!(runs.side.qp.state(), single.side.qp.state());
            prop_assert_eq!(runs.side.qp.deadline(), single.side.qp.deadline());
        }
        for &counter in Counter::ALL {
            prop_assert_eq!(runs.side.host.counter(counter), single.side.host.counter(counter));
        }
    }
}
