//! What many queue pairs cost: sending on them in turn, latency of one among idle ones, memory, receives of their own and shared.

use super::pair::{DEPTH, World, cost_ns, resident, take, take_all};
use super::{Limits, Table, count, ratio};
use scalefabric_verbs::*;
use std::sync::Arc;

/// Numbers of queue pairs.
const STEPS: [u32; 5] = [1, 100, 1_000, 10_000, 30_000];

/// WRITEs under way at the most.
const UNDER_WAY: usize = 16;

/// 8-byte WRITEs on queue pairs in turn, and one at a time on one of them.
pub fn in_turn(limits: &Limits) -> Table {
    let mut table = Table::new(
        "8 B WRITEs on N connected queue pairs of one CQ, 16 under way",
        &["N", "in turn, ns of processor", "rate / that of 1", "one at a time on one of them, ns", "cost / that of 1"],
    );
    let world = World::new();
    let cq = world.cq(1 << 16);
    let request = [World::write(&*world.region)];
    let mut queue_pairs: Vec<Arc<dyn QueuePair>> = Vec::new();
    let mut first = None;
    for n in STEPS.into_iter().filter(|n| *n <= limits.most) {
        queue_pairs.extend(world.connected(n - queue_pairs.len() as u32, &cq));
        let mut room = [WorkCompletion::default(); 64];
        let (mut next, mut under_way) = (0, 0);
        let mut turn = || {
            // Spread, so that neighbours in memory are not neighbours in time.
            queue_pairs[next].post_send(&request).expect("post");
            next = (next + 7919) % queue_pairs.len();
            under_way += 1;
            let mut done = 0;
            while under_way >= UNDER_WAY {
                let taken = take(&*cq, &mut room);
                under_way -= taken;
                done += taken;
            }
            done
        };
        // Once around, so that all have been used.
        (0..n).for_each(|_| {
            turn();
        });
        let many = cost_ns(limits.ms, &mut turn);
        take_all(&*cq, under_way);
        let one = cost_ns(limits.ms, || {
            queue_pairs[0].post_send(&request).expect("post");
            take_all(&*cq, 1);
            1
        });
        let (first_many, first_one) = *first.get_or_insert((many, one));
        table.row([
            count(n),
            format!("{many:.0}"),
            ratio(first_many / many),
            format!("{one:.0}"),
            ratio(one / first_one),
        ]);
    }
    table
}

/// Resident memory of connected queue pairs that do nothing.
pub fn memory(limits: &Limits) -> Table {
    let mut table = Table::new(
        "memory of an idle connected queue pair",
        &["requests its queues hold", "queue pairs", "bytes of one", "once each was used, bytes of one"],
    );
    let world = World::new();
    // All live until the end: what an earlier step gave back would hide what a later one takes.
    let mut kept = Vec::new();
    for depth in [1, DEPTH, 128, 1024] {
        let n = 5_000.min(limits.most);
        let cq = world.cq(1 << 10);
        let before = resident();
        let queue_pairs: Vec<_> = (0..n)
            .map(|_| {
                let queue_pair = world.make(&cq, None, depth).expect("a queue pair");
                world.connect(&*queue_pair).expect("it is connected");
                queue_pair
            })
            .collect();
        let idle = resident().saturating_sub(before);
        let request = [World::write(&*world.region)];
        for queue_pair in &queue_pairs {
            queue_pair.post_send(&request).expect("post");
            take_all(&*cq, 1);
        }
        let used = resident().saturating_sub(before);
        let each = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(n));
        table.row([count(depth), count(n), each(idle), each(used)]);
        kept.push(queue_pairs);
    }
    table
}

/// SENDs to queue pairs in turn, each with its own receives, and with those of all.
pub fn shared_receives(limits: &Limits) -> Table {
    let mut table = Table::new(
        "8 B SENDs on N queue pairs in turn, receives of one shared receive queue",
        &["N", "own receives, ns of processor", "shared receives, ns", "shared / own"],
    );
    for n in [1, 100, 1_000, 10_000].into_iter().filter(|n| *n <= limits.most) {
        let world = World::new();
        let into = [Sge { addr: world.region.addr(), length: 8, lkey: world.region.lkey() }];
        let receive = [RecvWr { wr_id: 0, sg_list: &into }];
        let cost = |srq: Option<Arc<dyn SharedReceiveQueue>>| {
            let cq = world.cq(1 << 10);
            let queue_pairs: Vec<_> = (0..n)
                .map(|_| {
                    let queue_pair = world.make(&cq, srq.as_ref(), DEPTH).expect("a queue pair");
                    world.connect(&*queue_pair).expect("it is connected");
                    queue_pair
                })
                .collect();
            let mut request = SendWr::new(0, SendOp::Send);
            (request.flags, request.inline_data) = (SendFlags::INLINE, &[7; 8]);
            let mut next = 0;
            cost_ns(limits.ms, || {
                let queue_pair = &queue_pairs[next];
                match &srq {
                    Some(srq) => srq.post_recv(&receive).expect("post a receive"),
                    None => queue_pair.post_recv(&receive).expect("post a receive"),
                }
                queue_pair.post_send(&[request]).expect("post");
                next = (next + 7919) % queue_pairs.len();
                take_all(&*cq, 2);
                1
            })
        };
        let own = cost(None);
        let srq =
            world.domain.create_srq(&SrqInit { max_wr: 64, max_sge: 1, srq_limit: 0, xrc: None }).expect("an SRQ");
        let shared = cost(Some(srq));
        table.row([count(n), format!("{own:.0}"), format!("{shared:.0}"), ratio(shared / own)]);
    }
    table
}
