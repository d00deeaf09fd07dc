//! Two RC QPs and a wire that loses, repeats and delays at random: every byte arrives, in order, exactly once, and every
//! WQE completes once and in order.

use alloc::vec::Vec;

use proptest::prelude::*;
use scalefabric_verbs::{QpType, RKey, WcOpcode, WcStatus};

use super::{SIGNALED, piece};
use crate::host::WqeOp;
use crate::queue_pair::Config;
use crate::testing::{Fate, Link, WHOLE};

/// Packets with one PSN are lost less often than this; a requester tries eight times.
const MOST_LOSSES: u32 = 6;

/// xorshift64*: enough for a wire.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    /// Percent of packets lost, doubled, late.
    faults: (u64, u64, u64),
    window: u32,
    interval: u32,
    depth: u8,
    psn: u32,
    /// Kind and length of each request.
    requests: Vec<(u8, u32)>,
    receives_late: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    (
        any::<u64>(),
        (0u64..12, 0u64..8, 0u64..8),
        prop_oneof![Just(2000u32), Just(10_000), Just(1 << 20)],
        1u32..20,
        1u8..5,
        prop_oneof![Just(0x00ff_fff0u32), Just(0), Just(0x007f_fff8)],
        prop::collection::vec((0u8..9, prop_oneof![Just(0u32), 1u32..64, 1u32..6000]), 1..40),
        any::<bool>(),
    )
        .prop_map(|(seed, faults, window, interval, depth, psn, requests, receives_late)| Plan {
            seed: seed | 1,
            faults,
            window,
            interval,
            depth,
            psn,
            requests,
            receives_late,
        })
}

/// a's memory: sources at 0, READ results at 0x10_0000. b's: WRITE targets at 0, READ sources at 0x10_0000, SEND buffers at
/// 0x20_0000, the counter at 0x30_0000. Each request has 8 KiB of its own.
fn run(plan: &Plan) -> Result<(), TestCaseError> {
    const SLOT: u64 = 8192;
    let config = Config { max_inflight_bytes: plan.window, ack_req_interval: plan.interval, ..Config::default() };
    let mut link = Link::new((QpType::Rc, QpType::Rc), 0x31_0000, config, |attr| {
        attr.max_rd_atomic = plan.depth;
        attr.max_dest_rd_atomic = plan.depth;
        attr.sq_psn = scalefabric_wire::Psn::new(plan.psn);
        attr.rq_psn = attr.sq_psn;
        attr.timeout = 10;
        attr.min_rnr_timer = 1;
    });
    let mut chance = Chance(plan.seed);
    for side in [&mut link.a, &mut link.b] {
        side.host.memory[..0x20_0000].iter_mut().for_each(|b| *b = chance.below(256) as u8);
    }
    let sources = link.a.host.memory.clone();
    let targets = link.b.host.memory.clone();

    let mut receives = 0u64;
    let mut expected = Vec::new();
    for (i, (kind, length)) in plan.requests.iter().enumerate() {
        let (i, length) = (i as u64, *length);
        let (at, rkey) = (i * SLOT, RKey(WHOLE));
        let (op, sge) = match kind {
            0 | 1 => (WqeOp::Write { remote_addr: at, rkey }, piece(at, length)),
            2 | 3 => (WqeOp::Read { remote_addr: 0x10_0000 + at, rkey }, piece(0x10_0000 + at, length)),
            4 | 5 => (WqeOp::Send, piece(at, length)),
            6 => (WqeOp::WriteWithImm { remote_addr: at, rkey, imm: i as u32 }, piece(at, length)),
            7 => (WqeOp::FetchAdd { remote_addr: 0x30_0000, rkey, add: 1 << (i % 48) }, piece(0x10_0000 + at, 8)),
            _ => (WqeOp::AtomicWrite { remote_addr: at, rkey }, piece(at, 8)),
        };
        link.a.host.post_send(i, op, SIGNALED, &[sge]);
        if matches!(kind, 4..=6) {
            expected.push((i, *kind, length));
            receives += 1;
        }
    }
    let post = |link: &mut Link, n: u64| {
        let buffer = piece(0x20_0000 + (n % 128) * SLOT, SLOT as u32);
        link.b.host.post_recv(n, &[buffer]);
    };
    let mut posted = if plan.receives_late { 0 } else { receives };
    for n in 0..posted {
        post(&mut link, n);
    }
    let (lost, doubled, late) = plan.faults;
    // How often each PSN was lost, there and back: the wire gives up before the requester, which promises no more than its tries.
    let mut losses = alloc::collections::BTreeMap::<u32, u32>::new();
    let mut fate = |_: bool, packet: &crate::testing::Packet| match chance.below(100) {
        p if p < lost => {
            let count = losses.entry(packet.headers.bth.psn.get()).or_default();
            *count += 1;
            if *count < MOST_LOSSES { Fate::Lost } else { Fate::Arrives }
        }
        p if p < lost + doubled => Fate::Doubled,
        p if p < lost + doubled + late => Fate::Late(1 + chance.below(5) as usize),
        _ => Fate::Arrives,
    };
    let total = plan.requests.len();
    for _ in 0..2000 {
        if posted < receives {
            post(&mut link, posted);
            posted += 1;
        }
        let end = link.now().after(100_000_000);
        link.run_until(end, &mut fate);
        if link.a.host.sent.len() == total {
            break;
        }
    }
    // Nothing moves any more on a good wire.
    link.run();

    let done: Vec<_> = link.a.host.sent.iter().map(|w| (w.wr_id, w.status)).collect();
    let wanted: Vec<_> = (0..total as u64).map(|i| (i, WcStatus::Success)).collect();
    prop_assert_eq!(done, wanted);
    prop_assert_eq!(link.a.host.sends_left(), 0);
    let received: Vec<_> = link.b.host.received.iter().map(|r| (r.wc.status, r.wc.opcode, r.wc.byte_len)).collect();
    let wanted: Vec<_> = expected
        .iter()
        .map(|(_, kind, length)| {
            let opcode = if *kind == 6 { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
            (WcStatus::Success, opcode, *length)
        })
        .collect();
    prop_assert_eq!(received, wanted);

    // Bytes.
    let mut model = targets;
    let mut results = sources.clone();
    let mut counter = 0u64;
    let mut nth = 0usize;
    for (i, (kind, length)) in plan.requests.iter().enumerate() {
        let (at, length) = (i * SLOT as usize, *length as usize);
        let source = sources[at..at + length.max(8)].to_vec();
        match kind {
            0 | 1 | 6 => model[at..at + length].copy_from_slice(&source[..length]),
            8 => model[at..at + 8].copy_from_slice(&source[..8]),
            2 | 3 => {
                let from = 0x10_0000 + at;
                results[from..from + length].copy_from_slice(&model[from..from + length]);
            }
            7 => {
                results[0x10_0000 + at..0x10_0000 + at + 8].copy_from_slice(&counter.to_ne_bytes());
                counter = counter.wrapping_add(1 << (i as u64 % 48));
            }
            _ => {
                let to = 0x20_0000 + nth * SLOT as usize;
                model[to..to + length].copy_from_slice(&source[..length]);
            }
        }
        nth += usize::from(matches!(kind, 4..=6));
    }
    model[0x30_0000..0x30_0008].copy_from_slice(&counter.to_le_bytes());
    prop_assert!(link.b.host.memory == model, "b's memory differs from the model");
    prop_assert!(link.a.host.memory == results, "a's memory differs from the model");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// On failure proptest prints the plan; it is its own seed.
    #[test]
    fn every_byte_arrives_in_order_exactly_once(plan in plan()) {
        run(&plan)?;
    }
}
